// SPDX-License-Identifier: Apache-2.0
//! What is configured, held against what is in table memory: read back as packets read it, and not remembered. It goes on as long as a managed
//! node runs, at a twentieth of a core, a page at a time under the lock that changes take, so that what is compared is of one moment;
//! what was changed is looked at at once. Each difference is told with the entry that it is about, and mended: the writer reads the tables anew, as at a
//! start, and commits what differs.
//!
//! Looked at are VPCs (their entry, their gateway's MAC and IP addresses, every interval of their routes), each address of each VM (its MAC
//! address, its NC, that this may send for the VPC) and NCs, and lines of customers (tags, CE, the port's place). At the end of a pass the entries
//! in memory are counted: with all found that are configured, more of them than were written belong to nobody. Not looked at is which counter a VM
//! has. What was learned is as it was entered: it is nobody's configuration.

use crate::audit::{Event, Origin};
use crate::error::NodeError;
use crate::managed::Managed;
use crate::routing::Routing;
use crate::service::{Core, Node};
use compile::Compile;
use model::{Documents, Kind, Mac, Model, Name, Object, Position, Prefix, Scope, Snapshot, VpcView, Wanted};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;
use tables::{CircuitFound, Entry, RouteInterval, Tables, Target, Tenant, Writer};

/// Objects that are looked at under one lock.
const PAGE: usize = 1024;
/// One part in so many of a core.
const SHARE: u32 = 20;
/// Between two passes, at least.
const PAUSE: Duration = Duration::from_millis(500);
/// Routes of a VPC that are looked at at once when something of it changes; of one that has more they wait for the next pass.
const ROUTES_AT_ONCE: usize = 20_000;
/// Differences that are told.
const TOLD: usize = 20;

/// Where a pass stands.
pub struct Pass {
    at: Option<Position>,
    begun: bool,
    /// What is not as configured.
    pub faults: Vec<String>,
}

impl Pass {
    /// At the beginning.
    pub fn new() -> Pass {
        Pass { at: None, begun: false, faults: Vec::new() }
    }

    /// Whether all has been looked at.
    pub fn over(&self) -> bool {
        self.begun && self.at.is_none()
    }
}

impl Default for Pass {
    fn default() -> Self {
        Pass::new()
    }
}

fn wanted() -> Wanted {
    // Routes are looked at with their VPC.
    Wanted { kinds: vec![Kind::Nc, Kind::Vpc, Kind::Vm], vpc: None }
}

/// Looks at objects, under the lock of the configuration.
struct Look<'n> {
    writer: &'n Writer,
    tables: &'n Tables,
    model: &'n Model,
    routing: &'n Routing,
    /// The VPC that was looked at last: VMs come VPC by VPC.
    vpc: Option<(VpcView<'n>, Option<Tenant>)>,
    /// NCs of VPCs that were looked at.
    senders: HashSet<(abi::Vni, IpAddr)>,
    faults: Vec<String>,
}

fn halves(a: Ipv6Addr) -> (u64, u64) {
    ((a.to_bits() >> 64) as u64, a.to_bits() as u64)
}

