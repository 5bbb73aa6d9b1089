// SPDX-License-Identifier: Apache-2.0
//! `POST /v1/trace`: which way a packet would take from a VM to an address. The stages that a node runs go over tables made for this of the
//! region's intent: of the VPCs that the packet can meet, the two VMs, and the routes that cover the destination, which decides as all of
//! them would. The underlay is made up. What a node has in fact says `tunny trace` on its machine.

use crate::refusal::Refusal;
use crate::service::Core;
use abi::EDGE_PORTS_MAX;
use controller_core::access::Principal;
use controller_core::edges::told;
use model::{Documents, EdgePort, Gateway, Kind, Model, Name, Object, Overlay, Prefix, Scope, Via, Vm};
use node::offline::{Offline, PORT};
use node::trace::{Changed, Report, Request, Step};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// VPCs that a packet may meet.
const VPCS_MAX: usize = 64;
/// MTU of the made-up underlay.
const MTU: u16 = 9000;

/// What is wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TraceRequest {
    /// The VM that sends: its name, or `VPC/ADDRESS`.
    pub from: String,
    /// A VM's name, `VPC/ADDRESS`, or an address as the sender writes it.
    pub to: String,
    /// `tcp`, `udp` or `icmp`; nothing: tcp.
    #[serde(default)]
    pub protocol: String,
    /// Port of the destination; 0: 80.
    #[serde(default)]
    pub port: u16,
}

/// An end of the way.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct End {
    /// Name of the VM; empty: none.
    pub vm: String,
    /// Its VPC.
    pub vpc: String,
    /// Its address.
    pub address: String,
    /// The NC that it is on.
    pub nc: String,
}

/// The answer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TraceAnswer {
    /// What it was computed over.
    pub basis: String,
    /// The revision of that.
    pub revision: u64,
    /// Who sends.
    pub source: End,
    /// To whom.
    pub destination: End,
    /// The cluster that serves the sender; empty: none, so that no node would take the packet.
    pub cluster: String,
    /// Stage by stage. A tenant sees the stages alone.
    pub steps: Vec<Step>,
    /// `forward`, `answer`, `pass`, `drop`.
    pub verdict: String,
    /// Reason of a drop.
    pub reason: Option<String>,
    /// What to do about it.
    pub advice: Option<String>,
    /// Fields that the gateway changes.
    pub changed: Vec<Changed>,
}

/// What a trace needs of the region, so that it can run while the region changes.
#[derive(Debug)]
pub struct Plan {
    objects: Vec<Object>,
    description: String,
    answer: TraceAnswer,
    whole: bool,
}

fn wrong(why: String) -> Refusal {
    Refusal::Wrong(vec![why])
}

/// Where a word leads: VMs, or an address.
fn ends(model: &Model, who: &Principal, word: &str) -> (Vec<Vm>, Option<IpAddr>) {
    let seen = |vm: &Vm| who.sees(model, &Object::Vm(vm.clone()));
    if let Some(Object::Vm(vm)) = model.get(Kind::Vm, word).filter(|o| who.sees(model, o)) {
        return (vec![vm], None);
    }
    let (vpc, address) = word.split_once('/').map_or((None, word), |(vpc, address)| (Some(vpc), address));
    let Ok(address) = address.parse::<IpAddr>() else { return (Vec::new(), None) };
    let found = model.vms_between(vpc, address, address).filter(seen).take(2).collect();
    (found, Some(address))
}

