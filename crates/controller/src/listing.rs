// SPDX-License-Identifier: Apache-2.0
//! `GET /v1/objects/KIND`: objects as they were when the listing began, in pages; what the caller may not see is passed over.

use crate::refusal::Refusal;
use crate::service::{absent, Controller};
use controller_core::access::Principal;
use model::{Kind, Listing, Object, Position, Selector, Snapshot, Wanted};
use node::error::NodeError;
use node::listing::{lines, Pages, Text};
use schemars::JsonSchema;
use serde::Deserialize;
use std::sync::Arc;

/// Objects of a page.
const PAGE: u64 = 1024;

/// Which objects, and how many.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ListQuery {
    /// The one of this name.
    pub name: String,
    /// Those of this VPC.
    pub vpc: String,
    /// Those whose fields are so.
    pub fields: String,
    /// Those whose labels are so, as in `tunny get -l`.
    pub labels: String,
    /// So many; 0: all.
    pub limit: u64,
    /// From where another listing was cut.
    #[serde(rename = "continue")]
    pub from: String,
}

fn wrong(why: String) -> Refusal {
    Refusal::Wrong(vec![why])
}

/// The kinds that a word means.
pub fn kinds(word: &str) -> Result<Vec<Kind>, Refusal> {
    match word {
        "all" => Ok(Kind::ALL.to_vec()),
        word => Ok(vec![Kind::from_name(word).ok_or_else(|| wrong(format!("{}, and all", Kind::unknown(word))))?]),
    }
}

/// The listing, and the revision that it is of.
pub fn list(
    controller: &Arc<Controller>,
    who: &Principal,
    kind: &str,
    query: &ListQuery,
) -> Result<(Text, u64), Refusal> {
    let kinds = kinds(kind)?;
    let selector = Selector::parse(&query.fields, &kinds).and_then(|s| s.labelled(&query.labels)).map_err(wrong)?;
    let core = controller.core();
    let (model, revision) = (core.region.model(), core.region.revision());
    let vpc = match query.vpc.as_str() {
        "" => None,
        vpc => {
            if let Some(kind) = kinds.iter().find(|k| !k.is_of_vpcs()) {
                return Err(wrong(format!("{kind} cannot be chosen by VPC")));
            }
            let found = model.get(Kind::Vpc, vpc).filter(|o| who.sees(model, o));
            Some(found.ok_or_else(|| absent(Kind::Vpc, vpc))?.name())
        }
    };
    if !query.name.is_empty() {
        let found = kinds.iter().filter_map(|k| model.get(*k, &query.name));
        let wanted = |o: &Object| vpc.as_ref().is_none_or(|vpc| o.vpcs().contains(vpc)) && selector.takes(o);
        let found: Vec<Object> = found.filter(|o| who.sees(model, o) && wanted(o)).collect();
        if found.is_empty() {
            let kind = kinds.first().filter(|_| kinds.len() == 1);
            let none = || Refusal::Absent(format!("there is no object named `{}`", model::plain(&query.name)));
            return Err(kind.map_or_else(none, |kind| absent(*kind, &query.name)));
        }
        return Ok((lines(AtHand(Some(found))), revision));
    }
    let from: Option<Position> = match query.from.as_str() {
        "" => None,
        from => Some(from.parse().map_err(wrong)?),
    };
    if from.as_ref().is_some_and(|from| !kinds.contains(&from.kind())) {
        return Err(wrong(format!(
            "`{}` is no place in a listing of `{}`",
            model::plain(&query.from),
            model::plain(kind)
        )));
    }
    let listing = core.region.list(Snapshot::new(Wanted { kinds, vpc }, from));
    let left = if query.limit == 0 { u64::MAX } else { query.limit };
    let (controller, who) = (controller.clone(), who.clone());
    drop(core);
    Ok((lines(Objects { controller, who, listing, selector, left }), revision))
}

/// Objects that are at hand.
struct AtHand(Option<Vec<Object>>);

impl Pages for AtHand {
    fn next_page(&mut self) -> Result<(Vec<u8>, u64), NodeError> {
        Ok(text_of(&self.0.take().unwrap_or_default()))
    }

    fn over(&self) -> bool {
        self.0.is_none()
    }

    fn rest(&mut self) -> Option<String> {
        None
    }
}

/// A listing that runs.
struct Objects {
    controller: Arc<Controller>,
    who: Principal,
    listing: Listing,
    selector: Selector,
    left: u64,
}

impl Objects {
    fn page(&mut self) -> Result<Vec<Object>, NodeError> {
        let mut page = {
            let core = self.controller.core();
            let model = core.region.model();
            let mut page = self.listing.page(model, self.left.min(PAGE) as usize);
            page.retain(|o| self.who.sees(model, o));
            page
        };
        if self.listing.overrun() {
            return Err(NodeError::Request(
                "too much changed while this was listed: it ends here, incomplete; list again".into(),
            ));
        }
        page.retain(|o| self.selector.takes(o));
        self.left = self.left.saturating_sub(page.len() as u64);
        Ok(page)
    }
}

impl Pages for Objects {
    fn next_page(&mut self) -> Result<(Vec<u8>, u64), NodeError> {
        Ok(text_of(&self.page()?))
    }

    fn over(&self) -> bool {
        self.left == 0 || self.listing.position().is_none()
    }

    fn rest(&mut self) -> Option<String> {
        let at = self.listing.position()?.to_string();
        // Perhaps nothing follows.
        self.left = 1;
        while !self.over() {
            if !self.page().ok()?.is_empty() {
                return Some(at);
            }
        }
        None
    }
}

fn text_of(objects: &[Object]) -> (Vec<u8>, u64) {
    let mut text = Vec::with_capacity(objects.len() * 200);
    for object in objects {
        text.extend_from_slice(object.to_ndjson().as_bytes());
        text.push(b'\n');
    }
    (text, objects.len() as u64)
}
