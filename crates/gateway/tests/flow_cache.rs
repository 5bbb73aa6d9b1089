// SPDX-License-Identifier: Apache-2.0
//! A worker with a flow cache and one without give every packet the same bytes, verdict and counts: whatever changes, and whenever.
#![allow(missing_docs)]

mod common;
use common::*;

use abi::*;
use gateway::{Batch, FlowCache, Frame, Gateway, NoRecorder, BATCH_MAX, HEADROOM};
use memory::testing::happens_at;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::cell::RefCell;
use std::rc::Rc;
use tables::{Commit, NexthopSpec, RoutesChange, Target, TenantChange, Writer};
use wire::ipv4;

/// A worker with a cache of so many lines; 0: none.
fn cached(options: u64, lines: u32) -> Rig {
    let mut rig = Rig::with_options(options);
    set_edge(&mut rig.writer, RED, EDGE);
    rig.writer.settle();
    if lines > 0 {
        let gateway = Gateway::new(rig.writer.tables(), rig.writer.tables().slots().1);
        rig.gateway = gateway.with_flow_cache(FlowCache::new(lines, 0x5a17).unwrap());
    }
    rig
}

fn commit(writer: &mut Writer, change: TenantChange) {
    writer.commit(&Commit { tenants: vec![change], ..Commit::default() }).unwrap();
}

fn routes(writer: &mut Writer, vni: Vni, list: &[(&str, Target)]) {
    let list = list.iter().map(|(prefix, target)| route(prefix, *target)).collect();
    commit(writer, TenantChange { vni, routes: RoutesChange::Replace(list), ..TenantChange::default() });
}

/// A VM is on another NC.
fn move_vm(writer: &mut Writer, vni: Vni, (addr, mac): (u32, u64), nc: u32) {
    commit(writer, TenantChange { vni, vm_add: vec![vm(mac, addr, None, ip4(nc))], ..TenantChange::default() });
}

fn underlay(writer: &mut Writer, mac: u64, mtu: u16) {
    let spec = NexthopSpec { addr: ip4(0xc000_02fd), ifindex: PORT, dmac: Some(mac), smac: UPLINK_MAC, mtu };
    let nexthop = writer.set_nexthop(&spec).unwrap();
    let group = writer.set_group(None, &[nexthop]).unwrap();
    [NC1, NC2].into_iter().for_each(|nc| assert!(writer.bind_nc_group(ip4(nc), Some(group))));
}

/// A site's address.
const SITE: u32 = 0x0e00_0007;

/// One VM more in a VPC that has nothing to do with the packets.
fn one_more(writer: &mut Writer, n: u32) {
    let vm_add = vec![vm(MAC_C + 9 + u64::from(n), A + 0x1_0000 + n, None, ip4(NC1))];
    commit(writer, TenantChange { vni: GREEN, vm_add, ..TenantChange::default() });
}

/// So many of these that the next one makes the VM-NC table grow: all entries are in another table than a batch began with.
fn nearly_full(writer: &mut Writer, most: u32) -> u32 {
    let tables = writer.tables();
    let before = tables.tables4();
    for n in 0..most {
        one_more(writer, n);
        writer.settle();
        if !tables.same_tables4(&before) {
            return n;
        }
    }
    most
}

const GROWS: &str = "the table grows, then VMs move";

const CHANGES: &[(&str, fn(&mut Writer))] = &[
    ("a VM moves", |w| move_vm(w, RED, (B, MAC_B), NC1)),
    ("a peer's VM moves", |w| move_vm(w, BLUE, (C, MAC_C), NC2)),
    (GROWS, |w| {
        one_more(w, u32::MAX >> 8);
        move_vm(w, RED, (B, MAC_B), NC1);
        move_vm(w, BLUE, (C, MAC_C), NC2);
    }),
    ("a route to a peer becomes a blackhole", |w| {
        routes(w, RED, &[("10.0.0.0/8", Target::Local), ("11.0.0.0/8", Target::Blackhole)])
    }),
    ("local routes become blackholes in both", |w| {
        routes(w, RED, &[("10.0.0.0/8", Target::Blackhole), ("11.0.0.0/8", Target::Peer(BLUE))]);
        routes(w, BLUE, &[("11.0.0.0/8", Target::Blackhole)]);
    }),
    ("a VPC is filtered", |w| assert!(w.set_policy(RED, POLICY_FILTER))),
    ("a peer is filtered", |w| assert!(w.set_policy(BLUE, POLICY_FILTER))),
    ("NCs are reached another way", |w| underlay(w, NEIGHBOUR_MAC + 5, 1600)),
    ("NCs are reached by a narrower way", |w| underlay(w, NEIGHBOUR_MAC, 90)),
    ("the sender hosts nobody any more", |w| move_vm(w, RED, (A, MAC_A), NC2)),
    ("a peer goes", |w| {
        let list = RoutesChange::Replace(vec![route("10.0.0.0/8", Target::Local)]);
        let tenants = vec![
            TenantChange { vni: RED, routes: list, ..TenantChange::default() },
            TenantChange { vni: BLUE, delete: true, ..TenantChange::default() },
        ];
        w.commit(&Commit { tenants, ..Commit::default() }).map(drop).unwrap();
    }),
    ("settings", |w| {
        w.set_options(w.options() ^ OPT_ECN_OFF ^ 0x2a << OPT_DSCP_SHIFT);
    }),
    ("an overlay is another VPC's", |w| set_edge(w, GREEN, EDGE)),
    ("an edge port is another interface", |w| set_edge(w, RED, IfIndex(9))),
    ("there is no edge any more", |w| w.set_edge(&[], &[]).unwrap()),
    ("a site has no route any more", |w| {
        routes(w, RED, &[("10.0.0.0/8", Target::Local), ("11.0.0.0/8", Target::Peer(BLUE))])
    }),
    ("senders need not be known", |w| {
        w.set_options(w.options() ^ OPT_SOURCE_STRICT);
    }),
];

