// SPDX-License-Identifier: Apache-2.0
//! Step 1 of a commit: everything is checked and resolved into ids, lines and entries; no table changes.
//!
//! What a plan takes (ids of VMs, NCs and VPCs) is given back if it is refused.

use super::plan_routes::{Known, WholeSet};
use super::state::{TenantState, Vm};
use super::{nc_key, Writer};
use crate::fxmap::{FxMap, FxSet};
use crate::reader::VmEntry;
use crate::routes::{Routes4, Routes6};
use crate::smallmap::SmallMap;
use crate::{Commit, CommitError, RoutesChange, TenantChange};
use abi::*;
use memory::prefetch_slice;
use std::net::IpAddr;
use std::ops::Range;

/// What happens to a VPC's routes.
pub(super) enum RoutesPlan {
    Keep,
    /// The whole set.
    Whole(Routes4, Routes6),
    /// Prefixes and their new values (None = removed), sorted, each once.
    Delta(Vec<((u32, u8), Option<u32>)>, Vec<((u128, u8), Option<u32>)>),
}

/// A VM that comes or changes.
pub(super) struct VmSet {
    pub mac: u64,
    pub vm: Vm,
    pub is_new: bool,
    /// A new meter; `vm.meter` is the line of a kept one.
    pub meter: Option<Box<[u64; 8]>>,
}

/// What happens to one VPC.
pub(super) struct TenantPlan<'c> {
    pub change: &'c TenantChange,
    pub id: VpcId,
    pub is_new: bool,
    pub routes: RoutesPlan,
    /// New counts of routes by peer, if routes change.
    pub peers: Option<SmallMap<Vni, u32>>,
    pub set: Vec<VmSet>,
    /// All VMs of a new VPC, if none has a meter: nothing else is to be done for them.
    pub vms: SmallMap<u64, Vm>,
    pub gone: Vec<u64>,
    /// VMs by NC id, of a new VPC.
    pub members: Vec<(NcId, u32)>,
    /// New extra NC ids.
    pub extra: Option<Vec<NcId>>,
    /// Its entries in the plan's lists.
    pub adds4: Range<usize>,
    pub adds6: Range<usize>,
    pub kills: Range<usize>,
    /// The generation switches.
    pub marks: bool,
}

impl TenantPlan<'_> {
    /// Its entries are written before anybody sees them: it is new, or the generation switches.
    pub(super) fn hides_entries(&self) -> bool {
        self.is_new || self.marks
    }
}

/// An IPv6 entry to add.
pub(super) struct Add6 {
    pub vni: Vni,
    pub addr: u128,
    pub state: u64,
    pub value: VmEntry,
}

/// Who comes and goes with a commit.
#[derive(Default)]
pub(super) struct Names {
    pub deletes: FxSet<Vni>,
    pub new_ids: FxMap<Vni, VpcId>,
    /// Ids of new VPCs by position in the commit, 0 for VPCs that exist.
    pub ids: Vec<VpcId>,
}

#[derive(Default)]
pub(super) struct Plan<'c> {
    pub tenants: Vec<TenantPlan<'c>>,
    pub names: Names,
    /// New NCs by key: their ids.
    pub nc_new: FxMap<u128, NcId>,
    pub nc_gone: Vec<IpAddr>,
    /// Change of the number of VPCs by NC id.
    pub nc_refs: Vec<i32>,
    /// IPv4 entries to add: key with state, value.
    pub adds4: Vec<(u64, VmEntry)>,
    pub adds6: Vec<Add6>,
    /// Entries to remove, and whether the generation decides when.
    pub kills: Vec<(Vni, IpAddr)>,
    pub member_adds: Vec<u64>,
    pub member_removes: Vec<u64>,
    pub meters_new: u64,
    /// Change of the number of VPCs whose routes lead to a VPC.
    pub peer_refs: FxMap<Vni, i64>,
    pub routes: i64,
    pub vms: i64,
    /// Lines of tree nodes at most.
    pub tree_lines: u64,
    pub moves: Vec<(NcId, i32)>,
    pub sets: Vec<VmSet>,
    /// Ids of IPv4 NCs that were looked up already: small enough for a cache.
    pub nc4: FxMap<u32, NcId>,
    pub keys: Vec<u64>,
}

