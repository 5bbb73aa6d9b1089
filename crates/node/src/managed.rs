// SPDX-License-Identifier: Apache-2.0
//! A node whose configuration comes from a controller. Its Gateway is its own; all else it takes from there, keeps on disk as any other
//! configuration, and forwards by it whether the controller is there or not. What is changed here by hand is refused, unless the
//! operator breaks the glass: then the node says that it differs until it is given everything anew.

use crate::consent::{Authority, Consent};
use crate::distribution::Report;
use crate::error::NodeError;
use crate::kept::Kept;
use crate::paths::Decided;
use crate::probes::{self, Due, AT_ONCE};
use crate::service::{sentences, Change, Node};
use crate::types::{ApplyReport, ControllerView};
use crate::usage::Usage;
use model::{Documents, Kind, Model, Name, Object};
use parking_lot::{Condvar, Mutex};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;
use tokio::sync::Notify;

/// File in the folder of the state.
const FILE: &str = "controller";

/// How far a node has followed its controller.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Followed {
    /// What names the region.
    pub region: String,
    /// The cluster whose objects these are.
    pub cluster: String,
    /// The node's name there.
    pub node: String,
    /// The revision that is in force here.
    pub revision: u64,
    /// Something was changed here by hand since the last snapshot.
    pub drift: bool,
    /// It serves in the region, as the controller said last.
    pub admitted: bool,
}

/// What a managed node knows of its controller.
#[derive(Debug, Default)]
pub struct Managed {
    url: String,
    file: Kept,
    state: Mutex<(Followed, Outlook)>,
    /// Where VPCs are served, as the controller decided last.
    pub(crate) paths: Decided,
    /// Wakes who verifies.
    rush: Condvar,
    /// Wakes who probes.
    soon: Condvar,
    /// There is something to tell the controller.
    news: Notify,
}

/// How it goes at present.
#[derive(Clone, Debug, Default)]
struct Outlook {
    connected: bool,
    /// Why there is no connection.
    trouble: String,
    /// Why the next revision is not in force.
    errors: Vec<String>,
    /// The revision up to which all that is in force was found in the tables.
    verified: u64,
    /// What is not in the tables as it is configured.
    faults: Vec<String>,
    /// Everything is to be looked at, soon.
    rush: bool,
    /// What is to be probed.
    due: Option<Due>,
    /// What probes came to; none: none were made.
    probes: Option<probes::Report>,
    /// Why it is not admitted.
    why: String,
}

impl Managed {
    /// By the controller at `url`; what is known of it is in the folder of the state.
    pub fn open(url: &str, state: Option<&Path>) -> Managed {
        let (file, followed) = Kept::open(state, FILE, "everything is asked for anew");
        let paths = Decided::open(state);
        Managed {
            url: url.into(),
            file,
            state: Mutex::new((followed, Outlook::default())),
            paths,
            ..Managed::default()
        }
    }

    /// How far it got.
    pub fn followed(&self) -> Followed {
        self.state.lock().0.clone()
    }

    /// Notes how far it got. It is on disk behind the configuration itself: after a crash it may say less than is there, and what
    /// comes twice changes nothing.
    pub(crate) fn note(&self, change: impl FnOnce(&mut Followed)) {
        let mut state = self.state.lock();
        let mut now = state.0.clone();
        change(&mut now);
        if now == state.0 {
            return;
        }
        state.0 = now;
        self.file.set(&state.0);
    }

    /// Notes whether the controller is there; `why` not. Whether that is news.
    pub(crate) fn connection(&self, connected: bool, why: &str) -> bool {
        let outlook = &mut self.state.lock().1;
        let news = (outlook.connected, outlook.trouble.as_str()) != (connected, why);
        (outlook.connected, outlook.trouble) = (connected, why.into());
        news
    }

    /// What the controller is told.
    pub(crate) fn report(&self) -> Report {
        let (followed, outlook) = &*self.state.lock();
        Report {
            installed: followed.revision,
            // Of another region or cluster it was another one.
            verified: outlook.verified.min(followed.revision),
            faults: outlook.faults.clone(),
            errors: outlook.errors.clone(),
            drift: followed.drift,
            version: env!("CARGO_PKG_VERSION").into(),
            usage: Usage::default(),
            probes: outlook.probes.clone(),
            admitted: followed.admitted,
            addresses: Vec::new(),
            handovers: Default::default(),
            left: Default::default(),
            idle: Default::default(),
        }
    }

