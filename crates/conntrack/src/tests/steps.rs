// SPDX-License-Identifier: Apache-2.0
//! Steps of the TCP machine with every number of the connection after them, on both sides of every boundary.

use super::*;
use crate::tcp::{in_window, step, Action, Conn, Step};
use wire::tcp::{ACK, FIN, PSH, RST, SYN};
use Direction::{In, Out};

fn seg(flags: u8, seq: u32, ack: u32, len: u32, window: u16) -> Segment {
    Segment { flags, seq, ack, len, window, scale: None }
}

/// An open connection: the VM has sent up to 5000, of which 4000 are acknowledged; the other side up to 9000, of which 8500 are.
fn open() -> Conn {
    Conn {
        state: State::Established,
        init: Out,
        loose: false,
        doubt: false,
        scale: [0, 2],
        end: [5000, 9000],
        ack: [8500, 4000],
        window: [1000, 500],
    }
}

/// Everything that a step says, and that the other side's step says the same of the mirrored connection.
fn is(conn: &Conn, side: Direction, s: Segment, want: Step) {
    assert_eq!(step(conn, side, &s), want, "{conn:?} {side:?} {s:?}");
    let turned = |c: &Conn| {
        let state = match c.state {
            State::FinOut => State::FinIn,
            State::FinIn => State::FinOut,
            other => other,
        };
        let swap = |[a, b]: [u32; 2]| [b, a];
        Conn {
            state,
            init: c.init.reverse(),
            scale: [c.scale[1], c.scale[0]],
            end: swap(c.end),
            ack: swap(c.ack),
            window: [c.window[1], c.window[0]],
            ..*c
        }
    };
    let mirrored = Step { conn: turned(&want.conn), ..want };
    assert_eq!(step(&turned(conn), side.reverse(), &s), mirrored, "mirrored: {conn:?} {side:?} {s:?}");
}

fn goes(conn: Conn, alive: bool) -> Step {
    Step { conn, action: Action::Forward, alive }
}

fn dropped(conn: Conn) -> Step {
    Step { conn, action: Action::Drop, alive: false }
}

#[test]
fn a_window_is_scaled_by_what_the_side_said_and_never_empty() {
    for scale in 0..=15u8 {
        let c = Conn { scale: [scale, 0], window: [3, 0], ..open() };
        assert_eq!(c.bytes_of(Out), if scale == 15 { 3 } else { 3 << scale }, "{scale}");
        assert_eq!(c.bytes_of(In), 1, "a window of nothing counts as one");
    }
}

/// One number below, at and above each of the four edges of what fits.
#[test]
fn what_fits_the_windows_is_known_to_the_number() {
    let c = open();
    // The VM's: up to 4000 + (500 << 2); from 5000 less that window; its acknowledgements up to 9000 and 66,000 back.
    let fits = |s: Segment| in_window(&c, Out, &s);
    assert_eq!([5999, 6000, 6001].map(|seq| fits(seg(ACK, seq, 8500, 0, 1))), [true, true, false]);
    assert_eq!([2999, 3000, 3001].map(|seq| fits(seg(ACK, seq, 8500, 0, 1))), [false, true, true]);
    assert_eq!([2989, 2990].map(|seq| fits(seg(ACK, seq, 8500, 10, 1))), [false, true]);
    assert!(
        fits(seg(ACK | FIN, 2999, 8500, 0, 1)) && fits(seg(SYN | ACK, 2999, 8500, 0, 1)),
        "a FIN and a SYN have a number each"
    );
    assert_eq!([9000, 9001].map(|ack| fits(seg(ACK, 5000, ack, 0, 1))), [true, false]);
    let oldest = 9000u32.wrapping_sub(66_000);
    assert_eq!([oldest.wrapping_sub(1), oldest].map(|ack| fits(seg(ACK, 5000, ack, 0, 1))), [false, true]);
    assert!(fits(seg(RST, 5000, 0, 0, 1)), "without ACK there is none");
    // A window beyond 66,000 counts instead.
    let wide = Conn { scale: [3, 2], window: [10_000, 500], ..c };
    let oldest = 9000u32.wrapping_sub(80_000);
    assert_eq!(
        [oldest.wrapping_sub(1), oldest].map(|ack| in_window(&wide, Out, &seg(ACK, 5000, ack, 0, 1))),
        [false, true]
    );
    // The other side's, by the VM's window.
    let fits = |s: Segment| in_window(&c, In, &s);
    assert_eq!([9500, 9501, 8000, 7999].map(|seq| fits(seg(ACK, seq, 5000, 0, 1))), [true, false, true, false]);
    assert_eq!([5000, 5001].map(|ack| fits(seg(ACK, 9000, ack, 0, 1))), [true, false]);
}

