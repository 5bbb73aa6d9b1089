// SPDX-License-Identifier: Apache-2.0
//! Translation: which public endpoint stands for which port of which VM.
//!
//! # What it keeps
//! - A (VPC, VM, protocol, port) has one public endpoint for all destinations while a session uses it and
//!   [`LINGER_NS`] longer; no two share one (unless the pool reuses ports, and then never towards one destination).
//! - All mappings of a VM lie on one public address while that has room for it.
//! - Every port in use is paid for by the VPC's and the VM's limits, and comes back: what `outbound` or `inbound` gave is
//!   given back by one `release`; an allocation that fails half-way leaves nothing taken.
//! - All of it can be built again from the sessions ([`Translator::restore`]), in any order.
//!
//! # How
//! A VM lies in one of 256 parts, each under a lock, chosen by a salted hash; two workers meet there only for the same VM or
//! by chance. It holds chunks of 64 ports; a chunk's owner is one atomic word, so parts share pools without a lock.
//! The configuration is immutable and exchanged whole. No clock: `now` comes in.
//!
//! # Cost
//! A new mapping in a chunk: two hash look-ups and one insert. 8 bytes for each 64 ports of an address in use, about 250
//! for each chunk held, about 40 for each mapping.

mod config;
mod flat;
mod hint;
mod pool;
mod reuse;
mod types;
mod usage;
mod vm;

#[cfg(test)]
mod tests;

use abi::Vni;
pub use config::{ElasticSpec, ElasticUse, Forward, NatConfig, NatSpec, Pool, PoolSpec, Share, SnatSpec};
pub use types::*;
pub use usage::{Holder, PoolUse, TenantPorts};

use abi::Mix;
use arc_swap::{ArcSwap, Guard};
use config::Tenant;
use flat::Flat;
use hint::Hints;
use parking_lot::{Mutex, MutexGuard};
use pool::{owner_word, Address, CHUNK};
use reuse::{Reused, Side};
use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::sync::Arc;
use vm::Vm;

/// How long a mapping stays when its last session has ended.
pub const LINGER_NS: u64 = 30_000_000_000;
/// Between two looks at a VM's idle mappings.
const LOOK_NS: u64 = LINGER_NS / 4;
/// A pool that was found dry is not searched again for so long.
const DRY_NS: u64 = 10_000_000;
const PARTS: usize = 256;
/// Parts that [`Translator::retract`] goes through at once.
const RETRACTED: usize = 32;

/// VMs of one part.
#[derive(Debug)]
struct Part {
    /// Each in a box, so that it stays where it is and can be asked for ahead.
    vms: Flat<u64, Box<Vm>>,
    /// VMs with idle mappings, each once, and when to look at them.
    looks: VecDeque<(u64, u64)>,
}

/// A session with what it was translated to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Binding {
    /// The VM's side.
    pub flow: Flow,
    /// The public side.
    pub public: PublicEndpoint,
}

/// All translation of a node; shared by its workers.
#[derive(Debug)]
pub struct Translator {
    config: ArcSwap<NatConfig>,
    parts: Vec<Mutex<Part>>,
    reused: Reused,
    mix: Mix,
    hints: Hints,
    /// A pool was found dry: nothing lingers until the next look.
    dry: AtomicBool,
}

impl Translator {
    /// Without any configuration it serves nobody. `salt` is random.
    pub fn new(salt: u64) -> Translator {
        let mix = Mix(salt);
        let part = || Mutex::new(Part { vms: Flat::new(mix), looks: VecDeque::new() });
        Translator {
            config: ArcSwap::from_pointee(NatConfig::default()),
            parts: (0..PARTS).map(|_| part()).collect(),
            reused: Reused::new(mix),
            mix,
            hints: Hints::new(mix),
            dry: AtomicBool::new(false),
        }
    }

    /// Puts a configuration, which crate `model` has checked, into force for all connections that begin from now on.
    /// One caller at a time.
    pub fn configure(&self, spec: &NatSpec) {
        let old = self.config.load();
        self.config.store(Arc::new(NatConfig::compile(spec, &old)));
    }

    /// The configuration in force.
    pub fn config(&self) -> Guard<Arc<NatConfig>> {
        self.config.load()
    }

    fn part_of(&self, vm: u64) -> usize {
        (abi::hash1(vm, self.mix.0) >> 56) as usize % PARTS
    }

