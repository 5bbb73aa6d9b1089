// SPDX-License-Identifier: Apache-2.0
//! Building and removing the region.
//!
//! ## Offloads, and why each is set
//! A veth pair hands packets over unsegmented and without checksums, which no wire would do. The lab keeps that between VM, host
//! and router, where it costs nothing, and makes the last cable before the gateway behave like a wire:
//! - `to-gwN` (the router's end of the uplink): `tx off`, so that inner and outer checksums are filled in before XDP looks
//!   at them; with it the kernel also turns segmentation offload off, so that packets of TCP arrive as packets.
//! - `to-gwN`: `gro on`, which on veth starts the receiving NAPI context; without it the kernel drops what an XDP program
//!   transmits (XDP_TX) towards this end.
//! - `upN` (the gateway's end) stays as it is. XDP in native mode comes with a NAPI context of its own.
//! - hosts and VMs stay as they are.

use crate::node::Place;
use crate::plan::*;
use crate::progress::Progress;
use crate::shell::{self, Namespace};
use crate::state::State;
use crate::LabError;
use std::net::IpAddr;
use std::time::Duration;
use vtep::{port_steps, vtep_steps, Step};

/// How the region is to be.
#[derive(Clone, Debug)]
pub struct Shape {
    /// Names.
    pub names: Names,
    /// MTU of the underlay.
    pub mtu: u32,
    /// Uplinks of the gateway, 1 or 2; 0: other gateways take its place.
    pub uplinks: usize,
}

impl Shape {
    /// Its namespaces.
    pub fn namespaces(&self) -> Vec<Namespace> {
        let gateway = self.names.namespace("gw");
        let mut all = self.names.namespaces();
        all.retain(|ns| self.uplinks > 0 || *ns != gateway);
        all
    }
}

/// Makes all namespaces and everything in them but the gateway's process.
pub fn build(shape: &Shape, progress: &Progress) -> Result<(), LabError> {
    let names = &shape.names;
    progress.step("namespaces");
    for ns in shape.namespaces() {
        namespace(&ns)?;
    }
    progress.step("underlay: a router between the hosts and the gateway");
    router(shape)?;
    for uplink in 0..shape.uplinks {
        attach_uplink(shape, uplink)?;
    }
    if shape.uplinks > 0 {
        route_to_hosts(shape)?;
    }
    progress.step("hosts: VXLAN devices and bridges");
    for host in 0..HOSTS.len() {
        build_host(shape, host)?;
    }
    progress.step("virtual machines");
    build_internet(shape)?;
    for bare in 0..BARES.len() {
        build_bare(shape, bare)?;
    }
    for vm in &VMS {
        build_vm(shape, vm)?;
    }
    for host in 0..HOSTS.len() {
        let ns = names.namespace(HOSTS[host]);
        run_steps(&ns, ports(host).iter().flat_map(port_steps))?;
    }
    Ok(())
}

/// Makes a namespace.
pub(crate) fn namespace(ns: &Namespace) -> Result<(), LabError> {
    shell::run(&format!("ip netns add {}", ns.0))?;
    // Duplicate address detection would hold every IPv6 address back for a second; the addresses are known to be unique.
    ns.sysctl(&[
        ("net.ipv6.conf.all.disable_ipv6", "0"),
        ("net.ipv6.conf.default.disable_ipv6", "0"),
        ("net.ipv6.conf.default.accept_dad", "0"),
        ("net.ipv6.conf.default.router_solicitations", "0"),
    ])?;
    ns.run("ip link set lo up").map(drop)
}

pub(crate) fn run_steps(ns: &Namespace, steps: impl IntoIterator<Item = Step>) -> Result<(), LabError> {
    steps.into_iter().try_for_each(|s| ns.run_argv(&s.argv).map(drop))
}

