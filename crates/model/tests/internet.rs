// SPDX-License-Identifier: Apache-2.0
//! Pools, Snats and elastic addresses: the rules, each with its place; change, undo, snapshot; what follows for the tables.

mod common;

use abi::Vni;
use compile::*;
use conntrack::nat::{ElasticUse, Filtering};
use conntrack::TenantLimits;
use model::*;

const BASE: &str = "\
apiVersion: tunny/v1
kind: Gateway
metadata: {name: gw}
spec: {vtep: {ipv4: 10.0.0.1, ipv6: 2001:db8::1}, internet: {via: [192.0.2.1, 2001:db8::2]}}
---
{apiVersion: tunny/v1, kind: Nc, metadata: {name: nc1}, spec: {address: 10.0.0.5}}
---
{apiVersion: tunny/v1, kind: Vpc, metadata: {name: red}, spec: {vni: 7, strayTcp: pickUp}}
---
{apiVersion: tunny/v1, kind: Vpc, metadata: {name: blue}, spec: {vni: 8}}
---
{apiVersion: tunny/v1, kind: Route, spec: {vpc: red, prefix: 10.1.0.0/16, scope: local}}
---
{apiVersion: tunny/v1, kind: Vm, metadata: {name: web}, spec: {vpc: red, addresses: ['fd00::5', 10.1.0.5], mac: '02:00:00:00:00:05', nc: nc1}}
---
{apiVersion: tunny/v1, kind: Vm, spec: {vpc: red, addresses: [10.1.0.6], mac: '02:00:00:00:00:06', nc: nc1}}
---
{apiVersion: tunny/v1, kind: PublicPool, metadata: {name: out}, spec: {ranges: [203.0.113.0/28, 198.51.100.5-198.51.100.6], portBlock: 128}}
---
{apiVersion: tunny/v1, kind: Snat, metadata: {name: red}, spec: {vpc: red, pools: [out], ipv6Prefixes: ['2001:db8:7::/48'], filtering: endpointIndependent, offload: off, limits: {vmSessions: 9}}}
---
{apiVersion: tunny/v1, kind: ElasticIp, metadata: {name: web}, spec: {address: 203.0.113.3, vm: web}}
---
{apiVersion: tunny/v1, kind: ElasticIp, metadata: {name: ports}, spec: {address: 203.0.113.4, forwards: [tcp/8080=web:80, udp/5000-5009=red/10.1.0.6]}}
";

fn base() -> Model {
    Model::from_documents(&parse_text("base.yaml", BASE).unwrap()).unwrap().0
}

/// The errors of one more document on top of the base, as `line:column field problem`.
fn faults(document: &str) -> Vec<String> {
    common::faults(base(), document)
}

