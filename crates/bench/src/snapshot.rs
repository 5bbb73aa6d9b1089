// SPDX-License-Identifier: Apache-2.0
//! A workload as an operator has it: documents in NDJSON, and the binary snapshot; and from there into the tables.
use crate::workload::{nc_address, Workload, FIRST_VNI, GATEWAY_MAC, VTEP};
use crate::{setup, Error};
use abi::Mac;
use compile::Compile;
use model::{Documents, Model};
use std::fmt::Write as _;
use std::net::Ipv4Addr;
use std::path::Path;
use std::time::Instant;
use xdp::XdpEngine;

/// Appends a document in NDJSON; `spec` is what stands between its braces.
pub(crate) fn document(out: &mut String, kind: &str, name: Option<&str>, spec: std::fmt::Arguments) {
    let name = name.map_or(String::new(), |n| format!("\"metadata\":{{\"name\":\"{n}\"}},"));
    let _ = writeln!(out, "{{\"apiVersion\":\"tunny/v1\",\"kind\":\"{kind}\",{name}\"spec\":{{{spec}}}}}");
}

/// Appends the security group `web`: HTTP and DNS in, everything out.
pub(crate) fn web_group(out: &mut String) {
    let rules = "\"rules\":[\"ingress allow tcp/80 any\",\"ingress allow udp/53 any\",\"egress allow any any\"]";
    document(out, "SecurityGroup", Some("web"), format_args!("{rules}"));
}

/// The workload as NDJSON documents.
pub fn ndjson(workload: &Workload) -> String {
    let mut out = String::new();
    let vpc = |vni: u32| vni - FIRST_VNI;
    let peering = |a: u32, b: u32| format!("p{}-{}", a.min(b), a.max(b));
    document(&mut out, "Gateway", Some("gw"), format_args!("\"vtep\":{{\"ipv4\":\"{}\"}}", Ipv4Addr::from(VTEP)));
    for nc in 0..workload.ncs {
        document(
            &mut out,
            "Nc",
            Some(&format!("nc{nc}")),
            format_args!("\"address\":\"{}\"", Ipv4Addr::from(nc_address(nc))),
        );
    }
    let each = workload.routes.len() / workload.vpcs as usize;
    for (n, routes) in workload.routes.chunks(each).enumerate() {
        let n = n as u32;
        let names: Vec<String> =
            routes.iter().filter_map(|r| r.peer).map(|p| format!("\"{}\"", peering(n, vpc(p)))).collect();
        let (vni, gateway) = (FIRST_VNI + n, Mac(GATEWAY_MAC));
        let spec = format!("\"vni\":{vni},\"gateway\":{{\"mac\":\"{gateway}\"}},\"peerings\":[{}]", names.join(","));
        document(&mut out, "Vpc", Some(&format!("v{n}")), format_args!("{spec}"));
        for p in routes.iter().filter_map(|r| r.peer).map(vpc).filter(|p| *p > n) {
            document(&mut out, "Peering", Some(&peering(n, p)), format_args!("\"vpcs\":[\"v{n}\",\"v{p}\"]"));
        }
    }
    for r in &workload.routes {
        let (n, network, length) = (vpc(r.vni), Ipv4Addr::from(r.network), r.length);
        let scope = r.peer.map_or("\"local\"".into(), |p| format!("\"peer\",\"peer\":\"v{}\"", vpc(p)));
        document(
            &mut out,
            "Route",
            None,
            format_args!("\"vpc\":\"v{n}\",\"prefix\":\"{network}/{length}\",\"scope\":{scope}"),
        );
    }
    for v in &workload.vms {
        let (n, address, nc) = (vpc(v.vni), Ipv4Addr::from(v.address), v.nc);
        let spec =
            format!("\"vpc\":\"v{n}\",\"addresses\":[\"{address}\"],\"mac\":\"{}\",\"nc\":\"nc{nc}\"", Mac(v.mac));
        document(&mut out, "Vm", None, format_args!("{spec}"));
    }
    out
}

/// Reads NDJSON documents into a model.
pub fn model(text: &str) -> Result<Model, Error> {
    let mut errors = Vec::new();
    let mut documents = Documents::new();
    documents.read_text("workload.ndjson", text, &mut errors);
    let mut model = Model::new();
    if errors.is_empty() {
        if let Err(refused) = model.apply(&documents) {
            errors = refused;
        }
    }
    match errors.first() {
        None => Ok(model),
        Some(first) => Err(Error::Failed { what: "reading the workload's documents".into(), why: first.to_string() }),
    }
}

/// Seconds from a file to the tables: read by `read`, made a commit, and committed to the tables of a running engine.
pub fn seconds_to_tables(read: impl FnOnce() -> Result<Model, Error>) -> Result<(f64, f64), Error> {
    let engine = XdpEngine::load().map_err(Error::failed("loading the XDP program"))?;
    let mut writer = setup::writer(engine.memory())?;
    let start = Instant::now();
    let commit = read()?.full_commit();
    let parsed = start.elapsed().as_secs_f64();
    writer.commit(&commit).map_err(Error::failed("the commit"))?;
    Ok((start.elapsed().as_secs_f64(), parsed))
}

/// Reads a binary snapshot.
pub fn load(path: &Path) -> Result<Model, Error> {
    Model::load_snapshot(path).map(|(model, _)| model).map_err(Error::failed("reading the snapshot"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documents_say_what_the_workload_says() {
        let workload = Workload::region(40, 10, 16, 5);
        let commit = model(&ndjson(&workload)).unwrap().full_commit();
        assert_eq!(commit.tenants.len(), 40);
        assert_eq!(commit.nc_add.len(), 16);
        let vms: usize = commit.tenants.iter().map(|t| t.vm_add.len()).sum();
        assert_eq!(vms, 400);
        let heap = tables::HeapMemory::new().unwrap();
        let mut writer = setup::writer(std::sync::Arc::new(heap)).unwrap();
        writer.commit(&commit).unwrap();
        let routes: usize = writer.vnis().iter().map(|v| writer.routes(*v).unwrap().len()).sum();
        assert_eq!(routes, 400);
    }
}
