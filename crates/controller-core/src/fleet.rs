// SPDX-License-Identifier: Apache-2.0
//! What the nodes say of themselves. Of every object on every node there are states: *intent* (the controller has it), *installed* (the
//! node has brought it into force), *verified* (the node has found it in the memory of its tables). Changes reach a node in the order of their revisions, so one revision a node tells the state
//! of all its objects: those that changed last at or before it are installed, or verified.

use super::admission::{why, Admission, Probation};
use model::Name;
use node::distribution::Report;
use node::handover::HandoverView;
use node::probes;
use node::usage::Usage;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::IpAddr;

/// Milliseconds without a word after which a node counts as away.
pub const SILENCE_MS: u64 = 30_000;

/// A node as the controller knows it.
#[derive(Clone, Debug, Default)]
struct Known {
    report: Report,
    address: String,
    seen_ms: u64,
    /// Streams that are open: a node that comes back may be here before its old connection is given up.
    streams: u32,
    probation: Probation,
}

/// How a node stands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeView {
    /// Name.
    pub name: String,
    /// Its cluster.
    pub cluster: String,
    /// `current`, `behind`, `refused` (it cannot bring a change into force), `damaged` (its tables are not what is configured), `away`, or `unknown` (never heard of since the controller started).
    pub state: String,
    /// The revision that it shall hold.
    pub intent: u64,
    /// The revision that it holds.
    pub installed: u64,
    /// The revision up to which all was found in the memory of its tables.
    pub verified: u64,
    /// What is not there as it is configured.
    pub faults: Vec<String>,
    /// It was changed by hand.
    pub drift: bool,
    /// Address that it came from.
    pub address: String,
    /// Its version.
    pub version: String,
    /// When it was last heard of, in milliseconds since 1970; 0: never.
    pub seen_ms: u64,
    /// Why it refuses a change.
    pub errors: Vec<String>,
    /// How full it is, and what it does a second.
    pub usage: Usage,
    /// `joining` (its probes have not shown yet that it serves), `admitted`, or `out` (a probe fails); nothing of a node that nobody has heard of.
    #[serde(default)]
    pub admission: String,
    /// What its probes came to, if it makes any.
    #[serde(default)]
    pub probes: Option<probes::Report>,
}

/// What of a node's report is another thing than before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heard {
    /// Anything but its traffic.
    pub news: bool,
    /// Whether it was changed by hand.
    pub drift: bool,
    /// What is not there as it is configured.
    pub faults: bool,
    /// Why it refuses a change.
    pub errors: bool,
    /// Whether it is admitted.
    pub admission: bool,
}

/// The nodes.
#[derive(Debug, Default)]
pub struct Fleet {
    nodes: BTreeMap<Name, Known>,
    capacities: u64,
    /// How often a node came to stand differently.
    admissions: u64,
    words: u64,
}

impl Fleet {
    /// A node has opened its stream. Whether it was away, so that it has to show anew that it serves.
    pub fn came(&mut self, node: &Name, address: &str, now_ms: u64) -> bool {
        let known = self.nodes.entry(node.clone()).or_default();
        known.address = address.into();
        let returns = known.streams == 0 && known.seen_ms > 0 && now_ms.saturating_sub(known.seen_ms) >= SILENCE_MS;
        if returns {
            known.probation.returned();
            self.admissions += 1;
        }
        known.seen_ms = now_ms;
        known.streams += 1;
        returns
    }

    /// Its stream has ended.
    pub fn left(&mut self, node: &str, now_ms: u64) {
        if let Some(known) = self.nodes.get_mut(node) {
            known.streams = known.streams.saturating_sub(1);
            known.seen_ms = now_ms;
        }
    }

