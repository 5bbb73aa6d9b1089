// SPDX-License-Identifier: Apache-2.0
//! Listings in pages: a million objects are told in pieces of a thousand, and changes come between the pieces.
//!
//! A listing tells the configuration **as it was when the listing began**, whatever changes meanwhile, so that what it wrote can be
//! applied again. It holds no copy: a [`Snapshot`] is told of each change, under the lock that the change holds, and keeps what the
//! change took away or altered of the objects that it has not told yet. It costs a change nothing while nobody lists, and
//! a listing what changes during it, [`KEPT_MAX`] objects at most. A whole configuration that is replaced is kept as it is
//! until the listings that began before have ended.

use super::{Model, Undo};
use crate::kinds::*;
use crate::plan::{Plan, Work};
use crate::prefix::{parse_mac, parse_prefix, Mac, Prefix};
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Bound;
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Objects that a listing keeps because they changed while it ran, at most.
pub const KEPT_MAX: usize = 1 << 20;

/// Objects of a VPC that are looked at for one page at most, those that are not wanted included.
const LOOKED_AT_MAX: usize = 16_384;

/// Where an object stands among those of its kind.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum At {
    Begin,
    Name(Name),
    Vm(Name, Mac),
    Route(Name, Prefix),
}

/// Where a listing stands: behind an object. As text it is what `continue` carries.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    kind: Kind,
    at: At,
}

impl Position {
    /// The kind of the object.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    fn begin(kind: Kind) -> Position {
        Position { kind, at: At::Begin }
    }

    fn of(object: &Object) -> Position {
        let at = match object {
            // There is one at most.
            Object::Gateway(_) => At::Name("".into()),
            Object::Vm(o) => At::Vm(o.vpc.clone(), o.mac),
            Object::Route(o) => At::Route(o.vpc.clone(), o.prefix),
            other => At::Name(other.name()),
        };
        Position { kind: object.kind(), at }
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = self.kind.name().to_lowercase();
        match &self.at {
            At::Begin => write!(f, "{kind}"),
            At::Name(name) => write!(f, "{kind}/{name}"),
            At::Vm(vpc, mac) => write!(f, "{kind}/{vpc}/{mac}"),
            At::Route(vpc, prefix) => write!(f, "{kind}/{vpc}/{prefix}"),
        }
    }
}

impl FromStr for Position {
    type Err = String;

    fn from_str(text: &str) -> Result<Position, String> {
        let wrong = || format!("`{text}` is no place to continue at: give the one that a listing ended with, as it is");
        let (kind, rest) = text.split_once('/').unwrap_or((text, ""));
        let kind = Kind::ALL.into_iter().find(|k| k.name().to_lowercase() == kind).ok_or_else(wrong)?;
        let at = match (kind, rest.split_once('/')) {
            (_, None) if !text.contains('/') => At::Begin,
            (Kind::Vm, Some((vpc, mac))) => At::Vm(vpc.into(), parse_mac(mac).map_err(|_| wrong())?),
            (Kind::Route, Some((vpc, prefix))) => At::Route(vpc.into(), parse_prefix(prefix).map_err(|_| wrong())?),
            (Kind::Vm | Kind::Route, None) | (_, Some(_)) => return Err(wrong()),
            (_, None) => At::Name(rest.into()),
        };
        Ok(Position { kind, at })
    }
}

/// Which objects are listed.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// Kinds, in the order of [`Kind::ALL`].
    pub kinds: Vec<Kind>,
    /// Only what belongs to this VPC.
    pub vpc: Option<Name>,
}

impl Wanted {
    fn takes(&self, object: &Object) -> bool {
        self.vpc.as_ref().is_none_or(|wanted| object.vpcs().contains(wanted))
    }

    fn after(&self, kind: Kind) -> Option<Position> {
        self.kinds.iter().find(|k| **k > kind).map(|k| Position::begin(*k))
    }
}

