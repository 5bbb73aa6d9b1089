// SPDX-License-Identifier: Apache-2.0
//! Five pipelines modelled on those of the Gigaflow paper: their tables, what each table matches, and the ways through them.
//!
//! They are models: same number of tables and ways, table names and matched fields after the public pipeline documents, every
//! field of a filter rule matched somewhere on the way. Where ways part, the choice was made by the ingress port's role and
//! travels in `reg0`, as in OVN and Antrea; only tables where ways part match it, so the others are shared.

/// A field that a table matches, taken from the rule as it stands when the packet reaches the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Match {
    /// Ingress port.
    InPort,
    /// VLAN id.
    Vlan,
    /// Source MAC address.
    EthSrc,
    /// Destination MAC address (after rewrites).
    EthDst,
    /// Source prefix.
    IpSrc,
    /// Destination prefix.
    IpDst,
    /// IP protocol.
    Proto,
    /// Source ports.
    SrcPort,
    /// Destination ports.
    DstPort,
    /// The chosen output port, in `reg1`.
    OutPort,
}

/// What a table does besides going on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Does {
    /// Nothing.
    Nothing,
    /// Notes the way in `reg0` and the tenant in `metadata`.
    Classify,
    /// Next hop's MAC addresses, output port, TTL.
    Route,
    /// Output port by MAC address.
    Switch,
}

/// A table.
#[derive(Clone, Copy, Debug)]
pub struct TableModel {
    /// Its number.
    pub id: u8,
    /// Its name.
    pub name: &'static str,
    /// What it matches.
    pub matches: &'static [Match],
    /// What it does.
    pub does: Does,
}

/// A pipeline.
#[derive(Debug)]
pub struct Model {
    /// Its short name, as in `--workload`.
    pub name: &'static str,
    /// What it is.
    pub title: &'static str,
    /// Its tables.
    pub tables: Vec<TableModel>,
    /// Its ways: table numbers in order.
    pub table_paths: Vec<Vec<u8>>,
    /// Whether every table matches the tenant (`metadata`), as in OVN.
    pub tenants: bool,
    /// Whether a source prefix stands behind one port of each role; else all come through all trunk ports.
    pub port_by_source: bool,
}

use Does::{Classify, Nothing, Route, Switch};
use Match::{DstPort, EthDst, EthSrc, InPort, IpDst, IpSrc, OutPort, Proto, SrcPort, Vlan};

fn table(id: u8, name: &'static str, matches: &'static [Match], does: Does) -> TableModel {
    TableModel { id, name, matches, does }
}

/// Ways through tables of which some are optional: way `i` leaves out the groups whose bits are set in `i`.
fn table_paths(count: usize, tables: &[TableModel], groups: &[&[u8]]) -> Vec<Vec<u8>> {
    let left_out = |table_path: usize, id: u8| {
        groups.iter().enumerate().any(|(bit, g)| table_path >> bit & 1 == 1 && g.contains(&id))
    };
    (0..count).map(|table_path| tables.iter().map(|t| t.id).filter(|&id| !left_out(table_path, id)).collect()).collect()
}

/// OF-DPA: 10 tables, 5 ways.
fn ofd() -> Model {
    let tables = vec![
        table(0, "ingress_port", &[InPort], Classify),
        table(10, "vlan", &[InPort, Vlan], Nothing),
        table(20, "termination_mac", &[Vlan], Nothing),
        table(24, "tunnel_label", &[], Nothing),
        table(30, "unicast_routing", &[IpDst], Route),
        table(40, "multicast_routing", &[IpSrc, IpDst], Route),
        table(50, "bridging", &[Vlan, EthDst], Switch),
        table(60, "acl_policy", &[IpSrc, Proto, SrcPort, DstPort], Nothing),
        table(210, "egress_vlan", &[Vlan, OutPort], Nothing),
        table(235, "egress_dscp", &[], Nothing),
    ];
    let table_paths = vec![
        vec![0, 10, 20, 30, 60, 210],
        vec![0, 10, 20, 40, 60, 210],
        vec![0, 10, 20, 50, 60, 210],
        vec![0, 10, 20, 24, 30, 60, 210],
        vec![0, 10, 20, 30, 60, 210, 235],
    ];
    Model { name: "ofd", title: "OF-DPA", tables, table_paths, tenants: false, port_by_source: false }
}