    /// A node tells how it stands, whose cluster shall hold the revision `intent`.
    pub fn reported(&mut self, node: &Name, report: Report, intent: u64, now_ms: u64) -> Heard {
        let known = self.nodes.entry(node.clone()).or_default();
        known.seen_ms = now_ms;
        let usage = std::mem::replace(&mut known.report.usage, report.usage.clone());
        known.report.idle = report.idle.clone();
        let limits = |usage: &Usage| usage.levels.iter().map(|l| (l.name.clone(), l.limit)).collect::<Vec<_>>();
        let heard = Heard {
            // Traffic is always another: nobody is woken for it.
            news: known.report != report || usage.levels.is_empty(),
            drift: known.report.drift != report.drift,
            faults: known.report.faults != report.faults,
            errors: known.report.errors != report.errors,
            admission: known.probation.heard(&report, intent),
        };
        let same = (&usage.engine, usage.link_bits) == (&report.usage.engine, report.usage.link_bits);
        self.admissions += u64::from(heard.admission);
        self.words += u64::from(heard.news);
        self.capacities += u64::from(!same || heard.admission || limits(&usage) != limits(&report.usage));
        known.report = report;
        heard
    }

    /// Raised when a node says that it can hold more or less than before, or comes to serve or not.
    pub fn capacities(&self) -> u64 {
        self.capacities
    }

    /// A number that is raised whenever a node says anything new.
    pub fn words(&self) -> u64 {
        self.words
    }

    /// A number that is raised whenever a node comes to stand differently.
    pub fn admissions(&self) -> u64 {
        self.admissions
    }

    /// Whether a node serves.
    pub fn is_admitted(&self, name: &str) -> bool {
        self.nodes.get(name).is_some_and(|known| known.probation.admission() == Admission::Admitted)
    }

    /// Whether a node that makes probes is admitted, and why not. None: it has not been heard since it came back. It may serve as well as ever, and is not
    /// told otherwise before that is known: after the network was away, all nodes of a cluster come back at once.
    pub fn admission(&self, name: &str) -> Option<(bool, String)> {
        let heard = |known: &&Known| known.report.probes.is_some() && known.probation.is_heard();
        let known = self.nodes.get(name).filter(heard)?;
        let admission = known.probation.admission();
        Some((admission == Admission::Admitted, why(admission, &known.report)))
    }

