// SPDX-License-Identifier: Apache-2.0
//! What Open vSwitch takes and what the import takes: the same lines of flows and groups given to both.
use crate::netns::run;
use crate::ovs_trace::DummySwitch;
use crate::Error;
use pipeline::text::{self, ImportOptions};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// Instructions of OpenFlow 1.1 and later: a switch that is told of a flow in the language of version 1.0 is not told of them.
const INSTRUCTIONS: [&str; 5] = ["write_actions", "write_metadata", "clear_actions", "goto_table", "meter:"];

/// Fields that Open vSwitch leaves out of a match without `ct_nw_proto`.
const PORTS: [&str; 2] = ["ct_tp_src=", "ct_tp_dst="];

impl DummySwitch {
    /// Whether the bridge takes a flow or a group. Some flows can be said in OpenFlow 1.0 with extensions only, as a tag taken off a packet that need not
    /// have one.
    pub fn takes(&self, line: &str) -> bool {
        let bridge = self.bridge();
        let add = |version: &str, what: &str| run("ovs-ofctl", &["-O", version, what, &bridge, line]).is_ok();
        if line.starts_with("group_id") {
            return add("OpenFlow15", "add-group");
        }
        // From 1.5 on `load` is said as `set_field`, which refuses some values that `load` of 1.3 takes.
        add("OpenFlow15", "add-flow")
            || add("OpenFlow13", "add-flow")
            || !INSTRUCTIONS.iter().any(|word| line.contains(word)) && add("OpenFlow10", "add-flow")
    }

    /// Whether the bridge takes a flow and leaves out the ports of conntrack that it matches, so that it matches more than it says: Open vSwitch
    /// does so with no word where `ct_nw_proto` is not there beside them.
    fn takes_without_ports(&self, line: &str) -> Result<bool, Error> {
        if !PORTS.iter().any(|field| line.contains(field)) || line.starts_with("group_id") {
            return Ok(false);
        }
        let bridge = self.bridge();
        run("ovs-ofctl", &["-O", "OpenFlow15", "del-flows", &bridge])?;
        if !self.takes(line) {
            return Ok(false);
        }
        let kept = run("ovs-ofctl", &["-O", "OpenFlow15", "dump-flows", &bridge])?;
        Ok(PORTS.iter().any(|field| line.contains(field) && !kept.contains(field)))
    }
}

/// Matches, with and without what fields and actions need.
const MATCHES: [&str; 34] = [
    "",
    "ip",
    "ipv6",
    "tcp",
    "udp",
    "tcp6",
    "icmp6,icmp_type=135,icmp_code=0",
    "arp",
    "mpls",
    "dl_vlan=5",
    "tcp,nw_frag=later",
    "ip,ct_state=+trk",
    "ip,ct_state=+trk+est",
    "ct_state=+trk-inv",
    "ip,ct_state=+trk+est,ct_nw_src=10.0.0.1",
    "ipv6,ct_state=+trk+est,ct_nw_src=10.0.0.1",
    "ip,ct_nw_proto=6",
    "ct_state=+trk+inv,ip,ct_tp_dst=80",
    "reg0=1",
    "reg0",
    "NXM_NX_REG0=1",
    "NXM_NX_REG0[]=1",
    "reg0[0..3]=2",
    "REG0=1",
    "OXM_OF_METADATA=1",
    "ip,nw_tos=35",
    "ip,nw_tos=32/0xfc",
    "recirc_id=0",
    "recirc_id=1",
    "skb_priority=1",
    "tun_metadata0",
    "table=254",
    "table=253",
    "in_port_oxm=1",
];