/// The L2L3-ACL pipeline of PISCES: 7 tables, 2 ways.
fn psc() -> Model {
    let tables = vec![
        table(0, "vlan_ingress", &[InPort, Vlan], Classify),
        table(1, "mac_learning", &[EthSrc], Nothing),
        table(2, "route_or_switch", &[Vlan], Nothing),
        table(3, "switching", &[Vlan, EthDst], Switch),
        table(4, "routing", &[IpDst], Route),
        table(5, "acl", &[IpSrc, Proto, SrcPort, DstPort], Nothing),
        table(6, "vlan_egress", &[Vlan, OutPort], Nothing),
    ];
    let table_paths = vec![vec![0, 1, 2, 3, 5, 6], vec![0, 1, 2, 4, 5, 6]];
    Model { name: "psc", title: "PISCES L2L3-ACL", tables, table_paths, tenants: false, port_by_source: false }
}

/// An OVN logical switch, ingress and egress: 30 tables, 23 ways.
fn ols() -> Model {
    let tables = vec![
        table(0, "phy_to_log", &[InPort], Classify),
        table(8, "ls_in_port_sec_l2", &[InPort, EthSrc], Nothing),
        table(9, "ls_in_port_sec_ip", &[EthSrc, IpSrc], Nothing),
        table(10, "ls_in_port_sec_nd", &[], Nothing),
        table(11, "ls_in_pre_acl", &[], Nothing),
        table(12, "ls_in_pre_lb", &[IpDst], Nothing),
        table(13, "ls_in_pre_stateful", &[], Nothing),
        table(14, "ls_in_acl_hint", &[], Nothing),
        table(15, "ls_in_acl", &[IpDst, Proto, DstPort], Nothing),
        table(16, "ls_in_qos_mark", &[], Nothing),
        table(17, "ls_in_qos_meter", &[], Nothing),
        table(18, "ls_in_lb", &[IpDst, Proto, DstPort], Nothing),
        table(19, "ls_in_stateful", &[], Nothing),
        table(20, "ls_in_hairpin", &[], Nothing),
        table(21, "ls_in_arp_rsp", &[], Nothing),
        table(22, "ls_in_dhcp_options", &[Proto], Nothing),
        table(23, "ls_in_dns_lookup", &[Proto], Nothing),
        table(24, "ls_in_external_port", &[], Nothing),
        table(25, "ls_in_l2_lkup", &[EthDst], Switch),
        table(32, "log_out_start", &[], Nothing),
        table(40, "ls_out_pre_lb", &[], Nothing),
        table(41, "ls_out_pre_acl", &[], Nothing),
        table(42, "ls_out_lb", &[], Nothing),
        table(43, "ls_out_acl_hint", &[], Nothing),
        table(44, "ls_out_acl", &[IpSrc, Proto, SrcPort], Nothing),
        table(45, "ls_out_qos", &[], Nothing),
        table(46, "ls_out_stateful", &[], Nothing),
        table(47, "ls_out_port_sec_ip", &[EthDst, IpDst], Nothing),
        table(48, "ls_out_port_sec_l2", &[EthDst], Nothing),
        table(65, "log_to_phy", &[OutPort], Nothing),
    ];
    let table_paths = table_paths(23, &tables, &[&[14, 15], &[12, 18], &[44], &[17], &[22, 23]]);
    Model { name: "ols", title: "OVN logical switch", tables, table_paths, tenants: true, port_by_source: true }
}