#[test]
fn each_bad_document_is_refused_with_place_and_reason() {
    let pool = |range: &str| format!("kind: PublicPool\nmetadata: {{name: p}}\nspec:\n  ranges:\n  - {range}");
    let elastic = |spec: &str| format!("kind: ElasticIp\nmetadata: {{name: e}}\nspec: {{{spec}}}");
    let snat = |spec: &str| format!("kind: Snat\nmetadata: {{name: s}}\nspec: {{{spec}}}");
    for (document, wanted) in [
        (pool("203.0.113.8/30"), "6:5 spec.ranges[0] 203.0.113.8/30 overlaps 203.0.113.0/28 of PublicPool `out`"),
        (pool("10.0.0.0/24"), "6:5 spec.ranges[0] 10.0.0.0/24 overlaps 10.0.0.1, the tunnel address of Gateway `gw`"),
        (pool("10.0.0.4/31"), "6:5 spec.ranges[0] 10.0.0.4/31 overlaps 10.0.0.5, the tunnel address of Nc `nc1`"),
        (
            pool("192.0.2.1"),
            "6:5 spec.ranges[0] 192.0.2.1 overlaps 192.0.2.1, the router to the Internet of Gateway `gw`",
        ),
        (pool("9.0.0.0/15"), "6:5 spec.ranges has 131072 addresses"),
        (pool("203.0.113.0/24x"), "6:5 spec.ranges[0] `24x` is no prefix length: 0 to 32"),
        (pool("10.1.0.4/31"), "6:5 spec.ranges[0] 10.1.0.4/31 overlaps 10.1.0.5 of Vm `web`"),
        (
            "kind: Vm\nspec: {vpc: blue, addresses: ['fd00::9', 203.0.113.9], mac: '02:00:00:00:00:09', nc: nc1}".into(),
            "spec.addresses[1] 203.0.113.9 lies in PublicPool `out`: a VM has an address of its VPC, and an ElasticIp gives it a public one",
        ),
        (elastic("address: 8.8.8.8, vm: web"), "4:17 spec.address 8.8.8.8 lies in no PublicPool"),
        (elastic("address: 203.0.113.4, vm: red/10.1.0.6"), "4:17 spec.address 203.0.113.4 belongs to ElasticIp"),
        (elastic("address: 203.0.113.5, vm: nobody"), "4:34 spec.vm names Vm `nobody`, which does not exist"),
        (elastic("address: 203.0.113.5, vm: web"), "spec.vm names Vm `web`, which has ElasticIp `"),
        (elastic("address: 203.0.113.5"), "4:7 spec.vm is missing"),
        (
            elastic("address: 203.0.113.5, forwards: [tcp/80-90=web, tcp/90=web:1]"),
            "spec.forwards[1] tcp/90=web:1 overlaps tcp/80-90=web:80",
        ),
        (snat("vpc: green, pools: [out]"), "spec.vpc names Vpc `green`, which does not exist"),
        (snat("vpc: blue, pools: [in]"), "spec.pools[0] names PublicPool `in`, which does not exist"),
        (snat("vpc: red, pools: [out]"), "spec.vpc Vpc `red` has Snat `red`; a VPC has one at most"),
        (
            snat("vpc: blue, ipv6Prefixes: ['2001:db8:7:1::/64']"),
            "spec.ipv6Prefixes[0] 2001:db8:7:1::/64 overlaps 2001:db8:7::/48 of Snat `red`",
        ),
        (
            snat("vpc: blue, ipv6Prefixes: ['2001:db8::/64']"),
            "spec.ipv6Prefixes[0] 2001:db8::/64 overlaps 2001:db8::1, the tunnel address of the Gateway",
        ),
        (
            format!("{}\n---\n{{apiVersion: tunny/v1, kind: Nc, metadata: {{name: nc6}}, spec: {{address: '2001:db8:9::5'}}}}", snat("vpc: blue, ipv6Prefixes: ['2001:db8:9::/64']")),
            "spec.ipv6Prefixes[0] 2001:db8:9::/64 overlaps 2001:db8:9::5, the tunnel address of Nc `nc6`",
        ),
        (snat("vpc: blue, ipv6Prefixes: ['fe80::/64']"), "is link-local, multicast or reserved"),
        (snat("vpc: blue, ipv6Prefixes: ['ff00::/16']"), "is link-local, multicast or reserved"),
        (snat("vpc: blue"), "4:7 spec.pools is missing"),
    ] {
        let found = faults(&document);
        assert!(found.iter().any(|f| f.contains(wanted)), "{document}\nwanted {wanted}\nfound {found:#?}");
    }
}

