// SPDX-License-Identifier: Apache-2.0
//! The ways to the Internet and back: sessions, translation, ICMP errors, fragments.
//!
//! The order of checks is that of `docs/design/packet-nat.md` and `packet-nat-in.md`; what a session is, of `docs/design/sessions.md`.
//! [`outward`] and [`inward`] decide; [`translate`] and [`related`] change bytes; [`send`] is the way out without a tunnel (a
//! packet inwards takes the stages locate to emit like any other).
//!
//! [`Nat`] is shared by all workers: the tracker, the translator and the fragments. A worker holds one guard of session
//! memory while it works on a batch.

pub(crate) mod answer;
pub(crate) mod inward;
pub(crate) mod l4;
pub(crate) mod outward;
pub(crate) mod related;
pub(crate) mod send;
mod sweep;
#[cfg(test)]
mod tests;
pub(crate) mod translate;

use abi::{DropReason, Stage, POLICY_EPOCH_SHIFT, POLICY_PICKUP};
use filter::{Filter, Side};
use parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard};
use session::frag::{Fate, FragKey, FragLimits, FragTable, Piece};
use session::nat::{Binding, Flow, PublicEndpoint, Translator};
use session::{
    Direction, EndReason, Ended, Guard, InnerKey, NewSession, OuterKey, Owner, Progress, SessionInfo, SessionRef,
    Tracker, Verdict,
};
use states::Shared;
use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;

use crate::packet::Packet;
use crate::record::{Event, Recorder};
use crate::work::{QueuedFragment, Work};
use l4::L4;

/// Sessions and translation of a node, shared by its workers.
pub struct Nat {
    tracker: Arc<Tracker>,
    translator: Arc<Translator>,
    fragments: Mutex<FragTable>,
    log: Option<EndLog>,
    begins: Option<BeginLog>,
    refusals: Option<RefusalLog>,
    filter: RwLock<Arc<Filter>>,
    states: RwLock<Option<Arc<Shared>>>,
    tunnel_ends: RwLock<Arc<HashSet<IpAddr>>>,
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

impl Nat {
    /// On this tracker and translator; `log` hears of every session that ends.
    pub fn new(tracker: Arc<Tracker>, translator: Arc<Translator>, limits: FragLimits, log: Option<EndLog>) -> Nat {
        let fragments = Mutex::new(FragTable::new(limits));
        Nat {
            tracker,
            translator,
            fragments,
            log,
            begins: None,
            refusals: None,
            filter: RwLock::default(),
            states: RwLock::default(),
            tunnel_ends: RwLock::default(),
        }
    }

    /// `log` hears of every connection that the rules refuse.
    pub fn on_refusal(self, log: RefusalLog) -> Nat {
        Nat { refusals: Some(log), ..self }
    }

    /// The security groups in force. While it is held, no others come into force.
    pub fn rules(&self) -> RwLockReadGuard<'_, Arc<Filter>> {
        self.filter.read()
    }

    /// Brings other security groups into force; when it returns, no batch goes on under those before. So a session that is made
    /// under the old ones has an old epoch, and is judged again, if the VPC's epoch is raised now.
    pub fn set_filter(&self, filter: Arc<Filter>) {
        let stateless = filter.has_stateless();
        *self.filter.write() = filter;
        if let Some(states) = &*self.states() {
            states.evaluate_strays(stateless);
        }
    }

    /// The tunnel addresses of all NCs, which no VM may reach by way of the Internet: a VTEP believes whatever comes to it in a tunnel.
    pub fn tunnel_ends(&self) -> Arc<HashSet<IpAddr>> {
        self.tunnel_ends.read().clone()
    }

    /// Brings other tunnel addresses into force. Sessions to new ones end with the next sweep.
    pub fn set_tunnel_ends(&self, ends: Arc<HashSet<IpAddr>>) {
        *self.tunnel_ends.write() = ends;
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
        let stateless = self.rules().has_stateless();
        let mut states = self.states.write();
        // What cannot be made leaves the one before in force.
        *states = make(states.clone())?;
        if let Some(states) = &*states {
            states.evaluate_strays(stateless);
        }
        Ok(())
    }

    /// Waits until every batch that began before has ended.
    pub fn wait_for_batches(&self) {
        drop(self.states.write());
    }

    pub(crate) fn refused(&self, refused: &Refused<'_>) {
        if let Some(log) = &self.refusals {
            log(refused);
        }
    }

    /// Gives back what the translator gave for a session, if it is one that is translated.
    fn release(&self, owner: Owner, inner: &InnerKey, outer: &OuterKey, now: u64) {
        if owner != Owner::Filter {
            self.translator.release(&binding(inner, outer), now);
        }
    }

    /// The same for a session that could not be made.
    fn undo(&self, new: &NewSession, now: u64) {
        if new.owner != Owner::Filter {
            self.translator.undo(&binding(&new.inner, &new.outer), now);
        }
    }

