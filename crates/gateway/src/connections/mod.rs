// SPDX-License-Identifier: Apache-2.0
//! What is known of connections: sessions, translation, rules, state tables, fragments that wait, and who hears of them.
//!
//! [`Connections`] is shared by all workers. A worker holds one guard of session memory while it works on a batch, and sees all of it
//! through a [`SessionView`].

mod sweep;
#[cfg(test)]
mod tests;

use abi::{DropReason, IfIndex, Vni, POLICY_EPOCH_SHIFT, POLICY_PICKUP};
use conntrack::frag::{Fate, FragKey, FragLimits, FragTable, Piece};
use conntrack::nat::Translator;
use conntrack::{
    Direction, EndReason, Ended, Guard, InnerKey, NewSession, OuterKey, Owner, Progress, SessionInfo, SessionRef,
    Tracker, Verdict,
};
use conntrack_compact::Shared;
use filter::{Filter, Side};
use parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard};
use std::sync::Arc;

use crate::handover::Handovers;
use crate::l4::L4;
use crate::leases::Leases;
use crate::mirror::Mirrors;
use crate::nat::{binding, Nat};
use crate::work::QueuedFragment;

/// What a node knows of connections, shared by its workers.
pub struct Connections {
    pub(crate) tracker: Arc<Tracker>,
    pub(crate) nat: Nat,
    fragments: Mutex<FragTable>,
    logs: Logs,
    filter: RwLock<Arc<Filter>>,
    states: RwLock<Option<Arc<Shared>>>,
    handovers: RwLock<Arc<Handovers>>,
    leases: RwLock<Leases>,
    mirrors: RwLock<Arc<Mirrors>>,
}

/// Who hears of what.
#[derive(Default)]
struct Logs {
    ended: Option<EndLog>,
    begun: Option<BeginLog>,
    refused: Option<RefusalLog>,
}

/// A connection that the rules did not let begin.
#[derive(Clone, Copy, Debug)]
pub struct Refused<'a> {
    /// Who wanted to begin it.
    pub from: Side,
    /// With whom.
    pub to: Side,
    /// The port that it comes from; 0: none.
    pub port: u16,
    /// Protocol and port that it is for, or ICMP type and code (`filter::service`).
    pub service: u32,
    /// What denied it.
    pub verdict: filter::Verdict<'a>,
    /// When, ns.
    pub now: u64,
}