impl<'n> Look<'n> {
    fn new(writer: &'n Writer, tables: &'n Tables, core: &'n Core, routing: &'n Routing) -> Look<'n> {
        let model = &core.model;
        Look { writer, tables, model, routing, vpc: None, senders: HashSet::new(), faults: Vec::new() }
    }

    /// A VPC, and its entry in the tables.
    fn vpc_of(&mut self, name: &str) -> Option<(VpcView<'n>, Option<Tenant>)> {
        if self.vpc.as_ref().is_none_or(|(vpc, _)| *vpc.spec().name != *name) {
            let vpc = self.model.vpc_of_name(name)?;
            self.vpc = Some((vpc, self.tables.tenant(vpc.spec().vni)));
        }
        self.vpc
    }

    fn vpc(&mut self, name: &str, routes_max: usize) -> bool {
        let Some(vpc) = self.model.vpc_of_name(name) else { return true };
        let spec = vpc.spec();
        let Some(tenant) = self.tables.tenant(spec.vni) else {
            self.faults.push(format!("Vpc {name}: the tables have no VNI {}", spec.vni));
            return true;
        };
        if tenant.gateway_mac() != spec.gateway_mac.0 {
            let (is, wanted) = (Mac(tenant.gateway_mac()), spec.gateway_mac);
            self.faults.push(format!("Vpc {name}: its gateway is {is} in the tables, and configured as {wanted}"));
        }
        for address in &spec.gateways {
            if !self.address(spec.vni, *address, &tenant).is_some_and(|e| e.flags & abi::VM_FLAG_GATEWAY != 0) {
                self.faults.push(format!("Vpc {name}: the tables do not have its gateway address {address}"));
            }
        }
        for nc in vpc.senders() {
            if !self.may_send(spec.vni, nc) {
                self.faults.push(format!("Vpc {name}: in the tables {nc} may not send for it"));
            }
        }
        if vpc.routes().take(routes_max + 1).count() > routes_max {
            return false;
        }
        let learned = self.routing.learned_targets(spec.vni);
        let (is, wanted) = (joined(self.writer.intervals(spec.vni)), intervals(&vpc, learned));
        if is != wanted {
            let odd = is.iter().find(|i| !wanted.contains(i)).or_else(|| wanted.iter().find(|i| !is.contains(i)));
            let place = odd.map_or(String::new(), |i| format!(", first at {} to {}", i.first, i.last));
            self.faults.push(format!("Vpc {name}: its routes in the tables are not those that are configured{place}"));
        }
        true
    }

    fn address(&self, vni: abi::Vni, address: IpAddr, tenant: &Tenant) -> Option<tables::VmEntry> {
        match address {
            IpAddr::V4(a) => self.tables.vm4(vni, a.to_bits(), tenant.generation()),
            IpAddr::V6(a) => self.tables.vm6(vni, halves(a), tenant.generation()),
        }
    }

    fn nc_id(&self, address: IpAddr) -> Option<abi::NcId> {
        match address {
            IpAddr::V4(a) => self.tables.nc_by_addr4(a.to_bits()),
            IpAddr::V6(a) => self.tables.nc_by_addr6(halves(a)),
        }
    }

    fn may_send(&self, vni: abi::Vni, nc: IpAddr) -> bool {
        match nc {
            IpAddr::V4(a) => self.tables.may_send4(vni, a.to_bits()),
            IpAddr::V6(_) => self.nc_id(nc).is_some_and(|id| self.tables.may_send6(vni, id)),
        }
    }

    fn nc(&mut self, nc: &model::Nc) {
        let found = self.nc_id(nc.address).and_then(|id| self.tables.nc(id));
        if found.map(|found| found.addr) != Some(nc.address) {
            self.faults.push(format!("Nc {}: the tables do not have {}", nc.name, nc.address));
        }
    }

    fn vm(&mut self, vm: &model::Vm) {
        // That its VPC is missing is told there.
        let Some((vpc, Some(tenant))) = self.vpc_of(&vm.vpc) else { return };
        let vni = vpc.spec().vni;
        let name = || Object::Vm(vm.clone()).name();
        let nc = vpc.vm(vm.mac).map(|seen| seen.nc);
        if let Some(nc) = nc.filter(|nc| self.senders.insert((vni, *nc)) && !self.may_send(vni, *nc)) {
            self.faults.push(format!("Vm {}: in the tables its NC {nc} may not send for its VPC", name()));
        }
        for address in vm.addresses.iter() {
            let Some(entry) = self.address(vni, *address, &tenant) else {
                self.faults.push(format!("Vm {}: the tables do not have {address}", name()));
                continue;
            };
            let host = self.tables.nc(entry.nc).map(|nc| nc.addr);
            if host != nc {
                let shown = |a: Option<IpAddr>| a.map_or("nowhere".to_string(), |a| a.to_string());
                let (is, wanted) = (shown(host), shown(nc));
                self.faults.push(format!(
                    "Vm {}: {address} leads to {is} in the tables, and is configured at {wanted}",
                    name()
                ));
            }
            if entry.flags & abi::VM_FLAG_GATEWAY != 0 {
                self.faults.push(format!("Vm {}: {address} is a gateway's in the tables", name()));
            }
            if entry.mac != vm.mac.0 {
                let (is, wanted) = (Mac(entry.mac), vm.mac);
                self.faults.push(format!("Vm {}: {address} is {is} in the tables, and configured as {wanted}", name()));
            }
        }
    }
}

