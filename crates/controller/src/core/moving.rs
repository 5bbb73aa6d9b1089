// SPDX-License-Identifier: Apache-2.0
//! Where a tenant that nobody pinned is served, and how it comes to another cluster without losing a packet.
//!
//! *Upstream* is what sends packets to clusters: hosts. A move has four steps, each of which is in the store before anything follows from it:
//! 1. **copy**: the new cluster gets the tenant's objects. Upstream knows nothing. Until all its nodes have *verified* them.
//! 2. **switch**: hosts are told of the new cluster. Until all have said that their devices are so.
//! 3. **drain**: what was on its way when the last host switched arrives. For a time.
//! 4. **forget**: the old cluster's nodes delete it. Until they have.
//!
//! The property: a cluster that some host may send a tenant's packets to holds the tenant, at every instant, whoever dies in between.
//! For a host sends to the old cluster until it has said otherwise, and the old one forgets only behind the last of these words; and to the new one only
//! after it was told, which is when the new one's nodes have found the tenant in their tables. Nothing here is decided by a time alone but the drain.
//! A node or host that is not there holds a move up, and [`Step`] says whom it waits for: it may still send by what it knew.
//!
//! Aborted, a move goes back the way it came: from *copy* to *forget* of the new cluster, later by a *switch* back.

use model::Name;
use serde::{Deserialize, Serialize};

/// Milliseconds for which the old cluster serves what was on its way.
pub const DRAIN_MS: u64 = 3_000;

/// How far a move is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Step {
    /// The other cluster is being given the tenant.
    Copy,
    /// Hosts are being told.
    Switch,
    /// What is on its way to the other cluster arrives.
    Drain,
    /// The other cluster forgets the tenant.
    Forget,
}

/// Another cluster beside that which serves a tenant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Move {
    /// The other cluster: the new one in step copy, the old one after it.
    #[serde(with = "text")]
    pub other: Name,
    /// How far it is.
    pub step: Step,
    /// When the step began, in milliseconds since 1970.
    pub since_ms: u64,
}

/// Where a tenant is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    /// The cluster that hosts are told of.
    #[serde(with = "text")]
    pub cluster: Name,
    /// On its way, or from it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moving: Option<Move>,
    /// The revision that began this: what the store says of it, not what is in it.
    #[serde(skip)]
    pub revision: u64,
}

/// Names as text.
mod text {
    use model::Name;
    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(name: &Name, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(name)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Name, D::Error> {
        String::deserialize(from).map(Name::from)
    }
}

/// What others have said. Of revisions: what they hold is at least that of the step.
pub trait Facts {
    /// Nodes of a cluster that have not verified a revision. A cluster without nodes has verified nothing.
    fn unverified(&self, cluster: &Name, revision: u64) -> Vec<String>;
    /// Nodes of a cluster that are there and have not installed a revision.
    fn uninstalled(&self, cluster: &Name, revision: u64) -> Vec<String>;
    /// Hosts that have not said that they send as a revision has it.
    fn unswitched(&self, revision: u64) -> Vec<String>;
}

impl Placement {
    /// At rest in a cluster.
    pub fn at(cluster: &Name) -> Placement {
        Placement { cluster: cluster.clone(), moving: None, revision: 0 }
    }

    /// The clusters that hold it.
    pub fn holders(&self) -> impl Iterator<Item = &Name> {
        let other = self.moving.as_ref().filter(|m| m.step != Step::Forget).map(|m| &m.other);
        std::iter::once(&self.cluster).chain(other)
    }

    /// The beginning of a move. None: it is there, or on its way somewhere.
    pub fn begin(&self, to: &Name, now_ms: u64) -> Option<Placement> {
        (self.moving.is_none() && self.cluster != *to).then(|| self.with(&self.cluster, to, Step::Copy, now_ms))
    }

    /// The way back. None: there is nothing to go back from, or no more.
    pub fn abort(&self, now_ms: u64) -> Option<Placement> {
        let m = self.moving.as_ref()?;
        match m.step {
            Step::Copy => Some(self.with(&self.cluster, &m.other, Step::Forget, now_ms)),
            Step::Switch | Step::Drain => Some(self.with(&m.other, &self.cluster, Step::Switch, now_ms)),
            Step::Forget => None,
        }
    }

