// SPDX-License-Identifier: Apache-2.0
//! Listings of objects and of counters of VMs, in pages: the configuration's lock is held for a page and no longer, so that
//! changes come between, and no listing is ever in memory as a whole. A listing tells what was when it began
//! (`model::Snapshot`).

use crate::error::NodeError;
use crate::service::Node;
use crate::sessions::SessionQuery;
use crate::tabledump::Cursor;
use crate::types::{ListEnd, VmCounters};
use abi::Vni;
use model::{Kind, Listing, Model, Object, Position, Selector, Snapshot, Wanted};
use serde::Deserialize;
use std::net::IpAddr;
use std::sync::Arc;

/// Objects of a page.
const PAGE: usize = 1024;

/// Which objects, and how many.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
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
    /// What the tables hold, not what is configured.
    pub tables: bool,
}

pub(crate) fn unknown_kind(kind: &str) -> NodeError {
    NodeError::Request(format!("{}, and all", Kind::unknown(kind)))
}

/// The kinds that a word means.
fn kinds(kind: &str) -> Result<Vec<Kind>, NodeError> {
    match kind {
        "all" => Ok(Kind::ALL.into_iter().filter(|k| !k.is_of_region()).collect()),
        word => match Kind::from_name(word).ok_or_else(|| unknown_kind(word))? {
            kind if kind.is_of_region() => Err(NodeError::Request(format!(
                "{kind} is a kind of the region, of which a node knows nothing: ask the controller (`tunny --server URL get {}`)",
                model::plain(word)
            ))),
            kind => Ok(vec![kind]),
        },
    }
}

/// A kind as documents spell it, however it was asked for.
fn spelled(kind: &str) -> String {
    Kind::from_name(kind).map_or(kind.to_string(), |k| k.to_string())
}

fn absent(what: &str, name: &str) -> NodeError {
    NodeError::Absent(format!(
        "there is no {what} named `{name}` on this node; `tunny get {}` lists those that there are",
        what.to_lowercase()
    ))
}

/// Refuses a name that no object of a kind has.
pub(crate) fn known(model: &Model, kind: Kind, name: &str) -> Result<(), NodeError> {
    match model.get(kind, name) {
        Some(_) => Ok(()),
        None => Err(absent(kind.name(), name)),
    }
}

/// Refuses addresses that nothing has, of a question to which nothing was found: a slip of the hand is no empty answer.
pub(crate) fn known_addresses(model: &Model, query: &SessionQuery) -> Result<(), NodeError> {
    let vpc = query.vpc.as_deref();
    if let Some(vm) = query.vm.filter(|a| !model.has_inner_address(vpc, *a)) {
        let place = vpc.map_or("any Vpc".to_string(), |vpc| format!("Vpc `{vpc}`"));
        return Err(NodeError::Absent(format!("no Vm and no Server of {place} has the address {vm}")));
    }
    match query.public.filter(|a| !model.has_public_address(*a)) {
        Some(public) => {
            Err(NodeError::Absent(format!("{public} lies in no PublicPool, and in no ipv6Prefixes of a Snat")))
        }
        None => Ok(()),
    }
}

impl ListQuery {
    /// Which objects are chosen by what stands in them.
    fn selector(&self, kind: &str) -> Result<Selector, NodeError> {
        let fields = Selector::parse(&self.fields, &kinds(kind)?);
        fields.and_then(|fields| fields.labelled(&self.labels)).map_err(NodeError::Request)
    }

