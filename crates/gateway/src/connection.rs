// SPDX-License-Identifier: Apache-2.0
//! Connections inside whose states a table tells (crate `conntrack-compact`): data packets are judged by it alone, control packets by its agent,
//! which asks the rules when a connection begins. The fast path reads the same table (`bpf/connection/states.h`).

use abi::{DropReason, Stage, Vni, POLICY_PICKUP, STATES_NONE};
use conntrack::{Direction, PairKey};
use conntrack_compact::message::Begin;
use conntrack_compact::{Answer, Control, Fsm, Key, Kind, Outcome, Refusal, Remote, Shared};
use filter::Side;
use wire::protocol;

use crate::connections::SessionView;
use crate::frame::Verdict;
use crate::handover;
use crate::l4::{Icmp, L4};
use crate::packet::{Packet, Resumed};
use crate::pair::{alone, evaluate, first_service, note, service_of, Pair, Permit, RuleQuery};
use crate::record::{Event, Recorder};
use crate::work::Work;

/// What a packet is to the agent.
fn kind_of(l4: &L4, packet: &[u8]) -> Kind {
    match l4.proto {
        protocol::TCP => Kind::of_tcp(packet.get(l4.at + 13).copied().unwrap_or(0)),
        _ => Kind::Plain,
    }
}

/// Who began a connection with whom, for which service.
fn first_of(key: &Key, began: Direction) -> RuleQuery {
    let ([low, high], [low_port, high_port]) = (key.ends(), key.ports());
    let low = Side { vni: Some(key.vni()), addr: low };
    // Beyond a wire there is no VPC; rules take it for one of the server's.
    let other = if key.other_vni() == Vni(0) { key.vni() } else { key.other_vni() };
    let high = Side { vni: Some(other), addr: high };
    let (from, to, port, at) = match began {
        Direction::Out => (low, high, low_port, high_port),
        Direction::In => (high, low, high_port, low_port),
    };
    RuleQuery { from, to, port, service: service_of(key.proto(), at, 0) }
}

/// Whether rules still allow a connection and want it remembered: what the sweep asks.
pub(crate) fn stands(rules: &filter::Filter, key: &Key, began: Direction) -> bool {
    let first = first_of(key, began);
    let verdict = rules.judge(first.from, first.to, first.service);
    verdict.deny.is_none() && !verdict.stateless()
}

/// A packet that has no connection and begins none: rules without state may let it go on.
fn by_itself<R: Recorder>(
    w: &mut Work<'_, R>,
    sight: SessionView<'_>,
    p: &Packet,
    pair: &Pair<'_>,
    ports: (u16, u16),
    why: DropReason,
) -> Result<(), DropReason> {
    let service = alone(sight, pair, ports).ok_or(why)?;
    evaluate(w, sight, p, pair.query(service, ports.0), true).map(|_| ())
}

