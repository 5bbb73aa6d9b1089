// SPDX-License-Identifier: Apache-2.0
//! The region under random changes: what clusters are told, applied one after the other to a node's model, is what they should hold; and
//! who may not change something changes nothing.

use super::access::Principal;
use super::feed::Gone;
use super::moving::{Move, Placement, Step};
use super::region::{Region, Unfit, Wish};
use super::scope::Scope;
use super::serving::{served, served_for_tenants, Pending};
use model::{Access, Documents, Handover, Kind, Model, Name, Object, Tenant};
use node::distribution::{read_block, Message};
use rand::{RngExt, SeedableRng};
use std::collections::{BTreeMap, BTreeSet};

fn operator() -> Principal {
    Principal { role: "o".into(), access: Access::Operator, tenant: None, node: None }
}

fn tenant(name: &str) -> Principal {
    Principal { role: "t".into(), access: Access::Tenant, tenant: Some(name.into()), node: None }
}

fn docs(text: &str) -> Documents {
    let lines = text.lines().map(|l| format!("{{apiVersion: tunny/v1, {}}}\n", l.trim()));
    let text = lines.collect::<Vec<_>>().join("---\n");
    model::parse_text("x.yaml", &text).unwrap_or_else(|e| panic!("{}: {text}", e[0]))
}

fn empty() -> Region {
    Region::load(&Documents::new(), 0, &BTreeMap::new(), BTreeMap::new()).unwrap()
}

/// Changes a region as its store would let it; whether it took it.
fn change(region: &mut Region, docs: &Documents, who: &Principal) -> Result<u64, Unfit> {
    let proposal = region.propose(&Wish::Some(docs), who)?;
    let revision = region.revision() + 1;
    region.commit(vec![proposal], revision);
    Ok(revision)
}

/// All that a cluster should hold, found the long way.
fn expected(region: &Region, cluster: &str) -> BTreeMap<(Kind, Name), Object> {
    let vpcs = &served(region.model(), region.placed())[cluster];
    let scope = Scope::of(region.model(), vpcs);
    let inside = Kind::ALL.into_iter().flat_map(|k| region.model().objects(k)).filter(|o| scope.holds(o));
    let handovers = handovers_anew(region, cluster).into_iter().map(|h| Object::Handover(Box::new(h)));
    inside.chain(scope.named()).chain(handovers).map(|o| ((o.kind(), o.name()), o)).collect()
}

/// The VPCs that a cluster holds and another one may have sessions of, VPC by VPC.
fn handovers_anew(region: &Region, cluster: &str) -> Vec<Handover> {
    let (model, cluster): (_, Name) = (region.model(), cluster.into());
    let tenants = &model.by_name().tenants;
    let owner = |vpc: &Name| tenants.values().find(|t| t.vpcs.contains(vpc));
    let peers = |vpc: &Name| {
        let mut all = BTreeSet::from([vpc.clone()]);
        loop {
            let joined = |v: &Name| {
                model.vpc_of_name(v).iter().flat_map(|v| v.peerings()).map(|p| p.1.clone()).collect::<Vec<_>>()
            };
            let more: BTreeSet<Name> = all.iter().flat_map(joined).collect();
            if more.is_subset(&all) {
                return all;
            }
            all.extend(more);
        }
    };
    let mut found = Vec::new();
    for vpc in served(model, region.placed())[&cluster].iter() {
        let of = |tenant: &&Tenant| {
            let placement = region.placement(&tenant.name)?;
            let (role, other) = placement.handover(&cluster)?;
            let to = model.by_name().clusters.get(other)?.addresses.clone();
            (!to.is_empty()).then(|| Handover {
                name: vpc.clone(),
                vpc: vpc.clone(),
                to,
                role,
                labels: Default::default(),
            })
        };
        let group = peers(vpc);
        let first = match owner(vpc) {
            Some(tenant) => of(&&**tenant),
            None => tenants.values().filter(|t| t.vpcs.iter().any(|v| group.contains(v))).find_map(|t| of(&&**t)),
        };
        found.extend(first);
    }
    found
}

/// The cluster of each VNI, and the tenants of each cluster, found the long way.
fn upstream_anew(region: &Region) -> (BTreeMap<u32, Name>, BTreeMap<Name, u64>) {
    let (model, mut of_vpc, mut tenants) = (region.model(), BTreeMap::new(), BTreeMap::new());
    for (cluster, vpcs) in served_for_tenants(model, region.placed()) {
        of_vpc.extend(vpcs.iter().map(|vpc| (vpc.clone(), cluster.clone())));
    }
    for tenant in model.by_name().tenants.values() {
        // Behind what its peers need elsewhere.
        if let Some(cluster) = region.serving(tenant) {
            of_vpc.extend(tenant.vpcs.iter().map(|vpc| (vpc.clone(), cluster.clone())));
            *tenants.entry(cluster.clone()).or_default() += u64::from(!tenant.vpcs.is_empty());
        }
    }
    let vni = |vpc: &Name| Some(model.vpc_of_name(vpc)?.spec().vni.0);
    (of_vpc.into_iter().filter_map(|(vpc, cluster)| Some((vni(&vpc)?, cluster))).collect(), tenants)
}

