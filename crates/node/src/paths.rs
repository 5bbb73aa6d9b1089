// SPDX-License-Identifier: Apache-2.0
//! Which path serves the packets of a VPC: the fast path, or the software path of the same node (`docs/design/fast-and-slow.md`). A document says it
//! (`spec.path` of a Vpc); where it does not, a managed node does as its controller decides, and any other one serves everything fast.
//!
//! Each VPC has path bits in its entry, which change by one store: a packet is served by one path or by the other, and none is lost.

use crate::kept::Kept;
use crate::service::Node;
use abi::Vni;
use model::{Model, ServedBy};
use parking_lot::Mutex;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use tables::Writer;

/// What a controller has decided for the VPCs of a cluster whose documents do not say where they are served.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Paths {
    /// Where those are served that are not named here: in software.
    pub others_in_software: bool,
    /// VPCs that the fast path serves.
    pub fast: BTreeSet<String>,
    /// VPCs that the software path serves.
    pub software: BTreeSet<String>,
}

impl Paths {
    /// Where a VPC is served.
    pub fn of(&self, vpc: &str) -> ServedBy {
        let software = self.software.contains(vpc) || self.others_in_software && !self.fast.contains(vpc);
        if software {
            ServedBy::Software
        } else {
            ServedBy::Fast
        }
    }
}

/// Enters where VPCs are served, those with these VNIs or all. `live`: those of which a flow is followed, in software whatever else is said.
pub(crate) fn enter(writer: &mut Writer, model: &Model, decided: &Paths, live: &BTreeSet<Vni>, vnis: Option<&[Vni]>) {
    let views: Box<dyn Iterator<Item = _>> = match vnis {
        Some(vnis) => Box::new(vnis.iter().filter_map(|vni| model.vpc_of_vni(*vni))),
        None => Box::new(model.vpcs_by_vni().into_values()),
    };
    let mirrored: BTreeSet<Vni> = model.mirrored_vms().into_iter().map(|(vni, _)| vni).collect();
    for (vpc, shaped) in views.map(|view| (view.spec(), view.has_shaped())) {
        let seen = shaped || mirrored.contains(&vpc.vni);
        let followed = if live.contains(&vpc.vni) { abi::POLICY_PATH_SOFTWARE } else { 0 };
        let wanted = vpc.path.bits(decided.of(&vpc.name)) | followed | if seen { abi::POLICY_SHAPED } else { 0 };
        if writer.path(vpc.vni).is_some_and(|have| have != wanted) {
            writer.set_path(vpc.vni, wanted);
        }
    }
}

/// File in the folder of the state.
const FILE: &str = "paths";

/// What the controller has decided last, kept for a start without it.
#[derive(Debug, Default)]
pub(crate) struct Decided {
    file: Kept,
    paths: Mutex<Arc<Paths>>,
}

impl Decided {
    /// From the folder of the state.
    pub(crate) fn open(state: Option<&Path>) -> Decided {
        // Until the controller has spoken.
        let (file, paths): (Kept, Paths) = Kept::open(state, FILE, "all is served fast at first");
        Decided { file, paths: Mutex::new(Arc::new(paths)) }
    }

    pub(crate) fn get(&self) -> Arc<Paths> {
        self.paths.lock().clone()
    }

    fn set(&self, paths: Paths) {
        self.file.set(&paths);
        *self.paths.lock() = Arc::new(paths);
    }
}

impl Node {
    /// What a controller has decided; without one, that everything is served fast.
    pub(crate) fn decided_paths(&self) -> Arc<Paths> {
        self.managed.as_ref().map(|managed| managed.paths.get()).unwrap_or_default()
    }

    /// The controller decides anew.
    pub(crate) fn decide_paths(&self, paths: Paths) {
        let Some(managed) = &self.managed else { return };
        let core = self.core();
        let before = managed.paths.get();
        if *before == paths {
            return;
        }
        // Who is named in neither or alike stays.
        let differ = |a: &BTreeSet<String>, b: &BTreeSet<String>| -> Vec<Vni> {
            let names = a.symmetric_difference(b).map(|name| name.as_str());
            names.filter_map(|name| Some(core.model.vpc_of_name(name)?.spec().vni)).collect()
        };
        let named = [differ(&before.fast, &paths.fast), differ(&before.software, &paths.software)].concat();
        let named = (before.others_in_software == paths.others_in_software).then_some(&named[..]);
        let live = self.hub().live.vnis();
        enter(&mut self.writer(), &core.model, &paths, &live, named);
        managed.paths.set(paths);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use compile::Compile;
    use tables::{HeapMemory, WriterOptions};

    #[test]
    fn documents_come_before_what_is_decided_and_what_is_decided_before_what_is_usual() {
        let text = "{apiVersion: tunny/v1, kind: Vpc, metadata: {name: a}, spec: {vni: 1}}
---
{apiVersion: tunny/v1, kind: Vpc, metadata: {name: b}, spec: {vni: 2, path: {vpc: software}}}
---
{apiVersion: tunny/v1, kind: Vpc, metadata: {name: c}, spec: {vni: 3, path: {vpc: fast, peerings: software, sessions: software}}}";
        let (model, _) = Model::from_documents(&model::parse_text("x.yaml", text).unwrap()).unwrap();
        let mut writer = Writer::create(Arc::new(HeapMemory::new().unwrap()), WriterOptions::default()).unwrap();
        writer.commit(&model.full_commit()).unwrap();
        let services = abi::POLICY_PATH_PEERINGS | abi::POLICY_PATH_SESSIONS;
        let all = |w: &Writer| [1, 2, 3].map(|vni| w.path(Vni(vni)).unwrap());
        enter(&mut writer, &model, &Paths::default(), &BTreeSet::new(), None);
        assert_eq!(all(&writer), [0, abi::POLICY_PATH_SOFTWARE, services]);
        let slow = Paths { others_in_software: true, ..Paths::default() };
        enter(&mut writer, &model, &slow, &BTreeSet::new(), None);
        assert_eq!(all(&writer), [abi::POLICY_PATH_SOFTWARE, abi::POLICY_PATH_SOFTWARE, services]);
        let fast = Paths { fast: ["a".to_string()].into(), ..slow };
        enter(&mut writer, &model, &fast, &BTreeSet::new(), Some(&[Vni(2), Vni(9)]));
        assert_eq!(all(&writer)[0], abi::POLICY_PATH_SOFTWARE, "only those that are named are looked at");
        enter(&mut writer, &model, &fast, &BTreeSet::new(), Some(&[Vni(1)]));
        assert_eq!(all(&writer)[0], 0);
        enter(&mut writer, &model, &fast, &[Vni(1)].into(), Some(&[Vni(1)]));
        assert_eq!(all(&writer)[0], abi::POLICY_PATH_SOFTWARE, "a flow of it is followed");
        let one = Paths { software: ["a".to_string()].into(), ..Paths::default() };
        assert_eq!(
            [one.of("a"), one.of("z"), fast.of("a"), fast.of("z")].map(|s| s == ServedBy::Software),
            [true, false, false, true]
        );
    }
}
