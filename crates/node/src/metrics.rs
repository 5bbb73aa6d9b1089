// SPDX-License-Identifier: Apache-2.0
//! Prometheus metrics, computed from the counters at each scrape: nothing is counted twice, so they cannot disagree with
//! `tunny get counters`.

use crate::error::NodeError;
use crate::handover::HandoverView;
use crate::service::Node;
use crate::sessions::{PoolView, TenantView};
use crate::types::{Counters, EngineCounters, Level, Status};
use model::Kind;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// VMs whose counters are in one scrape at most (`?vms=all`).
pub const VMS_MAX: u64 = 10_000;

/// What a scrape shows.
#[derive(Clone, Debug, Default)]
pub struct Scrape {
    /// Counters.
    pub counters: Counters,
    /// Water levels.
    pub levels: Vec<Level>,
    /// State of the node.
    pub status: Status,
    /// Counters of VMs, if they were asked for: (VM, packets, bytes).
    pub vms: Vec<(String, u64, u64)>,
    /// VMs that were asked for and are more than a scrape holds.
    pub vms_left_out: u64,
    /// Captured or sampled packets lost because a watcher was too slow.
    pub events_lost: u64,
    /// What tells the states of connections inside.
    pub states: crate::states::StatesView,
    /// What of them has migrated to the software path.
    pub migration: crate::states::MigrationView,
    /// What VPCs exchange by EVPN.
    pub evpn: Vec<crate::routing::EvpnView>,
    /// What waits for its turn.
    pub shaping: crate::shaping::ShapingView,
    /// What is mirrored.
    pub mirrors: Vec<crate::mirrors::MirrorView>,
    /// Counters of sessions.
    pub sessions: conntrack::TrackerStats,
    /// How full the pools are.
    pub pools: Vec<PoolView>,
    /// What each VPC with a way to the Internet holds.
    pub nat: Vec<TenantView>,
    /// Records of the session log that were lost.
    pub log_lost: u64,
    /// VPCs of which another cluster may have sessions.
    pub handovers: BTreeMap<String, HandoverView>,
    /// What is announced.
    pub announced: crate::announce::Announcements,
}

impl Node {
    /// The metrics as text. `vms` names a VM whose counters are wanted too, or `all`: of so many as one scrape may have.
    pub fn metrics(self: &Arc<Self>, vms: &str) -> Result<String, NodeError> {
        let (mut list, mut left_out) = (Vec::new(), 0);
        match vms {
            "" => {}
            "all" => {
                self.each_vm(VMS_MAX, |v| list.push(v));
                left_out = self.core().model.counts().of(Kind::Vm).saturating_sub(VMS_MAX);
            }
            name => list = self.counters_of(name)?,
        }
        let counters = self.counters();
        let nat = crate::sessions::tenants(&self.conntrack, &self.vpc_names(), &counters, self.has_fast_path());
        render(Scrape {
            levels: self.levels_beside(&counters.total),
            counters,
            status: self.status(),
            vms: list.into_iter().map(|v| (v.vm, v.packets, v.bytes)).collect(),
            vms_left_out: left_out,
            events_lost: self.hub().lost.load(std::sync::atomic::Ordering::Relaxed),
            sessions: self.conntrack.connections().tracker().stats(),
            pools: crate::sessions::pools(&self.conntrack),
            nat,
            log_lost: self.conntrack.log().lost(),
            states: self.states(),
            migration: self.migration(),
            shaping: self.shaping(),
            mirrors: self.mirrors(),
            evpn: self.evpn(),
            handovers: self.handovers(),
            announced: self.announcements(),
        })
        .map_err(|_| NodeError::Request("the metrics cannot be written; please report it".into()))
    }
}

/// The metrics in the OpenMetrics text format.
pub fn render(scrape: Scrape) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(scrape));
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry)?;
    Ok(text)
}

