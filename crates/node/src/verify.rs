// SPDX-License-Identifier: Apache-2.0
//! What is configured, held against what is in table memory: read back as packets read it, and not remembered. It goes on as long as a managed
//! node runs, at a twentieth of a core, a page at a time under the lock that changes take, so that what is compared is of one moment;
//! what was changed is looked at at once. Each difference is told with the entry that it is about, and mended: the writer reads the tables anew, as at a
//! start, and commits what differs.
//!
//! Looked at are VPCs (their entry, their gateway's MAC address, every interval of their routes) and each address of each VM (its MAC
//! address, its NC). What is in memory and belongs to no object that is configured is not looked for, nor which counter a VM has.

use crate::audit::{Event, Origin};
use crate::error::NodeError;
use crate::managed::Managed;
use crate::service::{Core, Node};
use compile::Compile;
use model::{Documents, Kind, Mac, Model, Name, Object, Position, Prefix, Scope, Snapshot, VpcView, Wanted};
use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tables::{RouteInterval, Tables, Target, Writer};

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
    Wanted { kinds: vec![Kind::Vpc, Kind::Vm, Kind::Route], vpc: None }
}

/// Looks at objects, under the lock of the configuration.
struct Look<'n> {
    node: &'n Node,
    tables: &'n Tables,
    model: &'n Model,
    ncs: HashMap<Name, Option<IpAddr>>,
    faults: Vec<String>,
}

impl Look<'_> {
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
        if vpc.routes().take(routes_max + 1).count() > routes_max {
            return false;
        }
        let (is, wanted) = (self.node.intervals(spec.vni), intervals(&vpc));
        if is != wanted {
            let odd = is.iter().find(|i| !wanted.contains(i)).or_else(|| wanted.iter().find(|i| !is.contains(i)));
            let place = odd.map_or(String::new(), |i| format!(", first at {} to {}", i.first, i.last));
            self.faults.push(format!("Vpc {name}: its routes in the tables are not those that are configured{place}"));
        }
        true
    }

    fn vm(&mut self, vm: &model::Vm) {
        let Some(vpc) = self.model.vpc_of_name(&vm.vpc) else { return };
        let vni = vpc.spec().vni;
        let name = || Object::Vm(vm.clone()).name();
        // That its VPC is missing is told there.
        let Some(tenant) = self.tables.tenant(vni) else { return };
        let model = self.model;
        let nc = *self.ncs.entry(vm.nc.clone()).or_insert_with(|| match model.get(Kind::Nc, &vm.nc) {
            Some(Object::Nc(nc)) => Some(nc.address),
            _ => None,
        });
        for address in vm.addresses.iter() {
            let entry = match address {
                IpAddr::V4(a) => self.tables.vm4(vni, a.to_bits(), tenant.generation()),
                IpAddr::V6(a) => {
                    let bits = a.to_bits();
                    self.tables.vm6(vni, ((bits >> 64) as u64, bits as u64), tenant.generation())
                }
            };
            let Some(entry) = entry else {
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
            if entry.mac != vm.mac.0 {
                let (is, wanted) = (Mac(entry.mac), vm.mac);
                self.faults.push(format!("Vm {}: {address} is {is} in the tables, and configured as {wanted}", name()));
            }
        }
    }
}

