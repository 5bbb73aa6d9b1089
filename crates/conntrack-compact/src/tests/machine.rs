// SPDX-License-Identifier: Apache-2.0
//! Fig. 3, transition by transition, and which packets are control packets in which state.
use super::*;
use Direction::{In, Out};
use Fsm::*;
use Kind::*;

/// Every transition of Fig. 3 with (state, packet, sender is the one that began, sender is the one that closed first).
/// What is not here is refused.
const FIG3: &[(Fsm, Kind, Option<bool>, Option<bool>, Step)] = &[
    (SynSent, Syn, Some(true), None, Step::To(SynSent)),
    (SynSent, SynAck, Some(false), None, Step::To(SynReceived)),
    (SynSent, Rst, None, None, Step::End),
    (SynReceived, Syn, Some(true), None, Step::To(SynSent)),
    (SynReceived, SynAck, Some(false), None, Step::To(SynReceived)),
    (SynReceived, Ack, Some(true), None, Step::To(Established)),
    (SynReceived, Rst, None, None, Step::End),
    (Established, Fin, None, None, Step::To(FinWait)),
    (Established, Rst, None, None, Step::End),
    // Not in Fig. 3: a data packet of a connection that is asked whether it lives; a SYN-ACK again.
    (Established, Ack, None, None, Step::To(Established)),
    (Established, SynAck, Some(false), None, Step::To(Established)),
    (FinWait, Ack, None, Some(false), Step::To(CloseWait)),
    (FinWait, Ack, None, Some(true), Step::To(FinWait)),
    (FinWait, Fin, None, Some(true), Step::To(FinWait)),
    (FinWait, Fin, None, Some(false), Step::To(LastAck)),
    (FinWait, Rst, None, None, Step::End),
    (CloseWait, Ack, None, None, Step::To(CloseWait)),
    (CloseWait, Fin, None, Some(false), Step::To(LastAck)),
    (CloseWait, Fin, None, Some(true), Step::To(CloseWait)),
    (CloseWait, Rst, None, None, Step::End),
    (LastAck, Ack, None, Some(true), Step::To(TimeWait)),
    (LastAck, Ack, None, Some(false), Step::To(LastAck)),
    (LastAck, Fin, None, None, Step::To(LastAck)),
    (LastAck, Rst, None, None, Step::End),
    (TimeWait, Ack, None, None, Step::To(TimeWait)),
    (TimeWait, Fin, None, None, Step::To(TimeWait)),
    (TimeWait, Rst, None, None, Step::End),
];

#[test]
fn every_transition_of_fig_3_and_no_other() {
    let mut seen = vec![false; FIG3.len()];
    for state in Fsm::ALL {
        for kind in Kind::ALL {
            for (from, began, closed) in [(Out, Out, Out), (Out, Out, In), (Out, In, Out), (Out, In, In)] {
                // Both directions are treated alike.
                let got = step(state, kind, from, began, closed);
                let mirrored = step(state, kind, from.reverse(), began.reverse(), closed.reverse());
                assert_eq!(got, mirrored);
                let fits = |a: Option<bool>, b: bool| a.is_none_or(|a| a == b);
                let row = FIG3.iter().position(|(s, k, first, closer, _)| {
                    *s == state && *k == kind && fits(*first, from == began) && fits(*closer, from == closed)
                });
                let want = row.map_or(Step::Refuse, |i| FIG3[i].4);
                assert_eq!(got, want, "{state:?} {kind:?} began {} closed {}", from == began, from == closed);
                row.inspect(|i| seen[*i] = true);
            }
        }
    }
    assert!(seen.iter().all(|s| *s), "every row of the table was met");
}

#[test]
fn states_of_the_fast_path_are_those_of_fig_3() {
    let want =
        [State::Opening, State::Opening, State::Open, State::Closing, State::Closing, State::Closing, State::Closing];
    assert_eq!(Fsm::ALL.map(Fsm::state), want);
    assert!(Fsm::ALL.iter().all(|s| Fsm::from_number(*s as u8) == Some(*s)));
}

#[test]
fn control_packets_by_state_are_those_of_fig_3() {
    let control: [&[Kind]; 4] = [&[Syn], &[Syn, SynAck, Ack, Rst], &[Fin, Rst], &[Fin, Ack, Rst]];
    for (state, control) in control.iter().enumerate() {
        for kind in [Syn, SynAck, Ack, Fin, Rst, Bad] {
            let want = match () {
                _ if control.contains(&kind) => Verdict::Agent,
                _ if state == 2 && kind == Ack => Verdict::Accept,
                _ => Verdict::Drop,
            };
            assert_eq!(judge(PAPER, state as u8, kind), want, "{kind:?} in state {state}");
        }
    }
    // An ACK is control in states 1 and 3 only.
    assert_eq!(
        [0, 1, 2, 3].map(|s| judge(PAPER, s, Ack)),
        [Verdict::Drop, Verdict::Agent, Verdict::Accept, Verdict::Agent]
    );
    assert_eq!(
        [0, 1, 2, 3].map(|s| judge(PAPER, s, Plain)),
        [Verdict::Agent, Verdict::Agent, Verdict::Accept, Verdict::Agent]
    );
    assert_eq!(judge(PAPER, abi::STATES_UNSURE, Ack), Verdict::Agent);
    assert_eq!(judge(PAPER, abi::STATES_UNSURE, Bad), Verdict::Drop);
    for (state, kind) in [(2, Syn), (2, SynAck), (3, Syn)] {
        assert_eq!((judge(PAPER, state, kind), judge(CAREFUL, state, kind)), (Verdict::Drop, Verdict::Agent));
    }
}

#[test]
fn flags_make_kinds() {
    use wire::tcp::{ACK, FIN, PSH, RST, SYN};
    let cases = [
        (SYN, Syn),
        (SYN | ACK, SynAck),
        (ACK, Ack),
        (ACK | PSH | 0xe0, Ack),
        (FIN | ACK, Fin),
        (FIN | PSH | ACK, Fin),
        (RST, Rst),
        (RST | ACK, Rst),
        (FIN, Bad),
        (0, Bad),
        (PSH, Bad),
        (SYN | FIN, Bad),
        (SYN | RST, Bad),
        (FIN | RST, Bad),
        (SYN | FIN | ACK, Bad),
        (0xff, Bad),
    ];
    for (flags, kind) in cases {
        assert_eq!(Kind::of_tcp(flags), kind, "{flags:#x}");
    }
}