fn router(shape: &Shape) -> Result<(), LabError> {
    let net = shape.names.namespace("net");
    net.sysctl(&[
        ("net.ipv4.ip_forward", "1"),
        ("net.ipv6.conf.all.forwarding", "1"),
        // With two uplinks the way there and the way back differ.
        ("net.ipv4.conf.all.rp_filter", "0"),
        ("net.ipv4.conf.default.rp_filter", "0"),
        // Spread over the uplinks by the outer UDP source port, which is where VXLAN puts its entropy.
        ("net.ipv4.fib_multipath_hash_policy", "1"),
        ("net.ipv6.fib_multipath_hash_policy", "1"),
    ])
}

/// A cable between the router and another namespace, with addresses.
pub(crate) fn cable(
    shape: &Shape,
    segment: Segment,
    router_dev: &str,
    ns: &Namespace,
    dev: &str,
) -> Result<(), LabError> {
    let net = shape.names.namespace("net");
    shell::run(&format!("ip link add {router_dev} netns {} type veth peer name {dev} netns {}", net.0, ns.0))?;
    let ends = [(&net, router_dev, segment.router4(), segment.router6()), (ns, dev, segment.node4(), segment.node6())];
    for (ns, dev, v4, v6) in ends {
        ns.run(&format!("ip link set dev {dev} mtu {}", shape.mtu))?;
        ns.run(&format!("ip addr add {v4}/24 dev {dev}"))?;
        ns.run(&format!("ip addr add {v6}/64 dev {dev} nodad"))?;
        ns.run(&format!("ip link set dev {dev} up"))?;
    }
    Ok(())
}

fn attach_uplink(shape: &Shape, uplink: usize) -> Result<(), LabError> {
    let (net, gw) = (shape.names.namespace("net"), shape.names.namespace("gw"));
    let router_dev = format!("to-gw{uplink}");
    if uplink == 0 {
        gw.sysctl(&[("net.ipv4.conf.all.rp_filter", "0"), ("net.ipv4.conf.default.rp_filter", "0")])?;
        gw.run(&format!("ip addr add {VTEP4}/32 dev lo"))?;
        gw.run(&format!("ip addr add {VTEP6}/128 dev lo nodad"))?;
    }
    cable(shape, Segment::uplink(uplink), &router_dev, &gw, &format!("up{uplink}"))?;
    net.run(&format!("ethtool -K {router_dev} tx off"))?;
    net.run(&format!("ethtool -K {router_dev} gro on"))?;
    Ok(())
}

/// The gateway's routes to the hosts, and the router's to the gateway's tunnel and public addresses, over all uplinks.
fn route_to_hosts(shape: &Shape) -> Result<(), LabError> {
    let (net, gw) = (shape.names.namespace("net"), shape.names.namespace("gw"));
    let over = |dev: &str, address: &dyn Fn(Segment) -> IpAddr| -> String {
        (0..shape.uplinks).map(|u| format!(" nexthop via {} dev {dev}{u}", address(Segment::uplink(u)))).collect()
    };
    gw.run(&format!("ip route add default{}", over("up", &|s| s.router4().into())))?;
    gw.run(&format!("ip -6 route add default{}", over("up", &|s| s.router6().into())))?;
    net.run(&format!("ip route add {VTEP4}/32{}", over("to-gw", &|s| s.node4().into())))?;
    net.run(&format!("ip -6 route add {VTEP6}/128{}", over("to-gw", &|s| s.node6().into())))?;
    net.run(&format!("ip route add {PUBLIC}{}", over("to-gw", &|s| s.node4().into())))?;
    net.run(&format!("ip -6 route add {BLUE6}{}", over("to-gw", &|s| s.node6().into())))?;
    Ok(())
}

