// SPDX-License-Identifier: Apache-2.0
//! Shares of the ring to the software path: whoever floods it leaves room for others, and what did not get in is told of him.
mod common;

use abi::{DropReason, Vni, OPT_SOURCE_STRICT};
use common::rig::*;
use common::*;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use tables::{
    options_word, Commit, GatewaySettings, PuntRates, RateLimit, RoutesChange, Tables, TenantChange, TenantSettings,
};
use tables::{Memory, Prefix, Route, Target, Writer, WriterOptions};
use xdp::{AfXdpOptions, AfXdpSocket, Attach, XdpEngine};

const ENTRIES: u32 = 256;
/// What one tenant may have in an empty ring: half of all but an eighth.
const SHARE: u32 = (ENTRIES - ENTRIES / 8) / 2;
const GATEWAY: u32 = 0xc0a8_00fe;
const RED: Vni = Vni(100);
const BLUE: Vni = Vni(200);

/// VPCs with a gateway address, whose packets to it are for the software path; no limits by rate.
fn region(engine: &XdpEngine, vnis: impl Iterator<Item = Vni>) -> (Writer, Tables) {
    let memory: Arc<dyn Memory> = engine.memory();
    let options = WriterOptions { xdp_slots: 8, worker_slots: 2, ..Default::default() };
    let mut writer = Writer::create(memory, options).unwrap();
    let free = RateLimit { per_second: 0, burst: 0 };
    let unlimited = PuntRates { committed: free, peak: free };
    let gateway = GatewaySettings {
        vtep4: Some(Ipv4Addr::from_bits(VTEP)),
        options: options_word(OPT_SOURCE_STRICT, 4789, 0, 0),
        punts_tenant: unlimited,
        punts_total: unlimited,
        ..Default::default()
    };
    let nc = IpAddr::V4(Ipv4Addr::from_bits(NC_A));
    let tenants = vnis.map(|vni| TenantChange {
        vni: Vni(vni.0),
        settings: Some(TenantSettings {
            gateway_mac: GATEWAY_MAC,
            gateways: vec![IpAddr::V4(Ipv4Addr::from_bits(GATEWAY))],
            extra_ncs: vec![nc],
            ..Default::default()
        }),
        routes: RoutesChange::Replace(vec![Route {
            prefix: Prefix::new_assert(Ipv4Addr::new(192, 168, 0, 0).into(), 16),
            target: Target::Local,
        }]),
        ..Default::default()
    });
    let commit = Commit { gateway: Some(gateway), nc_add: vec![nc], tenants: tenants.collect(), ..Default::default() };
    writer.commit(&commit).unwrap();
    let tables = writer.tables();
    (writer, tables)
}

struct Rig {
    engine: XdpEngine,
    tables: Tables,
    _writer: Writer,
    socket: AfXdpSocket,
    ring: u32,
    wire: Wire,
    sent: u64,
}

impl Rig {
    fn new(mut engine: XdpEngine, vnis: impl Iterator<Item = Vni>) -> Rig {
        let (port, far) = veth("tnyup", "tnyfar", 1500);
        let (writer, tables) = region(&engine, vnis);
        engine.attach(port, Attach::Native).unwrap();
        let socket = AfXdpSocket::open(AfXdpOptions { entries: ENTRIES, ..AfXdpOptions::new(port, 0) }).unwrap();
        let ring = engine.set_listener(port, 0, socket.raw_fd()).unwrap();
        tables.open_punt_ring(ring, ENTRIES);
        Rig { engine, tables, _writer: writer, socket, ring, wire: Wire::open(far), sent: 0 }
    }

    /// Packets that nobody takes yet.
    fn send(&mut self, frame: &[u8], times: u32) {
        (0..times).for_each(|_| self.wire.send(frame));
        self.sent += u64::from(times);
        let done = || self.engine.stats_total().rx == self.sent;
        until(|| done().then_some(())).expect("the program sees them all");
    }

    fn at_gateway(&mut self, vni: Vni, times: u32) {
        self.send(&packet(NC_A, vni, GATEWAY, 20), times);
    }

    /// Takes what is in the ring; how many packets by VNI, 0: no tenant's.
    fn take(&mut self) -> HashMap<Vni, u32> {
        let mut taken = HashMap::new();
        loop {
            let n = self.socket.receive();
            self.tables.punts_taken(self.ring, n as u64);
            if n == 0 {
                return taken;
            }
            for packet in self.socket.packets() {
                let meta = packet.meta.expect("veth has metadata");
                self.tables.punts_returned(meta.share, 1);
                *taken.entry(Vni(meta.vni)).or_default() += 1;
            }
            self.socket.release();
        }
    }

    fn refused(&self, vni: Vni) -> u64 {
        self.tables.drop_count(vni, DropReason::PuntRingFull)
    }

