// SPDX-License-Identifier: Apache-2.0
//! `GET /v1/search`: Tenants, VPCs, VMs and what carries them, by a part of a name, a VNI or an address; and what a Tenant has. Who
//! asks finds what it may see: a tenant's own objects are looked through, since an index of all would be full of others.

use crate::refusal::Refusal;
use crate::service::{absent, Core};
use controller_core::access::Principal;
use controller_core::region::Region;
use controller_core::search::KINDS;
use ipnet::IpNet;
use model::{Access, Kind, Model, Name, Object, Tenant, Vm};
use node::usage::Usage;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;

/// Results of a kind, if nothing else is asked for, and at most.
const LIMIT: (usize, usize) = (40, 500);
/// Names that are looked at for a kind.
const LOOKED_AT: usize = 20_000;
/// VMs of a tenant that are looked at.
const OWN_LOOKED_AT: usize = 200_000;
/// VPCs of a Tenant that are told one by one.
const VPCS_TOLD: usize = 1000;

/// What is sought.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SearchQuery {
    /// A part of a name, a VNI, an address, a prefix, or the first numbers of an IPv4 address. Nothing: the first Tenants.
    pub q: String,
    /// Results of a kind at most; 0: 40.
    pub limit: usize,
}

/// An object that was found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Found {
    /// Kind.
    pub kind: String,
    /// Name.
    pub name: String,
    /// Its VPC.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub vpc: String,
    /// The VNI of that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vni: Option<u32>,
    /// The Tenant that owns it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub tenant: String,
    /// The cluster that serves it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub cluster: String,
    /// Its addresses.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<String>,
    /// The NC that it is on.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub nc: String,
}

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Results {
    /// Objects, the kinds one after the other.
    pub objects: Vec<Found>,
    /// There may be more.
    pub more: bool,
}

/// A VPC of a Tenant.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VpcSize {
    /// Name.
    pub name: String,
    /// VNI.
    pub vni: u32,
    /// Its VMs.
    pub vms: u64,
    /// Its routes.
    pub routes: u64,
    /// Bits a second that nodes take in for it, as far as they tell.
    pub bits: u64,
}

/// `GET /v1/tenants/NAME`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TenantSummary {
    /// Name.
    pub name: String,
    /// The cluster that serves it; empty: none.
    pub cluster: String,
    /// How many VPCs it owns.
    pub vpcs: u64,
    /// VMs in them.
    pub vms: u64,
    /// Routes in them.
    pub routes: u64,
    /// Bits a second that nodes take in for them, as far as they tell.
    pub bits: u64,
    /// Drops a second, by reason.
    pub drops: BTreeMap<String, u64>,
    /// Which path of the nodes serves it, `fast` or `software`; empty: it is nowhere.
    pub path: String,
    /// Why.
    pub why: String,
    /// Packets a second that nodes take in for its VPCs, and of these such as the fast path handed over since they are served in software.
    pub packets: [u64; 2],
    /// The VPCs, the first thousand of them.
    pub listed: Vec<VpcSize>,
}

