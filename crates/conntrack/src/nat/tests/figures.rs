// SPDX-License-Identifier: Apache-2.0
//! Every figure and every answer of the translator against a list of mappings that is kept by hand: how long each lingers, who holds which
//! chunk and how much of it is in use, what is told of pools, VPCs and VMs, and what comes back from the sessions alone.

use super::*;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::{BTreeMap, BTreeSet};

/// A VM's port: VPC, VM, protocol, port.
type Port = (Vni, u32, u8, u16);

#[derive(Clone, Copy, Debug)]
struct Mapping {
    public: (u32, u16),
    sessions: u32,
    /// When it may go, once it has no sessions.
    until: u64,
    /// It is looked at.
    listed: bool,
}

/// 2^24 ns: times are kept in such units.
fn tick(ns: u64) -> u64 {
    ns.div_ceil(1 << 24)
}

#[derive(Default)]
struct Twin {
    mappings: BTreeMap<Port, Mapping>,
    /// When VMs with idle mappings are looked at.
    looks: BTreeMap<(Vni, u32), u64>,
}

fn word(addr: IpAddr) -> u32 {
    match addr {
        IpAddr::V4(a) => a.into(),
        IpAddr::V6(_) => panic!("{addr}"),
    }
}

fn port_of(f: &Flow) -> Port {
    (Vni(f.vni.0), word(f.vm_addr), f.proto, f.vm_port)
}

impl Twin {
    fn took(&mut self, f: &Flow, public: PublicEndpoint) {
        let public = (word(public.addr), public.port);
        let m = self.mappings.entry(port_of(f)).or_insert(Mapping { public, sessions: 0, until: 0, listed: false });
        assert_eq!(m.public, public, "{f:?}");
        m.sessions += 1;
    }

    fn release(&mut self, f: &Flow, now: u64, linger: bool) {
        let port = port_of(f);
        let m = self.mappings.get_mut(&port).unwrap();
        m.sessions -= 1;
        if m.sessions > 0 {
            return;
        }
        if linger {
            m.until = now + LINGER_NS;
        } else if m.until == 0 {
            // It was made for that session.
            self.mappings.remove(&port);
            return;
        }
        let first = !m.listed;
        m.listed = true;
        let others = self.mappings.iter().any(|(p, m)| (p.0, p.1) == (port.0, port.1) && *p != port && m.listed);
        if first && !others {
            self.looks.insert((port.0, port.1), now + LINGER_NS / 4);
        }
    }

    fn expire(&mut self, now: u64) {
        let due: Vec<(Vni, u32)> = self.looks.iter().filter(|(_, at)| **at <= now).map(|(vm, _)| *vm).collect();
        for vm in due {
            self.mappings.retain(|p, m| (p.0, p.1) != vm || !m.listed || m.sessions > 0 || tick(m.until) > tick(now));
            let mut left = false;
            for (_, m) in self.mappings.iter_mut().filter(|(p, _)| (p.0, p.1) == vm) {
                m.listed &= m.sessions == 0;
                left |= m.listed;
            }
            match left {
                true => drop(self.looks.insert(vm, now + LINGER_NS / 4)),
                false => drop(self.looks.remove(&vm)),
            }
        }
    }

