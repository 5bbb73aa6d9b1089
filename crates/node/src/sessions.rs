// SPDX-License-Identifier: Apache-2.0
//! `tunny get sessions` and `tunny get ports`: what there is, in pieces. A node may hold a hundred million sessions: nobody ever
//! has all of them in memory.

use crate::conntrack::Conntrack;
use crate::counters::monotonic_ns;
use crate::error::NodeError;
use crate::listing::Pages;
use crate::types::Counters;
use abi::Vni;
use conntrack::nat::ElasticUse;
use conntrack::{Cursor, Filter, Owner, SessionInfo, State, TenantLimits, Tracker};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

/// The drop reason of a connection whose public endpoint and destination another one in force has.
const CONFLICT: &str = "nat_conflict";

/// Records that are looked at for one piece.
const PIECE: u32 = 16_384;

/// Which sessions are wanted, and how many.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SessionQuery {
    /// Name of a VPC.
    pub vpc: Option<String>,
    /// `tcp`, `udp`, `icmp`, `icmpv6`, or a number.
    pub protocol: Option<String>,
    /// The VM's address.
    pub vm: Option<IpAddr>,
    /// The VM's port.
    pub vm_port: Option<u16>,
    /// The public address.
    pub public: Option<IpAddr>,
    /// The public port.
    pub public_port: Option<u16>,
    /// The other side's address.
    pub remote: Option<IpAddr>,
    /// The other side's port.
    pub remote_port: Option<u16>,
    /// A state, as the list shows it.
    pub state: Option<String>,
    /// Sessions at most; 0: all.
    pub limit: u64,
}

/// One session.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionView {
    /// VNI.
    pub vni: u32,
    /// Name of the VPC.
    pub vpc: String,
    /// Protocol.
    pub protocol: String,
    /// The VM's address.
    pub vm: String,
    /// The VM's port, or identifier of an ICMP query.
    pub vm_port: u16,
    /// The public address; none: it is between two ends inside, and nothing is translated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub public: Option<String>,
    /// The public port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub public_port: Option<u16>,
    /// Between two ends inside: VNI of the other one; none beyond a wire.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote_vni: Option<u32>,
    /// The other side's address.
    pub remote: String,
    /// The other side's port.
    pub remote_port: u16,
    /// `out`: the VM began it.
    pub direction: String,
    /// State.
    pub state: String,
    /// Seconds since it began.
    pub age_s: u64,
    /// Seconds since its last packet.
    pub idle_s: u64,
    /// Packets both ways.
    pub packets: u64,
    /// Bytes both ways.
    pub bytes: u64,
}

/// What `--protocol` takes.
const PROTOCOLS: &str = "; there are tcp, udp, icmp, icmpv6, and numbers from 0 to 255";

/// Name of a protocol.
pub fn protocol_name(number: u8) -> String {
    match number {
        1 => "icmp".into(),
        6 => "tcp".into(),
        17 => "udp".into(),
        58 => "icmpv6".into(),
        n => n.to_string(),
    }
}

impl SessionQuery {
    /// As the tracker understands it.
    pub fn filter(&self, vpcs: &BTreeMap<Vni, String>) -> Result<Filter, NodeError> {
        let unknown =
            |what: &str, name: &str, known: &str| NodeError::Request(format!("there is no {what} `{name}`{known}"));
        let vni =
            match &self.vpc {
                Some(name) => {
                    let found = vpcs.iter().find(|(_, n)| *n == name).map(|(vni, _)| *vni);
                    Some(found.ok_or_else(|| {
                        unknown("Vpc", name, " on this node; `tunny get vpc` lists those that there are")
                    })?)
                }
                None => None,
            };
        let proto = match &self.protocol {
            Some(name) => {
                let found = (0..=255).find(|n| protocol_name(*n) == *name || n.to_string() == *name);
                Some(found.ok_or_else(|| unknown("protocol", name, PROTOCOLS))?)
            }
            None => None,
        };
        let state = match &self.state {
            Some(name) => {
                let states = || State::ALL.into_iter().filter(|s| *s != State::None);
                let known = || format!("; there are {}", states().map(State::name).collect::<Vec<_>>().join(", "));
                Some(states().find(|s| s.name() == name).ok_or_else(|| unknown("state", name, &known()))?)
            }
            None => None,
        };
        let Self { vm, vm_port, public, public_port, remote, remote_port, .. } = self.clone();
        Ok(Filter { vni, proto, vm, vm_port, public, public_port, remote, remote_port, state })
    }
}

