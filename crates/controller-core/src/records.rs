// SPDX-License-Identifier: Apache-2.0
//! What the store is to have: of a change, of places. Whoever keeps the store writes it as one transaction, and only then does the region follow.

use super::moving::Placement;
use super::region::{Places, Proposal, Region};
use model::{Kind, Name, Object};
use std::collections::BTreeMap;

/// What the store is to have of something.
#[derive(Clone, Debug, PartialEq)]
pub enum Record {
    /// An object; none: it is gone.
    Object(Kind, Name, Option<Object>),
    /// A cluster that is there, whose last change this is, or one that is gone.
    Latest(Name, bool),
    /// Where a Tenant is; none: nowhere.
    Place(Name, Option<Placement>),
}

impl Region {
    /// What proposals write: the objects as the last one has them, and which clusters they may concern.
    pub fn records<'a>(&self, proposals: impl Iterator<Item = &'a Proposal> + Clone) -> Vec<Record> {
        let there = &self.model().by_name().clusters;
        let pairs = || proposals.clone().flat_map(|p| &p.pairs);
        let objects = pairs().filter_map(|(before, after)| {
            let named = after.as_ref().or(before.as_ref())?;
            Some(Record::Object(named.kind(), named.name(), after.clone()))
        });
        let clusters = proposals.clone().flat_map(|p| &p.clusters);
        let clusters = clusters.map(|name| Record::Latest(name.clone(), there.contains_key(name)));
        let places = proposals.clone().flat_map(|p| self.arrivals(&p.pairs));
        let places = places.map(|(tenant, placement)| Record::Place(tenant, Some(placement)));
        let all = objects.chain(clusters).chain(places);
        if proposals.clone().count() == 1 {
            return all.collect();
        }
        // Nothing is written twice in one transaction.
        let mut last: BTreeMap<(u8, Option<Kind>, Name), Record> = BTreeMap::new();
        for record in all {
            let key = match &record {
                Record::Object(kind, name, _) => (0, Some(*kind), name.clone()),
                Record::Latest(name, _) => (1, None, name.clone()),
                Record::Place(name, _) => (2, None, name.clone()),
            };
            last.insert(key, record);
        }
        last.into_values().collect()
    }

    /// What changes of places write.
    pub fn records_of_places(&self, changes: &Places) -> Vec<Record> {
        let places = changes.iter().map(|(tenant, place)| Record::Place(tenant.clone(), place.clone()));
        let clusters = self.concerned(changes).into_iter().map(|cluster| Record::Latest(cluster, true));
        places.chain(clusters).collect()
    }
}