/// Routes from which on a second thread makes sets of routes while the first one plans VMs.
const BULK_ROUTES: usize = 20_000;
/// Changes of VPCs that it hands over at a time, and hands over before it waits.
const BULK_CHUNK: usize = 256;
const BULK_AHEAD: usize = 16;

impl Writer {
    /// Checks a commit and resolves it.
    pub(super) fn plan<'c>(&mut self, commit: &'c Commit) -> Result<Plan<'c>, CommitError> {
        let mut plan = Plan::default();
        self.begin_ids();
        match self.plan_all(commit, &mut plan) {
            Ok(()) => Ok(plan),
            Err(e) => {
                self.take_back_ids();
                Err(e)
            }
        }
    }

    fn plan_all<'c>(&mut self, commit: &'c Commit, plan: &mut Plan<'c>) -> Result<(), CommitError> {
        for nc in &commit.nc_add {
            if !self.ncs.contains_key(&nc_key(*nc)) && !plan.nc_new.contains_key(&nc_key(*nc)) {
                let id = self.nc_ids.take();
                plan.nc_new.insert(nc_key(*nc), NcId(id));
                self.set_nc_addr(NcId(id), *nc);
            }
        }
        let ncs = self.ncs.len() + plan.nc_new.len();
        limit("the number of NCs", ncs as u64, u64::from(self.options.limits.ncs))?;
        self.plan_tenant_names(commit, plan)?;
        plan.tenants.reserve(commit.tenants.len());
        let vms: usize = commit.tenants.iter().map(|t| t.vm_add.len()).sum();
        plan.adds4.reserve(vms);
        self.vm_ids.expect(self.vms + vms as u64);
        // Both are lent to a second thread, so they are taken out meanwhile and go back whatever happens.
        let (tenants, names) = (std::mem::take(&mut self.tenants), std::mem::take(&mut plan.names));
        let done = self.plan_changes(commit, Known { tenants: &tenants, names: &names }, plan);
        (self.tenants, plan.names) = (tenants, names);
        done?;
        self.plan_deletes(plan)?;
        for nc in &commit.nc_remove {
            let Some(state) = self.ncs.get(&nc_key(*nc)) else {
                return Err(CommitError::NoSuchNc { nc: *nc });
            };
            if i64::from(state.tenants) + i64::from(plan.nc_refs.get(state.id.0 as usize).copied().unwrap_or(0)) != 0 {
                return Err(CommitError::NcInUse { nc: *nc, vni: self.user_of_nc(state.id, commit) });
            }
            plan.nc_gone.push(*nc);
        }
        self.plan_limits(plan)
    }

    /// Plans all VPCs that stay. A large commit has its sets of routes checked and sorted by a second thread.
    fn plan_changes<'c>(
        &mut self,
        commit: &'c Commit,
        known: Known<'_>,
        plan: &mut Plan<'c>,
    ) -> Result<(), CommitError> {
        let sets = move |changes: &'c [TenantChange]| changes.iter().filter_map(move |t| known.whole_set(t));
        if commit.tenants.iter().map(|t| t.routes.len()).sum::<usize>() < BULK_ROUTES {
            return self.plan_each(commit, known, &mut sets(&commit.tenants), plan);
        }
        std::thread::scope(|scope| {
            let (send, receive) = std::sync::mpsc::sync_channel::<Vec<_>>(BULK_AHEAD);
            let work = move || {
                // Nobody listens any more once the commit is refused.
                commit.tenants.chunks(BULK_CHUNK).all(|chunk| send.send(sets(chunk).collect()).is_ok())
            };
            // Without a second thread nothing arrives, and `plan_each` makes the sets itself.
            let _ = std::thread::Builder::new().name("routes".into()).spawn_scoped(scope, work);
            self.plan_each(commit, known, &mut receive.into_iter().flatten(), plan)
        })
    }

    /// Plans VPC by VPC; `sets` has the next VPC's whole set of routes, if it gets one.
    fn plan_each<'c>(
        &mut self,
        commit: &'c Commit,
        known: Known<'_>,
        sets: &mut dyn Iterator<Item = Result<WholeSet, CommitError>>,
        plan: &mut Plan<'c>,
    ) -> Result<(), CommitError> {
        const AHEAD: usize = 3;
        for (i, change) in commit.tenants.iter().enumerate().filter(|(_, t)| !t.delete) {
            if let Some(next) = commit.tenants.get(i + AHEAD) {
                prefetch_slice(&next.vm_add);
            }
            let routes = match &change.routes {
                RoutesChange::Replace(_) => sets.next().or_else(|| known.whole_set(change)).transpose()?,
                _ => None,
            };
            self.plan_tenant(change, known.names.ids[i], (known, routes), plan)?;
        }
        Ok(())
    }

    /// Who is created, changed, deleted; lines for the new ones.
    fn plan_tenant_names<'c>(&mut self, commit: &'c Commit, plan: &mut Plan<'c>) -> Result<(), CommitError> {
        let (mut new, mut sorted) = (0u64, true);
        let mut last = None;
        plan.names.ids.reserve(commit.tenants.len());
        for t in &commit.tenants {
            // u32::MAX stands for "to be made" until all are counted.
            let creates = !t.delete && !self.tenants.contains_key(&t.vni);
            plan.names.ids.push(VpcId(if creates { u32::MAX } else { 0 }));
            new += u64::from(creates);
            sorted &= last.is_none_or(|l| l < t.vni);
            last = Some(t.vni);
        }
        plan.names.new_ids.reserve(new as usize);
        self.vpc_ids.expect(self.tenants.len() as u64 + new);
        let mut seen: FxSet<Vni> = FxSet::default();
        for (i, t) in commit.tenants.iter().enumerate() {
            let vni = t.vni;
            if vni.0 >> 24 != 0 {
                return Err(CommitError::BadVni { vni });
            }
            if !sorted && !seen.insert(vni) {
                return Err(CommitError::TenantTwice { vni });
            }
            if plan.names.ids[i] != VpcId(0) {
                if t.settings.is_none() {
                    return Err(CommitError::UnknownTenant { vni });
                }
                // After a crash a route may still lead to a VPC that is gone: it must not lead into another one.
                if self.peer_refs.contains_key(&vni) {
                    return Err(CommitError::PeerInUse { vni, by: self.leading_to(vni).unwrap_or(vni) });
                }
                let id = VpcId(self.vpc_ids.take(hash1(u64::from(vni) << TENANT_VNI_SHIFT, self.store.salt)));
                plan.names.new_ids.insert(vni, id);
                plan.names.ids[i] = id;
            } else if t.delete {
                if !self.tenants.contains_key(&vni) {
                    return Err(CommitError::UnknownTenant { vni });
                }
                let changed = t.settings.is_some() || t.routes != RoutesChange::Keep || t.vm_replace;
                if changed || !t.vm_add.is_empty() || !t.vm_remove.is_empty() {
                    return Err(CommitError::DeletedAndChanged { vni });
                }
                plan.names.deletes.insert(vni);
            }
        }
        Ok(())
    }

    fn plan_limits(&self, plan: &Plan<'_>) -> Result<(), CommitError> {
        let l = &self.options.limits;
        let tenants = (self.tenants.len() + plan.names.new_ids.len() - plan.names.deletes.len()) as u64;
        limit("the number of VPCs", tenants, u64::from(l.tenants))?;
        limit("the number of routes", self.routes.saturating_add_signed(plan.routes), l.routes)?;
        limit("the number of VMs", self.vms.saturating_add_signed(plan.vms), u64::from(l.vms))?;
        limit("the number of VM ids", u64::from(self.vm_ids.bound()), u64::from(VMS_MAX))?;
        limit("the number of VPC ids", u64::from(self.vpc_ids.bound()), u64::from(TENANTS_MAX))?;
        let addresses = self.tables.vm4.entries() + self.tables.vm6.entries();
        let addresses = addresses + (plan.adds4.len() + plan.adds6.len()) as u64;
        limit("the number of addresses", addresses - plan.kills.len().min(addresses as usize) as u64, l.addresses)
    }

    pub(super) fn user_of_nc(&self, id: NcId, commit: &Commit) -> Vni {
        let named = |vni: &Vni| commit.tenants.iter().any(|t| t.vni == *vni);
        let users = || self.tenants.iter().filter(|(_, t)| t.may_send(id)).map(|(vni, _)| *vni);
        users()
            .find(|v| !named(v))
            .or_else(|| users().next())
            .or(commit.tenants.first().map(|t| t.vni))
            .unwrap_or(Vni(0))
    }

    fn plan_deletes(&mut self, plan: &mut Plan<'_>) -> Result<(), CommitError> {
        for vni in &plan.names.deletes {
            let t = &self.tenants[vni];
            t.peers.keys().for_each(|peer| *plan.peer_refs.entry(*peer).or_default() -= 1);
            plan.routes -= t.routes_len() as i64;
            plan.vms -= t.vms.len() as i64;
            let ncs = t.members.iter().map(|m| m.0).chain(t.extra.iter().copied());
            let mut ncs: Vec<NcId> = ncs.collect();
            ncs.sort_unstable();
            ncs.dedup();
            for nc in ncs {
                count_nc(&mut plan.nc_refs, nc, -1);
                plan.member_removes.push(self.member_word(*vni, nc));
            }
        }
        for vni in &plan.names.deletes {
            let refs = i64::from(self.peer_refs.get(vni).copied().unwrap_or(0));
            if refs + plan.peer_refs.get(vni).copied().unwrap_or(0) != 0 {
                let leads = |t: &TenantState| t.peers.contains_key(vni);
                let old =
                    self.tenants.iter().find(|(v, t)| !plan.names.deletes.contains(v) && leads(t)).map(|(v, _)| *v);
                let new = plan.tenants.iter().find(|t| t.peers.as_ref().is_some_and(|p| p.contains_key(vni)));
                let by = new.map(|t| t.change.vni).or(old).unwrap_or(*vni);
                return Err(CommitError::PeerInUse { vni: *vni, by });
            }
        }
        Ok(())
    }

    /// A VPC whose routes lead to this one.
    pub(super) fn leading_to(&self, vni: Vni) -> Option<Vni> {
        self.tenants.iter().find(|(_, t)| t.peers.contains_key(&vni)).map(|(v, _)| *v)
    }

    /// Plans one VPC; `new_id` is its id if it is new, else 0.
    fn plan_tenant<'c>(
        &mut self,
        change: &'c TenantChange,
        new_id: VpcId,
        (known, routes): (Known<'_>, Option<WholeSet>),
        plan: &mut Plan<'c>,
    ) -> Result<(), CommitError> {
        let is_new = new_id != VpcId(0);
        let blank;
        let state = match known.tenants.get(&change.vni).filter(|_| !is_new) {
            Some(state) => state,
            None => {
                blank = TenantState { routes_known: true, id: new_id, ..TenantState::default() };
                &blank
            }
        };
        let mut t = TenantPlan {
            change,
            id: state.id,
            is_new,
            routes: RoutesPlan::Keep,
            peers: None,
            set: Vec::new(),
            vms: SmallMap::default(),
            gone: Vec::new(),
            members: Vec::new(),
            extra: None,
            adds4: plan.adds4.len()..0,
            adds6: plan.adds6.len()..0,
            kills: plan.kills.len()..0,
            marks: false,
        };
        self.plan_routes(state, &mut t, (known, routes), plan)?;
        self.plan_vms(state, &mut t, plan)?;
        plan.tenants.push(t);
        Ok(())
    }

    pub(super) fn nc_id(&self, nc: IpAddr, plan: &Plan<'_>) -> Option<NcId> {
        let key = nc_key(nc);
        self.ncs.get(&key).map(|n| n.id).or_else(|| plan.nc_new.get(&key).copied())
    }

    /// The word of `members` for a VPC and an NC id.
    pub(super) fn member_word(&self, vni: Vni, nc: NcId) -> u64 {
        match self.nc_addr(nc) {
            IpAddr::V4(a) => crate::reader::member4_key(vni, a.to_bits()),
            IpAddr::V6(_) => crate::reader::member6_key(vni, nc),
        }
    }
}

/// The generation after the one in a roots word.
pub(super) fn next_generation(roots: u64) -> u64 {
    u64::from(crate::reader::generation_of(roots).wrapping_add(1) & 3)
}

pub(super) fn count_nc(refs: &mut Vec<i32>, nc: NcId, by: i32) {
    if refs.len() <= nc.0 as usize {
        refs.resize(nc.0 as usize + 1, 0);
    }
    refs[nc.0 as usize] += by;
}

pub(super) fn limit(what: &'static str, wanted: u64, limit: u64) -> Result<(), CommitError> {
    if wanted > limit {
        return Err(CommitError::Limit { what, wanted, limit });
    }
    Ok(())
}