/// As `Rig::send_all`, without its writer.
fn send(gateway: &mut Gateway, now: u64, frames: &[Vec<u8>]) -> Vec<Seen> {
    let mut buffers: Vec<Vec<u8>> = frames.iter().map(|f| [&[0xa5; HEADROOM][..], f].concat()).collect();
    let mut batch = Batch::new();
    for (buffer, frame) in buffers.iter_mut().zip(frames) {
        batch.push(Frame::new(buffer, HEADROOM, frame.len(), port_of(frame))).unwrap();
    }
    gateway.process(&mut batch, now);
    let seen = |f: &Frame<'_>| Seen { verdict: f.verdict, data: f.data().to_vec(), generated: Vec::new() };
    batch.frames().iter().map(seen).collect()
}

/// Each change is made at each moment of a batch at which a line is prefetched: while all packets miss, while all hit, and in between. Each packet of
/// that batch gets what it gets before or after the change, and each one after it what it gets with the change made.
#[test]
fn nothing_that_is_noted_outlives_a_change_made_at_any_moment() {
    let from_site = |to| customers([10, 20], 1, &udp_v4(SITE, to, b"site"));
    let frames: Vec<Vec<u8>> = [red_v4(B), red_v4(C), from_site(B), from_site(C), red_v4(B), red_v4(A)].to_vec();
    let mut moments = 0;
    let full = nearly_full(&mut cached(OPT_SOURCE_STRICT, 0).writer, 1 << 16);
    println!("the table grows with {full} VMs more");
    for (what, change) in CHANGES {
        println!("{what}");
        let mut plain = cached(OPT_SOURCE_STRICT, 0);
        let before = plain.send_all(&frames, &mut NoRecorder);
        change(&mut plain.writer);
        plain.writer.settle();
        let after = plain.send_all(&frames, &mut NoRecorder);
        for warm in [0, 1, 3] {
            for moment in 0.. {
                let mut rig = cached(OPT_SOURCE_STRICT, 64);
                if *what == GROWS {
                    nearly_full(&mut rig.writer, full);
                }
                // Lines of the first packets alone, of all, or none.
                if warm > 0 {
                    rig.send_all(&frames[..warm], &mut NoRecorder);
                }
                let (mut seen, writer) = (Vec::new(), Rc::new(RefCell::new(rig.writer)));
                let (shared, change) = (writer.clone(), *change);
                let happened = happens_at(
                    moment,
                    move || change(&mut shared.borrow_mut()),
                    || {
                        seen = send(&mut rig.gateway, rig.now, &frames);
                    },
                );
                rig.writer = Rc::try_unwrap(writer).ok().expect("it has happened").into_inner();
                if !happened {
                    break;
                }
                moments += 1;
                for (n, got) in seen.iter().enumerate() {
                    assert!(*got == before[n] || *got == after[n], "{what}, moment {moment}, warm {warm}, packet {n}");
                }
                for again in 0..2 {
                    let got = rig.send_all(&frames, &mut NoRecorder);
                    assert_eq!(got, after, "{what}, moment {moment}, warm {warm}, {again} batches later");
                }
                rig.writer.settle();
                assert_eq!(
                    rig.send_all(&frames, &mut NoRecorder),
                    after,
                    "{what}, moment {moment}, warm {warm}, settled"
                );
            }
        }
    }
    println!("{moments} moments");
    assert!(moments > 300, "only {moments} moments");
}

/// Counts of the VPCs and of the VMs in them.
fn counts(rig: &Rig) -> Vec<tables::Count> {
    let tables = rig.gateway.tables();
    let vpcs = [RED, BLUE, GREEN].into_iter().filter_map(|vni| tables.tenant(vni)).map(|t| tables.tenant_count(&t));
    vpcs.chain((0..100).map(|vm| tables.vm_count(VmId(vm)))).collect()
}