/// A listing of a configuration as it was when it began.
#[derive(Debug)]
pub struct Snapshot {
    wanted: Wanted,
    /// `None`: all has been told.
    at: Option<Position>,
    /// What stood, behind `at`, where something has changed since; `None`: nothing did.
    kept: BTreeMap<Position, Option<Object>>,
    /// The configuration, if it was replaced since.
    replaced: Option<Arc<Model>>,
    overrun: bool,
}

impl Snapshot {
    /// Of the present configuration, from a position on, or from the beginning.
    pub fn new(wanted: Wanted, from: Option<Position>) -> Snapshot {
        let first = wanted.kinds.first().map(|k| Position::begin(*k));
        Snapshot { at: from.or(first), wanted, kept: BTreeMap::new(), replaced: None, overrun: false }
    }

    /// Whether an object is among those that are wanted.
    pub fn takes(&self, object: &Object) -> bool {
        self.wanted.takes(object)
    }

    /// Whether more changed than is kept: the listing cannot go on.
    pub fn overrun(&self) -> bool {
        self.overrun
    }

    /// Where it goes on; `None`: all has been told.
    pub fn position(&self) -> Option<&Position> {
        self.at.as_ref()
    }

    /// The next objects, `most` of one kind at most; `model` is the configuration as it is now. An empty page is not the end:
    /// that is where [`Snapshot::position`] is `None`.
    pub fn page(&mut self, model: &Model, most: usize) -> Vec<Object> {
        let Some(from) = self.at.clone() else { return Vec::new() };
        let replaced = self.replaced.clone();
        let model = replaced.as_deref().unwrap_or(model);
        let (mut list, mut looked, mut last) = (Vec::new(), 0, None);
        for object in model.objects_behind(&from, self.wanted.vpc.as_ref()) {
            let position = Position::of(&object);
            looked += 1;
            if self.wanted.takes(&object) && !self.kept.contains_key(&position) {
                list.push((position.clone(), object));
            }
            if list.len() >= most || looked >= LOOKED_AT_MAX {
                last = Some(position);
                break;
            }
        }
        // What has changed since and stood in this stretch.
        let end = match &last {
            Some(position) => Bound::Included(position.clone()),
            None => self.wanted.after(from.kind).map_or(Bound::Unbounded, Bound::Excluded),
        };
        let told: Vec<Position> =
            self.kept.range((Bound::Excluded(from.clone()), end)).map(|(p, _)| p.clone()).collect();
        for position in told {
            let before = self.kept.remove(&position).flatten().filter(|o| self.wanted.takes(o));
            list.extend(before.map(|o| (position, o)));
        }
        list.sort_by(|a, b| a.0.cmp(&b.0));
        self.at = last.or_else(|| self.wanted.after(from.kind));
        list.into_iter().map(|(_, object)| object).collect()
    }

    /// Notes a change that `model` has taken, before anything else is done to it.
    pub fn note(&mut self, plan: &Plan, model: &Model) {
        let (Some(at), None, Work::Steps(log)) = (&self.at, &self.replaced, &plan.work) else { return };
        for (position, before) in displaced(plan, log, model) {
            if position > *at && self.wanted.kinds.contains(&position.kind) {
                self.kept.entry(position).or_insert(before);
            }
        }
        self.overrun |= self.kept.len() > KEPT_MAX;
    }

    /// Notes that the configuration was replaced; this is the one before.
    pub fn note_replaced(&mut self, before: &Arc<Model>) {
        self.replaced.get_or_insert_with(|| before.clone());
    }
}

/// The listings that run.
#[derive(Debug, Default)]
pub struct Listings(Mutex<Vec<Weak<Mutex<Snapshot>>>>);

impl Listings {
    /// A listing, which is told of changes from now on. Nothing may change the configuration meanwhile.
    pub fn begin(&self, snapshot: Snapshot) -> Listing {
        let snapshot = Arc::new(Mutex::new(snapshot));
        let mut list = locked(&self.0);
        list.retain(|s| s.strong_count() > 0);
        list.push(Arc::downgrade(&snapshot));
        Listing(snapshot)
    }