/// The same in the older text format, for whoever does not ask for OpenMetrics: there a counter's help and type stand under its whole
/// name, and units and the end are not marked.
pub fn older_format(openmetrics: &str) -> String {
    let mut out = String::with_capacity(openmetrics.len() + 1024);
    let mut help: Option<(&str, &str)> = None;
    for line in openmetrics.lines() {
        if line == "# EOF" || line.starts_with("# UNIT ") {
            continue;
        }
        if let Some(rest) = line.strip_prefix("# HELP ") {
            help = rest.split_once(' ');
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
            let suffix = if kind == "counter" { "_total" } else { "" };
            if let Some((_, text)) = help.take().filter(|(of, _)| *of == name) {
                out.push_str(&format!("# HELP {name}{suffix} {}\n", text.replace("\\\"", "\"")));
            }
            out.push_str(&format!("# TYPE {name}{suffix} {kind}\n"));
        } else {
            out.push_str(line);
            out.push('\n');
        }
    }
    out
}

pub(crate) type Labels = Vec<(&'static str, String)>;

/// Writes one family of metrics: `$name(encoder, name, help, unit, values by labels)`.
macro_rules! family {
    ($(#[$doc:meta])* $name:ident, $value:ty, $kind:expr, $constant:ty) => {
        $(#[$doc])*
        pub(crate) fn $name(
            encoder: &mut DescriptorEncoder,
            name: &str,
            help: &str,
            unit: Option<&Unit>,
            values: impl IntoIterator<Item = (Labels, $value)>,
        ) -> fmt::Result {
            let mut family = encoder.encode_descriptor(name, help, unit, $kind)?;
            for (labels, value) in values {
                if labels.is_empty() {
                    return <$constant>::new(value).encode(family);
                }
                <$constant>::new(value).encode(family.encode_family(&labels)?)?;
            }
            Ok(())
        }
    };
}

family!(
    /// Writes one family of counters.
    counters, u64, MetricType::Counter, ConstCounter<u64>
);
family!(
    /// Writes one family of gauges.
    gauges, f64, MetricType::Gauge, ConstGauge<f64>
);

fn by_reason(values: &BTreeMap<String, u64>) -> Vec<(Labels, u64)> {
    values.iter().map(|(reason, n)| (vec![("reason", reason.clone())], *n)).collect()
}

fn engines<'a>(c: &'a Counters, value: fn(&EngineCounters) -> u64) -> impl Iterator<Item = (Labels, u64)> + 'a {
    [("fast", &c.fast), ("software", &c.software)]
        .into_iter()
        .map(move |(name, counters)| (vec![("engine", name.to_string())], value(counters)))
}

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let e = &mut encoder;
        self.packets(e)?;
        self.tenants(e)?;
        self.internet(e)?;
        self.states(e)?;
        self.migration(e)?;
        self.shaping(e)?;
        crate::mirrors::metrics(&self.mirrors, e)?;
        self.evpn(e)?;
        self.announced(e)?;
        self.node(e)
    }
}

