// SPDX-License-Identifier: Apache-2.0
//! The region as it is known: its model, and what each cluster is told of a change. A change is proposed (planned on the model),
//! then either discarded or, once the store has it, committed under the revision that the store gave it.

use super::access::Principal;
use super::edges;
use super::feed::{Change, Feed, Gone};
use super::moving::Placement;
use super::placement::Amounts;
use super::scope::{self, Increment, Placed, Scope, OF_MACHINES};
use super::search::Index;
use super::serving::{self, served, Handovers, Pending, Shift, Shifts};
use model::{
    Access, ConfigError, Documents, Kind, Listings, Model, Name, Object, Pair, Plan, Snapshot, Tenant, Wanted,
};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// A change that the model has taken, and nobody knows of yet.
#[derive(Debug)]
pub struct Proposal {
    /// The plan, for people and programs.
    pub plan: Plan,
    /// The objects that change, by kind and name.
    pub pairs: Vec<Pair>,
    /// The clusters that it may concern.
    pub clusters: Vec<Name>,
    /// The VPCs that it moves.
    shifts: Shifts,
}

impl Proposal {
    /// Whether it may be one transaction with others: it concerns what is inside VPCs alone, and so no order among clusters, credentials and
    /// numbers of what others refer to.
    pub fn joins_others(&self) -> bool {
        self.pairs.iter().all(|p| matches!(scope::kind(p), Kind::Vm | Kind::Route))
    }
}

/// Why a change is not proposed.
#[derive(Debug)]
pub enum Unfit {
    /// The documents have errors.
    Wrong(Vec<ConfigError>),
    /// Somebody may not change this.
    Forbidden(String),
}

/// What is wanted.
pub enum Wish<'d> {
    /// Some objects, as described.
    Some(&'d Documents),
    /// These objects and no others.
    All(&'d Documents),
}

/// What a cluster holds and its nodes are sent.
struct Cluster {
    scope: Scope,
    feed: Feed,
    /// The revisions at which VPCs came here, if they were not here from the start.
    came: BTreeMap<Name, u64>,
}

/// An object in a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The cluster.
    pub cluster: Name,
    /// A node that has installed this revision has the object as it is.
    pub since: u64,
}

/// Where Tenants shall be; none: nowhere.
pub type Places = Vec<(Name, Option<Placement>)>;

/// The region.
pub struct Region {
    model: Model,
    revision: u64,
    listings: Listings,
    index: Index,
    clusters: BTreeMap<Name, Cluster>,
    placed: Placed,
    upstream: BTreeMap<u32, Name>,
    pending: Pending,
    /// Tenants with VPCs in each cluster.
    tenants: BTreeMap<Name, u64>,
    /// The revision at which anybody's place changed last.
    placed_at: u64,
    /// The revision of the last change of public pools, or of who has them.
    pools_at: u64,
    /// The revisions at which pools were divided last, where that is known; of others it was before `since`.
    divided: BTreeMap<Name, u64>,
    since: u64,
}

impl Region {
    /// Of the objects in a store, at a revision. `latest` has the revision of each cluster's last change, `placed` where Tenants are.
    pub fn load(
        objects: &Documents,
        revision: u64,
        latest: &BTreeMap<Name, u64>,
        placed: Placed,
    ) -> Result<Region, Vec<ConfigError>> {
        let (model, _) = Model::from_documents(objects)?;
        let clusters = served(&model, &placed).into_iter().map(|(name, vpcs)| {
            let feed = Feed::new(latest.get(&name).copied().unwrap_or(revision));
            let scope = Scope::of(&model, &vpcs);
            (name, Cluster { scope, feed, came: BTreeMap::new() })
        });
        let (clusters, listings, index) = (clusters.collect(), Listings::default(), Index::of(&model));
        let (upstream, pending, tenants) = (BTreeMap::new(), Pending::of(&model, &placed), BTreeMap::new());
        let (placed_at, pools_at) = (revision, revision);
        let mut region = Region {
            model,
            revision,
            listings,
            index,
            clusters,
            placed,
            upstream,
            pending,
            tenants,
            placed_at,
            pools_at,
            divided: BTreeMap::new(),
            since: revision,
        };
        region.count_all_tenants();
        let handovers = region.handovers();
        for (name, cluster) in &mut region.clusters {
            let wanted = handovers.get(name).cloned().unwrap_or_default();
            cluster.scope.hand_over(&wanted, &mut Increment::default());
        }
        let all: BTreeSet<Name> = region.clusters.values().flat_map(|c| c.scope.vpcs().iter().cloned()).collect();
        region.follow_upstream(&[], &all);
        Ok(region)
    }

