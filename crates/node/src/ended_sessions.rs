// SPDX-License-Identifier: Apache-2.0
//! The sessions that a change of pools, Snats or elastic addresses ends, told with its plan: whoever applies it should know before.

use crate::conntrack::{binding, Conntrack};
use crate::counters::monotonic_ns;
use abi::Vni;
use compile::{Compile, ConntrackPlan};
use conntrack::nat::Translator;
use conntrack::{Cursor, Filter, Owner};
use model::{Kind, Model, Plan};
use serde_json::json;
use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

/// Records that are looked at in one go.
const PIECE: u32 = 16_384;
/// Time that a plan may take to count; beyond it a number is one of those that were seen.
const COUNTING: Duration = Duration::from_millis(500);
/// VPCs that are named to people.
const VPCS_SHOWN: usize = 5;
/// Changes of these kinds can take a public address from a session, or make its other side a tunnel's end.
const CONCERNED: [Kind; 6] = [Kind::PublicPool, Kind::Snat, Kind::ElasticIp, Kind::Vpc, Kind::Vm, Kind::Nc];

/// How many sessions end, by VPC.
#[derive(Debug, Default)]
pub struct Ends {
    vpcs: BTreeMap<String, u64>,
    /// There were too many sessions to look at all of them.
    more: bool,
}

impl Ends {
    fn sum(&self) -> u64 {
        self.vpcs.values().sum()
    }

    /// For programs.
    pub fn to_json(&self) -> serde_json::Value {
        json!({"sessions": self.sum(), "atLeast": self.more, "vpcs": self.vpcs})
    }
}

impl fmt::Display for Ends {
    /// A line for people; nothing if no session ends.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.sum() == 0 {
            return Ok(());
        }
        let mut vpcs: Vec<_> = self.vpcs.iter().collect();
        vpcs.sort_by_key(|(name, n)| (std::cmp::Reverse(**n), *name));
        let mut named: Vec<String> = vpcs.iter().take(VPCS_SHOWN).map(|(name, n)| format!("{name} {n}")).collect();
        if vpcs.len() > VPCS_SHOWN {
            named.push(format!("and {} more VPCs", vpcs.len() - VPCS_SHOWN));
        }
        let least = if self.more { "At least " } else { "" };
        let (ends, s) = if self.sum() == 1 { ("ends", "") } else { ("end", "s") };
        let what = "the configuration no longer gives their VPC their public address";
        writeln!(f, "{least}{} live session{s} {ends}: {what} ({}).", self.sum(), named.join(", "))
    }
}

impl Conntrack {
    /// The sessions that end by a plan; none if it does not change translation. `model` is the one after the change; what translation
    /// makes of it is left in `made` for whoever carries the plan out.
    pub fn ends_of(&self, plan: &Plan, model: &Model, made: &OnceCell<ConntrackPlan>) -> Option<Ends> {
        let touched = CONCERNED.iter().any(|k| {
            let t = plan.tally(*k);
            t.added + t.changed + t.removed > 0
        });
        let nat = self.connections();
        if !touched || nat.tracker().stats().sessions == 0 {
            return None;
        }
        let (new, old_ends) = (made.get_or_init(|| model.conntrack()), nat.nat().tunnel_ends());
        if self.translates_as(&new.spec) && *old_ends == *new.tunnel_ends {
            return None;
        }
        let goes_on = Translator::would_judge(&new.spec);
        let (mut sums, mut at, begun) = (BTreeMap::<Vni, u64>::new(), Some(Cursor::default()), Instant::now());
        while let Some(from) = at.filter(|_| begun.elapsed() < COUNTING) {
            at = nat.tracker().list(from, PIECE, &Filter::default(), monotonic_ns(), &mut |_, s| {
                let remote = s.inner.remote();
                let tunnel = new.tunnel_ends.contains(&remote) && !old_ends.contains(&remote);
                if s.owner != Owner::Filter && (tunnel || !goes_on(&binding(s))) {
                    *sums.entry(s.inner.vni()).or_default() += 1;
                }
            });
        }
        let name = |vni: Vni| model.vpc_by_vni(vni).map_or_else(|| format!("VNI {vni}"), |name| name.to_string());
        Some(Ends { vpcs: sums.into_iter().map(|(vni, n)| (name(vni), n)).collect(), more: at.is_some() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_told_in_one_line() {
        let ends =
            |list: &[(&str, u64)], more| Ends { vpcs: list.iter().map(|(k, n)| (k.to_string(), *n)).collect(), more };
        assert_eq!(ends(&[], false).to_string(), "");
        let what = "the configuration no longer gives their VPC their public address";
        assert_eq!(ends(&[("red", 1)], false).to_string(), format!("1 live session ends: {what} (red 1).\n"));
        let many = [("a", 1), ("b", 9), ("c", 1), ("d", 1), ("e", 1), ("f", 1)];
        assert_eq!(
            ends(&many, true).to_string(),
            format!("At least 14 live sessions end: {what} (b 9, a 1, c 1, d 1, e 1, and 1 more VPCs).\n")
        );
        assert_eq!(ends(&many, true).to_json()["sessions"], 14);
    }
}
