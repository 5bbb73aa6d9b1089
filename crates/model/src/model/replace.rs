// SPDX-License-Identifier: Apache-2.0
//! One whole configuration in place of another: both models are walked side by side in order.

use super::state::{RouteState, Target, VmState, VpcState};
use super::Model;
use crate::documents::Documents;
use crate::error::ConfigError;
use crate::kinds::*;
use crate::plan::{Plan, Tally};
use crate::prefix::{Mac, Prefix};
use std::cmp::Ordering;

/// Names one object of a model.
#[derive(Clone, Debug)]
pub(crate) enum Ref {
    Gateway,
    Nc(u32),
    Vpc(u32),
    Peering(Name),
    Vm(u32, Mac),
    Route(u32, Prefix),
    Named(Kind, Name),
}

/// An object that is in one of two models only, or differs between them.
#[derive(Clone, Debug)]
pub(crate) struct Difference {
    pub before: Option<Ref>,
    pub after: Option<Ref>,
}

impl Model {
    /// A model of these documents alone.
    pub fn from_documents(docs: &Documents) -> Result<(Model, Plan), Vec<ConfigError>> {
        let mut model = Model::new();
        let plan = model.apply(docs)?;
        Ok((model, plan))
    }

    /// The same for a node that its region calls so.
    pub fn of_node(own: Option<&str>, docs: &Documents) -> Result<(Model, Plan), Vec<ConfigError>> {
        let mut model = Model::new();
        model.set_own_name(own.map(Name::from));
        let plan = model.apply(docs)?;
        Ok((model, plan))
    }

    /// Makes `new` the whole configuration. What it lacks is deleted, but a model without a Gateway takes over the one that
    /// is, since a node is always some gateway; that can fail, if an NC has its address or a limit of it is passed.
    pub fn replace(&mut self, mut new: Model) -> Result<Plan, Vec<ConfigError>> {
        if new.own_name.is_none() {
            new.set_own_name(self.own_name.clone());
        }
        if let (None, Some(gateway)) = (&new.gateway, &self.gateway) {
            let errors = new.faults_under_gateway(gateway, self.water_levels());
            if !errors.is_empty() {
                return Err(errors);
            }
            new.gateway = Some(gateway.clone());
        }
        let mut tallies = count_differences(self, &new);
        for kind in Kind::ALL {
            let t = &mut tallies[kind as usize];
            t.unchanged = new.counts().of(kind) - t.added - t.changed;
        }
        new.generation = self.generation + 1;
        let old = std::mem::replace(self, new);
        Ok(Plan::of_swap(self.generation, old, tallies))
    }

    /// Takes the last change back. A plan that is not the last is handed back.
    pub fn revert(&mut self, plan: Plan) -> Option<Plan> {
        if plan.generation != self.generation {
            return Some(plan);
        }
        match plan.work {
            crate::plan::Work::Steps(log) => self.undo(log),
            crate::plan::Work::Swap(old) => *self = *old,
        }
        self.generation = plan.generation - 1;
        None
    }

    pub(crate) fn object_at(&self, at: &Ref) -> Option<Object> {
        Some(match at {
            Ref::Gateway => Object::Gateway(self.gateway.clone()?),
            Ref::Nc(id) => Object::Nc(self.nc_object(*id)),
            Ref::Vpc(id) => Object::Vpc(Box::new(self.vpc(*id).spec.clone())),
            Ref::Peering(name) => Object::Peering(self.peering_object(name, self.peerings.get(name)?)),
            Ref::Vm(vpc, mac) => Object::Vm(self.vm_object(*vpc, *mac, self.vpc(*vpc).vms.get(mac)?)),
            Ref::Named(kind, name) => self.named.get(*kind, name)?,
            Ref::Route(vpc, p) => Object::Route(self.route_object(*vpc, *p, self.vpc(*vpc).route(*p)?)),
        })
    }
}

