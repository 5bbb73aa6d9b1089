// SPDX-License-Identifier: Apache-2.0
//! From the model to what concerns connections: translation, limits and timeouts of sessions, rules, state table, public addresses.

use crate::edge::EdgePlan;
use crate::mirror::MirrorPlan;
use abi::Vni;
use conntrack::nat::{ElasticSpec, ElasticUse, Filtering, Forward, NatSpec, PoolSpec, SnatSpec};
use conntrack::{OwnTimeouts, TenantLimits, Timeouts};
use model::*;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tables::PublicPrefix;

/// An inline pair by the names of its ports, and who is behind it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InlinePlan {
    /// Its ends.
    pub pair: InlinePair,
    /// Addresses behind its server side, and the VPC of each.
    pub servers: Vec<(Prefix, Vni)>,
}

/// All that a configuration says of connections.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ConntrackPlan {
    /// For the translator.
    pub spec: NatSpec,
    /// For the tables: which addresses are ours.
    pub public: Vec<PublicPrefix>,
    /// For the tables: POLICY_* flags of each VPC that is served, and in the upper 32 bits a number that differs when its
    /// sessions must be judged again.
    pub policies: BTreeMap<Vni, u64>,
    /// For the sessions: limits of VPCs that have own ones.
    pub limits: BTreeMap<Vni, TenantLimits>,
    /// For the sessions: timeouts of those that have own ones.
    pub own_timeouts: BTreeMap<Vni, OwnTimeouts>,
    /// For the sessions: the node's timeouts, and how many sessions there may be.
    pub timeouts: Timeouts,
    /// See `timeouts`.
    pub sessions: u32,
    /// For the filter.
    pub filter: FilterPlan,
    /// For the tables: inline pairs of a node in role filter.
    pub inline: Vec<InlinePlan>,
    /// For the tables: ports towards customers and their circuits.
    pub edge: EdgePlan,
    /// For the filter: the state table of connections inside; none: sessions.
    pub states: Option<conntrack_compact::Spec>,
    /// Its agent, if that is on another host.
    pub agent: Option<RemoteAgent>,
    /// For the sessions: the tunnel addresses of all NCs, which nobody may reach by way of the Internet.
    pub tunnel_ends: Arc<HashSet<IpAddr>>,
    /// For the sessions: VPCs of which another cluster may have some, and its tunnel addresses.
    pub handovers: BTreeMap<Vni, (HandoverRole, Vec<IpAddr>)>,
    /// For the software path: what is mirrored.
    pub mirrors: Vec<MirrorPlan>,
    /// For it: weights of VPCs whose connections migrate, where they are not 1.
    pub weights: BTreeMap<Vni, u32>,
}

/// The plan for the configuration as it is.
pub(crate) fn plan(model: &Model) -> ConntrackPlan {
    let timeouts = model.gateway().map_or_else(Timeouts::default, |g| durations(&g.timeouts));
    let mut plan = ConntrackPlan { timeouts, sessions: model.limits().sessions, ..ConntrackPlan::default() };
    let positions: HashMap<&Name, usize> = model.by_name().pools.keys().enumerate().map(|(i, n)| (n, i)).collect();
    plan.states = model.gateway().and_then(state_table);
    plan.agent = model.gateway().and_then(|g| g.agent.clone()).filter(|_| plan.states.is_some());
    if plan.states.is_some_and(|s| s.migration.is_some()) {
        let vpcs = model.vpcs_by_vni().into_iter().map(|(vni, vpc)| (vni, u32::from(vpc.spec().weight)));
        plan.weights = vpcs.filter(|(_, weight)| *weight != 1).collect();
    }
    plan.spec.pools = model.by_name().pools.values().map(|p| pool(p, model.own_name())).collect();
    let vni = |vpc: &Name| model.vpc_of_name(vpc).map(|vpc| vpc.spec().vni);
    for s in model.by_name().snats.values() {
        let Some(vni) = vni(&s.vpc) else { continue };
        plan.spec.snats.push(snat(s, vni, &positions));
        plan.limits.insert(vni, limits_of(s.limits.own, TenantLimits::share_of(plan.sessions)));
        if s.timeouts != OwnTimeouts::default() {
            plan.own_timeouts.insert(vni, s.timeouts);
        }
        *plan.policies.entry(vni).or_default() |= if s.offload { 0 } else { abi::POLICY_SOFTWARE };
    }
    plan.spec.elastics = model.by_name().elastics.values().filter_map(|e| elastic(model, e)).collect();
    for e in &plan.spec.elastics {
        plan.policies.entry(e.vni).or_default();
    }
    finish_policies(model, &mut plan);
    plan.filter = model.filter();
    for (vni, version) in &plan.filter.versions {
        let vpc = model.vpc_of_vni(*vni).map(|vpc| vpc.spec());
        let pick_up = if vpc.is_some_and(|v| v.pick_up) { abi::POLICY_PICKUP } else { 0 };
        *plan.policies.entry(*vni).or_default() ^= abi::POLICY_FILTER | version >> 32 << 32;
        *plan.policies.entry(*vni).or_default() |= pick_up;
    }
    own_limits(model, &mut plan);
    plan.public = public(model, &plan.spec);
    plan.inline = inline(model);
    plan.edge = crate::edge::plan(model);
    plan.tunnel_ends = model.tunnel_ends();
    plan.mirrors = crate::mirror::plan(model);
    let handover = |h: &Handover| Some((vni(&h.vpc)?, (h.role, h.to.clone())));
    plan.handovers = model.by_name().handovers.values().filter_map(|h| handover(h)).collect();
    plan
}

