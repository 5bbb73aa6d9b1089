// SPDX-License-Identifier: Apache-2.0
//! What each tenant and each VM has, and may have.
//!
//! A tenant also keeps a queue of its half-open sessions, oldest first, so that one can give way to a new connection. The queue
//! holds hints: an entry whose session is no longer half-open (or another one by now) is passed over. It is bounded, and
//! swept when more than half of it is stale; when it was full, the sweep of the timers enters again whom it finds.

use crate::limits::{Life, Lives};
use crate::{OwnTimeouts, SessionInfo, TenantLimits, TenantStats};
use abi::{LineNo, Mix, Vni};
use parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard};
use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasher;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::*};
use std::sync::OnceLock;

const SHARDS: usize = 256;
/// Entries of a queue at most. A tenant with more half-open sessions has these, which were the oldest when they were entered.
const QUEUE_MAX: usize = 1024;
/// Stale entries that are left alone.
const QUEUE_SLACK: usize = 256;

/// A VM: VNI and address, IPv4 in the lower 32 bits with bit 32 set (no IPv6 address of a VM looks so).
pub(crate) type Vm = (Vni, u128);

pub(crate) fn vm_of(vni: Vni, addr: IpAddr) -> Vm {
    match addr {
        IpAddr::V4(a) => (vni, 1 << 32 | u128::from(u32::from(a))),
        IpAddr::V6(a) => (vni, a.into()),
    }
}

/// Which limit was met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limit {
    Tenant,
    Vm,
    HalfOpen,
    Node,
}

/// One tenant. What every session asks for, when it begins and when it ends, lies in the first line.
#[repr(C, align(64))]
pub(crate) struct Tenant {
    pub(crate) vni: Vni,
    limits: [AtomicU32; 3],
    pub(crate) sessions: AtomicU32,
    pub(crate) half_open: AtomicU32,
    /// Sessions that the fast path serves.
    pub(crate) fast: AtomicU32,
    /// Its limits are its own, not those by default.
    own_limits: AtomicBool,
    /// Timeouts of its own, once it had any.
    own: OnceLock<Box<Lives>>,
    pub(crate) created: AtomicU64,
    pub(crate) evicted: AtomicU64,
    refused: [AtomicU64; 4],
    queue: Mutex<VecDeque<(LineNo, u32)>>,
}

const _: () = assert!(std::mem::offset_of!(Tenant, refused) == 64);

impl Tenant {
    fn new(vni: Vni, limits: &TenantLimits) -> Tenant {
        let limits = [limits.sessions, limits.vm_sessions, limits.half_open].map(AtomicU32::new);
        Tenant {
            vni,
            limits,
            sessions: AtomicU32::new(0),
            half_open: AtomicU32::new(0),
            fast: AtomicU32::new(0),
            own_limits: AtomicBool::new(false),
            own: OnceLock::new(),
            created: AtomicU64::new(0),
            evicted: AtomicU64::new(0),
            refused: Default::default(),
            queue: Mutex::default(),
        }
    }

    /// A timeout of its own, ns.
    pub(crate) fn own(&self, life: Life) -> Option<u64> {
        self.own.get().map(|own| own.ns(life)).filter(|ns| *ns > 0)
    }

    fn set_own(&self, own: &OwnTimeouts) {
        if self.own.get().is_some() || own.iter().any(|s| *s > 0) {
            self.own.get_or_init(Default::default).set_own(own);
        }
    }

    pub(crate) fn limits(&self) -> TenantLimits {
        let [sessions, vm_sessions, half_open] = [0, 1, 2].map(|i| self.limits[i].load(Relaxed));
        TenantLimits { sessions, vm_sessions, half_open }
    }

    fn set(&self, limits: &TenantLimits) {
        self.limits[0].store(limits.sessions, Relaxed);
        self.limits[1].store(limits.vm_sessions, Relaxed);
        self.limits[2].store(limits.half_open, Relaxed);
    }

    /// Whether it uses more than four fifths of what it may.
    pub(crate) fn pressed(&self) -> bool {
        u64::from(self.sessions.load(Relaxed)) * 5 > u64::from(self.limits[0].load(Relaxed)) * 4
    }

    pub(crate) fn refuse(&self, limit: Limit) {
        self.refused[limit as usize].fetch_add(1, Relaxed);
    }