/// Antrea: 22 tables, 20 ways.
fn ant() -> Model {
    let tables = vec![
        table(0, "PipelineRootClassifier", &[], Nothing),
        table(1, "Classifier", &[InPort], Classify),
        table(2, "SpoofGuard", &[InPort, EthSrc, IpSrc], Nothing),
        table(3, "UnSNAT", &[IpDst], Nothing),
        table(4, "ConntrackZone", &[], Nothing),
        table(5, "ConntrackState", &[], Nothing),
        table(6, "PreRoutingClassifier", &[], Nothing),
        table(7, "SessionAffinity", &[], Nothing),
        table(8, "ServiceLB", &[IpDst, Proto, DstPort], Nothing),
        table(9, "EndpointDNAT", &[], Nothing),
        table(10, "EgressRule", &[IpSrc, Proto, DstPort], Nothing),
        table(11, "EgressDefaultRule", &[IpSrc], Nothing),
        table(12, "EgressMetric", &[], Nothing),
        table(13, "L3Forwarding", &[IpDst], Route),
        table(14, "L3DecTTL", &[], Nothing),
        table(15, "SNATMark", &[], Nothing),
        table(16, "L2ForwardingCalc", &[EthDst], Switch),
        table(17, "TrafficControl", &[], Nothing),
        table(18, "IngressRule", &[IpSrc, IpDst, Proto, DstPort], Nothing),
        table(19, "IngressDefaultRule", &[], Nothing),
        table(20, "ConntrackCommit", &[], Nothing),
        table(21, "Output", &[OutPort], Nothing),
    ];
    let mut table_paths = table_paths(20, &tables, &[&[2], &[7, 8, 9], &[10, 11], &[15], &[18, 19]]);
    for table_path in table_paths.iter_mut().filter(|w| w.contains(&2)) {
        table_path.retain(|&t| t != 3); // from a pod: checked for spoofing; from elsewhere: SNAT is undone
    }
    Model { name: "ant", title: "Antrea", tables, table_paths, tenants: false, port_by_source: true }
}

/// The OpenFlow table type pattern for L2L3-ACLs: 8 tables, 11 ways.
fn otl() -> Model {
    let tables = vec![
        table(0, "port", &[InPort], Classify),
        table(1, "vlan", &[InPort, Vlan], Nothing),
        table(2, "mac", &[Vlan], Nothing),
        table(3, "l3", &[IpDst], Route),
        table(4, "l2", &[Vlan, EthDst], Switch),
        table(5, "mark", &[], Nothing),
        table(6, "acl", &[Proto, DstPort], Nothing),
        table(7, "output", &[OutPort], Nothing),
    ];
    let mut table_paths = table_paths(11, &tables, &[&[1], &[3], &[6], &[2]]);
    for table_path in table_paths.iter_mut().filter(|w| w.contains(&3)) {
        table_path.retain(|&t| t != 4); // routed or switched
    }
    Model { name: "otl", title: "OpenFlow TTP L2L3-ACL", tables, table_paths, tenants: false, port_by_source: false }
}

/// All five, in the paper's order.
pub fn all() -> Vec<Model> {
    vec![ofd(), psc(), ols(), ant(), otl()]
}

/// The pipeline of this short name.
pub fn named(name: &str) -> Option<Model> {
    all().into_iter().find(|m| m.name == name)
}

impl Model {
    /// A table by its number.
    pub fn table(&self, id: u8) -> Option<&TableModel> {
        self.tables.iter().find(|t| t.id == id)
    }

    /// Whether ways part after this table.
    pub fn parts_at(&self, id: u8) -> bool {
        let mut next = self.table_paths.iter().filter_map(|w| Some(w.get(w.iter().position(|&t| t == id)? + 1)));
        let first = next.next();
        next.any(|n| Some(n) != first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pipelines_have_as_many_tables_and_ways_as_the_papers() {
        let sizes: Vec<_> = all().iter().map(|m| (m.name, m.tables.len(), m.table_paths.len())).collect();
        assert_eq!(sizes, [("ofd", 10, 5), ("psc", 7, 2), ("ols", 30, 23), ("ant", 22, 20), ("otl", 8, 11)]);
        for model in all() {
            let distinct: std::collections::HashSet<_> = model.table_paths.iter().collect();
            assert_eq!(distinct.len(), model.table_paths.len(), "{}: each way is another one", model.name);
            for table_path in &model.table_paths {
                assert!(
                    table_path.windows(2).all(|w| w[0] < w[1]) && table_path.iter().all(|&t| model.table(t).is_some())
                );
            }
        }
    }

    #[test]
    fn ways_part_only_in_small_tables_and_every_rule_field_is_matched_somewhere() {
        for model in all() {
            for t in &model.tables {
                let large = t.matches.iter().any(|m| matches!(m, IpSrc | IpDst | EthSrc | EthDst | SrcPort | DstPort));
                assert!(
                    !(large && model.parts_at(t.id)),
                    "{}: table {} is large and ways part in it",
                    model.name,
                    t.id
                );
            }
            let used = |m: &Match| model.tables.iter().any(|t| t.matches.contains(m));
            assert!([InPort, IpDst, Proto, DstPort].iter().all(used));
        }
    }
}