/// Reads what is wanted and takes out of the region what decides about it.
pub fn plan(core: &Core, who: &Principal, wanted: &TraceRequest) -> Result<Plan, Refusal> {
    let model = core.region.model();
    let protocol = match wanted.protocol.as_str() {
        "" => "tcp",
        "tcp" | "udp" | "icmp" => &wanted.protocol,
        other => return Err(wrong(format!("protocol: `{}` is none of tcp, udp, icmp", model::plain(other)))),
    };
    let shown = |word: &str| model::plain(word).into_owned();
    let (sources, address) = ends(model, who, wanted.from.trim());
    let source = match sources.as_slice() {
        [vm] => vm.clone(),
        [] => {
            return Err(Refusal::Absent(format!(
                "from: there is no Vm `{}` here; name one, or say VPC/ADDRESS",
                shown(&wanted.from)
            )))
        }
        _ => return Err(wrong(format!("from: several VPCs have {}; say VPC/ADDRESS", shown(&wanted.from)))),
    };
    let (targets, to) = ends(model, who, wanted.to.trim());
    let family = address.or(to).map(|a| a.is_ipv4());
    let of_family = |vm: &Vm| vm.addresses.iter().copied().find(|a| family.is_none_or(|v4| a.is_ipv4() == v4));
    let to = match (to, targets.first()) {
        (Some(address), _) => address,
        (None, Some(vm)) => of_family(vm).ok_or_else(|| wrong("from and to have no addresses of one family".into()))?,
        (None, None) => {
            return Err(Refusal::Absent(format!(
                "to: there is no Vm `{}` here, and it is no address",
                shown(&wanted.to)
            )))
        }
    };
    let same = source.addresses.iter().copied().filter(|a| a.is_ipv4() == to.is_ipv4());
    let from = address.or(same.into_iter().next()).filter(|a| a.is_ipv4() == to.is_ipv4());
    let from = from
        .ok_or_else(|| wrong(format!("from and to: Vm `{}` has no address of the family of {to}", name_of(&source))))?;

    let mut reach = Reach::new(model, &source, to);
    reach.walk()?;
    let foreign = reach.vpcs.iter().any(|vpc| model.get(Kind::Vpc, vpc).is_none_or(|o| !who.sees(model, &o)));
    if foreign {
        return Err(Refusal::Forbidden(
            "the packet can meet VPCs that are not yours to see: ask an operator of the region for this trace".into(),
        ));
    }
    let target = reach.vms.iter().find(|vm| vm.addresses.contains(&to) && name_of(vm) != name_of(&source));
    let end = |vm: Option<&Vm>, address: IpAddr| End {
        vm: vm.map_or(String::new(), |vm| name_of(vm).to_string()),
        vpc: vm.map_or(String::new(), |vm| vm.vpc.to_string()),
        address: address.to_string(),
        nc: vm.map_or(String::new(), |vm| vm.nc.to_string()),
    };
    let owner = core.region.index().owner(&source.vpc).and_then(|name| model.by_name().tenants.get(name));
    let cluster = owner.and_then(|t| core.region.serving(t)).map_or(String::new(), |cluster| cluster.to_string());
    let answer = TraceAnswer {
        basis: "the controller's intent".into(),
        revision: core.region.revision(),
        source: end(Some(&source), from),
        destination: end(target, to),
        cluster: cluster.clone(),
        ..TraceAnswer::default()
    };
    let nc = model.get(Kind::Nc, &source.nc);
    let Some(Object::Nc(nc)) = nc else { return Err(Refusal::Failed) };
    let vni = model.vpc_of_name(&source.vpc).map_or(0, |v| v.spec().vni.0);
    let port = if wanted.port == 0 { 80 } else { wanted.port };
    let ports = if protocol == "icmp" { String::new() } else { format!(" dport={port}") };
    let description =
        format!("vni={vni} src={from} dst={to} {protocol}{ports} from={} smac={}", nc.address, source.mac);
    let addresses = model.by_name().clusters.get(&*cluster).map_or(Vec::new(), |c| c.addresses.clone());
    Ok(Plan { objects: reach.objects(&addresses, &cluster), description, answer, whole: who.sees_all() })
}

fn name_of(vm: &Vm) -> Name {
    vm.name.clone().unwrap_or_else(|| model::vm_name(&vm.vpc, vm.addresses[0]))
}