/// Sessions in pages.
pub struct Listing {
    tracker: Arc<Tracker>,
    filter: Filter,
    vpcs: BTreeMap<Vni, String>,
    at: Option<Cursor>,
    /// Of the state table, and where to go on in it.
    states: (Option<Arc<conntrack_compact::Shared>>, Option<u64>),
    left: u64,
    /// One was found that the limit leaves out.
    more: bool,
}

impl Listing {
    /// From the beginning.
    pub fn new(conntrack: &Conntrack, query: &SessionQuery, vpcs: BTreeMap<Vni, String>) -> Result<Listing, NodeError> {
        let left = if query.limit == 0 { u64::MAX } else { query.limit };
        let filter = query.filter(&vpcs)?;
        let (nat, at) = (conntrack.connections(), Some(Cursor::default()));
        let states = (nat.states().clone(), Some(0));
        Ok(Listing { tracker: nat.tracker().clone(), filter, vpcs, at, states, left, more: false })
    }

    /// Who asks for a public address or port does not mean connections inside, which have none.
    fn hides(&self, s: &SessionInfo) -> bool {
        s.owner == Owner::Filter && (self.filter.public.is_some() || self.filter.public_port.is_some())
    }

    fn put(&self, text: &mut Vec<u8>, s: &SessionInfo, now: u64) {
        let ago = |t: u64| now.saturating_sub(t) / 1_000_000_000;
        let inside = s.owner == Owner::Filter;
        let view = SessionView {
            vni: s.inner.vni().0,
            vpc: self.vpcs.get(&s.inner.vni()).cloned().unwrap_or_default(),
            protocol: protocol_name(s.inner.proto()),
            vm: s.inner.vm().to_string(),
            vm_port: s.inner.vm_port(),
            public: (!inside).then(|| s.outer.public().to_string()),
            public_port: (!inside).then(|| s.outer.public_port()),
            remote_vni: Some(s.outer.vni_bits().0).filter(|vni| inside && *vni != 0),
            remote: s.inner.remote().to_string(),
            remote_port: s.inner.remote_port(),
            direction: if s.from_outside { "in" } else { "out" }.into(),
            state: s.state.name().into(),
            age_s: ago(s.start),
            idle_s: ago(s.last),
            packets: s.counts.packets,
            bytes: s.counts.bytes,
        };
        // Writing to memory cannot fail.
        let _ = serde_json::to_writer(&mut *text, &view);
        text.push(b'\n');
    }

    /// Takes one that is looked at, if it is wanted.
    fn take(&mut self, text: &mut Vec<u8>, s: &SessionInfo, now: u64) {
        if self.hides(s) {
            return;
        }
        match self.left {
            0 => self.more = true,
            _ => {
                self.left -= 1;
                self.put(text, s, now);
            }
        }
    }

    /// Of connections of the state table, which come behind the sessions.
    fn states_page(&mut self, text: &mut Vec<u8>, now: u64) {
        let Some((table, from)) = self.states.0.clone().zip(self.states.1) else { return };
        let (list, next) = table.list(from, u64::from(PIECE));
        self.states.1 = next;
        for (key, c) in list {
            let info = crate::states::as_session(&key, &c, now);
            if self.filter.matches(&info) {
                self.take(text, &info, now);
            }
        }
    }