/// Hears of every connection that the rules did not let begin.
pub type RefusalLog = Box<dyn Fn(&Refused<'_>) + Send + Sync>;

/// Hears of every session that ends.
pub type EndLog = Box<dyn Fn(&Ended) + Send + Sync>;
/// Hears of every session that begins, and when.
pub type BeginLog = Box<dyn Fn(&NewSession, u64) + Send + Sync>;

impl Connections {
    /// On this tracker and translator; `log` hears of every session that ends.
    pub fn new(
        tracker: Arc<Tracker>,
        translator: Arc<Translator>,
        limits: FragLimits,
        log: Option<EndLog>,
    ) -> Connections {
        Connections {
            tracker,
            nat: Nat::new(translator),
            fragments: Mutex::new(FragTable::new(limits)),
            logs: Logs { ended: log, ..Logs::default() },
            filter: RwLock::default(),
            states: RwLock::default(),
            handovers: RwLock::default(),
            leases: RwLock::default(),
            mirrors: RwLock::default(),
        }
    }

    /// `log` hears of every connection that the rules refuse.
    pub fn on_refusal(mut self, log: RefusalLog) -> Connections {
        self.logs.refused = Some(log);
        self
    }

    /// The security groups in force. While it is held, no others come into force.
    pub fn rules(&self) -> RwLockReadGuard<'_, Arc<Filter>> {
        self.filter.read()
    }

    /// Brings other security groups into force; when it returns, no batch goes on under those before. So a session that is made
    /// under the old ones has an old epoch, and is judged again, if the VPC's epoch is raised now.
    pub fn set_filter(&self, filter: Arc<Filter>) {
        *self.filter.write() = filter;
        self.evaluate_strays();
    }

    /// The state table that tells what becomes of connections inside; none: sessions do. While it is held, no other comes into force.
    pub fn states(&self) -> RwLockReadGuard<'_, Option<Arc<Shared>>> {
        self.states.read()
    }

    /// Brings another state table into force, which `make` makes of the one before; meanwhile, and when it returns, no batch goes on
    /// with that.
    pub fn set_states<E>(
        &self,
        make: impl FnOnce(Option<Arc<Shared>>) -> Result<Option<Arc<Shared>>, E>,
    ) -> Result<(), E> {
        // Before the lock that batches need.
        let strays = self.rules().has_stateless() || !self.handovers().is_empty();
        let mut states = self.states.write();
        // What cannot be made leaves the one before in force.
        *states = make(states.clone())?;
        if let Some(states) = &*states {
            states.evaluate_strays(strays);
        }
        Ok(())
    }

    /// What is mirrored. While it is held, nothing else comes into force.
    pub fn mirrors(&self) -> RwLockReadGuard<'_, Arc<Mirrors>> {
        self.mirrors.read()
    }

    /// Brings other mirrors into force; those that go on keep their counts. When it returns, no batch goes on by those before.
    pub fn set_mirrors(&self, mut mirrors: Mirrors) {
        mirrors.go_on(&self.mirrors());
        *self.mirrors.write() = Arc::new(mirrors);
    }

    /// The VPCs of which another cluster may have sessions. While it is held, no others come into force.
    pub fn handovers(&self) -> RwLockReadGuard<'_, Arc<Handovers>> {
        self.handovers.read()
    }

    /// Brings other handovers into force; those that go on keep their counts. When it returns, no batch goes on by those before.
    pub fn set_handovers(&self, mut handovers: Handovers) {
        handovers.go_on(&self.handovers());
        *self.handovers.write() = Arc::new(handovers);
        self.evaluate_strays();
    }

    /// What the VMs of this node are told by DHCP.
    pub(crate) fn leases(&self) -> RwLockReadGuard<'_, Leases> {
        self.leases.read()
    }

    /// Brings other leases into force.
    pub fn set_leases(&self, mut leases: Leases) {
        let mut all = self.leases.write();
        leases.go_on(&all);
        *all = leases;
    }

    /// Whether packets without a connection are for more than a state table to judge: rules without state may let them go on, or another
    /// cluster has theirs.
    fn evaluate_strays(&self) {
        let wanted = self.rules().has_stateless() || !self.handovers().is_empty();
        if let Some(states) = &*self.states() {
            states.evaluate_strays(wanted);
        }
    }

    /// Waits until every batch that began before has ended.
    pub fn wait_for_batches(&self) {
        drop(self.states.write());
    }

    pub(crate) fn refused(&self, refused: &Refused<'_>) {
        if let Some(log) = &self.logs.refused {
            log(refused);
        }
    }

    /// Gives back what the translator gave for a session, if it is one that is translated.
    fn release(&self, owner: Owner, inner: &InnerKey, outer: &OuterKey, now: u64) {
        if owner != Owner::Filter {
            self.nat.translator.release(&binding(inner, outer), now);
        }
    }

    /// The same for a session that could not be made.
    fn undo(&self, new: &NewSession, now: u64) {
        if new.owner != Owner::Filter {
            self.nat.translator.undo(&binding(&new.inner, &new.outer), now);
        }
    }

    /// Ends the session over this public endpoint if its translation is no longer in force. True: it is gone.
    fn retire(&self, sight: SessionView<'_>, outer: &OuterKey, now: u64) -> bool {
        let Some(session) = self.tracker.find_outer(outer) else { return true };
        let (found, owner) = (sight.found(session), sight.guard.record(session).owner());
        if found.outer != *outer
            || owner == Owner::Filter
            || self.nat.translator.holds(&binding(&found.inner, &found.outer))
        {
            return false;
        }
        self.tracker.remove_for(EndReason::Untranslated, session, now, &mut |e| self.ended(e, now));
        true
    }

    /// `log` hears of every session that begins.
    pub fn on_begin(mut self, log: BeginLog) -> Connections {
        self.logs.begun = Some(log);
        self
    }

    /// The tracker.
    pub fn tracker(&self) -> &Arc<Tracker> {
        &self.tracker
    }

    /// What translates to the Internet and back.
    pub fn nat(&self) -> &Nat {
        &self.nat
    }

    /// Ends what is due: sessions (at most `budget` looked at), idle mappings, fragments that waited too long. One thread calls it
    /// some times a second, outside of any batch.
    pub fn expire(&self, now: u64, budget: u32) -> Progress {
        let progress = self.tracker.expire(now, budget, &mut |e| self.ended(e, now));
        self.nat.translator.expire(now);
        // What was held is counted as dropped since it came.
        self.fragments().expire(now, &mut |_, _| ());
        progress
    }

    /// Ends every session for which there is a reason, of at most `budget` records looked at from `from` on.
    pub fn remove_where(
        &self,
        from: conntrack::Cursor,
        budget: u32,
        which: &mut dyn FnMut(&SessionInfo) -> Option<EndReason>,
        now: u64,
    ) -> Option<conntrack::Cursor> {
        self.tracker.remove_where(from, budget, now, which, &mut |e| self.ended(e, now))
    }

    /// Gives back the ports of a session that has ended, and tells the log.
    fn ended(&self, e: &Ended, now: u64) {
        if e.released {
            self.release(e.session.owner, &e.session.inner, &e.session.outer, now);
        }
        if let Some(log) = &self.logs.ended {
            log(e);
        }
    }

    fn fragments(&self) -> MutexGuard<'_, FragTable> {
        self.fragments.lock()
    }
}