    fn held(&self, vni: Vni) -> u32 {
        self.tables.punts_held(&self.tables.tenant(vni).unwrap())
    }
}

#[test]
fn one_tenants_flood_leaves_room_for_another_and_is_told_of_the_one_who_floods() {
    in_namespace(|| {
        let Some(engine) = engine() else { return };
        let mut rig = Rig::new(engine, [RED, BLUE].into_iter());
        for round in 1..=3 {
            rig.at_gateway(RED, 5000);
            rig.at_gateway(BLUE, 50);
            assert_eq!((rig.held(RED), rig.held(BLUE)), (SHARE, 50));
            let taken = rig.take();
            assert_eq!((taken[&RED], taken[&BLUE]), (SHARE, 50), "round {round}");
            assert_eq!((rig.refused(RED), rig.refused(BLUE)), (round * u64::from(5000 - SHARE), 0));
            assert_eq!((rig.held(RED), rig.held(BLUE)), (0, 0));
        }
        assert_eq!(rig.socket.take_lost(), 0, "the ring itself never was full");
        let total = rig.engine.stats_total();
        assert_eq!(total.rx, total.punted + total.dropped);
        assert_eq!(total.dropped, total.drops[DropReason::PuntRingFull as usize]);
    });
}

#[test]
fn many_who_flood_leave_room_for_one_more() {
    in_namespace(|| {
        let flooding = (1000..1016).map(Vni);
        let Some(engine) = engine() else { return };
        let mut rig = Rig::new(engine, flooding.clone().chain([BLUE]));
        for vni in flooding.clone() {
            rig.at_gateway(vni, 300);
        }
        rig.at_gateway(BLUE, 1);
        let taken = rig.take();
        assert_eq!((taken[&BLUE], rig.refused(BLUE), rig.socket.take_lost()), (1, 0, 0));
        assert!(flooding.clone().all(|vni| rig.refused(Vni(vni.0)) > 0));
        // When all go on at once, shares become equal.
        for _ in 0..40 {
            flooding.clone().for_each(|vni| rig.at_gateway(Vni(vni.0), 10));
        }
        rig.at_gateway(BLUE, 1);
        let taken = rig.take();
        assert_eq!((taken[&BLUE], rig.refused(BLUE), rig.socket.take_lost()), (1, 0, 0));
    });
}

#[test]
fn what_is_no_tenants_has_shares_of_its_own() {
    in_namespace(|| {
        let Some(engine) = engine() else { return };
        let mut rig = Rig::new(engine, [RED].into_iter());
        // Options in the outer header: handed over before the tenant is known.
        let mut options = packet(NC_A, RED, GATEWAY, 20);
        options.splice(34..34, [1, 1, 1, 1]);
        options[14] = 0x46;
        let length = u16::from_be_bytes([options[16], options[17]]) + 4;
        options[16..18].copy_from_slice(&length.to_be_bytes());
        rig.send(&options, 5000);
        rig.at_gateway(RED, 20);
        let taken = rig.take();
        assert_eq!((taken[&Vni(0)], taken[&RED], rig.refused(RED)), (SHARE, 20, 0));
        assert_eq!(rig.engine.stats_total().drops[DropReason::PuntRingFull as usize], u64::from(5000 - SHARE));
        assert_eq!(rig.socket.take_lost(), 0);
    });
}

#[test]
fn packets_lost_on_the_way_do_not_use_up_a_share_for_good() {
    in_namespace(|| {
        let Some(engine) = engine() else { return };
        let mut rig = Rig::new(engine, [RED].into_iter());
        rig.at_gateway(RED, 5000);
        // Taken, but nobody says whose they were: as if they had been lost.
        while rig.socket.receive() > 0 {
            rig.socket.release();
        }
        rig.at_gateway(RED, 10);
        assert_eq!(rig.held(RED), SHARE);
        rig.tables.punts_lost(rig.ring, u64::from(SHARE));
        assert_eq!(rig.held(RED), 0);
        rig.at_gateway(RED, 10);
        assert_eq!((rig.held(RED), rig.take()[&RED]), (10, 10));
    });
}

#[test]
fn a_ring_of_which_nobody_says_what_is_taken_has_no_shares() {
    in_namespace(|| {
        let Some(engine) = engine() else { return };
        let mut rig = Rig::new(engine, [RED].into_iter());
        rig.tables.open_punt_ring(rig.ring, 0);
        rig.at_gateway(RED, 200);
        assert_eq!((rig.take()[&RED], rig.refused(RED)), (200, 0));
    });
}

/// What `done` finds within two seconds.
fn until<T>(mut done: impl FnMut() -> Option<T>) -> Option<T> {
    for _ in 0..2000 {
        if let Some(value) = done() {
            return Some(value);
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    None
}