/// What a Tenant has.
pub fn tenant(core: &Core, who: &Principal, name: &str) -> Result<TenantSummary, Refusal> {
    let model = core.region.model();
    let found = model.get(Kind::Tenant, name).filter(|o| who.sees(model, o));
    let Some(Object::Tenant(tenant)) = found else { return Err(absent(Kind::Tenant, name)) };
    let serving = core.region.serving(&tenant);
    let cluster = serving.map_or(String::new(), |cluster| cluster.to_string());
    let (path, why) = core.path_of(&tenant, &core.slow_clusters());
    let vpcs = tenant.vpcs.len() as u64;
    let mut view = TenantSummary { name: name.into(), cluster, vpcs, path, why, ..TenantSummary::default() };
    let here = model.by_name().nodes.values().filter(|n| Some(&n.cluster) == serving);
    let nodes: Vec<&Usage> = here.filter_map(|n| core.fleet.usage_now(&n.name)).collect();
    for vpc in &tenant.vpcs {
        let (vms, routes) = model.sizes(vpc).unwrap_or_default();
        let bits = nodes.iter().filter_map(|usage| usage.vpcs.get(&**vpc)).sum();
        view.vms += vms;
        view.routes += routes;
        view.bits += bits;
        for counted in nodes.iter().filter_map(|usage| usage.paths.get(&**vpc)) {
            (0..2).for_each(|n| view.packets[n] += counted[n]);
        }
        for (reason, n) in nodes.iter().filter_map(|usage| usage.vpc_drops.get(&**vpc)).flatten() {
            *view.drops.entry(reason.clone()).or_default() += n;
        }
        if let Some(seen) = model.vpc_of_name(vpc).filter(|_| view.listed.len() < VPCS_TOLD) {
            view.listed.push(VpcSize { name: vpc.to_string(), vni: seen.spec().vni.0, vms, routes, bits });
        }
    }
    Ok(view)
}

/// Finds what is sought.
pub fn search(core: &Core, who: &Principal, query: &SearchQuery) -> Results {
    let word = query.q.trim();
    let limit = if query.limit == 0 { LIMIT.0 } else { query.limit.min(LIMIT.1) };
    let (region, model, index) = (&core.region, core.region.model(), core.region.index());
    let mut seek = Seek { region, model, who, limit, told: HashSet::new(), results: Results::default() };
    if word.is_empty() {
        let mut tenants = model.by_name().tenants.values().map(|t| Object::Tenant(t.clone()));
        seek.take_all(&mut tenants);
        return seek.results;
    }
    if let Some(vpc) = word.parse().ok().and_then(|vni| model.vpc_by_vni(abi::Vni(vni))) {
        seek.take_all(&mut model.get(Kind::Vpc, vpc).into_iter());
    }
    if let Some((first, last)) = range(word) {
        seek.between(first, last);
    }
    if word.contains('/') {
        seek.take_all(&mut model.get(Kind::Vm, word).into_iter());
    } else if who.sees_all() {
        for kind in KINDS {
            let mut found = index.containing(model, kind, word, LOOKED_AT);
            seek.take_all(&mut found);
        }
    } else {
        seek.own(word);
    }
    seek.results
}

struct Seek<'a> {
    region: &'a Region,
    model: &'a Model,
    who: &'a Principal,
    limit: usize,
    told: HashSet<(Kind, Name)>,
    results: Results,
}

