// SPDX-License-Identifier: Apache-2.0
//! Objects of a simulated region, by numbers.

use model::{Addresses, Kind, Mac, Name, Object};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::OnceLock;

/// The pool that all Snats share.
pub const POOL: &str = "public";

/// One object of a text.
fn parsed(text: &str) -> Object {
    let text = format!("{{apiVersion: tunny/v1, {text}}}");
    let docs = model::parse_text("sim.yaml", &text).unwrap_or_else(|e| panic!("{}: {text}", e[0]));
    docs.puts.into_iter().next().map(|item| item.object).unwrap_or_else(|| panic!("{text}"))
}

/// The first object of a form, which is read once.
fn like(known: &'static OnceLock<Object>, text: &str) -> Object {
    known.get_or_init(|| parsed(text)).clone()
}

/// Name of a cluster.
pub fn cluster_name(cluster: usize) -> Name {
    format!("c{cluster}").into()
}

/// Name of a node.
pub fn node_name(node: usize) -> Name {
    format!("n{node}").into()
}

/// Address of a node.
pub fn node_address(node: usize) -> IpAddr {
    Ipv4Addr::from(0xc612_0000 + node as u32 + 1).into()
}

/// Name of a tenant.
pub fn tenant_name(tenant: u32) -> Name {
    format!("t{tenant}").into()
}

/// Name of a VPC of a tenant.
pub fn vpc_name(tenant: u32, vpc: u32) -> Name {
    format!("t{tenant}v{vpc}").into()
}

/// The tenant of a VPC, by its name.
pub fn owner_of(vpc: &str) -> Name {
    vpc.split('v').next().unwrap_or_default().into()
}

/// A cluster with the addresses of its nodes.
pub fn cluster(cluster: usize, nodes: impl Iterator<Item = usize>) -> Object {
    let addresses = nodes.map(|n| node_address(n).to_string()).collect::<Vec<_>>().join(", ");
    parsed(&format!("kind: Cluster, metadata: {{name: c{cluster}}}, spec: {{addresses: [{addresses}]}}"))
}

/// A node.
pub fn node(node: usize, cluster: usize) -> Object {
    parsed(&format!(
        "kind: Node, metadata: {{name: n{node}}}, spec: {{cluster: c{cluster}, addresses: [{}]}}",
        node_address(node)
    ))
}

/// What a region has before anybody asks for anything.
pub fn ground(hosts: usize, ncs: usize, pool: u32, drain_s: u32) -> Vec<Object> {
    let mut all = vec![
        parsed(&format!("kind: Region, metadata: {{name: north}}, spec: {{drain: {drain_s}}}")),
        parsed("kind: Role, metadata: {name: root}, spec: {access: operator}"),
    ];
    let last = Ipv4Addr::from(0xcb00_7100 + pool - 1);
    all.push(parsed(&format!("kind: PublicPool, metadata: {{name: {POOL}}}, spec: {{ranges: [203.0.113.0-{last}]}}")));
    all.extend((0..hosts).map(|h| parsed(&format!("kind: Role, metadata: {{name: h{h}}}, spec: {{access: host}}"))));
    all.extend((0..ncs).map(|n| {
        let address = Ipv4Addr::from(0x0aff_0000 + n as u32 + 1);
        parsed(&format!("kind: Nc, metadata: {{name: nc{n}}}, spec: {{address: {address}}}"))
    }));
    all
}

/// A tenant with its VPCs.
pub fn tenant(tenant: u32, vpcs: &[Name], cluster: Option<Name>) -> Object {
    static LIKE: OnceLock<Object> = OnceLock::new();
    let mut object = like(&LIKE, "kind: Tenant, metadata: {name: t}, spec: {vpcs: []}");
    if let Object::Tenant(own) = &mut object {
        (own.name, own.vpcs, own.cluster) = (tenant_name(tenant), vpcs.to_vec(), cluster);
    }
    object
}

/// VNI of a VPC.
pub fn vni(tenant: u32, vpc: u32) -> u32 {
    1 + tenant * 16 + vpc
}

/// VNI of a VPC, by its name.
pub fn vni_of(vpc: &str) -> Option<u32> {
    let (tenant, vpc) = vpc.strip_prefix('t')?.split_once('v')?;
    Some(vni(tenant.parse().ok()?, vpc.parse().ok()?))
}

/// A VPC, which agrees to peerings.
pub fn vpc(name: &Name, vni: u32, peerings: &[Name]) -> Object {
    static LIKE: OnceLock<Object> = OnceLock::new();
    let mut object = like(&LIKE, "kind: Vpc, metadata: {name: v}, spec: {vni: 1}");
    if let Object::Vpc(own) = &mut object {
        own.name = name.clone();
        own.vni.0 = vni;
        own.gateway_mac = Mac(0x02 << 40 | u64::from(vni));
        own.peerings = peerings.to_vec();
    }
    object
}

/// Address of a VM of a VPC.
pub fn vm_address(vm: u32) -> IpAddr {
    Ipv4Addr::from(0x0a00_0100 + vm).into()
}

/// A VM.
pub fn vm(vpc: &Name, vm: u32, nc: u32) -> Object {
    static LIKE: OnceLock<Object> = OnceLock::new();
    let text = "kind: Vm, spec: {vpc: v, addresses: [10.0.1.0], mac: \"06:00:00:00:00:01\", nc: nc0}";
    let mut object = like(&LIKE, text);
    if let Object::Vm(own) = &mut object {
        own.vpc = vpc.clone();
        own.addresses = Addresses::One([vm_address(vm)]);
        own.mac = Mac(0x06 << 40 | u64::from(vm + 1));
        own.nc = format!("nc{nc}").into();
    }
    object
}

/// The route to a VPC's own VMs, or out.
pub fn route(vpc: &Name, out: bool) -> Object {
    static LIKE: [OnceLock<Object>; 2] = [OnceLock::new(), OnceLock::new()];
    let text = ["prefix: 10.0.0.0/8, scope: local", "prefix: 0.0.0.0/0, scope: internet"][usize::from(out)];
    let mut object = like(&LIKE[usize::from(out)], &format!("kind: Route, spec: {{vpc: v, {text}}}"));
    if let Object::Route(own) = &mut object {
        own.vpc = vpc.clone();
    }
    object
}

/// A VPC's way to the Internet.
pub fn snat(vpc: &Name) -> Object {
    parsed(&format!("kind: Snat, metadata: {{name: {vpc}}}, spec: {{vpc: {vpc}, pools: [{POOL}]}}"))
}

/// A peering of two VPCs.
pub fn peering(name: &Name, a: &Name, b: &Name) -> Object {
    parsed(&format!("kind: Peering, metadata: {{name: {name}}}, spec: {{vpcs: [{a}, {b}]}}"))
}

/// Whether an object belongs to VPCs, or is one.
pub fn is_inside(kind: Kind) -> bool {
    matches!(kind, Kind::Vpc | Kind::Vm | Kind::Route | Kind::Peering | Kind::Snat)
}

/// The VPCs of such an object.
pub fn vpcs_of(object: &Object) -> &[Name] {
    match object {
        Object::Vpc(vpc) => std::slice::from_ref(&vpc.name),
        other => other.vpcs(),
    }
}