impl Plan {
    /// Runs the packet through the stages.
    pub fn run(self) -> Result<TraceAnswer, Refusal> {
        let failed = |what: &str, why: String| {
            tracing::error!("a trace failed: {what}: {why}");
            Refusal::Failed
        };
        let mut docs = Documents::new();
        self.objects.into_iter().for_each(|object| docs.put(object));
        let (model, _) = Model::from_documents(&docs).map_err(|e| {
            failed("what the packet can meet does not fit together", e.first().map_or(String::new(), |e| e.to_string()))
        })?;
        let offline = Offline::of(model, MTU).map_err(|e| failed("tables", e.to_string()))?;
        let request = Request { description: Some(self.description), ..Request::default() };
        let frame = request.bytes(&offline.writer.tables()).map_err(|e| wrong(e.to_string()))?;
        let now = 1 << 40;
        let connections =
            node::conntrack::offline(&offline.model, now).map_err(|e| failed("sessions", e.to_string()))?;
        let report = node::trace::run(offline.writer.memory().clone(), connections, &frame, PORT, now);
        let Report { steps, verdict, reason, advice, changed, .. } = report;
        let mut answer = TraceAnswer { steps, verdict, reason, advice, changed, ..self.answer };
        if !self.whole {
            // What it met may be somebody else's: NCs, rules of shared groups.
            answer.steps.iter_mut().for_each(|step| step.text.clear());
            answer.steps.dedup();
            answer.changed.clear();
        }
        Ok(answer)
    }
}

/// What of a region a packet can meet.
struct Reach<'a> {
    model: &'a Model,
    to: IpAddr,
    vpcs: BTreeSet<Name>,
    vms: Vec<Vm>,
    routes: Vec<Object>,
    first: Name,
}