/// What is kept up to date is what a look at everything finds.
fn agrees_with_a_look_at_everything(region: &Region) {
    let (model, served) = (region.model(), served(region.model(), region.placed()));
    let (upstream, tenants) = upstream_anew(region);
    for vni in 100..110 {
        assert_eq!(region.upstream(vni), upstream.get(&vni), "VNI {vni}");
    }
    for (cluster, held) in region.held() {
        let amounts = region.amounts(served[cluster].iter());
        assert_eq!((held, served[cluster].len() as u64), (amounts, held.0[0]), "{cluster}");
        assert_eq!(region.tenants_in(cluster), tenants.get(cluster).copied().unwrap_or(0), "{cluster}");
    }
    assert_eq!(region.held().count(), served.len());
    let pending = Pending { wanted: region.pending().wanted, ..Pending::of(model, region.placed()) };
    assert_eq!(*region.pending(), pending);
}

/// A Tenant gets a place, begins a move, goes a step on or loses it.
fn place(region: &mut Region, rng: &mut impl RngExt) {
    let (name, to): (Name, Name) =
        (format!("t{}", rng.random_range(0..6)).as_str().into(), ["a", "b"][rng.random_range(0..2)].into());
    let other: Name = if *to == *"a" { "b" } else { "a" }.into();
    let steps = [Step::Copy, Step::Hand, Step::Resume, Step::Switch, Step::Drain, Step::Own, Step::Forget];
    let step = steps[rng.random_range(0..steps.len())];
    let moving = (rng.random_range(0..2) == 0).then_some(Move { other, step, since_ms: 0, broken: 0 });
    let placement = Placement { moving, ..Placement::at(&to) };
    let revision = region.revision() + 1;
    region.place(vec![(name, (rng.random_range(0..5) > 0).then_some(placement))], revision);
}

/// Several changes of what is inside VPCs as one, of which each is planned on top of the one before.
fn change_together(region: &mut Region, rng: &mut impl RngExt) -> usize {
    let mut proposals = Vec::new();
    for _ in 0..12 {
        let documents = random(rng);
        match region.propose(&Wish::Some(&documents), &operator()) {
            Ok(proposal) if proposal.joins_others() => proposals.push(proposal),
            Ok(proposal) => region.discard(proposal),
            Err(_) => {}
        }
    }
    let (number, revision) = (proposals.len(), region.revision() + 1);
    if rng.random_range(0..4) == 0 {
        // The store does not take it.
        proposals.into_iter().rev().for_each(|proposal| region.discard(proposal));
        return 0;
    }
    region.commit(proposals, revision);
    number
}

/// A line of a stream, and what is behind it. At the end it says that the controller is there.
fn message(text: &[u8]) -> (Message, &[u8]) {
    let end = text.iter().position(|b| *b == b'\n').map_or(text.len(), |end| end + 1);
    (serde_json::from_slice(&text[..end]).unwrap_or(Message::Alive {}), &text[end..])
}

/// A node that follows.
#[derive(Default)]
struct Replica {
    model: Model,
    revision: u64,
    snapshots: u32,
}

impl Replica {
    fn follow(&mut self, region: &Region, cluster: &str) {
        loop {
            match region.behind(cluster, self.revision) {
                Ok(None) => return,
                Ok(Some(change)) => {
                    let (head, mut rest) = message(&change.text);
                    let Message::Change { revision, puts, deletes } = head else { panic!("{head:?}") };
                    let mut docs = Documents::new();
                    while let (Message::Block { bytes, packed }, behind) = message(rest) {
                        let (block, behind) = behind.split_at(bytes as usize);
                        docs.puts.extend(read_block(block, packed).unwrap().puts);
                        rest = behind;
                    }
                    assert_eq!((docs.len() as u64, revision), (puts, change.revision));
                    for (kind, name) in deletes {
                        docs.delete(Kind::from_name(&kind).unwrap(), &name);
                    }
                    self.model.apply(&docs).unwrap_or_else(|e| panic!("{}: {change:?}", e[0]));
                    self.revision = revision;
                }
                Err(Gone) => {
                    let (mut whole, mut docs) = (region.whole(cluster).unwrap(), Documents::new());
                    while let Some(page) = whole.page(region).unwrap() {
                        page.into_iter().for_each(|o| docs.put(o));
                    }
                    let (model, _) = Model::from_documents(&docs).unwrap_or_else(|e| panic!("{}", e[0]));
                    self.model.replace(model).unwrap();
                    (self.revision, self.snapshots) = (whole.revision, self.snapshots + 1);
                }
            }
        }
    }