    fn ended(&self) -> bool {
        self.at.is_none() && (self.states.0.is_none() || self.states.1.is_none())
    }
}

impl Pages for Listing {
    /// The sessions among the next records; none if none of these is wanted.
    fn next_page(&mut self) -> Result<(Vec<u8>, u64), NodeError> {
        let (before, now, mut text) = (self.left, monotonic_ns(), Vec::new());
        match self.at {
            Some(from) => {
                let (tracker, filter) = (self.tracker.clone(), self.filter.clone());
                self.at = tracker.list(from, PIECE, &filter, now, &mut |_, s| self.take(&mut text, s, now));
            }
            None => self.states_page(&mut text, now),
        }
        Ok((text, before - self.left))
    }

    fn over(&self) -> bool {
        self.left == 0 || self.ended()
    }

    fn rest(&mut self) -> Option<String> {
        while !self.more && !self.ended() {
            self.next_page().ok()?;
        }
        self.more.then(|| "-".into())
    }
}

/// How full a pool is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PoolView {
    /// Name.
    pub pool: String,
    /// Addresses that Snat may use.
    pub addresses: u64,
    /// Ports of these.
    pub ports: u64,
    /// Ports that VMs hold, in blocks.
    pub held: u64,
    /// Percent.
    pub percent: f64,
    /// Connections over ports that are reused.
    pub reused: u64,
}

/// What a VPC holds, and was refused.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TenantView {
    /// VNI.
    pub vni: u32,
    /// Name of the VPC.
    pub vpc: String,
    /// Ports that its VMs hold.
    pub ports: u64,
    /// Its limit of ports.
    pub ports_limit: u64,
    /// Connections over ports that are reused.
    pub reused: u64,
    /// Sessions.
    pub sessions: u64,
    /// Those of them that the fast path serves: settled, without a RST in doubt, not between two ends inside, `offload` is on, and the
    /// node runs XDP.
    #[serde(default)]
    pub sessions_fast: u64,
    /// Its limit of sessions.
    pub sessions_limit: u64,
    /// Its limit of sessions of one VM.
    #[serde(default)]
    pub vm_sessions_limit: u64,
    /// Half-open sessions.
    pub half_open: u64,
    /// Its limit of those.
    #[serde(default)]
    pub half_open_limit: u64,
    /// Sessions evicted for newer ones.
    pub evicted: u64,
    /// New connections refused, by what refused them.
    pub refused: BTreeMap<String, u64>,
}

/// Ports of one address that a VM holds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HolderView {
    /// VNI.
    pub vni: u32,
    /// Name of the VPC.
    pub vpc: String,
    /// The VM's address.
    pub vm: String,
    /// Public address.
    pub public: String,
    /// First port.
    pub first: u16,
    /// Last port.
    pub last: u16,
    /// In use by TCP.
    pub tcp: u32,
    /// In use by UDP.
    pub udp: u32,
    /// In use by ICMP queries.
    pub icmp: u32,
}

/// Ports of a public address that lead to a VM by an ElasticIp, whether in use or not.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ElasticView {
    /// VNI.
    pub vni: u32,
    /// Name of the VPC.
    pub vpc: String,
    /// The VM's address.
    pub vm: String,
    /// Public address.
    pub public: String,
    /// Protocol of a forward; none: the address stands for the VM, with all protocols and ports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<String>,
    /// First port.
    pub first: u16,
    /// Last port.
    pub last: u16,
    /// The VM's port for the first one.
    pub vm_port: u16,
}

/// `GET /v1/ports`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Ports {
    /// Pools.
    pub pools: Vec<PoolView>,
    /// VPCs.
    pub vpcs: Vec<TenantView>,
    /// Who holds which ports.
    pub holders: Vec<HolderView>,
    /// Which ones lead to whom by configuration.
    #[serde(default)]
    pub elastic: Vec<ElasticView>,
    /// Whether there is more of these two than was asked for.
    pub more: bool,
    /// Packets to and from the Internet that each engine sent on.
    #[serde(default)]
    pub packets: Shares,
}