/// What the routes of a VPC make of all addresses: intervals that lead somewhere, each with where. Found by a sweep over the prefixes, of which
/// those that begin earlier and are longer lie around those behind them.
fn intervals(vpc: &VpcView<'_>) -> Vec<RouteInterval> {
    let mut all: Vec<RouteInterval> = Vec::new();
    for v6 in [false, true] {
        let mut routes: Vec<(u128, u128, Target)> =
            vpc.routes().filter(|(p, _)| p.addr().is_ipv6() == v6).map(|(p, to)| span(p, target(to))).collect();
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
        Scope::Line => Target::Line,
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

impl Node {
    /// Looks at the next page.
    pub fn verify(&self, pass: &mut Pass) {
        let tables = self.tables();
        let _guard = tables.enter();
        let core = self.core();
        let mut snapshot = Snapshot::new(wanted(), pass.at.take());
        let page = snapshot.page(&core.model, PAGE);
        (pass.at, pass.begun) = (snapshot.position().cloned(), true);
        pass.faults.extend(self.look(&core, &tables, page.iter()));
        pass.faults.truncate(TOLD);
    }

    fn look<'o>(&self, core: &Core, tables: &Tables, objects: impl Iterator<Item = &'o Object>) -> Vec<String> {
        let mut look = Look { node: self, tables, model: &core.model, ncs: HashMap::new(), faults: Vec::new() };
        for object in objects {
            match object {
                // Its routes are looked at with it.
                Object::Vpc(vpc) => drop(look.vpc(&vpc.name, usize::MAX - 1)),
                Object::Vm(vm) => look.vm(vm),
                _ => {}
            }
        }
        look.faults
    }

    /// Looks at what a change has touched: what is not as configured, and whether that was all.
    pub(crate) fn verify_change(&self, docs: &Documents) -> (Vec<String>, bool) {
        let tables = self.tables();
        let _guard = tables.enter();
        let core = self.core();
        let mut look =
            Look { node: self, tables: &tables, model: &core.model, ncs: HashMap::new(), faults: Vec::new() };
        let (mut vpcs, mut all) = (BTreeSet::new(), true);
        for item in &docs.puts {
            match &item.object {
                Object::Vm(vm) => look.vm(vm),
                Object::Vpc(vpc) => drop(vpcs.insert(vpc.name.clone())),
                Object::Route(route) => drop(vpcs.insert(route.vpc.clone())),
                // An NC whose address changes concerns every VM on it.
                Object::Nc(_) => all = false,
                _ => {}
            }
        }
        all &= docs.deletes.iter().all(|(kind, ..)| *kind != Kind::Route);
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
            let options = crate::daemon::writer_options(fast, &core.model);
            let mut fresh = Writer::attach(self.tables().memory().clone(), options).map_err(|e| {
                NodeError::Config(vec![format!("the tables cannot be read anew, restart the node: {e}")])
            })?;
            fresh.commit(&core.model.reconcile(&fresh))?;
            *writer = fresh;
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

    /// What is in the tables of a VPC's routes, as packets find them.
    fn intervals(&self, vni: abi::Vni) -> Vec<RouteInterval> {
        joined(self.writer().intervals(vni))
    }
}

/// Verifies as long as the node runs.
pub(crate) fn begin(node: &Arc<Node>, managed: Arc<Managed>) -> std::io::Result<()> {
    let node = Arc::downgrade(node);
    let work = move || {
        let (mut pass, mut rush, mut revision) = (Pass::new(), false, managed.followed().revision);
        while let Some(node) = node.upgrade() {
            let begun = Instant::now();
            node.verify(&mut pass);
            let mut pause = if rush { Duration::ZERO } else { begun.elapsed() * (SHARE - 1) };
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
mod tests {
    use super::*;
    use rand::{RngExt, SeedableRng};

    use crate::consent::{Authority, Consent};
    use crate::daemon::{self, Options};
    use crate::dataplane::Choice;
    use crate::service::Change;
    use abi::Vni;

    const WORLD: &str = "{apiVersion: tunny/v1, kind: Nc, metadata: {name: host}, spec: {address: 192.0.2.1}}
---
{apiVersion: tunny/v1, kind: Nc, metadata: {name: other}, spec: {address: 192.0.2.2}}
---
{apiVersion: tunny/v1, kind: Vpc, metadata: {name: red}, spec: {vni: 4097}}
---
{apiVersion: tunny/v1, kind: Route, spec: {vpc: red, prefix: 10.0.0.0/8, scope: local}}
---
{apiVersion: tunny/v1, kind: Route, spec: {vpc: red, prefix: 10.1.0.0/16, scope: blackhole}}
---
{apiVersion: tunny/v1, kind: Vm, metadata: {name: a}, spec: {vpc: red, addresses: [10.0.0.1, fd00::1], mac: \"02:00:00:00:00:01\", nc: host}}
---
{apiVersion: tunny/v1, kind: Vm, metadata: {name: b}, spec: {vpc: red, addresses: [10.0.0.2], mac: \"02:00:00:00:00:02\", nc: other}}
";

    /// A node that follows a controller which is not there.
    fn node(dir: &std::path::Path) -> daemon::Running {
        let controller = crate::tls::Address { url: "https://localhost:1".into(), ..Default::default() };
        let options = Options {
            instance: "verify".into(),
            config: Vec::new(),
            state: None,
            socket: dir.join("s"),
            choice: Choice::None,
            pins: None,
            workers: 1,
            flow_cache: crate::dataplane::FlowCacheSize::Mib(0),
            metrics: None,
            detach: false,
            adopt: false,
            controller: Some(controller),
        };
        daemon::start(&options).unwrap()
    }

    fn faults(node: &Node) -> Vec<String> {
        let mut pass = Pass::new();
        while !pass.over() {
            node.verify(&mut pass);
        }
        pass.faults
    }

    /// Whatever bit of a VM's entries changes in memory: it is told, with the VM, if and only if a packet would see another answer.
    #[test]
    fn a_changed_bit_is_told_where_packets_would_see_it() {
        let dir = tempfile::tempdir().unwrap();
        let running = node(dir.path());
        let node = &running.node;
        let docs = model::parse_text("x.yaml", WORLD).unwrap();
        let consent = Consent { authority: Authority::Controller, ..Consent::default() };
        node.change(Change::Documents(&docs), &consent).unwrap();
        node.settle();
        assert_eq!(faults(node), Vec::<String>::new());
        assert_eq!(node.verify_change(&docs).0, Vec::<String>::new());
        let tables = node.tables();
        let lines = memory::Lines::new(&**tables.memory());
        let vni = Vni(4097);
        let vms = [("Vm a: ", "10.0.0.1", 0x0a00_0001), ("Vm b: ", "10.0.0.2", 0x0a00_0002)];
        // What packets to both VMs see. The salt is random: both may share a line.
        let entries = || {
            vms.map(|(_, _, address)| {
                let tenant = tables.tenant(vni)?;
                let entry = tables.vm4(vni, address, tenant.generation())?;
                Some((entry.mac, tables.nc(entry.nc).map(|nc| nc.addr)))
            })
        };
        let good = entries();
        let (mut told, mut repaired, mut links) = (0u32, 0, 0);
        for word in 0..8 {
            for bit in 0..64 {
                let line = lines.at(tables.vm4_line(&tables.tables4(), vni, vms[0].2));
                let before = line.word(word);
                line.set(word, before ^ 1 << bit);
                let (seen, faults) = (entries(), faults(node));
                for ((name, address, _), (seen, good)) in vms.iter().zip(seen.iter().zip(&good)) {
                    let of_it =
                        |f: &String| f.starts_with(name) && f.split([' ', ',', ':']).any(|word| word == *address);
                    assert_eq!(seen != good, faults.iter().any(of_it), "{word}.{bit}: {seen:?} {faults:?}");
                }
                assert!(faults.iter().all(|f| vms.iter().any(|(name, ..)| f.starts_with(name))), "{faults:?}");
                // What a packet sees is mended, without the bit being put back; what it does not see is put back here.
                let mended = if seen == good { Ok(()) } else { node.repair() };
                match mended {
                    Ok(()) if seen == good => line.set(word, before),
                    Ok(()) => repaired += 1,
                    Err(e) => {
                        // The link to the bucket's chain: then the memory contradicts itself, which a start mends by building it anew.
                        assert!(
                            word == 7 && bit >= 32 && e.to_string().contains("restart the node"),
                            "{word}.{bit}: {e}"
                        );
                        line.set(word, before);
                        (links, told) = (links + 1, told - u32::from(!faults.is_empty()));
                    }
                }
                assert_eq!(entries(), good, "{word}.{bit}");
                told += u32::from(!faults.is_empty());
            }
        }
        assert!(repaired > 20 && links > 0 && told == repaired, "{told} {repaired} {links}");
        assert_eq!(faults(node), Vec::<String>::new());
        // The VPC's entry: its gateway, its routes.
        let line = lines.at(tables.tenant_line(&tables.tables4(), vni));
        let mut told = 0;
        for word in 0..8 {
            let before = line.word(word);
            line.set(word, before ^ 0xff);
            told += u32::from(faults(node).iter().any(|f| f.starts_with("Vpc red: ")));
            line.set(word, before);
        }
        assert!(told > 0);
        assert_eq!(faults(node), Vec::<String>::new());
        running.stop();
    }

    /// The sweep over prefixes says what a longest match says, address by address.
    #[test]
    fn intervals_are_what_the_longest_prefix_says() {
        let seed: u64 = rand::random();
        println!("seed {seed}");
        let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(seed);
        for round in 0..200 {
            let mut text = "{apiVersion: tunny/v1, kind: Vpc, metadata: {name: v}, spec: {vni: 7}}\n".to_string();
            let mut prefixes: HashMap<(u32, u32), bool> = HashMap::new();
            for _ in 0..rng.random_range(0..12) {
                let length = [0, 24, 25, 26, 28, 30, 31, 32][rng.random_range(0..8)];
                let mask = u32::MAX.checked_shl(32 - length).unwrap_or(0);
                let address = (0x0a00_0000 | rng.random_range(0..256u32)) & mask;
                let address = if length == 0 { 0 } else { address };
                prefixes.insert((address, length), rng.random_range(0..2) == 0);
            }
            for ((address, length), local) in &prefixes {
                let (address, scope) =
                    (std::net::Ipv4Addr::from_bits(*address), if *local { "local" } else { "blackhole" });
                text += &format!("---\n{{apiVersion: tunny/v1, kind: Route, spec: {{vpc: v, prefix: {address}/{length}, scope: {scope}}}}}\n");
            }
            let (model, _) = Model::from_documents(&model::parse_text("x.yaml", &text).unwrap()).unwrap();
            let found = intervals(&model.vpc_of_name("v").unwrap());
            assert!(found.windows(2).all(|w| w[0].last < w[1].first), "{round}");
            for address in (0x0a00_0000u32..0x0a00_0100).chain([0, 1, u32::MAX]) {
                let covers = |(a, l): (u32, u32)| {
                    l == 0 || a ^ address < u32::MAX.checked_shr(l).unwrap_or(0).wrapping_add(1).max(1)
                };
                let best = prefixes.iter().filter(|(p, _)| covers(**p)).max_by_key(|((_, l), _)| *l);
                let wanted = best.map(|(_, local)| if *local { Target::Local } else { Target::Blackhole });
                let ip = IpAddr::V4(address.into());
                let is = found.iter().find(|i| i.first <= ip && ip <= i.last).and_then(|i| i.target);
                assert_eq!(is, wanted, "{ip} {text}");
            }
        }
    }
}
