// SPDX-License-Identifier: Apache-2.0
//! What a configuration has a node announce, and why.

use abi::Prefix;
use model::{AddressRange, Announce, Model, PublicPool};
use std::collections::BTreeMap;
use std::net::IpAddr;

/// What is announced, if the node serves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AnnouncePlan {
    /// How.
    pub settings: Announce,
    /// The ports by which what is announced comes.
    pub uplinks: Vec<String>,
    /// What, and whose that is.
    pub prefixes: BTreeMap<Prefix, Vec<String>>,
    /// What is not, although it is this node's, and why.
    pub withheld: BTreeMap<Prefix, String>,
}

/// The plan for the configuration as it is.
pub(crate) fn plan(model: &Model) -> AnnouncePlan {
    let Some(gateway) = model.gateway() else { return AnnouncePlan::default() };
    let (settings, uplinks) = (gateway.announce, gateway.uplinks.clone());
    let mut plan = AnnouncePlan { settings, uplinks, ..AnnouncePlan::default() };
    gateway.vteps().into_iter().flatten().for_each(|vtep| plan.add(vtep.into(), "tunnel address".into()));
    for pool in model.by_name().pools.values() {
        plan.add_pool(pool, model.own_name());
    }
    for e in model.by_name().elastics.values() {
        plan.add(IpAddr::V4(e.address).into(), format!("ElasticIp {}", e.name));
    }
    for s in model.by_name().snats.values() {
        s.ipv6_prefixes.iter().for_each(|prefix| plan.add(*prefix, format!("Snat {}", s.vpc)));
    }
    plan
}

impl AnnouncePlan {
    fn add(&mut self, prefix: Prefix, why: String) {
        self.prefixes.entry(prefix).or_default().push(why);
    }

    /// All of a pool that nobody has divided, else what this node has of it, also of what it leaves: there are sessions.
    fn add_pool(&mut self, pool: &PublicPool, own: Option<&str>) {
        let why = format!("PublicPool {}", pool.name);
        let mut all = |ranges: &mut dyn Iterator<Item = &AddressRange>| {
            ranges.flat_map(AddressRange::prefixes).for_each(|prefix| self.add(prefix, why.clone()));
        };
        if pool.shares.is_empty() {
            return all(&mut pool.ranges.iter());
        }
        let mine = || crate::shares(pool, own).map(|(share, _)| share);
        all(&mut mine().filter(|s| s.ports.is_none()).map(|s| &s.range));
        for share in mine().filter(|s| s.ports.is_some()) {
            let others =
                pool.shares.iter().filter(|o| o.range.overlaps(&share.range)).filter_map(|o| o.node.as_deref());
            let mut others: Vec<&str> = others.filter(|o| Some(*o) != own).collect();
            others.sort_unstable();
            others.dedup();
            for prefix in share.range.prefixes() {
                if others.is_empty() {
                    self.add(prefix, why.clone());
                    continue;
                }
                let with = others.join(", ");
                let text = format!("{why}: its ports are also those of {with}, and routers look at addresses alone; give the pool more addresses than nodes");
                self.withheld.insert(prefix, text);
            }
        }
        for why in self.prefixes.values_mut() {
            why.dedup();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::{parse_text, Model};

    const TEXT: &str = "
{apiVersion: tunny/v1, kind: Gateway, metadata: {name: g}, spec: {vtep: {ipv4: 192.0.2.1, ipv6: '2001:db8::1'}, uplinks: [up0], announce: {state: on}}}
---
{apiVersion: tunny/v1, kind: Vpc, metadata: {name: red}, spec: {vni: 100, gateway: {addresses: [10.0.0.1]}}}
---
{apiVersion: tunny/v1, kind: Nc, metadata: {name: h}, spec: {address: 192.0.2.9}}
---
{apiVersion: tunny/v1, kind: Route, spec: {vpc: red, prefix: 10.0.0.0/24, scope: local}}
---
{apiVersion: tunny/v1, kind: Vm, metadata: {name: web}, spec: {vpc: red, addresses: [10.0.0.5], mac: '02:00:00:00:00:05', nc: h}}
---
{apiVersion: tunny/v1, kind: ElasticIp, metadata: {name: web}, spec: {address: 203.0.113.9, vm: web}}
---
";

    fn of(pool: &str, own: Option<&str>) -> (Vec<String>, Vec<String>) {
        let text =
            format!("{TEXT}{{apiVersion: tunny/v1, kind: PublicPool, metadata: {{name: p}}, spec: {{{pool}}}}}\n");
        let docs = parse_text("x.yaml", &text).unwrap();
        let mut model = Model::from_documents(&docs).unwrap().0;
        model.set_own_name(own.map(Into::into));
        let plan = plan(&model);
        let told = plan.prefixes.iter().map(|(prefix, why)| format!("{prefix} {}", why.join(", ")));
        (told.collect(), plan.withheld.keys().map(Prefix::to_string).collect())
    }

    #[test]
    fn a_lone_node_announces_all_and_a_regions_node_its_shares() {
        let always = ["192.0.2.1/32 tunnel address", "203.0.113.9/32 ElasticIp web", "2001:db8::1/128 tunnel address"];
        let (mut all, withheld) = of("ranges: [203.0.113.8-203.0.113.10]", None);
        assert!(withheld.is_empty());
        all.retain(|told| !told.starts_with("203.0.113.8/31") && !told.starts_with("203.0.113.10/32"));
        assert_eq!(all, always);
        let shares = "ranges: [203.0.113.8/29], shares: ['203.0.113.8/31 a', '203.0.113.10 a leaving', '203.0.113.11 b', '203.0.113.12 -']";
        let (mine, withheld) = of(shares, Some("a"));
        assert!(withheld.is_empty());
        assert_eq!(
            mine[1..4],
            ["203.0.113.8/31 PublicPool p", "203.0.113.9/32 ElasticIp web", "203.0.113.10/32 PublicPool p"]
        );
        assert_eq!(mine.len(), 5, "{mine:?}");
        let (theirs, _) = of(shares, Some("b"));
        assert!(theirs.contains(&"203.0.113.11/32 PublicPool p".to_string()) && theirs.len() == 4, "{theirs:?}");
        assert_eq!(of(shares, Some("c")).0, always);
    }

    #[test]
    fn an_address_whose_ports_are_several_nodes_is_withheld() {
        let shares = "ranges: [203.0.113.8/31], shares: ['203.0.113.8:0-32767 a', '203.0.113.8:32768-65535 b', '203.0.113.9:0-32767 a', '203.0.113.9:32768-65535 a']";
        let (mine, withheld) = of(shares, Some("a"));
        assert_eq!(withheld, ["203.0.113.8/32"]);
        assert!(
            mine.contains(&"203.0.113.9/32 ElasticIp web, PublicPool p".to_string())
                || mine.contains(&"203.0.113.9/32 PublicPool p, ElasticIp web".to_string()),
            "{mine:?}"
        );
    }
}