    fn holds(&self) -> BTreeMap<(Kind, Name), Object> {
        Kind::ALL.into_iter().flat_map(|k| self.model.objects(k)).map(|o| ((o.kind(), o.name()), o)).collect()
    }
}

/// Some lines of a small world, of which much fits together and much does not.
fn random(rng: &mut impl RngExt) -> Documents {
    let mut text = String::new();
    for _ in 0..rng.random_range(1..5) {
        let (v, w, n) = (rng.random_range(0..6), rng.random_range(0..6), rng.random_range(0..10));
        let (c, nc) = (["a", "b"][rng.random_range(0..2)], rng.random_range(0..4));
        let (e, x) = (rng.random_range(0..3), rng.random_range(0..4));
        let peerings: Vec<String> =
            (0..6).filter(|_| rng.random_range(0..3) > 0).map(|p| format!("p{}", v.min(p) * 10 + v.max(p))).collect();
        text += &match rng.random_range(0..16) {
            11 => format!("kind: Node, metadata: {{name: x{e}}}, spec: {{cluster: {c}, addresses: [192.0.2.{}]}}", 220 + 3 * x + e),
            12 => format!("kind: EdgePort, metadata: {{name: e{x}}}, spec: {{node: x{e}, interface: eth{x}, number: {x}}}"),
            13 => format!("kind: Overlay, metadata: {{name: o{v}-{x}}}, spec: {{vpc: v{v}, port: e{x}, customer: {}, overlay: {}, line: {x}, mac: \"02:00:00:00:ce:01\"}}", v + 1, n + 1),
            14 => format!("kind: Mirror, metadata: {{name: i{v}}}, spec: {{vpc: v{v}, target: {{collector: 192.0.2.{}, vni: {}}}}}", 240 + x, 5000 + n),
            0 => format!("kind: Nc, metadata: {{name: n{nc}}}, spec: {{address: 192.0.2.{}, vpcs: [v{v}]}}", nc + 1),
            1 => format!("kind: Nc, metadata: {{name: n{nc}}}, spec: {{address: 192.0.2.{}}}", nc + 1),
            2 | 3 => format!("kind: Vpc, metadata: {{name: v{v}}}, spec: {{vni: {}, peerings: [{}]}}", 100 + v, peerings.join(", ")),
            4 if v != w => format!("kind: Peering, metadata: {{name: p{}}}, spec: {{vpcs: [v{v}, v{w}]}}", v.min(w) * 10 + v.max(w)),
            5 => format!("kind: Tenant, metadata: {{name: t{v}}}, spec: {{vpcs: [v{v}], cluster: {c}}}"),
            6 => format!("kind: Tenant, metadata: {{name: t{v}}}, spec: {{vpcs: [v{v}]}}"),
            7 | 8 => format!("kind: Vm, metadata: {{name: m{v}-{n}}}, spec: {{vpc: v{v}, addresses: [10.0.0.{}], mac: \"02:00:00:00:00:0{n}\", nc: n{nc}}}", n + 1),
            9 => format!("kind: Route, metadata: {{name: r{v}-{n}}}, spec: {{vpc: v{v}, prefix: 10.{n}.0.0/16, scope: local}}"),
            10 => format!("kind: SecurityGroup, metadata: {{name: g{}}}, spec: {{rules: [ingress allow tcp/80 group g{}]}}", n % 3, w % 3),
            _ => format!("kind: SecurityBinding, metadata: {{name: b{v}}}, spec: {{vpc: v{v}, prefixes: [10.0.0.0/24], groups: [g{}]}}", n % 3),
        };
        text.push('\n');
    }
    let text: String = text.lines().filter(|l| !l.is_empty()).map(|l| format!("{l}\n")).collect();
    if text.is_empty() {
        return Documents::new();
    }
    let docs = docs(&text);
    match rng.random_range(0..4) {
        0 => docs.into_deletions(),
        _ => docs,
    }
}

