// SPDX-License-Identifier: Apache-2.0
//! The benches by name. Names stay: results of different versions are compared by them.
use crate::{
    agent, chip_model, classify, compact, completion, complexity, cores, cpu, delay, drive, edge, edge_sizes,
    fast_slow, filter, filter_change, filter_rules, handoff, isolation, latency, load, lookups, masquerade, nat,
    natshare, netfilter, newconn, ovs_lookup, ovs_trace, peers, placement, region, rule_change, sessions, shaper,
    split_model, tcp, user, Context, Error, Report,
};

/// Which benches run together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Group {
    /// Tunny alone: `make bench`.
    Own,
    /// Beside other gateways: `make peers`.
    Peer,
}

/// One bench.
#[derive(Debug, serde::Serialize)]
pub struct Bench {
    /// Its name.
    pub name: &'static str,
    /// Unit of its value.
    pub unit: &'static str,
    /// What it measures.
    pub what: &'static str,
    /// With which others it runs.
    pub group: Group,
    #[serde(skip)]
    run: fn(&Context) -> Result<Report, Error>,
}

impl Bench {
    /// Runs it.
    pub fn run(&self, context: &Context) -> Result<Report, Error> {
        let mut report = cpu::unpinned_after(|| (self.run)(context))?;
        report.seed = context.seed;
        Ok(report)
    }
}