/// Actions.
const ACTIONS: [&str; 62] = [
    "output:1",
    "output:NONE",
    "output:reg0[0..15]",
    "output:NXM_NX_REG0",
    "CONTROLLER:128",
    "controller(id=5)",
    "ct(commit)",
    "ct(table=3,zone=NXM_NX_REG0[0..15])",
    "ct(table=3,zone=NXM_NX_REG0[0..7])",
    "ct(nat(src=10.0.0.1))",
    "ct(commit,nat(src=10.0.0.1:80))",
    "ct(commit,nat)",
    "ct(commit,alg=ftp)",
    "ct(commit,alg=tftp)",
    "ct(alg=ftp)",
    "ct(commit,exec(load:1->NXM_NX_CT_MARK[]))",
    "ct(exec(load:1->NXM_NX_CT_MARK[]))",
    "ct(force)",
    "ct_clear",
    "set_field:1->reg0",
    "set_field:1->NXM_NX_REG0",
    "set_field:80->tcp_dst",
    "set_field:10.0.0.1->ip_dst",
    "set_field:5->nw_ttl",
    "set_field:::1->nd_target",
    "set_field:35->nw_tos",
    "load:35->NXM_OF_IP_TOS[]",
    "load:1->REG0[]",
    "load:1->reg0",
    "load:1->NXM_NX_CT_MARK[]",
    "load:1->recirc_id",
    "move:NXM_OF_IP_SRC[]->NXM_NX_REG0[]",
    "move:NXM_NX_CT_NW_DST[]->NXM_NX_REG0[]",
    "push:NXM_NX_REG0[],pop:NXM_NX_REG1[]",
    "dec_ttl",
    "dec_mpls_ttl",
    "push_mpls:0x8847",
    "push_vlan:0x8100,set_field:4101->vlan_vid",
    "mod_nw_tos:35",
    "mod_tp_dst:80",
    "set_tunnel:0x1ffffffff",
    "set_tunnel64:0x1ffffffff",
    "delete_field:tun_metadata0",
    "delete_field:reg0",
    "check_pkt_larger(1500)->NXM_NX_REG0[0]",
    "check_pkt_larger(1500)->NXM_NX_REG0[0..1]",
    "check_pkt_larger(70000)->reg0[0]",
    "learn(table=1,NXM_OF_ETH_DST[]=NXM_OF_ETH_SRC[],output:NXM_OF_IN_PORT[])",
    "learn(table=1,NXM_OF_TCP_DST[]=NXM_OF_TCP_SRC[])",
    "learn(table=1,reg1=5)",
    "learn(table=1,REG1=5)",
    "resubmit(,254)",
    "resubmit(,255)",
    "goto_table:250",
    "write_actions(output:1)",
    "write_actions(controller(id=3))",
    "write_actions(note:00)",
    "write_actions(clone(output:1))",
    "write_actions(pop_queue,output:2)",
    "write_actions(set_queue:3,output:2)",
    "output:2,meter:1",
    "clone(set_field:80->tcp_dst,output:2)",
];

/// Groups.
const GROUPS: [&str; 22] = [
    "bucket=actions=output:2",
    "type=all",
    "type=all,bucket=weight:5,actions=output:2",
    "type=select,bucket=weight:5,actions=output:2",
    "type=ff,bucket=actions=output:2",
    "type=ff,bucket=watch_port:1,actions=output:2",
    "type=all,bucket=watch_port:1,actions=output:2",
    "type=select,bucket=watch_port:1,actions=output:2",
    "type=all,selection_method=hash,bucket=actions=output:2",
    "type=select,selection_method=hash,fields(ip_src),bucket=actions=output:2",
    "type=select,selection_method=hash,fields(NXM_OF_IP_DST),bucket=actions=output:2",
    "type=select,selection_method=dp_hash,fields(ip_src),bucket=actions=output:2",
    "type=select,fields(ip_src),bucket=actions=output:2",
    "type=select,selection_method_param=5,bucket=actions=output:2",
    "type=all,bucket=bucket_id:1,output:2,bucket=bucket_id:1,output:3",
    "type=all,bucket=goto_table:2",
    "type=all,bucket=output:2,drop",
    "type=all,bucket=controller(id=4),bucket=clone(output:3),bucket=CONTROLLER",
    "type=indirect,bucket=output:2,bucket=output:3",
    "type=all,bucket=set_field:5->tcp_dst,ct(commit)",
    "type=all,bucket=output:NONE",
    "type=all,bucket=set_field:1->NXM_NX_REG0",
];

/// Lines that both took, and lines that one took alone.
#[derive(Clone, Debug, Default)]
pub struct Acceptance {
    /// Lines given to both.
    pub lines: usize,
    /// Taken by both.
    pub both: usize,
    /// Taken by neither.
    pub neither: usize,
    /// Taken by the import alone.
    pub ours: Vec<String>,
    /// Taken by the switch alone.
    pub theirs: Vec<String>,
    /// Refused by the import, and taken by the switch without a part of the match, so that other packets match too.
    pub theirs_in_part: Vec<String>,
}

impl Acceptance {
    /// Gives lines to both.
    pub fn judge(&mut self, switch: &DummySwitch, lines: &[String]) -> Result<(), Error> {
        for line in lines {
            let (theirs, ours) = (switch.takes(line), text::import(line, &ImportOptions::default()).is_ok());
            self.lines += 1;
            match (ours, theirs) {
                (true, true) => self.both += 1,
                (false, false) => self.neither += 1,
                (true, false) => self.ours.push(line.clone()),
                (false, true) if switch.takes_without_ports(line)? => self.theirs_in_part.push(line.clone()),
                (false, true) => self.theirs.push(line.clone()),
            }
        }
        Ok(())
    }
}

/// All groups, and flows of every match and every action with partners drawn at random; so many more of both at random.
pub fn lines(seed: u64, more: usize) -> Vec<String> {
    let mut random = StdRng::seed_from_u64(seed);
    let mut pick = |list: &[&'static str]| list[random.random_range(0..list.len())];
    let mut out: Vec<String> = GROUPS.iter().enumerate().map(|(n, g)| format!("group_id={},{g}", 100 + n)).collect();
    out.extend(MATCHES.iter().map(|m| format!("{m} actions=output:1")));
    out.extend(ACTIONS.iter().flat_map(|a| [format!("actions={a}"), format!("tcp actions={a}")]));
    out.extend((0..more).map(|_| format!("{} actions={},{}", pick(&MATCHES), pick(&ACTIONS), pick(&ACTIONS))));
    out
}
