// SPDX-License-Identifier: Apache-2.0
//! Rust = XDP under security groups: random regions with random groups and members, in which VMs begin connections, answer, send ICMP
//! errors, fragments and TCP that is none, packet by packet on both engines, each with sessions of its own: same bytes, same reasons,
//! same generated packets, same counters. A naive reading of the rules says what must not go on.
//!
//! TUNNY_SEED repeats a run, TUNNY_FILTER_PACKETS says how many packets (default 200,000).
mod common;

use abi::{DropReason, Vni, FLOW_CHUNK_LINES};
use common::again::{hits_enough, same_sessions, Again};
use common::{difference, XdpRunner};
use filter::{oracle, Deny, Side};
use std::collections::BTreeMap;
use std::net::IpAddr;
use testkit::connections;
use testkit::dissect::dissect;
use testkit::layers::{Entropy, Layer, Packet};
use testkit::random::{self, Size};
use testkit::region::Region;
use testkit::rng::Rng;
use testkit::runner::{End, Engine, START};
use testkit::user::UserEngine;

const PER_REGION: usize = 10_000;
const SIZE: Size = Size { vpcs: 6, vms: 8, routes: 4, ncs: 8, deep_routes: 0 };
/// Packets that came out and may be answered.
const SEEN: usize = 200;

/// Both ends of an inner packet and its protocol and ports, or ICMP type; nothing of fragments and what they say.
struct Ends {
    vni: u32,
    src: IpAddr,
    dst: IpAddr,
    proto: u8,
    ports: (u16, u16),
}

fn ends(packet: &Packet) -> Option<Ends> {
    let at = packet.layers.iter().position(|l| matches!(l, Layer::Vxlan(_)))?;
    let Layer::Vxlan(vxlan) = &packet.layers[at] else { return None };
    let (src, dst) = match packet.layers.get(at + 2)? {
        Layer::Ipv4(ip) if !ip.mf && ip.frag.offset == 0 => (ip.src.into(), ip.dst.into()),
        Layer::Ipv6(ip) => (ip.src.into(), ip.dst.into()),
        _ => return None,
    };
    // What the receiver finds behind extension headers. A fragment is no whole packet to it.
    let mut upper = packet.layers.get(at + 3..)?.iter().skip_while(|l| match l {
        Layer::Ext(e) => e.len.is_none() && e.kind < 135,
        Layer::Frag6(f) => f.frag.offset == 0 && f.frag.end.is_none() && !f.mf,
        _ => false,
    });
    let (proto, ports) = match upper.next()? {
        Layer::Tcp(t) => (6, (t.src, t.dst)),
        Layer::Udp(u) => (17, (if let Entropy::Value(n) = u.src { n as u16 } else { return None }, u.dst)),
        _ => return None,
    };
    Some(Ends { vni: vxlan.vni, src, dst, proto, ports })
}

/// The rules by themselves, before any of them has changed: a refusal is one of the first packet, and what goes on is allowed in the
/// direction of its connection's first packet, which may be either.
fn opinion(region: &Region, packet: &Packet, end: &End) -> Result<(), String> {
    let Some(e) = ends(packet) else { return Ok(()) };
    let out = match end {
        End::Forward(_, bytes) => dissect(bytes),
        End::Drop(DropReason::FilterEgress | DropReason::FilterIngress) => packet.clone(),
        _ => return Ok(()),
    };
    let to_vni = match end {
        End::Forward(..) => ends(&out).map(|e| e.vni),
        _ => match testkit::oracle::place(region, e.vni, e.dst) {
            testkit::oracle::Place::Vm(vpc, _) => Some(vpc.vni),
            _ => None,
        },
    };
    let Some(to_vni) = to_vni else { return Ok(()) };
    let (from, to) = (Side { vni: Some(Vni(e.vni)), addr: e.src }, Side { vni: Some(Vni(to_vni)), addr: e.dst });
    let (specs, vpcs) = (region.groups.specs(), region.groups.vpcs());
    let judge = |from, to, port| oracle::judge(&specs, &vpcs, from, to, filter::service(e.proto, port));
    let (there, back) = (judge(from, to, e.ports.1), judge(to, from, e.ports.0));
    match end {
        End::Forward(..) if there.is_err() && back.is_err() => {
            Err(format!("the rules allow it in no direction: {there:?}, {back:?}"))
        }
        End::Drop(DropReason::FilterEgress) if there != Err(Deny::Egress) => Err(format!("the rules say {there:?}")),
        End::Drop(DropReason::FilterIngress) if there != Err(Deny::Ingress) => Err(format!("the rules say {there:?}")),
        _ => Ok(()),
    }
}

/// Time passes here, and the engines' clocks differ a little: meters have their own test.
fn unmetered(region: &mut Region) {
    for vpc in &mut region.vpcs {
        vpc.meter = None;
        vpc.vms.iter_mut().for_each(|m| m.meter = None);
    }
}

#[test]
fn rust_and_xdp_agree_on_random_connections_under_groups() {
    agree(0);
}

#[test]
fn rust_and_xdp_agree_on_random_connections_under_groups_with_a_flow_cache() {
    agree(FLOW_CHUNK_LINES);
}

/// What no flow cache serves is left out of a region for one.
fn plain_outside(region: &mut Region, flow_lines: u32) {
    if flow_lines > 0 {
        region.switches &= !(abi::OPT_DSCP_UNIFORM | abi::OPT_UDP4_CHECKSUM);
    }
}