    /// Ends the session over this public endpoint if its translation is no longer in force. True: it is gone.
    fn retire(&self, sight: SessionView<'_>, outer: &OuterKey, now: u64) -> bool {
        let Some(session) = self.tracker.find_outer(outer) else { return true };
        let (found, owner) = (sight.found(session), sight.guard.record(session).owner());
        if found.outer != *outer
            || owner == Owner::Filter
            || self.translator.holds(&binding(&found.inner, &found.outer))
        {
            return false;
        }
        self.tracker.remove_for(EndReason::Untranslated, session, now, &mut |e| self.ended(e, now));
        true
    }

    /// `log` hears of every session that begins.
    pub fn on_begin(self, log: BeginLog) -> Nat {
        Nat { begins: Some(log), ..self }
    }

    /// The tracker.
    pub fn tracker(&self) -> &Arc<Tracker> {
        &self.tracker
    }

    /// The translator.
    pub fn translator(&self) -> &Arc<Translator> {
        &self.translator
    }

    /// Ends what is due: sessions (at most `budget` looked at), idle mappings, fragments that waited too long. One thread calls it
    /// some times a second, outside of any batch.
    pub fn expire(&self, now: u64, budget: u32) -> Progress {
        let progress = self.tracker.expire(now, budget, &mut |e| self.ended(e, now));
        self.translator.expire(now);
        // What was held is counted as dropped since it came.
        self.fragments().expire(now, &mut |_, _| ());
        progress
    }

    /// Ends every session for which there is a reason, of at most `budget` records looked at from `from` on.
    pub fn remove_where(
        &self,
        from: session::Cursor,
        budget: u32,
        which: &mut dyn FnMut(&SessionInfo) -> Option<EndReason>,
        now: u64,
    ) -> Option<session::Cursor> {
        self.tracker.remove_where(from, budget, now, which, &mut |e| self.ended(e, now))
    }

    /// Gives back the ports of a session that has ended, and tells the log.
    fn ended(&self, e: &Ended, now: u64) {
        if e.released {
            self.release(e.session.owner, &e.session.inner, &e.session.outer, now);
        }
        if let Some(log) = &self.log {
            log(e);
        }
    }

    fn fragments(&self) -> MutexGuard<'_, FragTable> {
        self.fragments.lock()
    }
}

/// What a session stands for, in the translator's words.
fn binding(inner: &InnerKey, outer: &OuterKey) -> Binding {
    let flow = Flow {
        vni: inner.vni(),
        proto: inner.proto(),
        vm_addr: inner.vm(),
        vm_port: inner.vm_port(),
        remote: inner.remote(),
        remote_port: inner.remote_port(),
    };
    Binding { flow, public: PublicEndpoint { addr: outer.public(), port: outer.public_port() } }
}

