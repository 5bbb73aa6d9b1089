// SPDX-License-Identifier: Apache-2.0
//! What the sweep ends, what it stamps, what it leaves alone.

use super::*;
use crate::nat::{inner_key, outer_key};
use crate::testing::region::*;
use abi::POLICY_NAT;
use conntrack::nat::{ElasticSpec, ElasticUse, Filtering, Flow, NatSpec, PoolSpec, SnatSpec, Translator};
use conntrack::{HeapMemory, L4View, NewSession, Options, OuterKey, PairKey, SessionRef, Tracker};
use filter::{Filter, Member, Ruleset};
use parking_lot::Mutex;
use std::net::IpAddr;
use std::sync::Arc;

const S: u64 = 1_000_000_000;
const REMOTE: [u8; 4] = [198, 51, 100, 10];

struct World {
    rig: Rig,
    connections: Connections,
    ended: Arc<Mutex<Vec<(u16, EndReason)>>>,
}

/// A pool of one address for red, with this last octet.
fn spec(octet: u32) -> NatSpec {
    let addr = 0xcb00_7100 + octet;
    let pool = PoolSpec {
        name: "p".into(),
        ranges: vec![(addr, addr)],
        ports: (1024, 65535),
        block: 64,
        reuse: false,
        shares: None,
    };
    let snat = SnatSpec {
        vni: RED,
        pools: vec![0],
        filtering: Filtering::AddressAndPortDependent,
        ipv6: Vec::new(),
        ipv6_inbound: false,
        ports_max: 1 << 20,
        vm_ports_max: 4096,
    };
    NatSpec { pools: vec![pool], snats: vec![snat], elastics: Vec::new() }
}

/// Rules of group g, whose members are A and C of red and blue.
fn rules(texts: &[&str]) -> Arc<Filter> {
    let set =
        Ruleset::new(filter::GroupSpec { name: "g".into(), rules: texts.iter().map(|t| t.parse().unwrap()).collect() });
    let member = |addr: IpAddr| {
        Arc::new(vec![Member { prefix: filter::Prefix::new_assert(addr, 32), groups: vec!["g".into()] }])
    };
    Arc::new(Filter::new(&[Arc::new(set)], &[(RED, member(ip4(A))), (BLUE, member(ip4(C)))], &Filter::default()))
}

const ALL: &[&str] = &["ingress allow any any", "egress allow any any"];

impl World {
    fn new() -> World {
        let tracker =
            Tracker::new(Arc::new(HeapMemory::new().unwrap()), Options { sessions: 1000, ..Options::default() }, S)
                .unwrap();
        let translator = Translator::new(3);
        translator.configure(&spec(1));
        let ended = Arc::new(Mutex::new(Vec::new()));
        let log = ended.clone();
        let hear = move |e: &conntrack::Ended| log.lock().push((e.session.inner.vm_port(), e.reason));
        let nat = Connections::new(Arc::new(tracker), Arc::new(translator), Default::default(), Some(Box::new(hear)));
        nat.set_filter(rules(ALL));
        World { rig: Rig::new(), connections: nat, ended }
    }

    fn policy(&mut self, vni: Vni, flags: u64) {
        assert!(self.rig.writer.set_policy(vni, flags));
    }

    fn epoch(&self, vni: Vni) -> u16 {
        epoch(self.rig.writer.policy(vni).unwrap())
    }

    /// A translated UDP session of A, by this port, judged under this epoch.
    fn translated(&self, port: u16, epoch: u16, direction: Direction) -> SessionRef {
        let (vm, remote) = (ip4(A), IpAddr::from(REMOTE));
        let flow = Flow { vni: RED, proto: 17, vm_addr: vm, vm_port: port, remote, remote_port: 53 };
        let public = self.connections.nat().translator.outbound(&flow, S).unwrap();
        let outer = outer_key(17, public.addr, remote, (public.port, 53)).unwrap();
        self.make(inner_key(RED, 17, vm, remote, (port, 53)).unwrap(), outer, (Owner::Snat, epoch, direction))
    }