    /// Tenants with which something is to be done.
    pub fn pending(&self) -> &Pending {
        &self.pending
    }

    /// Tenants with VPCs whose packets hosts send to a cluster.
    pub fn tenants_in(&self, cluster: &Name) -> u64 {
        self.tenants.get(cluster).copied().unwrap_or(0)
    }

    fn count_all_tenants(&mut self) {
        let mut counts = BTreeMap::new();
        for tenant in self.model.by_name().tenants.values().filter(|t| !t.vpcs.is_empty()) {
            if let Some(cluster) = self.serving(tenant) {
                *counts.entry(cluster.clone()).or_default() += 1;
            }
        }
        self.tenants = counts;
    }

    /// Counts a Tenant where it is, or was.
    fn count_tenant(&mut self, tenant: &Tenant, is: bool) {
        let Some(cluster) = self.serving(tenant).filter(|_| !tenant.vpcs.is_empty()).cloned() else { return };
        let count = self.tenants.entry(cluster).or_default();
        *count = if is { *count + 1 } else { count.saturating_sub(1) };
    }

    /// What each cluster holds of tables, as placement counts it.
    pub fn held(&self) -> impl Iterator<Item = (&Name, Amounts)> {
        self.clusters.iter().map(|(name, cluster)| (name, cluster.scope.amounts()))
    }

    /// VPCs that clusters hold only for a line at one of their nodes, with their peers.
    pub fn for_lines(&self) -> BTreeMap<Name, BTreeSet<Name>> {
        if self.model.by_name().overlays.is_empty() {
            return BTreeMap::new();
        }
        let serving = serving::served_for_tenants(&self.model, &self.placed);
        let only = |(name, c): (&Name, &Cluster)| {
            let vpcs = c.scope.vpcs().iter().filter(|vpc| serving.get(name).is_none_or(|s| !s.contains(*vpc)));
            (name.clone(), vpcs.cloned().collect())
        };
        self.clusters.iter().map(only).filter(|(_, vpcs): &(Name, BTreeSet<Name>)| !vpcs.is_empty()).collect()
    }

    /// Where Tenants are.
    pub fn placed(&self) -> &Placed {
        &self.placed
    }

    /// Where a Tenant is.
    pub fn placement(&self, tenant: &str) -> Option<&Placement> {
        self.placed.get(tenant)
    }

    /// The cluster that hosts send a Tenant's packets to.
    pub fn serving<'a>(&'a self, tenant: &'a Tenant) -> Option<&'a Name> {
        scope::serving(tenant, &self.placed)
    }

