// SPDX-License-Identifier: Apache-2.0
//! Mirrors between kernels: what a VM sends and gets arrives at a collector of the underlay and at another VM, the traffic itself goes on, a change
//! of the filter takes effect, and a deletion stops it. Needs root.

mod region;

use lab::traffic;
use node::mirrors::MirrorView;
use region::{inside, region, wait, Region};
use std::net::UdpSocket;
use std::time::Duration;

/// The collector's address, on the router's loopback.
const COLLECTOR: &str = "198.18.9.9";
const VNI: u32 = 5000;

/// A mirrored frame.
#[derive(Debug)]
struct Copy {
    vni: u32,
    frame: Vec<u8>,
}

impl Copy {
    fn protocol(&self) -> u8 {
        self.frame[23]
    }

    /// Source, destination, TTL.
    fn ip(&self) -> ([u8; 4], [u8; 4], u8) {
        let at = |i: usize| self.frame[i..i + 4].try_into().unwrap();
        (at(26), at(30), self.frame[22])
    }
}

/// Takes VXLAN at an address in a namespace.
fn listen(region: &Region, ns: &str, address: &str) -> UdpSocket {
    let bind = format!("{address}:4789");
    let socket = inside(&region.ns(ns), move || {
        let socket = UdpSocket::bind(bind).unwrap();
        nix::sys::socket::setsockopt(&socket, nix::sys::socket::sockopt::RcvBufForce, &(32 << 20)).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        socket
    });
    socket.join().unwrap()
}

/// All that has come.
fn take(socket: &UdpSocket) -> Vec<Copy> {
    let (mut copies, mut buffer) = (Vec::new(), [0; 9216]);
    while let Ok(n) = socket.recv(&mut buffer) {
        assert!(n >= 8 + 34 && buffer[0] == 8, "no VXLAN with a frame: {:x?}", &buffer[..n]);
        let vni = u32::from_be_bytes(buffer[4..8].try_into().unwrap()) >> 8;
        copies.push(Copy { vni, frame: buffer[8..n].to_vec() });
    }
    copies
}

fn mirror(spec: &str) -> String {
    format!("{{apiVersion: tunny/v1, kind: Mirror, metadata: {{name: m}}, spec: {{vpc: blue, vms: [blue-1], {spec}}}}}")
}

fn view(region: &Region) -> MirrorView {
    let list: Vec<MirrorView> = serde_json::from_str(&region.tunny(&["get", "mirrors", "-o", "json"])).unwrap();
    list.into_iter().find(|m| m.mirror == "m").unwrap_or_default()
}

fn pings(region: &Region, n: u32) {
    let ping = traffic::ping(&region.ns("blue-1"), "10.0.0.12", n, &["-q", "-i", "0.01"]).unwrap();
    assert_eq!(ping.received, n, "{}", ping.output);
}

fn balanced(region: &Region) {
    let counters = region.node().unwrap().counters().unwrap();
    assert!(counters.balanced, "{counters:?}");
}

