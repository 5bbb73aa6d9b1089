// SPDX-License-Identifier: Apache-2.0
//! Sessions, translation and state table of an engine under test, told of each change of its region as the node would tell them.

use crate::elsewhere::Elsewhere;
use crate::internet::Handing;
use crate::region::Region;
use abi::Vni;
use conntrack::nat::Translator;
use conntrack::{Options, SessionMemory, Tracker};
use conntrack_compact::{Backing, Shared, Timeouts};
use gateway::{Connections, Handover, Role};
use std::sync::Arc;
use tables::Tables;

/// Sessions that an engine of cases has room for, if the region does not say.
const SESSIONS: u32 = 1 << 12;
/// Salt of all hashes: cases come out the same each time.
const SALT: u64 = 0x5eed;
/// More places than any state table of cases has.
const ALL: u64 = 1 << 32;

/// Where an engine keeps what outlives a packet.
pub struct Memories {
    /// Of its sessions.
    pub sessions: Arc<dyn SessionMemory>,
    /// Of its state table.
    pub states: Arc<dyn Backing>,
}

/// Sessions and states on these memories, whose content is forgotten, for this region.
pub fn start(memories: &Memories, region: &Region, now: u64) -> Result<Arc<Connections>, String> {
    let sessions = match region.internet.sessions {
        0 => SESSIONS,
        n => n,
    };
    let options = Options { sessions, initial: sessions.min(1 << 10), salt: SALT, ..Options::default() };
    let tracker = Tracker::new(memories.sessions.clone(), options, now).map_err(|e| e.to_string())?;
    let nat = Connections::new(Arc::new(tracker), Arc::new(Translator::new(SALT)), Default::default(), None);
    for slot in 0..abi::STATES_SLOT_COUNT {
        memories.states.clear(slot).map_err(|e| e.to_string())?;
    }
    change(&nat, &*memories.states, None, region)?;
    Ok(Arc::new(nat))
}

/// Brings translator, limits and state table up to date; the tables are the loader's.
pub fn change(nat: &Connections, states: &dyn Backing, before: Option<&Region>, region: &Region) -> Result<(), String> {
    if before.map(|b| b.internet.spec()) != Some(region.internet.spec()) {
        nat.nat().translator().configure(&region.internet.spec());
    }
    if before.is_none_or(|b| b.groups != region.groups) {
        let compiled: Vec<_> =
            region.groups.specs().into_iter().map(|spec| Arc::new(filter::Ruleset::new(spec))).collect();
        let filter = filter::Filter::new(&compiled, &region.groups.vpcs(), &nat.rules());
        nat.set_filter(Arc::new(filter));
    }
    nat.nat().set_tunnel_ends(Arc::new(region.ncs.iter().map(|nc| nc.addr).collect()));
    let handover = |h: &Handing| {
        let to = h.to.iter().filter_map(|name| region.ncs.iter().find(|nc| nc.name == *name)).map(|nc| nc.addr);
        let role = if h.old { Role::Old } else { Role::New };
        (Vni(h.vni), Handover::new(role, &to.collect::<Vec<_>>()))
    };
    nat.set_handovers(region.internet.handovers.iter().map(handover).collect());
    nat.set_mirrors(region.mirror_specs().into_iter().collect());
    nat.set_leases(gateway::Leases::new(region.leases()));
    for v in &region.vpcs {
        nat.tracker().set_limits(Vni(v.vni), region.internet.limits(v.vni));
    }
    if before.is_none_or(|b| b.groups.states != region.groups.states) {
        set_states(nat, states, region)?;
    }
    Ok(())
}

fn set_states(nat: &Connections, backing: &dyn Backing, region: &Region) -> Result<(), String> {
    nat.set_states(|_| {
        let Some(spec) = region.groups.states else {
            let slots = [abi::STATES_SLOT_TABLE, abi::STATES_SLOT_MIGRATE];
            return slots
                .into_iter()
                .try_for_each(|slot| backing.clear(slot))
                .map(|()| None)
                .map_err(|e| e.to_string());
        };
        let (shared, found) = Shared::open(backing, spec, SALT, Timeouts::default()).map_err(|e| e.to_string())?;
        match found.lost {
            0 => Ok(Some(Arc::new(shared))),
            lost => Err(format!("{lost} connections found no room in the state table")),
        }
    })
}

/// Puts the agent of this region's state table on another host; without a table: nowhere. For engines whose memories are their own.
pub fn put_elsewhere(
    nat: &Connections,
    backing: &Arc<dyn Backing>,
    region: &Region,
    now: u64,
) -> Result<Option<Elsewhere>, String> {
    let Some(spec) = region.groups.states else { return Ok(None) };
    nat.set_states(|_| {
        Shared::open_remote(backing, ("case", spec), SALT, Timeouts::default(), Vec::new()).map(|s| Some(Arc::new(s)))
    })
    .map_err(|e: conntrack_compact::OpenError| e.to_string())?;
    let remote = nat.states().as_ref().and_then(|s| s.remote().cloned());
    Ok(remote.map(|remote| Elsewhere::start(remote, now)))
}

/// After a change of rules, and once the tables say it too: connections whose states a table has are judged again.
pub fn sweep(nat: &Connections, tables: &Tables) {
    let mut at = Some(0);
    while let Some(from) = at {
        at = nat.sweep_states(tables, from, 1000);
    }
    // An agent on another host answers in order: what it was told to end has ended when it answers this.
    if let Some(remote) = nat.states().as_ref().and_then(|states| states.remote().cloned()) {
        remote.list(0);
    }
}

/// Ends everything that is due.
pub fn tick(nat: &Connections, now: u64) {
    while nat.expire(now, 1 << 16).more {}
    if let Some(states) = &*nat.states() {
        states.expire(now, ALL);
        // Nothing runs beside a case.
        states.rest(&mut || ());
    }
}

/// Lets connections migrate. `now` is the case's time, whatever clock an engine has, so that all do so at the same packet.
pub fn migrate(nat: &Connections, now: u64) {
    if let Some(states) = &*nat.states() {
        while states.migrate(now, ALL, &mut || ()) {}
    }
}