#[test]
fn a_snat_needs_an_address_that_is_nobodys_own() {
    let one = "{apiVersion: tunny/v1, kind: PublicPool, metadata: {name: one}, spec: {ranges: [192.0.2.77]}}\n---\n";
    let own = "{apiVersion: tunny/v1, kind: ElasticIp, metadata: {name: own}, spec: {address: 192.0.2.77, vm: red/10.1.0.6}}\n---\n";
    let snat = "{apiVersion: tunny/v1, kind: Snat, metadata: {name: blue}, spec: {vpc: blue, pools: [one]}}\n";
    let told = |model: &mut Model, text: &str| {
        let told = model.apply(&parse_text("x.yaml", text).unwrap()).map(drop).err().unwrap_or_default();
        told.iter().map(|e| e.to_string()).collect::<Vec<_>>()
    };
    let why = "spec.pools names no address to translate to: each one of PublicPool `one` is an ElasticIp of a Vm";
    assert_eq!(told(&mut base(), &[one, own, snat].concat()), [format!("x.yaml:5:85: Snat blue: {why}")]);
    // Either may come later.
    let mut model = base();
    assert_eq!(told(&mut model, &[one, snat].concat()), Vec::<String>::new());
    let refused = "spec.address is still used by Snat `blue`, which has no other address in PublicPool `one`; delete that first, or in the same change";
    assert_eq!(told(&mut model, own), [format!("x.yaml:1:80: ElasticIp own: {refused}")]);
    // A second pool, or ports alone, leave it addresses.
    let more =
        "{apiVersion: tunny/v1, kind: Snat, metadata: {name: blue}, spec: {vpc: blue, pools: [one, out]}}\n---\n";
    assert_eq!(told(&mut model, &[more, own].concat()), Vec::<String>::new());
    let ports = own.replace("vm: red/10.1.0.6", "forwards: [tcp/80=red/10.1.0.6]");
    assert_eq!(told(&mut base(), &[one, &ports, snat].concat()), Vec::<String>::new());
}

#[test]
fn a_snat_by_default_may_take_a_quarter_of_the_node() {
    let mut model = base();
    let limits = |model: &Model| model.conntrack().limits[&Vni(7)];
    assert_eq!(limits(&model), TenantLimits { vm_sessions: 9, ..TenantLimits::share_of(1 << 20) });
    let small = BASE.split("---").next().unwrap().replace("spec: {", "spec: {limits: {sessions: 1000}, ");
    model.apply(&parse_text("x.yaml", &small).unwrap()).unwrap();
    assert_eq!(limits(&model), TenantLimits { sessions: 250, vm_sessions: 9, half_open: 125 });
    let said = "{apiVersion: tunny/v1, kind: Snat, metadata: {name: red}, spec: {vpc: red, pools: [out], limits: {sessions: 900, vmSessions: 800, halfOpen: 700}}}";
    model.apply(&parse_text("x.yaml", said).unwrap()).unwrap();
    assert_eq!(limits(&model), TenantLimits { sessions: 900, vm_sessions: 800, half_open: 700 });
}

#[test]
fn two_errors_of_one_object_are_told_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let told = |document: &str| {
        let path = dir.path().join("x.yaml");
        std::fs::write(&path, format!("{BASE}---\napiVersion: tunny/v1\n{document}\n")).unwrap();
        let errors = validate_files(&[path], &mut Model::new()).err().unwrap_or_default();
        errors.iter().map(|e| format!("{} {}", e.field, e.problem)).collect::<Vec<_>>()
    };
    let nobody = "spec.vm names Vm `nobody`, which does not exist";
    let outside = "spec.address 8.8.8.8 lies in no PublicPool";
    // An unknown field, a wrong value, a wrong entry of a list: each beside what other objects make wrong.
    assert_eq!(
        told("kind: ElasticIp\nmetadata: {name: e}\nspec: {address: 8.8.8.8, vm: nobody, wm: x}"),
        [outside, nobody, "spec.wm is unknown (did you mean `vm`?)"]
    );
    assert_eq!(
        told("kind: ElasticIp\nmetadata: {name: e}\nspec: {address: 8.8.8.8, forwards: [tcp/0=web]}"),
        [outside, "spec.forwards[0] `0` is no port"]
    );
    assert_eq!(
        told("kind: Snat\nmetadata: {name: s}\nspec: {vpc: red, pools: [out, in], offload: perhaps}"),
        [
            "spec.vpc Vpc `red` has Snat `red`; a VPC has one at most",
            "spec.pools[1] names PublicPool `in`, which does not exist",
            "spec.offload `perhaps` is no choice here"
        ]
    );
    assert_eq!(
        told("kind: Snat\nmetadata: {name: s}\nspec: {vpc: blue, pools: ['o t', in], ipv6Prefixes: ['2001:db8:7:1::/64']}").len(),
        4,
        "an overlap is told to both"
    );
    // What is wrong of a pool is not told once more at who lies in it.
    assert_eq!(
        told("kind: PublicPool\nmetadata: {name: p}\nspec: {ranges: [8.8.8.0/33]}\n---\napiVersion: tunny/v1\nkind: ElasticIp\nmetadata: {name: e}\nspec: {address: 8.8.8.8, vm: red/10.1.0.6}"),
        ["spec.ranges[0] `33` is no prefix length: 0 to 32"]
    );
}

