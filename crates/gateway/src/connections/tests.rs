// SPDX-License-Identifier: Apache-2.0
//! What becomes of a port whose session cannot be made, or whose session is dead.

use super::*;
use crate::l4;
use crate::nat::{inner_key, outer_key};
use conntrack::nat::{Filtering, Flow, NatSpec, PoolSpec, SnatSpec};
use conntrack::{HeapMemory, L4View, Options, State, TenantLimits};
use std::net::IpAddr;

const S: u64 = 1_000_000_000;

/// Two pools of one address with 128 ports each, and VPCs 7 and 8, each with the pool of this number.
fn spec(pools: [usize; 2]) -> NatSpec {
    let pool = |n: u32| PoolSpec {
        name: format!("p{n}"),
        ranges: vec![(0xcb00_7100 + n, 0xcb00_7100 + n)],
        ports: (1024, 1151),
        block: 64,
        reuse: false,
        shares: None,
    };
    let snat = |(vni, pool): (u32, usize)| SnatSpec {
        vni: Vni(vni),
        pools: vec![pool],
        filtering: Filtering::AddressAndPortDependent,
        ipv6: Vec::new(),
        ipv6_inbound: false,
        ports_max: 1 << 20,
        vm_ports_max: 4096,
    };
    let snats = [7, 8].into_iter().zip(pools).map(snat).collect();
    NatSpec { pools: vec![pool(0), pool(1)], snats, elastics: Vec::new() }
}

fn nat(vm_sessions: u32, log: Option<EndLog>) -> Connections {
    let tenant = TenantLimits { sessions: 1000, vm_sessions, half_open: 1000 };
    let options = Options { sessions: 1000, tenant, ..Options::default() };
    let tracker = Tracker::new(Arc::new(HeapMemory::new().unwrap()), options, S).unwrap();
    let translator = Translator::new(3);
    translator.configure(&spec([0, 1]));
    Connections::new(Arc::new(tracker), Arc::new(translator), FragLimits::default(), log)
}

/// A UDP connection of 10.0.0.5 of a VPC, always to the same server, as `outward` makes it.
fn begin(nat: &Connections, vni: Vni, port: u16, now: u64) -> Result<SessionRef, DropReason> {
    let (vm, remote) = (IpAddr::from([10, 0, 0, 5]), IpAddr::from([198, 51, 100, 10]));
    let flow = Flow { vni, proto: 17, vm_addr: vm, vm_port: port, remote, remote_port: 53 };
    let public = nat.nat().translator.outbound(&flow, now).unwrap();
    let new = NewSession {
        inner: inner_key(vni, 17, vm, remote, (port, 53)).unwrap(),
        outer: outer_key(17, public.addr, remote, (public.port, 53)).unwrap(),
        owner: Owner::Snat,
        direction: Direction::Out,
        view: L4View::Other,
        bytes: 60,
        epoch: 0,
        pick_up: false,
    };
    let (sessions, filter) = (nat.tracker.sessions(), Filter::default());
    let guard = sessions.enter();
    let (handovers, mirrors) = (crate::Handovers::default(), crate::Mirrors::default());
    let sight = SessionView {
        connections: nat,
        guard: &guard,
        filter: &filter,
        states: None,
        handovers: &handovers,
        mirrors: &mirrors,
    };
    match sight.create(&new, now)? {
        Made::New(session) => Ok(session),
        Made::Found(session) => panic!("{session:?} was there"),
    }
}

fn held(nat: &Connections) -> [u64; 2] {
    let pools = nat.nat().translator.pool_use();
    [pools[0].held, pools[1].held]
}