#[test]
fn clusters_hold_what_their_tenants_need_after_any_changes() {
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(seed);
    let (mut taken, mut together, mut most, mut snapshots, mut for_lines) = (0, 0, 0, 0, 0);
    for _ in 0..8 {
        let mut region = empty();
        let start = "kind: Cluster, metadata: {name: a}, spec: {addresses: [192.0.2.201]}\nkind: Cluster, metadata: {name: b}, spec: {addresses: [192.0.2.202]}";
        change(&mut region, &docs(start), &operator()).unwrap();
        let mut replicas: BTreeMap<&str, Replica> = ["a", "b"].map(|c| (c, Replica::default())).into();
        for _ in 0..450 {
            match rng.random_range(0..11) {
                0 => place(&mut region, &mut rng),
                10 => {
                    // A cluster gets another address, or none.
                    let (c, n) = (["a", "b"][rng.random_range(0..2)], rng.random_range(200..204));
                    let addresses = if n == 200 { String::new() } else { format!("192.0.2.{n}") };
                    let text = format!("kind: Cluster, metadata: {{name: {c}}}, spec: {{addresses: [{addresses}]}}");
                    let _ = change(&mut region, &docs(&text), &operator());
                }
                1..=3 => together += usize::from(change_together(&mut region, &mut rng) > 1),
                _ => {
                    let documents = random(&mut rng);
                    taken += u32::from(change(&mut region, &documents, &operator()).is_ok());
                }
            }
            agrees_with_a_look_at_everything(&region);
            for_lines += region.for_lines().len();
            // One of them looks only now and then.
            for (cluster, replica) in &mut replicas {
                if *cluster == "a" || rng.random_range(0..10) == 0 {
                    replica.follow(&region, cluster);
                    let expected = expected(&region, cluster);
                    assert_eq!(replica.holds(), expected);
                    most = most.max(expected.len());
                }
            }
        }
        // After a restart of the controller a node that holds the last revision is sent nothing, one that does not everything.
        let mut all = Documents::new();
        Kind::ALL.into_iter().flat_map(|k| region.model().objects(k)).for_each(|o| all.put(o));
        let latest = ["a", "b"].map(|c| (Name::from(c), region.intent(c))).into();
        let region = Region::load(&all, region.revision(), &latest, region.placed().clone()).unwrap();
        agrees_with_a_look_at_everything(&region);
        for (cluster, mut replica) in replicas {
            let (behind, before) = (replica.revision < region.intent(cluster), replica.snapshots);
            replica.follow(&region, cluster);
            assert_eq!(replica.snapshots - before, u32::from(behind));
            assert_eq!(replica.holds(), expected(&region, cluster));
            snapshots += replica.snapshots;
        }
    }
    assert!(taken > 400 && together > 20 && most > 15 && snapshots > 0, "{taken} {together} {most} {snapshots}");
    assert!(for_lines > 50, "{for_lines} times a cluster held something for a line alone");
}