    /// Of a cluster's addresses those that hosts are told of: not those that only nodes have which are not admitted. If that would leave none, all.
    pub fn told<'a>(&self, addresses: &[IpAddr], nodes: impl Iterator<Item = &'a Name> + Clone) -> Vec<IpAddr> {
        let serves = |address: &IpAddr| {
            let known = nodes.clone().filter_map(|name| self.nodes.get(name));
            let mut those = known.filter(|known| known.report.addresses.contains(address)).peekable();
            those.peek().is_none() || those.any(|known| known.probation.admission() == Admission::Admitted)
        };
        let told: Vec<IpAddr> = addresses.iter().copied().filter(serves).collect();
        if told.is_empty() {
            addresses.to_vec()
        } else {
            told
        }
    }

    /// What a node says of VPCs of which another cluster may have sessions.
    pub fn handovers(&self, name: &str) -> Option<&BTreeMap<String, HandoverView>> {
        self.nodes.get(name).map(|known| &known.report.handovers)
    }

    /// What a node has installed, and parts of pools that it leaves and of which nothing is in use there.
    pub fn left_shares(&self, name: &str) -> Option<(u64, &BTreeMap<String, Vec<String>>)> {
        self.nodes.get(name).map(|known| (known.report.installed, &known.report.left))
    }

    /// Parts of pools of which nothing is in use in a node, as far as it has said.
    pub fn idle_shares(&self, name: &str) -> Option<&BTreeMap<String, Vec<String>>> {
        self.nodes.get(name).map(|known| &known.report.idle)
    }

    /// How full a node is, if it has told.
    pub fn usage(&self, name: &str) -> Option<&Usage> {
        self.nodes.get(name).map(|known| &known.report.usage)
    }

    /// Another controller may have led since nodes were heard here: what they said then says nothing now. Those that are here go on saying it.
    pub fn begin_term(&mut self) {
        self.nodes.retain(|_, known| known.streams > 0);
        // Whoever compares with what was finds another number.
        (self.capacities, self.admissions, self.words) = (self.capacities + 1, self.admissions + 1, self.words + 1);
    }

    /// Forgets a node that there is no more.
    pub fn forget(&mut self, is_there: impl Fn(&str) -> bool) {
        self.nodes.retain(|name, _| is_there(name));
    }

    /// How a node stands whose cluster shall hold the revision `intent`.
    pub fn view(&self, name: &str, cluster: &str, intent: u64, now_ms: u64) -> NodeView {
        let usage = self.nodes.get(name).map_or(Usage::default(), |known| known.report.usage.clone());
        NodeView { usage, ..self.overview(name, cluster, intent, now_ms) }
    }

    /// What a node that is here says it does.
    pub fn usage_now(&self, name: &str) -> Option<&Usage> {
        self.usage(name).filter(|_| self.nodes[name].streams > 0)
    }

    /// How a node stands, without what it says of single VPCs, which is much.
    pub fn overview(&self, name: &str, cluster: &str, intent: u64, now_ms: u64) -> NodeView {
        let view = NodeView { name: name.into(), cluster: cluster.into(), intent, ..NodeView::default() };
        let Some(known) = self.nodes.get(name) else { return NodeView { state: "unknown".into(), ..view } };
        let usage = known.report.usage.of_node();
        let Report { installed, verified, faults, errors, drift, version, .. } = &known.report;
        let (installed, verified, drift) = (*installed, *verified, *drift);
        let (faults, errors, version) = (faults.clone(), errors.clone(), version.clone());
        let (admission, probes) = (known.probation.admission().name().into(), known.report.probes.clone());
        let here = known.streams > 0 && now_ms.saturating_sub(known.seen_ms) < SILENCE_MS;
        let state = match () {
            () if !here => "away",
            () if !faults.is_empty() => "damaged",
            () if !errors.is_empty() => "refused",
            () if installed < intent => "behind",
            () => "current",
        };
        let (address, seen_ms) = (known.address.clone(), known.seen_ms);
        NodeView {
            state: state.into(),
            installed,
            verified,
            faults,
            drift,
            address,
            version,
            seen_ms,
            errors,
            usage,
            admission,
            probes,
            ..view
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use node::usage::Filled;

    #[test]
    fn a_node_is_current_behind_refused_or_away() {
        let (mut fleet, name): (Fleet, Name) = (Fleet::default(), "n".into());
        let state = |fleet: &Fleet, now| fleet.view("n", "c", 7, now).state;
        assert_eq!(state(&fleet, 0), "unknown");
        fleet.came(&name, "192.0.2.1:5", 1000);
        assert_eq!(state(&fleet, 1000), "behind");
        let report = |installed, errors: &[&str]| Report {
            installed,
            errors: errors.iter().map(|e| e.to_string()).collect(),
            ..Report::default()
        };
        let first = fleet.reported(&name, report(7, &[]), 7, 2000);
        // It makes no probes, so it serves at once.
        assert!(first.news && first.admission);
        assert_eq!((fleet.capacities(), fleet.admissions()), (1, 1));
        let usage = Usage { levels: vec![Filled::default()], ..Usage::default() };
        assert!(fleet.reported(&name, Report { usage: usage.clone(), ..report(7, &[]) }, 7, 2000).news);
        assert_eq!(fleet.capacities(), 2);
        let busy = Usage { packets: 7, ..usage };
        assert!(!fleet.reported(&name, Report { usage: busy.clone(), ..report(7, &[]) }, 7, 2000).news);
        assert_eq!((fleet.capacities(), fleet.admissions()), (2, 1));
        assert_eq!(fleet.view("n", "c", 7, 2000).usage, busy);
        assert_eq!([2000, 2000 + SILENCE_MS].map(|now| state(&fleet, now)), ["current", "away"]);
        let damaged = Report { faults: vec!["Vm x".into()], ..report(7, &[]) };
        fleet.reported(&name, damaged, 7, 2500);
        assert_eq!(state(&fleet, 2500), "damaged");
        fleet.reported(&name, report(6, &["no room"]), 7, 3000);
        assert_eq!(state(&fleet, 3000), "refused");
        // It is back before the connection that it had is given up.
        fleet.came(&name, "192.0.2.1:6", 3000);
        fleet.left("n", 3100);
        assert_eq!(state(&fleet, 3100), "refused");
        fleet.left("n", 3200);
        assert_eq!(state(&fleet, 3200), "away");
        fleet.forget(|_| false);
        assert_eq!(state(&fleet, 3200), "unknown");
    }

    #[test]
    fn hosts_are_not_told_of_addresses_that_only_nodes_have_which_are_not_admitted() {
        let names: [Name; 3] = ["a1", "a2", "a3"].map(Name::from);
        let [one, two, other]: [IpAddr; 3] = ["192.0.2.1", "192.0.2.2", "192.0.2.3"].map(|a| a.parse().unwrap());
        let mut fleet = Fleet::default();
        let told = |fleet: &Fleet| fleet.told(&[one, two, other], names.iter());
        // Nobody has said whose they are.
        assert_eq!(told(&fleet), [one, two, other]);
        let mut say = |name: usize, address, revision, fails: bool| {
            let failures = if fails { vec![probes::Failure::default()] } else { Vec::new() };
            let probes =
                probes::Report { revision, engines: vec!["user".into()], failures, ..probes::Report::default() };
            let report = Report { probes: Some(probes), addresses: vec![address], ..Report::default() };
            fleet.reported(&names[name], report, 7, 1000);
            told(&fleet)
        };
        assert_eq!(say(0, one, 0, false), [two, other]);
        assert_eq!(say(0, one, 7, false), [one, two, other]);
        assert_eq!(say(1, two, 6, false), [one, other]);
        // Another one has it, and serves.
        assert_eq!(say(2, two, 7, false), [one, two, other]);
        assert_eq!(say(2, two, 7, true), [one, other]);
        assert_eq!(say(0, one, 7, true), [other]);
        let all = [one, two];
        assert_eq!(fleet.told(&all, names.iter()), all, "the last ones stay");
    }

    /// One that led, followed for long and leads again has heard every node too long ago, and told all of them at once to serve no more.
    #[test]
    fn who_leads_again_takes_nobody_out_for_what_was_heard_before() {
        let (mut fleet, name): (Fleet, Name) = (Fleet::default(), "n".into());
        let probes = probes::Report { revision: 7, engines: vec!["user".into()], ..probes::Report::default() };
        let says = Report { installed: 7, admitted: true, probes: Some(probes), ..Report::default() };
        fleet.came(&name, "192.0.2.1:5", 1000);
        fleet.reported(&name, says.clone(), 7, 1000);
        fleet.left("n", 2000);
        let before = (fleet.admissions(), fleet.words(), fleet.capacities());
        fleet.begin_term();
        assert!(fleet.admissions() > before.0 && fleet.words() > before.1 && fleet.capacities() > before.2);
        assert!(!fleet.came(&name, "192.0.2.1:6", 2000 + 10 * SILENCE_MS));
        assert_eq!(fleet.admission("n"), None);
        fleet.reported(&name, says, 9, 2000 + 10 * SILENCE_MS);
        assert!(fleet.is_admitted("n"));
        // One whose stream is open stays as it was heard.
        fleet.begin_term();
        assert!(fleet.is_admitted("n"));
    }

    /// Found by simulation: after the network to all nodes of a cluster was away they come back at once, and none is told to serve no more before it has said how
    /// it stands.
    #[test]
    fn a_node_that_comes_back_is_told_nothing_before_it_is_heard() {
        let (mut fleet, name): (Fleet, Name) = (Fleet::default(), "n".into());
        let says = |revision| {
            let probes = probes::Report { revision, engines: vec!["user".into()], ..probes::Report::default() };
            Report { installed: revision, admitted: true, probes: Some(probes), ..Report::default() }
        };
        fleet.came(&name, "192.0.2.1:5", 1000);
        fleet.reported(&name, says(7), 7, 1000);
        fleet.left("n", 1000);
        assert!(fleet.came(&name, "192.0.2.1:6", 1000 + SILENCE_MS));
        assert_eq!(fleet.admission("n"), None);
        // It lacks what came meanwhile, until it has that.
        fleet.reported(&name, says(7), 8, 1000 + SILENCE_MS);
        assert_eq!(fleet.admission("n").map(|a| a.0), Some(false));
        fleet.reported(&name, says(8), 8, 1000 + SILENCE_MS);
        assert_eq!(fleet.admission("n").map(|a| a.0), Some(true));
    }
}