#[test]
fn a_vpc_without_a_route_out_is_warned_of() {
    let warned = |more: &str| {
        let text = format!("{BASE}{more}");
        let (_, plan) = Model::from_documents(&parse_text("x.yaml", &text).unwrap()).unwrap();
        let of_them = plan.warnings().iter().filter(|w| w.kind != Some(Kind::Vm));
        of_them.map(|w| format!("{} {} {}", w.kind.unwrap(), w.name, w.problem)).collect::<Vec<_>>()
    };
    let none = |object: &str, family: &str| {
        format!("{object} Vpc `red` has no {family} Route with scope internet: nothing goes out, and who comes in is dropped")
    };
    let route = |prefix: &str| {
        format!("---\n{{apiVersion: tunny/v1, kind: Route, spec: {{vpc: red, prefix: '{prefix}', scope: internet}}}}\n")
    };
    let (four, six) =
        (["Snat red", "ElasticIp ports", "ElasticIp web"].map(|o| none(o, "IPv4")), none("Snat red", "IPv6"));
    assert_eq!(warned(""), [four[0].clone(), six.clone(), four[1].clone(), four[2].clone()]);
    assert_eq!(warned(&route("0.0.0.0/0")), [six]);
    assert_eq!(warned(&route("2000::/3")), four);
    assert_eq!(warned(&[route("198.51.100.0/24"), route("2000::/3")].concat()), [""; 0]);
}

/// Whatever the two are called.
#[test]
fn of_two_that_take_the_same_the_new_one_is_at_fault() {
    let at_fault = |name: &str, kind: &str, spec: &str| {
        let text =
            format!("---\n---\n{{apiVersion: tunny/v1, kind: {kind}, metadata: {{name: {name}}}, spec: {{{spec}}}}}");
        let errors = base().apply(&parse_text("x.yaml", &text).unwrap()).unwrap_err();
        let told: Vec<_> =
            errors.iter().map(|e| format!("{}:{} {} {}", e.place.line, e.name, e.field, e.problem)).collect();
        assert_eq!(told.len(), 1, "{told:#?}");
        told[0].clone()
    };
    let web = base().objects(Kind::ElasticIp).find_map(|o| match o {
        Object::ElasticIp(e) if e.vm.as_deref() == Some("web") => Some(e),
        _ => None,
    });
    let (own, address) = web.map(|e| (e.name.to_string(), e.address)).unwrap();
    for name in ["a", "z"] {
        let taken = at_fault(name, "ElasticIp", &format!("address: {address}, vm: red/10.1.0.6"));
        assert_eq!(taken, format!("3:{name} spec.address {address} belongs to ElasticIp `{own}`"));
        let twice = at_fault(name, "ElasticIp", "address: 203.0.113.1, vm: web");
        assert_eq!(twice, format!("3:{name} spec.vm names Vm `web`, which has ElasticIp `{own}`"));
        for prefix in ["2001:db8:6::/47", "2001:db8:7:1::/64"] {
            let overlaps = at_fault(name, "Snat", &format!("vpc: blue, ipv6Prefixes: ['{prefix}']"));
            assert_eq!(
                overlaps,
                format!("3:{name} spec.ipv6Prefixes[0] {prefix} overlaps 2001:db8:7::/48 of Snat `red`")
            );
        }
        // A narrower one of its own in between hides nothing.
        let nested = "vpc: blue, ipv6Prefixes: ['2001:db8:4::/46', '2001:db8:5::/48']";
        let overlaps = at_fault(name, "Snat", nested);
        assert_eq!(
            overlaps,
            format!("3:{name} spec.ipv6Prefixes[0] 2001:db8:4::/46 overlaps 2001:db8:7::/48 of Snat `red`")
        );
        for range in ["203.0.112.0/23", "203.0.113.1"] {
            let overlaps = at_fault(name, "PublicPool", &format!("ranges: [{range}]"));
            assert_eq!(
                overlaps,
                format!("3:{name} spec.ranges[0] {range} overlaps 203.0.113.0/28 of PublicPool `out`")
            );
        }
        let second = at_fault(name, "Snat", "vpc: red, pools: [out]");
        assert_eq!(second, format!("3:{name} spec.vpc Vpc `red` has Snat `red`; a VPC has one at most"));
    }
}

