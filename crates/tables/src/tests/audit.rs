// SPDX-License-Identifier: Apache-2.0
//! Random histories: all of table memory says what the model says, what a commit reports is what it did, and a second writer that takes
//! the memory over remembers what the first one does, at any moment.

use super::model::*;
use crate::testing::seeded;
use crate::writer::{audit, Expected};
use crate::*;
use abi::*;
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

/// A memory with the same content.
pub(super) fn copy(memory: &dyn Memory) -> Arc<dyn Memory> {
    use memory::{Lines, RootRef};
    let twin = HeapMemory::new().unwrap();
    twin.grow(memory.segments()).unwrap();
    let ((from, to), (root, to_root)) =
        ((Lines::new(memory), Lines::new(&twin)), (RootRef::new(memory), RootRef::new(&twin)));
    for line in 0..from.limit() {
        let words = from.at(LineNo(line)).snapshot();
        if words != [0; 8] {
            (0..8).for_each(|i| to.at(LineNo(line)).set(i, words[i]));
        }
    }
    (0..size_of::<Root>()).step_by(8).for_each(|at| to_root.set(at, root.get(at)));
    Arc::new(twin)
}

/// Every entry of a VPC: address to the VM's or the gateway's MAC address, NC, flags.
fn entries(model: &Model, vni: Vni) -> BTreeMap<IpAddr, (u64, Option<IpAddr>, bool)> {
    let Some(t) = model.tenants.get(&vni) else { return BTreeMap::new() };
    let gateways = t.settings.gateways.iter().map(|a| (*a, (t.settings.gateway_mac, None, false)));
    let vms = t.vms.values().flat_map(|vm| vm.addresses().map(|a| (a, (vm.mac, Some(vm.nc), vm.meter.is_some()))));
    gateways.chain(vms).collect()
}

struct History {
    w: Writer,
    memory: Arc<dyn Memory>,
    model: Model,
    expected: Expected,
    rng: ChaCha8Rng,
}

impl History {
    fn new(mut rng: ChaCha8Rng) -> History {
        let memory: Arc<dyn Memory> = Arc::new(HeapMemory::new().unwrap());
        let options = WriterOptions {
            salt: rng.random(),
            drop_lines: 16,
            worker_slots: rng.random_range(0..12),
            ..Default::default()
        };
        let w = Writer::create(memory.clone(), options).unwrap();
        History { w, memory, model: Model::default(), expected: Expected::default(), rng }
    }

    /// A random commit. What it reports is compared with what it must have done.
    fn step(&mut self) -> bool {
        let commit = some_commit(&mut self.rng, &self.model);
        let before = self.model.clone();
        let known: Vec<Vni> = before.tenants.keys().copied().filter(|vni| self.w.routes(*vni).is_some()).collect();
        let Ok(report) = self.w.commit(&commit) else { return false };
        self.model.apply(&commit);
        self.expected.all += 1;
        let mut want = CommitReport { generation: self.expected.all, graces: report.graces, ..Default::default() };
        for change in &commit.tenants {
            let vni = change.vni;
            let (old, new) = (entries(&before, vni), entries(&self.model, vni));
            want.addresses_added += new.iter().filter(|(a, e)| old.get(a) != Some(e)).count() as u32;
            want.addresses_removed += old.iter().filter(|(a, e)| new.get(a) != Some(e)).count() as u32;
            let (was, is) = (before.tenants.get(&vni), self.model.tenants.get(&vni));
            want.tenants_added += u32::from(was.is_none());
            want.tenants_removed += u32::from(is.is_none());
            if was.is_none() || is.is_none() {
                self.expected.policies.remove(&vni);
                self.expected.commits.remove(&vni);
            }
            if let Some(is) = is {
                *self.expected.commits.entry(vni).or_default() += 1;
                let replaced =
                    matches!(change.routes, RoutesChange::Replace(_)) && was.is_some() && !known.contains(&vni);
                for v6 in [false, true] {
                    let of = |t: &ModelTenant| {
                        t.routes.clone().into_iter().filter(|(p, _)| p.addr().is_ipv6() == v6).collect::<Vec<_>>()
                    };
                    want.trees += u32::from(replaced || was.map(of).unwrap_or_default() != of(is));
                }
            }
        }
        // A MAC address of the gateway counts for all its addresses, and both families of a change are reported.
        assert_eq!(report, want, "{commit:?}");
        true
    }