/// The shared state as a worker sees it during a batch.
#[derive(Clone, Copy)]
pub(crate) struct SessionView<'w> {
    pub connections: &'w Connections,
    pub guard: &'w Guard<'w>,
    pub filter: &'w Filter,
    pub states: Option<&'w Shared>,
    pub handovers: &'w Handovers,
    pub mirrors: &'w Mirrors,
}

/// A session for a packet that seemed to have none.
pub(crate) enum Made {
    /// It is new and has counted the packet.
    New(SessionRef),
    /// Another packet made it meanwhile; this one is to be judged.
    Found(SessionRef),
}

/// A session at hand, and what a packet needs of it.
pub(crate) struct Found {
    pub inner: InnerKey,
    pub outer: OuterKey,
}

impl<'w> SessionView<'w> {
    pub fn inner(self, key: &InnerKey) -> Option<SessionRef> {
        self.guard.find_inner(key)
    }

    pub fn outer(self, key: &OuterKey) -> Option<SessionRef> {
        // A miss of the moment would lose the packet: it is made certain.
        self.guard.find_outer(key).or_else(|| self.connections.tracker.find_outer(key))
    }

    pub fn found(self, session: SessionRef) -> Found {
        let record = self.guard.record(session);
        Found { inner: record.inner(), outer: record.outer() }
    }

    /// The session was judged under this policy.
    pub fn current(self, session: SessionRef, policy: u64) -> bool {
        self.guard.record(session).epoch() == epoch(policy)
    }

    /// Ends a session that the rules no longer allow.
    pub fn end(self, session: SessionRef, now: u64) {
        self.connections.tracker.remove(session, now, &mut |e| self.connections.ended(e, now));
    }

    /// Whether the fragments of a packet of a VM contradict each other.
    pub fn contradicts(self, vni: Vni, l4: &L4) -> bool {
        fragment(Some(vni), l4).is_some_and(|(key, _)| self.connections.fragments().contradicts(&key))
    }

    /// Tells the log of a connection inside that begins.
    pub fn tell_begin(self, new: &NewSession, now: u64) {
        if let Some(log) = &self.connections.logs.begun {
            log(new, now);
        }
    }

    /// Judges a session of an older policy again. False: it is gone.
    pub fn renew(self, session: SessionRef, policy: u64, now: u64) -> bool {
        let found = self.found(session);
        if self.connections.nat.translator.judge(&binding(&found.inner, &found.outer)) {
            return self.connections.tracker.stamp(session, epoch(policy));
        }
        self.connections
            .tracker
            .remove_for(EndReason::Untranslated, session, now, &mut |e| self.connections.ended(e, now));
        false
    }

    /// Lets the state machine judge a packet. `Ok(false)`: the session is gone.
    pub fn judge(
        self,
        session: SessionRef,
        direction: Direction,
        l4: &L4,
        packet: &[u8],
        now: u64,
    ) -> Result<bool, DropReason> {
        let view = l4.view(packet);
        if l4.later() {
            self.guard.record(session).touch(now, l4.len as u32);
            return Ok(true);
        }
        let ended = &mut |e: &Ended| self.connections.ended(e, now);
        match self.connections.tracker.judge(session, direction, &view, l4.len as u32, now, ended).verdict {
            Verdict::Forward => Ok(true),
            Verdict::Gone => Ok(false),
            Verdict::Drop(reason) => Err(reason),
        }
    }