/// What the routes of a VPC make of all addresses: intervals that lead somewhere, each with where. Found by a sweep over the prefixes, of which
/// those that begin earlier and are longer lie around those behind them.
fn intervals(vpc: &VpcView<'_>, learned: BTreeMap<Prefix, Target>) -> Vec<RouteInterval> {
    let mut all: Vec<RouteInterval> = Vec::new();
    for v6 in [false, true] {
        let mut routes: Vec<(u128, u128, Target)> = vpc
            .routes()
            .map(|(p, to)| (p, target(to)))
            .chain(learned.iter().map(|(p, to)| (*p, *to)))
            .filter(|(p, _)| p.addr().is_ipv6() == v6)
            .map(|(p, to)| span(p, to))
            .collect();
        routes.sort_by_key(|(first, last, _)| (*first, std::cmp::Reverse(*last)));
        let mut out: Vec<(u128, u128, Target)> = Vec::new();
        let mut open: Vec<(u128, Target)> = Vec::new();
        let mut at = 0u128;
        let mut put = |from: u128, to: u128, target: Target| match out.last_mut() {
            Some(last) if last.2 == target && last.1.checked_add(1) == Some(from) => last.1 = to,
            _ => out.push((from, to, target)),
        };
        for (first, last, target) in routes {
            while let Some((end, over)) = open.last().copied().filter(|(end, _)| *end < first) {
                if at <= end {
                    put(at, end, over);
                    at = end + 1;
                }
                open.pop();
            }
            if let Some((_, over)) = open.last().filter(|_| at < first) {
                put(at, first - 1, *over);
            }
            at = at.max(first);
            open.push((last, target));
        }
        while let Some((end, over)) = open.pop() {
            if at <= end {
                put(at, end, over);
                let Some(next) = end.checked_add(1) else { break };
                at = next;
            }
        }
        let address = |bits: u128| match v6 {
            true => IpAddr::V6(std::net::Ipv6Addr::from_bits(bits)),
            false => IpAddr::V4(std::net::Ipv4Addr::from_bits(bits as u32)),
        };
        let interval =
            |(first, last, target)| RouteInterval { first: address(first), last: address(last), target: Some(target) };
        all.extend(out.into_iter().map(interval));
    }
    all
}

fn span(prefix: Prefix, target: Target) -> (u128, u128, Target) {
    let (first, last) = match (prefix.network(), prefix.broadcast()) {
        (IpAddr::V4(a), IpAddr::V4(b)) => (a.to_bits().into(), b.to_bits().into()),
        (IpAddr::V6(a), IpAddr::V6(b)) => (a.to_bits(), b.to_bits()),
        _ => (1, 0),
    };
    (first, last, target)
}

fn target(scope: Scope<abi::Vni>) -> Target {
    match scope {
        Scope::Local => Target::Local,
        Scope::Peer(vni) => Target::Peer(vni),
        Scope::Blackhole => Target::Blackhole,
        Scope::Internet => Target::Internet,
        Scope::Line(line) => Target::Line(line),
        Scope::Region => Target::Region,
    }
}

/// Intervals that lead to the same place and touch are one.
fn joined(list: Vec<RouteInterval>) -> Vec<RouteInterval> {
    let next = |a: IpAddr| match a {
        IpAddr::V4(a) => a.to_bits().checked_add(1).map(|b| IpAddr::V4(b.into())),
        IpAddr::V6(a) => a.to_bits().checked_add(1).map(|b| IpAddr::V6(b.into())),
    };
    let mut out: Vec<RouteInterval> = Vec::new();
    for i in list {
        match out.last_mut() {
            Some(last) if last.target == i.target && next(last.last) == Some(i.first) => last.last = i.last,
            _ => out.push(i),
        }
    }
    out
}

fn look<'o>(mut look: Look<'_>, objects: impl Iterator<Item = &'o Object>) -> Vec<String> {
    for object in objects {
        match object {
            Object::Vpc(vpc) => drop(look.vpc(&vpc.name, usize::MAX - 1)),
            Object::Vm(vm) => look.vm(vm),
            Object::Nc(nc) => look.nc(nc),
            _ => {}
        }
    }
    look.faults
}

