// SPDX-License-Identifier: Apache-2.0
//! Where a tenant is served, and how it comes to another cluster without losing a packet: one that was placed there, or whose document
//! names another one than before (`spec.cluster`).
//!
//! *Upstream* is what sends packets to clusters: hosts. A move has six steps, each of which is in the store before anything follows from it:
//! 1. **copy**: the new cluster gets the tenant's objects. Upstream knows nothing. Until all its nodes have *verified* them.
//! 2. **hand**: the old cluster hands new connections over to the new one. Until its nodes do.
//! 3. **switch**: hosts are told of the new cluster. Until all have said that their devices are so.
//! 4. **drain**: what was on its way when the last host switched arrives, and the old cluster's sessions end, whose packets the new one hands
//!    over to it (`docs/design/handover.md`). Until its nodes have none, or for as long as the Region says: then those that are left break.
//! 5. **own**: the new one asks the old one no more. Until its nodes do not.
//! 6. **forget**: the old cluster's nodes delete it. Until they have.
//!
//! The property: a cluster that some host may send a tenant's packets to holds the tenant, at every instant, whoever dies in between.
//! For a host sends to the old cluster until it has said otherwise, and the old one forgets only behind the last of these words; and to the new one only
//! after it was told, which is when the new one's nodes have found the tenant in their tables. Nothing here is decided by a time alone but the end of a drain.
//! A node or host that is not there holds a move up, and [`Step`] says whom it waits for: it may still send by what it knew.
//!
//! Aborted, a move goes back the way it came: from *copy* to *forget* of the new cluster; from *hand* by a *resume*, in which the old cluster takes up new
//! connections again and no host turns; later by a *switch* back. A resume is aborted by a *hand* and not by a switch: nodes of the old cluster
//! that have heard of neither hand nothing over, so no host may turn before they do.

use model::{HandoverRole, Name};
use serde::{Deserialize, Serialize};

/// Milliseconds for which the old cluster serves what was on its way, at least.
pub const DRAIN_MS: u64 = 3_000;

/// How far a move is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Step {
    /// The other cluster is being given the tenant.
    Copy,
    /// The cluster is being told to hand new connections over to the other one.
    Hand,
    /// The cluster is being told to begin new connections itself again: the move was aborted before hosts were told of the other one.
    Resume,
    /// Hosts are being told.
    Switch,
    /// What is on its way to the other cluster arrives, and its sessions end.
    Drain,
    /// The other cluster has no sessions that it would be asked for, and the cluster is being told so.
    Own,
    /// The other cluster forgets the tenant.
    Forget,
}

/// Another cluster beside that which serves a tenant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Move {
    /// The other cluster: the new one in steps copy and hand, the old one after them; in a resume that which would have become the new one.
    #[serde(with = "text")]
    pub other: Name,
    /// How far it is.
    pub step: Step,
    /// When the step began, in milliseconds since 1970.
    pub since_ms: u64,
    /// In steps own and forget: sessions that have not ended in time, and break.
    #[serde(default, skip_serializing_if = "is_none")]
    pub broken: u64,
}