#[test]
fn a_first_segment_begins_a_connection_with_its_numbers() {
    for (side, s, p) in [(Out, 0, 1), (In, 1, 0)] {
        let of = |a: u32, b: u32| if s == 0 { [a, b] } else { [b, a] };
        let syn = Segment { scale: Some(7), ..seg(SYN, 100, 9, 5, 700) };
        let c = Conn::begin(side, &syn);
        assert_eq!((c.state, c.init, c.loose, c.doubt), (State::SynSent, side, false, false));
        assert_eq!(
            (c.end, c.ack, c.window[s], c.window[p], c.scale[s], c.scale[p]),
            (of(106, 0), of(0, 100), 700, 0, 7, 15)
        );
        assert_eq!(Conn::begin(side, &Segment { scale: Some(15), ..syn }).scale[s], 14);
        assert_eq!(Conn::begin(side, &Segment { scale: None, ..syn }).scale[s], 15);
        let c = Conn::pick_up(side, &seg(ACK | PSH, 100, 900, 5, 700));
        assert_eq!((c.state, c.init, c.loose, c.scale), (State::PickedUp, side, true, [14; 2]));
        assert_eq!((c.end, c.ack, c.window[s], c.window[p]), (of(105, 900), of(900, 100), 700, 65_535));
    }
}

#[test]
fn impossible_flags_and_strays_change_nothing() {
    for state in State::ALL {
        let c = Conn { state, ..open() };
        for flags in [0, FIN, PSH, SYN | FIN, SYN | RST, FIN | RST | ACK, SYN | FIN | RST, SYN | FIN | ACK] {
            is(&c, Out, seg(flags, 5000, 9000, 0, 1), dropped(c));
        }
        if matches!(state, State::None | State::Paired | State::OneWay | State::OneSided) {
            is(&c, Out, seg(ACK, 5000, 9000, 0, 1), dropped(c));
        }
    }
}

#[test]
fn a_connection_is_opened_step_by_step() {
    let begun = Conn::begin(Out, &Segment { scale: Some(3), ..seg(SYN, 100, 0, 0, 800) });
    // The same SYN again, another one, what cannot be.
    let again = Segment { scale: Some(4), ..seg(SYN, 200, 0, 0, 900) };
    is(
        &begun,
        Out,
        again,
        goes(Conn { end: [201, 0], ack: [0, 200], window: [900, 0], scale: [4, 15], ..begun }, false),
    );
    is(&begun, Out, seg(ACK, 101, 1, 0, 1), dropped(begun));
    is(&begun, Out, seg(RST, 101, 0, 0, 1), goes(Conn { state: State::Reset, ..begun }, true));
    is(&begun, Out, seg(RST, 102, 0, 0, 1), goes(begun, false));
    is(&begun, In, seg(RST | ACK, 0, 101, 0, 1), goes(Conn { state: State::Reset, ..begun }, true));
    is(&begun, In, seg(RST | ACK, 0, 102, 0, 1), dropped(begun));
    is(&begun, In, seg(RST, 0, 101, 0, 1), dropped(begun));
    is(&begun, In, seg(ACK, 7, 7, 0, 1), goes(begun, false));
    is(&begun, In, seg(ACK, 7, 7, 1, 1), dropped(begun));
    is(&begun, In, seg(FIN | ACK, 7, 101, 0, 1), dropped(begun));
    // The answer: it acknowledges the SYN, no more and no less. Both windows are scaled down to what a segment would say.
    let answer = |ack, scale| Segment { scale, ..seg(SYN | ACK, 300, ack, 0, 600) };
    for ack in [100, 102] {
        is(&begun, In, answer(ack, Some(2)), goes(begun, false));
    }
    let answered = Conn {
        state: State::SynReceived,
        end: [101, 301],
        ack: [300, 101],
        scale: [3, 2],
        window: [100, 150],
        ..begun
    };
    is(&begun, In, answer(101, Some(2)), goes(answered, true));
    is(&begun, In, answer(101, None), goes(Conn { scale: [0; 2], window: [800, 600], ..answered }, true));
    let tiny = Conn { window: [5, 0], ..begun };
    is(&tiny, In, answer(101, Some(2)), goes(Conn { window: [1, 150], ..answered }, true));
    // Opened by an acknowledgement of that, within the windows.
    let opened = Conn { state: State::Established, ack: [301, 101], ..answered };
    is(&answered, Out, seg(ACK, 101, 301, 0, 90), goes(opened, true));
    is(
        &answered,
        Out,
        seg(ACK | PSH, 101, 301, 20, 120),
        goes(Conn { end: [121, 301], window: [120, 150], ..opened }, true),
    );
    is(
        &answered,
        Out,
        seg(ACK | FIN, 101, 301, 0, 90),
        goes(Conn { state: State::FinOut, end: [102, 301], ..opened }, true),
    );
    for bad in [seg(ACK, 101, 300, 0, 1), seg(ACK, 101, 302, 0, 1), seg(ACK, 101 + 601, 301, 0, 1)] {
        is(&answered, Out, bad, dropped(answered));
    }
    is(&answered, Out, seg(ACK, 101 + 600, 301, 0, 1), goes(Conn { end: [701, 301], ..opened }, true));
    // Repetitions, another SYN, resets.
    is(&answered, Out, Segment { scale: Some(3), ..seg(SYN, 100, 0, 0, 800) }, goes(answered, false));
    is(&answered, Out, again, Step { alive: true, ..goes(Conn::begin(Out, &again), true) });
    is(
        &answered,
        In,
        seg(SYN | ACK, 400, 101, 0, 600),
        goes(Conn { end: [101, 401], ack: [400, 101], ..answered }, false),
    );
    is(&answered, In, seg(SYN | ACK, 400, 77, 0, 600), goes(answered, false));
    is(&answered, In, seg(ACK, 301, 101, 0, 200), goes(Conn { window: [100, 200], ..answered }, false));
    is(&answered, In, seg(ACK, 301, 102, 0, 200), dropped(answered));
    is(&answered, In, seg(FIN | ACK, 301, 101, 0, 200), dropped(answered));
    is(&answered, Out, seg(RST, 101, 0, 0, 1), goes(Conn { state: State::Reset, ..answered }, true));
    is(&answered, In, seg(RST, 301, 0, 0, 1), goes(Conn { state: State::Reset, ..answered }, true));
    is(&answered, In, seg(RST, 302, 0, 0, 1), goes(answered, false));
    is(&answered, In, seg(RST, 302 + 800, 0, 0, 1), dropped(answered));
    is(&answered, In, seg(RST | ACK, 302 + 800, 101, 0, 1), goes(answered, false));
}