/// How the two engines share something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Shares {
    /// The fast path's part.
    pub fast: u64,
    /// The software path's part.
    pub software: u64,
}

/// How full pools are.
pub fn pools(conntrack: &Conntrack) -> Vec<PoolView> {
    let percent = |p: &conntrack::nat::PoolUse| if p.ports == 0 { 0.0 } else { p.held as f64 / p.ports as f64 * 100.0 };
    let view = |p: conntrack::nat::PoolUse| PoolView {
        percent: percent(&p),
        pool: p.name,
        addresses: p.addresses,
        ports: p.ports,
        held: p.held,
        reused: p.reused,
    };
    conntrack.connections().nat().translator().pool_use().into_iter().map(view).collect()
}

fn with_limits(view: TenantView, limits: TenantLimits) -> TenantView {
    let TenantLimits { sessions, vm_sessions, half_open } = limits;
    let [sessions_limit, vm_sessions_limit, half_open_limit] = [sessions, vm_sessions, half_open].map(u64::from);
    TenantView { sessions_limit, vm_sessions_limit, half_open_limit, ..view }
}

/// What VPCs hold. `xdp`: there is a fast path.
pub fn tenants(conntrack: &Conntrack, vpcs: &BTreeMap<Vni, String>, counters: &Counters, xdp: bool) -> Vec<TenantView> {
    let plan = conntrack.plan();
    let conflicts: BTreeMap<Vni, u64> =
        counters.tenants.iter().map(|t| (Vni(t.vni), t.drops.get(CONFLICT).copied().unwrap_or(0))).collect();
    let mut list: BTreeMap<Vni, TenantView> = BTreeMap::new();
    let name = |vni: Vni| vpcs.get(&vni).cloned().unwrap_or_default();
    for t in conntrack.connections().nat().translator().tenant_use() {
        let refused =
            [("ports_of_pools", t.refused_dry), ("ports_of_vpc", t.refused_tenant), ("ports_of_vm", t.refused_vm)];
        let refused = refused.map(|(k, n)| (k.to_string(), n)).into();
        let (vni, ports, ports_limit, reused) = (t.vni, t.ports, t.ports_max, t.reused);
        // A VPC that never had a session is not known to the tracker.
        let limits = plan.limits.get(&vni).copied().unwrap_or_else(|| TenantLimits::share_of(plan.sessions));
        let view = TenantView { vni: vni.0, vpc: name(vni), ports, ports_limit, reused, refused, ..Default::default() };
        list.insert(vni, with_limits(view, limits));
    }
    for t in conntrack.connections().tracker().tenants() {
        if !list.contains_key(&t.vni) && (t.sessions == 0 || !vpcs.contains_key(&t.vni)) {
            continue;
        }
        let view = list.entry(t.vni).or_insert_with(|| {
            let view = TenantView { vni: t.vni.0, vpc: name(t.vni), ..Default::default() };
            with_limits(view, t.limits)
        });
        view.sessions = t.sessions.into();
        view.half_open = t.half_open.into();
        let software = plan.policies.get(&t.vni).is_none_or(|policy| policy & abi::POLICY_SOFTWARE != 0);
        view.sessions_fast = if software || !xdp { 0 } else { t.fast.into() };
        view.evicted = t.evicted;
        let refused = [
            ("sessions_of_vpc", t.refused_tenant),
            ("sessions_of_vm", t.refused_vm),
            ("half_open", t.refused_half_open),
            ("sessions_of_node", t.refused_full),
        ];
        view.refused.extend(refused.map(|(k, n)| (k.to_string(), n)));
        view.refused.insert("conflict".into(), conflicts.get(&t.vni).copied().unwrap_or(0));
    }
    list.into_values().collect()
}

