// SPDX-License-Identifier: Apache-2.0
//! What the test suites of Linux (packetdrill cases of nf_conntrack) and of VPP (NAT44-ED) hold of a connection tracker, as
//! scripts for the state machine, and for the tracker where time or another session matters.
//!
//! A line: `>` from the VM or `<` to it, flags, sequence number, acknowledgement, `+n` bytes of data, `w=n` window, `s=n` scale
//! option; after `:` the state that results, `drop`, or `new` and the state of another connection.

use super::*;
use crate::tcp::{step, Action, Conn};
use wire::tcp::{ACK, FIN, PSH, RST, SYN};

fn segment(line: &str) -> (Direction, Segment) {
    let mut words = line.split_whitespace();
    let direction = match words.next() {
        Some(">") => Direction::Out,
        Some("<") => Direction::In,
        other => panic!("{other:?} is no direction"),
    };
    let bit = |c| match c {
        'S' => SYN,
        'A' => ACK,
        'F' => FIN,
        'R' => RST,
        'P' => PSH,
        '-' => 0,
        _ => panic!("{c} is no flag"),
    };
    let flags = words.next().expect("flags").chars().map(bit).fold(0, |a, b| a | b);
    let mut seg = Segment { flags, window: 1000, ..Segment::default() };
    let mut numbers = 0;
    for word in words {
        if let Some(n) = word.strip_prefix('+') {
            seg.len = n.parse().unwrap();
        } else if let Some(n) = word.strip_prefix("w=") {
            seg.window = n.parse().unwrap();
        } else if let Some(n) = word.strip_prefix("s=") {
            seg.scale = Some(n.parse().unwrap());
        } else if numbers == 0 {
            seg.seq = word.parse().unwrap();
            numbers += 1;
        } else {
            seg.ack = word.parse().unwrap();
        }
    }
    (direction, seg)
}

fn run(script: &str) -> Conn {
    let mut conn: Option<Conn> = None;
    for line in script.lines().map(str::trim).filter(|l| !l.is_empty()) {
        let (packet, want) = line.split_once(':').expect("a colon");
        let (direction, seg) = segment(packet);
        let (got, next) = match &conn {
            None => (None, Conn::begin(direction, &seg)),
            Some(c) => {
                let s = step(c, direction, &seg);
                (Some(s.action), s.conn)
            }
        };
        let text = match got {
            Some(Action::Drop) => "drop".to_string(),
            Some(Action::Reopen) => format!("new {}", next.state.name()),
            _ => next.state.name().to_string(),
        };
        assert_eq!(text, want.trim(), "{line}\nbefore: {conn:?}\nafter: {next:?}");
        if got == Some(Action::Drop) {
            assert_eq!(conn, Some(next), "a dropped packet changed something: {line}");
        }
        conn = Some(next);
    }
    conn.unwrap()
}

const HANDSHAKE: &str = "
    > S 100 : syn-sent
    < SA 300 101 : syn-received
    > A 101 301 : established
";

fn after_handshake(rest: &str) -> Conn {
    run(&format!("{HANDSHAKE}{rest}"))
}