/// With a flow cache packets that the program sent on come again, as they were or with the next byte of their stream.
#[track_caller]
fn agree(flow_lines: u32) {
    let Some(mut xdp) = XdpRunner::with_flow_cache(flow_lines) else { return };
    let mut rust = UserEngine::default();
    let (seed, mut r) = Rng::seeded("connections");
    let packets: usize = std::env::var("TUNNY_FILTER_PACKETS").ok().and_then(|n| n.parse().ok()).unwrap_or(200_000);
    let (mut counts, mut fast, mut checked, mut done) = (BTreeMap::<String, u64>::new(), 0, 0, 0);
    let mut again = Again::new(if flow_lines > 0 { 50 } else { 0 });
    while done < packets {
        again.clear();
        let mut region = random::region(&mut r, SIZE);
        connections::groups(&mut r, &mut region);
        unmetered(&mut region);
        plain_outside(&mut region, flow_lines);
        let (mut seen, mut now, mut changed) = (Vec::<Packet>::new(), START, false);
        rust.start(&region).and_then(|()| xdp.start(&region)).unwrap_or_else(|e| panic!("seed {seed}: {e}\n{region}"));
        for i in 1..=PER_REGION {
            if i % 2500 == 0 {
                match r.below(3) {
                    0 => random::change(&mut r, &mut region),
                    _ => connections::groups(&mut r, &mut region),
                }
                unmetered(&mut region);
                plain_outside(&mut region, flow_lines);
                changed = true;
                rust.change(&region)
                    .and_then(|()| xdp.change(&region))
                    .unwrap_or_else(|e| panic!("seed {seed}: {e}\n{region}"));
            }
            if i % 3700 == 0 {
                // Beyond every timeout but that of established TCP: what the clocks differ by decides nothing.
                now += 1_000_000_000_000;
                rust.tick(now);
                xdp.tick(now);
            }
            let kind = r.below(20);
            let again_now = again.pick(&mut r);
            let packet = match kind {
                _ if again_now.is_some() => again_now,
                0..=8 => connections::packet(&mut r, &region),
                9..=16 => connections::answer(&mut r, &seen),
                17 | 18 => connections::error(&mut r, &seen),
                _ => Some(random::packet(&mut r, &region)),
            };
            let Some(packet) = packet else { continue };
            let (frame, port) = (packet.encode(), 1 + r.below(2) as u32);
            if frame.len() < 14 {
                continue;
            }
            let at = format!("seed {seed}, packet {done}");
            let slow = rust.run(&frame, port, now).unwrap_or_else(|e| panic!("{at}: {e}"));
            let quick = xdp.run(&frame, port, now).unwrap_or_else(|e| panic!("{at}: {e}"));
            if let Some(what) = difference(&quick, &slow) {
                panic!("{at}: {what}\n  in port {port} {}\n{region}", dissect(&frame));
            }
            // The oracle believes what a packet's layers say.
            again.note(&mut r, &packet, &quick);
            if !changed && kind < 19 && packet.patches.is_empty() && packet.inner_cut.is_none() {
                let told = opinion(&region, &packet, &slow.end);
                told.unwrap_or_else(|e| {
                    panic!(
                        "{at}: {e}; both engines:{}\n  in port {port} {packet}\n{region}",
                        testkit::runner::describe(&slow)
                    )
                });
                checked += 1;
            }
            done += 1;
            fast += u64::from(quick.punt.is_none() && matches!(quick.end, End::Forward(..)));
            let outcome = match (&quick.end, quick.punt) {
                (End::Drop(reason), _) => format!("drop {}", reason.name()),
                (_, Some(reason)) => format!("punt {}", reason.name()),
                (End::Pass(_), _) => "pass".into(),
                _ => "fast".into(),
            };
            *counts.entry(outcome).or_default() += 1;
            let sent = match &quick.end {
                End::Forward(_, bytes) => Some(bytes),
                _ => None,
            };
            for bytes in quick.generated.iter().map(|g| &g.1).chain(sent) {
                seen.push(dissect(bytes));
                if seen.len() > SEEN {
                    let old = r.below(SEEN);
                    seen.swap_remove(old);
                }
            }
        }
        rust.conserved().and_then(|()| xdp.conserved()).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        let sorted = |e: &dyn Engine| {
            let mut all = e.reader().map(|t| t.drop_counts()).unwrap_or_default();
            all.sort();
            all
        };
        assert_eq!(sorted(&xdp), sorted(&rust), "seed {seed}: drops by VPC");
        same_sessions(&xdp, &rust).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
    hits_enough(&xdp, flow_lines, done);
    println!("{done} packets, no difference in bytes, reasons and drops by VPC; {fast} sent on by the XDP program alone, {checked} checked by the oracle:");
    counts.iter().for_each(|(what, n)| println!("  {n:>8} {what}"));
    // The generator has teeth only while connections settle, and end in many ways.
    assert!(fast * 20 > done as u64, "too few packets are fast: {fast}");
    let needed = [
        "filter_egress",
        "filter_ingress",
        "filter_spoofed",
        "filter_tcp_malformed",
        "filter_fragment_overlap",
        "session_stray",
    ];
    for reason in needed {
        assert!(counts.contains_key(&format!("drop {reason}")), "no packet was dropped for {reason}");
    }
    for reason in ["session_new", "session_control", "session_stale", "nat_fragment", "nat_icmp"] {
        assert!(counts.contains_key(&format!("punt {reason}")), "no packet was handed over for {reason}");
    }
}