    /// Who is being waited for; nobody in a drain.
    pub fn waits_for(&self, facts: &impl Facts) -> Vec<String> {
        let Some(m) = &self.moving else { return Vec::new() };
        match m.step {
            Step::Copy => facts.unverified(&m.other, self.revision),
            Step::Switch => facts.unswitched(self.revision),
            Step::Drain => Vec::new(),
            Step::Forget => facts.uninstalled(&m.other, self.revision),
        }
    }

    /// The next step, if it is time for it.
    pub fn next(&self, facts: &impl Facts, now_ms: u64) -> Option<Placement> {
        let m = self.moving.as_ref()?;
        if !self.waits_for(facts).is_empty() {
            return None;
        }
        match m.step {
            Step::Copy => Some(self.with(&m.other, &self.cluster, Step::Switch, now_ms)),
            Step::Switch => Some(self.with(&self.cluster, &m.other, Step::Drain, now_ms)),
            // A clock that was set back does not keep it for ever.
            Step::Drain if now_ms.abs_diff(m.since_ms) < DRAIN_MS => None,
            Step::Drain => Some(self.with(&self.cluster, &m.other, Step::Forget, now_ms)),
            Step::Forget => Some(Placement::at(&self.cluster)),
        }
    }

    fn with(&self, cluster: &Name, other: &Name, step: Step, since_ms: u64) -> Placement {
        let moving = Some(Move { other: other.clone(), step, since_ms });
        Placement { cluster: cluster.clone(), moving, revision: 0 }
    }

