// SPDX-License-Identifier: Apache-2.0
//! Workloads into tables: a commit, an underlay of one router, and the XDP engine on the veth rig.
use crate::rig::{Frames, Side};
use crate::workload::{nc_address, Workload, FIRST_VNI, GATEWAY_MAC, ROUTER_MAC, UPLINK_MAC, VTEP};
use crate::{cpu, edge, Error};
use abi::{IfIndex, Vni};
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;
use tables::{
    Commit, GatewaySettings, HeapMemory, Memory, NexthopSpec, Prefix, Route, RoutesChange, Tables, Target,
    TenantChange, TenantSettings, VmSpec, Writer, WriterOptions,
};
use xdp::object::{attach_program, XDP_NATIVE};
use xdp::XdpEngine;

fn v4(address: u32) -> IpAddr {
    IpAddr::V4(Ipv4Addr::from_bits(address))
}

/// Gateway settings and NCs.
pub fn base_commit(workload: &Workload) -> Commit {
    let gateway = GatewaySettings { vtep4: Some(Ipv4Addr::from_bits(VTEP)), ..GatewaySettings::default() };
    Commit {
        gateway: Some(gateway),
        nc_add: (0..workload.ncs).map(|n| v4(nc_address(n))).collect(),
        ..Commit::default()
    }
}

/// The tenants of a range of VPCs, with routes and VMs.
pub fn tenants(workload: &Workload, vpcs: std::ops::Range<u32>) -> Vec<TenantChange> {
    let (routes, vms) = (workload.routes.len() / workload.vpcs as usize, workload.vms.len() / workload.vpcs as usize);
    vpcs.map(|vpc| TenantChange {
        vni: Vni(FIRST_VNI + vpc),
        settings: Some(TenantSettings { gateway_mac: GATEWAY_MAC, icmp: true, ..TenantSettings::default() }),
        routes: RoutesChange::Replace(workload.routes[vpc as usize * routes..][..routes].iter().map(route).collect()),
        vm_add: workload.vms[vpc as usize * vms..][..vms]
            .iter()
            .map(|v| VmSpec {
                mac: v.mac,
                ipv4: Some(v.address),
                ipv6: None,
                more: vec![],
                nc: v4(nc_address(v.nc)),
                meter: None,
                shaped: false,
            })
            .collect(),
        ..TenantChange::default()
    })
    .collect()
}

fn route(r: &crate::workload::Route) -> Route {
    Route {
        prefix: Prefix::new_assert(v4(r.network), r.length),
        target: r.peer.map_or(Target::Local, |vni| Target::Peer(Vni(vni))),
    }
}

/// Counters of a running node.
pub use abi::Stats;

/// An XDP engine with loaded tables.
pub struct BpfNode {
    /// The program and its maps.
    pub engine: XdpEngine,
    /// The writer of its tables.
    pub writer: Writer,
    /// Seconds that the commits of the workload took.
    pub load_seconds: f64,
    _link: Option<OwnedFd>,
}

impl BpfNode {
    /// A node whose packets leave by the port they came from, in this network namespace's loopback: for test runs.
    pub fn new(workload: &Workload) -> Result<BpfNode, Error> {
        BpfNode::cached(workload, 0)
    }

    /// The same with a flow cache of so many lines a CPU.
    pub fn cached(workload: &Workload, flow_lines: u32) -> Result<BpfNode, Error> {
        // Another object than the one built in, to compare two (examples/xdp_probe.rs).
        let object = match std::env::var("TUNNY_OBJECT") {
            Ok(path) => Some(std::fs::read(path).map_err(Error::io("reading the object"))?),
            Err(_) => None,
        };
        let engine = XdpEngine::open_or_create(&xdp::Options { object, flow_lines, ..Default::default() });
        BpfNode::with(engine.map_err(Error::failed("loading the XDP program"))?, workload, IfIndex(1))
    }

    /// A node on an engine that is there, whose packets leave by `ifindex`.
    pub fn with(engine: XdpEngine, workload: &Workload, ifindex: IfIndex) -> Result<BpfNode, Error> {
        let mut writer = writer(engine.memory())?;
        let load_seconds = load(&mut writer, workload, ifindex)?;
        Ok(BpfNode { engine, writer, load_seconds, _link: None })
    }