    /// What an operator sees.
    pub(crate) fn view(&self) -> ControllerView {
        let (followed, outlook) = self.state.lock().clone();
        ControllerView {
            url: self.url.clone(),
            node: followed.node,
            cluster: followed.cluster,
            revision: followed.revision,
            verified: outlook.verified.min(followed.revision),
            faults: outlook.faults,
            drift: followed.drift,
            connected: outlook.connected,
            trouble: outlook.trouble,
            errors: outlook.errors,
            admission: outlook.probes.map(|_| followed.admitted),
            why: outlook.why,
        }
    }

    /// Whether the region admits this node, and why not.
    pub(crate) fn admission(&self, admitted: bool, why: &str) {
        self.note(|f| f.admitted = admitted);
        self.state.lock().1.why = why.into();
    }

    /// What an operator must know.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let view = self.view();
        let lost = (!view.connected).then(|| {
            format!(
                "the controller at {} is not there, so the configuration stays as it is: {}",
                view.url, view.trouble
            )
        });
        let drift = view.drift.then(|| {
            "the configuration was changed here by hand (--break-glass): `tunny --server URL resync NODE` makes it the region's again".into()
        });
        let refused =
            view.errors.first().map(|e| format!("what the controller sent cannot be brought into force: {e}"));
        let damaged = view.faults.first().map(|f| format!("what is in the tables is not what is configured: {f}"));
        let out = (view.admission == Some(false)).then(|| format!("the region does not admit this node: {}", view.why));
        lost.into_iter().chain(drift).chain(refused).chain(damaged).chain(out).collect()
    }

    /// A look at everything, begun when `revision` was in force, has found these differences.
    pub(crate) fn verified(&self, revision: u64, faults: Vec<String>) {
        let outlook = &mut self.state.lock().1;
        for fault in faults.iter().filter(|f| !outlook.faults.contains(f)) {
            tracing::error!("what is in the tables is not what is configured: {fault}");
        }
        let raised = faults.is_empty() && revision > outlook.verified;
        if raised || faults != outlook.faults {
            self.news.notify_one();
        }
        outlook.verified = if raised { revision } else { outlook.verified };
        outlook.faults = faults;
    }

    /// Revisions that were verified were another region's.
    pub(crate) fn nothing_verified(&self) {
        let outlook = &mut self.state.lock().1;
        outlook.verified = 0;
        outlook.due = Some(Due::default());
        self.soon.notify_one();
    }

    /// A look at what a change has touched, which made `revision` of `before`.
    fn verified_change(&self, (before, revision): (u64, u64), (faults, all): (Vec<String>, bool)) {
        let outlook = &mut self.state.lock().1;
        if faults.is_empty() && all && outlook.verified >= before {
            outlook.verified = revision;
        } else {
            outlook.rush = true;
            self.rush.notify_one();
        }
    }

    /// Waits, or until everything is to be looked at soon: then true.
    pub(crate) fn wait_for_rush(&self, pause: Duration) -> bool {
        let mut state = self.state.lock();
        if !state.1.rush {
            self.rush.wait_for(&mut state, pause);
        }
        std::mem::take(&mut state.1.rush)
    }

    /// What is to be probed next.
    pub(crate) fn due_probes(&self) -> Option<Due> {
        self.state.lock().1.due.take()
    }

    /// Waits, or until something is to be probed.
    pub(crate) fn wait_for_probes(&self, pause: Duration) {
        let mut state = self.state.lock();
        if state.1.due.is_none() {
            self.soon.wait_for(&mut state, pause);
        }
    }

    /// VPCs are to be probed.
    fn probe_soon(&self, due: Due) {
        let outlook = &mut self.state.lock().1;
        outlook.due = Some(match outlook.due.take() {
            Some(before) => before.and(due),
            None => due,
        });
        self.soon.notify_one();
    }

    /// What probes came to.
    pub(crate) fn probed(&self, report: &probes::Report) {
        let outlook = &mut self.state.lock().1;
        let mut report = report.clone();
        if outlook.due.as_ref().is_some_and(|due| due.revision == 0) {
            // What was probed was another region's.
            report.revision = 0;
        }
        if outlook.probes.as_ref() != Some(&report) {
            outlook.probes = Some(report);
            self.news.notify_one();
        }
    }

    /// Waits until there is something to tell the controller.
    pub(crate) async fn news(&self) {
        self.news.notified().await;
    }

    fn refuses(&self) -> NodeError {
        NodeError::Managed { url: self.url.clone() }
    }
}