    /// What is told, against what must be.
    fn check(&self, t: &Translator, s: &NatSpec) {
        let mut holders = Vec::new();
        t.holders(
            |_, _| true,
            |h| {
                holders.push(h);
                true
            },
        );
        // Each chunk has one holder, who has mappings; and each mapping lies in a chunk of its VM.
        let mut chunks: BTreeMap<(u32, u16), (Vni, u32, [u32; 3])> = BTreeMap::new();
        for h in &holders {
            let pool = &s.pools[0];
            let first = u32::from(h.first);
            assert!(
                first.is_multiple_of(64) && first >= pool.ports.0.into() && first + 63 <= pool.ports.1.into(),
                "{h:?}"
            );
            let vm = (h.vni, u32::from(h.vm));
            assert!(self.mappings.keys().any(|p| (p.0, p.1) == vm), "{h:?} has nothing to hold it for");
            assert!(chunks.insert((h.addr.into(), h.first), (vm.0, vm.1, h.used)).is_none(), "{h:?}");
        }
        let mut used: BTreeMap<(u32, u16), [u32; 3]> = BTreeMap::new();
        for (port, m) in &self.mappings {
            let chunk = (m.public.0, m.public.1 / 64 * 64);
            assert_eq!(chunks.get(&chunk).map(|c| (c.0, c.1)), Some((port.0, port.1)), "{port:?} {m:?}");
            used.entry(chunk).or_default()[[1, 6, 17].iter().position(|p| *p == port.2).unwrap()] += 1;
        }
        for (chunk, (_, _, have)) in &chunks {
            assert_eq!(*have, used.get(chunk).copied().unwrap_or_default(), "{chunk:?}");
        }
        let sessions: u64 = self.mappings.values().map(|m| u64::from(m.sessions)).sum();
        assert_eq!(t.mappings(), (self.mappings.len() as u64, sessions));
        let pool = &t.pool_use()[0];
        let addresses = s.pools[0].ranges.iter().map(|(a, b)| u64::from(b - a + 1)).sum::<u64>();
        let each = (u64::from(s.pools[0].ports.1) + 1) / 64 - u64::from(s.pools[0].ports.0).div_ceil(64);
        assert_eq!((pool.name.as_str(), pool.addresses, pool.ports), ("p", addresses, addresses * each * 64));
        assert_eq!((pool.held, pool.reused, pool.reuse), (64 * chunks.len() as u64, 0, false));
        for (told, snat) in t.tenant_use().iter().zip(&s.snats) {
            let held = chunks.values().filter(|c| c.0 == snat.vni).count() as u64 * 64;
            assert_eq!((told.vni, told.ports, told.ports_max, told.reused), (snat.vni, held, snat.ports_max, 0));
            assert_eq!((told.refused_dry, told.refused_tenant, told.refused_vm), (0, 0, 0));
        }
        // Holders that are asked for alone, and as many as are wanted.
        if let Some(one) = holders.first() {
            let mut mine = Vec::new();
            t.holders(
                |vni, vm| (vni, vm) == (one.vni, one.vm),
                |h| {
                    mine.push(h);
                    true
                },
            );
            let want: Vec<_> = holders.iter().filter(|h| (h.vni, h.vm) == (one.vni, one.vm)).copied().collect();
            assert_eq!(mine, want);
            let mut n = 0;
            t.holders(
                |_, _| true,
                |_| {
                    n += 1;
                    n < 2
                },
            );
            assert_eq!(n, holders.len().min(2));
        }
    }
}

fn random_flow(r: &mut ChaCha8Rng) -> Flow {
    let proto = [1, 6, 17][r.random_range(0..3)];
    Flow {
        proto,
        remote_port: r.random_range(1..4),
        ..flow(Vni(r.random_range(1..4)), r.random_range(1..6), r.random_range(1..150))
    }
}