impl Scrape {
    fn packets(&self, e: &mut DescriptorEncoder) -> fmt::Result {
        let c = &self.counters;
        counters(e, "tunny_packets_received", "Packets taken in by each engine", None, engines(c, |x| x.rx))?;
        counters(e, "tunny_received", "Bytes taken in by each engine", Some(&Unit::Bytes), engines(c, |x| x.rx_bytes))?;
        counters(e, "tunny_packets_forwarded", "Packets sent on", None, engines(c, |x| x.forwarded))?;
        counters(e, "tunny_forwarded", "Bytes sent on", Some(&Unit::Bytes), engines(c, |x| x.forwarded_bytes))?;
        counters(e, "tunny_flow_cache_hits", "Packets that the flow cache sent on", None, engines(c, |x| x.flow_hits))?;
        counters(e, "tunny_flow_cache_fills", "Flows noted in the flow cache", None, engines(c, |x| x.flow_fills))?;
        counters(
            e,
            "tunny_flow_cache_evictions",
            "Flows that gave their place in the flow cache to another one",
            None,
            engines(c, |x| x.flow_evictions),
        )?;
        counters(e, "tunny_packets_answered", "ARP, ND and ICMP requests answered", None, engines(c, |x| x.answered))?;
        counters(e, "tunny_packets_passed", "Packets left to the host", None, engines(c, |x| x.passed))?;
        counters(
            e,
            "tunny_packets_generated",
            "ICMP errors and fragments generated",
            None,
            engines(c, |x| x.generated),
        )?;
        counters(e, "tunny_drops", "Dropped packets by reason", None, by_reason(&c.total.drops))?;
        counters(
            e,
            "tunny_punts",
            "Packets that the fast path handed over, by reason",
            None,
            by_reason(&c.fast.punts),
        )?;
        counters(
            e,
            "tunny_drop_overflow",
            "Drops counted by reason only, for want of room by VPC",
            None,
            [(vec![], c.drop_overflow)],
        )?;
        gauges(
            e,
            "tunny_balanced",
            "1 if in + generated = forwarded + answered + passed + dropped",
            None,
            [(vec![], f64::from(u8::from(c.balance.balanced)))],
        )?;
        counters(
            e,
            "tunny_slot_packets_received",
            "Packets taken in by each CPU of the fast path and each software worker",
            None,
            c.slots.iter().map(|s| (vec![("slot", s.name.clone())], s.rx)),
        )
    }

    fn states(&self, e: &mut DescriptorEncoder) -> fmt::Result {
        let s = &self.states;
        let of = |v: f64| [(vec![("table", s.table.clone())], v)];
        gauges(
            e,
            "tunny_states_connections",
            "Connections inside, by what tells their states",
            None,
            of(s.connections as f64),
        )?;
        gauges(e, "tunny_states_connections_limit", "The same at most", None, of(s.limit as f64))?;
        gauges(
            e,
            "tunny_states_collisions",
            "Connections that collide and are held by their full key",
            None,
            of(s.collisions as f64),
        )?;
        gauges(e, "tunny_states_places", "Registers or slots of the state table", None, of(s.places as f64))?;
        gauges(e, "tunny_states_memory", "Memory of the state table", Some(&Unit::Bytes), of(s.bytes as f64))?;
        let share = s.false_accept_percent / 100.0;
        gauges(
            e,
            "tunny_states_false_accepts",
            "Share of unknown data packets let through, by formula",
            Some(&Unit::Ratios),
            of(share),
        )?;
        let agent = s.agent.iter().map(|a| (vec![("address", a.address.clone())], f64::from(u8::from(a.up))));
        gauges(e, "tunny_states_agent_up", "Whether the agent on another host judges control packets", None, agent)?;
        let waiting = s.agent.iter().map(|a| (vec![("address", a.address.clone())], a.waiting as f64));
        gauges(e, "tunny_states_agent_waiting", "Control packets that wait for it", None, waiting)?;
        let vpc = |v: &crate::states::StatesVpc| vec![("vni", v.vni.to_string()), ("vpc", v.vpc.clone())];
        gauges(
            e,
            "tunny_vpc_connections",
            "Connections of a VPC in the state table",
            None,
            s.vpcs.iter().map(|v| (vpc(v), v.connections as f64)),
        )?;
        gauges(
            e,
            "tunny_vpc_connections_opening",
            "Those that are not established",
            None,
            s.vpcs.iter().map(|v| (vpc(v), v.opening as f64)),
        )
    }

    fn migration(&self, e: &mut DescriptorEncoder) -> fmt::Result {
        let m = &self.migration;
        if !m.enabled {
            return Ok(());
        }
        gauges(
            e,
            "tunny_migration_prefixes",
            "Prefixes that have migrated to the software path",
            None,
            [(vec![], m.prefixes.len() as f64)],
        )?;
        let moved = [("software", m.moved_to_software), ("fast", m.moved_back)]
            .map(|(to, n)| (vec![("to", to.to_string())], n));
        counters(
            e,
            "tunny_migration_moved",
            "Connections that changed between state table and software path",
            None,
            moved,
        )?;
        let vpc = |v: &crate::states::MigrationVpc| vec![("vni", v.vni.to_string()), ("vpc", v.vpc.clone())];
        let what = "Connections of a VPC that have migrated to the software path";
        gauges(e, "tunny_vpc_connections_migrated", what, None, m.vpcs.iter().map(|v| (vpc(v), v.software as f64)))
    }