    pub(crate) fn queue(&self) -> MutexGuard<'_, VecDeque<(LineNo, u32)>> {
        self.queue.lock()
    }

    /// Enters a half-open session. `lives` tells whether an entry is still one; asked for when many may not be.
    pub(crate) fn enqueue(&self, at: LineNo, start: u32, lives: impl Fn(LineNo, u32) -> bool) {
        let mut queue = self.queue();
        let want = self.half_open.load(Relaxed) as usize;
        if queue.len() >= 2 * want + QUEUE_SLACK {
            queue.retain(|(at, start)| lives(*at, *start));
        }
        if queue.len() < QUEUE_MAX {
            queue.push_back((at, start));
        }
    }

    /// Whether the queue has room, so that whom it left out may be entered.
    pub(crate) fn queue_is_low(&self) -> bool {
        let queue = self.queue().len();
        queue == 0 || (queue < QUEUE_MAX / 2 && queue < self.half_open.load(Relaxed) as usize / 2)
    }

    fn stats(&self) -> TenantStats {
        let refused = |limit: Limit| self.refused[limit as usize].load(Relaxed);
        TenantStats {
            vni: self.vni,
            sessions: self.sessions.load(Relaxed),
            half_open: self.half_open.load(Relaxed),
            fast: self.fast.load(Relaxed),
            created: self.created.load(Relaxed),
            evicted: self.evicted.load(Relaxed),
            refused_tenant: refused(Limit::Tenant),
            refused_vm: refused(Limit::Vm),
            refused_half_open: refused(Limit::HalfOpen),
            refused_full: refused(Limit::Node),
            pressure: self.pressed(),
            limits: self.limits(),
        }
    }
}

/// Tenants by VNI: 2^16 chunks of 2^8, each made when it is first asked for. No lock, no hash, and a tenant stays where it is.
struct Tenants {
    chunks: Box<[OnceLock<Box<[OnceLock<Box<Tenant>>]>>]>,
}

const CHUNK: usize = 256;

impl Tenants {
    fn new() -> Tenants {
        Tenants { chunks: (0..(1 << 24) / CHUNK).map(|_| OnceLock::new()).collect() }
    }

    fn get(&self, vni: Vni) -> Option<&Tenant> {
        let vni = vni.0 as usize & 0xff_ffff;
        self.chunks[vni / CHUNK].get()?[vni % CHUNK].get().map(|t| &**t)
    }

    fn get_or_make(&self, vni: Vni, default: &TenantLimits) -> &Tenant {
        let at = vni.0 as usize & 0xff_ffff;
        let chunk = self.chunks[at / CHUNK].get_or_init(|| (0..CHUNK).map(|_| OnceLock::new()).collect());
        chunk[at % CHUNK].get_or_init(|| Box::new(Tenant::new(vni, default)))
    }

    fn all(&self) -> impl Iterator<Item = &Tenant> {
        self.chunks.iter().filter_map(|c| c.get()).flat_map(|c| c.iter().filter_map(|t| t.get().map(|t| &**t)))
    }
}

/// Sessions of VMs with IPv4 addresses: (VNI << 32 | address, sessions) in an array that is probed line by line. One whose
/// sessions have ended stays until the array is made anew.
#[derive(Default)]
struct Vms4 {
    entries: Vec<(u64, u32)>,
    used: usize,
}

impl Vms4 {
    /// Where the key is, or would be.
    fn slot(&self, key: u64, hash: u64) -> Option<usize> {
        let mask = self.entries.len().wrapping_sub(1);
        let mut at = hash as usize & mask;
        for _ in 0..self.entries.len() {
            let (have, _) = self.entries[at];
            if have == key + 1 || have == 0 {
                return Some(at);
            }
            at = (at + 1) & mask;
        }
        None
    }

    fn get(&self, key: u64, hash: u64) -> u32 {
        self.slot(key, hash).map_or(0, |at| self.entries[at].1)
    }