fn a_history(seed: u64, block: u16) {
    let mut r = ChaCha8Rng::seed_from_u64(seed);
    // The first and the last chunk of the range are not whole.
    let wide = PoolSpec { ports: (1025, 9000), block, ..pool(0, 6) };
    let open = |vni| SnatSpec {
        filtering: if vni == Vni(2) { Filtering::AddressAndPortDependent } else { Filtering::EndpointIndependent },
        ..snat(vni)
    };
    let s = spec(vec![wide], vec![open(Vni(1)), open(Vni(2)), open(Vni(3))]);
    let mut t = Translator::new(r.random());
    t.configure(&s);
    let (mut twin, mut now, mut sessions): (Twin, u64, Vec<Binding>) = (Twin::default(), 5 * LINGER_NS, Vec::new());
    for step in 0..1500 {
        now += r.random_range(0..LINGER_NS / 40);
        match r.random_range(0..20) {
            0..9 => {
                let f = random_flow(&mut r);
                let before = twin.mappings.get(&port_of(&f)).copied();
                let public = t.outbound(&f, now).unwrap();
                if before.is_none() && f.proto == 17 {
                    // The parity of a UDP port is kept unless its block has no other.
                    let chunk = (word(public.addr), public.port / 64);
                    let alike = |m: &Mapping| (m.public.0, m.public.1 / 64) == chunk && m.public.1 % 2 == f.vm_port % 2;
                    let taken = twin.mappings.iter().filter(|(p, m)| p.2 == 17 && alike(m)).count();
                    assert!(public.port % 2 == f.vm_port % 2 || taken == 32, "{f:?} {public:?}");
                }
                twin.took(&f, public);
                sessions.push(Binding { flow: f, public });
            }
            9..16 if !sessions.is_empty() => {
                let b = sessions.swap_remove(r.random_range(0..sessions.len()));
                let linger = r.random_bool(0.8);
                match linger {
                    true => t.release(&b, now),
                    false => t.undo(&b, now),
                }
                twin.release(&b.flow, now, linger);
            }
            16 => {
                // A packet from outside to a mapping, or to a port that is none.
                let (public, proto) = match sessions.get(r.random_range(0..sessions.len().max(1))) {
                    Some(b) if r.random_bool(0.7) => (b.public, b.flow.proto),
                    _ => (
                        PublicEndpoint {
                            addr: Ipv4Addr::from(u32::from(POOL) + r.random_range(0..8)).into(),
                            port: r.random(),
                        },
                        17,
                    ),
                };
                let key = (word(public.addr), public.port);
                let behind = twin
                    .mappings
                    .iter()
                    .find(|(p, m)| p.2 == proto && m.public == key)
                    .map(|(p, _)| *p)
                    .filter(|p| p.0 != Vni(2));
                let want = behind.map(|(vni, vm, _, vm_port)| Target {
                    vni: Vni(vni.0),
                    vm_addr: IpAddr::V4(vm.into()),
                    vm_port,
                });
                assert_eq!(t.inbound(public, proto), want);
                if let Some(port) = behind {
                    twin.mappings.get_mut(&port).unwrap().sessions += 1;
                    let flow = Flow {
                        vni: Vni(port.0 .0),
                        proto: port.2,
                        vm_addr: IpAddr::V4(port.1.into()),
                        vm_port: port.3,
                        remote: REMOTE.into(),
                        remote_port: 1,
                    };
                    sessions.push(Binding { flow, public });
                }
            }
            17 => {
                t.expire(now);
                twin.expire(now);
            }
            18 => {
                // Which sessions hold their translation; one of another port, address or VM does not.
                for b in sessions.iter().take(20) {
                    assert!(t.holds(b) && t.judge(b), "{b:?}");
                    let port = PublicEndpoint { port: b.public.port ^ 1, ..b.public };
                    let other = |public, flow| t.holds(&Binding { flow, public });
                    assert!(
                        !other(port, b.flow) && !other(b.public, Flow { vm_port: b.flow.vm_port + 1000, ..b.flow })
                    );
                    assert!(!other(b.public, Flow { vni: Vni(b.flow.vni.0 % 3 + 1), ..b.flow }));
                    let outside = PublicEndpoint { addr: Ipv4Addr::new(9, 9, 9, 9).into(), ..b.public };
                    assert!(!other(outside, b.flow) && !t.judge(&Binding { public: outside, ..*b }));
                    // What was never given, given back: nothing happens.
                    t.release(&Binding { public: port, ..*b }, now);
                    t.undo(&Binding { flow: Flow { vm_port: b.flow.vm_port + 1000, ..b.flow }, ..*b }, now);
                }
            }
            _ if step % 10 == 0 => {
                // A restart, in any order: all that sessions use is there again, and nothing lingers.
                t = Translator::new(r.random());
                t.configure(&s);
                let mut order: Vec<&Binding> = sessions.iter().collect();
                (0..order.len()).for_each(|i| order.swap(i, (i * 7919 + 13) % sessions.len()));
                assert!(order.iter().all(|b| t.restore(b)));
                twin.mappings.retain(|_, m| m.sessions > 0);
                twin.mappings.values_mut().for_each(|m| (m.until, m.listed) = (0, false));
                twin.looks.clear();
                if let Some(b) = sessions.first() {
                    let thief = Flow { vm_addr: vm(77).into(), ..b.flow };
                    let other = Flow { vm_port: 60_000, ..b.flow };
                    assert!(!t.restore(&Binding { flow: thief, ..*b }) && !t.restore(&Binding { flow: other, ..*b }));
                    let elsewhere = PublicEndpoint { port: b.public.port ^ 1, ..b.public };
                    assert!(!t.restore(&Binding { public: elsewhere, ..*b }), "a port of a VM has one mapping");
                }
            }
            _ => {}
        }
        if step % 10 == 9 {
            twin.check(&t, &s);
        }
    }
    // All of it comes back.
    sessions.iter().for_each(|b| t.release(b, now));
    for turn in 1..=8 {
        t.expire(now + turn * LINGER_NS / 4);
    }
    assert_eq!(
        (t.mappings(), t.pool_use()[0].held, t.tenant_use().iter().map(|u| u.ports).sum::<u64>()),
        ((0, 0), 0, 0)
    );
}