    fn shaping(&self, e: &mut DescriptorEncoder) -> fmt::Result {
        let s = &self.shaping;
        type Class = crate::shaping::ShapedClass;
        let lines = || {
            let labels =
                |l: &crate::shaping::ShapedLine| vec![("overlay", l.overlay.clone()), ("vni", l.vni.to_string())];
            s.lines.iter().map(move |l| (labels(l), &l.class))
        };
        let vms = || {
            let labels = |v: &crate::shaping::ShapedVm| {
                vec![("vm", v.vm.clone()), ("vni", v.vni.to_string()), ("direction", v.direction.clone())]
            };
            s.vms.iter().map(move |v| (labels(v), &v.class))
        };
        let each = |f: fn(&Class) -> u64| lines().chain(vms()).map(move |(labels, class)| (labels, f(class)));
        let gauge = |f: fn(&Class) -> f64| lines().chain(vms()).map(move |(labels, class)| (labels, f(class)));
        counters(e, "tunny_shaped_packets_sent", "Packets of a shaped line or VM that left", None, each(|l| l.sent))?;
        counters(
            e,
            "tunny_shaped_sent",
            "Bytes of a shaped line or VM that left",
            Some(&Unit::Bytes),
            each(|l| l.sent_bytes),
        )?;
        let what = "Packets of a shaped line or VM dropped, for as much waited as may";
        counters(e, "tunny_shaped_packets_dropped", what, None, each(|l| l.dropped))?;
        let of =
            |c: &crate::shaping::ShapedCustomer| vec![("port", c.port.clone()), ("customer", c.customer.to_string())];
        let what = "Bytes that left by all lines of a customer that share a rate";
        counters(
            e,
            "tunny_shaped_customer_sent",
            what,
            Some(&Unit::Bytes),
            s.customers.iter().map(|c| (of(c), c.sent_bytes)),
        )?;
        let what = "Packets of a shaped line or VM that wait";
        gauges(e, "tunny_shaped_packets_waiting", what, None, gauge(|l| l.waiting as f64))?;
        let what = "Bytes of a shaped line or VM that wait";
        gauges(e, "tunny_shaped_waiting", what, Some(&Unit::Bytes), gauge(|l| l.waiting_bytes as f64))?;
        let what = "Longest time that a packet of a shaped line or VM has waited";
        gauges(e, "tunny_shaped_longest_wait", what, Some(&Unit::Seconds), gauge(|l| l.longest_ns as f64 / 1e9))
    }