    /// The number of a VM's sessions; entered if it is not there.
    fn number(&mut self, key: u64, hash: u64, mix: &Mix) -> &mut u32 {
        if (self.used + 1) * 8 > self.entries.len() * 5 {
            let old = std::mem::take(&mut self.entries);
            let live = old.iter().filter(|(_, n)| *n > 0).count();
            self.entries = vec![(0, 0); (2 * (live + 8)).next_power_of_two()];
            self.used = live;
            for entry in old.into_iter().filter(|(_, n)| *n > 0) {
                if let Some(at) = self.slot(entry.0 - 1, mix.hash_one(entry.0 - 1)) {
                    self.entries[at] = entry;
                }
            }
        }
        // There is room: the array is less than full.
        let at = self.slot(key, hash).unwrap_or(0);
        if self.entries[at].0 == 0 {
            self.entries[at].0 = key + 1;
            self.used += 1;
        }
        &mut self.entries[at].1
    }
}

#[derive(Default)]
struct Vms {
    v4: Vms4,
    v6: HashMap<Vm, u32>,
}

/// A part of the VMs; where the array of its IPv4 part begins and how long it is, as hints for prefetching.
#[derive(Default)]
#[repr(align(64))]
struct Shard {
    vms: Mutex<Vms>,
    hint: AtomicUsize,
    mask: AtomicUsize,
}

/// All tenants and VMs.
pub(crate) struct Quotas {
    tenants: Tenants,
    shards: Vec<Shard>,
    mix: Mix,
    default: RwLock<TenantLimits>,
}

fn key4(vm: &Vm) -> Option<u64> {
    (vm.1 >> 32 == 1).then(|| u64::from(vm.0) << 32 | u64::from(vm.1 as u32))
}

fn add(n: &AtomicU32, limit: u32) -> bool {
    let fits = n.fetch_add(1, Relaxed) < limit;
    if !fits {
        n.fetch_sub(1, Relaxed);
    }
    fits
}

impl Quotas {
    pub(crate) fn new(salt: u64, default: TenantLimits) -> Quotas {
        let shards = (0..SHARDS).map(|_| Shard::default()).collect();
        Quotas { tenants: Tenants::new(), shards, mix: Mix(salt), default: RwLock::new(default) }
    }

    /// The tenant; made when it is first asked for.
    pub(crate) fn tenant(&self, vni: Vni) -> &Tenant {
        match self.tenants.get(vni) {
            Some(tenant) => tenant,
            None => self.tenants.get_or_make(vni, &self.default()),
        }
    }