/// A server on the Internet behind the router.
fn build_internet(shape: &Shape) -> Result<(), LabError> {
    let (net, inet) = (shape.names.namespace("net"), shape.names.namespace("inet"));
    let segment = Segment::internet();
    cable(shape, segment, "to-inet", &inet, "wan")?;
    inet.run(&format!("ip addr add {WEB4}/32 dev lo"))?;
    inet.run(&format!("ip addr add {WEB6}/128 dev lo nodad"))?;
    inet.run(&format!("ip route add default via {} src {WEB4}", segment.router4()))?;
    inet.run(&format!("ip -6 route add default via {} src {WEB6}", segment.router6()))?;
    // The MTU of a link further on: the ends learn of it by ICMP alone.
    net.run(&format!("ip route add {} via {} mtu lock {INTERNET_MTU}", INTERNET[0], segment.node4()))?;
    net.run(&format!("ip -6 route add {} via {}", INTERNET[1], segment.node6()))?;
    Ok(())
}

/// A bare-metal server and its wire through the filter node. The ends beside the node's ports behave like wires, as `to-gwN` does.
fn build_bare(shape: &Shape, index: usize) -> Result<(), LabError> {
    let names = &shape.names;
    let (net, edge, bare) = (names.namespace("net"), names.namespace("edge"), names.namespace(BARES[index].name));
    let (segment, router_dev) = (Segment::bare(index), format!("to-bare{index}"));
    shell::run(&format!("ip link add eth0 netns {} type veth peer name srv{index} netns {}", bare.0, edge.0))?;
    shell::run(&format!("ip link add net{index} netns {} type veth peer name {router_dev} netns {}", edge.0, net.0))?;
    for dev in ["srv", "net"] {
        edge.run(&format!("ip link set dev {dev}{index} up addrgenmode none"))?;
    }
    let ends = [
        (&net, router_dev.as_str(), segment.router4(), segment.router6()),
        (&bare, "eth0", segment.node4(), segment.node6()),
    ];
    for (ns, dev, v4, v6) in ends {
        ns.run(&format!("ip addr add {v4}/24 dev {dev}"))?;
        ns.run(&format!("ip addr add {v6}/64 dev {dev} nodad"))?;
        ns.run(&format!("ip link set dev {dev} up"))?;
        ns.run(&format!("ethtool -K {dev} tx off"))?;
        ns.run(&format!("ethtool -K {dev} gro on"))?;
    }
    bare.run(&format!("ip route add default via {}", segment.router4()))?;
    bare.run(&format!("ip -6 route add default via {}", segment.router6())).map(drop)
}

fn build_host(shape: &Shape, host: usize) -> Result<(), LabError> {
    let ns = shape.names.namespace(HOSTS[host]);
    let segment = Segment::host(host);
    let router_dev = format!("to-{}", HOSTS[host].trim_start_matches("nc-"));
    cable(shape, segment, &router_dev, &ns, "uplink")?;
    ns.run(&format!("ip route add default via {}", segment.router4()))?;
    ns.run(&format!("ip -6 route add default via {}", segment.router6()))?;
    run_steps(&ns, vteps(host, shape.mtu).iter().flat_map(vtep_steps))
}

fn build_vm(shape: &Shape, vm: &Vm) -> Result<(), LabError> {
    plug_vm(shape, vm, &shape.names.namespace(HOSTS[vm.host])).map(drop)
}

/// Connects a VM's namespace to a host, and gives it its addresses; the host's interface.
pub(crate) fn plug_vm(shape: &Shape, vm: &Vm, host: &Namespace) -> Result<String, LabError> {
    let ns = shape.names.namespace(vm.name);
    let (port, mtu) = (port_device(vm), shape.mtu - INNER_OVERHEAD);
    shell::run(&format!("ip link add {port} netns {} type veth peer name eth0 netns {}", host.0, ns.0))?;
    host.run(&format!("ip link set dev {port} mtu {mtu}"))?;
    ns.run(&format!("ip link set eth0 address {} mtu {mtu}", vm.mac))?;
    ns.run("ip link set eth0 up")?;
    ns.run(&format!("ip addr add {}/24 dev eth0", vm.v4.0))?;
    ns.run(&format!("ip addr add {}/64 dev eth0 nodad", vm.v6.0))?;
    ns.run(&format!("ip route add default via {}", vm.v4.1))?;
    ns.run(&format!("ip -6 route add default via {}", vm.v6.1))?;
    Ok(port)
}