impl<'a> Reach<'a> {
    fn new(model: &'a Model, source: &Vm, to: IpAddr) -> Reach<'a> {
        let vms = vec![source.clone()];
        Reach { model, to, vpcs: BTreeSet::new(), vms, routes: Vec::new(), first: source.vpc.clone() }
    }

    /// Follows the routes that cover the destination, from VPC to VPC.
    fn walk(&mut self) -> Result<(), Refusal> {
        let host = Prefix::from(self.to);
        let mut next = vec![self.first.clone()];
        while let Some(vpc) = next.pop() {
            if !self.vpcs.insert(vpc.clone()) {
                continue;
            }
            if self.vpcs.len() > VPCS_MAX {
                return Err(wrong(format!("to: routes to {} lead through more than {VPCS_MAX} VPCs", self.to)));
            }
            for object in self.model.objects_of_vpc(Kind::Route, &vpc) {
                let Object::Route(route) = &object else { continue };
                if !route.prefix.contains(&host) {
                    continue;
                }
                if let Scope::Peer(peer) = &route.scope {
                    next.push(peer.clone());
                }
                self.routes.push(object);
            }
            let here = self.model.vms_between(Some(&vpc), self.to, self.to);
            let news: Vec<Vm> = here.filter(|vm| !self.vms.contains(vm)).collect();
            self.vms.extend(news);
        }
        Ok(())
    }

    /// The lines that routes lead to, and their ports, as a node of a cluster has them.
    fn lines(&self, cluster: &str) -> Vec<Object> {
        let (model, named) = (self.model, self.model.by_name());
        let leads = |o: &Overlay| {
            self.routes
                .iter()
                .any(|r| matches!(r, Object::Route(r) if r.vpc == o.vpc && r.scope == Scope::Line(o.line)))
        };
        let (mut objects, mut ports) = (Vec::new(), BTreeSet::new());
        for overlay in named.overlays.values().filter(|o| leads(o)) {
            let Some(port) = named.edge_ports.get(&overlay.port) else { continue };
            objects.push(Object::Overlay(overlay.clone()));
            let number = ports.len();
            if number == EDGE_PORTS_MAX as usize || !ports.insert(&port.name) {
                continue;
            }
            let node = port.node.as_ref().and_then(|node| named.nodes.get(node));
            let here = node.is_some_and(|node| *node.cluster == *cluster);
            let mut port = EdgePort { node: None, number: number as u8, ..told(model, port) };
            match here {
                true => port.at.clear(),
                false => port.interface = None,
            }
            objects.push(Object::EdgePort(Box::new(port)));
        }
        objects
    }

    /// As documents of a node, with a Gateway.
    fn objects(self, addresses: &[IpAddr], cluster: &str) -> Vec<Object> {
        let (model, named) = (self.model, self.model.by_name());
        let names: BTreeSet<Name> = self.vms.iter().map(name_of).collect();
        let mut objects = BTreeMap::new();
        let mut put = |object: Object| drop(objects.insert((object.kind(), object.name()), object));
        let peerings = model.objects(Kind::Peering).filter_map(|o| match o {
            Object::Peering(p) if p.vpcs.iter().all(|v| self.vpcs.contains(v)) => Some(p),
            _ => None,
        });
        let peerings: Vec<_> = if self.vpcs.len() > 1 { peerings.collect() } else { Vec::new() };
        for vpc in &self.vpcs {
            let Some(Object::Vpc(mut vpc)) = model.get(Kind::Vpc, vpc) else { continue };
            vpc.peerings.retain(|name| peerings.iter().any(|p| p.name == *name));
            put(Object::Vpc(vpc));
        }
        let mut ncs = Vec::new();
        for name in self.vms.iter().map(|vm| &vm.nc).collect::<BTreeSet<_>>() {
            let Some(Object::Nc(mut nc)) = model.get(Kind::Nc, name) else { continue };
            nc.vpcs.retain(|vpc| self.vpcs.contains(vpc));
            ncs.push(nc.address);
            put(Object::Nc(nc));
        }
        put(Object::Gateway(Box::new(gateway(addresses, &ncs))));
        peerings.into_iter().for_each(|p| put(Object::Peering(p)));
        self.lines(cluster).into_iter().for_each(&mut put);
        self.vms.into_iter().for_each(|vm| put(Object::Vm(vm)));
        self.routes.into_iter().for_each(&mut put);
        named.snats.values().filter(|s| self.vpcs.contains(&s.vpc)).for_each(|s| put(Object::Snat(s.clone())));
        named.pools.values().for_each(|p| put(Object::PublicPool(p.clone())));
        let elastics = named.elastics.values().filter(|e| e.vms().all(|(_, vm)| names.contains(vm)));
        elastics.for_each(|e| put(Object::ElasticIp(e.clone())));
        let mut groups: Vec<Name> = Vec::new();
        for binding in named.bindings.values().filter(|b| self.vpcs.contains(&b.vpc)) {
            let mut binding = binding.clone();
            binding.vms.retain(|vm| names.contains(vm));
            groups.extend(binding.groups.iter().cloned());
            put(Object::SecurityBinding(binding));
        }
        let mut known = BTreeSet::new();
        while let Some(name) = groups.pop() {
            let Some(group) = named.groups.get(&name).filter(|_| known.insert(name)) else { continue };
            groups.extend(group.references.iter().map(|(_, name)| name.clone()));
            put(Object::SecurityGroup(group.clone()));
        }
        objects.into_values().collect()
    }
}

/// The first address of each family.
pub fn first_of_each(addresses: &[IpAddr]) -> (Option<Ipv4Addr>, Option<Ipv6Addr>) {
    let v4 = addresses.iter().find_map(|a| if let IpAddr::V4(a) = a { Some(*a) } else { None });
    let v6 = addresses.iter().find_map(|a| if let IpAddr::V6(a) = a { Some(*a) } else { None });
    (v4, v6)
}

/// A gateway of a cluster with these addresses, or made-up ones that no NC has, with a router that is made up.
fn gateway(addresses: &[IpAddr], ncs: &[IpAddr]) -> Gateway {
    let free4 = (1..).map(|n| Ipv4Addr::new(198, 18, 0, n)).find(|a| !ncs.contains(&IpAddr::V4(*a)));
    let free6 = (1..).map(|n| Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0, n)).find(|a| !ncs.contains(&IpAddr::V6(*a)));
    let (of4, of6) = first_of_each(addresses);
    let via = Via {
        ipv4: Some(Ipv4Addr::new(198, 18, 255, 254)),
        ipv6: Some(Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0xff, 0xfe)),
    };
    Gateway { vtep4: of4.or(free4), vtep6: of6.or(free6), via, ..Gateway::new("trace".into()) }
}
