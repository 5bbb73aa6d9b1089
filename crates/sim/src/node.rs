// SPDX-License-Identifier: Apache-2.0
//! A simulated node: it holds what its stream brought, keeps that over a restart or not, finds what is wrong in its tables, gives out ports of what it
//! believes is its own, and says how it stands.

use crate::chance;
use crate::things;
use model::{Documents, Kind, Model, Name, Object, Share};
use node::distribution::{read_block, Message, Report};
use node::handover::HandoverView;
use node::probes;
use node::usage::{Filled, Usage};
use rand::RngExt;
use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

/// Ports of an address that are given out together here: a sixty-fourth of all.
pub const SLICE: u32 = 1024;
/// Sessions of a VPC that is handed over, at the beginning; one ends each second.
const SESSIONS: u64 = 8;
/// What a node can hold.
const LIMITS: [(&str, u64); 4] = [("tenants", 131_072), ("routes", 1 << 20), ("vms", 1 << 20), ("sessions", 1 << 22)];
/// What its links carry.
const LINK: u64 = 100_000_000_000;

/// An address, and which sixty-fourth of its ports.
pub type Unit = (Ipv4Addr, u32);

/// What is on its disk of how far it got.
#[derive(Clone, Debug, Default)]
pub struct Kept {
    /// The cluster that it belonged to; empty: it has never heard of one.
    pub cluster: String,
    /// The revision that is in force.
    pub revision: u64,
    /// It was told that it is admitted.
    pub admitted: bool,
}

/// What it takes for true of itself although it is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lie {
    /// A probe fails, it says; none does.
    Failing,
    /// All is well, it says, whatever its probes come to.
    Well,
}

/// A node.
#[derive(Default)]
pub struct Node {
    /// Its number.
    pub number: usize,
    /// Its name.
    pub name: Name,
    /// The cluster that its document names.
    pub cluster: usize,
    /// Its process runs.
    pub up: bool,
    /// It never comes back.
    pub lost: bool,
    /// Raised when it starts or dies: what was under way before means nothing.
    pub epoch: u64,
    /// Nobody hears it before this time.
    pub cut_until: u64,
    /// It is slow before this time, so many times.
    pub slow: (u64, u64),
    /// It lies before this time.
    pub lie: Option<(u64, Lie)>,
    /// What is on its disk.
    pub kept: Kept,
    /// What it is configured with.
    pub held: BTreeMap<(Kind, Name), Object>,
    /// What of it fits together; none: nobody looks at that.
    model: Option<Model>,
    /// Bits a second of some of its VPCs.
    pub traffic: BTreeMap<String, u64>,
    /// Entries that are not in its tables as configured; whether it knows.
    pub bad: BTreeMap<(Kind, Name), bool>,
    /// The revision up to which it found everything.
    pub verified: u64,
    /// The revision up to which its probes came out.
    pub probed: u64,
    /// Its stream: from which controller, and which.
    pub stream: Option<(usize, u64)>,
    incoming: Option<(u64, Documents)>,
    /// Slices that sessions use, and until when.
    pub used: BTreeMap<Unit, u64>,
    /// VPCs that it hands over or of which it is handed some, and since when.
    handed: BTreeMap<Name, u64>,
    /// What it was sent does not fit together.
    pub refused: Option<String>,
    /// Version of its program.
    pub version: u32,
}

/// What a piece of its stream is to it.
pub enum Heard {
    /// Whether it is admitted.
    Admission(bool),
    /// Documents to bring into force: all, or a change.
    Install { docs: Documents, whole: bool, revision: u64 },
    /// More is to come.
    More,
}

/// A line, and what is behind it.
fn message(text: &[u8]) -> Option<(Message, &[u8])> {
    let end = text.iter().position(|b| *b == b'\n')? + 1;
    Some((serde_json::from_slice(&text[..end]).ok()?, &text[end..]))
}

/// The objects of blocks, one after the other.
fn blocks(mut rest: &[u8], docs: &mut Documents) -> Result<(), String> {
    while !rest.is_empty() {
        let Some((Message::Block { bytes, packed }, behind)) = message(rest) else { return Err("no block".into()) };
        let (block, behind) = behind.split_at_checked(bytes as usize).ok_or("a block is cut off")?;
        docs.puts.extend(read_block(block, packed)?.puts);
        rest = behind;
    }
    Ok(())
}

/// Which sixty-fourths of their ports a share's addresses have.
pub fn units(share: &Share) -> impl Iterator<Item = Unit> + '_ {
    let (first, last) = share.ports.unwrap_or((0, u16::MAX));
    let slices = u32::from(first).div_ceil(SLICE)..(u32::from(last) + 1) / SLICE;
    let addresses = share.range.first.to_bits()..=share.range.last.to_bits();
    addresses.flat_map(move |a| slices.clone().map(move |s| (Ipv4Addr::from_bits(a), s)))
}