impl Seek<'_> {
    /// Takes objects of one sort until there are enough.
    fn take_all(&mut self, objects: &mut dyn Iterator<Item = Object>) {
        let mut left = self.limit;
        for object in objects {
            if !self.who.sees(self.model, &object) || !self.told.insert((object.kind(), object.name())) {
                continue;
            }
            if left == 0 {
                self.results.more = true;
                return;
            }
            left -= 1;
            let found = self.found(&object);
            self.results.objects.push(found);
        }
    }

    /// The VPCs of the tenant that asks.
    fn own_vpcs(&self) -> Vec<Name> {
        let tenant = self.who.tenant.as_ref().and_then(|name| self.model.by_name().tenants.get(name));
        tenant.map_or(Vec::new(), |t| t.vpcs.clone())
    }

    fn between(&mut self, first: IpAddr, last: IpAddr) {
        let model = self.model;
        if self.who.access == Access::Tenant {
            let vpcs = self.own_vpcs();
            let found = vpcs.iter().flat_map(|vpc| model.vms_between(Some(vpc), first, last));
            return self.take_all(&mut found.map(Object::Vm));
        }
        if first == last {
            self.take_all(&mut model.nc_with(first).map(Object::Nc).into_iter());
        }
        self.take_all(&mut model.vms_between(None, first, last).map(Object::Vm));
    }

    /// What a tenant may see, by a part of its name.
    fn own(&mut self, word: &str) {
        let (model, vpcs) = (self.model, self.own_vpcs());
        let tenant = self.who.tenant.as_deref().filter(|name| name.contains(word));
        self.take_all(&mut tenant.and_then(|name| model.get(Kind::Tenant, name)).into_iter());
        let named = vpcs.iter().filter(|name| name.contains(word));
        self.take_all(&mut named.filter_map(|name| model.get(Kind::Vpc, name)));
        let mut left = OWN_LOOKED_AT;
        let vms = vpcs.iter().flat_map(|vpc| model.objects_of_vpc(Kind::Vm, vpc)).take_while(|_| {
            left = left.saturating_sub(1);
            left > 0
        });
        self.take_all(&mut vms.filter(|vm| vm.name().contains(word)));
        self.results.more |= left == 0;
    }

    fn found(&self, object: &Object) -> Found {
        let serving =
            |tenant: &Tenant| self.region.serving(tenant).map_or(String::new(), |cluster| cluster.to_string());
        let mut found = Found { kind: object.kind().to_string(), name: object.name().to_string(), ..Found::default() };
        match object {
            Object::Vm(Vm { vpc, addresses, nc, .. }) => {
                found.addresses = addresses.iter().map(|a| a.to_string()).collect();
                (found.vpc, found.nc) = (vpc.to_string(), nc.to_string());
            }
            Object::Vpc(vpc) => found.vpc = vpc.name.to_string(),
            Object::Nc(nc) => found.addresses = vec![nc.address.to_string()],
            Object::Node(node) => found.cluster = node.cluster.to_string(),
            Object::Tenant(tenant) => found.cluster = serving(tenant),
            _ => {}
        }
        if !found.vpc.is_empty() {
            found.vni = self.model.vpc_of_name(&found.vpc).map(|v| v.spec().vni.0);
            let owner = self.region.index().owner(&found.vpc).and_then(|name| self.model.by_name().tenants.get(name));
            if let Some(tenant) = owner {
                found.tenant = tenant.name.to_string();
                found.cluster = serving(tenant);
            }
        }
        found
    }
}

/// The addresses that a word means: one, a prefix, or those that begin with these numbers.
fn range(word: &str) -> Option<(IpAddr, IpAddr)> {
    if let Ok(address) = word.parse::<IpAddr>() {
        return Some((address, address));
    }
    if word.contains('/') {
        let net = word.parse::<IpNet>().ok()?;
        return Some((net.network(), net.broadcast()));
    }
    let parts: Vec<u8> = word.trim_end_matches('.').split('.').map(|p| p.parse().ok()).collect::<Option<_>>()?;
    let whole = |fill| {
        let mut bytes = [fill; 4];
        bytes[..parts.len()].copy_from_slice(&parts);
        IpAddr::V4(bytes.into())
    };
    (2..4).contains(&parts.len()).then(|| (whole(0), whole(255)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_mean_ranges_of_addresses() {
        for (word, first, last) in [
            ("10.0.0.5", "10.0.0.5", "10.0.0.5"),
            ("10.0", "10.0.0.0", "10.0.255.255"),
            ("10.0.7.", "10.0.7.0", "10.0.7.255"),
            ("10.1.2.3/8", "10.0.0.0", "10.255.255.255"),
            ("0.0.0.0/0", "0.0.0.0", "255.255.255.255"),
            ("10.0.0.1/32", "10.0.0.1", "10.0.0.1"),
            ("2001:db8::1", "2001:db8::1", "2001:db8::1"),
            ("2001:db8::/126", "2001:db8::", "2001:db8::3"),
        ] {
            assert_eq!(range(word), Some((first.parse().unwrap(), last.parse().unwrap())), "{word}");
        }
        for word in ["10", "10.", "10.0.0.256", "10.0.0.0/33", "web", "red/10.0.0.1", "1.2.3.4.5", "::/129", ".", ""] {
            assert_eq!(range(word), None, "{word}");
        }
    }
}