    fn snapshot(&self, kind: &str, model: &Model) -> Result<Snapshot, NodeError> {
        let kinds = kinds(kind)?;
        if !self.vpc.is_empty() {
            if !kinds.iter().all(|k| k.is_of_vpcs()) {
                let known = Kind::ALL.into_iter().filter(|k| k.is_of_vpcs());
                let known = known.map(|k| k.name().to_lowercase()).collect::<Vec<_>>().join(", ");
                return Err(NodeError::Request(format!("`{kind}` cannot be chosen by VPC; that can {known}")));
            }
            known(model, Kind::Vpc, &self.vpc)?;
        }
        let from: Option<Position> = match self.from.as_str() {
            "" => None,
            from => Some(from.parse().map_err(NodeError::Request)?),
        };
        if from.as_ref().is_some_and(|f| !kinds.contains(&f.kind())) {
            return Err(NodeError::Request(format!("`{}` is no place in a listing of `{kind}`", self.from)));
        }
        let vpc = (!self.vpc.is_empty()).then(|| self.vpc.as_str().into());
        Ok(Snapshot::new(Wanted { kinds, vpc }, from))
    }
}

/// A listing of the configuration.
struct Objects {
    node: Arc<Node>,
    snapshot: Listing,
    selector: Selector,
    left: u64,
}

impl Objects {
    fn page(&mut self) -> Result<Vec<Object>, NodeError> {
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(PAGE);
        let mut page = {
            let core = self.node.core();
            self.snapshot.page(&core.model, most)
        };
        page.retain(|o| self.selector.takes(o));
        if self.snapshot.overrun() {
            return Err(NodeError::Request(
                "too much changed while this was listed: it ends here, incomplete; list again".into(),
            ));
        }
        // What was kept of a stretch comes on top of what is there.
        self.left = self.left.saturating_sub(page.len() as u64);
        Ok(page)
    }

    fn done(&self) -> bool {
        self.snapshot.position().is_none()
    }
}

/// A listing as lines of JSON: one an object, and one at the end.
pub struct Lines<T> {
    pages: T,
    count: u64,
    ended: bool,
}

/// What is listed in pages.
pub trait Pages {
    /// The lines of the next page, and how many.
    fn next_page(&mut self) -> Result<(Vec<u8>, u64), NodeError>;
    /// Whether nothing may follow, by the limit or by the end.
    fn over(&self) -> bool;
    /// Where to go on, if the limit ended it.
    fn rest(&mut self) -> Option<String>;
}

impl<T: Pages> Iterator for Lines<T> {
    type Item = Vec<u8>;

    fn next(&mut self) -> Option<Vec<u8>> {
        if self.ended {
            return None;
        }
        let mut end = ListEnd::default();
        if !self.pages.over() {
            match self.pages.next_page() {
                Ok((text, n)) => {
                    self.count += n;
                    return Some(text);
                }
                Err(e) => end.error = e.to_string(),
            }
        } else {
            end.rest = self.pages.rest().unwrap_or_default();
        }
        (self.ended, end.count) = (true, self.count);
        Some(format!("{}\n", serde_json::json!({ "end": end })).into_bytes())
    }
}

impl Pages for Objects {
    fn next_page(&mut self) -> Result<(Vec<u8>, u64), NodeError> {
        let page = self.page()?;
        let mut text = Vec::with_capacity(page.len() * 200);
        for object in &page {
            text.extend_from_slice(object.to_ndjson().as_bytes());
            text.push(b'\n');
        }
        Ok((text, page.len() as u64))
    }

    fn over(&self) -> bool {
        self.left == 0 || self.done()
    }