    /// A session between A of red and an address of another VPC (0: beyond a wire).
    fn pair(&self, port: u16, (vni, addr): (u32, u32), epoch: u16, direction: Direction) -> SessionRef {
        let key = PairKey::with(inner_key(RED, 17, ip4(A), ip4(addr), (port, 53)).unwrap(), Vni(vni));
        self.make(key.inner(), key.outer(), (Owner::Filter, epoch, direction))
    }

    fn make(
        &self,
        inner: conntrack::InnerKey,
        outer: OuterKey,
        (owner, epoch, direction): (Owner, u16, Direction),
    ) -> SessionRef {
        let new = NewSession { inner, outer, owner, direction, view: L4View::Other, bytes: 60, epoch, pick_up: false };
        self.connections.tracker.create(&new, S, &mut |_| ()).unwrap()
    }

    /// Ports of the sessions that a whole sweep ends, and why.
    fn sweep(&self) -> Vec<(u16, EndReason)> {
        let mut at = Some(Cursor::default());
        while let Some(from) = at {
            at = self.connections.sweep(self.rig.gateway.tables(), from, 7, 2 * S);
        }
        let mut ended = std::mem::take(&mut *self.ended.lock());
        ended.sort_by_key(|e| e.0);
        ended
    }

    /// Ports and epochs of those that are left.
    fn left(&self) -> Vec<(u16, u16)> {
        let mut found = Vec::new();
        self.connections.tracker.list(Cursor::default(), u32::MAX, &conntrack::Filter::default(), S, &mut |_, s| {
            found.push((s.inner.vm_port(), s.epoch))
        });
        found.sort_unstable();
        found
    }
}

#[test]
fn a_translation_that_is_in_force_keeps_its_session_and_the_old_epoch() {
    let mut w = World::new();
    w.policy(RED, POLICY_NAT);
    let now = w.epoch(RED);
    w.translated(1, now, Direction::Out);
    w.translated(2, now.wrapping_sub(1), Direction::Out);
    assert_eq!(w.sweep(), []);
    assert_eq!(w.left(), [(1, now), (2, now.wrapping_sub(1))]);
}

/// Whatever their epochs, and whether the VPC is there or not.
#[test]
fn a_translation_that_is_gone_ends_its_sessions() {
    for (flags, delete) in [(POLICY_NAT, false), (POLICY_NAT | POLICY_FILTER, false), (0, false), (POLICY_NAT, true)] {
        let mut w = World::new();
        w.policy(RED, flags);
        w.translated(1, 0, Direction::Out);
        w.translated(2, w.epoch(RED), Direction::Out);
        if delete {
            w.rig.routes(BLUE, Vec::new());
            w.rig.change(tables::TenantChange { vni: RED, delete: true, ..Default::default() });
        }
        assert_eq!(w.sweep(), [], "what the translator still holds goes on");
        w.connections.nat.translator.configure(&spec(2));
        assert_eq!(w.sweep(), [(1, EndReason::Untranslated), (2, EndReason::Untranslated)], "{flags:#x}");
    }
}

#[test]
fn a_session_to_a_tunnel_address_ends_whatever_its_epoch() {
    let mut w = World::new();
    w.policy(RED, POLICY_NAT);
    w.translated(1, w.epoch(RED), Direction::Out);
    w.pair(2, (RED.0, u32::from_be_bytes(REMOTE)), 0, Direction::Out);
    w.connections.nat.set_tunnel_ends(Arc::new([IpAddr::from([198, 51, 100, 11])].into()));
    assert_eq!(w.sweep(), []);
    w.connections.nat.set_tunnel_ends(Arc::new([IpAddr::from(REMOTE)].into()));
    assert_eq!(w.sweep(), [(1, EndReason::Untranslated)], "between two ends inside it is an address like others");
    assert_eq!(w.left().len(), 1);
}