/// The elastic addresses and forwards that a query chooses.
fn elastic(conntrack: &Conntrack, wanted: &Filter, vpcs: &BTreeMap<Vni, String>) -> Vec<ElasticView> {
    let mut list = Vec::new();
    for e in conntrack.plan().spec.elastics {
        let public = std::net::Ipv4Addr::from_bits(e.addr);
        let mut put = |proto: Option<u8>, (first, last): (u16, u16), (vm, vm_port): (u32, u16)| {
            let vm = std::net::Ipv4Addr::from_bits(vm);
            let is = |filter: Option<IpAddr>, a| filter.is_none_or(|f| f == IpAddr::V4(a));
            let same = is(wanted.public, public) && is(wanted.vm, vm) && wanted.vni.is_none_or(|v| v == e.vni);
            let port = wanted.public_port.is_none_or(|p| (first..=last).contains(&p));
            if same && port && wanted.proto.is_none_or(|p| proto.is_none_or(|own| own == p)) {
                let (vpc, protocol) = (vpcs.get(&e.vni).cloned().unwrap_or_default(), proto.map(protocol_name));
                let (vm, public) = (vm.to_string(), public.to_string());
                list.push(ElasticView { vni: e.vni.0, vpc, vm, public, protocol, first, last, vm_port });
            }
        };
        match &e.usage {
            ElasticUse::Vm(vm) => put(None, (0, u16::MAX), (*vm, 0)),
            ElasticUse::Forwards(all) => {
                all.iter().for_each(|f| put(Some(f.protocol as u8), (f.first, f.last), (f.vm_addr, f.vm_port)));
            }
        }
    }
    list.sort_by(|a, b| (&a.public, a.first).cmp(&(&b.public, b.first)));
    list
}

/// Pools, VPCs, and of holders of ports and elastic addresses that the query chooses at most `limit` each.
pub fn ports(
    conntrack: &Conntrack,
    query: &SessionQuery,
    vpcs: &BTreeMap<Vni, String>,
    counters: &Counters,
    xdp: bool,
) -> Result<Ports, NodeError> {
    let packets = Shares { fast: counters.fast.nat, software: counters.software.nat };
    let filter = query.filter(vpcs)?;
    let limit = if query.limit == 0 { usize::MAX } else { usize::try_from(query.limit).unwrap_or(usize::MAX) };
    let (mut holders, mut more) = (Vec::new(), false);
    let wanted = |vni: Vni, vm: std::net::Ipv4Addr| {
        filter.vni.is_none_or(|v| v == vni) && filter.vm.is_none_or(|a| a == IpAddr::V4(vm))
    };
    conntrack.connections().nat().translator().holders(wanted, |h| {
        let in_block = filter.public_port.is_none_or(|p| p >= h.first && p - h.first < 64);
        if !in_block || filter.public.is_some_and(|a| a != IpAddr::V4(h.addr)) {
            return true;
        }
        more = holders.len() >= limit;
        if !more {
            let [icmp, tcp, udp] = h.used;
            let (vm, public, vpc) =
                (h.vm.to_string(), h.addr.to_string(), vpcs.get(&h.vni).cloned().unwrap_or_default());
            holders.push(HolderView {
                vni: h.vni.0,
                vpc,
                vm,
                public,
                first: h.first,
                last: h.first + 63,
                tcp,
                udp,
                icmp,
            });
        }
        !more
    });
    holders.sort_by(|a, b| (&a.public, a.first).cmp(&(&b.public, b.first)));
    let mut elastic = elastic(conntrack, &filter, vpcs);
    more |= elastic.len() > limit;
    elastic.truncate(limit);
    let mut tenants = tenants(conntrack, vpcs, counters, xdp);
    tenants.retain(|t| filter.vni.is_none_or(|vni| vni == Vni(t.vni)));
    Ok(Ports { pools: pools(conntrack), vpcs: tenants, holders, elastic, more, packets })
}
