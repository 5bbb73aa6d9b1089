// SPDX-License-Identifier: Apache-2.0
//! The placement core, asked about the region as it is: units of Tenants, capacities that nodes have told, and where everybody is.
//! It is made anew for a question, of names in their order, so that the same region gives the same answers.

use super::fleet::Fleet;
use super::placement::{self, Amounts, Change, ClusterId, Engine, Levels, Names, Refusal, Resource, UnitId};
use super::region::Region;
use model::{Kind, Name, Object};
use node::usage::Usage as NodeUsage;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// What counts as no limit: nobody has said one.
const UNLIMITED: u64 = 1 << 50;

/// A region as placement sees it.
pub struct Assignment {
    region: placement::Region,
    /// Clusters by number. Those whose nodes have not told what they hold are not among them.
    clusters: Vec<Name>,
    /// Tenants of each unit: those that peerings join go together.
    units: Vec<Unit>,
    /// Of each cluster, who comes in.
    doors: Vec<Door>,
}

/// Who comes into a cluster.
struct Door {
    /// One of its nodes is admitted.
    serves: bool,
    /// VPCs that are there.
    vpcs: u64,
    /// VPCs that the operator lets in.
    most: u64,
}

impl Door {
    fn lets_in(&self, vpcs: u64) -> bool {
        self.serves && self.vpcs + vpcs <= self.most
    }
}

/// Tenants that lie together.
struct Unit {
    tenants: Vec<Name>,
    demand: Amounts,
    /// What is reserved for it, of which the demand is part.
    hold: Amounts,
    /// Somebody has said where it is to be (`spec.cluster`).
    pinned: bool,
    /// Where it is, and the other cluster that holds it.
    cluster: Option<Name>,
    other: Option<Name>,
    /// Those of its tenants that are nowhere.
    lacking: Vec<Name>,
}

/// A move that is proposed.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct Wanted {
    /// The tenants, which lie together.
    pub tenants: Vec<String>,
    /// Where they are.
    pub from: String,
    /// Where they are to be.
    pub to: String,
    /// Entries that move.
    pub entries: u64,
    /// Moves of one wave may run together.
    pub wave: u32,
}

/// How full a cluster is.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct ClusterView {
    /// The cluster.
    pub name: String,
    /// What it holds or has reserved, what it can hold, and the share, by resource. Without its nodes' word nothing.
    pub levels: BTreeMap<String, (u64, u64, f64)>,
    /// What of it is reserved for growth, by resource.
    pub reserved: BTreeMap<String, u64>,
    /// It takes no new tenants.
    pub closed: bool,
    /// Its tenants.
    pub tenants: usize,
    /// Its nodes.
    pub nodes: usize,
}

impl Names for Assignment {
    fn unit(&self, unit: UnitId) -> String {
        let tenants = self.units.get(unit.0 as usize).map_or(&[][..], |u| &u.tenants);
        let more = if tenants.len() > 1 {
            format!(" with {} that it is peered with", tenants.len() - 1)
        } else {
            String::new()
        };
        tenants.first().map_or_else(String::new, |name| format!("Tenant `{name}`{more}"))
    }

    fn cluster(&self, cluster: ClusterId) -> String {
        self.clusters.get(cluster.0 as usize).map_or_else(String::new, |name| format!("Cluster `{name}`"))
    }
}

/// What a node can hold, by what it says of itself; nothing, if it has not.
fn capacity(usage: &NodeUsage) -> Option<placement::Node> {
    let limit = |name: &str| usage.limit(name).unwrap_or(UNLIMITED);
    let engine = if usage.engine == "user" { Engine::User } else { Engine::Xdp };
    let traffic = if usage.link_bits == 0 { UNLIMITED } else { usage.link_bits };
    let capacity = Amounts([limit("tenants"), limit("routes"), limit("vms"), UNLIMITED, limit("sessions"), traffic]);
    (!usage.levels.is_empty()).then_some(placement::Node { engine, capacity })
}