#[test]
fn what_others_use_stays() {
    for (kind, name, by) in [
        (Kind::Vm, "web", "ElasticIp `"),
        (Kind::Vm, "red/10.1.0.6", "ElasticIp `ports`"),
        (Kind::PublicPool, "out", "Snat `red`"),
        (Kind::Vpc, "red", "Snat `red`"),
    ] {
        let mut docs = Documents::new();
        docs.delete(kind, name);
        let errors = base().apply(&docs).unwrap_err();
        assert!(errors.iter().any(|e| e.kind == Some(kind) && e.problem.to_string().contains(by)), "{errors:#?}");
    }
    // A VM that loses its IPv4 address while an elastic address stands for it.
    let vm = "{apiVersion: tunny/v1, kind: Vm, metadata: {name: web}, spec: {vpc: red, addresses: ['fd00::5'], mac: '02:00:00:00:00:05', nc: nc1}}";
    let errors = base().apply(&parse_text("x.yaml", vm).unwrap()).unwrap_err();
    assert!(errors[0].problem.to_string().contains("which has no IPv4 address"), "{errors:?}");
}

#[test]
fn changes_are_shown_undone_and_come_back_from_every_form() {
    let mut model = base();
    let (before, plan0) = (model.conntrack(), model.counts());
    let change = "\
{apiVersion: tunny/v1, kind: PublicPool, metadata: {name: out}, spec: {ranges: [203.0.113.0/28], reusePorts: on}}
---
{apiVersion: tunny/v1, kind: Snat, metadata: {name: blue}, spec: {vpc: blue, pools: [out]}}
";
    let mut docs = parse_text("x.yaml", change).unwrap();
    docs.delete(Kind::ElasticIp, "ports");
    let plan = model.apply(&docs).unwrap();
    let shown = plan.view(&model, 100).to_string();
    for line in [
        "~ PublicPool out",
        "spec.reusePorts: off → on",
        "+ Snat blue  blue over out",
        "- ElasticIp ports  203.0.113.4 tcp/8080=web:80",
    ] {
        assert!(shown.contains(line), "{shown}");
    }
    assert!(model.revert(plan).is_none());
    assert_eq!((model.conntrack(), model.counts()), (before.clone(), plan0));
    let mut bytes = Vec::new();
    model.write_snapshot(&mut bytes, 3).unwrap();
    let (back, _) = Model::from_snapshot(&bytes).unwrap();
    assert_eq!(back.conntrack(), before);
    let mut whole = Model::new();
    let plan = whole.replace(back).unwrap();
    assert_eq!(plan.tally(Kind::ElasticIp).added, 2);
    for kind in Kind::ALL {
        for object in model.objects(kind) {
            let again = parse_text("x.yaml", &object.to_yaml()).unwrap();
            assert_eq!(again.puts[0].object, object);
            assert_eq!(whole.get(kind, &object.name()), Some(object));
        }
    }
}

