// SPDX-License-Identifier: Apache-2.0
//! What becomes of a port whose session cannot be made, or whose session is dead.

use super::*;
use session::nat::{Filtering, NatSpec, PoolSpec, SnatSpec};
use session::{HeapMemory, L4View, Options, State, TenantLimits};

const S: u64 = 1_000_000_000;

/// Two pools of one address with 128 ports each, and VPCs 7 and 8, each with the pool of this number.
fn spec(pools: [usize; 2]) -> NatSpec {
    let pool = |n: u32| PoolSpec {
        name: format!("p{n}"),
        ranges: vec![(0xcb00_7100 + n, 0xcb00_7100 + n)],
        ports: (1024, 1151),
        block: 64,
        reuse: false,
    };
    let snat = |(vni, pool): (u32, usize)| SnatSpec {
        vni,
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

fn nat(vm_sessions: u32, log: Option<EndLog>) -> Nat {
    let tenant = TenantLimits { sessions: 1000, vm_sessions, half_open: 1000 };
    let options = Options { sessions: 1000, tenant, ..Options::default() };
    let tracker = Tracker::new(Arc::new(HeapMemory::new().unwrap()), options, S).unwrap();
    let translator = Translator::new(3);
    translator.configure(&spec([0, 1]));
    Nat::new(Arc::new(tracker), Arc::new(translator), FragLimits::default(), log)
}

/// A UDP connection of 10.0.0.5 of a VPC, always to the same server, as `outward` makes it.
fn begin(nat: &Nat, vni: u32, port: u16, now: u64) -> Result<SessionRef, DropReason> {
    let (vm, remote) = (IpAddr::from([10, 0, 0, 5]), IpAddr::from([198, 51, 100, 10]));
    let flow = Flow { vni, proto: 17, vm_addr: vm, vm_port: port, remote, remote_port: 53 };
    let public = nat.translator.outbound(&flow, now).unwrap();
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
    let sight = Sight { nat, guard: &guard, filter: &filter, states: None };
    match sight.create(&new, now)? {
        Made::New(session) => Ok(session),
        Made::Found(session) => panic!("{session:?} was there"),
    }
}

fn held(nat: &Nat) -> [u64; 2] {
    let pools = nat.translator.pool_use();
    [pools[0].held, pools[1].held]
}

#[test]
fn a_port_that_was_drawn_for_a_refused_connection_is_given_back_at_once() {
    let nat = nat(1, None);
    // An answered one is not evicted for others.
    let session = begin(&nat, 7, 1, S).unwrap();
    let answered = nat.tracker.judge(session, Direction::In, &L4View::Other, 60, S, &mut |_| ()).after;
    assert_eq!(answered, State::Paired);
    for port in 2..300 {
        assert_eq!(begin(&nat, 7, port, S), Err(DropReason::SessionQuotaVm));
        assert_eq!(held(&nat), [64, 0], "after {port}");
    }
    // A mapping that lingers goes on lingering as if nothing had come, and no longer.
    nat.tracker.remove(session, S, &mut |e| nat.ended(e, S));
    nat.tracker.set_limits(7, Some(TenantLimits { sessions: 0, vm_sessions: 0, half_open: 0 }));
    assert_eq!(begin(&nat, 7, 1, 25 * S), Err(DropReason::SessionQuotaTenant));
    nat.translator.expire(30 * S);
    assert_eq!(held(&nat), [64, 0]);
    nat.translator.expire(40 * S);
    assert_eq!(held(&nat), [0, 0]);
}

#[test]
fn a_dead_session_gives_way_to_whom_its_port_belongs_now() {
    let told = Arc::new(Mutex::new(Vec::new()));
    let log = told.clone();
    let nat = nat(1000, Some(Box::new(move |e| log.lock().unwrap().push((e.session.inner.vni(), e.reason)))));
    assert!((0..60).all(|port| begin(&nat, 7, port, S).is_ok()));
    assert_eq!(held(&nat), [64, 0]);
    nat.translator.configure(&spec([1, 0]));
    // Its chunk is free with its next connection; the sessions over it have had no packet since.
    begin(&nat, 7, 1000, 2 * S).unwrap();
    assert_eq!(held(&nat), [0, 64]);
    for port in 0..100 {
        begin(&nat, 8, port, 2 * S).unwrap_or_else(|e| panic!("{port}: {e:?}"));
    }
    assert_eq!(nat.tracker.tenant(8).unwrap().sessions, 100);
    let told = told.lock().unwrap();
    assert!(!told.is_empty() && told.iter().all(|end| *end == (7, EndReason::Untranslated)), "{told:?}");
    assert_eq!(nat.tracker.tenant(7).unwrap().sessions as usize, 61 - told.len());
    // What is in force is not taken for dead.
    let sessions = nat.tracker.sessions();
    let guard = sessions.enter();
    let filter = Filter::default();
    let sight = Sight { nat: &nat, guard: &guard, filter: &filter, states: None };
    let inner = |port| inner_key(8, 17, [10, 0, 0, 5].into(), [198, 51, 100, 10].into(), (port, 53)).unwrap();
    for port in 0..100 {
        let outer = sight.found(guard.find_inner(&inner(port)).unwrap()).outer;
        assert!(!nat.retire(sight, &outer, 2 * S), "{port}");
    }
}
