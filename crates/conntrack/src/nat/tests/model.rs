// SPDX-License-Identifier: Apache-2.0
//! The translator against a naive twin: a list of sessions, from which every promise is read off again.

use super::*;
use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::{HashMap, HashSet};

/// What is known by the naive way.
#[derive(Default)]
struct Twin {
    sessions: Vec<Binding>,
}

impl Twin {
    /// The public endpoint of a VM's port, if a session uses it.
    fn mapping(&self, f: &Flow) -> Option<PublicEndpoint> {
        let same = |b: &&Binding| {
            (b.flow.vni, b.flow.proto, b.flow.vm_addr, b.flow.vm_port) == (f.vni, f.proto, f.vm_addr, f.vm_port)
        };
        self.sessions.iter().find(same).map(|b| b.public)
    }

    /// No public endpoint stands for two VMs' ports, and a chunk is one VM's.
    fn check(&self) {
        let (mut ends, mut chunks) = (HashMap::new(), HashMap::new());
        for b in &self.sessions {
            let (f, p) = (b.flow, b.public);
            assert_eq!(
                *ends.entry((f.proto, p)).or_insert((f.vni, f.vm_addr, f.vm_port)),
                (f.vni, f.vm_addr, f.vm_port)
            );
            assert_eq!(*chunks.entry((p.addr, p.port / 64)).or_insert((f.vni, f.vm_addr)), (f.vni, f.vm_addr));
        }
    }

    fn chunks(&self, of: impl Fn(&Flow) -> bool) -> u64 {
        let mine = self.sessions.iter().filter(|b| of(&b.flow));
        mine.map(|b| (b.public.addr, b.public.port / 64)).collect::<HashSet<_>>().len() as u64
    }
}

fn random_flow(r: &mut impl Rng) -> Flow {
    let proto = [1, 6, 17][r.random_range(0..3)];
    let mut f = flow(Vni(r.random_range(1..4)), r.random_range(1..12), r.random_range(1..250));
    (f.proto, f.remote_port) = (proto, r.random_range(1..4));
    f
}

/// One step on both; what the translator does must be what the twin allows.
fn step(t: &Translator, twin: &mut Twin, r: &mut impl Rng, now: u64, s: &NatSpec) {
    let size = twin.sessions.len();
    if r.random_range(0..100) < if size > 900 { 30 } else { 60 } {
        let f = random_flow(r);
        let snat = s.snats.iter().find(|x| x.vni == f.vni);
        match (t.outbound(&f, now), snat) {
            (Ok(public), Some(snat)) => {
                assert!(twin.mapping(&f).is_none_or(|have| have == public), "{f:?}: endpoint-independent");
                twin.sessions.push(Binding { flow: f, public });
                assert!(twin.chunks(|x| x.vni == f.vni) * 64 <= snat.ports_max);
                assert!(twin.chunks(|x| (x.vni, x.vm_addr) == (f.vni, f.vm_addr)) * 64 <= u64::from(snat.vm_ports_max));
            }
            (Err(Refusal::NotServed), None) => {}
            (Err(Refusal::VmPorts), Some(snat)) => {
                let held = twin.chunks(|x| (x.vni, x.vm_addr) == (f.vni, f.vm_addr)) * 64;
                assert!(held + 64 > u64::from(snat.vm_ports_max), "{f:?}: holds {held}");
                assert!(twin.mapping(&f).is_none());
            }
            (Err(Refusal::TenantPorts | Refusal::PoolDry), Some(_)) => assert!(twin.mapping(&f).is_none()),
            other => panic!("{f:?}: {other:?}"),
        }
    } else if size > 0 {
        let b = twin.sessions.swap_remove(r.random_range(0..size));
        t.release(&b, now);
    }
}

#[test]
fn random_operations_agree_with_the_twin() {
    let events: u64 = std::env::var("TUNNY_NAT_EVENTS").ok().and_then(|v| v.parse().ok()).unwrap_or(60_000);
    let seed = std::env::var("TUNNY_SEED").ok().and_then(|v| v.parse().ok()).unwrap_or(0x7e57);
    println!("seed {seed} (TUNNY_SEED), {events} events (TUNNY_NAT_EVENTS)");
    let mut r = ChaCha8Rng::seed_from_u64(seed);
    let small = |ports: u16| PoolSpec { ports: (1024, 1023 + 64 * ports), block: 128, ..pool(0, 3) };
    let limited = |vni| SnatSpec { ports_max: 640, vm_ports_max: 256, ..snat(vni) };
    let specs = [
        spec(vec![small(8)], vec![limited(Vni(1)), limited(Vni(2))]),
        spec(vec![small(6)], vec![limited(Vni(1)), SnatSpec { vm_ports_max: 64, ..limited(Vni(2)) }]),
    ];
    let mut t = Translator::new(r.random());
    let (mut twin, mut now, mut current) = (Twin::default(), 0, &specs[0]);
    t.configure(current);
    for i in 0..events {
        now += r.random_range(0..50_000_000);
        step(&t, &mut twin, &mut r, now, current);
        if i % 64 == 0 {
            t.expire(now);
        }
        if i % 500 == 499 {
            twin.check();
            assert_eq!(t.mappings().1, twin.sessions.len() as u64);
        }
        match r.random_range(0..4000) {
            // Smaller limits hold for what is new; what is held stays.
            0 => {
                let drained = twin.sessions.drain(..).collect::<Vec<_>>();
                drained.iter().for_each(|b| t.release(b, now));
                now += 2 * LINGER_NS;
                t.expire(now);
                assert_eq!((t.pool_use()[0].held, t.mappings()), (0, (0, 0)), "event {i}: all comes back");
                current = &specs[r.random_range(0..2)];
                t.configure(current);
            }
            // A restart: the sessions are all that is left.
            1 => {
                t = Translator::new(r.random());
                t.configure(current);
                assert!(twin.sessions.iter().all(|b| t.restore(b)), "event {i}");
                assert_eq!(t.pool_use()[0].held, 64 * twin.chunks(|_| true));
            }
            _ => {}
        }
    }
}

#[test]
fn workers_on_many_threads_share_pools_without_giving_a_port_twice() {
    let t = Translator::new(11);
    let tight = PoolSpec { ports: (1024, 1023 + 64 * 40), block: 256, ..pool(0, 1) };
    t.configure(&spec(vec![tight], vec![SnatSpec { vm_ports_max: 512, ..snat(Vni(7)) }]));
    let work = |n: u8| {
        let (t, mut r) = (&t, ChaCha8Rng::seed_from_u64(n.into()));
        let mut held: Vec<Binding> = Vec::new();
        for now in 0..20_000 {
            let f = flow(Vni(7), n * 16 + r.random_range(0..16) as u8, r.random_range(0..300));
            if r.random_range(0..100) < 55 {
                held.extend(t.outbound(&f, now).map(|public| Binding { flow: f, public }));
            } else if !held.is_empty() {
                t.release(&held.swap_remove(r.random_range(0..held.len())), now);
            }
        }
        held
    };
    let held: Vec<Binding> = std::thread::scope(|s| {
        let threads: Vec<_> = (0..4).map(|n| s.spawn(move || work(n))).collect();
        threads.into_iter().flat_map(|h| h.join().unwrap()).collect()
    });
    let twin = Twin { sessions: held };
    twin.check();
    assert_eq!(t.mappings().1, twin.sessions.len() as u64);
    twin.sessions.iter().for_each(|b| t.release(b, 30_000));
    t.expire(2 * LINGER_NS);
    assert_eq!((t.pool_use()[0].held, t.tenant_use()[0].ports, t.mappings()), (0, 0, (0, 0)));
}