    fn policy(&mut self) {
        let vnis = self.w.vnis();
        if vnis.is_empty() {
            return;
        }
        let vni = vnis[self.rng.random_range(0..vnis.len())];
        let flags = self.rng.random_range(0..16u64);
        assert!(self.w.set_policy(vni, flags));
        let word = self.expected.policies.entry(vni).or_default();
        *word = flags | (*word & 0xffff_0000) + (1 << POLICY_EPOCH_SHIFT);
    }

    /// Engines count for VMs that are there, and for ids that nobody has, as they may do for one that was just removed.
    fn count(&mut self) {
        let tables = self.w.tables();
        let vnis = self.w.vnis();
        let vms: Vec<u32> = vnis.iter().flat_map(|v| self.w.dump(*v).unwrap().vms).map(|vm| vm.id.0).collect();
        for vm in vms.iter().filter(|id| *id % 3 == 0) {
            tables.count_vm(VmId(*vm), 1000 + u64::from(*vm));
            let line = tables.vm_cell_line(VmId(*vm));
            *self.expected.counted.entry((line.0, *vm as usize % 8)).or_default() +=
                1 << CELL_PACKETS_SHIFT | (1000 + u64::from(*vm));
        }
    }

    fn forget_counts(&mut self) {
        let lines = memory::Lines::new(&*self.memory);
        std::mem::take(&mut self.expected.counted).into_keys().for_each(|(line, i)| lines.at(LineNo(line)).set(i, 0));
    }

    /// Another writer takes a copy of the memory over, as it is now; it must remember what this one remembers when all is settled.
    fn taken_over(&mut self) {
        let stable = !self.w.needs_settling();
        let options = WriterOptions::default();
        let mut other = Writer::attach(copy(&*self.memory), options).unwrap();
        self.w.settle();
        let (mine, theirs) = (
            self.w.snapshot().into_taken_over(&self.model, stable),
            other.snapshot().into_taken_over(&self.model, stable),
        );
        if let Some(what) = mine.differs(&theirs) {
            panic!("{what}");
        }
        audit(&other, &self.model, &self.expected);
    }
}

/// A history goes on until a quarter of `steps` was accepted: some draw more refused commits than others.
fn history(what: &str, steps: u32, audits: u32, takes: u32) {
    let (_seed, rng) = seeded(what);
    let mut h = History::new(rng);
    let (mut step, mut accepted) = (0, 0);
    while step < steps || accepted <= steps / 4 {
        assert!(step < 10 * steps, "{accepted} of {step} commits were accepted");
        accepted += u32::from(h.step());
        if h.rng.random_bool(0.2) {
            h.policy();
        }
        if takes > 0 && step % takes == takes - 1 {
            h.count();
            h.taken_over();
            h.forget_counts();
        }
        if audits > 0 && step % audits == audits - 1 {
            h.w.settle();
            audit(&h.w, &h.model, &h.expected);
            assert_eq!((h.w.miscounts(), h.w.erase_strays()), (Vec::new(), 0));
        }
        step += 1;
    }
}

#[test]
fn memory_says_what_the_model_says() {
    history("audit", 120, 8, 0);
}

/// The same in small portions.
#[test]
fn memory_says_what_the_model_says_at_each_step() {
    history("audit 1", 24, 2, 0);
}

#[test]
fn memory_says_what_the_model_says_at_each_step_of_another_history() {
    history("audit 2", 24, 2, 0);
}

#[test]
fn a_second_writer_remembers_it_at_each_step() {
    history("takeover 1", 16, 0, 3);
}

#[test]
fn a_second_writer_remembers_what_the_first_one_does() {
    history("takeover", 100, 0, 7);
}

/// A writer that goes on with what it took over, as if it had been there from the beginning.
#[test]
fn a_second_writer_goes_on() {
    let (_seed, rng) = seeded("goes on");
    let mut h = History::new(rng);
    for step in 0..80 {
        h.step();
        if step % 20 == 19 {
            let options = WriterOptions::default();
            h.w = Writer::attach(h.memory.clone(), options).unwrap();
            audit(&h.w, &h.model, &h.expected);
            let routes = |t: &ModelTenant| t.routes.iter().map(|(p, t)| Route { prefix: *p, target: *t }).collect();
            let again = |(vni, t): (&Vni, &ModelTenant)| TenantChange {
                vni: *vni,
                settings: Some(t.settings.clone()),
                routes: RoutesChange::Replace(routes(t)),
                ..Default::default()
            };
            let commit = Commit { tenants: h.model.tenants.iter().map(again).collect(), ..Default::default() };
            h.w.commit(&commit).unwrap();
            h.expected.all += 1;
            h.expected.commits.values_mut().for_each(|n| *n += 1);
            h.w.settle();
            audit(&h.w, &h.model, &h.expected);
        }
    }
}