#[test]
fn both_sides_may_open() {
    let begun = Conn::begin(Out, &Segment { scale: Some(3), ..seg(SYN, 100, 0, 0, 800) });
    let both =
        Conn { state: State::SynBoth, end: [101, 301], ack: [300, 100], scale: [3, 2], window: [800, 600], ..begun };
    is(&begun, In, Segment { scale: Some(2), ..seg(SYN, 300, 0, 0, 600) }, goes(both, true));
    is(&both, In, Segment { scale: Some(2), ..seg(SYN, 300, 0, 0, 600) }, goes(both, false));
    is(
        &both,
        In,
        Segment { scale: Some(1), ..seg(SYN, 500, 0, 0, 9) },
        goes(Conn { end: [101, 501], ack: [500, 100], scale: [3, 1], window: [800, 9], ..both }, false),
    );
    is(&both, Out, seg(RST, 101, 0, 0, 1), goes(Conn { state: State::Reset, ..both }, true));
    is(&both, Out, seg(RST, 100, 0, 0, 1), dropped(both));
    // One acknowledges, then the other: only then it is open.
    let half = Conn { ack: [300, 101], ..both };
    is(&both, In, seg(ACK, 301, 101, 0, 150), goes(half, false));
    is(&both, In, seg(ACK, 301, 102, 0, 150), dropped(both));
    is(&both, In, seg(ACK, 301, 99, 0, 150), dropped(both));
    is(&both, In, seg(ACK, 301, 100, 0, 150), goes(both, false));
    is(&both, Out, seg(FIN | ACK, 101, 301, 0, 150), dropped(both));
    let opened = Conn { state: State::Established, ack: [301, 101], window: [100, 150], ..both };
    is(&half, Out, seg(ACK, 101, 301, 0, 50), goes(opened, true));
    is(
        &half,
        Out,
        seg(ACK | PSH, 101, 301, 9, 170),
        goes(Conn { end: [110, 301], window: [170, 150], ..opened }, true),
    );
    is(
        &half,
        Out,
        seg(ACK | FIN, 101, 301, 0, 50),
        goes(Conn { state: State::FinOut, end: [102, 301], ..opened }, true),
    );
    is(&half, Out, seg(SYN | ACK, 100, 301, 0, 50), goes(opened, true));
    is(&half, Out, seg(ACK, 90_000, 301, 0, 50), goes(opened, true));
}