/// What the documents of VPCs say of their limits: of those that have sessions, and of their peers, in whose name some are counted.
fn own_limits(model: &Model, plan: &mut ConntrackPlan) {
    let vpc = |vni: &Vni| model.vpc_of_vni(*vni).map(|vpc| vpc.spec());
    let mut vnis: BTreeSet<Vni> = plan.policies.keys().copied().collect();
    for name in plan.policies.keys().filter_map(vpc).flat_map(|v| &v.peerings) {
        vnis.extend(model.peers(name).into_iter().flatten().map(|vpc| vpc.spec().vni));
    }
    for vni in vnis {
        let Some(limits) = vpc(&vni).map(|v| v.limits).filter(|l| *l != VpcLimits::default()) else { continue };
        let other = plan.limits.get(&vni).copied();
        plan.limits.insert(vni, limits_of(limits, other.unwrap_or_else(|| TenantLimits::share_of(plan.sessions))));
    }
}

fn elastic(model: &Model, e: &ElasticIp) -> Option<ElasticSpec> {
    let mut vpc = None;
    let mut address = |vm: &Name| {
        let (v, a) = model.vm_ipv4(vm)?;
        vpc = Some(v);
        Some(u32::from(a))
    };
    let usage = match &e.vm {
        Some(vm) => ElasticUse::Vm(address(vm)?),
        None => {
            let forward = |f: &PortForward| {
                let vm_addr = address(&f.vm)?;
                let protocol = match f.protocol {
                    Protocol::Tcp => conntrack::nat::Protocol::Tcp,
                    Protocol::Udp => conntrack::nat::Protocol::Udp,
                };
                Some(Forward { protocol, first: f.first, last: f.last, vm_addr, vm_port: f.port })
            };
            ElasticUse::Forwards(e.forwards.iter().filter_map(forward).collect())
        }
    };
    Some(ElasticSpec { addr: e.address.into(), vni: vpc?.spec().vni, usage })
}

/// Completes the policies: flags, and a number made of all that a session is judged by.
fn finish_policies(model: &Model, plan: &mut ConntrackPlan) {
    let mut elastics: HashMap<Vni, Vec<&ElasticSpec>> = HashMap::new();
    plan.spec.elastics.iter().for_each(|e| elastics.entry(e.vni).or_default().push(e));
    let snats: HashMap<Vni, &SnatSpec> = plan.spec.snats.iter().map(|s| (s.vni, s)).collect();
    for (vni, policy) in &mut plan.policies {
        let mut hash = DefaultHasher::new();
        let snat = snats.get(vni);
        (snat, elastics.get(vni)).hash(&mut hash);
        let pools = snat.into_iter().flat_map(|s| &s.pools).filter_map(|p| plan.spec.pools.get(*p));
        pools.for_each(|p| p.hash(&mut hash));
        let vpc = model.vpc_of_vni(*vni).map(|vpc| vpc.spec());
        let pick_up = if vpc.is_some_and(|v| v.pick_up) { abi::POLICY_PICKUP } else { 0 };
        *policy |= abi::POLICY_NAT | pick_up | hash.finish() >> 32 << 32;
    }
}

/// Pools and announced prefixes, and those of their addresses that anyone may send to.
fn public(model: &Model, spec: &NatSpec) -> Vec<PublicPrefix> {
    let open: Vec<&Name> = model.by_name().snats.values().filter(|s| s.open).flat_map(|s| &s.pools).collect();
    let mut list = Vec::new();
    for p in model.by_name().pools.values() {
        let accepts = open.contains(&&p.name);
        let prefixes = p.ranges.iter().flat_map(AddressRange::prefixes);
        list.extend(prefixes.map(|prefix| PublicPrefix { prefix, accepts }));
    }
    for s in model.by_name().snats.values() {
        let accepts = s.ipv6_inbound;
        list.extend(s.ipv6_prefixes.iter().map(|prefix| PublicPrefix { prefix: *prefix, accepts }));
    }
    let host = |e: &ElasticSpec| IpAddr::V4(e.addr.into()).into();
    list.extend(spec.elastics.iter().map(|e| PublicPrefix { prefix: host(e), accepts: true }));
    list
}