fn is_none(n: &u64) -> bool {
    *n == 0
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
    /// Nodes of a cluster that have not installed a revision, those among them that are not there.
    fn behind(&self, cluster: &Name, revision: u64) -> Vec<String>;
    /// Hosts that have not said that they send as a revision has it.
    fn unswitched(&self, revision: u64) -> Vec<String>;
    /// Sessions that a cluster still has of the tenants of which a revision was the last step; and its nodes that have not said how many.
    fn left(&self, cluster: &Name, revision: u64) -> (u64, Vec<String>);
    /// Milliseconds for which a drain waits for sessions to end.
    fn drain_ms(&self) -> u64;
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

    /// The cluster where it is, or where it goes.
    pub fn destination(&self) -> &Name {
        match &self.moving {
            Some(m) if matches!(m.step, Step::Copy | Step::Hand) => &m.other,
            _ => &self.cluster,
        }
    }

    /// What brings it to a cluster that its document names: a move, or the way back from a move to elsewhere. None: it is there or on its way
    /// there, or must first come to the end of another way.
    pub fn toward(&self, to: &Name, now_ms: u64) -> Option<Placement> {
        let Some(m) = &self.moving else { return self.begin(to, now_ms) };
        if self.destination() == to {
            return None;
        }
        // From where nothing has begun one can go anywhere; later there is only the way back.
        let back = m.step == Step::Copy || m.other == *to || self.cluster == *to;
        back.then(|| self.abort(now_ms))?
    }

    /// The way back. None: there is nothing to go back from, or no more.
    pub fn abort(&self, now_ms: u64) -> Option<Placement> {
        let m = self.moving.as_ref()?;
        match m.step {
            Step::Copy => Some(self.with(&self.cluster, &m.other, Step::Forget, now_ms)),
            // What the new one has begun meanwhile ends there.
            Step::Hand => Some(self.with(&self.cluster, &m.other, Step::Resume, now_ms)),
            Step::Resume => Some(self.with(&self.cluster, &m.other, Step::Hand, now_ms)),
            Step::Switch | Step::Drain => Some(self.with(&m.other, &self.cluster, Step::Switch, now_ms)),
            // The new one asks no more: what the other one began then would not be found by who still sends here.
            Step::Own | Step::Forget => None,
        }
    }

    /// What a cluster that holds it does with packets whose session it does not know, and which the other cluster is. None: it has all that there are.
    pub fn handover(&self, cluster: &Name) -> Option<(HandoverRole, &Name)> {
        let m = self.moving.as_ref()?;
        let (new, old) = match m.step {
            Step::Copy | Step::Hand => (&m.other, &self.cluster),
            Step::Resume | Step::Switch | Step::Drain | Step::Own => (&self.cluster, &m.other),
            Step::Forget => return None,
        };
        match () {
            () if cluster == new && m.step == Step::Own => None,
            () if cluster == new => Some((HandoverRole::New, old)),
            // Before the new one has it, it begins nothing.
            () if cluster == old && m.step != Step::Copy => Some((HandoverRole::Old, new)),
            () => None,
        }
    }

    /// Who is being waited for, and in a drain for what.
    pub fn waits_for(&self, facts: &impl Facts) -> Vec<String> {
        let Some(m) = &self.moving else { return Vec::new() };
        match m.step {
            Step::Copy => facts.unverified(&m.other, self.revision),
            Step::Hand | Step::Resume | Step::Own => facts.behind(&self.cluster, self.revision),
            // Before it is believed that the other one has no sessions, nobody gives it any more: neither hosts nor a node of this one that was the old
            // one before the move was turned round.
            Step::Switch => [facts.unswitched(self.revision), facts.behind(&self.cluster, self.revision)].concat(),
            Step::Drain => {
                let (sessions, unknown) = facts.left(&m.other, self.revision);
                let sessions = (sessions > 0).then(|| format!("{sessions} sessions to end"));
                sessions.into_iter().chain(unknown).collect()
            }
            Step::Forget => facts.uninstalled(&m.other, self.revision),
        }
    }

    /// The next step, if it is time for it.
    pub fn next(&self, facts: &impl Facts, now_ms: u64) -> Option<Placement> {
        let m = self.moving.as_ref()?;
        if m.step == Step::Drain {
            return self.drained(m, facts, now_ms);
        }
        if !self.waits_for(facts).is_empty() {
            return None;
        }
        match m.step {
            Step::Copy => Some(self.with(&self.cluster, &m.other, Step::Hand, now_ms)),
            Step::Hand => Some(self.with(&m.other, &self.cluster, Step::Switch, now_ms)),
            Step::Resume | Step::Switch => Some(self.with(&self.cluster, &m.other, Step::Drain, now_ms)),
            Step::Drain => None,
            Step::Own => Some(self.after(m, Step::Forget, now_ms)),
            Step::Forget => Some(Placement::at(&self.cluster)),
        }
    }

    /// The end of a drain, if it is time for it.
    fn drained(&self, m: &Move, facts: &impl Facts, now_ms: u64) -> Option<Placement> {
        // A clock that was set back does not keep it for ever.
        let waited = now_ms.abs_diff(m.since_ms);
        let (broken, unknown) = facts.left(&m.other, self.revision);
        if waited < DRAIN_MS || (broken > 0 || !unknown.is_empty()) && waited < facts.drain_ms() {
            return None;
        }
        Some(self.after(&Move { broken, ..m.clone() }, Step::Own, now_ms))
    }

    /// A later step of the same, in which as many sessions break.
    fn after(&self, m: &Move, step: Step, since_ms: u64) -> Placement {
        Placement { moving: Some(Move { step, since_ms, ..m.clone() }), ..Placement::at(&self.cluster) }
    }

    fn with(&self, cluster: &Name, other: &Name, step: Step, since_ms: u64) -> Placement {
        let moving = Some(Move { other: other.clone(), step, since_ms, broken: 0 });
        Placement { cluster: cluster.clone(), moving, revision: 0 }
    }

    /// In a few words: where it is, and how far it is on its way.
    pub fn words(&self, waits_for: &[String]) -> String {
        let Some(m) = &self.moving else { return "placed".into() };
        let broken = match m.broken {
            0 => String::new(),
            n => format!(", and {n} sessions that had not ended in time break"),
        };
        let (n, what) = match m.step {
            Step::Copy => (1, format!("{} takes it in", m.other)),
            Step::Hand => (2, format!("{} hands new connections over to {}", self.cluster, m.other)),
            Step::Resume => (3, format!("{} begins new connections itself again, not {}", self.cluster, m.other)),
            Step::Switch => (3, format!("hosts turn from {} to {}", m.other, self.cluster)),
            Step::Drain => (4, format!("{} serves what was on its way, and its sessions", m.other)),
            Step::Own => (5, format!("{} asks {} no more{broken}", self.cluster, m.other)),
            Step::Forget => (6, format!("{} forgets it{broken}", m.other)),
        };
        let waits = if waits_for.is_empty() { String::new() } else { format!("; waits for {}", waits_for.join(", ")) };
        format!("moving {n}/6: {what}{waits}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{RngExt, SeedableRng};
    use std::collections::BTreeMap;

    /// A connection that began in a node, and lives there.
    #[derive(Clone, Debug)]
    struct Session {
        cluster: Name,
        node: usize,
    }

    /// A small region: two nodes in each of three clusters, three hosts, one tenant; what each of them really holds.
    #[derive(Default)]
    struct World {
        /// In the store, by revision: it survives everything.
        stored: Vec<Placement>,
        /// Revisions that nodes have verified: whether they hold the tenant, and what they hand over to whom.
        nodes: BTreeMap<String, (u64, bool, Option<(HandoverRole, Name)>)>,
        /// Where each host sends, and by which revision.
        hosts: BTreeMap<String, (u64, Name)>,
        /// What the controller has heard: lost when it is killed. Of nodes, how many sessions they have too.
        heard_nodes: BTreeMap<String, (u64, u64)>,
        heard_hosts: BTreeMap<String, u64>,
        /// The instant at which the last host that sent elsewhere turned: packets of its are on their way for a while.
        turned: Vec<(u64, Name)>,
        sessions: Vec<Session>,
        /// Milliseconds for which a drain waits.
        patience: u64,
    }

    impl World {
        fn now(&self) -> &Placement {
            self.stored.last().unwrap()
        }
        fn write(&mut self, next: Placement) {
            let revision = self.stored.len() as u64 + 1;
            self.stored.push(Placement { revision, ..next });
        }
        fn sessions_of(&self, node: &str) -> u64 {
            self.sessions.iter().filter(|s| nodes_of(&s.cluster)[s.node] == node).count() as u64
        }
        /// Node `node` of a cluster follows by one revision, and is heard or not.
        fn follow(&mut self, cluster: &Name, node: usize, heard: bool) {
            let name = nodes_of(cluster)[node].clone();
            let sessions = self.sessions_of(&name);
            let state = self.nodes.get_mut(&name).unwrap();
            if let Some(next) = self.stored.get(state.0 as usize) {
                let holds = next.holders().any(|h| h == cluster);
                assert!(holds || sessions == 0, "{name} forgets {sessions} sessions");
                *state = (next.revision, holds, next.handover(cluster).map(|(role, to)| (role, to.clone())));
            }
            if heard {
                self.heard_nodes.insert(name, (state.0, sessions));
            }
        }
        /// Where a packet ends that a host sends: in the cluster that knows its session, or where it begins one. Routers spread the packets of a
        /// session over the nodes of every cluster alike.
        fn arrives(&self, host: &str, session: Option<&Session>, node: usize, opens: bool) -> Option<Name> {
            let (mut at, mut mark) = (self.hosts[host].1.clone(), 0);
            loop {
                let (_, holds, handover) = &self.nodes[&nodes_of(&at)[node]];
                if !holds {
                    return None;
                }
                if session.is_some_and(|s| s.cluster == at) {
                    return Some(at);
                }
                let Some((role, to)) = handover else { return Some(at) };
                mark = match (mark, role) {
                    (0, HandoverRole::New) if opens => return Some(at),
                    (0, HandoverRole::New) => 1,
                    (0, HandoverRole::Old) | (1, _) => 2,
                    _ => return Some(at),
                };
                at = to.clone();
            }
        }
    }

    fn nodes_of(cluster: &str) -> [String; 2] {
        [format!("{cluster}1"), format!("{cluster}2")]
    }

    impl Facts for World {
        fn unverified(&self, cluster: &Name, revision: u64) -> Vec<String> {
            let heard = |n: &String| self.heard_nodes.get(n).is_none_or(|(at, _)| *at < revision);
            nodes_of(cluster).into_iter().filter(heard).collect()
        }
        fn uninstalled(&self, cluster: &Name, revision: u64) -> Vec<String> {
            self.unverified(cluster, revision)
        }
        fn behind(&self, cluster: &Name, revision: u64) -> Vec<String> {
            self.unverified(cluster, revision)
        }
        fn unswitched(&self, revision: u64) -> Vec<String> {
            let heard = |h: &&String| self.heard_hosts.get(*h).is_none_or(|at| *at < revision);
            self.hosts.keys().filter(heard).cloned().collect()
        }
        fn left(&self, cluster: &Name, revision: u64) -> (u64, Vec<String>) {
            let told = nodes_of(cluster).into_iter().filter_map(|n| self.heard_nodes.get(&n));
            (told.map(|(_, sessions)| sessions).sum(), self.unverified(cluster, revision))
        }
        fn drain_ms(&self) -> u64 {
            self.patience
        }
    }

    fn world(clusters: &[Name]) -> World {
        let mut w = World { patience: u64::MAX, ..World::default() };
        w.write(Placement::at(&clusters[0]));
        for c in clusters {
            w.nodes.extend(nodes_of(c).map(|n| (n, (1, *c == clusters[0], None))));
        }
        w.hosts.extend(["h1", "h2", "h3"].map(|h| (h.to_string(), (1, clusters[0].clone()))));
        w
    }

    /// A session begins, ends, or sends a packet by some host: it must arrive where the session is.
    fn traffic(w: &mut World, rng: &mut impl RngExt, seen: &mut [u64; 3]) {
        let host = format!("h{}", rng.random_range(1..4));
        match rng.random_range(0..8) {
            0 => {
                // A plain SYN, or a datagram.
                let (node, opens) = (rng.random_range(0..2), rng.random_range(0..2) == 0);
                let cluster = w.arrives(&host, None, node, opens).expect("a cluster that is sent to holds the tenant");
                seen[0] += 1;
                w.sessions.push(Session { cluster, node });
            }
            1..3 if !w.sessions.is_empty() => {
                let at = rng.random_range(0..w.sessions.len());
                w.sessions.swap_remove(at);
            }
            _ if !w.sessions.is_empty() => {
                let session = &w.sessions[rng.random_range(0..w.sessions.len())];
                let arrived = w.arrives(&host, Some(session), session.node, false);
                assert_eq!(arrived.as_ref(), Some(&session.cluster), "by {host}: {:?}", w.now());
                seen[1] += 1;
                seen[2] += u64::from(w.hosts[&host].1 != session.cluster);
            }
            _ => {}
        }
    }

    #[test]
    fn whoever_is_killed_whenever_a_cluster_that_is_sent_to_holds_the_tenant_and_no_session_is_lost() {
        let seed: u64 = rand::random();
        println!("seed {seed}");
        let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(seed);
        let clusters: [Name; 3] = ["a".into(), "b".into(), "c".into()];
        let (mut ended, mut aborted, mut killed, mut seen) = (0, 0, 0, [0; 3]);
        for _ in 0..200 {
            let mut w = world(&clusters);
            let mut time = 0;
            for _ in 0..900 {
                time += rng.random_range(0..400);
                match rng.random_range(0..14) {
                    // A node follows, one revision after the other, and may not be heard.
                    0..=4 => {
                        let heard = rng.random_range(0..4) > 0;
                        w.follow(&clusters[rng.random_range(0..3)], rng.random_range(0..2), heard);
                    }
                    // A host learns the present state, and may not be heard.
                    5..=7 => {
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
                    8 if rng.random_range(0..6) == 0 => {
                        w.heard_nodes.clear();
                        w.heard_hosts.clear();
                        killed += 1;
                    }
                    9 if rng.random_range(0..8) == 0 => {
                        if let Some(back) = w.now().abort(time) {
                            w.write(back);
                            aborted += 1;
                        }
                    }
                    10 => {
                        let to = &clusters[rng.random_range(0..3)];
                        // By a command, or by what its document says now.
                        let begun = match rng.random_range(0..8) > 0 {
                            true => w.now().begin(to, time),
                            false => w.now().toward(to, time),
                        };
                        begun.into_iter().for_each(|p| w.write(p));
                    }
                    11 | 12 => traffic(&mut w, &mut rng, &mut seen),
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
        println!("{ended} moves ended, {aborted} aborted, the controller killed {killed} times; sessions, packets, handed over: {seen:?}");
        assert!(ended > 100 && aborted > 50 && killed > 500 && seen[0] > 1000 && seen[2] > 100);
    }

    /// Once hosts turn, no connection begins in the old cluster: else its sessions might never end.
    #[test]
    fn what_begins_while_hosts_turn_begins_in_the_new_cluster() {
        let clusters: [Name; 2] = ["a".into(), "b".into()];
        let mut w = world(&clusters);
        let everybody_follows = |w: &mut World| {
            for _ in 0..9 {
                clusters.iter().for_each(|c| (0..2).for_each(|node| w.follow(c, node, true)));
            }
        };
        w.write(w.now().begin(&clusters[1], 0).unwrap());
        w.sessions.push(Session { cluster: clusters[0].clone(), node: 0 });
        everybody_follows(&mut w);
        let hand = w.now().next(&w, 0).unwrap();
        assert_eq!(hand.moving.as_ref().unwrap().step, Step::Hand);
        w.write(hand);
        // Before the old one's nodes do, nobody turns.
        assert_eq!(w.now().waits_for(&w), ["a1", "a2"]);
        assert_eq!(w.arrives("h1", None, 0, true).as_deref(), Some("a"));
        everybody_follows(&mut w);
        for opens in [true, false] {
            assert_eq!(w.arrives("h1", None, 0, opens).as_deref(), Some("b"));
        }
        w.write(w.now().next(&w, 0).unwrap());
        everybody_follows(&mut w);
        w.hosts.values_mut().for_each(|h| *h = (4, "b".into()));
        w.heard_hosts.extend(w.hosts.keys().map(|h| (h.clone(), 4)));
        w.write(w.now().next(&w, 0).unwrap());
        everybody_follows(&mut w);
        let session = w.sessions[0].clone();
        assert_eq!(w.arrives("h1", Some(&session), 0, false).as_deref(), Some("a"));
        assert_eq!(w.now().waits_for(&w), ["1 sessions to end"]);
        assert_eq!(w.now().next(&w, 100 * DRAIN_MS), None);
        // For as long as it may take, and no longer: then it is said how many break.
        w.patience = 5 * DRAIN_MS;
        assert_eq!(w.now().next(&w, 5 * DRAIN_MS - 1), None);
        let own = w.now().next(&w, 5 * DRAIN_MS).unwrap();
        assert_eq!(own.words(&[]), "moving 5/6: b asks a no more, and 1 sessions that had not ended in time break");
        let forget = Placement { revision: 5, ..own }.next(&w, 0).unwrap();
        assert_eq!(forget.words(&[]), "moving 6/6: a forgets it, and 1 sessions that had not ended in time break");
        // A node that is away has not said what it has.
        w.sessions.clear();
        w.heard_nodes.remove("a2");
        assert_eq!(
            (w.now().next(&w, DRAIN_MS), w.now().waits_for(&w)),
            (None, vec!["1 sessions to end".to_string(), "a2".into()])
        );
        everybody_follows(&mut w);
        let own = w.now().next(&w, DRAIN_MS).unwrap();
        assert_eq!((own.words(&[]).as_str(), own.handover(&clusters[1])), ("moving 5/6: b asks a no more", None));
        assert_eq!(own.handover(&clusters[0]), Some((HandoverRole::Old, &clusters[1])));
        w.write(own);
        // As long as one of the new one's nodes may ask, the old one can answer.
        assert_eq!((w.now().next(&w, 0), w.now().waits_for(&w)), (None, vec!["b1".to_string(), "b2".to_string()]));
        everybody_follows(&mut w);
        assert_eq!(w.now().next(&w, 0).unwrap().words(&[]), "moving 6/6: a forgets it");
    }

    /// Aborted before hosts turn, and then once more: no host turns before the old cluster's nodes hand over.
    #[test]
    fn a_resume_that_is_aborted_hands_over_before_hosts_turn() {
        let (a, b): (Name, Name) = ("a".into(), "b".into());
        let mut w = world(&[a.clone(), b.clone()]);
        let copy = Placement::at(&a).begin(&b, 0).unwrap();
        w.heard_nodes.extend(nodes_of("b").map(|n| (n, (1, 0))));
        let hand = copy.next(&w, 0).unwrap();
        let resume = Placement { revision: 4, ..hand.abort(0).unwrap() };
        assert_eq!(resume.words(&[]), "moving 3/6: a begins new connections itself again, not b");
        assert_eq!((&resume.cluster, resume.waits_for(&w)), (&a, vec!["a1".to_string(), "a2".into()]));
        assert_eq!(
            (resume.handover(&a), resume.handover(&b)),
            (Some((HandoverRole::New, &b)), Some((HandoverRole::Old, &a)))
        );
        let again = Placement { revision: 5, ..resume.abort(0).unwrap() };
        assert_eq!((&again.cluster, again.next(&w, 0)), (&a, None));
        assert_eq!(
            again.words(&again.waits_for(&w)),
            "moving 2/6: a hands new connections over to b; waits for a1, a2"
        );
        w.heard_nodes.extend(nodes_of("a").map(|n| (n, (5, 0))));
        assert_eq!(
            resume.next(&w, 0).unwrap().words(&[]),
            "moving 4/6: b serves what was on its way, and its sessions"
        );
        assert_eq!(again.next(&w, 0).unwrap().words(&[]), "moving 3/6: hosts turn from a to b");
    }

    #[test]
    fn a_move_says_where_it_is_and_whom_it_waits_for() {
        let mut w = World::default();
        w.hosts.insert("h1".into(), (0, "a".into()));
        let (a, b): (Name, Name) = ("a".into(), "b".into());
        let placed = Placement::at(&a);
        assert_eq!((placed.words(&[]).as_str(), placed.begin(&a, 0)), ("placed", None));
        let copy = placed.begin(&b, 0).unwrap();
        assert_eq!(copy.words(&[]), "moving 1/6: b takes it in");
        assert_eq!(copy.begin(&b, 0), None);
        let copy = Placement { revision: 2, ..copy };
        assert_eq!(copy.words(&copy.waits_for(&w)), "moving 1/6: b takes it in; waits for b1, b2");
        assert_eq!(copy.next(&w, 0), None);
        w.heard_nodes.extend(nodes_of("b").map(|n| (n, (2, 0))));
        let hand = Placement { revision: 3, ..copy.next(&w, 4).unwrap() };
        assert_eq!(hand.words(&hand.waits_for(&w)), "moving 2/6: a hands new connections over to b; waits for a1, a2");
        w.heard_nodes.extend(nodes_of("a").map(|n| (n, (5, 0))));
        let switch = Placement { revision: 3, ..hand.next(&w, 5).unwrap() };
        assert_eq!(switch.waits_for(&w), ["h1", "b1", "b2"]);
        w.heard_nodes.extend(nodes_of("b").map(|n| (n, (3, 0))));
        assert_eq!(switch.words(&switch.waits_for(&w)), "moving 3/6: hosts turn from a to b; waits for h1");
        w.heard_hosts.insert("h1".into(), 3);
        let drain = switch.next(&w, 10).unwrap();
        assert_eq!((drain.next(&w, 10 + DRAIN_MS - 1), drain.holders().count()), (None, 2));
        let own = drain.next(&w, 10 + DRAIN_MS).unwrap();
        w.heard_nodes.extend(nodes_of("b").map(|n| (n, (9, 0))));
        let forget = own.next(&w, 10 + DRAIN_MS).unwrap();
        assert_eq!((forget.holders().collect::<Vec<_>>(), forget.abort(0)), (vec![&b], None));
        assert_eq!(serde_json::from_str::<Placement>(&serde_json::to_string(&forget).unwrap()).unwrap(), forget);
    }
}