impl Assignment {
    /// The region as it is, at a time in seconds since 1970.
    pub fn of(region: &Region, fleet: &Fleet, now: placement::Time) -> Assignment {
        let (model, mut capacities) = (region.model(), capacities(region, fleet));
        // What a cluster holds for lines alone is there, whoever serves it.
        for (cluster, vpcs) in region.for_lines() {
            let Some(capacity) = capacities.get_mut(&cluster) else { continue };
            let held = region.amounts(&vpcs);
            Resource::ALL.into_iter().for_each(|r| capacity[r] = capacity[r].saturating_sub(held[r]));
        }
        let (mut traffic, mut serving): (HashMap<&str, u64>, BTreeSet<Name>) = Default::default();
        for node in model.by_name().nodes.values() {
            if fleet.is_admitted(&node.name) {
                serving.insert(node.cluster.clone());
            }
            let Some(usage) = fleet.usage(&node.name) else { continue };
            for (vpc, bits) in &usage.vpcs {
                *traffic.entry(vpc).or_default() += bits;
            }
        }
        let mut units = units(region);
        for unit in &mut units {
            for tenant in unit.tenants.iter().filter_map(|t| model.by_name().tenants.get(t)) {
                let mut demand = region.amounts(&tenant.vpcs);
                demand[Resource::Traffic] = tenant.vpcs.iter().filter_map(|vpc| traffic.get(&**vpc)).sum();
                unit.demand += demand;
                unit.hold += demand.max(&reserved(tenant, now));
            }
        }
        let clusters: Vec<Name> = capacities.keys().cloned().collect();
        let (levels, raised) = levels(region);
        let mut placed = placement::Region::new(levels);
        placed.set_time(now);
        raised.into_iter().for_each(|raised| placed.raise(raised));
        for (at, capacity) in capacities.values().enumerate() {
            placed.set_cluster(ClusterId(at as u32), *capacity);
        }
        let doors = clusters.iter().map(|name| {
            let most = model.by_name().clusters.get(name).and_then(|c| c.vpcs);
            Door { serves: serving.contains(name), vpcs: 0, most: most.map_or(u64::MAX, u64::from) }
        });
        let doors = doors.collect();
        let mut assignment = Assignment { region: placed, clusters, units, doors };
        for (at, unit) in assignment.units.iter().enumerate() {
            let cluster = unit.cluster.as_ref().and_then(|name| assignment.number(name));
            if let Some(cluster) = cluster {
                assignment.doors[cluster.0 as usize].vpcs += unit.demand[Resource::Vpcs];
                // A number of its own, in a cluster that is there: nothing to refuse.
                let _ = assignment.region.restore(UnitId(at as u32), unit.demand, cluster);
                // Over its level or not, it is there.
                let other = unit.other.as_ref().and_then(|name| assignment.number(name));
                let _ = other.map(|other| assignment.region.begin_move(UnitId(at as u32), other));
                if unit.hold != unit.demand {
                    assignment.region.restore_reservation(UnitId(at as u32), unit.hold);
                }
            }
        }
        assignment.region.review();
        assignment
    }

    fn number(&self, cluster: &Name) -> Option<ClusterId> {
        self.clusters.binary_search(cluster).ok().map(|at| ClusterId(at as u32))
    }

    /// Whether any cluster has told what it can hold.
    pub fn is_known(&self) -> bool {
        !self.clusters.is_empty()
    }

    /// Places those that are nowhere: each tenant with its cluster, and in a sentence why others find none.
    pub fn place(&mut self) -> (Vec<(Name, Name)>, Vec<(Name, String)>) {
        let new = self.units.iter().enumerate().filter(|(_, u)| u.cluster.is_none());
        let new: Vec<_> = new.map(|(at, u)| (UnitId(at as u32), u.hold)).collect();
        let answers = self.admit(new);
        // Where others of their unit are.
        let joined = self.units.iter().filter_map(|u| Some((u, u.cluster.clone()?)));
        let joined = joined.flat_map(|(u, cluster)| u.lacking.iter().map(move |t| (t.clone(), cluster.clone())));
        let (mut placed, mut refused): (Vec<_>, Vec<_>) = (joined.collect(), Vec::new());
        for (unit, answer) in answers {
            let tenants = self.units[unit.0 as usize].tenants.iter().cloned();
            match answer {
                Ok(cluster) => placed.extend(tenants.map(|t| (t, self.clusters[cluster.0 as usize].clone()))),
                Err(refusal) => {
                    let why = self.sentence(&refusal);
                    refused.extend(tenants.map(|t| (t, why.clone())));
                }
            }
        }
        (placed, refused)
    }