/// Whether a node has all of this for itself.
pub(crate) fn is_own(docs: &Documents) -> bool {
    docs.puts.iter().map(|i| i.object.kind()).chain(docs.deletes.iter().map(|d| d.0)).all(|kind| kind == Kind::Gateway)
}

/// Refuses documents of kinds that are the controller's.
pub(crate) fn no_region(docs: &Documents) -> Result<(), NodeError> {
    let puts = docs.puts.iter().map(|i| (i.object.kind(), i.object.name(), &i.origin));
    let deletes = docs.deletes.iter().map(|(kind, name, origin)| (*kind, name.clone(), origin));
    let foreign = puts.chain(deletes).filter(|(kind, ..)| kind.is_of_region());
    let told: Vec<String> = foreign
        .take(model::ERRORS_MAX)
        .map(|(kind, name, origin)| {
            let place = docs.place(origin);
            let place = if place.file.is_empty() { String::new() } else { format!("{place}: ") };
            format!("{place}{}", of_region(kind, &name))
        })
        .collect();
    match told.is_empty() {
        true => Ok(()),
        false => Err(NodeError::Config(told)),
    }
}

/// An EdgePort of a region, where there is none.
fn of_a_node(port: &Object) -> Option<String> {
    let Object::EdgePort(port) = port else { return None };
    let node = port.node.as_ref()?;
    Some(format!(
        "EdgePort {}: spec.node is `{node}`, but no controller tells this node how it is called: leave it out, and write `spec.interface` for a port that is here, or `spec.at` for one at another node",
        model::plain(&port.name)
    ))
}

/// Refuses EdgePorts of a region where there is none.
pub(crate) fn no_ports_of_nodes(docs: &Documents) -> Result<(), NodeError> {
    let told = |item: &model::Item| Some(format!("{}: {}", docs.place(&item.origin), of_a_node(&item.object)?));
    match docs.puts.iter().find_map(told) {
        Some(why) => Err(NodeError::Config(vec![why])),
        None => Ok(()),
    }
}

fn of_region(kind: Kind, name: &str) -> String {
    let name = if name.is_empty() { String::new() } else { format!(" {}", model::plain(name)) };
    format!("{kind}{name}: a node takes no {kind}, which is a kind of the region: send it to the controller (`tunny --server URL apply`)")
}

impl Node {
    /// Refuses what this node does not take from whom it comes.
    pub(crate) fn may_change(&self, change: &Change<'_>, consent: &Consent) -> Result<(), NodeError> {
        match change {
            Change::Documents(docs) => {
                no_region(docs)?;
                if self.managed.is_none() {
                    no_ports_of_nodes(docs)?;
                }
            }
            Change::Everything(model, _) => {
                let mut ports = model.objects(Kind::EdgePort).filter(|_| self.managed.is_none());
                if let Some(why) = ports.find_map(|port| of_a_node(&port)) {
                    return Err(NodeError::Request(why));
                }
                if let Some(kind) = Kind::ALL.into_iter().find(|k| k.is_of_region() && model.counts().of(*k) > 0) {
                    return Err(NodeError::Request(of_region(kind, "")));
                }
            }
        }
        match &self.managed {
            Some(managed) if consent.authority == Authority::Local && !consent.dry_run => match change {
                Change::Documents(docs) if is_own(docs) => Ok(()),
                _ => Err(managed.refuses()),
            },
            _ => Ok(()),
        }
    }

    /// How the region calls this node: by that it knows what of a pool is its own.
    pub(crate) fn called(&self, name: &str) {
        let mut core = self.core();
        if core.model.own_name() != Some(name) {
            core.model.set_own_name(Some(name.into()));
        }
    }

    /// Notes a change that was made here by hand.
    pub(crate) fn note_drift(&self, consent: &Consent) {
        if let (Some(managed), Authority::BreakGlass) = (&self.managed, consent.authority) {
            managed.note(|f| f.drift = true);
        }
    }

