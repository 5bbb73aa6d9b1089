// SPDX-License-Identifier: Apache-2.0
//! Sessions and translation of an engine under test, told of each change of its region as the node would tell them.

use crate::region::Region;
use gateway::Nat;
use session::nat::Translator;
use session::{Options, SessionMemory, Tracker};
use std::sync::Arc;

/// Sessions that an engine of cases has room for, if the region does not say.
const SESSIONS: u32 = 1 << 12;

/// Sessions on this memory, whose content is forgotten, for this region.
pub fn start(memory: Arc<dyn SessionMemory>, region: &Region, now: u64) -> Result<Arc<Nat>, String> {
    let sessions = match region.internet.sessions {
        0 => SESSIONS,
        n => n,
    };
    let options = Options { sessions, initial: sessions.min(1 << 10), salt: 0x5eed, ..Options::default() };
    let tracker = Tracker::new(memory, options, now).map_err(|e| e.to_string())?;
    let nat = Nat::new(Arc::new(tracker), Arc::new(Translator::new(0x5eed)), Default::default(), None);
    change(&nat, None, region);
    Ok(Arc::new(nat))
}

/// Brings translator and limits up to date; the tables are the loader's.
pub fn change(nat: &Nat, before: Option<&Region>, region: &Region) {
    if before.map(|b| b.internet.spec()) != Some(region.internet.spec()) {
        nat.translator().configure(&region.internet.spec());
    }
    if before.is_none_or(|b| b.groups != region.groups) {
        let filter = filter::Filter::new(&region.groups.specs(), &region.groups.vpcs(), &nat.rules());
        nat.set_filter(Arc::new(filter));
    }
    for v in &region.vpcs {
        nat.tracker().set_limits(v.vni, region.internet.limits(v.vni));
    }
}

/// Ends everything that is due.
pub fn tick(nat: &Nat, now: u64) {
    while nat.expire(now, 1 << 16).more {}
}