/// What is not as configured of lines of customers that are meant. One whose port is not there is not looked at: interfaces come and go.
fn lines(tables: &Tables, model: &Model, meant: impl Fn(&Name) -> bool) -> Vec<String> {
    if model.by_name().overlays.is_empty() {
        return Vec::new();
    }
    let plan = model.edge();
    let by_line: HashMap<_, _> = plan.circuits.iter().map(|c| ((c.vni, c.line), c)).collect();
    let mut faults = Vec::new();
    for o in model.by_name().overlays.values().filter(|o| meant(&o.name)) {
        let Some(vni) = model.vpc_of_name(&o.vpc).map(|vpc| vpc.spec().vni) else { continue };
        let Some(wanted) = by_line.get(&(vni, o.line)) else { continue };
        let Some((is, ce)) = tables.circuit_by_line(vni, o.line) else { continue };
        let here = plan.ports.iter().find(|p| p.number == wanted.port).is_some_and(|p| p.interface.is_some());
        let same = (is.port.number, is.tags, ce) == (wanted.port, [wanted.customer, wanted.overlay], wanted.ce);
        if !same || is.port.elsewhere == here {
            faults.push(format!("Overlay {}: its line in the tables is not as it is configured", o.name));
        } else if here && tables.circuit_by_tags(&is) != CircuitFound::Vpc(wanted.found()) {
            faults.push(format!("Overlay {}: in the tables its tags lead elsewhere", o.name));
        }
    }
    faults
}

/// What the memory of the tables has beside what was written.
fn unaccounted(writer: &Writer, model: &Model, routing: &Routing) -> Vec<String> {
    let miscounts = writer.miscounts();
    let mut faults = Vec::new();
    for m in &miscounts {
        faults.push(match m.found {
            Some(found) => format!("the tables have {found} {} in memory, and {} were written", m.of, m.written),
            None => format!("the table of {} contradicts itself", m.of),
        });
    }
    let mut seen = HashSet::new();
    let mut name = |entry: Entry| {
        let known = match entry {
            Entry::Vpc(vni) => model.vpc_of_vni(vni).is_some(),
            Entry::Address(vni, address) => {
                model.vpc_of_vni(vni).is_some_and(|vpc| vpc.has_address(address)) || routing.has_learned(vni, address)
            }
            Entry::Nc(address) => model.tunnel_ends().contains(&address) || routing.vteps().contains(&address),
        };
        let twice = !seen.insert(entry);
        if faults.len() >= TOLD || known && !twice {
            return;
        }
        let of = |what: String| match known {
            true => format!("the tables have {what} twice"),
            false => format!("the tables have {what}, which is not configured"),
        };
        faults.push(of(match entry {
            Entry::Vpc(vni) => format!("the VPC with VNI {vni}"),
            Entry::Address(vni, address) => format!("{address} in VNI {vni}"),
            Entry::Nc(address) => format!("the NC {address}"),
        }));
    };
    if !miscounts.is_empty() {
        writer.entries(&mut name);
    }
    faults
}

impl Node {
    /// Looks at the next page.
    pub fn verify(&self, pass: &mut Pass) {
        // Both locks come before the tables are entered: who writes waits under them until all readers have left.
        let (core, writer, tables) = (self.core(), self.writer(), self.tables());
        let _guard = tables.enter();
        let mut snapshot = Snapshot::new(wanted(), pass.at.take());
        let page = snapshot.page(&core.model, PAGE);
        (pass.at, pass.begun) = (snapshot.position().cloned(), true);
        pass.faults.extend(look(Look::new(&writer, &tables, &core, &self.routing), page.iter()));
        if pass.over() {
            pass.faults.extend(lines(&tables, &core.model, |_| true));
            pass.faults.extend(unaccounted(&writer, &core.model, &self.routing));
        }
        pass.faults.truncate(TOLD);
    }