/// Every bench, in the order in which they run.
pub const BENCHES: &[Bench] = &[
    Bench {
        name: "xdp-gateway",
        unit: "ratio",
        what: "the XDP program with its flow cache ÷ bare parse and lookup, a packet, 1M flows, 1M routes + 1M VMs in 100k VPCs",
        group: Group::Own,
        run: drive::xdp_gateway,
    },
    Bench {
        name: "xdp-nat",
        unit: "ratio",
        what: "established SNAT sessions on the XDP program with its flow cache ÷ bare, a packet, 1M sessions, the worse of out and in",
        group: Group::Own,
        run: nat::xdp_nat,
    },
    Bench {
        name: "xdp-filter",
        unit: "ratio",
        what: "data packets of 1M established TCP connections between VMs with security groups on the XDP program with its flow cache ÷ bare",
        group: Group::Own,
        run: filter::xdp_filter,
    },
    Bench {
        name: "xdp-filter-states",
        unit: "ns",
        what: "data packets of established connections under security groups, compact and digest state tables, 1M and 10M connections",
        group: Group::Own,
        run: filter::xdp_filter_states,
    },
    Bench {
        name: "fast-slow",
        unit: "%",
        what: "packets that the fast path serves of a skew in which a twentieth of the entries carries 95%, when the controller gives it a twentieth of the entries",
        group: Group::Own,
        run: fast_slow::fast_slow,
    },
    Bench {
        name: "isolation",
        unit: "ratio",
        what: "initial RTT (p99) of a tenant's new connections while another one floods SYNs ÷ while it sends as many permitted packets",
        group: Group::Own,
        run: isolation::isolation,
    },
    Bench {
        name: "completion-time",
        unit: "ratio",
        what: "short flows beside the long connections of thirty tenants, without migration ÷ with; flows of four size distributions beside nftables",
        group: Group::Own,
        run: completion::completion_time,
    },
    Bench {
        name: "filter-delay",
        unit: "ratio",
        what: "delay of data packets (p99) through nf_conntrack ÷ through a filter node under load; jitter, SYNs and CPU beside it",
        group: Group::Own,
        run: delay::filter_delay,
    },
    Bench {
        name: "nat-share",
        unit: "percent",
        what: "packets and sessions of SNAT that are the software path's, offload on and off on the same streams, whole nodes on veth",
        group: Group::Own,
        run: natshare::nat_share,
    },
    Bench {
        name: "user-gateway",
        unit: "Mpps",
        what: "the Rust path on one core, the same tables and packets, on the mapped BPF arrays",
        group: Group::Own,
        run: user::user_gateway,
    },
    Bench {
        name: "user-gateway-16m",
        unit: "Mpps",
        what: "the Rust path on one core with 16M VM entries",
        group: Group::Own,
        run: user::user_gateway_16m,
    },
    Bench {
        name: "cores",
        unit: "ratio",
        what: "packets of two CPUs together ÷ of one, the least of XDP and Rust between VMs, with NAT, under security groups",
        group: Group::Own,
        run: cores::cores,
    },
    Bench {
        name: "table-load",
        unit: "s",
        what: "one commit of 1M routes + 1M VMs into the empty tables of a fresh engine, from parsed input; from a snapshot file beside it",
        group: Group::Own,
        run: load::table_load,
    },
    Bench {
        name: "entry-bytes",
        unit: "bytes",
        what: "table memory an entry with 1M routes + 1M VMs, all in",
        group: Group::Own,
        run: load::entry_bytes,
    },
    Bench {
        name: "churn",
        unit: "percent",
        what: "how far the forwarding rate falls while 100k routes a second change, and how soon a change is seen",
        group: Group::Own,
        run: load::churn,
    },
    Bench {
        name: "latency",
        unit: "us",
        what: "time through the XDP gateway on veth against plain Linux forwarding: p50, p99, p99.9",
        group: Group::Own,
        run: latency::latency,
    },
    Bench {
        name: "chip-plan",
        unit: "s",
        what: "a whole plan of 1M routes + 1M VMs for a switch chip: steps, stages, front, its tables built and looked up",
        group: Group::Own,
        run: chip_model::plan,
    },
    Bench {
        name: "chip-lookup",
        unit: "Mpps",
        what: "the chip model on one core: route and VM-NC lookup of one packet in the compressed tables of half a chip",
        group: Group::Own,
        run: chip_model::lookup,
    },
    Bench {
        name: "placement",
        unit: "highest ÷ mean",
        what: "water levels of 20 clusters with 1M heavy-tailed tenants, placed, a cluster added, made even again; entries moved, seconds a plan",
        group: Group::Own,
        run: placement::placement,
    },
    Bench {
        name: "split-model",
        unit: "percent error",
        what: "packets a second that `plan split` predicts of XDP alone, the Rust path alone and both at once beside what is measured, the worst",
        group: Group::Own,
        run: split_model::split_model,
    },
    Bench {
        name: "edge-xdp",
        unit: "ratio",
        what: "a customer's frame with two tags into the cloud ÷ a packet between VMs, on the XDP program, 1M VMs in 4,000 VPCs with a site each",
        group: Group::Own,
        run: edge::edge_xdp,
    },
    Bench {
        name: "edge-user",
        unit: "Mpps",
        what: "customers' frames with two tags into the cloud on the Rust path, one core, beside packets between VMs",
        group: Group::Own,
        run: edge::edge_user,
    },
    Bench {
        name: "edge-sizes",
        unit: "ratio",
        what: "a customer's frame into the cloud on the Rust path by overlay size (1, 1M, 16M) and frame size, as VPN Fig. 5; beside packets between VMs",
        group: Group::Own,
        run: edge_sizes::edge_sizes,
    },
    Bench {
        name: "run-to-completion",
        unit: "ratio",
        what: "one core that receives and processes customers' frames ÷ a receiving core, a ring and a processing core",
        group: Group::Own,
        run: handoff::run_to_completion,
    },
    Bench {
        name: "program-complexity",
        unit: "percent error",
        what: "packets a second by lookups, branches and lines of state on XDP and Rust; how far a fitted model is from programs that it has not seen",
        group: Group::Own,
        run: complexity::program_complexity,
    },
    Bench {
        name: "tcp-throughput",
        unit: "ratio",
        what: "TCP between VMs on one host and on two through engine tc ÷ through bridges and VXLAN devices of the kernel, the worst of one and eight streams",
        group: Group::Own,
        run: tcp::tcp_throughput,
    },
    Bench {
        name: "shaper",
        unit: "percent error",
        what: "rate error of the worst of 1,000 shaped classes in simulated time; beside it packets a second on one core with 10,000 and 1M classes",
        group: Group::Own,
        run: shaper::shaper,
    },
    Bench {
        name: "region-load",
        unit: "s",
        what: "one apply of 1M routes + 1M VMs until four nodes of two clusters have verified them; memory of the controller, its restart",
        group: Group::Own,
        run: region::load::region_load,
    },
    Bench {
        name: "region-change",
        unit: "ms",
        what: "one change until four nodes have verified it (p99), alone and while 1,000 others come a second",
        group: Group::Own,
        run: region::change::region_change,
    },
    Bench {
        name: "region-crowd",
        unit: "cores",
        what: "CPU of a controller that 1,000 simulated nodes in 50 clusters follow and report to, at 100 changes a second",
        group: Group::Own,
        run: region::crowd::region_crowd,
    },
    Bench {
        name: "region-repair",
        unit: "s",
        what: "a changed entry in the table memory of a node with 1M routes + 1M VMs until it is mended; CPU of the thread that looks",
        group: Group::Own,
        run: region::repair::region_repair,
    },
    Bench {
        name: "import-flows",
        unit: "s",
        what: "100k flows in the text of ovs-ofctl dump-flows into a pipeline",
        group: Group::Own,
        run: classify::import_flows,
    },
    Bench {
        name: "classify",
        unit: "ns",
        what: "a lookup among 10k flows with its exact mask: staged tuple space search, TupleMerge, a list",
        group: Group::Own,
        run: classify::classify,
    },
    Bench {
        name: "cache-lookup",
        unit: "Mpps",
        what: "lookups in a full cache of 4 tables of 8K entries, one core, the slowest model; with the memory of headers in front, and judged without",
        group: Group::Own,
        run: lookups::cache_lookup,
    },
    Bench {
        name: "cache-rule-change",
        unit: "percent",
        what: "how far the rate of a cache under 2M flows falls when a tenth of the routes changes, and for how long",
        group: Group::Own,
        run: rule_change::rule_change,
    },
    Bench {
        name: "peer-ovs-trace",
        unit: "differences",
        what: "explanations of random packets beside ofproto/trace of Open vSwitch: ways and datapath actions that differ",
        group: Group::Peer,
        run: ovs_trace::peer,
    },
    Bench {
        name: "peer-ovs-lookup",
        unit: "ratio",
        what: "CPU time of a megaflow lookup in Open vSwitch-DPDK ÷ of a lookup in the cache, OVN model; judged by a real dump without the memory of headers",
        group: Group::Peer,
        run: ovs_lookup::peer,
    },
    Bench {
        name: "new-connections",
        unit: "per second",
        what: "first packets of new UDP connections to the Internet through the Rust path on one core, port and session made",
        group: Group::Own,
        run: newconn::new_connections,
    },
    Bench {
        name: "snat-100m",
        unit: "bytes",
        what: "memory a session with 100M IPv4 sessions, both keys and timer included; inserts, lookups, expiry",
        group: Group::Own,
        run: sessions::snat_100m,
    },
    Bench {
        name: "filter-compile",
        unit: "s",
        what: "1M rules of security groups, 10k a group, into flat tables; checked, and from text",
        group: Group::Own,
        run: filter_rules::filter_compile,
    },
    Bench {
        name: "filter-change",
        unit: "ms",
        what: "from the text of a group with one changed rule until a packet meets it, 1M rules loaded",
        group: Group::Own,
        run: filter_change::filter_change,
    },
    Bench {
        name: "filter-first",
        unit: "per second",
        what: "first packets of UDP connections between VMs in groups of 10k rules through the Rust path on one core, session made",
        group: Group::Own,
        run: filter_rules::filter_first,
    },
    Bench {
        name: "agent-remote",
        unit: "ratio",
        what: "connections a second through an agent on another host: packets that wait by themselves over one at a time",
        group: Group::Own,
        run: agent::agent_remote,
    },
    Bench {
        name: "compact-memory",
        unit: "MiB",
        what: "state tables of 10M and 100M connections: memory at each collision rate, false accepts, beside the paper's curve",
        group: Group::Own,
        run: compact::compact_memory,
    },
    Bench {
        name: "peer-ovs",
        unit: "ratio",
        what: "packets per core of the Rust path ÷ Open vSwitch-DPDK, 1M flows, 64k distinct packets",
        group: Group::Peer,
        run: peers::ovs,
    },
    Bench {
        name: "peer-linux-vxlan",
        unit: "ratio",
        what: "CPU per packet of the kernel as a VXLAN gateway ÷ Tunny's XDP path, on veth",
        group: Group::Peer,
        run: peers::linux_vxlan,
    },
    Bench {
        name: "peer-linux-route",
        unit: "ratio",
        what: "CPU per packet of plain kernel routing ÷ Tunny's XDP path, on veth",
        group: Group::Peer,
        run: peers::linux_route,
    },
    Bench {
        name: "peer-netfilter",
        unit: "ratio",
        what: "CPU per packet that nf_conntrack adds to kernel forwarding ÷ what security groups add to Tunny's XDP path, on veth",
        group: Group::Peer,
        run: netfilter::peer,
    },
    Bench {
        name: "peer-masquerade",
        unit: "ratio",
        what: "CPU per new UDP connection of Linux nftables masquerade ÷ a whole Tunny node's SNAT, all threads, on veth",
        group: Group::Peer,
        run: masquerade::peer,
    },
];

/// The headlines, `make bench`: what a README would print, in a quarter of an hour on 2 CPUs at five samples (about eight minutes
/// when quiet). Left to `make bench-full` are what needs minutes by itself (100M sessions or connections, 16M VMs, delays and
/// completion times beside nftables) and details of a headline.
pub const HEADLINES: &[&str] = &[
    "xdp-gateway",
    "xdp-nat",
    "xdp-filter",
    "user-gateway",
    "table-load",
    "entry-bytes",
    "churn",
    "latency",
    "new-connections",
    "filter-first",
    "filter-compile",
    "filter-change",
    "isolation",
    "import-flows",
    "cache-lookup",
    "chip-plan",
];

/// The bench with this name.
pub fn find(name: &str) -> Result<&'static Bench, Error> {
    BENCHES.iter().find(|b| b.name == name).ok_or_else(|| Error::Unknown(name.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headlines_are_benches_of_tunny_alone() {
        let own: Vec<&str> = BENCHES.iter().filter(|b| b.group == Group::Own).map(|b| b.name).collect();
        assert!(HEADLINES.iter().all(|h| own.contains(h)));
        assert!(HEADLINES.len() < own.len());
    }
}