    /// Held while a tenant is made, so that `set_default` misses none.
    fn default(&self) -> RwLockReadGuard<'_, TenantLimits> {
        self.default.read()
    }

    /// Limits of tenants that have none of their own.
    pub(crate) fn set_default(&self, limits: TenantLimits) {
        let mut default = self.default.write();
        *default = limits;
        self.tenants.all().filter(|t| !t.own_limits.load(Relaxed)).for_each(|t| t.set(&limits));
    }

    /// The tenant, if it was ever asked for.
    pub(crate) fn known(&self, vni: Vni) -> Option<&Tenant> {
        self.tenants.get(vni)
    }

    pub(crate) fn set(&self, vni: Vni, limits: Option<TenantLimits>) {
        let (tenant, default) = (self.tenant(vni), self.default());
        tenant.own_limits.store(limits.is_some(), Relaxed);
        tenant.set(&limits.unwrap_or(*default));
    }

    pub(crate) fn set_own(&self, vni: Vni, own: &OwnTimeouts) {
        self.tenant(vni).set_own(own);
    }

    fn hash(&self, vm: &Vm) -> u64 {
        key4(vm).map_or_else(|| self.mix.hash_one(vm), |key| self.mix.hash_one(key))
    }

    /// Asks for what `reserve` will need.
    pub(crate) fn prefetch(&self, vm: &Vm) {
        self.prefetch_vm(vm);
        if let Some(tenant) = self.known(vm.0) {
            crate::prefetch_address(tenant as *const Tenant as usize);
            crate::prefetch_address(tenant as *const Tenant as usize + 64);
        }
    }

    /// Asks for what `release` will need of a VM.
    pub(crate) fn prefetch_vm(&self, vm: &Vm) {
        let hash = self.hash(vm);
        let shard = &self.shards[(hash >> 56) as usize % SHARDS];
        let at = shard.hint.load(Relaxed) + (hash as usize & shard.mask.load(Relaxed)) * size_of::<(u64, u32)>();
        crate::prefetch_address(at);
    }

    /// Asks for what ends and timeouts need of a tenant.
    pub(crate) fn prefetch_tenant(&self, vni: Vni) {
        if let Some(tenant) = self.known(vni) {
            crate::prefetch_address(tenant as *const Tenant as usize);
        }
    }

    /// Lets `with` see, and change, the number of a VM's sessions.
    fn with_vm<T>(&self, vm: &Vm, with: impl FnOnce(&mut u32) -> T) -> T {
        let hash = self.hash(vm);
        let shard = &self.shards[(hash >> 56) as usize % SHARDS];
        let mut vms = shard.vms.lock();
        let Some(key) = key4(vm) else {
            let n = vms.v6.entry(*vm).or_insert(0);
            let result = with(n);
            if *n == 0 {
                vms.v6.remove(vm);
            }
            return result;
        };
        let result = with(vms.v4.number(key, hash, &self.mix));
        let (at, mask) = (vms.v4.entries.as_ptr() as usize, vms.v4.entries.len().wrapping_sub(1));
        if shard.hint.load(Relaxed) != at {
            shard.hint.store(at, Relaxed);
            shard.mask.store(mask, Relaxed);
        }
        result
    }

    /// Takes one half-open session out of what tenant and VM may have.
    pub(crate) fn reserve(&self, tenant: &Tenant, vm: &Vm) -> Result<(), Limit> {
        let limits = tenant.limits();
        if !add(&tenant.sessions, limits.sessions) {
            return Err(Limit::Tenant);
        }
        let failed = if !add(&tenant.half_open, limits.half_open) {
            Limit::HalfOpen
        } else {
            let fits = self.with_vm(vm, |n| {
                let fits = *n < limits.vm_sessions;
                *n += u32::from(fits);
                fits
            });
            if fits {
                return Ok(());
            }
            tenant.half_open.fetch_sub(1, Relaxed);
            Limit::Vm
        };
        tenant.sessions.fetch_sub(1, Relaxed);
        Err(failed)
    }

    /// Enters a session that was found in memory, whatever the limits are.
    pub(crate) fn adopt(&self, tenant: &Tenant, vm: &Vm, half_open: bool, fast: bool) {
        tenant.sessions.fetch_add(1, Relaxed);
        tenant.half_open.fetch_add(half_open.into(), Relaxed);
        tenant.fast.fetch_add(fast.into(), Relaxed);
        self.with_vm(vm, |n| *n += 1);
    }

    /// Gives back what a session had.
    pub(crate) fn release(&self, tenant: &Tenant, vm: &Vm, half_open: bool) {
        tenant.sessions.fetch_sub(1, Relaxed);
        if half_open {
            tenant.half_open.fetch_sub(1, Relaxed);
        }
        self.with_vm(vm, |n| *n = n.saturating_sub(1));
    }

    pub(crate) fn release_ended(&self, info: &SessionInfo, fast: bool) -> &Tenant {
        let vni = info.inner.vni();
        let tenant = self.tenant(vni);
        if fast {
            tenant.fast.fetch_sub(1, Relaxed);
        }
        self.release(tenant, &vm_of(vni, info.inner.vm()), info.state.half_open());
        tenant
    }

    /// Whether ending one session, or two, could make room below this limit: not if it was lowered far below what is there.
    pub(crate) fn is_near(&self, tenant: &Tenant, vm: &Vm, limit: Limit) -> bool {
        let limits = tenant.limits();
        let (n, most) = match limit {
            Limit::Tenant => (tenant.sessions.load(Relaxed), limits.sessions),
            Limit::Vm => (self.of_vm(vm), limits.vm_sessions),
            Limit::HalfOpen => (tenant.half_open.load(Relaxed), limits.half_open),
            Limit::Node => return true,
        };
        most > 0 && n <= most.saturating_add(1)
    }

    /// Sessions of a VM.
    pub(crate) fn of_vm(&self, vm: &Vm) -> u32 {
        let hash = self.hash(vm);
        let vms = self.shards[(hash >> 56) as usize % SHARDS].vms.lock();
        key4(vm).map_or_else(|| vms.v6.get(vm).copied().unwrap_or(0), |key| vms.v4.get(key, hash))
    }

    pub(crate) fn stats(&self) -> Vec<TenantStats> {
        let mut all: Vec<_> = self.tenants.all().map(Tenant::stats).collect();
        all.sort_by_key(|t| t.vni);
        all
    }

    pub(crate) fn stats_of(&self, vni: Vni) -> Option<TenantStats> {
        self.known(vni).map(Tenant::stats)
    }
}