    /// Both its ends are inside: the fast path leaves it to this one.
    pub fn exclude(self, session: SessionRef) {
        self.connections.tracker.exclude_from_offload(session, &self.found(session).inner);
    }

    /// Makes the session; what the translator gave for it is given back if there can be none, or was one already.
    pub fn create(self, new: &NewSession, now: u64) -> Result<Made, DropReason> {
        let create = || self.connections.tracker.create(new, now, &mut |e| self.connections.ended(e, now));
        let mut made = create();
        // Of a port that was given away since, the sweep may not have come to the old session yet.
        if made == Err(conntrack::Refusal::OuterTaken) && self.connections.retire(self, &new.outer, now) {
            made = create();
        }
        let reason = match made {
            Ok(session) => {
                self.tell_begin(new, now);
                return Ok(Made::New(session));
            }
            Err(conntrack::Refusal::Exists(session)) => {
                self.connections.release(new.owner, &new.inner, &new.outer, now);
                return Ok(Made::Found(session));
            }
            Err(conntrack::Refusal::OuterTaken) => DropReason::NatConflict,
            Err(conntrack::Refusal::Drop(reason)) => reason,
        };
        self.connections.undo(new, now);
        Err(reason)
    }

    /// Ports and protocol of a fragment beyond the first, if its first one is known.
    pub fn later_ports(self, vni: Option<Vni>, l4: &L4, frame: &[u8], now: u64) -> Result<Known, DropReason> {
        let Some((key, piece)) = fragment(vni, l4) else { return Err(DropReason::FragmentUnknown) };
        match self.connections.fragments().later(&key, piece, frame, now) {
            Fate::Known(ports, upper) => Ok((ports, upper)),
            Fate::Queued => Err(DropReason::FragmentEarly),
            Fate::Drop => Err(DropReason::FragmentUnknown),
        }
    }

    /// Whether the first fragment of a packet's datagram has come here.
    pub fn knows_first(self, vni: Option<Vni>, l4: &L4) -> bool {
        fragment(vni, l4).is_some_and(|(key, _)| self.connections.fragments().knows(&key))
    }

    /// Whether a packet, if it is a first fragment, may be taken. To be asked before it begins a session or moves one.
    pub fn first_fits(self, vni: Option<Vni>, l4: &L4, now: u64) -> Result<(), DropReason> {
        let Some((key, piece)) = fragment(vni, l4).filter(|(_, piece)| piece.offset == 0) else { return Ok(()) };
        match self.connections.fragments().admits(&key, piece, (l4.src_port, l4.dst_port), now) {
            true => Ok(()),
            false => Err(DropReason::FragmentUnknown),
        }
    }

    /// Remembers a first fragment that came in by a port; pieces that came before it are added to `queued`.
    pub fn first_ports(
        self,
        vni: Option<Vni>,
        l4: &L4,
        (ifindex, cause, now): (IfIndex, u8, u64),
        queued: &mut Vec<QueuedFragment>,
    ) -> Result<(), DropReason> {
        let Some((key, piece)) = fragment(vni, l4) else { return Ok(()) };
        let ports = (l4.src_port, l4.dst_port);
        match self.connections.fragments().first(&key, piece, ports, now, &mut |frame| {
            queued.push(QueuedFragment { frame, known: (ports, l4.proto), ifindex, cause })
        }) {
            true => Ok(()),
            false => Err(DropReason::FragmentUnknown),
        }
    }
}

/// What the first fragment of a datagram tells of the others: ports, and the protocol of the upper layer.
pub(crate) type Known = ((u16, u16), u8);

fn fragment(vni: Option<Vni>, l4: &L4) -> Option<(FragKey, Piece)> {
    let p = l4.piece?;
    let (src, dst) = (l4.src.ip(l4.v6), l4.dst.ip(l4.v6));
    let len = l4.len.saturating_sub(p.at) as u32;
    // A receiver puts IPv6 fragments together whatever protocol the later ones name.
    let proto = if l4.v6 { 0 } else { l4.proto };
    let piece = Piece { offset: p.offset as u32, len, more: p.more, upper: l4.proto };
    Some((FragKey { vni, src, dst, proto, id: p.id }, piece))
}

/// Epoch of a POLICY word.
pub(crate) fn epoch(policy: u64) -> u16 {
    (policy >> POLICY_EPOCH_SHIFT) as u16
}

/// A TCP packet without SYN may begin a session.
pub(crate) fn picks_up(policy: u64) -> bool {
    policy & POLICY_PICKUP != 0
}