/// Whether a packet of a connection may go on. `direction`: from the lower end of its key, or to it.
pub(crate) fn judge<R: Recorder>(
    w: &mut Work<'_, R>,
    sight: SessionView<'_>,
    p: &Packet,
    pair: &Pair<'_>,
    table: &Shared,
    (found, direction): (&PairKey, Direction),
    ports: (u16, u16),
) -> Result<(), Verdict> {
    let (l4, key) = (&pair.l4, Key::from(found));
    if l4.later() {
        // It has no flags: it may go where its connection is.
        return match table.knows(&key) {
            true => Ok(()),
            false if handover::wanted(sight, p, false) => {
                Ok(by_itself(w, sight, p, pair, ports, DropReason::HandoverFailed)?)
            }
            false => Ok(by_itself(w, sight, p, pair, ports, DropReason::FragmentUnknown)?),
        };
    }
    let kind = kind_of(l4, pair.packet);
    let packet = Control { key, kind, from: direction };
    if let Resumed::Answered(of, answer) = p.resumed {
        return Ok(answered(w, sight, p, pair, table, (found, &packet), ports, (of, answer))?);
    }
    let (state, verdict) = table.judge(&key, kind, pair.packet.len() as u32);
    if R::ON && table.away(&key) {
        let prefix = table.migrated_by(&key).map_or_else(String::new, |e| e.to_string());
        w.note(p, Stage::Filter, Event::Migrated { vni: key.vni(), prefix });
    }
    let pick_up = pair.policy & POLICY_PICKUP != 0;
    if state == STATES_NONE && !table.knows(&key) && handover::wanted(sight, p, kind == Kind::Syn) {
        // What rules without state let go on needs no connection.
        return match alone(sight, pair, ports) {
            Some(service) => Ok(evaluate(w, sight, p, pair.query(service, ports.0), true).map(|_| ())?),
            None => Err(DropReason::HandoverFailed.into()),
        };
    }
    match verdict {
        conntrack_compact::Verdict::Accept => {
            if R::ON {
                tell(w, sight, p, table, &key, false);
            }
            return Ok(());
        }
        conntrack_compact::Verdict::Drop if state == STATES_NONE && kind == Kind::Ack && pick_up => {}
        conntrack_compact::Verdict::Drop if state == STATES_NONE => {
            return Ok(by_itself(w, sight, p, pair, ports, DropReason::SessionStray)?)
        }
        conntrack_compact::Verdict::Drop => return Err(DropReason::SessionInvalid.into()),
        conntrack_compact::Verdict::Agent => {}
    }
    // An answer begins nothing.
    if l4.icmp == Icmp::Reply && !table.knows(&key) {
        return Ok(by_itself(w, sight, p, pair, ports, DropReason::SessionStray)?);
    }
    if let Some(remote) = table.remote() {
        return send_on(w, sight, p, pair, remote, (&packet, state), ports);
    }
    let (now, mut evaluated) = (w.now, None);
    let mut admit = |_: &Control| {
        let said = evaluate(w, sight, p, pair.query(first_service(pair, ports), ports.0), true);
        evaluated = Some(said);
        said == Ok(Permit::Stateful)
    };
    let outcome = table.control(&packet, pick_up, now, &mut admit);
    apply_outcome(w, sight, p, pair, (found, direction), ports, (outcome, evaluated))?;
    if R::ON {
        tell(w, sight, p, table, &key, evaluated.is_some());
    }
    Ok(())
}

/// What the agent's outcome means; `evaluated`: what the rules said if it asked them.
fn apply_outcome<R: Recorder>(
    w: &mut Work<'_, R>,
    sight: SessionView<'_>,
    p: &Packet,
    pair: &Pair<'_>,
    (found, direction): (&PairKey, Direction),
    ports: (u16, u16),
    (outcome, evaluated): (Outcome, Option<Result<Permit, DropReason>>),
) -> Result<(), DropReason> {
    match outcome {
        Outcome::Pass if evaluated.is_some() => begun(w, sight, pair, found, direction),
        Outcome::Pass => {}
        // Allowed without state: it leaves nothing behind.
        Outcome::Refuse(Refusal::Denied) => {
            return evaluated.map_or(Err(DropReason::FilterIngress), |said| said.map(|_| ()))
        }
        Outcome::Refuse(Refusal::Unknown) => return by_itself(w, sight, p, pair, ports, DropReason::SessionStray),
        Outcome::Refuse(Refusal::Invalid) => return Err(DropReason::SessionInvalid),
        Outcome::Refuse(Refusal::Full) => return Err(DropReason::SessionTableFull),
        Outcome::Refuse(Refusal::Opening) => return Err(DropReason::SessionQuotaHalfOpen),
        Outcome::Refuse(Refusal::Gone) => return Err(DropReason::FilterAgentGone),
        Outcome::Refuse(Refusal::Busy) => return Err(DropReason::FilterAgentBusy),
    }
    Ok(())
}