    /// Finds clusters for units, by the doors too: a unit that does not come in goes where it would if the cluster were not there.
    fn admit(&mut self, new: Vec<(UnitId, Amounts)>) -> Vec<(UnitId, Result<ClusterId, Refusal>)> {
        let shut = |at: usize| ClusterId(at as u32);
        for at in (0..self.doors.len()).filter(|at| !self.doors[*at].lets_in(1)) {
            // It is there.
            let _ = self.region.set_draining(shut(at), true);
        }
        let demands: BTreeMap<UnitId, Amounts> = new.iter().copied().collect();
        let mut answers = self.region.admit_all(new);
        for (unit, answer) in &mut answers {
            let (demand, mut closed) = (demands[unit], Vec::new());
            while let Ok(cluster) = answer {
                let door = &mut self.doors[cluster.0 as usize];
                if door.lets_in(demand[Resource::Vpcs]) {
                    door.vpcs += demand[Resource::Vpcs];
                    break;
                }
                closed.push(*cluster);
                let _ = self.region.remove(*unit).and_then(|()| self.region.set_draining(*cluster, true));
                *answer = self.region.admit(*unit, demand);
            }
            for cluster in closed.into_iter().filter(|c| self.doors[c.0 as usize].lets_in(1)) {
                // A smaller one may come in.
                let _ = self.region.set_draining(cluster, false);
            }
        }
        answers
    }

    /// Why what is reserved for a tenant does not fit where it is.
    pub fn lacks_room(&self, tenant: &str) -> Option<String> {
        let unit = self.units.iter().position(|u| u.tenants.iter().any(|t| **t == *tenant))?;
        self.region.lacks_room(UnitId(unit as u32)).map(|refusal| self.sentence(&refusal))
    }

    /// A refusal, and what would help.
    fn sentence(&self, refusal: &Refusal) -> String {
        let help = match self.region.remedy(refusal) {
            Some(placement::Remedy::Move { plan, cluster }) => {
                format!(
                    "; {} moves of {} entries would make room in {}",
                    plan.moves.len(),
                    plan.entries,
                    self.cluster(cluster)
                )
            }
            Some(placement::Remedy::Build(proposal)) => format!("; {}", self.proposal_words(&proposal)),
            None => String::new(),
        };
        refusal.sentence(self) + &help + &self.shut()
    }

    /// Clusters that let nobody in, and why.
    fn shut(&self) -> String {
        let doors = self.clusters.iter().zip(&self.doors).filter(|(_, door)| !door.lets_in(1));
        let word = |(name, door): (&Name, &Door)| match door.serves {
            true => format!("; Cluster `{name}` lets in {} VPCs (spec.vpcs)", door.most),
            false => format!("; no node of Cluster `{name}` is admitted yet"),
        };
        doors.map(word).collect()
    }

    fn proposal_words(&self, proposal: &placement::Proposal) -> String {
        let need = proposal
            .size
            .iter()
            .filter(|(_, n)| *n > 0)
            .map(|(r, n)| format!("{n} {r}"))
            .collect::<Vec<_>>()
            .join(", ");
        match proposal.like {
            Some(like) => {
                format!("another cluster would help: {need}, which is {} like {}", proposal.count, self.cluster(like))
            }
            None => format!("another cluster would help: {need}"),
        }
    }

    /// What water levels ask for: another cluster, in a sentence.
    pub fn proposal(&self) -> Option<String> {
        let events = self.region.clone().review();
        events.iter().find_map(|event| match event {
            placement::Event::Proposed(proposal) => Some(self.proposal_words(proposal)),
            _ => None,
        })
    }

    /// The moves that make levels even within so many thousandths. Who is pinned or on its way stays.
    pub fn rebalance(&self, within: u16) -> Result<Vec<Wanted>, String> {
        let plan = self.region.plan(&Change::Rebalance { within }).map_err(|refusal| self.sentence(&refusal))?;
        let movable = plan.moves.iter().filter(|m| {
            let unit = &self.units[m.unit.0 as usize];
            !unit.pinned && unit.other.is_none()
        });
        let name = |cluster: ClusterId| self.clusters[cluster.0 as usize].to_string();
        let wanted = movable.map(|m| Wanted {
            tenants: self.units[m.unit.0 as usize].tenants.iter().map(|t| t.to_string()).collect(),
            from: name(m.from),
            to: name(m.to),
            entries: m.entries,
            wave: m.wave,
        });
        Ok(wanted.collect())
    }