/// The inline pairs of the configuration as it is, in their order.
pub(crate) fn inline(model: &Model) -> Vec<InlinePlan> {
    let pairs = model.gateway().map_or(&[][..], |g| &g.inline);
    let plan = |pair: &InlinePair| {
        let mut servers = Vec::new();
        for s in model.by_name().servers.values().filter(|s| s.port == pair.server) {
            let Some(vni) = model.vpc_of_name(&s.vpc).map(|vpc| vpc.spec().vni) else { continue };
            servers.extend(s.addresses.iter().map(|p| (*p, vni)));
        }
        InlinePlan { pair: pair.clone(), servers }
    };
    pairs.iter().map(plan).collect()
}

/// The timeouts of a Gateway, for the sessions.
pub fn durations(seconds: &model::Timeouts) -> Timeouts {
    let mut timeouts = Timeouts::default();
    for (timeout, s) in timeouts.each().into_iter().zip(seconds) {
        *timeout = Duration::from_secs((*s).into());
    }
    timeouts
}

/// What a document says of limits, and where it says nothing `other`.
fn limits_of(own: VpcLimits, other: TenantLimits) -> TenantLimits {
    let or = |own: u32, other: u32| if own == 0 { other } else { own };
    TenantLimits {
        sessions: or(own.sessions, other.sessions),
        vm_sessions: or(own.vm_sessions, other.vm_sessions),
        half_open: or(own.half_open, other.half_open),
    }
}

/// The state table of a Gateway, if there is to be one.
pub fn state_table(g: &Gateway) -> Option<conntrack_compact::Spec> {
    let s = g.states;
    let kind = match s.kind? {
        StateKind::Compact => conntrack_compact::TableKind::Compact,
        StateKind::Digest => conntrack_compact::TableKind::Digest,
    };
    let usual = conntrack_compact::Spec::new(kind, s.connections, s.wide.unwrap_or(s.connections / 4));
    let migration = g.migration.map(|m| conntrack_compact::MigrationOptions {
        connections: m.connections,
        begin: m.begin,
        end: m.end,
        unit4: m.unit4,
        unit6: m.unit6,
    });
    let (registers, fingerprint) = (s.registers.unwrap_or(usual.registers), s.fingerprint);
    Some(conntrack_compact::Spec { registers, fingerprint, migration, ..usual })
}

fn pool(p: &PublicPool, own: Option<&str>) -> PoolSpec {
    let ranges = p.ranges.iter().map(|r| (r.first.into(), r.last.into())).collect();
    let shares = (!p.shares.is_empty()).then(|| shares(p, own).map(|(_, share)| share).collect());
    PoolSpec { name: p.name.to_string(), ranges, ports: p.ports, block: p.block, reuse: p.reuse_ports, shares }
}

/// The shares of a pool that a node has, as described and as the translator takes them.
pub fn shares<'p>(
    pool: &'p PublicPool,
    own: Option<&'p str>,
) -> impl Iterator<Item = (&'p Share, conntrack::nat::Share)> {
    let mine = pool.shares.iter().filter(move |s| own.is_some() && s.node.as_deref() == own);
    mine.map(|s| {
        let addresses = (s.range.first.into(), s.range.last.into());
        (s, conntrack::nat::Share { addresses, ports: s.ports.unwrap_or((0, u16::MAX)), leaving: s.leaving })
    })
}

fn snat(s: &Snat, vni: Vni, pools: &HashMap<&Name, usize>) -> SnatSpec {
    let bounds = |p: &Prefix| match p {
        Prefix::V6(net) => Some((net.addr().into(), net.broadcast().into())),
        Prefix::V4(_) => None,
    };
    SnatSpec {
        vni,
        pools: s.pools.iter().filter_map(|p| pools.get(p).copied()).collect(),
        filtering: if s.open { Filtering::EndpointIndependent } else { Filtering::AddressAndPortDependent },
        ipv6: s.ipv6_prefixes.iter().filter_map(bounds).collect(),
        ipv6_inbound: s.ipv6_inbound,
        ports_max: s.limits.ports.into(),
        vm_ports_max: s.limits.vm_ports,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_holds_if_nothing_is_said_is_the_same_there_and_here() {
        assert_eq!(durations(&usual_timeouts()), Timeouts::default());
        let m = conntrack_compact::MigrationOptions::default();
        let text = "apiVersion: tunny/v1\nkind: Gateway\nmetadata: {name: g}\nspec: {vtep: {ipv4: 192.0.2.1}, filter: {states: compact, migration: {begin: 90}}}";
        let docs = parse_text("x.yaml", text).unwrap();
        let Object::Gateway(g) = &docs.puts[0].object else { panic!() };
        assert_eq!(state_table(g).unwrap().migration, Some(m));
        for (limit, name) in [(conntrack_compact::WIDTH4, "unit4"), (conntrack_compact::WIDTH6, "unit6")] {
            let path = format!("spec.filter.migration.{name}");
            let field = schema::fields(Kind::Gateway).iter().find(|f| f.path == path).unwrap();
            assert_eq!(field.allowed, format!("1 to {limit}"));
        }
    }
}
