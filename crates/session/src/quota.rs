// SPDX-License-Identifier: Apache-2.0
//! What each tenant and each VM has, and may have.
//!
//! A tenant also keeps a queue of its half-open sessions, oldest first, so that one can give way to a new connection. The queue
//! holds hints: an entry whose session is no longer half-open (or another one by now) is passed over. It is bounded, and
//! swept when more than half of it is stale; when it was full, the sweep of the timers enters again whom it finds.

use crate::{SessionInfo, TenantLimits, TenantStats};
use abi::hash3;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, Hasher};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

const SHARDS: usize = 256;
/// Entries of a queue at most.
const QUEUE_MAX: usize = 1 << 16;
/// Stale entries that are left alone.
const QUEUE_SLACK: usize = 1024;

/// A salted hash for maps whose keys are a few numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mix(pub(crate) u64);

/// Its state.
pub(crate) struct MixHasher(u64, u64);

impl BuildHasher for Mix {
    type Hasher = MixHasher;
    fn build_hasher(&self) -> MixHasher {
        MixHasher(self.0, self.0)
    }
}

impl Hasher for MixHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|b| self.write_u64((*b).into()));
    }
    fn write_u32(&mut self, n: u32) {
        self.write_u64(n.into());
    }
    fn write_u64(&mut self, n: u64) {
        self.0 = abi::hash1(n ^ self.0, self.1);
    }
    fn write_u128(&mut self, n: u128) {
        self.0 = hash3(self.0, (n >> 64) as u64, n as u64, self.1);
    }
}

/// A VM: VNI and address, IPv4 in the lower 32 bits with bit 32 set (no IPv6 address of a VM looks so).
pub(crate) type Vm = (u32, u128);