#[test]
fn rules_end_sessions_of_older_epochs_and_stamp_what_they_allow() {
    let mut w = World::new();
    w.policy(RED, POLICY_FILTER);
    let (old, now) = (w.epoch(RED).wrapping_sub(1), w.epoch(RED));
    for (port, epoch, direction) in
        [(1, old, Direction::Out), (2, now, Direction::Out), (3, old, Direction::In), (4, now, Direction::In)]
    {
        w.pair(port, (RED.0, B), epoch, direction);
    }
    assert_eq!(w.sweep(), []);
    assert_eq!(w.left(), [(1, now), (2, now), (3, now), (4, now)], "those of older rules are of the present ones");
    // Out of A nothing more; what came in to A stays.
    w.policy(RED, POLICY_FILTER);
    w.connections.set_filter(rules(&["ingress allow any any"]));
    let (judged, now) = (w.epoch(RED), w.epoch(RED));
    w.connections.tracker.stamp(
        w.connections
            .tracker
            .find_pair(&PairKey::with(inner_key(RED, 17, ip4(A), ip4(B), (2, 53)).unwrap(), RED))
            .unwrap(),
        judged,
    );
    assert_eq!(w.sweep(), [(1, EndReason::Removed)], "one of the present epoch is not asked about");
    assert_eq!(w.left(), [(2, now), (3, now), (4, now)]);
}

#[test]
fn a_vpc_without_groups_is_not_asked_about_its_sessions() {
    let mut w = World::new();
    w.pair(1, (RED.0, B), 9, Direction::Out);
    w.policy(RED, POLICY_NAT);
    w.pair(2, (RED.0, B), 9, Direction::Out);
    w.connections.set_filter(rules(&[]));
    assert_eq!(w.sweep(), []);
    assert_eq!(w.left(), [(1, 9), (2, 9)], "nor are they stamped");
}

/// The groups of either VPC are a reason to ask, and the epochs of both count.
#[test]
fn a_session_between_two_vpcs_has_the_sum_of_their_epochs() {
    let mut w = World::new();
    w.policy(BLUE, POLICY_FILTER);
    w.policy(BLUE, POLICY_FILTER);
    let far = w.epoch(BLUE);
    assert_eq!((far, w.epoch(RED)), (2, 0));
    w.pair(1, (BLUE.0, C), far, Direction::Out);
    w.pair(2, (BLUE.0, C), far + 1, Direction::Out);
    assert_eq!(w.sweep(), []);
    assert_eq!(w.left(), [(1, far), (2, far)]);
    // Now red has groups too. C's group still lets everybody in, A's lets nobody out.
    w.policy(RED, POLICY_FILTER);
    assert_eq!(w.sweep(), []);
    assert_eq!(w.left(), [(1, far + 1), (2, far + 1)]);
    w.policy(RED, POLICY_FILTER);
    w.connections.set_filter(rules(&["ingress allow any any"]));
    assert_eq!(w.sweep(), [(1, EndReason::Removed), (2, EndReason::Removed)]);
}

/// Beyond a wire there is no VPC: the server's counts alone.
#[test]
fn a_session_on_a_wire_has_the_epoch_of_the_servers_vpc() {
    let mut w = World::new();
    w.policy(RED, POLICY_FILTER);
    w.policy(RED, POLICY_FILTER);
    let now = w.epoch(RED);
    w.pair(1, (0, B), now, Direction::In);
    w.pair(2, (0, B), now - 1, Direction::In);
    assert_eq!(w.sweep(), []);
    assert_eq!(w.left(), [(1, now), (2, now)]);
    w.policy(RED, POLICY_FILTER);
    w.connections.set_filter(rules(&["egress allow any any"]));
    assert_eq!(w.sweep().len(), 2);
}

/// What is translated is asked about too, in both directions if its rules are stateless; it is stamped by its next packet, not here.
#[test]
fn rules_of_a_translated_session_are_asked_and_leave_its_epoch() {
    let mut w = World::new();
    w.policy(RED, POLICY_NAT | POLICY_FILTER);
    w.translated(1, 0, Direction::Out);
    assert_eq!(w.sweep(), []);
    assert_eq!(w.left(), [(1, 0)]);
    w.connections.set_filter(rules(&["egress allow any any stateless", "ingress allow any any stateless"]));
    assert_eq!((w.sweep(), w.left()), (vec![], vec![(1, 0)]));
    w.connections.set_filter(rules(&["egress allow any any stateless"]));
    assert_eq!(w.sweep(), [(1, EndReason::Removed)], "its answers are not allowed");
    w.translated(2, 0, Direction::In);
    assert_eq!(w.sweep(), [(2, EndReason::Removed)], "begun from outside");
    w.translated(3, w.epoch(RED), Direction::In);
    assert_eq!(w.sweep(), [], "of the present epoch");
}