#[test]
fn a_history_of_single_chunks_is_told_as_it_was() {
    a_history(crate::tests::seeded("figures").0, 64);
}

#[test]
fn a_history_of_blocks_is_told_as_it_was() {
    a_history(crate::tests::seeded("figures of blocks").0 ^ 1, 256);
}

/// Ports that are reused: a connection each, so many a VM and a VPC, a port once a destination; and back again.
#[test]
fn reused_ports_are_counted_by_connection() {
    let mut r = ChaCha8Rng::seed_from_u64(crate::tests::seeded("reuse").0);
    let tight = PoolSpec { ports: (2000, 2005), reuse: true, ..pool(0, 2) };
    let limited = |vni| SnatSpec { ports_max: 40, vm_ports_max: 9, ..snat(vni) };
    let s = spec(vec![tight], vec![limited(Vni(1)), limited(Vni(2))]);
    let mut t = Translator::new(r.random());
    t.configure(&s);
    let mut sessions: Vec<Binding> = Vec::new();
    let mut refused: BTreeMap<(u32, &str), u64> = BTreeMap::new();
    let destination = |b: &Binding| (b.public, b.flow.proto, b.flow.remote, b.flow.remote_port);
    for step in 0..3000 {
        if r.random_range(0..100) < 60 {
            let proto = [1, 6, 17][r.random_range(0..3)];
            let f = Flow {
                proto,
                remote_port: r.random_range(1..3),
                ..flow(Vni(r.random_range(1..3)), r.random_range(1..8), r.random_range(1..9))
            };
            let of = |which: &dyn Fn(&Flow) -> bool| sessions.iter().filter(|b| which(&b.flow)).count();
            let (mine, all) = (of(&|x| (x.vni, x.vm_addr) == (f.vni, f.vm_addr)), of(&|x| x.vni == f.vni));
            let same = of(&|x| (x.proto, x.remote, x.remote_port) == (f.proto, f.remote, f.remote_port));
            match t.outbound(&f, 0) {
                Ok(public) => {
                    let b = Binding { flow: f, public };
                    assert!((2000..=2005).contains(&public.port) && mine < 9 && all < 40 && same < 12);
                    assert!(sessions.iter().all(|x| destination(x) != destination(&b)), "{b:?}");
                    sessions.push(b);
                }
                Err(why) => {
                    let want = if mine >= 9 {
                        "vm"
                    } else if all >= 40 {
                        "tenant"
                    } else {
                        "dry"
                    };
                    let have = [(Refusal::VmPorts, "vm"), (Refusal::TenantPorts, "tenant"), (Refusal::PoolDry, "dry")];
                    assert!(have.contains(&(why, want)), "{why:?} for {want}");
                    assert!(want != "dry" || same == 12, "{same} of 12");
                    *refused.entry((f.vni.0, want)).or_default() += 1;
                }
            }
        } else if !sessions.is_empty() {
            let b = sessions.swap_remove(r.random_range(0..sessions.len()));
            assert!(t.holds(&b));
            match step % 2 {
                0 => t.release(&b, 0),
                _ => t.undo(&b, 0),
            }
            assert!(!t.holds(&b));
            t.release(&b, 0);
        }
        if step % 500 == 250 {
            t = Translator::new(r.random());
            t.configure(&s);
            refused.clear();
            assert!(sessions.iter().all(|b| t.restore(b) && t.restore(b)), "twice is once");
            if let Some(b) = sessions.first() {
                assert!(!t.restore(&Binding { flow: Flow { vm_addr: vm(99).into(), ..b.flow }, ..*b }));
            }
        }
        let pool = &t.pool_use()[0];
        assert_eq!((pool.reused, pool.held, pool.reuse, pool.addresses), (sessions.len() as u64, 0, true, 2));
        for u in t.tenant_use() {
            let of = |what| refused.get(&(u.vni.0, what)).copied().unwrap_or(0);
            assert_eq!((u.refused_vm, u.refused_tenant, u.refused_dry), (of("vm"), of("tenant"), of("dry")));
            let mine = sessions.iter().filter(|b| b.flow.vni == u.vni).count() as u64;
            assert_eq!((u.reused, u.ports, u.ports_max), (mine, 0, 40));
        }
        assert_eq!(t.mappings(), (0, sessions.len() as u64));
    }
    let users: BTreeSet<u16> = sessions.iter().map(|b| b.public.port).collect();
    assert!(users.len() > 3, "{users:?}");
}