    /// Moves of tenants that send little into clusters whose nodes have no fast path: those with the least traffic for their entries first, until the
    /// fullest table of such a cluster is at the level above which it takes no new tenants. Who is pinned or on its way stays.
    pub fn cool(&self, is_cold: impl Fn(&Name) -> bool, slow: &BTreeSet<Name>) -> Vec<Wanted> {
        let stays = |unit: &Unit| unit.pinned || unit.other.is_some() || !unit.lacking.is_empty();
        let cold = self.units.iter().enumerate().filter_map(|(at, unit)| {
            let from = unit.cluster.as_ref().filter(|from| !slow.contains(*from) && !stays(unit))?;
            unit.tenants.iter().all(&is_cold).then_some((UnitId(at as u32), unit, from))
        });
        let mut cold: Vec<_> = cold.collect();
        let density = |unit: &Unit| unit.demand[Resource::Traffic] as f64 / unit.demand.entries().max(1) as f64;
        cold.sort_by(|a, b| {
            density(a.1).total_cmp(&density(b.1)).then(b.1.demand.entries().cmp(&a.1.demand.entries()))
        });
        let close = Levels::default().close;
        let mut room: Vec<(ClusterId, Amounts, Amounts)> =
            self.region.usages().into_iter().map(|u| (u.cluster, u.load, u.capacity)).collect();
        room.retain(|(id, ..)| slow.contains(&self.clusters[id.0 as usize]));
        let mut moves = Vec::new();
        for (_, unit, from) in cold {
            let fits = |load: &Amounts, capacity: &Amounts| {
                Resource::ALL.iter().all(|r| {
                    (load[*r] + unit.demand[*r]) as u128 * 1000
                        <= u128::from(capacity[*r]) * u128::from(close[*r as usize])
                })
            };
            let Some((to, load, _)) = room.iter_mut().find(|(_, load, capacity)| fits(load, capacity)) else {
                continue;
            };
            Resource::ALL.iter().for_each(|r| load[*r] += unit.demand[*r]);
            let tenants = unit.tenants.iter().map(|t| t.to_string()).collect();
            let (from, to) = (from.to_string(), self.clusters[to.0 as usize].to_string());
            moves.push(Wanted { tenants, from, to, entries: unit.demand.entries(), wave: 0 });
        }
        moves
    }

    /// The tenants that go with one to a cluster, if there is room for them.
    pub fn with(&self, tenant: &str, to: &Name) -> Result<Vec<Name>, String> {
        let unit = self.units.iter().position(|u| u.tenants.iter().any(|t| **t == *tenant));
        let unit = unit.ok_or_else(|| format!("Tenant `{}` is not known", model::plain(tenant)))?;
        if self.units[unit].pinned {
            return Err(format!("{} is pinned by spec.cluster: change that", self.unit(UnitId(unit as u32))));
        }
        let to = self.number(to).ok_or_else(|| format!("no node of Cluster `{to}` has said what it can hold"))?;
        let moved = self.region.clone().begin_move(UnitId(unit as u32), to);
        moved.map_err(|refusal| self.sentence(&refusal))?;
        Ok(self.units[unit].tenants.clone())
    }
}

/// What clusters can hold, by what their nodes have told. Those of which none has are not among them.
fn capacities(region: &Region, fleet: &Fleet) -> BTreeMap<Name, Amounts> {
    let mut nodes: BTreeMap<Name, Vec<placement::Node>> = BTreeMap::new();
    for node in region.model().by_name().nodes.values() {
        let told = fleet.usage(&node.name).and_then(capacity);
        if let Some(told) = told {
            nodes.entry(node.cluster.clone()).or_default().push(told);
        }
    }
    nodes.into_iter().map(|(cluster, nodes)| (cluster, placement::capacity(&nodes))).collect()
}

impl ClusterView {
    /// Of all clusters: what they hold is counted as it comes and goes, so nothing is placed anew to say it.
    pub fn all(region: &Region, fleet: &Fleet, now: placement::Time) -> Vec<ClusterView> {
        let (levels, raised) = levels(region);
        let (capacities, close) = (capacities(region, fleet), levels.at(&raised, now).close);
        let mut reserved = reserved_in(region, fleet, now);
        let mut views: BTreeMap<&Name, ClusterView> = BTreeMap::new();
        for (name, held) in region.held() {
            let (tenants, mut held) = (region.tenants_in(name) as usize, held);
            let nodes = region.model().by_name().nodes.values().filter(|n| n.cluster == *name);
            held[Resource::Traffic] =
                nodes.clone().filter_map(|n| fleet.usage(&n.name)).flat_map(|u| u.vpcs.values()).sum();
            let growth = reserved.remove(name).unwrap_or_default();
            held += growth;
            let growth = growth.iter().filter(|(_, n)| *n > 0).map(|(r, n)| (r.to_string(), n)).collect();
            let mut view = ClusterView {
                name: name.to_string(),
                tenants,
                nodes: nodes.count(),
                reserved: growth,
                ..ClusterView::default()
            };
            if let Some(capacity) = capacities.get(name) {
                let limits = capacity.permille(&close);
                view.closed = Resource::ALL.into_iter().any(|r| held[r] > 0 && held[r] >= limits[r]);
                let limited = Resource::ALL.into_iter().filter(|r| capacity[*r] < UNLIMITED);
                let level = |r| (held[r], capacity[r], placement::share(held[r], capacity[r]));
                view.levels = limited.map(|r| (r.name().to_string(), level(r))).collect();
            }
            views.insert(name, view);
        }
        views.into_values().collect()
    }
}