impl Difference {
    pub fn kind(&self) -> Kind {
        match self.before.as_ref().or(self.after.as_ref()) {
            Some(Ref::Gateway) | None => Kind::Gateway,
            Some(Ref::Nc(_)) => Kind::Nc,
            Some(Ref::Vpc(_)) => Kind::Vpc,
            Some(Ref::Peering(_)) => Kind::Peering,
            Some(Ref::Vm(..)) => Kind::Vm,
            Some(Ref::Route(..)) => Kind::Route,
            Some(Ref::Named(kind, _)) => *kind,
        }
    }
}

/// Walks two ordered sequences side by side; the closure returns false to stop, and so does this.
pub fn merge<K: Ord, A, B>(
    a: impl Iterator<Item = (K, A)>,
    b: impl Iterator<Item = (K, B)>,
    mut f: impl FnMut(Option<(K, A)>, Option<(K, B)>) -> bool,
) -> bool {
    let (mut a, mut b) = (a.peekable(), b.peekable());
    loop {
        let order = match (a.peek(), b.peek()) {
            (None, None) => return true,
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(x), Some(y)) => x.0.cmp(&y.0),
        };
        let go_on = match order {
            Ordering::Less => f(a.next(), None),
            Ordering::Greater => f(None, b.next()),
            Ordering::Equal => f(a.next(), b.next()),
        };
        if !go_on {
            return false;
        }
    }
}

/// How many objects two models do not have in common. A VPC that only one of them has is counted, not walked.
fn count_differences(old: &Model, new: &Model) -> [Tally; Kind::ALL.len()] {
    let mut tallies = [Tally::default(); Kind::ALL.len()];
    let mut count = |d: Difference| {
        let tally = &mut tallies[d.kind() as usize];
        match (&d.before, &d.after) {
            (None, _) => tally.added += 1,
            (_, None) => tally.removed += 1,
            _ => tally.changed += 1,
        }
        true
    };
    structure_differences(old, new, &mut count);
    let mut whole = [(0, 0); 2];
    merge(old.vpc_names.iter(), new.vpc_names.iter(), |a, b| {
        match (a, b) {
            (Some(a), Some(b)) => {
                vpc_differences((old, Some(*a.1)), (new, Some(*b.1)), &mut count);
            }
            (a, b) => {
                for (side, id) in [(0, a.map(|a| old.vpc(*a.1))), (1, b.map(|b| new.vpc(*b.1)))] {
                    whole[side].0 += id.map_or(0, |v| v.vms.len() as u64);
                    whole[side].1 += id.map_or(0, |v| v.routes_len() as u64);
                }
            }
        }
        true
    });
    tallies[Kind::Vm as usize].removed += whole[0].0;
    tallies[Kind::Route as usize].removed += whole[0].1;
    tallies[Kind::Vm as usize].added += whole[1].0;
    tallies[Kind::Route as usize].added += whole[1].1;
    tallies
}

/// Tells `f` of every object that two models do not have in common, by kind, until it returns false.
pub(crate) fn for_each_difference(old: &Model, new: &Model, f: &mut dyn FnMut(Difference) -> bool) -> bool {
    structure_differences(old, new, f)
        && merge(old.vpc_names.iter(), new.vpc_names.iter(), |a, b| {
            vpc_differences((old, a.map(|a| *a.1)), (new, b.map(|b| *b.1)), f)
        })
}