    fn rest(&mut self) -> Option<String> {
        let at = self.snapshot.position().map(|at| at.to_string())?;
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

/// A listing of counters.
struct Counted(Objects);

impl Counted {
    fn counters(&mut self) -> Result<Vec<VmCounters>, NodeError> {
        let vms = self.0.page()?;
        Ok(self.0.node.count(vms))
    }
}

impl Pages for Counted {
    fn next_page(&mut self) -> Result<(Vec<u8>, u64), NodeError> {
        let (mut text, list) = (Vec::new(), self.counters()?);
        for counters in &list {
            // Writing to memory cannot fail.
            let _ = serde_json::to_writer(&mut text, counters);
            text.push(b'\n');
        }
        Ok((text, list.len() as u64))
    }

    fn over(&self) -> bool {
        self.0.over()
    }

    fn rest(&mut self) -> Option<String> {
        self.0.rest()
    }
}

/// A listing of what the tables hold.
struct Rows {
    node: Arc<Node>,
    cursor: Cursor,
    left: u64,
}

impl Rows {
    /// The next objects; none at the end.
    fn some(&mut self) -> Vec<serde_json::Value> {
        let mut list = Vec::new();
        while list.is_empty() && !self.cursor.over() {
            list = self.node.table_page(&mut self.cursor, usize::try_from(self.left).unwrap_or(usize::MAX));
        }
        self.left = self.left.saturating_sub(list.len() as u64);
        list
    }
}

impl Pages for Rows {
    fn next_page(&mut self) -> Result<(Vec<u8>, u64), NodeError> {
        let list = self.some();
        Ok((text_of(&list), list.len() as u64))
    }

    fn over(&self) -> bool {
        self.left == 0 || self.cursor.over()
    }

    fn rest(&mut self) -> Option<String> {
        self.left = 1;
        // The tables have no order to go on in.
        (!self.some().is_empty()).then(|| "-".to_string())
    }
}

/// Lines that are at hand.
struct AtHand(Vec<u8>, u64, bool);

impl Pages for AtHand {
    fn next_page(&mut self) -> Result<(Vec<u8>, u64), NodeError> {
        self.2 = true;
        Ok((std::mem::take(&mut self.0), self.1))
    }

    fn over(&self) -> bool {
        self.2
    }

    fn rest(&mut self) -> Option<String> {
        None
    }
}

/// A listing for the API.
pub type Text = Box<dyn Iterator<Item = Vec<u8>> + Send>;

/// A listing as text, with its end.
pub fn lines<T: Pages + Send + 'static>(pages: T) -> Text {
    Box::new(Lines { pages, count: 0, ended: false })
}

fn at_hand(list: Vec<serde_json::Value>) -> Text {
    lines(AtHand(text_of(&list), list.len() as u64, false))
}

fn text_of(list: &[serde_json::Value]) -> Vec<u8> {
    list.iter().flat_map(|o| format!("{o}\n").into_bytes()).collect()
}

impl Node {
    fn listing(self: &Arc<Self>, kind: &str, query: &ListQuery) -> Result<Objects, NodeError> {
        let selector = query.selector(kind)?;
        let core = self.core();
        let snapshot = self.listings.begin(query.snapshot(kind, &core.model)?);
        let left = if query.limit == 0 { u64::MAX } else { query.limit };
        Ok(Objects { node: self.clone(), snapshot, selector, left })
    }

    /// `GET /v1/objects/KIND`: what is configured, or with `tables` what the tables hold.
    pub fn objects(self: &Arc<Self>, kind: &str, query: &ListQuery) -> Result<Text, NodeError> {
        let plain = ListQuery { name: String::new(), ..query.clone() };
        match (query.tables, query.name.as_str()) {
            (true, name) => {
                if !(query.vpc.is_empty()
                    && query.from.is_empty()
                    && query.fields.is_empty()
                    && query.labels.is_empty())
                {
                    return Err(NodeError::Request(
                        "what the tables hold is listed whole: it knows neither `vpc`, `fields`, `labels` nor `continue`".into(),
                    ));
                }
                let cursor = self.table_cursor(kind, name)?;
                let mut held =
                    Rows { node: self.clone(), cursor, left: if query.limit == 0 { u64::MAX } else { query.limit } };
                if name.is_empty() {
                    return Ok(lines(held));
                }
                let list = held.some();
                if list.is_empty() {
                    return Err(NodeError::Absent(format!(
                        "the tables have no {} named `{name}`; `tunny get {kind} --tables` lists what they have",
                        spelled(kind)
                    )));
                }
                Ok(at_hand(list))
            }
            (false, "") => Ok(lines(self.listing(kind, query)?)),
            (false, name) => {
                let wanted = plain.snapshot(kind, &self.core().model)?;
                let core = self.core();
                let found =
                    kinds(kind)?.into_iter().filter_map(|k| core.model.get(k, name)).filter(|o| wanted.takes(o));
                let selector = query.selector(kind)?;
                let found: Vec<_> = found.filter(|o| selector.takes(o)).map(|o| o.to_json()).collect();
                match found.is_empty() {
                    true if kind == "all" => {
                        Err(NodeError::Absent(format!("there is no object named `{name}` on this node")))
                    }
                    true if !query.vpc.is_empty() => {
                        let kind = spelled(kind);
                        Err(NodeError::Absent(format!("there is no {kind} named `{name}` in Vpc `{}`", query.vpc)))
                    }
                    true => Err(absent(&spelled(kind), name)),
                    false => Ok(at_hand(found)),
                }
            }
        }
    }