    /// A reader of its tables.
    pub fn tables(&self) -> Tables {
        self.writer.tables()
    }

    /// Bytes of table memory in use.
    pub fn table_bytes(&self) -> u64 {
        self.writer.bytes_used()
    }

    /// Statistics of all CPUs and workers.
    pub fn stats(&self) -> Stats {
        self.engine.stats_total()
    }
}

/// Tables of one process, on huge pages: no XDP program reads them. Returns the seconds that the commits took too.
pub fn heap(workload: &Workload) -> Result<(Writer, f64), Error> {
    let memory = HeapMemory::new().map_err(Error::io("reserving table memory"))?;
    let mut writer = writer(Arc::new(memory))?;
    let seconds = load(&mut writer, workload, IfIndex(1))?;
    Ok((writer, seconds))
}

/// A writer of new tables for this machine's CPUs and two workers.
pub fn writer(memory: Arc<dyn Memory>) -> Result<Writer, Error> {
    let options = WriterOptions { xdp_slots: cpu::count() as u32, ..WriterOptions::default() };
    Writer::create(memory, options).map_err(Error::io("creating the tables"))
}

/// Loads a workload whose NCs all lie behind one router on `ifindex`, a part of the VPCs at a time. Returns the seconds that the
/// commits took; making the commits is not counted.
pub fn load(writer: &mut Writer, workload: &Workload, ifindex: IfIndex) -> Result<f64, Error> {
    // Commits of at most this many VPCs bound the memory for parsed input of very large workloads.
    const PART: u32 = 1 << 18;
    let vms_each = (workload.vms.len() / workload.vpcs as usize).max(1) as u32;
    let part = (PART * 10 / vms_each).clamp(1, PART);
    let mut seconds = 0.0;
    let mut commit = base_commit(workload);
    for first in (0..workload.vpcs).step_by(part as usize) {
        commit.tenants = tenants(workload, first..(first + part).min(workload.vpcs));
        let start = Instant::now();
        writer.commit(&commit).map_err(Error::failed("a commit"))?;
        seconds += start.elapsed().as_secs_f64();
        commit = Commit::default();
    }
    underlay(writer, workload, ifindex)?;
    Ok(seconds)
}

/// One router that leads to every NC.
pub fn underlay(writer: &mut Writer, workload: &Workload, ifindex: IfIndex) -> Result<(), Error> {
    let router = v4(VTEP & !0xff | 254);
    let spec = NexthopSpec { addr: router, ifindex, dmac: Some(ROUTER_MAC), smac: UPLINK_MAC, mtu: 9000 };
    let nexthop = writer.set_nexthop(&spec).map_err(Error::io("writing a next hop"))?;
    let group = writer.set_group(None, &[nexthop]).map_err(Error::io("writing a group"))?;
    for nc in 0..workload.ncs {
        writer.bind_nc_group(v4(nc_address(nc)), Some(group));
    }
    Ok(())
}

/// Tunny's XDP path as the gateway of a veth rig, whose name begins with `role`.
pub fn xdp_gateway(role: &str, workload: &Workload, packets: &[u8]) -> Result<(Side, BpfNode), Error> {
    xdp_side(role, Frames::Vxlan, workload, packets)
}

/// The same for any frames. What sites send comes and leaves by the one port.
pub fn xdp_side(role: &str, frames: Frames, workload: &Workload, packets: &[u8]) -> Result<(Side, BpfNode), Error> {
    let mut side = Side::create(role, frames, packets)?;
    let ifindex = side.gateway.ifindex(&side.port)?;
    let engine = side.gateway.inside(|| XdpEngine::load().map_err(Error::failed("loading the XDP program")))?;
    let mut node = BpfNode::with(engine, workload, ifindex)?;
    if frames == Frames::ToCloud {
        edge::make_edge(&mut node.writer, workload, ifindex)?;
    }
    let link = side.gateway.inside(|| {
        node.engine.add_port(ifindex).map_err(Error::failed("adding a port"))?;
        Ok(attach_program(node.engine.program(), ifindex, XDP_NATIVE)?)
    })?;
    node._link = Some(link);
    side.pin_threads()?;
    Ok((side, node))
}