#[cfg(test)]
impl Quotas {
    /// Entries that are kept for VMs, by family.
    pub(crate) fn kept_for_tests(&self) -> (usize, usize) {
        let each = |f: fn(&Vms) -> usize| self.shards.iter().map(|s| f(&s.vms.lock())).sum();
        (each(|v| v.v4.used), each(|v| v.v6.len()))
    }

    /// Where the entry of a VM with an IPv4 address lies.
    pub(crate) fn place_for_tests(&self, vm: &Vm) -> Option<usize> {
        let (key, hash) = (key4(vm)?, self.hash(vm));
        let vms = self.shards.iter().map(|s| s.vms.lock()).find(|v| v.v4.entries.iter().any(|e| e.0 == key + 1))?;
        let at = vms.v4.entries.iter().position(|e| e.0 == key + 1)?;
        assert_eq!(vms.v4.slot(key, hash), Some(at));
        Some(std::ptr::from_ref(&vms.v4.entries[at]) as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::RngExt;

    /// A tenant has a table of its own timeouts once it had one, and returns to the node's with zeroes.
    #[test]
    fn own_timeouts_are_made_when_there_are_any_and_go_back_to_none() {
        let tenant = Tenant::new(Vni(7), &TenantLimits::default());
        tenant.set_own(&[0; 10]);
        assert!(tenant.own.get().is_none());
        tenant.set_own(&[0, 0, 0, 0, 0, 0, 5, 0, 0, 0]);
        assert_eq!((tenant.own(Life::Udp), tenant.own(Life::Icmp)), (Some(5_000_000_000), None));
        tenant.set_own(&[0; 10]);
        assert_eq!((tenant.own(Life::Udp), tenant.own.get().is_some()), (None, true));
    }

    #[test]
    fn hashes_of_keys_differ_by_every_part_and_by_the_salt() {
        let hashes = |salt| {
            let mix = Mix(salt);
            let vms = [(1u32, 5u128), (2, 5), (1, 6), (1, 5 << 64), (1, 1 << 32 | 5)].map(|vm| mix.hash_one(vm));
            let numbers = [7u32, 8, 1 << 31].map(|n| mix.hash_one(n));
            let words = [7u64 << 32, 8 << 32].map(|n| mix.hash_one(n));
            let texts = ["a", "b", "ab", "ba"].map(|text| mix.hash_one(text));
            [&vms[..], &numbers, &words, &texts].concat()
        };
        let all: Vec<u64> = [1, 2].into_iter().flat_map(hashes).collect();
        assert_eq!(all.iter().collect::<std::collections::HashSet<_>>().len(), all.len());
    }

    #[test]
    fn numbers_of_vms_are_kept_like_a_map_keeps_them() {
        let (_, mut rng) = crate::tests::seeded("vms");
        let quotas = Quotas::new(rng.random(), TenantLimits::default());
        let mut twin: HashMap<Vm, u32> = HashMap::new();
        for _ in 0..200_000 {
            let addr: IpAddr = match rng.random_range(0..10) {
                0 => IpAddr::V6(u128::from(rng.random_range(0..50u32)).into()),
                _ => IpAddr::V4(rng.random_range(0..3000u32).into()),
            };
            let vm = vm_of(Vni(rng.random_range(1..4)), addr);
            let tenant = quotas.tenant(vm.0);
            let n = twin.entry(vm).or_insert(0);
            if rng.random() {
                quotas.reserve(tenant, &vm).unwrap();
                *n += 1;
            } else if *n > 0 {
                quotas.release(tenant, &vm, true);
                *n -= 1;
            }
            quotas.prefetch(&vm);
            assert_eq!(quotas.of_vm(&vm), *n);
        }
        assert!(twin.iter().all(|(vm, n)| quotas.of_vm(vm) == *n));
        let entries: usize = quotas.shards.iter().map(|s| s.vms.lock().v4.entries.len()).sum();
        assert!(entries < 9000 * 8, "{entries}");
        assert_eq!(quotas.stats().iter().map(|t| t.sessions).sum::<u32>(), twin.values().sum::<u32>());
    }
}