pub(crate) fn vm_of(vni: u32, addr: IpAddr) -> Vm {
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

/// One tenant.
pub(crate) struct Tenant {
    pub(crate) vni: u32,
    limits: [AtomicU32; 3],
    pub(crate) sessions: AtomicU32,
    pub(crate) half_open: AtomicU32,
    pub(crate) created: AtomicU64,
    pub(crate) evicted: AtomicU64,
    refused: [AtomicU64; 4],
    queue: Mutex<VecDeque<(u32, u32)>>,
}

impl Tenant {
    fn new(vni: u32, limits: &TenantLimits) -> Tenant {
        let limits = [limits.sessions, limits.vm_sessions, limits.half_open].map(AtomicU32::new);
        Tenant {
            vni,
            limits,
            sessions: AtomicU32::new(0),
            half_open: AtomicU32::new(0),
            created: AtomicU64::new(0),
            evicted: AtomicU64::new(0),
            refused: Default::default(),
            queue: Mutex::default(),
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

    pub(crate) fn queue(&self) -> MutexGuard<'_, VecDeque<(u32, u32)>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters a half-open session. `lives` tells whether an entry is still one; asked for when many may not be.
    pub(crate) fn enqueue(&self, at: u32, start: u32, lives: impl Fn(u32, u32) -> bool) {
        let mut queue = self.queue();
        let want = self.half_open.load(Relaxed) as usize;
        if queue.len() >= (2 * want).min(QUEUE_MAX) + QUEUE_SLACK {
            queue.retain(|(at, start)| lives(*at, *start));
            queue.shrink_to(want.min(QUEUE_MAX) + QUEUE_SLACK);
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
            created: self.created.load(Relaxed),
            evicted: self.evicted.load(Relaxed),
            refused_tenant: refused(Limit::Tenant),
            refused_vm: refused(Limit::Vm),
            refused_half_open: refused(Limit::HalfOpen),
            refused_full: refused(Limit::Node),
            pressure: self.pressed(),
        }
    }
}

/// All tenants and VMs.
pub(crate) struct Quotas {
    tenants: Vec<RwLock<HashMap<u32, Arc<Tenant>, Mix>>>,
    vms: Vec<Mutex<HashMap<Vm, u32, Mix>>>,
    mix: Mix,
    default: TenantLimits,
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
        let mix = Mix(salt);
        Quotas {
            tenants: (0..SHARDS).map(|_| RwLock::new(HashMap::with_hasher(mix))).collect(),
            vms: (0..SHARDS).map(|_| Mutex::new(HashMap::with_hasher(mix))).collect(),
            mix,
            default,
        }
    }

    /// The tenant; made when it is first asked for.
    pub(crate) fn tenant(&self, vni: u32) -> Arc<Tenant> {
        let shard = &self.tenants[vni as usize % SHARDS];
        if let Some(tenant) = shard.read().unwrap_or_else(PoisonError::into_inner).get(&vni) {
            return tenant.clone();
        }
        let mut shard = shard.write().unwrap_or_else(PoisonError::into_inner);
        shard.entry(vni).or_insert_with(|| Arc::new(Tenant::new(vni, &self.default))).clone()
    }

    /// The tenant, if it was ever asked for.
    pub(crate) fn known(&self, vni: u32) -> Option<Arc<Tenant>> {
        self.tenants[vni as usize % SHARDS].read().unwrap_or_else(PoisonError::into_inner).get(&vni).cloned()
    }

    pub(crate) fn set(&self, vni: u32, limits: Option<TenantLimits>) {
        self.tenant(vni).set(&limits.unwrap_or(self.default));
    }

    fn vms(&self, vm: &Vm) -> MutexGuard<'_, HashMap<Vm, u32, Mix>> {
        // Not the bits by which the map itself chooses.
        let i = (self.mix.hash_one(vm) >> 24) as usize % SHARDS;
        self.vms[i].lock().unwrap_or_else(PoisonError::into_inner)
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
            let mut vms = self.vms(vm);
            let n = vms.entry(*vm).or_insert(0);
            if *n < limits.vm_sessions {
                *n += 1;
                return Ok(());
            }
            if *n == 0 {
                vms.remove(vm);
            }
            tenant.half_open.fetch_sub(1, Relaxed);
            Limit::Vm
        };
        tenant.sessions.fetch_sub(1, Relaxed);
        Err(failed)
    }

    /// Enters a session that was found in memory, whatever the limits are.
    pub(crate) fn adopt(&self, tenant: &Tenant, vm: &Vm, half_open: bool) {
        tenant.sessions.fetch_add(1, Relaxed);
        tenant.half_open.fetch_add(half_open.into(), Relaxed);
        *self.vms(vm).entry(*vm).or_insert(0) += 1;
    }

    /// Gives back what a session had.
    pub(crate) fn release(&self, tenant: &Tenant, vm: &Vm, half_open: bool) {
        tenant.sessions.fetch_sub(1, Relaxed);
        tenant.half_open.fetch_sub(half_open.into(), Relaxed);
        let mut vms = self.vms(vm);
        if let Some(n) = vms.get_mut(vm) {
            *n -= 1;
            if *n == 0 {
                vms.remove(vm);
            }
        }
    }

    pub(crate) fn release_ended(&self, info: &SessionInfo) -> Arc<Tenant> {
        let vni = info.inner.vni();
        let tenant = self.tenant(vni);
        self.release(&tenant, &vm_of(vni, info.inner.vm()), info.state.half_open());
        tenant
    }

    /// Sessions of a VM.
    pub(crate) fn of_vm(&self, vm: &Vm) -> u32 {
        self.vms(vm).get(vm).copied().unwrap_or(0)
    }

    pub(crate) fn stats(&self) -> Vec<TenantStats> {
        let mut all: Vec<_> = self
            .tenants
            .iter()
            .flat_map(|s| {
                s.read().unwrap_or_else(PoisonError::into_inner).values().map(|t| t.stats()).collect::<Vec<_>>()
            })
            .collect();
        all.sort_by_key(|t| t.vni);
        all
    }

    pub(crate) fn stats_of(&self, vni: u32) -> Option<TenantStats> {
        self.known(vni).map(|t| t.stats())
    }
}