/// The agent is on another host: the packet is kept until it has answered. Rules are asked here and now; what they refuse and no table knows
/// does not trouble the agent. `state`: as the table has it.
fn send_on<R: Recorder>(
    w: &mut Work<'_, R>,
    sight: SessionView<'_>,
    p: &Packet,
    pair: &Pair<'_>,
    remote: &Remote,
    (packet, state): (&Control, u8),
    ports: (u16, u16),
) -> Result<(), Verdict> {
    let pick_up = pair.policy & POLICY_PICKUP != 0;
    let begins = match packet.kind {
        Kind::Syn => true,
        Kind::Plain => pair.l4.icmp != Icmp::Reply,
        Kind::Ack => pick_up,
        _ => false,
    };
    let query = pair.query(first_service(pair, ports), ports.0);
    let allowed = begins && {
        let verdict = sight.filter.judge(query.from, query.to, query.service);
        verdict.deny.is_none() && !verdict.stateless()
    };
    if state == STATES_NONE && !allowed {
        return match begins {
            true => Ok(evaluate(w, sight, p, query, true).map(|_| ())?),
            false => Ok(by_itself(w, sight, p, pair, ports, DropReason::SessionStray)?),
        };
    }
    let begin = match (begins, allowed) {
        (false, _) => Begin::Never,
        (true, false) => Begin::Denied,
        (true, true) => Begin::Allowed,
    };
    let completions = w.completions.ok_or(DropReason::FilterAgentGone)?;
    match remote.request(completions, packet, begin, pick_up) {
        Ok(ticket) => {
            w.keep((ticket, packet.key), pair.frame);
            Err(Verdict::Wait)
        }
        Err(Refusal::Busy) => Err(DropReason::FilterAgentBusy.into()),
        Err(_) => Err(DropReason::FilterAgentGone.into()),
    }
}

/// A packet that has waited, and the agent's answer.
#[allow(clippy::too_many_arguments)]
fn answered<R: Recorder>(
    w: &mut Work<'_, R>,
    sight: SessionView<'_>,
    p: &Packet,
    pair: &Pair<'_>,
    states: &Shared,
    (found, packet): (&PairKey, &Control),
    ports: (u16, u16),
    (of, answer): (Key, Answer),
) -> Result<(), DropReason> {
    if of != packet.key {
        // The configuration has changed meanwhile: it is a packet of another connection now, about which nobody was asked.
        return Err(DropReason::FilterAgentGone);
    }
    let evaluated =
        answer.evaluated.then(|| evaluate(w, sight, p, pair.query(first_service(pair, ports), ports.0), true));
    if let (Outcome::Pass, Some(said)) = (answer.outcome, evaluated.filter(|said| *said != Ok(Permit::Stateful))) {
        // Other rules meanwhile.
        states.revoke(&packet.key);
        return said.map(|_| ());
    }
    apply_outcome(w, sight, p, pair, (found, packet.from), ports, (answer.outcome, evaluated))
}

/// The log hears of a connection that begins.
fn begun<R: Recorder>(w: &Work<'_, R>, sight: SessionView<'_>, pair: &Pair<'_>, key: &PairKey, direction: Direction) {
    let new = pair.session(key, direction);
    sight.tell_begin(&new, w.now);
}

/// Tells the recorder of the connection, and which rules it began by.
#[cold]
fn tell<R: Recorder>(w: &mut Work<'_, R>, sight: SessionView<'_>, p: &Packet, states: &Shared, key: &Key, begun: bool) {
    let Some(c) = states.get(key) else {
        // It hashes to where another connection's state is.
        w.note(
            p,
            Stage::Filter,
            Event::Pair { key: format!("{key:?}"), state: "unknown, accepted by its hash", begun },
        );
        return;
    };
    w.note(
        p,
        Stage::Filter,
        Event::Pair { key: format!("{key:?}"), state: c.tcp.map_or("datagrams", Fsm::name), begun },
    );
    if !begun {
        let first = first_of(key, c.began);
        let verdict = sight.filter.judge(first.from, first.to, first.service);
        note(w, p, &verdict);
    }
}