    /// `GET /v1/vm-counters`: of one VM, of those of a VPC, or of all.
    pub fn vm_counters(self: &Arc<Self>, query: &ListQuery) -> Result<Text, NodeError> {
        if query.tables || !query.fields.is_empty() || !query.labels.is_empty() {
            return Err(NodeError::Request("counters of VMs know neither `tables`, `fields` nor `labels`".into()));
        }
        if query.name.is_empty() {
            return Ok(lines(Counted(self.listing("vm", query)?)));
        }
        let list = self.counters_of(&query.name)?;
        Ok(at_hand(list.iter().map(|c| serde_json::json!(c)).collect()))
    }

    /// The counters of one VM.
    pub fn counters_of(&self, vm: &str) -> Result<Vec<VmCounters>, NodeError> {
        let vm = self.core().model.get(Kind::Vm, vm).ok_or_else(|| absent("Vm", vm))?;
        Ok(self.count(vec![vm]))
    }

    /// The counters of all VMs, or of so many, page by page.
    pub fn each_vm(self: &Arc<Self>, most: u64, mut take: impl FnMut(VmCounters)) {
        let Ok(mut pages) = self.listing("vm", &ListQuery { limit: most, ..Default::default() }).map(Counted) else {
            return;
        };
        while !pages.over() {
            match pages.counters() {
                Ok(list) => list.into_iter().for_each(&mut take),
                Err(e) => return tracing::warn!("counters of VMs: {e}"),
            }
        }
    }

    /// Reads the counters of VMs; those that the tables do not have are left out.
    fn count(&self, vms: Vec<Object>) -> Vec<VmCounters> {
        let (mut list, mut places) = (Vec::new(), Vec::new());
        {
            let core = self.core();
            let mut last: Option<(model::Name, Vni)> = None;
            for object in vms {
                let name = object.name().to_string();
                let Object::Vm(vm) = object else { continue };
                if last.as_ref().is_none_or(|(vpc, _)| *vpc != vm.vpc) {
                    let Some(Object::Vpc(vpc)) = core.model.get(Kind::Vpc, &vm.vpc) else { continue };
                    last = Some((vm.vpc.clone(), vpc.vni));
                }
                places.extend(last.as_ref().map(|(_, vni)| (name, *vni, vm.addresses[0])));
            }
        }
        let tables = self.tables();
        tables.memory().gather();
        let _guard = tables.enter();
        for (name, vni, address) in places {
            let Some(tenant) = tables.tenant(vni) else { continue };
            let entry = match address {
                IpAddr::V4(a) => tables.vm4(vni, a.to_bits(), tenant.generation()),
                IpAddr::V6(a) => {
                    let bits = a.to_bits();
                    tables.vm6(vni, ((bits >> 64) as u64, bits as u64), tenant.generation())
                }
            };
            let Some(entry) = entry else { continue };
            let (count, before) = (tables.vm_count(entry.vm), self.counts_before.vm(&name));
            list.push(VmCounters {
                vm: name,
                packets: count.packets + before.packets,
                bytes: count.bytes + before.bytes,
            });
        }
        list
    }
}
