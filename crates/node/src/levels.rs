// SPDX-License-Identifier: Apache-2.0
//! Water levels: how full is what has a limit.

use crate::counters;
use crate::service::Node;
use crate::top::share_of;
use crate::types::{EngineCounters, FlowCacheUse, Level};
use std::collections::BTreeMap;

impl Node {
    /// `GET /v1/levels`.
    pub fn levels(&self) -> Vec<Level> {
        self.levels_beside(&counters::read(&self.tables(), &BTreeMap::new()).total)
    }

    /// Water levels, beside counters that were just read.
    pub(crate) fn levels_beside(&self, counters: &EngineCounters) -> Vec<Level> {
        let mut usage = self.writer.lock().usage();
        let sessions = self.conntrack.connections().tracker().stats();
        usage.push(tables::WaterLevel { name: "sessions", used: sessions.sessions, limit: sessions.limit });
        if let Some(states) = &*self.conntrack.connections().states() {
            let s = states.status();
            usage.push(tables::WaterLevel { name: "states", used: s.usage.connections, limit: s.spec.all() });
        }
        let level = |l: tables::WaterLevel| Level {
            name: l.name.into(),
            used: l.used,
            limit: l.limit,
            percent: share_of(l.used as f64, l.limit as f64),
            flow_cache: None,
        };
        let mut levels: Vec<Level> = usage.into_iter().map(level).collect();
        let flows = self.plane.lock().flow_cache_level();
        if let Some((used, limit)) = flows {
            let flow_cache = Some(FlowCacheUse {
                hit_percent: share_of(counters.flow_hits as f64, counters.rx as f64),
                fills: counters.flow_fills as f64,
                evictions: counters.flow_evictions as f64,
            });
            levels.push(Level { flow_cache, ..level(tables::WaterLevel { name: "flow-cache", used, limit }) });
        }
        levels
    }
}