#[test]
fn repeated_syns_and_syn_acks_never_establish() {
    run("> S 100 : syn-sent
         > S 100 : syn-sent
         < SA 300 101 : syn-received
         < SA 300 101 : syn-received
         > S 100 : syn-received
         < SA 300 101 : syn-received
         > S 100 : syn-received");
}

#[test]
fn only_an_acknowledgement_of_the_syn_ack_establishes() {
    run("> S 100 : syn-sent
         > A 101 301 : drop
         < A 300 50 +10 : drop
         < SA 300 101 : syn-received
         > A 101 300 : drop
         > A 101 999 : drop
         > A 5000 301 : drop
         > A 101 301 +10 : established");
}

#[test]
fn impossible_flags_are_dropped_in_every_state() {
    for flags in ["-", "P", "F", "SF", "SR", "FR", "SFA", "SRA", "SFRPA"] {
        run(&format!("> S 100 : syn-sent\n > {flags} 100 0 : drop\n < {flags} 300 101 : drop"));
        after_handshake(&format!("> {flags} 101 301 : drop\n < {flags} 301 101 : drop"));
    }
}

/// Linux: conntrack_syn_challenge_ack. The server still knows an old connection and answers the SYN with a challenge ACK; the
/// client's RST ends the old one there, and must not end the new one here.
#[test]
fn a_challenge_ack_to_a_new_syn() {
    run("> S 100 : syn-sent
         < A 9000 5000 : syn-sent
         > R 5000 : syn-sent
         > S 100 : syn-sent
         < SA 300 101 : syn-received
         > A 101 301 : established");
}

/// Linux: conntrack_ack_loss_stall. Acknowledgements are lost; retransmitted data below what was acknowledged goes on.
#[test]
fn lost_acknowledgements_do_not_stall() {
    after_handshake(
        "> A 101 301 +500 : established
         < A 301 601 : established
         > A 101 301 +500 : established
         < A 301 601 +400 : established
         > A 601 701 +100 : established",
    );
}

/// Linux: conntrack_inexact_rst. A RST in the window that is not exact leaves the connection; the challenge ACK that it causes
/// brings the exact one.
#[test]
fn an_inexact_rst_waits_for_the_exact_one() {
    let doubt = after_handshake(
        "> A 101 301 +10 : established
         < A 301 111 : established
         > R 120 : established",
    );
    assert!(doubt.doubt);
    let alive = after_handshake(
        "> R 120 : established
         < A 301 101 : established",
    );
    assert!(!alive.doubt);
    after_handshake(
        "> R 120 : established
         < A 301 101 : established
         > R 101 : reset",
    );
}

/// Linux: conntrack_rst_invalid. A RST outside of the window, old or new, is dropped and changes nothing.
#[test]
fn a_rst_outside_of_the_window_is_dropped() {
    after_handshake(
        "> A 101 301 +10 : established
         < A 301 111 : established
         > R 110 : drop
         > R 50 : drop
         > R 1112 : drop
         < R 299 : drop
         < RA 2000000 111 : drop
         > R 1111 : established
         < R 301 : reset",
    );
}

/// Data and a RST right behind it, before the data is acknowledged.
#[test]
fn a_rst_behind_its_data_is_exact() {
    after_handshake("> A 101 301 +19 : established\n > R 120 : reset");
}

/// Linux: conntrack_syn_ack_old. An old SYN-ACK goes on, so that the client can answer with RST; nothing changes.
#[test]
fn an_old_syn_ack_changes_nothing() {
    run("> S 100 : syn-sent
         < SA 777 55 : syn-sent
         > R 55 : syn-sent
         < SA 300 101 : syn-received
         > A 101 301 : established
         < SA 777 55 : established
         > A 101 301 +1 : established");
}

/// Linux: conntrack_synack_reuse. The connection was reset; a new SYN begins another one with other numbers, and the SYN-ACK may
/// come with yet another ISN when the server began anew.
#[test]
fn a_syn_ack_with_another_isn() {
    run("> S 100 : syn-sent
         < SA 300 101 : syn-received
         < SA 900 101 : syn-received
         > A 101 901 : established");
    run("> S 100 : syn-sent
         < SA 300 101 : syn-received
         > S 5000 : syn-sent
         < SA 900 5001 : syn-received
         > A 5001 901 : established");
    after_handshake(
        "> R 101 : reset
         > S 7000 : new syn-sent
         < SA 20 7001 : syn-received
         > A 7001 21 : established",
    );
}

#[test]
fn a_refused_connection() {
    run("> S 100 : syn-sent\n < R 0 : drop\n < RA 0 100 : drop\n < RA 0 999 : drop\n < RA 0 101 : reset");
    run("> S 100 : syn-sent\n > R 101 : reset");
    run("> S 100 : syn-sent\n < SA 300 101 : syn-received\n > R 101 : reset");
    run("> S 100 : syn-sent\n < SA 300 101 : syn-received\n < R 301 : reset");
    run("> S 100 : syn-sent\n < SA 300 101 : syn-received\n < R 9999 : drop\n > R 9999 : drop");
}

/// VPP: tcp_session_close_in / _out / _simultaneous.
#[test]
fn closing_from_either_side_and_from_both() {
    let inside = after_handshake(
        "> FA 101 301 : fin-out
         < A 301 102 : fin-out
         < A 301 102 +50 : fin-out
         > A 102 351 : fin-out
         < FA 351 102 : fin-both
         > A 102 352 : time-wait",
    );
    assert_eq!(inside.end, [102, 352]);
    after_handshake(
        "< FA 301 101 : fin-in
         < FA 301 101 : fin-in
         > A 101 302 : fin-in
         > FA 101 302 : fin-both
         < A 302 102 : time-wait",
    );
    after_handshake(
        "> FA 101 301 : fin-out
         < FA 301 101 : fin-both
         > A 102 302 : fin-both
         < A 302 102 : time-wait",
    );
    // The FIN that comes with the last acknowledgement, and one that acknowledges the other.
    after_handshake("> FA 101 301 +10 : fin-out\n < FA 301 112 : fin-both\n > A 112 302 : time-wait");
}

#[test]
fn a_fin_outside_of_the_window_closes_nothing() {
    after_handshake("> FA 90000 301 : established\n < FA 301 5000 : established\n > FA 101 301 : fin-out");
}

/// VPP: tcp_session_half_reopen_inside / _outside, and RFC 9293's reopening in TIME_WAIT.
#[test]
fn reopening_after_the_close() {
    let close = "> FA 101 301 : fin-out\n < FA 301 102 : fin-both\n > A 102 302 : time-wait\n";
    after_handshake(&format!(
        "{close} < FA 301 102 : time-wait
         > A 102 302 : time-wait
         > S 5000 : new syn-sent
         < SA 8000 5001 : syn-received
         > A 5001 8001 : established"
    ));
    after_handshake(&format!(
        "{close} < S 8000 : new syn-sent
         > SA 5000 8001 : syn-received
         < A 8001 5001 : established"
    ));
    // Half reopened: an old packet changes nothing, and the other side's SYN makes it a simultaneous open.
    after_handshake(&format!(
        "{close} > S 5000 : new syn-sent
         < S 8000 : syn-both
         > SA 5000 8001 : syn-both
         < SA 8000 5001 : established"
    ));
    // While it is still closing, a SYN only gets a challenge ACK.
    after_handshake("> FA 101 301 : fin-out\n > S 5000 : fin-out\n < A 301 102 : fin-out");
}

#[test]
fn simultaneous_open() {
    run("> S 100 : syn-sent
         < S 300 : syn-both
         > S 100 : syn-both
         < A 301 101 : syn-both
         > A 101 301 : established");
    // What acknowledged a SYN was lost: data or a FIN may be the first that is seen of the open connection, not before.
    let open = "> S 100 : syn-sent\n < S 300 : syn-both\n > FA 101 301 : drop\n < A 301 101 : syn-both";
    run(&format!("{open}\n > PA 101 301 +50 : established\n < FA 301 151 : fin-in"));
    run(&format!("{open}\n > FA 101 301 : fin-out\n < FA 301 102 : fin-both\n > A 102 302 : time-wait"));
    run("> S 100 : syn-sent\n < S 300 : syn-both\n < R 300 : drop\n < R 301 : reset");
}

#[test]
fn a_syn_on_an_established_connection_is_left_to_its_receiver() {
    after_handshake(
        "> S 7000 : established
         < A 301 101 : established
         > R 101 : reset
         > S 7000 : new syn-sent",
    );
}

#[test]
fn out_of_window_data_goes_on_and_moves_nothing() {
    let before = after_handshake("> A 101 301 +10 : established");
    let after = after_handshake(
        "> A 101 301 +10 : established\n > A 99101 301 +10 : established\n < A 301 99999 : established",
    );
    assert_eq!((before.end, before.ack), (after.end, after.ack));
}

#[test]
fn windows_are_scaled_only_if_both_sides_say_so_and_never_in_a_syn() {
    let both = run("> S 100 w=64000 s=7 : syn-sent
         < SA 300 101 w=65535 s=2 : syn-received
         > A 101 301 w=500 : established
         < A 301 101 w=40000 : established
         < A 160300 101 +1 : established");
    assert_eq!((both.scale, both.window), ([7, 2], [500, 40000]));
    assert_eq!(both.end[1], 301, "beyond 500 << 7");
    let inside = run("> S 100 w=64000 s=7 : syn-sent
         < SA 300 101 s=2 : syn-received
         > A 101 301 w=500 : established
         < A 60300 101 +1 : established");
    assert_eq!(inside.end[1], 60301);
    let one = run("> S 100 w=6400 s=7 : syn-sent
         < SA 300 101 : syn-received
         > A 101 301 w=500 : established
         < A 7000 101 +1 : established");
    assert_eq!((one.scale, one.end[1]), ([0, 0], 301));
    let large = run("> S 100 s=200 : syn-sent\n < SA 300 101 s=15 : syn-received");
    assert_eq!(large.scale, [14, 14]);
}

#[test]
fn sequence_numbers_wrap() {
    run("> S 4294967290 : syn-sent
         < SA 4294967295 4294967291 : syn-received
         > A 4294967291 0 +20 : established
         < A 0 15 +10 : established
         > R 5 : drop
         > FA 15 10 : fin-out
         < FA 10 16 : fin-both
         > A 16 11 : time-wait");
}

/// VPP: RST timeouts, and a transitory session that traffic does not revive: after a RST the session ends in ten seconds however
/// much is sent, and a SYN inside of them begins another connection on the same ports.
#[test]
fn a_reset_session_ends_soon_and_can_be_reopened() {
    let t = tracker(Options::default());
    let mut new = udp(Vni(1), 1, 1);
    new.inner = InnerKey::v4(Vni(1), 6, 1, 1000, 7, 80);
    new.outer = OuterKey::v4(6, 9, 2000, 7, 80);
    let view = |line: &str| {
        let (direction, seg) = segment(line);
        (direction, L4View::Tcp(seg))
    };
    new.view = view("> S 100").1;
    let at = t.create(&new, 100 * S, &mut never).unwrap();
    let mut ended = Vec::new();
    let judge = |line: &str, now: u64, ended: &mut Vec<EndReason>| {
        let (direction, v) = view(line);
        t.judge(at, direction, &v, 40, now * S, &mut |e| {
            assert!(!e.released && e.session.state == State::Reset && e.session.counts.packets == 4);
            ended.push(e.reason);
        })
    };
    for (line, after) in
        [("< SA 300 101", State::SynReceived), ("> A 101 301", State::Established), ("< R 301", State::Reset)]
    {
        assert_eq!(judge(line, 101, &mut ended).after, after);
    }
    assert_eq!(judge("> S 5000", 105, &mut ended).after, State::SynSent);
    assert_eq!((ended.as_slice(), t.tenant(Vni(1)).unwrap().half_open), (&[EndReason::Reopened][..], 1));
    assert_eq!(t.info(at, 105 * S).unwrap().counts.packets, 1);
    assert_eq!(judge("< RA 0 5001", 106, &mut ended).after, State::Reset);
    for now in 106..113 {
        assert_eq!(judge("> A 5001 1", now, &mut ended).verdict, Verdict::Forward);
        t.expire(now * S, 100, &mut never);
    }
    let mut closed = Vec::new();
    for now in 113..120 {
        t.expire(now * S, 100, &mut |e| closed.push(e.reason));
    }
    assert_eq!(closed, [EndReason::Closed]);
    check(&t, 120 * S);
}

/// ICMP errors: eight bytes of TCP are enough, and a sequence number that cannot be on its way is not believed.
#[test]
fn icmp_errors_are_related_by_either_key() {
    let t = tracker(Options::default());
    let mut new = udp(Vni(1), 1, 1);
    new.inner = InnerKey::v4(Vni(1), 6, 1, 1000, 7, 80);
    new.outer = OuterKey::v4(6, 9, 2000, 7, 80);
    new.view = L4View::Tcp(segment("> S 100000").1);
    let at = t.create(&new, S, &mut never).unwrap();
    for line in ["< SA 300 100001", "> A 100001 301 +500"] {
        let (direction, seg) = segment(line);
        t.judge(at, direction, &L4View::Tcp(seg), 40, S, &mut never);
    }
    let outside = |key, seq| t.related(&Embedded::FromOutside { key, seq });
    assert_eq!(outside(new.outer, Some(100_001)), Some(at));
    assert_eq!(outside(new.outer, None), Some(at));
    assert_eq!(outside(new.outer, Some(100_502)), None);
    assert_eq!(outside(new.outer, Some(1)), None);
    assert_eq!(outside(OuterKey::v4(6, 9, 2001, 7, 80), Some(100_001)), None);
    let inside = |seq| t.related(&Embedded::FromInside { key: new.inner, seq: Some(seq) });
    assert_eq!((inside(300), inside(5000)), (Some(at), None));
}