    /// Tells the listings of a change that `model` has taken, before anything else is done to it.
    pub fn note(&self, plan: Plan, model: &Model) {
        let running: Vec<_> = locked(&self.0).iter().filter_map(Weak::upgrade).collect();
        if running.is_empty() {
            return;
        }
        running.iter().for_each(|s| locked(s).note(&plan, model));
        if let Some(before) = plan.into_replaced().map(Arc::new) {
            running.iter().for_each(|s| locked(s).note_replaced(&before));
        }
    }
}

/// A listing that is told of changes.
#[derive(Debug)]
pub struct Listing(Arc<Mutex<Snapshot>>);

impl Listing {
    /// See [`Snapshot::page`].
    pub fn page(&self, model: &Model, most: usize) -> Vec<Object> {
        locked(&self.0).page(model, most)
    }

    /// See [`Snapshot::overrun`].
    pub fn overrun(&self) -> bool {
        locked(&self.0).overrun()
    }

    /// See [`Snapshot::position`].
    pub fn position(&self) -> Option<Position> {
        locked(&self.0).position().cloned()
    }
}

/// A listing whose reader panicked is still one.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The objects that a plan took away, altered or brought: where, and what stood there before.
fn displaced(plan: &Plan, log: &[Undo], model: &Model) -> Vec<(Position, Option<Object>)> {
    let (mut list, before) = (Vec::new(), plan.before(log, model));
    for step in log {
        let name = |kind: Kind, name: &Name| Position { kind, at: At::Name(name.clone()) };
        let position = match step {
            Undo::Gateway(_) => name(Kind::Gateway, &"".into()),
            Undo::NcAdded(id) | Undo::NcRemoved(id, _) | Undo::NcChanged(id, _) => name(Kind::Nc, &before.nc(*id)),
            Undo::VpcAdded(id) | Undo::VpcRemoved(id, _) | Undo::VpcChanged(id, _) => name(Kind::Vpc, &before.vpc(*id)),
            Undo::PeeringAdded(n) | Undo::PeeringRemoved(n, _) => name(Kind::Peering, n),
            Undo::VmAdded(vpc, mac) | Undo::VmRemoved(vpc, mac, _) => {
                Position { kind: Kind::Vm, at: At::Vm(before.vpc(*vpc), *mac) }
            }
            Undo::RouteAdded(vpc, prefix) | Undo::RouteRemoved(vpc, prefix, _) => {
                Position { kind: Kind::Route, at: At::Route(before.vpc(*vpc), *prefix) }
            }
            Undo::Named(kind, n, _) => name(*kind, n),
        };
        list.push((position, before.object(step)));
    }
    list
}