    fn part(&self, vm: u64) -> MutexGuard<'_, Part> {
        self.parts[self.part_of(vm)].lock()
    }

    /// The public endpoint for a new connection from a VM. It is held until [`Translator::release`].
    pub fn outbound(&self, flow: &Flow, now: u64) -> Result<PublicEndpoint, Refusal> {
        let config = self.config.load();
        let tenant = config.tenants.get(&flow.vni).ok_or(Refusal::NotServed)?;
        let (vm_addr, remote) = match (flow.vm_addr, flow.remote) {
            (IpAddr::V4(a), IpAddr::V4(r)) => (u32::from(a), u32::from(r)),
            (IpAddr::V6(a), IpAddr::V6(_)) => {
                let inside = config.source6(flow.vni, a.into());
                let same = PublicEndpoint { addr: flow.vm_addr, port: flow.vm_port };
                return inside.then_some(same).ok_or(Refusal::SourceOutside);
            }
            _ => return Err(Refusal::NotServed),
        };
        let public = match config.fixed(flow.vni, flow.proto, vm_addr, flow.vm_port) {
            Some(fixed) => fixed,
            None => {
                let protocol = Protocol::from_number(flow.proto).ok_or(Refusal::ProtocolUnserved)?;
                let request = Request { config: &config, tenant, flow, protocol, vm_addr, remote, now };
                self.snat(&request).inspect_err(|why| tenant.usage.refused(*why))?
            }
        };
        Ok(PublicEndpoint { addr: IpAddr::V4(public.0.into()), port: public.1 })
    }

    /// Starts to load where a VM's ports are noted, for [`Translator::prefetch`] some packets later.
    #[inline]
    pub fn prefetch_vm(&self, vni: Vni, vm: u32) {
        self.hints.prefetch(u64::from(vni) << 32 | u64::from(vm));
    }

    /// Starts to load what [`Translator::outbound`] will need for a new connection of a VM's port.
    #[inline]
    pub fn prefetch(&self, vni: Vni, proto: u8, vm: u32, vm_port: u16) {
        if let Some(protocol) = Protocol::from_number(proto) {
            let vm = u64::from(vni) << 32 | u64::from(vm);
            self.hints.follow(self.part_of(vm), vm, vm::key(protocol, vm_port));
        }
    }

    /// Whom a packet without a session is for, if anyone. A mapping that it comes through is held as by
    /// [`Translator::outbound`].
    pub fn inbound(&self, public: PublicEndpoint, proto: u8) -> Option<Target> {
        let config = self.config.load();
        let addr = match public.addr {
            IpAddr::V4(a) => u32::from(a),
            IpAddr::V6(_) => {
                let Some(PublicKind::Ipv6 { vni }) = config.public(public.addr) else { return None };
                config.tenants.get(&vni)?.snat.as_ref().filter(|s| s.ipv6_inbound)?;
                return Some(Target { vni, vm_addr: public.addr, vm_port: public.port });
            }
        };
        if let Some(target) = config.fixed_target(addr, proto, public.port) {
            return Some(target);
        }
        let protocol = Protocol::from_number(proto)?;
        let address = config.by_addr.get(&addr)?;
        let (vni, vm) = address.owner((u32::from(public.port) / CHUNK) as u16)?;
        let snat = config.tenants.get(&vni)?.snat.as_ref()?;
        if snat.filtering == Filtering::AddressAndPortDependent || !config.snat_may_hold(vni, addr, public.port) {
            return None;
        }
        let vm_word = u64::from(vni) << 32 | u64::from(vm);
        let vm_port = self.part(vm_word).vms.get_mut(vm_word)?.behind(protocol, addr, public.port)?;
        Some(Target { vni, vm_addr: IpAddr::V4(vm.into()), vm_port })
    }

    /// Gives back what a session held, once, when it has ended.
    pub fn release(&self, b: &Binding, now: u64) {
        self.give_back(b, now, Some(now + LINGER_NS));
    }

    /// Gives back what was drawn for a session that could not be made: nothing lingers for its sake.
    pub fn undo(&self, b: &Binding, now: u64) {
        self.give_back(b, now, None);
    }

    fn give_back(&self, b: &Binding, now: u64, until: Option<u64>) {
        let (IpAddr::V4(public), Some(protocol)) = (b.public.addr, Protocol::from_number(b.flow.proto)) else { return };
        let Some((vm_word, side)) = words(b) else { return };
        let user = (b.flow.vni, vm_word as u32, b.flow.vm_port);
        let mut part = self.part(vm_word);
        let Some(vm) = part.vms.get_mut(vm_word) else { return };
        if vm.reused > 0 && self.reused.release(side, b.public.port, user) {
            vm.reused -= 1;
            vm.usage.give_back_reused();
            if let Some(address) = self.config.load().by_addr.get(&side.public) {
                address.reused().fetch_sub(1, Relaxed);
            }
        } else {
            let at_once = self.dry.load(Relaxed);
            let public = (public.into(), b.public.port);
            if vm.release(protocol, b.flow.vm_port, public, until, at_once) {
                part.looks.push_back((now + LOOK_NS, vm_word));
                return;
            }
        }
        if vm.is_empty() {
            part.vms.remove(vm_word);
        }
    }

    /// Enters what a session that was found in memory holds. False if it cannot be: the port is no longer in any pool, or two
    /// sessions claim it for different VMs; the session must go then.
    pub fn restore(&self, b: &Binding) -> bool {
        let config = self.config.load();
        if !judge(&config, b) {
            return false;
        }
        let Some((vm_word, side)) = words(b) else { return true };
        if config.fixed(b.flow.vni, b.flow.proto, vm_word as u32, b.flow.vm_port) == Some((side.public, b.public.port))
        {
            return true;
        }
        let Some(protocol) = Protocol::from_number(b.flow.proto) else { return false };
        let (Some(address), Some(tenant)) = (config.by_addr.get(&side.public), config.tenants.get(&b.flow.vni)) else {
            return false;
        };
        let reuse = config.pool_of(side.public).is_some_and(|p| config.pools[p].spec.reuse);
        let mut part = self.part(vm_word);
        let vm = part.vms.get_or_make(vm_word, || Box::new(Vm::new(tenant.usage.clone(), self.mix)));
        let done = if reuse {
            let new = self.reused.restore(side, b.public.port, (b.flow.vni, vm_word as u32, b.flow.vm_port));
            if new == Some(true) {
                vm.reused += 1;
                vm.usage.restore_reused();
                address.reused().fetch_add(1, Relaxed);
            }
            new.is_some()
        } else {
            let chunk = (u32::from(b.public.port) / CHUNK) as u16;
            if !vm.holds(side.public, chunk) && address.take(chunk, owner_word(b.flow.vni, vm_word as u32)) {
                vm.add_chunk(address.clone(), chunk);
                vm.draw_anyway(CHUNK);
            }
            vm.restore(protocol, b.flow.vm_port, side.public, b.public.port)
        };
        vm.trim();
        if vm.is_empty() {
            part.vms.remove(vm_word);
        }
        done
    }

    /// Whether a session that was made under another configuration may go on under this one.
    pub fn judge(&self, b: &Binding) -> bool {
        judge(&self.config.load(), b)
    }

    /// The same under a configuration that is not in force: which sessions would go on under it?
    pub fn would_judge(spec: &NatSpec) -> impl Fn(&Binding) -> bool {
        let config = NatConfig::compile(spec, &NatConfig::default());
        move |b| judge(&config, b)
    }

    /// Whether this session's translation is in force: the configuration allows it, and the VM holds the port for it.
    pub fn holds(&self, b: &Binding) -> bool {
        let config = self.config.load();
        if !judge(&config, b) {
            return false;
        }
        let Some((vm_word, side)) = words(b) else { return true };
        let public = (side.public, b.public.port);
        if config.fixed(b.flow.vni, b.flow.proto, vm_word as u32, b.flow.vm_port) == Some(public) {
            return true;
        }
        let Some(protocol) = Protocol::from_number(b.flow.proto) else { return false };
        let mut part = self.part(vm_word);
        let leads = part.vms.get_mut(vm_word).is_some_and(|vm| vm.leads(protocol, b.flow.vm_port, public));
        leads || self.reused.uses(side, b.public.port, (b.flow.vni, vm_word as u32, b.flow.vm_port))
    }

    /// Takes from VMs what the configuration in force no longer gives them, mappings that linger too, in a few parts of all from
    /// `from` on. Returns where to go on. To be called once their sessions have ended ([`Translator::judge`]): what is free is given to
    /// others at once.
    pub fn retract(&self, from: usize) -> Option<usize> {
        let config = self.config.load();
        let end = (from + RETRACTED).min(PARTS);
        for part in self.parts.get(from..end)? {
            let mut part = part.lock();
            let stale = part.vms.iter().filter(|(_, vm)| vm.version != config.version).map(|(word, _)| word);
            for word in stale.collect::<Vec<u64>>() {
                let Some(vm) = part.vms.get_mut(word) else { continue };
                follow(&config, Vni((word >> 32) as u32), vm);
                if vm.is_empty() {
                    part.vms.remove(word);
                }
            }
        }
        (end < PARTS).then_some(end)
    }

    /// Frees mappings that have lingered long enough. To be called a few times a minute or oftener.
    pub fn expire(&self, now: u64) {
        let all = self.dry.swap(false, Relaxed);
        for part in &self.parts {
            let mut part = part.lock();
            for _ in 0..part.looks.len() {
                let Some((_, vm_word)) = part.looks.front().copied().filter(|(at, _)| *at <= now || all) else { break };
                part.looks.pop_front();
                let Some(vm) = part.vms.get_mut(vm_word) else { continue };
                if vm.free_idle(if all { u64::MAX } else { now }) {
                    part.looks.push_back((now + LOOK_NS, vm_word));
                } else if vm.is_empty() {
                    part.vms.remove(vm_word);
                }
            }
        }
    }

    fn snat(&self, request: &Request<'_>) -> Result<(u32, u16), Refusal> {
        let snat = request.tenant.snat.as_ref().ok_or(Refusal::NotServed)?;
        let vm_word = u64::from(request.flow.vni) << 32 | u64::from(request.vm_addr);
        let mut part = self.part(vm_word);
        let vm = part.vms.get_or_make(vm_word, || Box::new(Vm::new(request.tenant.usage.clone(), self.mix)));
        if vm.version != request.config.version {
            follow(request.config, request.flow.vni, vm);
        }
        let result = self.snat_of_vm(request, snat, vm);
        self.hints.tell(vm_word, vm, request.protocol);
        if vm.is_empty() {
            part.vms.remove(vm_word);
        }
        self.hints.tell_part(self.part_of(vm_word), part.vms.place());
        result
    }

    fn snat_of_vm(&self, request: &Request<'_>, snat: &SnatSpec, vm: &mut Vm) -> Result<(u32, u16), Refusal> {
        let vm_port = request.flow.vm_port;
        if let Some(public) = vm.mapped(request.protocol, vm_port) {
            return Ok(public);
        }
        let mixed = abi::hash3(
            u64::from(request.flow.vni),
            request.vm_addr.into(),
            u64::from(vm_port) << 8 | u64::from(request.flow.proto),
            self.mix.0,
        );
        let mut gave_up = false;
        loop {
            if let Some(public) = vm.map(request.protocol, vm_port, mixed) {
                return Ok(public);
            }
            match self.grow(request, snat, vm, gave_up) {
                Ok(None) => {}
                Ok(Some(public)) => return Ok(public),
                // Rather than be refused, the VM gives up a mapping that nobody uses.
                Err(_) if vm.free_one() => gave_up = true,
                Err(why) => {
                    vm.trim();
                    return Err(why);
                }
            }
        }
    }

    /// More chunks for a VM (`None`), or one reused port for this connection. With `look_again` a pool is searched even if it
    /// was found dry just now.
    fn grow(
        &self,
        request: &Request<'_>,
        snat: &SnatSpec,
        vm: &mut Vm,
        look_again: bool,
    ) -> Result<Option<(u32, u16)>, Refusal> {
        let owner = owner_word(request.flow.vni, request.vm_addr);
        let start = abi::hash1(owner, self.mix.0) as usize;
        let near = vm.addresses();
        let mut why = Refusal::PoolDry;
        for pool in snat.pools.iter().filter_map(|p| request.config.pools.get(*p)) {
            let n = pool.addresses.len();
            if n == 0 {
                continue;
            }
            let all = (0..n).map(|i| &pool.addresses[(start % n + i) % n]);
            if pool.spec.reuse {
                match self.reuse(request, snat, vm, pool, all.take(4)) {
                    Ok(public) => return Ok(Some(public)),
                    Err(other) => why = other,
                }
                continue;
            }
            let own = near.iter().filter(|a| {
                request.config.pool_of(a.addr).is_some_and(|p| std::ptr::eq(&request.config.pools[p], pool))
            });
            let count = draw(vm, snat, pool.spec.block)?;
            let mut taken = Vec::new();
            let mut take = |a: &Arc<Address>| {
                a.take_group(pool.chunks, count, request.protocol, owner, &mut taken).then(|| a.clone())
            };
            let mut address = own.into_iter().find_map(&mut take);
            if address.is_none() && (look_again || pool.dry_until.load(Relaxed) <= request.now) {
                address = all.into_iter().find_map(&mut take);
                if address.is_none() {
                    pool.dry_until.store(request.now + DRY_NS, Relaxed);
                }
            }
            vm.usage.give_back(u64::from(count) * u64::from(CHUNK) - taken.len() as u64 * u64::from(CHUNK));
            if let Some(address) = address {
                taken.iter().for_each(|c| vm.add_chunk(address.clone(), *c));
                return Ok(None);
            }
            self.dry.store(true, Relaxed);
        }
        Err(why)
    }

    /// A port of a pool that reuses ports, for one connection.
    fn reuse<'a>(
        &self,
        request: &Request<'_>,
        snat: &SnatSpec,
        vm: &mut Vm,
        pool: &Pool,
        addresses: impl Iterator<Item = &'a Arc<Address>>,
    ) -> Result<(u32, u16), Refusal> {
        if vm.reused >= snat.vm_ports_max {
            return Err(Refusal::VmPorts);
        }
        if !vm.usage.draw_reused(snat.ports_max) {
            return Err(Refusal::TenantPorts);
        }
        let user = (request.flow.vni, request.vm_addr, request.flow.vm_port);
        for address in addresses {
            let side = request.side(address.addr);
            let mixed = abi::hash3(
                user.1.into(),
                u64::from(user.2),
                u64::from(side.remote) << 16 | u64::from(side.remote_port),
                self.mix.0,
            );
            let allowed = |port| address.allows(port, request.protocol);
            if let Some(port) = self.reused.take(side, pool.spec.ports, mixed, user, allowed) {
                vm.reused += 1;
                address.reused().fetch_add(1, Relaxed);
                return Ok((address.addr, port));
            }
        }
        vm.usage.give_back_reused();
        Err(Refusal::PoolDry)
    }
}