    /// Looks at what a change has touched: what is not as configured, and whether that was all.
    pub(crate) fn verify_change(&self, docs: &Documents) -> (Vec<String>, bool) {
        let (core, writer, tables) = (self.core(), self.writer(), self.tables());
        let _guard = tables.enter();
        let mut look = Look::new(&writer, &tables, &core, &self.routing);
        let (mut vpcs, mut overlays, mut all) = (BTreeSet::new(), BTreeSet::new(), true);
        for item in &docs.puts {
            match &item.object {
                Object::Vm(vm) => look.vm(vm),
                Object::Vpc(vpc) => drop(vpcs.insert(vpc.name.clone())),
                Object::Route(route) => drop(vpcs.insert(route.vpc.clone())),
                // An NC whose address changes concerns every VM on it.
                Object::Nc(_) | Object::EdgePort(_) => all = false,
                Object::Overlay(overlay) => drop(overlays.insert(&overlay.name)),
                _ => {}
            }
        }
        all &= docs.deletes.iter().all(|(kind, ..)| *kind != Kind::Route);
        if !overlays.is_empty() {
            look.faults.extend(lines(&tables, &core.model, |name| overlays.contains(name)));
        }
        for vpc in vpcs {
            all &= look.vpc(&vpc, ROUTES_AT_ONCE);
        }
        (look.faults, all)
    }

    /// Makes the tables say again what is configured: they are read anew from their memory, as at a start, and what differs is committed.
    /// Packets go on meanwhile. An error: so much is damaged that they cannot be read.
    pub(crate) fn repair(&self) -> Result<(), NodeError> {
        let fast = self.has_fast_path();
        {
            let core = self.core();
            let mut writer = self.writer();
            writer.erase_strays();
            let options = crate::daemon::writer_options(fast, &core.model);
            let mut fresh = Writer::attach(self.tables().memory().clone(), options).map_err(|e| {
                NodeError::Config(vec![format!("the tables cannot be read anew, restart the node: {e}")])
            })?;
            let commit = core.model.reconcile(&fresh);
            let (commit, learned) = self.routing.amend(&commit);
            fresh.commit(&commit)?;
            *writer = fresh;
            self.routing.amended(learned);
            self.conntrack.enter_edge_anew(&mut writer)?;
        }
        // The commit has stored the whole option word.
        self.update_capture();
        Ok(())
    }

    /// Notes what was found, and mends it.
    fn mend(&self, faults: &[String]) {
        let (outcome, more) = match self.repair() {
            Ok(()) => ("repaired", String::new()),
            Err(e) => ("refused", format!("; {e}")),
        };
        let generation = self.core().generation();
        let mut event = Event::new("verify", outcome, generation, &Origin::node("the memory of the tables"));
        event.note = faults.join("; ") + &more;
        self.audit.note(event);
    }
}

/// CPU time that this thread has used: on a busy machine, or while it waited for a lock, the clock says more.
fn used() -> Duration {
    let used = nix::time::clock_gettime(nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID);
    used.map_or(Duration::ZERO, |time| Duration::new(time.tv_sec() as u64, time.tv_nsec() as u32))
}

/// Verifies as long as the node runs.
pub(crate) fn begin(node: &Arc<Node>, managed: Arc<Managed>) -> std::io::Result<()> {
    let node = Arc::downgrade(node);
    let work = move || {
        let (mut pass, mut rush, mut revision) = (Pass::new(), false, managed.followed().revision);
        while let Some(node) = node.upgrade() {
            let begun = used();
            node.verify(&mut pass);
            let mut pause = if rush { Duration::ZERO } else { used().saturating_sub(begun) * (SHARE - 1) };
            if pass.over() {
                let faults = std::mem::take(&mut pass).faults;
                managed.verified(revision, faults.clone());
                if !faults.is_empty() {
                    node.mend(&faults);
                }
                (rush, pause) = (false, pause.max(PAUSE));
            }
            drop(node);
            if managed.wait_for_rush(pause) {
                (pass, rush) = (Pass::new(), true);
            }
            if !pass.begun {
                revision = managed.followed().revision;
            }
        }
    };
    std::thread::Builder::new().name("tunny-verify".into()).spawn(work).map(drop)
}

#[cfg(test)]
#[path = "verify_tests.rs"]
mod tests;