    /// Brings into force what the controller sent: all of it, or a change. Errors stay until something is brought into force.
    pub(crate) fn install(&self, docs: &Documents, whole: bool, revision: u64) -> Result<(), NodeError> {
        let Some(managed) = &self.managed else { return Ok(()) };
        let consent = Consent { authority: Authority::Controller, ..Consent::default() };
        let own = self.core().model.own_name().map(String::from);
        let result = match whole {
            true => Model::of_node(own.as_deref(), docs)
                .map_err(sentences)
                .and_then(|(model, _)| self.change(Change::Everything(model, None), &consent)),
            false => self.change(Change::Documents(&self.without_absent(docs)), &consent),
        };
        self.note_install(revision, &result);
        managed.state.lock().1.errors = result.as_ref().err().map_or(Vec::new(), |e| {
            let mut told = e.sentences();
            told.truncate(ERRORS_TOLD);
            told
        });
        result?;
        let before = managed.followed().revision;
        managed.note(|f| {
            f.revision = revision;
            f.drift &= !whole;
        });
        let found = if whole { (Vec::new(), false) } else { self.verify_change(docs) };
        managed.verified_change((before, revision), found);
        let vpcs = if whole { None } else { self.touched(docs) };
        managed.probe_soon(Due { before, revision, vpcs });
        Ok(())
    }

    /// A change that was brought into force before a crash comes again: what it deletes may be gone.
    fn without_absent(&self, docs: &Documents) -> Documents {
        let core = self.core();
        let mut docs = docs.clone();
        docs.deletes.retain(|(kind, name, _)| core.model.get(*kind, name).is_some());
        docs
    }

    /// The VPCs that a change touched; none: too many, or nobody can say which.
    fn touched(&self, docs: &Documents) -> Option<BTreeSet<Name>> {
        let vpcs = docs.puts.iter().map(|item| match &item.object {
            Object::Vpc(vpc) => Some(vec![vpc.name.clone()]),
            object @ (Object::Vm(_) | Object::Route(_) | Object::Peering(_) | Object::Snat(_)) => {
                Some(object.vpcs().to_vec())
            }
            _ => None,
        });
        let vpcs: Option<Vec<Vec<Name>>> = vpcs.take(8 * AT_ONCE).collect();
        let vpcs: BTreeSet<Name> = vpcs?.into_iter().flatten().collect();
        (docs.deletes.is_empty() && docs.puts.len() <= 8 * AT_ONCE && vpcs.len() <= AT_ONCE).then_some(vpcs)
    }

    fn note_install(&self, revision: u64, result: &Result<ApplyReport, NodeError>) {
        let generation = self.core().generation();
        let origin = crate::audit::Origin::node(&format!("controller, revision {revision}"));
        match result {
            // Most changes concern other nodes' objects, or came before: they are no event here.
            Ok(report) if !report.committed => {}
            result => self.audit.outcome("follow", &origin, result, generation),
        }
    }
}

/// Errors of a change that a controller is told of.
const ERRORS_TOLD: usize = 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_far_a_node_got_is_on_disk_and_a_torn_file_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let open = || Managed::open("https://c", Some(dir.path()));
        let managed = open();
        assert_eq!(managed.followed(), Followed::default());
        managed.note(|f| (f.region, f.revision) = ("r".into(), 7));
        assert_eq!((open().followed().revision, open().followed().region.as_str()), (7, "r"));
        std::fs::write(dir.path().join(FILE), "{\"revision\":8").unwrap();
        assert_eq!(open().followed(), Followed::default());
        // Without a state it is known as long as the process lives.
        let managed = Managed::open("https://c", None);
        managed.note(|f| f.revision = 9);
        assert_eq!(managed.report().installed, 9);
    }

    #[test]
    fn what_an_operator_must_know_is_a_warning() {
        let managed = Managed::open("https://c", None);
        assert!(managed.connection(false, "connection refused") && !managed.connection(false, "connection refused"));
        assert_eq!(managed.warnings().len(), 1);
        assert!(managed.connection(true, ""));
        assert!(managed.warnings().is_empty());
        managed.note(|f| f.drift = true);
        assert!(managed.warnings()[0].contains("--break-glass"));
    }
}