/// The same for all kinds but VMs and routes.
fn structure_differences(old: &Model, new: &Model, f: &mut dyn FnMut(Difference) -> bool) -> bool {
    if old.gateway != new.gateway {
        let at = |m: &Model| m.gateway.is_some().then_some(Ref::Gateway);
        if !f(Difference { before: at(old), after: at(new) }) {
            return false;
        }
    }
    let ncs = merge(old.nc_names.iter(), new.nc_names.iter(), |a, b| {
        let same = matches!((&a, &b), (Some(a), Some(b)) if old.nc_object(*a.1) == new.nc_object(*b.1));
        same || f(Difference { before: a.map(|a| Ref::Nc(*a.1)), after: b.map(|b| Ref::Nc(*b.1)) })
    });
    let vpcs = ncs
        && merge(old.vpc_names.iter(), new.vpc_names.iter(), |a, b| {
            let same = matches!((&a, &b), (Some(a), Some(b)) if old.vpc(*a.1).spec == new.vpc(*b.1).spec);
            same || f(Difference { before: a.map(|a| Ref::Vpc(*a.1)), after: b.map(|b| Ref::Vpc(*b.1)) })
        });
    let peerings = vpcs
        && merge(old.peerings.iter(), new.peerings.iter(), |a, b| {
            let same = matches!((&a, &b), (Some(a), Some(b))
            if old.peering_object(a.0, a.1) == new.peering_object(b.0, b.1));
            same || f(Difference {
                before: a.map(|a| Ref::Peering(a.0.clone())),
                after: b.map(|b| Ref::Peering(b.0.clone())),
            })
        });
    peerings
        && Kind::BY_NAME.iter().copied().all(|kind| {
            let of = |m: &Model| m.objects(kind).map(|o| (o.name(), o)).collect::<Vec<_>>();
            merge(of(old).into_iter(), of(new).into_iter(), |a, b| {
                let same = matches!((&a, &b), (Some(a), Some(b)) if a.1 == b.1);
                let at = |o: Option<(Name, Object)>| o.map(|(name, _)| Ref::Named(kind, name));
                same || f(Difference { before: at(a), after: at(b) })
            })
        })
}

/// The VMs and routes that two versions of a VPC do not have in common.
fn vpc_differences(
    (old, a): (&Model, Option<u32>),
    (new, b): (&Model, Option<u32>),
    f: &mut dyn FnMut(Difference) -> bool,
) -> bool {
    fn vms(m: &Model, id: Option<u32>) -> impl Iterator<Item = (Mac, (u32, &VmState))> {
        let state = id.map(|id| (id, m.vpc(id)));
        state.into_iter().flat_map(|(id, s): (u32, &VpcState)| s.vms.iter().map(move |(mac, vm)| (*mac, (id, vm))))
    }
    fn routes(m: &Model, id: Option<u32>) -> impl Iterator<Item = (Prefix, (u32, &RouteState))> {
        let state = id.map(|id| (id, m.vpc(id)));
        state.into_iter().flat_map(|(id, s): (u32, &VpcState)| s.routes().map(move |(p, r)| (p, (id, r))))
    }
    let go_on = merge(vms(old, a), vms(new, b), |a, b| {
        let same = matches!((&a, &b), (Some(a), Some(b)) if same_vm((old, a.1 .1), (new, b.1 .1)));
        same || f(Difference {
            before: a.map(|(mac, (id, _))| Ref::Vm(id, mac)),
            after: b.map(|(mac, (id, _))| Ref::Vm(id, mac)),
        })
    });
    go_on
        && merge(routes(old, a), routes(new, b), |a, b| {
            let same = matches!((&a, &b), (Some(a), Some(b))
                if a.1 .1.name == b.1 .1.name && a.1 .1.labels == b.1 .1.labels && same_target((old, a.1 .1.target), (new, b.1 .1.target)));
            same || f(Difference {
                before: a.map(|(p, (id, _))| Ref::Route(id, p)),
                after: b.map(|(p, (id, _))| Ref::Route(id, p)),
            })
        })
}

fn same_vm((old, a): (&Model, &VmState), (new, b): (&Model, &VmState)) -> bool {
    (&a.addresses, &a.name, &a.meter, &a.shape, &a.labels) == (&b.addresses, &b.name, &b.meter, &b.shape, &b.labels)
        && old.nc(a.nc).name == new.nc(b.nc).name
}

fn same_target((old, a): (&Model, Target), (new, b): (&Model, Target)) -> bool {
    match (a, b) {
        (Target::Peer(x), Target::Peer(y)) => old.vpc(x).spec.name == new.vpc(y).spec.name,
        (a, b) => a == b,
    }
}