/// Two tenants, side by side.
fn two() -> Region {
    let mut region = empty();
    let text = "kind: Cluster, metadata: {name: a}, spec: {addresses: [192.0.2.200]}
        kind: Nc, metadata: {name: n1}, spec: {address: 192.0.2.1}
        kind: Vpc, metadata: {name: red}, spec: {vni: 1001, peerings: [both]}
        kind: Vpc, metadata: {name: rose}, spec: {vni: 1003, peerings: [own]}
        kind: Vpc, metadata: {name: blue}, spec: {vni: 1002, peerings: [both]}
        kind: Tenant, metadata: {name: r}, spec: {vpcs: [red, rose], cluster: a}
        kind: Tenant, metadata: {name: b}, spec: {vpcs: [blue], cluster: a}
        kind: Vm, metadata: {name: mine}, spec: {vpc: red, addresses: [10.0.0.1], mac: \"02:00:00:00:00:01\", nc: n1}
        kind: Vm, metadata: {name: theirs}, spec: {vpc: blue, addresses: [10.0.0.1], mac: \"02:00:00:00:00:01\", nc: n1}";
    change(&mut region, &docs(text), &operator()).unwrap();
    region
}

#[test]
fn a_tenant_changes_what_is_in_its_vpcs_and_nothing_else() {
    let mut region = two();
    for text in [
        "kind: Route, metadata: {name: x}, spec: {vpc: red, prefix: 10.0.0.0/8, scope: local}",
        "kind: Vm, metadata: {name: mine}, spec: {vpc: red, addresses: [10.0.0.2], mac: \"02:00:00:00:00:01\", nc: n1}",
        "kind: Vm, metadata: {name: new}, spec: {vpc: rose, addresses: [10.0.0.2], mac: \"02:00:00:00:00:02\", nc: n1}",
    ] {
        change(&mut region, &docs(text), &tenant("r")).unwrap_or_else(|e| panic!("{e:?}"));
    }
    let objects =
        |region: &Region| -> Vec<Object> { Kind::ALL.into_iter().flat_map(|k| region.model().objects(k)).collect() };
    let before = objects(&region);
    for text in [
        // Another's, as it is, changed, taken over, deleted.
        "kind: Vm, metadata: {name: theirs}, spec: {vpc: blue, addresses: [10.0.0.1], mac: \"02:00:00:00:00:01\", nc: n1}",
        "kind: Vm, metadata: {name: theirs}, spec: {vpc: blue, addresses: [10.0.0.9], mac: \"02:00:00:00:00:01\", nc: n1}",
        "kind: Vm, metadata: {name: theirs}, spec: {vpc: red, addresses: [10.0.0.9], mac: \"02:00:00:00:00:09\", nc: n1}",
        "kind: Route, metadata: {name: y}, spec: {vpc: blue, prefix: 10.0.0.0/8, scope: local}",
        "kind: Peering, metadata: {name: both}, spec: {vpcs: [red, blue]}",
        // Its own, given away.
        "kind: Vm, metadata: {name: mine}, spec: {vpc: blue, addresses: [10.0.0.7], mac: \"02:00:00:00:00:07\", nc: n1}",
        // What others need too.
        "kind: Vpc, metadata: {name: red}, spec: {vni: 1009}",
        "kind: Vpc, metadata: {name: more}, spec: {vni: 1009}",
        "kind: Tenant, metadata: {name: r}, spec: {vpcs: [red, rose, blue]}",
        "kind: Role, metadata: {name: me}, spec: {access: operator}",
        "kind: Nc, metadata: {name: n2}, spec: {address: 192.0.2.2}",
        "kind: PublicPool, metadata: {name: p}, spec: {ranges: [203.0.113.1]}",
        // One of several.
        "kind: Route, metadata: {name: ok}, spec: {vpc: red, prefix: 10.1.0.0/16, scope: local}\nkind: Nc, metadata: {name: n1}, spec: {address: 192.0.2.9}",
    ] {
        let refused = change(&mut region, &docs(text), &tenant("r"));
        assert!(matches!(&refused, Err(Unfit::Forbidden(_))), "{text}: {refused:?}");
        let mut gone = docs(text).into_deletions();
        gone.deletes.retain(|(kind, name, _)| region.model().get(*kind, name).is_some());
        if !gone.is_empty() && !text.contains("mine") {
            assert!(matches!(change(&mut region, &gone, &tenant("r")), Err(Unfit::Forbidden(_))), "{text}");
        }
    }
    let all = docs("kind: Route, metadata: {name: x}, spec: {vpc: red, prefix: 10.0.0.0/8, scope: local}");
    assert!(matches!(region.propose(&Wish::All(&all), &tenant("r")), Err(Unfit::Forbidden(_) | Unfit::Wrong(_))));
    assert_eq!(objects(&region), before);
    // It sees what is its own.
    let seen = |who: &Principal| -> BTreeSet<String> {
        let objects = objects(&region).into_iter().filter(|o| who.sees(region.model(), o));
        objects.map(|o| format!("{} {}", o.kind(), o.name())).collect()
    };
    let expected = ["Tenant r", "Vpc red", "Vpc rose", "Vm mine", "Vm new", "Route x"].map(String::from);
    assert_eq!(seen(&tenant("r")), expected.into());
    assert_eq!(seen(&operator()).len(), before.len());
    let node = Principal { role: "n".into(), access: Access::Node, tenant: None, node: Some("a1".into()) };
    assert!(seen(&node).is_empty());
    // Its peering with its own VPC is its business.
    let own = "kind: Vpc, metadata: {name: red}, spec: {vni: 1001, peerings: [both, own]}";
    change(&mut region, &docs(own), &operator()).unwrap();
    change(&mut region, &docs("kind: Peering, metadata: {name: own}, spec: {vpcs: [red, rose]}"), &tenant("r"))
        .unwrap();
}

#[test]
fn what_belongs_to_a_machine_is_refused_with_its_place() {
    let mut region = two();
    let text = "kind: Gateway, metadata: {name: gw}, spec: {vtep: {ipv4: 192.0.2.9}, uplinks: [eth0]}";
    let Err(Unfit::Forbidden(why)) = change(&mut region, &docs(text), &operator()) else { panic!("taken") };
    assert!(why.starts_with("x.yaml:1:1: Gateway `gw` is a matter of one machine"), "{why}");
}

#[test]
fn an_object_is_known_to_be_where_it_is_and_since_when() {
    let mut region = two();
    let held = |region: &Region, kind, name: &str, changed| -> Vec<(String, u64)> {
        let object = region.model().get(kind, name).unwrap();
        region.holders(&object, changed).into_iter().map(|h| (h.cluster.to_string(), h.since)).collect()
    };
    assert_eq!(held(&region, Kind::Vm, "mine", 1), [("a".to_string(), 1)]);
    // A store of before has no place of a Tenant whose document names its cluster: it goes without steps.
    let revision = region.revision();
    region.place(vec![("b".into(), None)], revision);
    let text = "kind: Cluster, metadata: {name: b}, spec: {addresses: []}
        kind: Tenant, metadata: {name: b}, spec: {vpcs: [blue], cluster: b}";
    change(&mut region, &docs(text), &operator()).unwrap();
    assert_eq!(held(&region, Kind::Vm, "theirs", 1), [("b".to_string(), 2)]);
    assert_eq!(held(&region, Kind::Nc, "n1", 1), [("a".to_string(), 2), ("b".to_string(), 2)]);
    // Peers lie together: what is in one of them came with the peering, though it did not change itself.
    change(&mut region, &docs("kind: Peering, metadata: {name: both}, spec: {vpcs: [red, blue]}"), &operator())
        .unwrap();
    assert_eq!(held(&region, Kind::Vm, "theirs", 1), [("a".to_string(), 3), ("b".to_string(), 2)]);
    assert_eq!(held(&region, Kind::Vm, "mine", 1), [("a".to_string(), 1), ("b".to_string(), 3)]);
    assert_eq!(held(&region, Kind::Tenant, "b", 2), []);
}

#[test]
fn somebody_must_be_left_who_may_change_the_region() {
    let mut region = two();
    let roles = "kind: Role, metadata: {name: one}, spec: {access: operator}
        kind: Role, metadata: {name: two}, spec: {access: operator}";
    change(&mut region, &docs(roles), &operator()).unwrap();
    change(&mut region, &docs("kind: Role, metadata: {name: one}, spec: {access: readOnly}"), &operator()).unwrap();
    let last = "kind: Role, metadata: {name: two}, spec: {access: operator}";
    for refused in [docs(last).into_deletions(), docs(&last.replace("operator", "readOnly"))] {
        assert!(matches!(change(&mut region, &refused, &operator()), Err(Unfit::Forbidden(_))));
    }
    assert!(region.model().get(Kind::Role, "two").is_some());
    // Another one may take its place.
    let mut both = docs("kind: Role, metadata: {name: three}, spec: {access: operator}");
    both.delete(Kind::Role, "two");
    change(&mut region, &both, &operator()).unwrap();
}

#[test]
fn what_a_region_needs_stays_whichever_change_would_take_it() {
    let mut region = two();
    change(&mut region, &docs("kind: Node, metadata: {name: a1}, spec: {cluster: a}"), &operator()).unwrap();
    let gone = |kind: Kind, name: &str| {
        let mut docs = Documents::new();
        docs.delete(kind, name);
        docs
    };
    for (change_, why) in [
        (gone(Kind::Tenant, "none"), "does not exist"),
        (gone(Kind::Cluster, "a"), "is still used by Node `a1`"),
        (docs("kind: Nc, metadata: {name: n9}, spec: {address: 192.0.2.200}"), "192.0.2.200 belongs to"),
        (docs("kind: Tenant, metadata: {name: x}, spec: {vpcs: [red]}"), "which belongs to Tenant `r`"),
        (docs("kind: Tenant, metadata: {name: x}, spec: {cluster: none}"), "Cluster `none`, which does not exist"),
    ] {
        let Err(Unfit::Wrong(errors)) = change(&mut region, &change_, &operator()) else { panic!("{why}: taken") };
        let told = errors.iter().map(|e| e.to_string()).collect::<Vec<_>>().join("; ");
        assert!(told.contains(why), "{why}: {told}");
    }
    // A VPC that a Tenant owns does not go alone.
    change(&mut region, &docs("kind: Vpc, metadata: {name: free}, spec: {vni: 1007}"), &operator()).unwrap();
    change(&mut region, &docs("kind: Tenant, metadata: {name: f}, spec: {vpcs: [free]}"), &operator()).unwrap();
    assert!(change(&mut region, &gone(Kind::Vpc, "free"), &operator()).is_err());
    let mut both = gone(Kind::Vpc, "free");
    both.delete(Kind::Tenant, "f");
    change(&mut region, &both, &operator()).unwrap();
}

/// A VPC that cluster `a` serves, with a peer, and a line at a node of cluster `b`.
fn with_a_line() -> Region {
    let mut region = two();
    let text = "kind: Cluster, metadata: {name: b}, spec: {addresses: [192.0.2.201]}
        kind: Node, metadata: {name: a1}, spec: {cluster: a, addresses: [192.0.2.211]}
        kind: Node, metadata: {name: b1}, spec: {cluster: b, addresses: [192.0.2.221]}
        kind: EdgePort, metadata: {name: east}, spec: {node: b1, interface: edge0}
        kind: Overlay, metadata: {name: site}, spec: {vpc: red, port: east, customer: 100, overlay: 7, mac: \"02:00:00:00:ce:01\"}";
    change(&mut region, &docs(text), &operator()).unwrap();
    region
}

#[test]
fn a_line_brings_its_vpc_to_the_edge_and_hosts_go_on_sending_to_the_tenants_cluster() {
    let mut region = with_a_line();
    let (mut near, mut far) = (Replica::default(), Replica::default());
    let port = |replica: &Replica| match replica.model.get(Kind::EdgePort, "east") {
        Some(Object::EdgePort(port)) => {
            Some((port.node.unwrap().to_string(), port.at.iter().map(|a| a.to_string()).collect::<Vec<_>>()))
        }
        _ => None,
    };
    let held = |replica: &Replica| {
        let names = replica.holds().into_keys().map(|(kind, name)| format!("{kind} {name}"));
        names.filter(|n| !n.starts_with("EdgePort")).collect::<Vec<_>>()
    };
    let mut follow = |region: &Region| {
        near.follow(region, "a");
        far.follow(region, "b");
        ((held(&near), port(&near)), (held(&far), port(&far)))
    };
    let at_b = Some(("b1".to_string(), vec!["192.0.2.221".to_string()]));
    let of_red = ["Nc n1", "Vpc red", "Vm mine", "Overlay site"];
    let ((_, told), (edge, told_there)) = follow(&region);
    assert_eq!((&told, &told_there, edge), (&at_b, &at_b, of_red.map(String::from).to_vec()));
    for vni in [1001, 1002, 1003] {
        assert_eq!(region.upstream(vni).map(|c| c.to_string()).as_deref(), Some("a"), "VNI {vni}");
    }
    assert_eq!(region.for_lines(), [("b".into(), ["red".into()].into())].into());
    // A peer comes along, and so does one that nobody owns; hosts do not send that one to the edge either.
    let text = "kind: Vpc, metadata: {name: blue}, spec: {vni: 1002, peerings: [both, lone]}
        kind: Vpc, metadata: {name: lone}, spec: {vni: 1004, peerings: [lone]}
        kind: Peering, metadata: {name: both}, spec: {vpcs: [red, blue]}
        kind: Peering, metadata: {name: lone}, spec: {vpcs: [lone, blue]}";
    change(&mut region, &docs(text), &operator()).unwrap();
    let (_, (edge, _)) = follow(&region);
    assert!(["Vpc blue", "Vpc lone", "Vm theirs"].iter().all(|o| edge.iter().any(|e| e == o)), "{edge:?}");
    assert_eq!(region.upstream(1004).map(|c| c.to_string()).as_deref(), Some("a"));
    // The node has another address: everybody is told, whoever serves the VPC.
    change(
        &mut region,
        &docs("kind: Node, metadata: {name: b1}, spec: {cluster: b, addresses: [192.0.2.229]}"),
        &operator(),
    )
    .unwrap();
    let ((_, told), (_, told_there)) = follow(&region);
    assert_eq!(told, Some(("b1".to_string(), vec!["192.0.2.229".to_string()])));
    assert_eq!(told, told_there);
    // The port moves, and with the last line the VPCs leave the edge.
    change(
        &mut region,
        &docs("kind: EdgePort, metadata: {name: east}, spec: {node: a1, interface: edge0}"),
        &operator(),
    )
    .unwrap();
    let ((_, told), (edge, told_there)) = follow(&region);
    assert_eq!((told.unwrap().0, edge, told_there), ("a1".to_string(), vec![], None));
    // The node moves to the other cluster, and the line with it.
    let moved = "kind: Node, metadata: {name: a1}, spec: {cluster: b, addresses: [192.0.2.211]}";
    change(&mut region, &docs(moved), &operator()).unwrap();
    let (_, (edge, _)) = follow(&region);
    assert!(edge.contains(&"Vpc red".to_string()), "{edge:?}");
    let mut gone = Documents::new();
    gone.delete(Kind::Overlay, "site");
    change(&mut region, &gone, &operator()).unwrap();
    let ((near, told), (edge, _)) = follow(&region);
    assert!(told.is_none() && edge.is_empty() && !near.contains(&"Overlay site".to_string()), "{near:?} {edge:?}");
}

#[test]
fn lines_are_the_operators_and_each_has_its_place() {
    let mut region = with_a_line();
    // A tenant sees its line, and neither makes nor changes one: the port is the operator's.
    let line = "kind: Overlay, metadata: {name: site}, spec: {vpc: red, port: east, customer: 100, overlay: 8, mac: \"02:00:00:00:ce:01\"}";
    assert!(matches!(change(&mut region, &docs(line), &tenant("r")), Err(Unfit::Forbidden(_))));
    assert!(matches!(change(&mut region, &docs(line).into_deletions(), &tenant("r")), Err(Unfit::Forbidden(_))));
    let object = |region: &Region, kind, name: &str| region.model().get(kind, name).unwrap();
    assert!(tenant("r").sees(region.model(), &object(&region, Kind::Overlay, "site")));
    assert!(!tenant("b").sees(region.model(), &object(&region, Kind::Overlay, "site")));
    assert!(!tenant("r").sees(region.model(), &object(&region, Kind::EdgePort, "east")));
    // Another tenant's VPC gets nothing by a customer's tag, whoever asks; nor later, when its owner comes.
    let stolen = "kind: Overlay, metadata: {name: other}, spec: {vpc: blue, port: east, customer: 100, overlay: 8, mac: \"02:00:00:00:ce:01\"}";
    let said = |result: Result<u64, Unfit>| match result {
        Err(Unfit::Wrong(errors)) => errors.iter().map(|e| e.to_string()).collect::<Vec<_>>().join("; "),
        Err(Unfit::Forbidden(why)) => why,
        Ok(_) => "taken".into(),
    };
    let why = said(change(&mut region, &docs(stolen), &operator()));
    assert!(why.contains("customer 100 of EdgePort `east`") && why.contains("Tenant `r`"), "{why}");
    let nobodys = "kind: Vpc, metadata: {name: free}, spec: {vni: 1009}
        kind: Overlay, metadata: {name: other}, spec: {vpc: free, port: east, customer: 100, overlay: 8, mac: \"02:00:00:00:ce:01\"}";
    change(&mut region, &docs(nobodys), &operator()).unwrap();
    let why = said(change(&mut region, &docs("kind: Tenant, metadata: {name: f}, spec: {vpcs: [free]}"), &operator()));
    assert!(why.contains("customer 100 of EdgePort `east`"), "{why}");
    for (text, expected) in [
        (
            "kind: EdgePort, metadata: {name: x}, spec: {interface: e9}",
            "x.yaml:1:1: EdgePort `x`: spec.node is missing",
        ),
        ("kind: EdgePort, metadata: {name: x}, spec: {at: [192.0.2.9]}", "spec.node is missing"),
        (
            "kind: EdgePort, metadata: {name: x}, spec: {node: b1, interface: e9, at: [192.0.2.9]}",
            "spec.at: the controller takes",
        ),
        ("kind: EdgePort, metadata: {name: x}, spec: {node: b2, interface: e9}", "Node `b2`, which does not exist"),
        ("kind: EdgePort, metadata: {name: x}, spec: {node: b1, interface: edge0, number: 1}", "EdgePort `east`"),
        (
            "kind: Node, metadata: {name: b1}, spec: {cluster: b}",
            "which has no tunnel address that others could send to",
        ),
    ] {
        let why = said(change(&mut region, &docs(text), &operator()));
        assert!(why.contains(expected), "{text}: {why}");
    }
    let mut gone = Documents::new();
    gone.delete(Kind::Node, "b1");
    assert!(said(change(&mut region, &gone, &operator())).contains("is still used by EdgePort `east`"));
}

#[test]
fn no_cluster_is_to_know_more_edges_than_a_node_takes() {
    let mut region = two();
    let line = |n: u32| {
        format!(
            "kind: Node, metadata: {{name: e{n}}}, spec: {{cluster: a, addresses: [192.0.2.{}]}}
             kind: EdgePort, metadata: {{name: p{n}}}, spec: {{node: e{n}, interface: eth0}}
             kind: Overlay, metadata: {{name: o{n}}}, spec: {{vpc: red, port: p{n}, customer: 1, overlay: 1, line: {n}, mac: \"02:00:00:00:ce:01\"}}",
            220 + n
        )
    };
    for n in 0..16 {
        change(&mut region, &docs(&line(n)), &operator()).unwrap();
    }
    let Err(Unfit::Forbidden(why)) = change(&mut region, &docs(&line(16)), &operator()) else { panic!("taken") };
    assert!(why.contains("would have to know 17 edge ports of its own and other nodes with edge ports"), "{why}");
    assert!(region.model().get(Kind::Overlay, "o16").is_none());
}

/// A controller that follows takes a pool as the leader has divided it, which nobody may describe so.
#[test]
fn who_follows_takes_a_division_of_a_pool() {
    let ground = docs(
        "kind: Cluster, metadata: {name: a}
         kind: Node, metadata: {name: a1}, spec: {cluster: a}
         kind: PublicPool, metadata: {name: p}, spec: {ranges: [203.0.113.0/30]}",
    );
    let (mut leads, mut follows) = (empty(), empty());
    change(&mut leads, &ground, &operator()).unwrap();
    follows.take(&Wish::Some(&ground), 1).unwrap();
    let divided =
        docs("kind: PublicPool, metadata: {name: p}, spec: {ranges: [203.0.113.0/30], shares: [203.0.113.0/30 a1]}");
    assert!(matches!(leads.propose(&Wish::Some(&divided), &operator()), Err(Unfit::Forbidden(_))));
    let proposal = leads.propose_division(&divided).unwrap();
    leads.commit(vec![proposal], 2);
    follows.take(&Wish::Some(&divided), 2).unwrap();
    let shares = |region: &Region| region.model().by_name().pools["p"].shares.clone();
    assert_eq!((shares(&follows).len(), shares(&leads)), (1, shares(&follows)));
}
