// SPDX-License-Identifier: Apache-2.0
//! `tunny get rules`: the rules of security groups with the connections that each decided about.

use crate::conntrack::Conntrack;
use serde::{Deserialize, Serialize};

/// Which rules are wanted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RuleQuery {
    /// Of this group alone.
    pub group: Option<String>,
    /// Those that decided about nothing since they came.
    pub unused: bool,
    /// Rules at most; 0: all.
    pub limit: u64,
}

/// One rule.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RuleView {
    /// Its group.
    pub group: String,
    /// Its place in `spec.rules`.
    pub index: usize,
    /// As it is written.
    pub rule: String,
    /// Connections that it decided about (refused packets count each).
    pub hits: u64,
}

/// The rules in force, by group and place.
pub fn rules(conntrack: &Conntrack, query: &RuleQuery) -> Vec<RuleView> {
    let nat = conntrack.connections();
    let filter = nat.rules();
    let mut groups: Vec<_> = filter.groups().collect();
    groups.sort_by(|a, b| a.spec().name.cmp(&b.spec().name));
    let wanted = |name: &str| query.group.as_deref().is_none_or(|g| g == name);
    let limit = if query.limit == 0 { usize::MAX } else { query.limit as usize };
    let all = groups.into_iter().filter(|g| wanted(&g.spec().name)).flat_map(|g| {
        let name = g.spec().name.to_string();
        g.rules().enumerate().map(move |(index, (rule, hits))| (name.clone(), index, rule, hits))
    });
    let chosen = all.filter(|(.., hits)| !query.unused || *hits == 0).take(limit);
    chosen.map(|(group, index, rule, hits)| RuleView { group, index, rule: rule.to_string(), hits }).collect()
}