/// The water levels, and for which times they are raised.
fn levels(region: &Region) -> (Levels, Vec<placement::Raised>) {
    let Some(own) = region.model().region() else { return (Levels::default(), Vec::new()) };
    (Levels::of(&own.levels), own.raised.iter().map(placement::Raised::from).collect())
}

/// What is reserved for a Tenant.
fn reserved(tenant: &model::Tenant, now: placement::Time) -> Amounts {
    match tenant.reserve.has_ended(now) {
        true => Amounts::ZERO,
        false => Amounts(Resource::ALL.map(|r| tenant.reserve.of(r))),
    }
}

/// What each cluster has reserved beyond what its Tenants have there.
fn reserved_in(region: &Region, fleet: &Fleet, now: placement::Time) -> BTreeMap<Name, Amounts> {
    let mut all: BTreeMap<Name, Amounts> = BTreeMap::new();
    for tenant in region.pending().reserving.iter().filter_map(|name| region.model().by_name().tenants.get(name)) {
        let mut has = region.amounts(&tenant.vpcs);
        for usage in region.model().by_name().nodes.keys().filter_map(|node| fleet.usage(node)) {
            has[Resource::Traffic] += tenant.vpcs.iter().filter_map(|vpc| usage.vpcs.get(&**vpc)).sum::<u64>();
        }
        let more = reserved(tenant, now).beyond(&has);
        let placed = region.placement(&tenant.name);
        let named = tenant.cluster.iter().filter(|_| placed.is_none());
        let clusters = named.chain(placed.iter().flat_map(|p| p.holders()));
        clusters.for_each(|cluster| *all.entry(cluster.clone()).or_default() += more);
    }
    all
}

/// Tenants with VPCs, those that peerings join together, in the order of the first name of each.
fn units(region: &Region) -> Vec<Unit> {
    let model = region.model();
    let tenants: Vec<_> = model.by_name().tenants.values().filter(|t| !t.vpcs.is_empty()).collect();
    let mut vpcs: HashMap<&Name, u32> = HashMap::new();
    for (at, tenant) in tenants.iter().enumerate() {
        vpcs.extend(tenant.vpcs.iter().map(|vpc| (vpc, at as u32)));
    }
    // VPCs that nobody owns join others all the same: they have numbers behind the tenants'.
    let peerings: Vec<_> = model
        .objects(Kind::Peering)
        .filter_map(|o| if let Object::Peering(peering) = o { Some(peering) } else { None })
        .collect();
    let mut numbers = tenants.len() as u32;
    let mut joined = Vec::with_capacity(peerings.len());
    for peering in &peerings {
        let [a, b] = [0, 1].map(|i| {
            *vpcs.entry(&peering.vpcs[i]).or_insert_with(|| {
                numbers += 1;
                numbers - 1
            })
        });
        joined.push((a, b));
    }
    let roots = placement::peers::units(0..numbers, &joined);
    let mut units: BTreeMap<u32, Unit> = BTreeMap::new();
    for (at, tenant) in tenants.iter().enumerate() {
        let root = roots.get(&(at as u32)).copied().unwrap_or(at as u32);
        let placed = region.placement(&tenant.name);
        let cluster = region.serving(tenant).cloned();
        let new = || Unit {
            tenants: Vec::new(),
            demand: Amounts::ZERO,
            hold: Amounts::ZERO,
            pinned: false,
            cluster: None,
            other: None,
            lacking: Vec::new(),
        };
        let unit = units.entry(root).or_insert_with(new);
        unit.tenants.push(tenant.name.clone());
        unit.pinned |= tenant.cluster.is_some();
        if cluster.is_none() {
            unit.lacking.push(tenant.name.clone());
        }
        let moving = placed.and_then(|p| p.holders().nth(1));
        unit.other = moving.cloned().or(unit.other.take());
        // Where one of them is, the others go.
        if unit.cluster.is_none() || tenant.cluster.is_some() {
            unit.cluster = cluster.or(unit.cluster.take());
        }
    }
    units.into_values().collect()
}