    /// In a few words: where it is, and how far it is on its way.
    pub fn words(&self, waits_for: &[String]) -> String {
        let Some(m) = &self.moving else { return "placed".into() };
        let (n, what) = match m.step {
            Step::Copy => (1, format!("{} takes it in", m.other)),
            Step::Switch => (2, format!("hosts turn from {} to {}", m.other, self.cluster)),
            Step::Drain => (3, format!("{} serves what was on its way", m.other)),
            Step::Forget => (4, format!("{} forgets it", m.other)),
        };
        let waits = if waits_for.is_empty() { String::new() } else { format!("; waits for {}", waits_for.join(", ")) };
        format!("moving {n}/4: {what}{waits}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{RngExt, SeedableRng};
    use std::collections::BTreeMap;

    /// A small region: two nodes in each of three clusters, three hosts, one tenant; what each of them really holds.
    #[derive(Default)]
    struct World {
        /// In the store, by revision: it survives everything.
        stored: Vec<Placement>,
        /// Revisions that nodes have verified: whether they hold the tenant.
        nodes: BTreeMap<String, (u64, bool)>,
        /// Where each host sends, and by which revision.
        hosts: BTreeMap<String, (u64, Name)>,
        /// What the controller has heard: lost when it is killed.
        heard_nodes: BTreeMap<String, u64>,
        heard_hosts: BTreeMap<String, u64>,
        /// The instant at which the last host that sent elsewhere turned: packets of its are on their way for a while.
        turned: Vec<(u64, Name)>,
    }

    impl World {
        fn now(&self) -> &Placement {
            self.stored.last().unwrap()
        }
        fn write(&mut self, next: Placement) {
            let revision = self.stored.len() as u64 + 1;
            self.stored.push(Placement { revision, ..next });
        }
    }

    fn nodes_of(cluster: &str) -> [String; 2] {
        [format!("{cluster}1"), format!("{cluster}2")]
    }

    impl Facts for World {
        fn unverified(&self, cluster: &Name, revision: u64) -> Vec<String> {
            let heard = |n: &String| self.heard_nodes.get(n).is_none_or(|at| *at < revision);
            nodes_of(cluster).into_iter().filter(heard).collect()
        }
        fn uninstalled(&self, cluster: &Name, revision: u64) -> Vec<String> {
            self.unverified(cluster, revision)
        }
        fn unswitched(&self, revision: u64) -> Vec<String> {
            let heard = |h: &&String| self.heard_hosts.get(*h).is_none_or(|at| *at < revision);
            self.hosts.keys().filter(heard).cloned().collect()
        }
    }

    #[test]
    fn whoever_is_killed_whenever_a_cluster_that_is_sent_to_holds_the_tenant() {
        let seed: u64 = rand::random();
        println!("seed {seed}");
        let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(seed);
        let clusters: [Name; 3] = ["a".into(), "b".into(), "c".into()];
        let (mut ended, mut aborted, mut killed) = (0, 0, 0);
        for _ in 0..200 {
            let mut w = World::default();
            w.write(Placement::at(&clusters[0]));
            for c in &clusters {
                w.nodes.extend(nodes_of(c).map(|n| (n, (1, *c == clusters[0]))));
            }
            w.hosts.extend(["h1", "h2", "h3"].map(|h| (h.to_string(), (1, clusters[0].clone()))));
            let mut time = 0;
            for _ in 0..600 {
                time += rng.random_range(0..400);
                match rng.random_range(0..10) {
                    // A node follows, one revision after the other, and may not be heard.
                    0..=2 => {
                        let c = &clusters[rng.random_range(0..3)];
                        let node = &nodes_of(c)[rng.random_range(0..2)];
                        let (at, holds) = w.nodes.get_mut(node).unwrap();
                        if let Some(next) = w.stored.get(*at as usize) {
                            (*at, *holds) = (next.revision, next.holders().any(|h| h == c));
                        }
                        let at = *at;
                        if rng.random_range(0..4) > 0 {
                            w.heard_nodes.insert(node.clone(), at);
                        }
                    }
                    // A host learns the present state, and may not be heard.
                    3..=5 => {
                        let host = format!("h{}", rng.random_range(1..4));
                        let now = w.now().clone();
                        let before = w.hosts.insert(host.clone(), (now.revision, now.cluster.clone())).unwrap();
                        if before.1 != now.cluster {
                            w.turned.push((time, before.1));
                        }
                        if rng.random_range(0..4) > 0 {
                            w.heard_hosts.insert(host, now.revision);
                        }
                    }
                    6 if rng.random_range(0..6) == 0 => {
                        w.heard_nodes.clear();
                        w.heard_hosts.clear();
                        killed += 1;
                    }
                    7 if rng.random_range(0..8) == 0 => {
                        if let Some(back) = w.now().abort(time) {
                            w.write(back);
                            aborted += 1;
                        }
                    }
                    8 => {
                        let to = &clusters[rng.random_range(0..3)];
                        w.now().begin(to, time).into_iter().for_each(|p| w.write(p));
                    }
                    _ => {
                        if let Some(next) = w.now().next(&w, time) {
                            ended += u32::from(next.moving.is_none());
                            w.write(next);
                        }
                    }
                }
                let holds = |c: &Name| nodes_of(c).iter().all(|n| w.nodes[n].1);
                for (host, (_, to)) in &w.hosts {
                    assert!(holds(to), "{host} sends to {to}: {:?}", w.now());
                }
                for (at, to) in w.turned.iter().filter(|(at, _)| time - at < DRAIN_MS / 2) {
                    assert!(holds(to), "packets that a host sent at {at} arrive at {to}: {:?}", w.now());
                }
            }
        }
        println!("{ended} moves ended, {aborted} aborted, the controller killed {killed} times");
        assert!(ended > 100 && aborted > 50 && killed > 500);
    }

    #[test]
    fn a_move_says_where_it_is_and_whom_it_waits_for() {
        let mut w = World::default();
        w.hosts.insert("h1".into(), (0, "a".into()));
        let (a, b): (Name, Name) = ("a".into(), "b".into());
        let placed = Placement::at(&a);
        assert_eq!((placed.words(&[]).as_str(), placed.begin(&a, 0)), ("placed", None));
        let copy = placed.begin(&b, 0).unwrap();
        assert_eq!(copy.words(&[]), "moving 1/4: b takes it in");
        assert_eq!(copy.begin(&b, 0), None);
        let copy = Placement { revision: 2, ..copy };
        assert_eq!(copy.words(&copy.waits_for(&w)), "moving 1/4: b takes it in; waits for b1, b2");
        assert_eq!(copy.next(&w, 0), None);
        w.heard_nodes.extend(nodes_of("b").map(|n| (n, 2)));
        let switch = Placement { revision: 3, ..copy.next(&w, 5).unwrap() };
        assert_eq!(switch.words(&switch.waits_for(&w)), "moving 2/4: hosts turn from a to b; waits for h1");
        w.heard_hosts.insert("h1".into(), 3);
        let drain = switch.next(&w, 10).unwrap();
        assert_eq!((drain.next(&w, 10 + DRAIN_MS - 1), drain.holders().count()), (None, 2));
        let forget = drain.next(&w, 10 + DRAIN_MS).unwrap();
        assert_eq!((forget.holders().collect::<Vec<_>>(), forget.abort(0)), (vec![&b], None));
        assert_eq!(serde_json::from_str::<Placement>(&serde_json::to_string(&forget).unwrap()).unwrap(), forget);
    }
}