#[test]
fn a_vpc_says_what_its_sessions_may_be_with_a_snat_and_without() {
    let mut model = base();
    let mut limits = |text: &str| {
        model.apply(&parse_text("x.yaml", text).unwrap()).unwrap();
        let plan = model.conntrack();
        (plan.limits.get(&Vni(7)).copied(), plan.limits.get(&Vni(8)).copied())
    };
    let snat = limits("{apiVersion: tunny/v1, kind: Vpc, metadata: {name: blue}, spec: {vni: 8}}").0.unwrap();
    let red = "{apiVersion: tunny/v1, kind: Vpc, metadata: {name: red}, spec: {vni: 7, limits: {sessions: 77}}}";
    let both = limits(red).0.unwrap();
    assert_eq!(both, TenantLimits { sessions: 77, ..snat }, "the Snat's hold for what the Vpc does not say");
    // Blue has an elastic address alone.
    let elastic = "\
{apiVersion: tunny/v1, kind: Vm, metadata: {name: b}, spec: {vpc: blue, addresses: [10.2.0.5], mac: '02:00:00:00:00:05', nc: nc1}}
---
{apiVersion: tunny/v1, kind: ElasticIp, metadata: {name: b}, spec: {address: 203.0.113.5, vm: b}}";
    assert_eq!(limits(elastic).1, None, "the node's default");
    let own = "{apiVersion: tunny/v1, kind: Vpc, metadata: {name: blue}, spec: {vni: 8, limits: {vmSessions: 9}}}";
    let share = TenantLimits::share_of(1 << 20);
    assert_eq!(limits(own).1, Some(TenantLimits { vm_sessions: 9, ..share }));
    for (bad, at) in [("{sessions: 0}", "spec.limits.sessions"), ("{ports: 64}", "spec.limits.ports")] {
        let text =
            format!("{{apiVersion: tunny/v1, kind: Vpc, metadata: {{name: blue}}, spec: {{vni: 8, limits: {bad}}}}}");
        let refused = parse_text("x.yaml", &text).err().unwrap();
        assert!(format!("{refused:?}").contains(at), "{refused:?}");
    }
}

#[test]
fn tables_translator_and_sessions_get_what_the_documents_say() {
    let plan = base().conntrack();
    let pool = &plan.spec.pools[0];
    assert_eq!((pool.block, pool.reuse, pool.ports, pool.ranges.len()), (128, false, (1024, 65535), 2));
    let snat = &plan.spec.snats[0];
    assert_eq!((snat.vni, &snat.pools[..], snat.filtering), (Vni(7), &[0][..], Filtering::EndpointIndependent));
    assert_eq!(plan.limits[&Vni(7)].vm_sessions, 9);
    let [ports, web] = &plan.spec.elastics[..] else { panic!("{:?}", plan.spec.elastics) };
    assert_eq!(web.usage, ElasticUse::Vm(0x0a01_0005));
    let ElasticUse::Forwards(list) = &ports.usage else { panic!("{ports:?}") };
    assert_eq!((list[1].first, list[1].last, list[1].vm_addr, list[1].vm_port), (5000, 5009, 0x0a01_0006, 5000));
    let flags = abi::POLICY_NAT | abi::POLICY_SOFTWARE | abi::POLICY_PICKUP;
    assert_eq!((plan.policies.len(), plan.policies[&Vni(7)] & 0xffff), (1, flags));
    let public: Vec<String> = plan.public.iter().map(|p| format!("{} {}", p.prefix, p.accepts)).collect();
    let wanted = ["203.0.113.0/28 true", "198.51.100.5/32 true", "198.51.100.6/32 true", "2001:db8:7::/48 false"];
    assert!(wanted.iter().all(|w| public.iter().any(|p| p == w)) && public.len() == 6, "{public:?}");
    // Another forward makes sessions be judged again; another name of the pool does not.
    let mut model = base();
    let more = "{apiVersion: tunny/v1, kind: ElasticIp, metadata: {name: ports}, spec: {address: 203.0.113.4, forwards: [tcp/8080=web:81]}}";
    model.apply(&parse_text("x.yaml", more).unwrap()).unwrap();
    assert_ne!(model.conntrack().policies[&Vni(7)], plan.policies[&Vni(7)]);
}