/// The shared state as a worker sees it during a batch.
#[derive(Clone, Copy)]
pub(crate) struct SessionView<'w> {
    pub nat: &'w Nat,
    pub guard: &'w Guard<'w>,
    pub filter: &'w Filter,
    pub states: Option<&'w Shared>,
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
        self.guard.find_outer(key).or_else(|| self.nat.tracker.find_outer(key))
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
        self.nat.tracker.remove(session, now, &mut |e| self.nat.ended(e, now));
    }

    /// Whether the fragments of a packet of a VM contradict each other.
    pub fn contradicts(self, vni: u32, l4: &L4) -> bool {
        fragment(Some(vni), l4).is_some_and(|(key, _)| self.nat.fragments().contradicts(&key))
    }

    /// Tells the log of a connection inside that begins.
    pub fn tell_begin(self, new: &NewSession, now: u64) {
        if let Some(log) = &self.nat.begins {
            log(new, now);
        }
    }

    /// Judges a session of an older policy again. False: it is gone.
    pub fn renew(self, session: SessionRef, policy: u64, now: u64) -> bool {
        let found = self.found(session);
        if self.nat.translator.judge(&binding(&found.inner, &found.outer)) {
            return self.nat.tracker.stamp(session, epoch(policy));
        }
        self.nat.tracker.remove_for(EndReason::Untranslated, session, now, &mut |e| self.nat.ended(e, now));
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
        let ended = &mut |e: &Ended| self.nat.ended(e, now);
        match self.nat.tracker.judge(session, direction, &view, l4.len as u32, now, ended).verdict {
            Verdict::Forward => Ok(true),
            Verdict::Gone => Ok(false),
            Verdict::Drop(reason) => Err(reason),
        }
    }

    /// Both its ends are inside: the fast path leaves it to this one.
    pub fn exclude(self, session: SessionRef) {
        self.nat.tracker.exclude_from_offload(session, &self.found(session).inner);
    }

    /// Makes the session; what the translator gave for it is given back if there can be none, or was one already.
    pub fn create(self, new: &NewSession, now: u64) -> Result<Made, DropReason> {
        let create = || self.nat.tracker.create(new, now, &mut |e| self.nat.ended(e, now));
        let mut made = create();
        // Of a port that was given away since, the sweep may not have come to the old session yet.
        if made == Err(session::Refusal::OuterTaken) && self.nat.retire(self, &new.outer, now) {
            made = create();
        }
        let reason = match made {
            Ok(session) => {
                self.tell_begin(new, now);
                return Ok(Made::New(session));
            }
            Err(session::Refusal::Exists(session)) => {
                self.nat.release(new.owner, &new.inner, &new.outer, now);
                return Ok(Made::Found(session));
            }
            Err(session::Refusal::OuterTaken) => DropReason::NatConflict,
            Err(session::Refusal::Drop(reason)) => reason,
        };
        self.nat.undo(new, now);
        Err(reason)
    }

    /// Ports and protocol of a fragment beyond the first, if its first one is known.
    pub fn later_ports(self, vni: Option<u32>, l4: &L4, frame: &[u8], now: u64) -> Result<Known, DropReason> {
        let Some((key, piece)) = fragment(vni, l4) else { return Err(DropReason::FragmentUnknown) };
        match self.nat.fragments().later(&key, piece, frame, now) {
            Fate::Known(ports, upper) => Ok((ports, upper)),
            Fate::Queued => Err(DropReason::FragmentEarly),
            Fate::Drop => Err(DropReason::FragmentUnknown),
        }
    }

    /// Whether a packet, if it is a first fragment, may be taken. To be asked before it begins a session or moves one.
    pub fn first_fits(self, vni: Option<u32>, l4: &L4, now: u64) -> Result<(), DropReason> {
        let Some((key, piece)) = fragment(vni, l4).filter(|(_, piece)| piece.offset == 0) else { return Ok(()) };
        match self.nat.fragments().admits(&key, piece, (l4.src_port, l4.dst_port), now) {
            true => Ok(()),
            false => Err(DropReason::FragmentUnknown),
        }
    }

    /// Remembers a first fragment that came in by a port; pieces that came before it are added to `queued`.
    pub fn first_ports(
        self,
        vni: Option<u32>,
        l4: &L4,
        (ifindex, cause, now): (u32, u8, u64),
        queued: &mut Vec<QueuedFragment>,
    ) -> Result<(), DropReason> {
        let Some((key, piece)) = fragment(vni, l4) else { return Ok(()) };
        let ports = (l4.src_port, l4.dst_port);
        match self.nat.fragments().first(&key, piece, ports, now, &mut |frame| {
            queued.push(QueuedFragment { frame, known: (ports, l4.proto), ifindex, cause })
        }) {
            true => Ok(()),
            false => Err(DropReason::FragmentUnknown),
        }
    }
}

/// What the first fragment of a datagram tells of the others: ports, and the protocol of the upper layer.
pub(crate) type Known = ((u16, u16), u8);

fn fragment(vni: Option<u32>, l4: &L4) -> Option<(FragKey, Piece)> {
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

/// The inner key of a packet or of what it quotes.
pub(crate) fn inner_key(vni: u32, proto: u8, vm: IpAddr, remote: IpAddr, (near, far): (u16, u16)) -> Option<InnerKey> {
    match (vm, remote) {
        (IpAddr::V4(vm), IpAddr::V4(remote)) => {
            Some(InnerKey::v4(vni, proto, vm.to_bits(), near, remote.to_bits(), far))
        }
        (IpAddr::V6(vm), IpAddr::V6(remote)) => {
            Some(InnerKey::v6(vni, proto, vm.to_bits(), near, remote.to_bits(), far))
        }
        _ => None,
    }
}

/// The outer key of a packet or of what it quotes.
pub(crate) fn outer_key(proto: u8, public: IpAddr, remote: IpAddr, (near, far): (u16, u16)) -> Option<OuterKey> {
    match (public, remote) {
        (IpAddr::V4(public), IpAddr::V4(remote)) => {
            Some(OuterKey::v4(proto, public.to_bits(), near, remote.to_bits(), far))
        }
        (IpAddr::V6(public), IpAddr::V6(remote)) => {
            Some(OuterKey::v6(proto, public.to_bits(), near, remote.to_bits(), far))
        }
        _ => None,
    }
}

/// Tells the recorder of the session at hand.
#[cold]
pub(crate) fn note<R: Recorder>(w: &mut Work<'_, R>, p: &Packet, sight: SessionView<'_>, session: SessionRef) {
    let found = sight.found(session);
    let state = sight.guard.record(session).state().name();
    let (inner, outer) = (format!("{:?}", found.inner), format!("{:?}", found.outer));
    w.note(p, Stage::Nat, Event::Session { inner, outer, state, inward: p.inward });
}
