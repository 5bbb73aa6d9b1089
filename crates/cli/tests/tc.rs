// SPDX-License-Identifier: Apache-2.0
//! Engine tc, in network namespaces: what VMs and hosts leave to drivers (segments, checksums) goes through whole, whatever its way. Without root it
//! says so and passes.

mod hosts;
mod region;

use hosts::{host, port, reaches, transfers, vm, Space, Switch, MTU, UNDERLAY};
use lab::traffic;
use region::wait;
use std::path::Path;

const ENGINE: &str = "tc";
/// On the Internet.
const SERVER: &str = "198.18.0.9";

/// What the first host needs for its VMs to reach the Internet.
const INTERNET: &str = "
{apiVersion: tunny/v1, kind: Route, spec: {vpc: blue, prefix: 0.0.0.0/0, scope: internet}}
---
{apiVersion: tunny/v1, kind: PublicPool, metadata: {name: public}, spec: {ranges: [203.0.113.0/28]}}
---
{apiVersion: tunny/v1, kind: Snat, metadata: {name: blue}, spec: {vpc: blue, pools: [public]}}
";

/// A VM that knows what it is.
fn knows(vm: &Space, number: u8) {
    vm.0.sysctl(&[("net.ipv6.conf.eth0.disable_ipv6", "0")]).unwrap();
    vm.run(&format!("ip addr add 10.0.0.2{number}/24 dev eth0"));
    vm.run(&format!("ip addr add fd00:64::2{number}/64 dev eth0 nodad"));
    vm.run("ip route add default via 10.0.0.1");
}

fn mode_of(switch: &Switch, name: &str) -> String {
    let said = switch.try_tunny(&["get", "status", "-o", "json"]).unwrap();
    let status: serde_json::Value = serde_json::from_str(&said).unwrap();
    let port = status["uplinks"].as_array().unwrap().iter().find(|u| u["name"] == name);
    port.and_then(|u| u["mode"].as_str()).unwrap_or_default().into()
}

#[test]
fn large_segments_stay_whole_whatever_their_way() {
    if !skip::have_root("to make network namespaces") {
        return;
    }
    let net = Space::new("tcnet");
    net.run("ip link add br0 type bridge stp_state 0");
    net.run(&format!("ip link set dev br0 mtu {MTU} up"));
    let (one, two) = (host(&net, 11, ENGINE), host(&net, 12, ENGINE));
    let outside = host(&net, 1, ENGINE);
    outside.run(&format!("ip addr add {SERVER}/32 dev lo"));
    outside.run(&format!("ip route add 203.0.113.0/28 via {UNDERLAY}.11"));
    let vms = [vm(&one, 1, ENGINE), vm(&one, 2, ENGINE), vm(&two, 3, ENGINE)];
    vms.iter().zip(1..).for_each(|(vm, number)| knows(vm, number));
    // Less than the VM behind it believes: whoever sends more is told so.
    one.run("ip link set vp2 mtu 1400");
    let internet = format!("engine: tc, internet: {{via: [{UNDERLAY}.1]}}");
    let mut first = Switch::start_with(&one, 11, &internet, &format!("{}---\n{}", port(1), port(2)));
    let second = Switch::start(&two, 12, ENGINE, &port(3));
    first.apply(INTERNET);
    for (switch, ports) in [(&first, &["up0", "vp1", "vp2"][..]), (&second, &["up0", "vp3"])] {
        for name in ports {
            assert_eq!(mode_of(switch, name), "tc", "{name}");
        }
    }

    // A transfer between hosts counts what is on the wire, not what the hosts handed each other.
    reaches(&vms[0], "10.0.0.23", "on two hosts");
    let before = first.counters();
    let sent = transfers(&vms[0], &vms[2], "10.0.0.23", "TCP on two hosts");
    let after = first.counters();
    let rise = |what: &str| after["total"][what].as_u64().unwrap() - before["total"][what].as_u64().unwrap();
    let (packets, bytes) = (rise("forwarded"), rise("forwarded_bytes"));
    assert!(packets >= sent.bytes / 1448, "{packets} packets for {} bytes", sent.bytes);
    assert!(packets < sent.bytes / 1448 * 2, "{packets} packets for {} bytes", sent.bytes);
    assert!(bytes >= sent.bytes / 1448 * 1564, "{bytes} on the wire for {}", sent.bytes);

    reaches(&vms[0], "fd00:64::23", "IPv6 on two hosts");
    transfers(&vms[0], &vms[2], "fd00:64::23", "TCP over IPv6 on two hosts");
    transfers(&vms[2], &vms[0], "10.0.0.21", "TCP back");
    transfers(&vms[0], &vms[1], "10.0.0.22", "TCP to a port with a smaller MTU");
    assert!(first.counters()["total"]["punts"]["icmp_due"].as_u64().unwrap_or(0) > 0, "{}", first.counters());

    transfers(&vms[0], &outside, SERVER, "TCP to the Internet");
    let mut server = outside.0.spawn(&["iperf3", "-s", "-1"], Path::new("/dev/null")).unwrap();
    let argv = ["iperf3", "-J", "-R", "-t", "1", "-c", SERVER];
    // It prints an error, and ends well, as long as the server is not there.
    wait("TCP from the Internet", || {
        let out = vms[0].0.try_argv(&argv).ok()?;
        String::from_utf8_lossy(&out.stdout).contains("sum_received").then_some(())
    });
    let _ = server.kill();
    let _ = server.wait();
    assert!(first.counters()["total"]["nat"].as_u64().unwrap() > 1000, "{}", first.counters());

    a_guest_that_lies(&vms[0], &first);
    a_tunnel_of_the_vms(&vms[0], &vms[2], &first);
    the_host_keeps_what_is_its_own(&one, &outside);

    // Nobody is needed to go on.
    first.killed(&one, || reaches(&vms[0], "10.0.0.23", "without a daemon"));
    assert_eq!(mode_of(&first, "vp1"), "tc");
    reaches(&vms[0], "10.0.0.1", "what the software path answers");
    transfers(&vms[0], &vms[2], "10.0.0.23", "TCP after the daemon's death");

    // One port by XDP, and back.
    let other = port(2).replace("vm: vm2", "vm: vm2, engine: native");
    vms[1].run("ethtool -K eth0 tx off gro on");
    // What XDP redirects to a veth device arrives only if GRO wakes its far end.
    vms[0].run("ethtool -K eth0 gro on");
    first.apply(&other);
    assert_eq!((mode_of(&first, "vp2"), mode_of(&first, "vp1")), ("native".into(), "tc".into()));
    reaches(&vms[0], "10.0.0.22", "from tc to XDP");
    first.apply(&port(2));
    assert_eq!(mode_of(&first, "vp2"), "tc");
    reaches(&vms[0], "10.0.0.22", "tc again");
    for switch in [&first, &second] {
        let counters = switch.counters();
        println!("{}", counters["balance"]);
        assert!(counters["balance"]["balanced"] == serde_json::Value::Bool(true), "{counters}");
    }
}