    fn evpn(&self, e: &mut DescriptorEncoder) -> fmt::Result {
        type View = crate::routing::EvpnView;
        let of = |v: &View, key: &'static str, value: &str| {
            vec![("instance", v.instance.clone()), ("vpc", v.vpc.clone()), (key, value.to_string())]
        };
        let learned = self.evpn.iter().flat_map(|v| {
            [("vm", v.vms), ("route", v.routes), ("vtep", v.vteps)].map(|(what, n)| (of(v, "what", what), n as f64))
        });
        gauges(e, "tunny_evpn_learned", "VMs, prefixes and tunnel ends that a VPC has learned by EVPN", None, learned)?;
        let refused = self.evpn.iter().flat_map(|v| v.refused.iter().map(|(why, n)| (of(v, "why", why), *n as f64)));
        gauges(e, "tunny_evpn_refused", "Routes of EVPN that a VPC is offered now and does not learn", None, refused)?;
        let each = |f: fn(&View) -> f64| {
            self.evpn.iter().map(move |v| (vec![("instance", v.instance.clone()), ("vpc", v.vpc.clone())], f(v)))
        };
        gauges(e, "tunny_evpn_up", "1 if the EVPN daemon is heard", None, each(|v| f64::from(u8::from(v.up))))?;
        gauges(e, "tunny_evpn_stale", "Learned VMs and prefixes that nobody says now", None, each(|v| v.stale as f64))?;
        gauges(e, "tunny_evpn_announced", "Paths that are announced by EVPN", None, each(|v| v.announced as f64))?;
        let flapping = "MAC addresses that are not followed, since they move too often";
        gauges(e, "tunny_evpn_flapping", flapping, None, each(|v| v.flapping.len() as f64))
    }

    fn announced(&self, e: &mut DescriptorEncoder) -> fmt::Result {
        let states = self.announced.by_state.iter().map(|(state, n)| (vec![("state", state.clone())], *n as f64));
        gauges(e, "tunny_announced_prefixes", "Prefixes of the node by what is announced of them", None, states)?;
        let watched = self.announced.watched.map(|watched| (vec![], f64::from(u8::from(watched))));
        gauges(e, "tunny_announce_watched", "1 if a watchdog would withdraw what is announced", None, watched)
    }

    fn internet(&self, e: &mut DescriptorEncoder) -> fmt::Result {
        let s = &self.sessions;
        gauges(e, "tunny_sessions", "Sessions now", None, [(vec![], s.sessions as f64)])?;
        gauges(e, "tunny_session_memory", "Session memory", Some(&Unit::Bytes), [(vec![], s.memory_bytes as f64)])?;
        counters(e, "tunny_sessions_created", "Sessions begun", None, [(vec![], s.created)])?;
        let reasons = ["timeout", "closed", "evicted", "removed", "reopened", "translation"];
        let ended = reasons.iter().zip(s.ended).map(|(r, n)| (vec![("reason", r.to_string())], n));
        counters(e, "tunny_sessions_ended", "Sessions ended, by reason", None, ended)?;
        counters(
            e,
            "tunny_session_log_lost",
            "Records of the session log lost, its writer being slow",
            None,
            [(vec![], self.log_lost)],
        )?;
        counters(
            e,
            "tunny_nat_packets",
            "Packets to and from the Internet sent on by each engine",
            None,
            engines(&self.counters, |x| x.nat),
        )?;
        let pool = |p: &PoolView| vec![("pool", p.pool.clone())];
        gauges(e, "tunny_pool_ports", "Ports of a pool", None, self.pools.iter().map(|p| (pool(p), p.ports as f64)))?;
        gauges(
            e,
            "tunny_pool_ports_held",
            "Ports of a pool that VMs hold",
            None,
            self.pools.iter().map(|p| (pool(p), p.held as f64)),
        )?;
        gauges(
            e,
            "tunny_pool_reused",
            "Connections over reused ports",
            None,
            self.pools.iter().map(|p| (pool(p), p.reused as f64)),
        )?;
        let vpc = |t: &TenantView| vec![("vni", t.vni.to_string()), ("vpc", t.vpc.clone())];
        let each = |f: fn(&TenantView) -> u64| self.nat.iter().map(move |t| (vpc(t), f(t) as f64)).collect::<Vec<_>>();
        gauges(e, "tunny_vpc_sessions", "Sessions of a VPC", None, each(|t| t.sessions))?;
        gauges(
            e,
            "tunny_vpc_sessions_fast",
            "Sessions of a VPC that the fast path serves",
            None,
            each(|t| t.sessions_fast),
        )?;
        gauges(e, "tunny_vpc_sessions_limit", "Sessions of a VPC at most", None, each(|t| t.sessions_limit))?;
        gauges(e, "tunny_vpc_half_open", "Half-open sessions of a VPC", None, each(|t| t.half_open))?;
        gauges(e, "tunny_vpc_ports", "Ports that VMs of a VPC hold", None, each(|t| t.ports))?;
        gauges(e, "tunny_vpc_ports_limit", "Ports that VMs of a VPC hold at most", None, each(|t| t.ports_limit))?;
        counters(
            e,
            "tunny_vpc_evicted",
            "Half-open sessions evicted for newer ones",
            None,
            self.nat.iter().map(|t| (vpc(t), t.evicted)),
        )?;
        let refused = self.nat.iter().flat_map(|t| {
            t.refused.iter().map(|(why, n)| {
                let mut labels = vpc(t);
                labels.push(("limit", why.clone()));
                (labels, *n)
            })
        });
        counters(e, "tunny_vpc_refused", "New connections refused, by the limit that did it", None, refused)?;
        let handed = self.handovers.iter().flat_map(|(vpc, h)| {
            [("over", h.handed), ("back", h.returned)].map(|(to, n)| (vec![("vpc", vpc.clone()), ("to", to.into())], n))
        });
        let what = "Packets of a VPC handed over to another cluster that may have their sessions, and back to it";
        counters(e, "tunny_vpc_handed", what, None, handed)
    }

    fn tenants(&self, e: &mut DescriptorEncoder) -> fmt::Result {
        let label = |vni: u32, vpc: &str| vec![("vni", vni.to_string()), ("vpc", vpc.to_string())];
        let tenants = &self.counters.tenants;
        counters(
            e,
            "tunny_vpc_packets",
            "Packets accepted from a VPC",
            None,
            tenants.iter().map(|t| (label(t.vni, &t.vpc), t.packets)),
        )?;
        let punts = tenants.iter().flat_map(|t| {
            [("passed", t.punts), ("limited", t.punts_limited)].map(|(outcome, n)| {
                let mut labels = label(t.vni, &t.vpc);
                labels.push(("outcome", outcome.into()));
                (labels, n)
            })
        });
        counters(e, "tunny_vpc_punts", "Packets of a VPC to the software path, by what its meter did", None, punts)?;
        counters(
            e,
            "tunny_vpc_software_packets",
            "Packets accepted from a VPC that the fast path handed over because they are served in software",
            None,
            tenants.iter().map(|t| (label(t.vni, &t.vpc), t.software)),
        )?;
        counters(
            e,
            "tunny_vpc_received",
            "Bytes of inner frames accepted from a VPC",
            Some(&Unit::Bytes),
            tenants.iter().map(|t| (label(t.vni, &t.vpc), t.bytes)),
        )?;
        counters(
            e,
            "tunny_vpc_drops",
            "Dropped packets by VPC and reason",
            None,
            tenants.iter().flat_map(|t| {
                t.drops.iter().map(|(reason, n)| {
                    let mut labels = label(t.vni, &t.vpc);
                    labels.push(("reason", reason.clone()));
                    (labels, *n)
                })
            }),
        )?;
        counters(
            e,
            "tunny_customer_drops",
            "Dropped packets of customers whose VPC is not known, by edge port (`spec.number`), customer's tag and reason",
            None,
            self.counters.customers.iter().flat_map(|c| {
                c.drops.iter().map(|(reason, n)| {
                    let (port, customer) = (c.port.to_string(), c.customer.to_string());
                    (vec![("port", port), ("customer", customer), ("reason", reason.clone())], *n)
                })
            }),
        )?;
        if self.vms.is_empty() {
            return Ok(());
        }
        let what = "VMs without counters here, since a scrape holds those of 10000; ask for one by ?vms=NAME";
        gauges(e, "tunny_vms_left_out", what, None, [(vec![], self.vms_left_out as f64)])?;
        let vm = |name: &str| vec![("vm", name.to_string())];
        counters(
            e,
            "tunny_vm_packets",
            "Packets delivered to a VM",
            None,
            self.vms.iter().map(|(n, p, _)| (vm(n), *p)),
        )?;
        counters(
            e,
            "tunny_vm_delivered",
            "Bytes of inner frames delivered to a VM",
            Some(&Unit::Bytes),
            self.vms.iter().map(|(n, _, b)| (vm(n), *b)),
        )
    }

    fn node(&self, e: &mut DescriptorEncoder) -> fmt::Result {
        let s = &self.status;
        let named = |l: &Level| vec![("table", l.name.clone())];
        gauges(e, "tunny_table_used", "Entries in use", None, self.levels.iter().map(|l| (named(l), l.used as f64)))?;
        gauges(
            e,
            "tunny_table_limit",
            "Entries at most",
            None,
            self.levels.iter().map(|l| (named(l), l.limit as f64)),
        )?;
        counters(e, "tunny_commits", "Commits since the start", None, [(vec![], s.commits.count)])?;
        counters(e, "tunny_commits_refused", "Commits refused since the start", None, [(vec![], s.commits.refused)])?;
        gauges(
            e,
            "tunny_commit_last",
            "Duration of the latest commit",
            Some(&Unit::Seconds),
            [(vec![], s.commits.last_s)],
        )?;
        gauges(
            e,
            "tunny_commit_max",
            "Duration of the longest commit",
            Some(&Unit::Seconds),
            [(vec![], s.commits.max_s)],
        )?;
        counters(
            e,
            "tunny_events_lost",
            "Captured packets lost because a watcher was slow",
            None,
            [(vec![], self.events_lost)],
        )?;
        gauges(
            e,
            "tunny_uplink_up",
            "1 if the uplink is up; mode says how it is served",
            None,
            s.uplinks
                .iter()
                .map(|u| (vec![("uplink", u.name.clone()), ("mode", u.mode.clone())], f64::from(u8::from(u.up)))),
        )?;
        gauges(
            e,
            "tunny_node_info",
            "Always 1; the labels say what runs",
            None,
            [(
                vec![
                    ("version", s.version.clone()),
                    ("layout", s.layout.clone()),
                    ("engine", s.engine.clone()),
                    ("instance", s.instance.clone()),
                ],
                1.0,
            )],
        )?;
        let admission = s.controller.as_ref().and_then(|c| c.admission);
        let admitted = admission.map(|admitted| (vec![], f64::from(u8::from(admitted))));
        gauges(e, "tunny_admitted", "1 if the region admits this node, by its probes", None, admitted)?;
        let said = "Warnings of `tunny get status` now: state, reload, metrics, fast path, uplinks";
        gauges(e, "tunny_warnings", said, None, [(vec![], s.warnings.len() as f64)])?;
        gauges(e, "tunny_uptime", "Time since the start", Some(&Unit::Seconds), [(vec![], s.uptime_s as f64)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::TenantCounters;

    #[test]
    fn metrics_name_reasons_and_vpcs_and_end_properly() {
        let drops = BTreeMap::from([("vm_unknown".to_string(), 7u64)]);
        let tenants = vec![TenantCounters {
            vni: 100,
            vpc: "a\"b".into(),
            packets: 5,
            bytes: 500,
            punts: 3,
            punts_limited: 4,
            software: 2,
            meter: [0; 3],
            drops: drops.clone(),
        }];
        let mut counters = Counters { tenants, ..Default::default() };
        counters.total.drops = drops;
        let text = render(Scrape { counters, ..Default::default() }).unwrap();
        assert!(text.contains("tunny_drops_total{reason=\"vm_unknown\"} 7\n"), "{text}");
        assert!(text.contains("tunny_vpc_drops_total{vni=\"100\",vpc=\"a\\\"b\",reason=\"vm_unknown\"} 7\n"), "{text}");
        assert!(text.contains("tunny_vpc_received_bytes_total{vni=\"100\""), "{text}");
        assert!(text.contains("tunny_vpc_punts_total{vni=\"100\",vpc=\"a\\\"b\",outcome=\"limited\"} 4\n"), "{text}");
        assert!(text.contains("tunny_vpc_software_packets_total{vni=\"100\",vpc=\"a\\\"b\"} 2\n"), "{text}");
        assert!(text.ends_with("# EOF\n"));
    }
}