impl Model {
    /// The objects of a position's kind that stand behind it, in order.
    fn objects_behind(&self, from: &Position, vpc: Option<&Name>) -> Box<dyn Iterator<Item = Object> + '_> {
        let (kind, begin) = (from.kind, from.at == At::Begin);
        let after = match &from.at {
            At::Name(name) => Bound::Excluded(name.clone()),
            _ => Bound::Unbounded,
        };
        let names = (after, Bound::Unbounded);
        match kind {
            Kind::Gateway if begin => Box::new(self.gateway.iter().map(|g| Object::Gateway(g.clone()))),
            Kind::Gateway => Box::new(std::iter::empty()),
            Kind::Nc => Box::new(self.nc_names.range(names).map(|(_, id)| Object::Nc(self.nc_object(*id)))),
            Kind::Vpc => {
                Box::new(self.vpc_names.range(names).map(|(_, id)| Object::Vpc(Box::new(self.vpc(*id).spec.clone()))))
            }
            Kind::Peering => {
                Box::new(self.peerings.range(names).map(|(n, p)| Object::Peering(self.peering_object(n, p))))
            }
            Kind::Vm => {
                let from = from.clone();
                Box::new(self.vpcs_from(&from, vpc).flat_map(move |(name, id)| {
                    let first = match &from.at {
                        At::Vm(vpc, mac) if vpc == name => Bound::Excluded(*mac),
                        _ => Bound::Unbounded,
                    };
                    let vms = self.vpc(id).vms.range((first, Bound::Unbounded));
                    vms.map(move |(mac, vm)| Object::Vm(self.vm_object(id, *mac, vm)))
                }))
            }
            Kind::Route => {
                let from = from.clone();
                Box::new(self.vpcs_from(&from, vpc).flat_map(move |(name, id)| {
                    let first = match &from.at {
                        At::Route(vpc, prefix) if vpc == name => Some(*prefix),
                        _ => None,
                    };
                    self.vpc(id).routes_behind(first).map(move |(p, r)| Object::Route(self.route_object(id, p, r)))
                }))
            }
            _ => self.named.range(kind, names),
        }
    }

    /// The VPCs from that of a position on, or the one that is wanted.
    fn vpcs_from(&self, from: &Position, only: Option<&Name>) -> Box<dyn Iterator<Item = (&Name, u32)> + '_> {
        let first = match &from.at {
            At::Vm(vpc, _) | At::Route(vpc, _) => Bound::Included(vpc.clone()),
            _ => Bound::Unbounded,
        };
        match only.and_then(|name| self.vpc_names.get_key_value(name)) {
            Some((name, id)) => Box::new(std::iter::once((name, *id))),
            None if only.is_some() => Box::new(std::iter::empty()),
            None => Box::new(self.vpc_names.range((first, Bound::Unbounded)).map(|(name, id)| (name, *id))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::documents::{parse_files, parse_text, Documents};
    use rand::{RngExt, SeedableRng};

    fn region() -> Model {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/region.yaml");
        Model::from_documents(&parse_files(&[path]).unwrap()).unwrap().0
    }

    fn all() -> Wanted {
        Wanted { kinds: Kind::ALL.to_vec(), vpc: None }
    }

    fn objects(model: &Model) -> Vec<Object> {
        Kind::ALL.iter().flat_map(|k| model.objects(*k)).collect()
    }

    /// A change of objects out of a small world, most of which come, go and change often.
    fn change(rng: &mut impl RngExt) -> Documents {
        let mut text = String::new();
        for _ in 0..rng.random_range(1..4) {
            let (vpc, n) = (["red", "blue", "green"][rng.random_range(0..3)], rng.random_range(0..12));
            let nc = ["host-a", "host-b"][rng.random_range(0..2)];
            text += &match rng.random_range(0..5) {
                0 => format!("{{kind: Nc, metadata: {{name: nc{n}}}, spec: {{address: 192.0.2.{}}}}}", 100 + rng.random_range(0..20)),
                1 => format!("{{kind: Vpc, metadata: {{name: v{n}}}, spec: {{vni: {}, icmp: {}}}}}", 5000 + n, ["on", "off"][n % 2]),
                2 => format!("{{kind: Route, spec: {{vpc: {vpc}, prefix: 172.16.{n}.0/24, scope: {}}}}}", ["blackhole", "local"][rng.random_range(0..2)]),
                3 => format!("{{kind: PublicPool, metadata: {{name: p{n}}}, spec: {{ranges: [203.0.113.{n}]}}}}"),
                _ => format!("{{kind: Vm, spec: {{vpc: {vpc}, addresses: [10.0.9.{n}], mac: \"02:00:00:09:00:{n:02x}\", nc: {nc}}}}}"),
            };
            text += "\n---\n";
        }
        let text = text.replace("{kind", "{apiVersion: tunny/v1, kind");
        let docs = parse_text("x.yaml", &text).unwrap();
        if rng.random_range(0..3) == 0 {
            docs.into_deletions()
        } else {
            docs
        }
    }

    /// What a plan says that has changed is what differs between all objects before and after.
    #[test]
    fn a_plan_names_what_differs_and_nothing_else() {
        let seed = rand::random();
        println!("seed {seed}");
        let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(seed);
        let (mut model, mut some) = (region(), 0);
        let named = |model: &Model| -> BTreeMap<(Kind, Name), Object> {
            objects(model).into_iter().map(|o| ((o.kind(), o.name()), o)).collect()
        };
        for _ in 0..400 {
            let before = named(&model);
            let Ok(plan) = model.apply(&change(&mut rng)) else { continue };
            let after = named(&model);
            let keys: std::collections::BTreeSet<_> = before.keys().chain(after.keys()).collect();
            let pairs = keys.into_iter().map(|key| (before.get(key).cloned(), after.get(key).cloned()));
            let expected: Vec<_> = pairs.filter(|(a, b)| a != b).collect();
            let found = plan.pairs(&model);
            assert_eq!(found, expected);
            assert_eq!(plan.view_of(&found, 1000).to_json(), plan.view(&model, 1000).to_json());
            some += expected.len();
        }
        assert!(some > 300, "{some}");
    }

    #[test]
    fn a_listing_tells_what_was_when_it_began() {
        let seed = rand::random();
        println!("seed {seed}");
        let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(seed);
        let (mut model, mut taken, mut kept) = (region(), 0, 0);
        for _ in 0..300 {
            let (expected, mut snapshot, mut told) = (objects(&model), Snapshot::new(all(), None), Vec::new());
            while snapshot.position().is_some() {
                told.extend(snapshot.page(&model, rng.random_range(1..6)));
                match rng.random_range(0..12) {
                    0..9 => {
                        let Ok(plan) = model.apply(&change(&mut rng)) else { continue };
                        if rng.random_range(0..4) == 0 {
                            model.revert(plan);
                            continue;
                        }
                        snapshot.note(&plan, &model);
                        taken += 1;
                    }
                    9 => {
                        let mut other = model.clone();
                        let _ = other.apply(&change(&mut rng));
                        let before = model.replace(other).unwrap().into_replaced().unwrap();
                        snapshot.note_replaced(&Arc::new(before));
                    }
                    _ => {}
                }
                kept = kept.max(snapshot.kept.len());
            }
            assert_eq!(told, expected);
        }
        assert!(taken > 500 && kept > 3, "{taken} {kept}");
    }

    #[test]
    fn a_listing_goes_on_where_another_was_cut() {
        let model = region();
        for cut in 1..25 {
            let mut first = Snapshot::new(all(), None);
            let mut told = Vec::new();
            while told.len() < cut && first.position().is_some() {
                told.extend(first.page(&model, cut - told.len()));
            }
            let Some(at) = first.position() else { break };
            let at: Position = at.to_string().parse().unwrap();
            assert_eq!(Some(&at), first.position());
            let mut rest = Snapshot::new(all(), Some(at));
            while rest.position().is_some() {
                told.extend(rest.page(&model, 7));
            }
            assert_eq!(told, objects(&model), "{cut}");
        }
        for wrong in ["", "frob", "vm/x", "vm/red/x", "route/red", "route/red/10.0.0.1/8", "nc/a/b"] {
            assert!(wrong.parse::<Position>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_vpc_is_told_alone() {
        let model = region();
        for kind in Kind::ALL.into_iter().filter(|k| k.is_of_vpcs()) {
            let mut snapshot = Snapshot::new(Wanted { kinds: vec![kind], vpc: Some("red".into()) }, None);
            let told = snapshot.page(&model, 1000);
            let expected: Vec<Object> = model
                .objects(kind)
                .filter(|o| o.to_json()["spec"].to_string().contains("\"red\"") && !told_of_peer(o))
                .collect();
            assert_eq!(told, expected, "{kind}");
            assert!(snapshot.position().is_none());
        }
    }

    fn told_of_peer(o: &Object) -> bool {
        matches!(o, Object::Route(r) if &*r.vpc != "red")
    }
}