#[test]
fn what_a_vm_sends_and_gets_arrives_at_a_collector_until_the_mirror_goes() {
    let Some(region) = region("mi") else { return };
    region.ns("net").run(&format!("ip addr add {COLLECTOR}/32 dev lo")).unwrap();
    let router = region.ns("gw").run("ip -4 route show default").unwrap();
    println!("the gateway's way: {router}");
    let socket = listen(&region, "net", COLLECTOR);
    pings(&region, 3);
    assert_eq!(take(&socket).len(), 0);

    // Both directions of ping, and of nothing else.
    region.apply(&mirror(&format!("filter: [icmp], target: {{collector: {COLLECTOR}, vni: {VNI}}}")));
    wait("the collector's neighbour", || {
        let _ = traffic::ping(&region.ns("blue-1"), "10.0.0.12", 1, &["-q"]);
        (view(&region).copies > 0).then_some(())
    });
    take(&socket);
    let before = view(&region);
    pings(&region, 20);
    let tcp = traffic::tcp(&region.ns("blue-1"), "10.0.0.12", 1).unwrap();
    assert!(tcp.error.is_none() && tcp.bytes > 1 << 20, "{tcp:?}");
    let copies = take(&socket);
    let (one, two) = ([10, 0, 0, 11], [10, 0, 0, 12]);
    let sent = copies.iter().filter(|c| c.ip() == (one, two, 64)).count();
    let gotten = copies.iter().filter(|c| c.ip() == (two, one, 63)).count();
    assert_eq!((sent, gotten, copies.len()), (20, 20, 40), "as sent with TTL 64, as delivered with TTL 63");
    assert!(copies.iter().all(|c| (c.vni, c.protocol()) == (VNI, 1)), "{copies:?}");
    let now = view(&region);
    assert_eq!((now.copies - before.copies, now.limited, now.cut), (40, 0, 0), "{now:?}");
    balanced(&region);

    // Another filter, another size, a limit: copies are dropped first.
    let spec = "direction: egress, filter: ['tcp/5201 10.0.0.12'], packetBytes: 96, limit: {rate: 5kpps, burst: 10}";
    region.apply(&mirror(&format!("{spec}, target: {{collector: {COLLECTOR}, vni: {VNI}}}")));
    let before = view(&region);
    pings(&region, 5);
    assert_eq!(view(&region).copies, before.copies, "ping is no longer mirrored");
    let tcp = traffic::tcp(&region.ns("blue-1"), "10.0.0.12", 1).unwrap();
    assert!(tcp.error.is_none() && tcp.bytes > 1 << 20, "{tcp:?}");
    let (copies, now) = (take(&socket), view(&region));
    println!("{:.0} Mbit/s mirrored, {} copies, {now:?}", tcp.bps / 1e6, copies.len());
    assert!(copies.len() > 100 && copies.iter().all(|c| c.protocol() == 6 && c.frame.len() <= 96), "{}", copies.len());
    assert!(now.limited > 0 && now.cut > 0, "{now:?}");
    assert_eq!(now.copies - before.copies, copies.len() as u64, "each copy arrives");
    balanced(&region);

    // To another VM.
    let vm = listen(&region, "blue-2", "10.0.0.12");
    region.apply(&mirror("direction: egress, target: {vm: blue-2, vni: 5001}"));
    let ping = traffic::ping(&region.ns("blue-1"), "10.1.0.11", 10, &["-q", "-i", "0.01"]).unwrap();
    assert!(ping.received >= 9, "{}", ping.output);
    let copies = take(&vm);
    assert!(
        copies.len() >= 10 && copies.iter().all(|c| c.vni == 5001 && c.frame[6..12] == [2, 0, 0, 0x64, 0, 0x11]),
        "{copies:?}"
    );

    // A mirror that would mirror itself.
    let file = region.names.dir().join("loop.yaml");
    std::fs::write(&file, mirror("target: {vm: blue-1, vni: 5001}")).unwrap();
    let said = region.command(&["apply", "--yes", file.to_str().unwrap()]).output().unwrap();
    let words = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(!said.status.success() && words.contains("spec.target.vm") && words.contains("spec.vms[0]"), "{words}");

    // Gone: nothing more, and the fast path serves.
    region.tunny(&["delete", "--yes", "mirror/m"]);
    take(&vm);
    let punted = || -> u64 {
        let counters: node::types::Counters = region.client().get("/v1/counters").unwrap();
        counters.tenants.iter().find(|t| t.vpc == "blue").map_or(0, |t| t.punts + t.software)
    };
    let before = punted();
    pings(&region, 20);
    assert_eq!((take(&vm).len(), take(&socket).len()), (0, 0));
    assert_eq!(punted(), before, "the fast path serves the VM again");
    balanced(&region);
}