#[test]
fn a_port_that_was_drawn_for_a_refused_connection_is_given_back_at_once() {
    let nat = nat(1, None);
    // An answered one is not evicted for others.
    let session = begin(&nat, Vni(7), 1, S).unwrap();
    let answered = nat.tracker.judge(session, Direction::In, &L4View::Other, 60, S, &mut |_| ()).after;
    assert_eq!(answered, State::Paired);
    for port in 2..300 {
        assert_eq!(begin(&nat, Vni(7), port, S), Err(DropReason::SessionQuotaVm));
        assert_eq!(held(&nat), [64, 0], "after {port}");
    }
    // A mapping that lingers goes on lingering as if nothing had come, and no longer.
    nat.tracker.remove(session, S, &mut |e| nat.ended(e, S));
    nat.tracker.set_limits(Vni(7), Some(TenantLimits { sessions: 0, vm_sessions: 0, half_open: 0 }));
    assert_eq!(begin(&nat, Vni(7), 1, 25 * S), Err(DropReason::SessionQuotaTenant));
    nat.nat().translator.expire(30 * S);
    assert_eq!(held(&nat), [64, 0]);
    nat.nat().translator.expire(40 * S);
    assert_eq!(held(&nat), [0, 0]);
}

#[test]
fn a_dead_session_gives_way_to_whom_its_port_belongs_now() {
    let told = Arc::new(Mutex::new(Vec::new()));
    let log = told.clone();
    let nat = nat(1000, Some(Box::new(move |e| log.lock().push((e.session.inner.vni(), e.reason)))));
    assert!((0..60).all(|port| begin(&nat, Vni(7), port, S).is_ok()));
    assert_eq!(held(&nat), [64, 0]);
    nat.nat().translator.configure(&spec([1, 0]));
    // Its chunk is free with its next connection; the sessions over it have had no packet since.
    begin(&nat, Vni(7), 1000, 2 * S).unwrap();
    assert_eq!(held(&nat), [0, 64]);
    for port in 0..100 {
        begin(&nat, Vni(8), port, 2 * S).unwrap_or_else(|e| panic!("{port}: {e:?}"));
    }
    assert_eq!(nat.tracker.tenant(Vni(8)).unwrap().sessions, 100);
    let told = told.lock();
    assert!(!told.is_empty() && told.iter().all(|end| *end == (Vni(7), EndReason::Untranslated)), "{told:?}");
    assert_eq!(nat.tracker.tenant(Vni(7)).unwrap().sessions as usize, 61 - told.len());
    // What is in force is not taken for dead.
    let sessions = nat.tracker.sessions();
    let guard = sessions.enter();
    let filter = Filter::default();
    let (handovers, mirrors) = (crate::Handovers::default(), crate::Mirrors::default());
    let sight = SessionView {
        connections: &nat,
        guard: &guard,
        filter: &filter,
        states: None,
        handovers: &handovers,
        mirrors: &mirrors,
    };
    let inner = |port| inner_key(Vni(8), 17, [10, 0, 0, 5].into(), [198, 51, 100, 10].into(), (port, 53)).unwrap();
    for port in 0..100 {
        let outer = sight.found(guard.find_inner(&inner(port)).unwrap()).outer;
        assert!(!nat.retire(sight, &outer, 2 * S), "{port}");
    }
}

#[test]
fn time_ends_sessions_ports_and_fragments_and_the_log_hears_of_it() {
    let told = Arc::new(Mutex::new(Vec::new()));
    let log = told.clone();
    let nat = nat(1000, Some(Box::new(move |e| log.lock().push((e.session.inner.vm_port(), e.reason, e.released)))));
    (1..4).for_each(|port| assert!(begin(&nat, Vni(7), port, S).is_ok()));
    let key = FragKey { vni: Some(Vni(7)), src: [10, 0, 0, 5].into(), dst: [9, 9, 9, 9].into(), proto: 17, id: 1 };
    let piece = Piece { offset: 8, len: 8, more: true, upper: 17 };
    assert_eq!(nat.fragments().later(&key, piece, b"held", S), Fate::Queued);
    assert_eq!((nat.expire(10 * S, 100).ended, nat.fragments().len()), (0, 1));
    nat.expire(16 * S, 100);
    assert_eq!(nat.fragments().len(), 0, "it is 15 seconds old");
    let mut ended = 0;
    (16..60).for_each(|now| ended += nat.expire(now * S, 100).ended);
    assert_eq!((ended, held(&nat)), (3, [64, 0]), "mappings linger");
    (60..110).for_each(|now| _ = nat.expire(now * S, 100));
    assert_eq!(held(&nat), [0, 0]);
    let mut heard = std::mem::take(&mut *told.lock());
    heard.sort_by_key(|e| e.0);
    assert_eq!(heard, [1, 2, 3].map(|port| (port, EndReason::Timeout, true)));
    // Removed by what they are.
    (1..4).for_each(|port| assert!(begin(&nat, Vni(8), port, 200 * S).is_ok()));
    let which = &mut |s: &SessionInfo| (s.inner.vm_port() != 2).then_some(EndReason::Removed);
    let mut at = Some(conntrack::Cursor::default());
    while let Some(from) = at {
        at = nat.remove_where(from, 10_000, which, 201 * S);
    }
    let mut heard = std::mem::take(&mut *told.lock());
    heard.sort_by_key(|e| e.0);
    assert_eq!(heard, [1, 3].map(|port| (port, EndReason::Removed, true)));
    assert_eq!((held(&nat), nat.nat().translator.mappings()), ([0, 64], (3, 1)));
}