/// Between two ends inside, rules without state want no session.
#[test]
fn a_pair_whose_rules_have_no_state_ends() {
    let mut w = World::new();
    w.policy(RED, POLICY_FILTER);
    w.pair(1, (RED.0, B), 0, Direction::Out);
    w.connections.set_filter(rules(&["egress allow any any stateless", "ingress allow any any"]));
    assert_eq!(w.sweep(), [(1, EndReason::Removed)]);
}

#[test]
fn a_sweep_goes_on_where_its_budget_ended() {
    let mut w = World::new();
    w.policy(RED, POLICY_FILTER);
    for port in 1..=40 {
        w.pair(port, (RED.0, B), 0, Direction::Out);
    }
    w.connections.set_filter(rules(&[]));
    let tables = w.rig.gateway.tables();
    let (mut at, mut steps) = (Some(Cursor::default()), 0);
    while let Some(from) = at {
        let before = w.connections.tracker.stats().sessions;
        at = w.connections.sweep(tables, from, 5, S);
        assert!(before - w.connections.tracker.stats().sessions <= 5, "no more than it may look at");
        steps += 1;
    }
    assert!(steps >= 8 && w.connections.tracker.stats().sessions == 0, "{steps} steps");
}

/// An elastic address that leads to another VM now.
#[test]
fn a_session_over_an_elastic_address_ends_when_it_is_another_s() {
    let mut w = World::new();
    w.policy(RED, POLICY_NAT);
    let elastic = |vm: u32| NatSpec {
        elastics: vec![ElasticSpec { addr: 0xcb00_7101, vni: RED, usage: ElasticUse::Vm(vm) }],
        ..spec(1)
    };
    w.connections.nat.translator.configure(&elastic(A));
    w.translated(1, 0, Direction::Out);
    assert_eq!(w.sweep(), []);
    w.connections.nat.translator.configure(&elastic(B));
    assert_eq!(w.sweep(), [(1, EndReason::Untranslated)]);
}

#[test]
fn connections_of_a_state_table_are_asked_about_wherever_either_vpc_has_groups() {
    use conntrack_compact::{Backing, HeapSlots, Shared, Spec, TableKind, Timeouts};
    let mut w = World::new();
    let backing = HeapSlots::default();
    let (table, _) =
        Shared::open(&backing as &dyn Backing, Spec::new(TableKind::Exact, 64, 64), 5, Timeouts::default()).unwrap();
    let table = Arc::new(table);
    w.connections.set_states(|_| Ok::<_, ()>(Some(table.clone()))).unwrap();
    let key = |port, (vni, addr)| {
        conntrack_compact::Key::from(&PairKey::with(inner_key(RED, 17, ip4(A), ip4(addr), (port, 53)).unwrap(), vni))
    };
    let begin = |port, far, began| assert!(table.adopt(&key(port, far), false, began, S));
    let sweep = |w: &World| {
        let mut at = Some(0);
        while let Some(from) = at {
            at = w.connections.sweep_states(w.rig.gateway.tables(), from, 3);
        }
        let mut left: Vec<u16> = table.connections().iter().map(|(key, _)| key.ports()[0]).collect();
        left.sort_unstable();
        left
    };
    begin(1, (RED, B), Direction::Out);
    begin(2, (RED, B), Direction::In);
    begin(3, (BLUE, C), Direction::Out);
    begin(4, (Vni(0), B), Direction::In);
    w.connections.set_filter(rules(&["ingress allow any any"]));
    assert_eq!(sweep(&w), [1, 2, 3, 4], "neither VPC has groups");
    w.policy(BLUE, POLICY_FILTER);
    assert_eq!(sweep(&w), [1, 2, 4]);
    w.policy(RED, POLICY_NAT);
    assert_eq!(sweep(&w), [1, 2, 4]);
    w.policy(RED, POLICY_FILTER);
    assert_eq!(sweep(&w), [2, 4], "what came in is allowed");
    w.connections.set_filter(rules(&["ingress allow any any stateless", "egress allow any any"]));
    assert_eq!(sweep(&w), [0; 0], "rules want no state of it");
    w.connections.set_states(|_| Ok::<_, ()>(None)).unwrap();
    assert_eq!(w.connections.sweep_states(w.rig.gateway.tables(), 0, 3), None, "no table");
}