impl Node {
    /// A new one, which knows nothing. `strict`: it refuses what does not fit together.
    pub fn new(number: usize, cluster: usize, strict: bool) -> Node {
        let (name, model) = (things::node_name(number), strict.then(Model::new));
        Node { number, name, cluster, model, slow: (0, 1), ..Node::default() }
    }

    /// An object as packets meet it.
    pub fn serves(&self, kind: Kind, name: &Name) -> Option<&Object> {
        let key = (kind, name.clone());
        self.held.get(&key).filter(|_| !self.bad.contains_key(&key))
    }

    /// Whether routers send to it.
    pub fn draws(&self) -> bool {
        self.up && self.kept.admitted
    }

    /// It dies. `forgets`: its disk is gone.
    pub fn die(&mut self, forgets: bool) {
        self.up = false;
        self.epoch += 1;
        (self.stream, self.incoming) = (None, None);
        if forgets {
            (self.kept, self.held) = (Kept::default(), BTreeMap::new());
            self.model = self.model.is_some().then(Model::new);
            self.used.clear();
            self.handed.clear();
        }
        // Tables are made anew of the configuration at a start.
        self.bad.clear();
        (self.verified, self.probed) = (0, 0);
    }

    /// It starts.
    pub fn start(&mut self) {
        self.up = true;
        self.epoch += 1;
    }

    /// How many times slower than usual it is.
    pub fn factor(&self, now: u64) -> u64 {
        if now < self.slow.0 {
            self.slow.1
        } else {
            1
        }
    }

    /// A piece of its stream.
    pub fn hears(&mut self, piece: &[u8]) -> Result<Heard, String> {
        if let Some((revision, docs)) = &mut self.incoming {
            if let Some((Message::End { objects }, _)) = message(piece) {
                let (revision, docs) = (*revision, std::mem::take(docs));
                self.incoming = None;
                let whole = docs.puts.len() as u64 == objects;
                return match whole {
                    true => Ok(Heard::Install { docs, whole, revision }),
                    false => Err("a snapshot is not whole".into()),
                };
            }
            if !matches!(message(piece), Some((Message::Admission { .. }, _))) {
                blocks(piece, docs)?;
                return Ok(Heard::More);
            }
        }
        match message(piece) {
            Some((Message::Admission { admitted, .. }, _)) => Ok(Heard::Admission(admitted)),
            Some((Message::Snapshot { revision }, _)) => {
                self.incoming = Some((revision, Documents::new()));
                Ok(Heard::More)
            }
            Some((Message::Change { revision, deletes, .. }, rest)) => {
                let mut docs = Documents::new();
                blocks(rest, &mut docs)?;
                for (kind, name) in deletes {
                    docs.delete(Kind::from_name(&kind).ok_or("an unknown kind")?, &name);
                }
                Ok(Heard::Install { docs, whole: false, revision })
            }
            _ => Err("an unknown message".into()),
        }
    }

    /// Brings documents into force, as its model takes them.
    pub fn install(&mut self, mut docs: Documents, whole: bool, revision: u64, cluster: &Name, now: u64) {
        docs.deletes.retain(|(kind, name, _)| self.held.contains_key(&(*kind, name.clone())));
        let taken = match &mut self.model {
            Some(model) if whole => Model::of_node(Some(&*self.name), &docs).map(|(new, _)| *model = new),
            Some(model) => model.apply(&docs).map(drop),
            None => Ok(()),
        };
        if let Err(errors) = taken {
            self.refused = errors.first().map(|e| e.to_string());
            return;
        }
        if whole {
            self.held.clear();
            self.bad.clear();
        }
        for (kind, name, _) in &docs.deletes {
            self.held.remove(&(*kind, name.clone()));
            self.bad.remove(&(*kind, name.clone()));
        }
        for item in docs.puts {
            let key = (item.object.kind(), item.object.name());
            self.bad.remove(&key);
            self.held.insert(key, item.object);
        }
        let before = std::mem::replace(&mut self.kept.revision, revision);
        self.kept.cluster = cluster.to_string();
        if !whole && self.bad.is_empty() && self.verified >= before {
            self.verified = revision;
        }
        let held = &self.held;
        self.handed.retain(|name, _| held.contains_key(&(Kind::Handover, name.clone())));
        for (_, name) in held.keys().filter(|(kind, _)| *kind == Kind::Handover) {
            self.handed.entry(name.clone()).or_insert(now);
        }
        self.end_sessions();
    }

    /// Sessions end over what is nobody's here.
    fn end_sessions(&mut self) {
        let own: BTreeSet<Unit> = self.shares().flat_map(|(_, share)| units(share)).collect();
        self.used.retain(|unit, _| own.contains(unit));
    }