    /// What VPCs need of tables, as placement counts it.
    pub fn amounts<'n>(&self, vpcs: impl IntoIterator<Item = &'n Name>) -> Amounts {
        let of = |vpc: &Name| {
            let (vms, routes) = self.model.sizes(vpc).unwrap_or_default();
            Amounts([1, routes, vms, 0, 0, 0])
        };
        vpcs.into_iter().map(of).sum()
    }

    /// The cluster that hosts send a VNI's packets to.
    pub fn upstream(&self, vni: u32) -> Option<&Name> {
        self.upstream.get(&vni)
    }

    /// The VNIs of which hosts are told.
    pub fn upstreams(&self) -> impl Iterator<Item = u32> + '_ {
        self.upstream.keys().copied()
    }

    /// The revision at which anybody's place changed last.
    pub fn placed_at(&self) -> u64 {
        self.placed_at
    }

    /// The revision of the last change of public pools, or of who has them. Places are told by [`Region::placed_at`].
    pub fn pools_at(&self) -> u64 {
        self.pools_at
    }

    /// The clusters that changes of places concern.
    pub fn concerned(&self, changes: &Places) -> BTreeSet<Name> {
        let before = changes.iter().filter_map(|(tenant, _)| self.placed.get(tenant));
        let after = changes.iter().filter_map(|(_, placement)| placement.as_ref());
        // Without a place it is where its document says.
        let without = changes.iter().filter(|(tenant, after)| after.is_none() || !self.placed.contains_key(tenant));
        let named = without.filter_map(|(tenant, _)| self.model.by_name().tenants.get(tenant)?.cluster.as_ref());
        let clusters = before.chain(after).flat_map(|p| p.holders()).chain(named);
        clusters.filter(|c| self.clusters.contains_key(*c)).cloned().collect()
    }

    /// Changes where Tenants are: the store has it, under this revision.
    pub fn place(&mut self, changes: Places, revision: u64) {
        let clusters = self.concerned(&changes);
        let tenants: Vec<Name> = changes.iter().map(|(tenant, _)| tenant.clone()).collect();
        for (name, placement) in changes {
            let tenant = self.model.by_name().tenants.get(&name).cloned();
            tenant.iter().for_each(|tenant| self.count_tenant(tenant, false));
            match placement {
                Some(placement) => drop(self.placed.insert(name, Placement { revision, ..placement })),
                None => drop(self.placed.remove(&name)),
            }
            tenant.iter().for_each(|tenant| self.count_tenant(tenant, true));
        }
        let found = tenants.iter().filter_map(|name| self.model.by_name().tenants.get(name));
        let seeds = found.flat_map(|tenant| tenant.vpcs.iter().cloned()).collect();
        let shifts = self.shifts_of(&seeds, &HashMap::new());
        tenants.iter().for_each(|name| self.pending.look(&self.model, &self.placed, name));
        self.revision = revision;
        self.placed_at = revision;
        self.follow(&[], &clusters, shifts, revision);
    }

    /// All that the store has of where Tenants are, each with the revision of its key.
    pub fn place_anew(&mut self, placed: Placed, revision: u64) {
        let all = self.clusters.keys().cloned().collect();
        self.placed = placed;
        self.pending = Pending::of(&self.model, &self.placed);
        self.count_all_tenants();
        self.revision = revision;
        self.placed_at = revision;
        let shifts = self.shifts_of_all();
        self.follow(&[], &all, shifts, revision);
    }

    /// The VPCs of Tenants on their way of which other clusters may have sessions, by cluster.
    pub fn handovers(&self) -> Handovers {
        serving::handovers(&self.model, &self.placed, &self.pending.moving, |vpc| self.index.owner(vpc).cloned())
    }

    /// The clusters whose nodes hold a VPC.
    pub fn serving_vpc<'a>(&'a self, vpc: &'a str) -> impl Iterator<Item = &'a Name> {
        self.clusters.iter().filter(|(_, c)| c.scope.vpcs().contains(vpc)).map(|(name, _)| name)
    }

    /// The clusters whose nodes are told of a pool.
    pub fn serving_pool<'a>(&'a self, pool: &'a Name) -> impl Iterator<Item = &'a Name> {
        self.clusters.iter().filter(|(_, c)| c.scope.names(Kind::PublicPool, pool)).map(|(name, _)| name)
    }

    /// A revision that a node of a cluster must have installed to know how a pool is divided.
    pub fn divided_at(&self, pool: &str, cluster: &str) -> u64 {
        self.divided.get(pool).copied().unwrap_or(self.since).min(self.intent(cluster))
    }

    /// What is to move when VPCs and their peers are looked at; `owners` of some have changed.
    fn shifts_of(&self, seeds: &BTreeSet<Name>, owners: &HashMap<&Name, Option<&Name>>) -> Shifts {
        let owner = |vpc: &Name| owners.get(vpc).copied().unwrap_or_else(|| self.index.owner(vpc)).cloned();
        let now = || -> Box<dyn Iterator<Item = (&Name, &BTreeSet<Name>)>> {
            Box::new(self.clusters.iter().map(|(name, c)| (name, &**c.scope.vpcs())))
        };
        serving::shifts(&self.model, &self.placed, seeds, owner, now)
    }

    /// The same of the whole region, in which clusters came or went.
    fn shifts_of_all(&self) -> Shifts {
        let (mut shifts, none) = (Shifts::default(), BTreeSet::new());
        for (cluster, wanted) in served(&self.model, &self.placed) {
            let now = self.clusters.get(&cluster).map_or(&none, |c| c.scope.vpcs());
            let come: BTreeSet<Name> = wanted.difference(now).cloned().collect();
            let gone: BTreeSet<Name> = now.difference(&wanted).cloned().collect();
            shifts.clusters.insert(cluster, Shift { come, gone });
        }
        shifts.looked_at = self.model.objects(Kind::Vpc).map(|o| o.name()).collect();
        shifts
    }

    /// What a change moves that the model has taken, and nothing else follows yet.
    fn shifts(&self, pairs: &[Pair]) -> Shifts {
        if pairs.iter().any(|p| scope::kind(p) == Kind::Cluster) {
            return self.shifts_of_all();
        }
        let mut owners: HashMap<&Name, Option<&Name>> = HashMap::new();
        for (before, after) in pairs {
            if let Some(Object::Tenant(tenant)) = before {
                tenant.vpcs.iter().for_each(|vpc| _ = owners.entry(vpc).or_insert(None));
            }
            if let Some(Object::Tenant(tenant)) = after {
                owners.extend(tenant.vpcs.iter().map(|vpc| (vpc, Some(&tenant.name))));
            }
        }
        self.shifts_of(&serving::named(&self.model, pairs), &owners)
    }

    /// What is configured.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Names of its objects, for who searches.
    pub fn index(&self) -> &Index {
        &self.index
    }

    /// The revision of the last change.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Every error of documents that cannot be proposed.
    pub fn errors_of(&mut self, docs: &Documents, errors: Vec<ConfigError>, whole: bool) -> Vec<ConfigError> {
        match whole {
            true => model::every_error(docs, errors, &mut Model::new()),
            false => model::every_error(docs, errors, &mut self.model),
        }
    }

    /// Plans a change on the model. It must be discarded or committed before anything else.
    pub fn propose(&mut self, wish: &Wish<'_>, who: &Principal) -> Result<Proposal, Unfit> {
        let (Wish::Some(docs) | Wish::All(docs)) = wish;
        let kinds = docs.puts.iter().map(|i| (i.object.kind(), i.object.name(), &i.origin));
        let kinds = kinds.chain(docs.deletes.iter().map(|(kind, name, origin)| (*kind, name.clone(), origin)));
        for (kind, name, origin) in kinds {
            if kind == Kind::Handover {
                return Err(Unfit::Forbidden(format!(
                    "{}: {kind} `{name}`: the controller makes these itself while a tenant moves (`tunny move`)",
                    docs.place(origin)
                )));
            }
            if OF_MACHINES.contains(&kind) {
                return Err(Unfit::Forbidden(format!(
                    "{}: {kind} `{name}` is a matter of one machine: its node has it in its own files (`tunny node --config`)",
                    docs.place(origin)
                )));
            }
        }
        for item in &docs.puts {
            let why = match &item.object {
                Object::EdgePort(port) => edges::unfit(port).map(|why| (&port.name, why)),
                _ => None,
            };
            if let Some((name, why)) = why {
                return Err(Unfit::Forbidden(format!("{}: EdgePort `{name}`: {why}", docs.place(&item.origin))));
            }
        }
        // What it does not change, it names all the same: whether that is as described is not for everybody to know.
        for item in docs.puts.iter().filter(|_| !who.sees_all()) {
            let (kind, name) = (item.object.kind(), item.object.name());
            let pair = (self.model.get(kind, &name), Some(item.object.clone()));
            self.permit(who, kind, &name, &pair)?;
        }
        for (kind, name, _) in docs.deletes.iter().filter(|_| !who.sees_all()) {
            let pair = (self.model.get(*kind, name), None);
            if pair.0.is_some() {
                self.permit(who, *kind, name, &pair)?;
            }
        }
        let kept = self.keep_shares(docs)?;
        let wish = match wish {
            Wish::Some(docs) => Wish::Some(kept.as_ref().unwrap_or(docs)),
            Wish::All(docs) => Wish::All(kept.as_ref().unwrap_or(docs)),
        };
        self.proposed(&wish, Some(who))
    }

    /// Plans that pools are divided as these documents say.
    pub fn propose_division(&mut self, docs: &Documents) -> Result<Proposal, Unfit> {
        self.proposed(&Wish::Some(docs), None)
    }

    /// Pools stay divided as they are, whoever describes them. None: the documents say nothing else.
    fn keep_shares(&self, docs: &Documents) -> Result<Option<Documents>, Unfit> {
        let divided = |name: &str| self.model.by_name().pools.get(name).map_or(&[][..], |p| &p.shares);
        // Most changes have none, and may be large.
        let differs = |object: &Object| matches!(object, Object::PublicPool(p) if p.shares != divided(&p.name));
        if !docs.puts.iter().any(|item| differs(&item.object)) {
            return Ok(None);
        }
        let mut kept = docs.clone();
        for item in &mut kept.puts {
            let Object::PublicPool(pool) = &mut item.object else { continue };
            let now = divided(&pool.name);
            if !pool.shares.is_empty() && pool.shares != now {
                return Err(Unfit::Forbidden(format!(
                    "{}: PublicPool `{}`: spec.shares: the controller divides pools itself; leave it out",
                    docs.place(&item.origin),
                    pool.name
                )));
            }
            pool.shares = now.to_vec();
        }
        Ok(Some(kept))
    }

    fn proposed(&mut self, wish: &Wish<'_>, who: Option<&Principal>) -> Result<Proposal, Unfit> {
        let plan = match wish {
            Wish::Some(docs) => self.model.apply(docs),
            Wish::All(docs) => Model::from_documents(docs).and_then(|(new, doubts)| {
                let mut plan = self.model.replace(new)?;
                plan.warned_by(&doubts);
                Ok(plan)
            }),
        };
        let plan = plan.map_err(Unfit::Wrong)?;
        let pairs = plan.pairs(&self.model);
        let foreign = who.and_then(|who| Some((who, pairs.iter().find(|pair| !who.changes(&self.model, pair))?)));
        if let Some((who, object)) = foreign.and_then(|(who, (a, b))| Some((who, a.as_ref().or(b.as_ref())?))) {
            let refusal = who.refusal(object.kind(), &object.name());
            self.model.revert(plan);
            return Err(Unfit::Forbidden(refusal));
        }
        let operates = |o: &Object| matches!(o, Object::Role(role) if role.access == Access::Operator);
        let went = pairs.iter().any(|(before, _)| before.as_ref().is_some_and(operates));
        if went && !self.model.objects(Kind::Role).any(|role| operates(&role)) {
            self.model.revert(plan);
            return Err(Unfit::Forbidden(
                "nobody would be left who may change the region: one Role with access operator must stay".into(),
            ));
        }
        let shifts = self.shifts(&pairs);
        let now = self.clusters.iter().map(|(name, c)| (name, &**c.scope.vpcs()));
        if let Some(why) = edges::crowded(&self.model, &pairs, &shifts, now) {
            self.model.revert(plan);
            return Err(Unfit::Forbidden(why));
        }
        let mut clusters: BTreeSet<Name> =
            self.clusters.iter().filter(|(_, c)| c.scope.may_concern(&pairs)).map(|(name, _)| name.clone()).collect();
        clusters.extend(shifts.clusters.keys().cloned());
        if pairs.iter().any(joins_or_places) {
            // One that was pinned may be on its way again.
            let named =
                pairs.iter().filter(|pair| scope::kind(pair) == Kind::Tenant).flat_map(|(a, b)| a.iter().chain(b));
            let moving: BTreeSet<Name> = named.map(Object::name).chain(self.pending.moving.iter().cloned()).collect();
            let moving = moving.iter().filter_map(|name| self.placed.get(name));
            clusters.extend(moving.flat_map(|p| p.holders()).filter(|c| self.clusters.contains_key(*c)).cloned());
        }
        // One that is gone is no more, in the store too.
        clusters.extend(pairs.iter().filter_map(|(before, after)| match (before, after) {
            (Some(Object::Cluster(cluster)), None) => Some(cluster.name.clone()),
            _ => None,
        }));
        Ok(Proposal { plan, pairs, clusters: clusters.into_iter().collect(), shifts })
    }

    fn permit(&self, who: &Principal, kind: Kind, name: &str, pair: &Pair) -> Result<(), Unfit> {
        match who.changes(&self.model, pair) {
            true => Ok(()),
            false => Err(Unfit::Forbidden(who.refusal(kind, name))),
        }
    }

    /// Makes what the store has what is configured: some documents that another controller wrote, or all. Whoever wrote them was allowed to; pools are
    /// divided as they say.
    pub fn take(&mut self, wish: &Wish<'_>, revision: u64) -> Result<(), Unfit> {
        let proposal = self.proposed(wish, None)?;
        self.commit(vec![proposal], revision);
        Ok(())
    }

    /// Takes a proposal back.
    pub fn discard(&mut self, proposal: Proposal) {
        self.model.revert(proposal.plan);
    }

    /// Makes proposals what is configured: the store has them, under this revision. Several, one made on top of the other, are one change: each
    /// of them joins others.
    pub fn commit(&mut self, proposals: Vec<Proposal>, revision: u64) {
        self.revision = revision;
        let (mut clusters, mut shifts) = (BTreeSet::new(), Shifts::default());
        let (mut all, mut plans) = (Vec::new(), Vec::new());
        for proposal in proposals {
            clusters.extend(proposal.clusters);
            // Those that join others move nothing.
            shifts = proposal.shifts;
            all.push(proposal.pairs);
            plans.push(proposal.plan);
        }
        let pairs = merged(all);
        let arrivals: Vec<_> = self.arrivals(&pairs).collect();
        for (name, placement) in arrivals {
            self.placed.insert(name, Placement { revision, ..placement });
        }
        self.index.follow(&self.model, &pairs);
        self.pending.follow(&self.model, &self.placed, &pairs);
        for (before, after) in &pairs {
            for (object, is) in [(before, false), (after, true)] {
                if let Some(Object::Tenant(tenant)) = object {
                    self.count_tenant(tenant, is);
                }
            }
        }
        if pairs.iter().any(joins_or_places) {
            self.placed_at = revision;
        }
        if pairs.iter().any(divides) {
            self.pools_at = revision;
        }
        for (before, after) in &pairs {
            if let Some(Object::PublicPool(pool)) = after.as_ref().or(before.as_ref()) {
                self.divided.insert(pool.name.clone(), revision);
            }
        }
        self.follow(&pairs, &clusters, shifts, revision);
        plans.into_iter().for_each(|plan| self.listings.note(plan, &self.model));
    }

    /// Places of Tenants that come with the name of a cluster. They are noted with them, so that a Tenant which is given another name later is known to
    /// be somewhere, and moves.
    pub fn arrivals<'a>(&'a self, pairs: &'a [Pair]) -> impl Iterator<Item = (Name, Placement)> + 'a {
        pairs.iter().filter_map(|(before, after)| match (before, after) {
            (None, Some(Object::Tenant(tenant))) if !self.placed.contains_key(&tenant.name) => {
                Some((tenant.name.clone(), Placement::at(tenant.cluster.as_ref()?)))
            }
            _ => None,
        })
    }

    /// Brings what clusters hold up to date.
    fn follow(&mut self, pairs: &[Pair], clusters: &BTreeSet<Name>, shifts: Shifts, revision: u64) {
        // A change of places has no pairs.
        let handovers = (pairs.is_empty() || pairs.iter().any(joins_or_places)).then(|| self.handovers());
        let none = BTreeMap::new();
        let there = &self.model.by_name().clusters;
        self.clusters.retain(|name, _| there.contains_key(name));
        for name in clusters.iter().filter(|name| there.contains_key(*name)) {
            let shift = shifts.clusters.get(name).cloned().unwrap_or_default();
            match self.clusters.get_mut(name) {
                Some(cluster) => {
                    cluster.came.retain(|vpc, _| !shift.gone.contains(vpc));
                    cluster.came.extend(shift.come.iter().map(|vpc| (vpc.clone(), revision)));
                    let mut increment = cluster.scope.follow(&self.model, &shift, pairs);
                    if let Some(handovers) = &handovers {
                        let wanted = handovers.get(name).unwrap_or(&none);
                        cluster.scope.hand_over(wanted, increment.as_mut().unwrap_or(&mut Increment::default()));
                    }
                    match increment {
                        Some(increment) => cluster.feed.push(revision, &increment),
                        None => cluster.feed.skip(revision),
                    }
                }
                None => {
                    let came = shift.come.iter().map(|vpc| (vpc.clone(), revision)).collect();
                    let mut scope = Scope::of(&self.model, &Arc::new(shift.come));
                    let wanted = handovers.as_ref().and_then(|all| all.get(name)).unwrap_or(&none);
                    scope.hand_over(wanted, &mut Increment::default());
                    let feed = Feed::new(revision);
                    self.clusters.insert(name.clone(), Cluster { scope, feed, came });
                }
            }
        }
        self.follow_upstream(pairs, &shifts.looked_at);
    }

    /// Finds anew what hosts are told of VPCs, of which some may have got another VNI, or be gone.
    fn follow_upstream(&mut self, pairs: &[Pair], vpcs: &BTreeSet<Name>) {
        for (before, _) in pairs {
            if let Some(Object::Vpc(vpc)) = before {
                self.upstream.remove(&vpc.vni.0);
            }
        }
        for vpc in vpcs {
            let Some(view) = self.model.vpc_of_name(vpc) else { continue };
            let told = serving::told(&self.model, &self.placed, &self.index, vpc).cloned();
            match told {
                Some(cluster) => drop(self.upstream.insert(view.spec().vni.0, cluster)),
                None => drop(self.upstream.remove(&view.spec().vni.0)),
            }
        }
    }

    /// Forgets what clusters were told, since changes in between are not known: `latest` has the revision of each one's last change.
    pub fn forget_feeds(&mut self, latest: &BTreeMap<Name, u64>) {
        for (name, cluster) in &mut self.clusters {
            cluster.feed = Feed::new(latest.get(name).copied().unwrap_or(self.revision));
        }
    }

    /// Notes that the store's revision moved by something else than objects.
    pub fn passed(&mut self, revision: u64) {
        self.revision = self.revision.max(revision);
    }

    /// A listing, as of now.
    pub fn list(&self, snapshot: Snapshot) -> model::Listing {
        self.listings.begin(snapshot)
    }

    /// The cluster of a node.
    pub fn cluster_of(&self, node: &str) -> Option<Name> {
        self.model.by_name().nodes.get(node).map(|n| n.cluster.clone())
    }

    /// The revision that the nodes of a cluster shall hold.
    pub fn intent(&self, cluster: &str) -> u64 {
        self.clusters.get(cluster).map_or(0, |c| c.feed.latest())
    }

    /// The clusters that hold an object which `changed` last at a revision.
    pub fn holders(&self, object: &Object, changed: u64) -> Vec<Holder> {
        let held = self.clusters.iter().filter_map(|(name, c)| {
            let vpcs = match object {
                Object::Vpc(vpc) => std::slice::from_ref(&vpc.name),
                other => other.vpcs(),
            };
            let since = if c.scope.holds(object) {
                vpcs.iter().filter_map(|vpc| c.came.get(vpc)).fold(changed, |at, came| at.max(*came))
            } else if c.scope.names(object.kind(), &object.name()) {
                // When it came to be named here nobody knows.
                c.feed.latest().max(changed)
            } else {
                return None;
            };
            // A change of an object that is the same here is none.
            Some(Holder { cluster: name.clone(), since: since.min(c.feed.latest()) })
        });
        held.collect()
    }

    /// The next change for a node of a cluster that holds `revision`.
    pub fn behind(&self, cluster: &str, revision: u64) -> Result<Option<Arc<Change>>, Gone> {
        self.clusters.get(cluster).ok_or(Gone)?.feed.behind(revision)
    }

    /// All that a cluster holds, as of now.
    pub fn whole(&self, cluster: &str) -> Option<Whole> {
        let Cluster { scope, feed, .. } = self.clusters.get(cluster)?;
        let kinds = Kind::ALL.into_iter().filter(|k| {
            matches!(k, Kind::Vpc | Kind::Peering | Kind::Vm | Kind::Route | Kind::Snat | Kind::SecurityBinding)
                || matches!(k, Kind::Overlay | Kind::EvpnInstance | Kind::Mirror)
        });
        let listing = self.list(Snapshot::new(Wanted { kinds: kinds.collect(), vpc: None }, None));
        Some(Whole {
            revision: feed.latest(),
            vpcs: scope.vpcs().clone(),
            named: Some(scope.named().collect()),
            listing,
        })
    }
}

