// SPDX-License-Identifier: Apache-2.0
//! `GET /metrics`: the region for Prometheus. What can be read off the controller is read at each scrape; requests alone are counted.

use crate::refusal::Refusal;
use crate::service::Controller;
use axum::http::StatusCode;
use controller_core::admission::Admission;
use controller_core::fleet::NodeView;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};
use std::fmt;
use std::time::Duration;

/// Bounds of the histogram of requests, in seconds.
const BOUNDS: [f64; 10] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 2.5, 30.0];

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct RequestLabels {
    method: String,
    path: String,
    code: u32,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct RefusalLabels {
    reason: String,
}

/// What is counted.
#[derive(Debug)]
pub struct Metrics {
    requests: Family<RequestLabels, Histogram, fn() -> Histogram>,
    refusals: Family<RefusalLabels, Counter>,
    broken: Counter,
}

impl Default for Metrics {
    fn default() -> Metrics {
        let histogram: fn() -> Histogram = || Histogram::new(BOUNDS);
        Metrics {
            requests: Family::new_with_constructor(histogram),
            refusals: Family::default(),
            broken: Counter::default(),
        }
    }
}

impl Metrics {
    /// Sessions break, since they have not ended in time in a cluster that their tenant has left.
    pub fn broke(&self, sessions: u64) {
        self.broken.inc_by(sessions);
    }

    /// A request of the table was answered. Of an answer without an end the time is that until it began.
    pub fn answered(&self, method: &str, path: &str, status: StatusCode, took: Duration) {
        let labels = RequestLabels { method: method.into(), path: path.into(), code: status.as_u16().into() };
        self.requests.get_or_create(&labels).observe(took.as_secs_f64());
        let reason = match status {
            StatusCode::UNAUTHORIZED => "credential",
            StatusCode::FORBIDDEN => "role",
            StatusCode::CONFLICT => "outdated",
            StatusCode::UNPROCESSABLE_ENTITY | StatusCode::BAD_REQUEST => "wrong",
            StatusCode::SERVICE_UNAVAILABLE => "store",
            _ => return,
        };
        self.refusals.get_or_create(&RefusalLabels { reason: reason.into() }).inc();
    }

    /// All of it, in the text format of Prometheus.
    pub fn render(&self, controller: &Controller) -> Result<String, Refusal> {
        let mut registry = Registry::default();
        registry.register(
            "tunny_controller_refusals",
            "Requests that were refused and stand in the audit log, by reason",
            self.refusals.clone(),
        );
        registry.register(
            "tunny_controller_sessions_broken",
            "Sessions that had not ended in time in a cluster that their tenant has left",
            self.broken.clone(),
        );
        registry.register_with_unit(
            "tunny_controller_request",
            "Time until a request is answered, or its stream begins",
            Unit::Seconds,
            self.requests.clone(),
        );
        let status = controller.status();
        let nodes = controller.core().overviews();
        registry.register_collector(Box::new(Scrape { status, nodes, levels: controller.last_sample() }));
        let mut text = String::new();
        let written = prometheus_client::encoding::text::encode(&mut text, &registry);
        written.map(|()| node::metrics::older_format(&text)).map_err(|_| Refusal::Failed)
    }
}

#[derive(Debug)]
struct Scrape {
    status: crate::types::Status,
    nodes: Vec<NodeView>,
    levels: Option<controller_core::samples::Sample>,
}

/// States of a node, all of which are told so that an absent one is zero.
const STATES: [&str; 6] = ["current", "behind", "refused", "damaged", "away", "unknown"];

type Labels = Vec<(&'static str, String)>;

fn gauges(
    e: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    values: impl IntoIterator<Item = (Labels, f64)>,
) -> fmt::Result {
    let mut family = e.encode_descriptor(name, help, None, MetricType::Gauge)?;
    for (labels, value) in values {
        if labels.is_empty() {
            return ConstGauge::new(value).encode(family);
        }
        ConstGauge::new(value).encode(family.encode_family(&labels)?)?;
    }
    Ok(())
}

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let e = &mut encoder;
        let s = &self.status;
        gauges(e, "tunny_controller_revision", "Revision of the region", [(vec![], s.revision as f64)])?;
        let objects = s.objects.iter().map(|(kind, n)| (vec![("kind", kind.clone())], *n as f64));
        gauges(e, "tunny_controller_objects", "Objects of the region by kind", objects)?;
        let states = STATES
            .iter()
            .map(|state| (vec![("state", state.to_string())], s.nodes.get(*state).copied().unwrap_or(0) as f64));
        gauges(e, "tunny_controller_nodes", "Nodes by how they stand", states)?;
        let of = |n: &NodeView| vec![("node", n.name.clone()), ("cluster", n.cluster.clone())];
        let each = |value: fn(&NodeView) -> f64| self.nodes.iter().map(move |n| (of(n), value(n))).collect::<Vec<_>>();
        gauges(
            e,
            "tunny_controller_node_lag",
            "Revisions between what a node shall hold and what it has installed",
            each(|n| n.intent.saturating_sub(n.installed) as f64),
        )?;
        gauges(
            e,
            "tunny_controller_node_unverified",
            "Revisions between what a node has installed and what it has found in its tables",
            each(|n| n.installed.saturating_sub(n.verified) as f64),
        )?;
        gauges(
            e,
            "tunny_controller_node_faults",
            "Entries of a node that are not as configured",
            each(|n| n.faults.len() as f64),
        )?;
        gauges(
            e,
            "tunny_controller_node_drift",
            "1 if a node was changed by hand",
            each(|n| f64::from(u8::from(n.drift))),
        )?;
        gauges(
            e,
            "tunny_controller_node_admitted",
            "1 if a node serves, by its probes",
            each(|n| f64::from(u8::from(n.admission == Admission::Admitted.name()))),
        )?;
        let levels = self.levels.iter().flat_map(|sample| &sample.clusters).flat_map(|(cluster, levels)| {
            levels
                .iter()
                .map(move |(table, level)| (vec![("cluster", cluster.to_string()), ("table", table.clone())], *level))
        });
        gauges(e, "tunny_controller_level", "Highest share of a table's limit in use among a cluster's nodes", levels)
    }
}