/// Changes the MTU of the whole region, the VMs included, while it runs.
pub fn set_mtu(shape: &mut Shape, mtu: u32) -> Result<(), LabError> {
    let names = &shape.names;
    let net = names.namespace("net");
    for uplink in 0..shape.uplinks {
        net.run(&format!("ip link set to-gw{uplink} mtu {mtu}"))?;
        names.namespace("gw").run(&format!("ip link set up{uplink} mtu {mtu}"))?;
    }
    for (index, host) in HOSTS.iter().enumerate() {
        let ns = names.namespace(host);
        net.run(&format!("ip link set to-{} mtu {mtu}", host.trim_start_matches("nc-")))?;
        ns.run(&format!("ip link set dev uplink mtu {mtu}"))?;
        for vtep in vteps(index, mtu) {
            let inner = mtu - vtep::overhead(vtep.gateway);
            ns.run(&format!("ip link set {} mtu {inner}", vtep::vxlan_device(vtep.vni)))?;
        }
        for port in ports(index) {
            ns.run(&format!("ip link set {} mtu {}", port.device, mtu - INNER_OVERHEAD))?;
        }
    }
    for vm in &VMS {
        names.namespace(vm.name).run(&format!("ip link set eth0 mtu {}", mtu - INNER_OVERHEAD))?;
    }
    shape.mtu = mtu;
    Ok(())
}

/// Removes everything of this name: recorded processes, namespaces, pins, files. Returns what was there, in words.
pub fn remove(names: &Names) -> Result<Vec<String>, LabError> {
    let dir = names.dir();
    let mut removed = Vec::new();
    if let Some(state) = State::load(&dir) {
        // The youngest first: traffic before what serves it.
        for process in state.processes.iter().rev().filter(|p| p.alive()) {
            process.end(Duration::from_secs(3));
            removed.push(format!("process {} ({})", process.pid, process.what));
        }
    }
    removed.extend(crate::controlled::remove(names)?);
    for ns in names.namespaces().into_iter().filter(Namespace::exists) {
        let strangers = strangers(&ns);
        shell::run(&format!("ip netns del {}", ns.0))?;
        removed.push(format!("namespace {}", ns.0));
        for (pid, name) in strangers {
            removed
                .push(format!("(process {pid}, {name}, still runs in what was namespace {}: end it yourself)", ns.0));
        }
    }
    let places = [Place::gateway(names), Place::edge(names), Place::provider_edge(names)];
    let pins = places.each_ref().map(|p| std::path::Path::new("/sys/fs/bpf/tunny").join(&p.instance));
    for path in pins.into_iter().chain([dir]) {
        if path.exists() {
            std::fs::remove_dir_all(&path).map_err(|source| LabError::File { path: path.clone(), source })?;
            removed.push(path.display().to_string());
        }
    }
    // A node leaves the lock of its socket, and one that was killed the socket.
    let lock = |socket: &std::path::Path| socket.with_extension("sock.lock");
    for socket in places.into_iter().flat_map(|p| [lock(&p.socket), p.socket]).filter(|s| s.exists()) {
        std::fs::remove_file(&socket).map_err(|source| LabError::File { path: socket.clone(), source })?;
        removed.push(socket.display().to_string());
    }
    Ok(removed)
}

/// Processes in a namespace, by the inode of their network namespace.
fn strangers(ns: &Namespace) -> Vec<(i32, String)> {
    use std::os::unix::fs::MetadataExt;
    let Ok(wanted) = std::fs::metadata(ns.path()) else { return Vec::new() };
    let Ok(processes) = std::fs::read_dir("/proc") else { return Vec::new() };
    processes
        .filter_map(|entry| {
            let pid: i32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
            let net = std::fs::metadata(format!("/proc/{pid}/ns/net")).ok()?;
            let same = net.ino() == wanted.ino() && net.dev() == wanted.dev();
            let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            (same && crate::state::start_time(pid).is_some()).then(|| (pid, name.trim().to_string()))
        })
        .collect()
}