/// A change like those of CHANGES that another one takes back.
fn random_change(r: &mut ChaCha8Rng, a: &mut Rig, b: &mut Rig) {
    let (kind, yes) = (r.random_range(0..9), r.random_bool(0.5));
    let has_site = r.random_bool(0.7);
    let change = |w: &mut Writer| match kind {
        0 => move_vm(w, RED, (B, MAC_B), if yes { NC1 } else { NC2 }),
        1 => move_vm(w, BLUE, (C, MAC_C), if yes { NC1 } else { NC2 }),
        2 => move_vm(w, RED, (A + 9, MAC_A + 0x900), if yes { NC1 } else { NC2 }),
        3 => {
            let to = if yes { Target::Peer(BLUE) } else { Target::Blackhole };
            let site = if has_site { Target::Line(0) } else { Target::Blackhole };
            routes(w, RED, &[("10.0.0.0/8", Target::Local), ("11.0.0.0/8", to), ("14.0.0.0/8", site)]);
        }
        8 => set_edge(w, if yes { RED } else { GREEN }, EDGE),
        4 => drop(w.set_policy(if yes { RED } else { BLUE }, POLICY_FILTER)),
        5 => drop((w.set_policy(RED, 0), w.set_policy(BLUE, 0))),
        6 => underlay(w, NEIGHBOUR_MAC + u64::from(yes), if yes { 1600 } else { 1200 }),
        _ => w.set_options(w.options() ^ if yes { OPT_ECN_OFF } else { 0x2a << OPT_DSCP_SHIFT }),
    };
    change(&mut a.writer);
    change(&mut b.writer);
    if r.random_bool(0.5) {
        a.writer.settle();
        b.writer.settle();
    }
}

#[test]
fn flows_that_come_again_get_what_they_get_without_a_cache() {
    let seed = std::env::var("TUNNY_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(1);
    println!("seed {seed}");
    let mut r = ChaCha8Rng::seed_from_u64(seed);
    for lines in [2, 64, 4096] {
        let (mut plain, mut rig) = (cached(OPT_SOURCE_STRICT, 0), cached(OPT_SOURCE_STRICT, lines));
        for round in 0..300 {
            if round % 4 == 0 {
                random_change(&mut r, &mut plain, &mut rig);
            }
            let n = [1, 2, 17, 64, 100, BATCH_MAX][r.random_range(0..6)];
            let frames: Vec<Vec<u8>> = (0..n).map(|_| random_frame(&mut r)).collect();
            let (want, got) = (plain.send_all(&frames, &mut NoRecorder), rig.send_all(&frames, &mut NoRecorder));
            for (i, (want, got)) in want.iter().zip(&got).enumerate() {
                assert_eq!(got, want, "{lines} lines, round {round}, packet {i}: {:02x?}", frames[i]);
            }
            assert_eq!(counts(&rig), counts(&plain), "{lines} lines, round {round}");
        }
        let (stats, all) = (rig.stats(), plain.stats());
        println!("{lines} lines: {} hits, {} fills of {}", stats.flow_hits, stats.flow_fills, stats.rx);
        assert_eq!((all.flow_hits, all.flow_fills), (0, 0));
        assert!(stats.flow_hits * 40 > stats.rx, "the cache had too little to do");
        assert_eq!((stats.rx, stats.drops), (all.rx, all.drops));
    }
}

/// One of some flows; now and then a bit of it turned, with sums that are right or not, or its TTL at the end.
fn random_frame(r: &mut ChaCha8Rng) -> Vec<u8> {
    let to = [B, B, C, A + 9, A, B + 1][r.random_range(0..6)];
    let sport = r.random_range(0..4);
    let payload = [&[0u8; 20][..], &[1; 1300]][usize::from(r.random_bool(0.1))];
    let mut inner = udp_v4(A, to, payload);
    wire::be::set_u16(&mut inner, 20, sport);
    if r.random_bool(0.3) {
        return random_customers_frame(r, to, inner);
    }
    let mut frame = tunnel(NC1, RED, &eth(GATEWAY_MAC, MAC_A, 0x0800, &inner));
    match r.random_range(0..20) {
        0 => {
            let at = r.random_range(0..frame.len().min(100));
            frame[at] ^= 1 << r.random_range(0..8);
        }
        1 => edit_inner_v4(&mut frame, |ip| ip.set_ttl(1)),
        2 => edit_outer_v4(&mut frame, |ip| ip.set_src(NC2)),
        3 => edit_outer_v4(&mut frame, |ip| ip.set_tos(3)),
        4 => edit_inner_v4(&mut frame, |ip| ip.set_tos(2)),
        _ => (),
    }
    frame
}

/// The same from a site.
fn random_customers_frame(r: &mut ChaCha8Rng, to: u32, inner: Vec<u8>) -> Vec<u8> {
    let mut inner = inner;
    let source = if r.random_bool(0.9) { SITE } else { A };
    let mut packet = ipv4::Packet::new_unchecked(&mut inner[..]);
    packet.set_src(source);
    packet.set_dst(to);
    if r.random_bool(0.05) {
        packet.set_ttl(1);
    }
    packet.fill_checksum();
    let mut frame = customers([10, if r.random_bool(0.95) { 20 } else { 21 }], 1, &inner);
    if r.random_bool(0.05) {
        let at = r.random_range(0..50);
        frame[at] ^= 1 << r.random_range(0..8);
    }
    frame
}
