// SPDX-License-Identifier: Apache-2.0
//! Random programs that Open vSwitch takes as well.
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::fmt::Write as _;

/// Matches; which protocol they are of is at the beginning.
const MATCHES: [&str; 29] = [
    "",
    "ip",
    "ip,nw_dst=10.0.0.0/8",
    "ip,nw_dst=10.1.0.0/16",
    "ip,nw_dst=10.1.2.0/24",
    "ip,nw_src=10.0.0.0/9",
    "tcp",
    "tcp,tp_dst=80",
    "tcp,tp_dst=0x50/0xfff0",
    "udp",
    "udp,tp_dst=53",
    "ipv6",
    "ipv6,ipv6_dst=2001:db8::/32",
    "tcp6,tp_dst=80",
    "arp",
    "arp,arp_tpa=10.1.2.3",
    "in_port=1",
    "reg0=1",
    "reg0=0x2/0xf",
    "metadata=7",
    "dl_vlan=5",
    "ip,ct_state=+trk+est",
    "ip,ct_state=+trk+new",
    "tcp,ct_state=-new+trk,tp_dst=80",
    "recirc_id=0,ip",
    "tun_metadata0",
    "NXM_NX_REG0[0..7]=2",
    "mpls,mpls_label=5",
    "mpls,mpls_bos=1",
];

/// Actions, and the protocols that they are for: all, if none is named.
const ACTIONS: [(&str, &[&str]); 50] = [
    ("output:1", &[]),
    ("output:2", &[]),
    ("output:IN_PORT", &[]),
    ("load:1->NXM_NX_REG0[]", &[]),
    ("load:0x2->NXM_NX_REG0[0..3]", &[]),
    ("move:NXM_OF_IN_PORT[]->NXM_NX_REG0[0..15]", &[]),
    ("set_field:7->metadata", &[]),
    ("mod_dl_dst:0a:00:00:00:00:01", &[]),
    ("set_field:0a:00:00:00:00:00/ff:00:00:00:00:00->eth_src", &[]),
    ("push:NXM_NX_REG0[],pop:NXM_NX_REG1[]", &[]),
    ("ct_clear", &[]),
    ("set_queue:3", &[]),
    ("pop_queue", &[]),
    ("clone(load:2->NXM_NX_REG0[],output:3)", &[]),
    ("clone(output(port=3,max_len=64))", &[]),
    ("clone(push_vlan:0x8100,set_field:4101->vlan_vid,output:3)", &["", "ip", "arp", "in_port=1"]),
    ("group:1", &[]),
    ("group:2", &[]),
    ("group:3", &[]),
    ("group:4", &["ip", "tcp", "udp"]),
    ("group:5", &[]),
    ("group:9", &[]),
    ("CONTROLLER:64", &[]),
    ("controller(id=3,max_len=100)", &[]),
    ("learn(table=6,priority=20,NXM_OF_ETH_DST[]=NXM_OF_ETH_SRC[],load:0x5->NXM_NX_REG3[],output:NXM_OF_IN_PORT[]),resubmit(,6)", &[]),
    ("learn(table=6,priority=10,NXM_NX_REG0[],output:NXM_OF_IN_PORT[]),resubmit(,6)", &[]),
    ("check_pkt_larger(1400)->NXM_NX_REG0[0]", &[]),
    ("check_pkt_larger(100)->NXM_NX_REG1[3]", &[]),
    ("set_tunnel:0x123456789", &[]),
    ("set_field:6->tun_metadata0", &[]),
    ("delete_field:tun_metadata0", &[]),
    ("normal", &[]),
    ("flood", &[]),
    ("clone(ct(commit,table=5))", &["ip", "tcp", "udp", "ipv6", "tcp6"]),
    ("ct(table=5,zone=4)", &["ip", "tcp", "udp", "ipv6", "tcp6"]),
    ("ct(commit,zone=7,nat(dst=10.3.3.3))", &["tcp", "udp"]),
    ("set_field:10.0.0.0/8->ip_dst", &["ip", "tcp", "udp"]),
    ("set_field:10.9.9.9->ip_src", &["ip", "tcp", "udp"]),
    ("mod_nw_tos:32", &["ip", "tcp", "udp"]),
    ("dec_ttl", &["ip", "tcp", "udp", "ipv6", "tcp6"]),
    ("clone(set_field:10.9.9.1->ip_dst,output:3)", &["ip", "tcp", "udp"]),
    ("clone(ct(commit,zone=1),output:2)", &["ip", "tcp", "udp", "ipv6", "tcp6"]),
    ("clone(set_field:9->tcp_src,clone(ct(commit)),output:2)", &["tcp"]),
    ("ct(commit,zone=2,exec(set_field:5->ct_mark))", &["ip", "tcp", "udp", "ipv6"]),
    ("clone(push_mpls:0x8847,set_field:9->mpls_label,output:3)", &["ip", "tcp", "udp"]),
    ("set_field:0x10/0xff->tcp_dst", &["tcp"]),
    ("set_field:0x10/0xff->udp_dst", &["udp"]),
    ("set_field:2001:db8::/64->ipv6_dst", &["ipv6", "tcp6"]),
    ("mod_vlan_pcp:3", &["dl_vlan=5"]),
    ("set_field:7->mpls_label", &["mpls"]),
];

/// Flows of tables 0 to 5, and a group.
pub fn random(seed: u64) -> String {
    let mut random = StdRng::seed_from_u64(seed);
    let mut text =
        String::from("group_id=1,type=all,bucket=actions=set_field:8->metadata,output:1,bucket=actions=output:2\n\
            group_id=2,type=indirect,bucket=actions=CONTROLLER:20,set_field:3->reg1,resubmit(,5)\n\
            group_id=3,type=all,bucket=actions=controller(id=4),bucket=actions=output:4,CONTROLLER,bucket=actions=push_vlan:0x8100,output:5\n\
            group_id=4,type=fast_failover,bucket=watch_port:3,actions=set_field:10.7.7.7->ip_dst,ct(commit,table=5),bucket=watch_port:4,actions=output:6\n\
            group_id=5,type=all,bucket=actions=group:1,bucket=actions=normal,bucket=actions=check_pkt_larger(50)->NXM_NX_REG0[1],flood\n");
    for table in 0..6u32 {
        for priority in 1..random.random_range(6..24) {
            let matching = MATCHES[random.random_range(0..MATCHES.len())];
            let protocol = matching.split(',').next().unwrap_or_default();
            let _ = write!(text, "table={table},priority={priority},{matching} actions=");
            for _ in 0..random.random_range(0..4) {
                let (action, protocols) = ACTIONS[random.random_range(0..ACTIONS.len())];
                if protocols.is_empty() || protocols.contains(&protocol) {
                    let _ = write!(text, "{action},");
                }
            }
            let _ = match table + random.random_range(1..3) {
                next if next > 5 => writeln!(text, "output:7"),
                next if random.random_range(0..3) == 0 => writeln!(text, "resubmit(,{next}),output:6"),
                next => writeln!(text, "resubmit(,{next})"),
            };
        }
    }
    text.push_str("table=6,priority=0 actions=output:8\n");
    text.push_str("table=5,priority=0 actions=CONTROLLER\n");
    text
}