/// Whether a change may be one of what Tenants on their way hand over, or to whom.
fn joins_or_places(pair: &Pair) -> bool {
    matches!(scope::kind(pair), Kind::Vpc | Kind::Tenant | Kind::Cluster | Kind::Peering)
}

/// Whether a change may be one of public pools, or of who has them.
fn divides(pair: &Pair) -> bool {
    matches!(scope::kind(pair), Kind::PublicPool | Kind::ElasticIp | Kind::Snat | Kind::Node)
}

/// Changes one after the other as one: of an object that several change, what was before the first and is behind the last.
fn merged(mut all: Vec<Vec<Pair>>) -> Vec<Pair> {
    if all.len() <= 1 {
        return all.pop().unwrap_or_default();
    }
    let mut pairs: BTreeMap<(Kind, Name), Pair> = BTreeMap::new();
    for pair in all.into_iter().flatten() {
        let Some(key) = pair.0.as_ref().or(pair.1.as_ref()).map(|o| (o.kind(), o.name())) else { continue };
        match pairs.get_mut(&key) {
            Some(known) => known.1 = pair.1,
            None => drop(pairs.insert(key, pair)),
        }
    }
    pairs.into_values().filter(|(before, after)| before != after).collect()
}

/// Objects of a page of a snapshot at most: what is looked at under one lock.
const PAGE: usize = 8192;

/// A cluster's objects as they were at an instant, page by page while the region changes.
pub struct Whole {
    /// The revision of the cluster's last change.
    pub revision: u64,
    vpcs: Arc<BTreeSet<Name>>,
    named: Option<Vec<Object>>,
    listing: model::Listing,
}

impl Whole {
    /// The next objects; none at the end. An error: more has changed meanwhile than is kept.
    pub fn page(&mut self, region: &Region) -> Result<Option<Vec<Object>>, Gone> {
        if let Some(named) = self.named.take() {
            return Ok(Some(named));
        }
        while self.listing.position().is_some() {
            let mut page = self.listing.page(&region.model, PAGE);
            if self.listing.overrun() {
                return Err(Gone);
            }
            page.retain(|o| super::scope::holds(&self.vpcs, o));
            if !page.is_empty() {
                return Ok(Some(page));
            }
        }
        Ok(None)
    }
}