/// One question for a public endpoint.
struct Request<'a> {
    config: &'a NatConfig,
    tenant: &'a Tenant,
    flow: &'a Flow,
    protocol: Protocol,
    vm_addr: u32,
    remote: u32,
    now: u64,
}

impl Request<'_> {
    fn side(&self, public: u32) -> Side {
        Side { public, remote: self.remote, proto: self.flow.proto.into(), remote_port: self.flow.remote_port.into() }
    }
}

/// Draws the ports of a block from both limits: the chunks that it has.
fn draw(vm: &Vm, snat: &SnatSpec, block: u16) -> Result<u16, Refusal> {
    let ports = u32::from(block);
    let chunks = block / CHUNK as u16;
    for (ports, chunks) in [(ports, chunks), (CHUNK, 1)] {
        if vm.ports() + ports > snat.vm_ports_max {
            if chunks == 1 {
                return Err(Refusal::VmPorts);
            }
        } else if vm.usage.draw(ports.into(), snat.ports_max) {
            return Ok(chunks);
        }
    }
    Err(Refusal::TenantPorts)
}

/// Holds what a VM has against a configuration.
fn follow(config: &NatConfig, vni: Vni, vm: &mut Vm) {
    vm.version = config.version;
    vm.keep_only(|addr| config.by_addr.get(&addr).filter(|_| config.snat_may_use(vni, addr)).cloned());
}

fn judge(config: &NatConfig, b: &Binding) -> bool {
    match (b.flow.vm_addr, b.public.addr) {
        (IpAddr::V6(a), public) => public == b.flow.vm_addr && config.source6(b.flow.vni, a.into()),
        (IpAddr::V4(vm), IpAddr::V4(public)) => {
            let fixed = config.fixed(b.flow.vni, b.flow.proto, vm.into(), b.flow.vm_port);
            fixed == Some((public.into(), b.public.port))
                || config.snat_may_hold(b.flow.vni, public.into(), b.public.port)
        }
        _ => false,
    }
}

/// The word of the VM, and the connection from outside; none for IPv6, which holds nothing.
fn words(b: &Binding) -> Option<(u64, Side)> {
    match (b.flow.vm_addr, b.public.addr, b.flow.remote) {
        (IpAddr::V4(vm), IpAddr::V4(public), IpAddr::V4(remote)) => {
            let (public, remote) = (public.into(), remote.into());
            let side = Side { public, remote, proto: b.flow.proto.into(), remote_port: b.flow.remote_port.into() };
            Some((u64::from(b.flow.vni) << 32 | u64::from(u32::from(vm)), side))
        }
        _ => None,
    }
}