#[test]
fn an_open_connection_moves_forward_only() {
    let c = open();
    is(
        &c,
        Out,
        seg(ACK, 5000, 9000, 100, 1500),
        goes(Conn { end: [5100, 9000], ack: [9000, 4000], window: [1500, 500], ..c }, true),
    );
    is(&c, Out, seg(ACK, 4500, 8400, 100, 900), goes(c, true));
    is(&c, In, seg(ACK, 9000, 5000, 0, 400), goes(Conn { ack: [8500, 5000], ..c }, true));
    is(&c, Out, seg(ACK, 6001, 9000, 100, 1500), goes(c, false));
    is(&c, Out, seg(SYN, 70_000, 0, 0, 1), goes(c, false));
    is(&c, Out, seg(SYN | ACK, 5000, 9000, 0, 1), goes(c, false));
    // A reset: exact by what was acknowledged or sent last; in the window it is in doubt, outside it is dropped.
    for seq in [4000, 5000] {
        is(&c, Out, seg(RST, seq, 0, 0, 1), goes(Conn { state: State::Reset, ..c }, true));
    }
    for seq in [4001, 4999, 5001, 6000] {
        is(&c, Out, seg(RST, seq, 0, 0, 1), goes(Conn { doubt: true, ..c }, true));
    }
    for seq in [3999, 6001] {
        is(&c, Out, seg(RST, seq, 0, 0, 1), dropped(c));
    }
    let doubt = Conn { doubt: true, ..c };
    is(&doubt, Out, seg(RST, 4001, 0, 0, 1), goes(doubt, false));
    is(&doubt, Out, seg(RST, 5000, 0, 0, 1), goes(Conn { state: State::Reset, ..c }, true));
    is(&doubt, In, seg(ACK, 9000, 5000, 0, 400), goes(Conn { ack: [8500, 5000], ..c }, true));
    is(&doubt, In, seg(ACK, 99_000, 5000, 0, 400), goes(doubt, false));
    // Picked up: the other side opens it, this one's packets do not.
    let picked = Conn { state: State::PickedUp, ..c };
    is(&picked, Out, seg(ACK | FIN, 5000, 8500, 0, 9), goes(Conn { end: [5001, 9000], ..picked }, true));
    is(&picked, In, seg(ACK, 9000, 4000, 0, 9), goes(Conn { state: State::Established, ..picked }, true));
    let syn = seg(SYN, 77, 0, 0, 9);
    is(&picked, Out, syn, Step { conn: Conn::begin(Out, &syn), action: Action::Reopen, alive: true });
    is(&picked, In, seg(SYN | ACK, 9000, 4000, 0, 9), goes(picked, false));
}

#[test]
fn a_connection_is_closed_by_a_fin_of_each_side_and_what_acknowledges_them() {
    let c = Conn { ack: [9000, 5000], ..open() };
    let one = Conn { state: State::FinOut, end: [5001, 9000], ..c };
    is(&c, Out, seg(FIN | ACK, 5000, 9000, 0, 1), goes(one, true));
    is(&one, Out, seg(FIN | ACK, 5000, 9000, 0, 1), goes(one, true));
    is(&one, In, seg(ACK, 9000, 5001, 0, 1), goes(Conn { ack: [9000, 5001], ..one }, true));
    // The other's FIN acknowledges the first one, or does not.
    let both = Conn { state: State::FinBoth, end: [5001, 9001], ..one };
    is(&one, In, seg(FIN | ACK, 9000, 5000, 0, 1), goes(both, true));
    let later = Conn { ack: [9000, 5001], ..both };
    is(&one, In, seg(FIN | ACK, 9000, 5001, 0, 1), goes(later, true));
    is(&both, Out, seg(ACK, 5001, 9001, 0, 1), goes(Conn { ack: [9001, 5000], ..both }, true));
    is(
        &later,
        Out,
        seg(ACK, 5001, 9001, 0, 1),
        goes(Conn { state: State::TimeWait, ack: [9001, 5001], ..later }, true),
    );
    // Then it waits; a FIN again begins the wait anew, a SYN another connection.
    let waits = Conn { state: State::TimeWait, ack: [9001, 5001], ..later };
    is(&waits, In, seg(FIN | ACK, 9000, 5001, 0, 1), goes(waits, true));
    is(&waits, In, seg(FIN | ACK, 19_000, 5001, 0, 1), goes(waits, false));
    is(&waits, In, seg(ACK, 9001, 5001, 0, 1), goes(waits, false));
    is(&waits, In, seg(SYN | ACK, 9001, 5001, 0, 1), goes(waits, false));
    for state in [State::TimeWait, State::Reset] {
        let syn = Segment { scale: Some(1), ..seg(SYN, 70_000, 0, 0, 9) };
        is(
            &Conn { state, ..waits },
            In,
            syn,
            Step { conn: Conn::begin(In, &syn), action: Action::Reopen, alive: true },
        );
    }
    let reset = Conn { state: State::Reset, ..waits };
    is(&reset, In, seg(FIN | ACK, 9000, 5001, 0, 1), goes(reset, false));
}