/// A guest that has its checksum put where its UDP port is: what the driver would make of it is judged, and not what it was before.
fn a_guest_that_lies(vm: &Space, switch: &Switch) {
    // A UDP packet to port 5000 by PACKET_VNET_HDR; at 6 the checksum is where it should be, at 2 there is the port.
    let send = |offset: u8| {
        format!(
            "import socket,struct\n\
             s=socket.socket(socket.AF_PACKET,socket.SOCK_RAW)\n\
             s.setsockopt(263,15,1)\n\
             s.bind(('eth0',0))\n\
             ip=bytearray(struct.pack('>BBHHHBBH4s4s',0x45,0,36,1,0x4000,64,17,0,bytes([10,0,0,21]),bytes([10,0,0,23])))\n\
             x=sum(struct.unpack('>10H',ip));x=(x&65535)+(x>>16);x=(x&65535)+(x>>16)\n\
             ip[10:12]=struct.pack('>H',65535-x)\n\
             frame=bytes.fromhex('0200000000230200000000210800')+ip+struct.pack('>HHHH',4000,5000,16,0)+b'12345678'\n\
             s.send(struct.pack('<BBHHHH',1,0,0,0,34,{offset})+frame)"
        )
    };
    let punted = || switch.counters()["total"]["punts"]["offloaded"].as_u64().unwrap_or(0);
    let before = (punted(), switch.forwarded());
    vm.0.run_argv(&["python3".into(), "-c".into(), send(6)]).unwrap();
    wait("the honest one", || (switch.forwarded() > before.1).then_some(()));
    assert_eq!(punted(), before.0);
    vm.0.run_argv(&["python3".into(), "-c".into(), send(2)]).unwrap();
    wait("the lie", || (punted() == before.0 + 1).then_some(()));
}

/// A tunnel of the VMs' own: the kernel has marks for one, so such a segment is cut apart on the way.
fn a_tunnel_of_the_vms(one: &Space, other: &Space, first: &Switch) {
    for (vm, own, far) in [(one, 21, 23), (other, 23, 21)] {
        vm.run(&format!(
            "ip link add vx0 mtu 1400 type vxlan id 7 local 10.0.0.{own} remote 10.0.0.{far} dstport 4790 dev eth0"
        ));
        vm.run(&format!("ip addr add 172.31.0.{own}/24 dev vx0"));
        vm.run("ip link set vx0 up");
    }
    reaches_plainly(one, "172.31.0.23");
    let punted = |switch: &Switch| switch.counters()["total"]["punts"]["offloaded"].as_u64().unwrap_or(0);
    let before = punted(first);
    transfers(one, other, "172.31.0.23", "TCP in a tunnel of the VMs'");
    assert!(punted(first) > before, "{}", first.counters());
}

/// What is for the host itself reaches it, also what the software path must look at first.
fn the_host_keeps_what_is_its_own(host: &Space, outside: &Space) {
    reaches_plainly(outside, &format!("{UNDERLAY}.11"));
    let listen = "import socket\ns=socket.socket(socket.AF_INET,socket.SOCK_DGRAM)\ns.settimeout(10)\ns.bind(('0.0.0.0',9999))\nprint(s.recv(99))";
    let mut server = host.0.spawn(&["python3", "-c", listen], Path::new("/dev/null")).unwrap();
    // Four NOPs are options, behind which the VXLAN port could stand.
    let send = format!("import socket\ns=socket.socket(socket.AF_INET,socket.SOCK_DGRAM)\ns.setsockopt(socket.IPPROTO_IP,socket.IP_OPTIONS,bytes([1,1,1,1]))\ns.sendto(b'x',('{UNDERLAY}.11',9999))");
    wait("a packet with options for the host", || {
        outside.0.run_argv(&["python3".into(), "-c".into(), send.clone()]).unwrap();
        server.try_wait().unwrap()
    });
    assert!(server.wait().unwrap().success());
}

/// Without a look at the TTL.
fn reaches_plainly(from: &Space, to: &str) {
    wait(to, || Some(traffic::ping(&from.0, to, 2, &["-i", "0.05"]).ok()?.received).filter(|n| *n == 2));
}