#[test]
fn a_fragment_is_known_by_its_datagram() {
    let v4 = |proto, offset, more| L4 {
        v6: false,
        src: crate::packet::Addr::v4(0x0a00_0005),
        dst: crate::packet::Addr::v4(0x0909_0909),
        proto,
        next: proto,
        at: 20,
        len: 120,
        src_port: 7,
        dst_port: 8,
        icmp: l4::Icmp::None,
        piece: Some(l4::Piece { id: 77, offset, more, at: 20 }),
    };
    let (key, piece) = fragment(Some(Vni(7)), &v4(17, 16, true)).unwrap();
    assert_eq!(
        key,
        FragKey { vni: Some(Vni(7)), src: [10, 0, 0, 5].into(), dst: [9, 9, 9, 9].into(), proto: 17, id: 77 }
    );
    assert_eq!((piece.offset, piece.len, piece.more, piece.upper), (16, 100, true, 17));
    let six = L4 { v6: true, piece: Some(l4::Piece { id: 77, offset: 0, more: false, at: 48 }), ..v4(17, 0, false) };
    let (key, piece) = fragment(None, &six).unwrap();
    assert_eq!(
        (key.vni, key.proto, key.src.is_ipv6(), piece.len, piece.more, piece.upper),
        (None, 0, true, 72, false, 17)
    );
    assert!(fragment(None, &L4 { piece: None, ..six }).is_none());
    // First and later ones, through a sight.
    let nat = nat(1000, None);
    let (sessions, filter) = (nat.tracker.sessions(), Filter::default());
    let guard = sessions.enter();
    let (handovers, mirrors) = (crate::Handovers::default(), crate::Mirrors::default());
    let sight = SessionView {
        connections: &nat,
        guard: &guard,
        filter: &filter,
        states: None,
        handovers: &handovers,
        mirrors: &mirrors,
    };
    let (first, later) = (v4(17, 0, true), L4 { src_port: 0, dst_port: 0, ..v4(17, 96, false) });
    let vni = Some(Vni(7));
    assert_eq!(sight.first_fits(vni, &later, S), Ok(()), "a later one is not asked about");
    assert_eq!(sight.later_ports(vni, &L4 { piece: None, ..later }, b"x", S), Err(DropReason::FragmentUnknown));
    assert_eq!(sight.later_ports(vni, &later, b"later", S), Err(DropReason::FragmentEarly));
    let mut queued = Vec::new();
    let first = L4 { len: 116, ..first };
    assert_eq!(
        (sight.first_fits(vni, &first, S), sight.first_ports(vni, &first, (IfIndex(4), 9, S), &mut queued)),
        (Ok(()), Ok(()))
    );
    assert_eq!(
        (queued.len(), &queued[0].frame[..], queued[0].known, queued[0].ifindex, queued[0].cause),
        (1, &b"later"[..], ((7, 8), 17), IfIndex(4), 9)
    );
    assert_eq!(sight.first_ports(vni, &L4 { piece: None, ..first }, (IfIndex(4), 9, S), &mut queued), Ok(()));
    // Other ports contradict it.
    assert!(
        sight.first_ports(vni, &first, (IfIndex(4), 9, S), &mut queued).is_ok(),
        "the datagram was whole, so this is another one"
    );
    assert!(!sight.contradicts(Vni(7), &first));
    let other = L4 { src_port: 9, ..first };
    assert_eq!(
        (sight.first_fits(vni, &other, S), sight.contradicts(Vni(7), &first), sight.contradicts(Vni(8), &first)),
        (Err(DropReason::FragmentUnknown), true, false)
    );
    assert_eq!(sight.first_ports(vni, &first, (IfIndex(4), 9, S), &mut queued), Err(DropReason::FragmentUnknown));
    assert_eq!(sight.later_ports(vni, &later, b"x", S), Err(DropReason::FragmentUnknown));
    assert_eq!(queued.len(), 1);
    // A later one belongs to its session, counts, and keeps it alive; its bytes are no header.
    let session = begin(&nat, Vni(7), 1, S).unwrap();
    assert_eq!(sight.judge(session, Direction::Out, &later, b"", 9 * S), Ok(true));
    let record = guard.record(session);
    assert_eq!(
        (record.counts().packets, record.counts().bytes, record.last_seen(), record.state()),
        (2, 180, conntrack::coarse(9 * S), State::OneSided)
    );
    assert!(nat.tracker.remove(session, S, &mut |_| ()));
    assert_eq!(sight.judge(session, Direction::Out, &L4 { piece: None, ..later }, b"", 9 * S), Ok(false), "it is gone");
}