/// To the unit of time: a mapping goes with the first look at which its time is over, and looks are a quarter of it apart.
#[test]
fn a_mapping_lingers_as_long_as_is_promised() {
    let s = spec(vec![pool(0, 1)], vec![snat(Vni(7))]);
    for (wait, left) in [(LINGER_NS - 2 * (1 << 24), 1), (LINGER_NS + (1 << 24), 0)] {
        for begin in [0u64, 123_456_789, 1 << 40] {
            let t = Translator::new(2);
            t.configure(&s);
            let b = Binding { flow: flow(Vni(7), 1, 1), public: t.outbound(&flow(Vni(7), 1, 1), begin).unwrap() };
            t.release(&b, begin);
            t.expire(begin + LINGER_NS / 4 - 1);
            assert_eq!(t.mappings(), (1, 0));
            t.expire(begin + wait);
            assert_eq!((t.mappings().0, t.pool_use()[0].held), (left, 64 * left), "{wait} after {begin}");
            // The next look is a quarter later, not before.
            if left > 0 {
                t.expire(begin + wait + LINGER_NS / 4 - 1);
                assert_eq!(t.mappings().0, 1);
                t.expire(begin + wait + LINGER_NS / 4);
                assert_eq!(t.mappings().0, 0);
            }
        }
    }
    // A connection from the same port meanwhile has the same endpoint, and the time begins again.
    let t = Translator::new(2);
    t.configure(&s);
    let public = t.outbound(&flow(Vni(7), 1, 1), 0).unwrap();
    let b = Binding { flow: flow(Vni(7), 1, 1), public };
    t.release(&b, 0);
    assert_eq!(t.outbound(&b.flow, LINGER_NS / 2), Ok(public));
    t.expire(2 * LINGER_NS);
    assert_eq!(t.mappings(), (1, 1));
    t.release(&b, 2 * LINGER_NS);
    t.expire(2 * LINGER_NS + LINGER_NS / 2);
    assert_eq!(t.mappings(), (1, 0));
    t.expire(4 * LINGER_NS);
    assert_eq!(t.mappings(), (0, 0));
}