    /// What it believes is its own of pools, what it leaves too.
    fn shares(&self) -> impl Iterator<Item = (&Name, &Share)> {
        let pools = self.held.values().filter_map(|o| if let Object::PublicPool(p) = o { Some(p) } else { None });
        let name = &self.name;
        pools.flat_map(move |p| {
            p.shares.iter().filter(move |s| s.node.as_ref() == Some(name)).map(move |s| (&p.name, s))
        })
    }

    /// What it may give out, and what it has given: of each address a bit for each sixty-fourth of its ports.
    pub fn claims(&self) -> BTreeMap<Ipv4Addr, u64> {
        let mut all = BTreeMap::new();
        let may = self.shares().filter(|(_, share)| !share.leaving).flat_map(|(_, share)| units(share));
        for (address, slice) in may.chain(self.used.keys().copied()) {
            *all.entry(address).or_default() |= 1 << slice;
        }
        all
    }

    /// Connections begin over some of what is its own, and others have ended.
    pub fn connect_some(&mut self, seed: u64, now: u64) {
        self.used.retain(|_, until| *until > now);
        let may: Vec<Unit> = self.shares().filter(|(_, s)| !s.leaving).flat_map(|(_, s)| units(s)).collect();
        if may.is_empty() {
            return;
        }
        let mut rng = chance::of(seed, &[11, self.number as u64, now]);
        for _ in 0..4 {
            let unit = may[rng.random_range(0..may.len())];
            let until = now + rng.random_range(1_000..30_000);
            let at = self.used.entry(unit).or_insert(until);
            *at = until.max(*at);
        }
    }

    /// Everything has been looked at that was in force: whether it says anything else now.
    pub fn pass(&mut self, revision: u64) -> bool {
        let unknown = self.bad.values().any(|known| !known);
        self.bad.values_mut().for_each(|known| *known = true);
        if !self.bad.is_empty() {
            return unknown;
        }
        let before = (self.verified, self.probed);
        (self.verified, self.probed) = (self.verified.max(revision), self.probed.max(revision));
        before != (self.verified, self.probed)
    }

    /// What is wrong in its tables, as far as it knows, is written anew.
    pub fn mend(&mut self) {
        self.bad.retain(|_, known| !*known);
    }

    /// Parts of what it has, or leaves, of which nothing is in use, by pool.
    fn unused(&self, leaving: bool) -> BTreeMap<String, Vec<String>> {
        let mut all: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (pool, share) in self.shares().filter(|(_, share)| share.leaving == leaving) {
            for address in share.range.first.to_bits()..=share.range.last.to_bits() {
                let at = Ipv4Addr::from_bits(address);
                let mut one = share.clone();
                (one.range.first, one.range.last) = (at, at);
                if !units(&one).any(|unit| self.used.contains_key(&unit)) {
                    all.entry(pool.to_string()).or_default().push(one.to_string());
                }
            }
        }
        all
    }

    /// What it says of itself.
    pub fn report(&self, now: u64) -> Report {
        let known: Vec<String> = self.bad.iter().filter(|b| *b.1).map(|(k, _)| format!("{} {}", k.0, k.1)).collect();
        let lie = self.lie.filter(|(until, _)| now < *until).map(|(_, lie)| lie);
        let fails = match lie {
            Some(Lie::Failing) => true,
            Some(Lie::Well) => false,
            None => !known.is_empty(),
        };
        let failures = if fails { vec![probes::Failure::default()] } else { Vec::new() };
        let engines = vec!["user".into()];
        let probed = probes::Report { revision: self.probed, engines, failures, ..probes::Report::default() };
        let levels = LIMITS.map(|(name, limit)| Filled { name: name.into(), used: 0, limit }).to_vec();
        let handovers = self.handed.iter().filter_map(|(name, since)| {
            let Object::Handover(handover) = self.held.get(&(Kind::Handover, name.clone()))? else { return None };
            let old = matches!(handover.role, model::HandoverRole::Old);
            let left = if old { SESSIONS.saturating_sub((now - since) / 1000) } else { 0 };
            let role = if old { "old" } else { "new" };
            Some((name.to_string(), HandoverView { role: role.into(), sessions: left, ..HandoverView::default() }))
        });
        Report {
            installed: self.kept.revision,
            verified: self.verified.min(self.kept.revision),
            faults: if lie == Some(Lie::Well) { Vec::new() } else { known },
            version: self.version.to_string(),
            usage: Usage {
                engine: "xdp".into(),
                levels,
                link_bits: LINK,
                vpcs: self.traffic.clone(),
                ..Usage::default()
            },
            probes: Some(probed),
            admitted: self.kept.admitted,
            addresses: vec![things::node_address(self.number)],
            handovers: handovers.collect(),
            left: self.unused(true),
            idle: self.unused(false),
            ..Report::default()
        }
    }
}