#[test]
fn keys_are_of_one_family() {
    let (a4, b4): (IpAddr, IpAddr) = ([10, 0, 0, 5].into(), [9, 9, 9, 9].into());
    let (a6, b6): (IpAddr, IpAddr) = ("fd00::5".parse().unwrap(), "2001:db8::9".parse().unwrap());
    let inner = inner_key(Vni(7), 6, a4, b4, (1, 2)).unwrap();
    assert_eq!(
        (inner.vni(), inner.proto(), inner.vm(), inner.vm_port(), inner.remote(), inner.remote_port()),
        (Vni(7), 6, a4, 1, b4, 2)
    );
    let inner = inner_key(Vni(7), 6, a6, b6, (1, 2)).unwrap();
    assert_eq!(
        (inner.vni(), inner.proto(), inner.vm(), inner.vm_port(), inner.remote(), inner.remote_port()),
        (Vni(7), 6, a6, 1, b6, 2)
    );
    let outer = outer_key(6, a4, b4, (1, 2)).unwrap();
    assert_eq!(
        (outer.proto(), outer.public(), outer.public_port(), outer.remote(), outer.remote_port()),
        (6, a4, 1, b4, 2)
    );
    let outer = outer_key(6, a6, b6, (1, 2)).unwrap();
    assert_eq!(
        (outer.proto(), outer.public(), outer.public_port(), outer.remote(), outer.remote_port()),
        (6, a6, 1, b6, 2)
    );
    assert!(inner_key(Vni(7), 6, a4, b6, (1, 2)).is_none() && inner_key(Vni(7), 6, a6, b4, (1, 2)).is_none());
    assert!(outer_key(6, a4, b6, (1, 2)).is_none() && outer_key(6, a6, b4, (1, 2)).is_none());
    let b = binding(&inner_key(Vni(7), 6, a4, b4, (1, 2)).unwrap(), &outer_key(6, b4, a4, (3, 4)).unwrap());
    assert_eq!(
        (b.flow.vni, b.flow.proto, b.flow.vm_addr, b.flow.vm_port, b.flow.remote, b.flow.remote_port),
        (Vni(7), 6, a4, 1, b4, 2)
    );
    assert_eq!((b.public.addr, b.public.port), (b4, 3));
    assert_eq!((epoch(0x1234 << POLICY_EPOCH_SHIFT), epoch((1 << POLICY_EPOCH_SHIFT) - 1)), (0x1234, 0));
    assert!(picks_up(POLICY_PICKUP) && !picks_up(!POLICY_PICKUP));
}