/// So many of everything that there are two chunks of each, of cells, records and NCs, some of which go again.
#[test]
fn memory_says_what_a_large_model_says() {
    let (_seed, rng) = seeded("large");
    let mut h = History::new(rng);
    let nc = |n: u32| match n % 100 {
        0 => IpAddr::V6((0xfd00u128 << 112 | u128::from(n)).into()),
        _ => IpAddr::V4((0xac10_0000 + n).into()),
    };
    let vm = |i: u32, n: u32| VmSpec {
        mac: 0x0200_0000_0000 | u64::from(n),
        ipv4: (!n.is_multiple_of(5)).then_some(0x0a00_0000 + n),
        ipv6: (n % 5 < 2).then_some(0x2001 << 112 | u128::from(n)),
        more: Vec::new(),
        nc: nc(1 + (i * 13 + n) % 4200),
        meter: (n == 3 && i.is_multiple_of(64)).then(|| {
            Box::new(MeterSpec {
                bytes: RateSpec { committed_rate: u64::from(i) + 1, ..Default::default() },
                ..Default::default()
            })
        }),
        shaped: n == 4 && i.is_multiple_of(32),
    };
    let tenant = |i: u32| TenantChange {
        vni: Vni(i * 4001 + 1),
        settings: Some(TenantSettings {
            gateway_mac: 0x0200_0000_0001,
            icmp: i.is_multiple_of(2),
            extra_ncs: vec![nc(1 + i)],
            ..Default::default()
        }),
        routes: RoutesChange::Replace(vec![Route {
            prefix: Prefix::new_assert(IpAddr::V4(0x0a00_0000.into()), 8),
            target: Target::Local,
        }]),
        vm_add: (0..13).map(|n| vm(i, n)).collect(),
        ..Default::default()
    };
    let all =
        Commit { nc_add: (1..=4200).map(nc).collect(), tenants: (0..4000).map(tenant).collect(), ..Default::default() };
    // Every third VPC goes, of the others a VM, with them the NCs that nobody needs any more.
    let less = |i: u32| match i % 3 {
        0 => TenantChange { vni: Vni(i * 4001 + 1), delete: true, ..Default::default() },
        _ => TenantChange {
            vni: Vni(i * 4001 + 1),
            vm_remove: vec![VmKey(0x0200_0000_0000 | u64::from(i % 13))],
            ..Default::default()
        },
    };
    for commit in [all, Commit { tenants: (0..4000).map(less).collect(), ..Default::default() }] {
        h.w.commit(&commit).unwrap();
        h.model.apply(&commit);
        h.expected.all += 1;
        for change in &commit.tenants {
            match change.delete {
                true => drop(h.expected.commits.remove(&change.vni)),
                false => *h.expected.commits.entry(change.vni).or_default() += 1,
            }
        }
        h.w.settle();
        h.count();
        audit(&h.w, &h.model, &h.expected);
        h.taken_over();
        h.forget_counts();
        let tables = h.w.tables();
        let mut ids = Vec::new();
        for (vni, t) in h.model.tenants.iter().step_by(17) {
            let tenant = tables.tenant(*vni).unwrap();
            for vm in t.vms.values() {
                let found = match (vm.ipv4, vm.ipv6) {
                    (Some(a), _) => tables.vm4(*vni, a, tenant.generation()),
                    (_, a) => tables.vm6(*vni, halves(a.unwrap()), tenant.generation()),
                };
                let e = found.unwrap();
                assert_eq!((e.mac, tables.nc(e.nc).map(|n| n.addr)), (vm.mac, Some(vm.nc)));
                ids.push((tenant.id().0, e.vm.0, e.nc.0));
            }
        }
        let beyond = |n: fn(&(u32, u32, u32)) -> u32, first: u32| ids.iter().filter(|id| n(id) >= first).count();
        assert!(beyond(|id| id.0, 1 << TENANT_CHUNK_SHIFT) > 0 && beyond(|id| id.1, 1 << VM_CHUNK_SHIFT) > 0);
        assert!(beyond(|id| id.2, 1 << NC_CHUNK_SHIFT) > 0);
    }
}
