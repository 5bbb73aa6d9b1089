// SPDX-License-Identifier: Apache-2.0
//! `POST /v1/apply`: documents become a plan, a transaction of the store, and what the region is.
//!
//! The store syncs each transaction, which takes milliseconds whatever is in it. So changes that come while another one is being written
//! are written together: whoever has the turn plans all that wait, one on top of the other, writes them as one transaction, and each
//! gets an answer of its own. Only changes of what is inside VPCs join others: of those a plan can be taken back in any state of the rest, and
//! who may make them does not depend on one that is planned before. All others, and those that compare with what somebody saw, go alone.

use crate::keys::{self, written};
use crate::refusal::Refusal;
use crate::service::{Caller, Controller, Core};
use crate::store::{Compare, Outcome};
use controller_core::access::Principal;
use controller_core::credentials::Sort;
use controller_core::region::{Proposal, Unfit, Wish};
use model::{Access, ConfigError, Documents, Kind};
use node::audit::{Event, Origin};
use node::body::read_documents;
use node::consent::{objects, Consent, Deletes};
use node::error::NodeError;
use node::service::{Mode, CHANGES_MAX};
use node::types::ApplyReport;
use parking_lot::Mutex;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::Instant;

/// Changes that are written together at most.
const TOGETHER_MAX: usize = 256;
/// Documents of a change that joins others at most.
const JOINING_MAX: usize = 1000;

/// A change that is requested.
struct Request {
    number: u64,
    /// For the audit log.
    what: &'static str,
    caller: Caller,
    docs: Documents,
    errors: Vec<ConfigError>,
    whole: bool,
    consent: Consent,
    parse_s: f64,
    /// Of the controller itself: pools are divided as is due when it has its turn.
    divides: bool,
}

impl Request {
    /// Whether it may be planned with others. [`Proposal::joins_others`] says it of what came of it.
    fn joins_others(&self) -> bool {
        let kinds = self.docs.puts.iter().map(|i| i.object.kind()).chain(self.docs.deletes.iter().map(|d| d.0));
        let alone = self.divides || self.whole || self.consent.base.is_some() || !self.errors.is_empty();
        !alone && self.docs.len() <= JOINING_MAX && { kinds }.all(|k| matches!(k, Kind::Vm | Kind::Route))
    }
}

/// What becomes of a change.
type Answer = Result<ApplyReport, Refusal>;

/// Changes that wait for their turn, and what became of those that had it.
#[derive(Default)]
struct Queue {
    number: u64,
    requests: VecDeque<Request>,
    answers: HashMap<u64, Answer>,
}

/// The line in which changes wait.
#[derive(Default)]
pub struct Changes {
    queue: Mutex<Queue>,
    /// Held by whoever plans and writes.
    turn: Mutex<()>,
}

/// A change that is planned, and waits for the store.
struct Planned {
    number: u64,
    proposal: Proposal,
    report: ApplyReport,
}

impl Controller {
    /// `POST /v1/apply`.
    pub fn apply(&self, caller: &Caller, body: &[u8], mode: Mode, consent: &Consent) -> Answer {
        let begun = Instant::now();
        let what = match mode {
            Mode::Merge => "apply",
            Mode::Replace => "replace",
            Mode::Delete | Mode::DeleteNames => "delete",
        };
        let (docs, errors) = match read_documents(body, mode) {
            Ok(read) => read,
            Err(e) => {
                let refused = Err(wrong(e));
                let revision = self.core().region.revision();
                if !consent.dry_run {
                    self.audit.note(event((what, caller.origin()), &refused, revision));
                }
                return refused;
            }
        };
        let (parse_s, whole) = (begun.elapsed().as_secs_f64(), mode == Mode::Replace);
        let (caller, consent) = (caller.clone(), consent.clone());
        let divides = false;
        self.change(Request { number: 0, what, caller, docs, errors, whole, consent, parse_s, divides })
    }

    /// Divides pools anew among the nodes that serve them, as far as that is due. Whether any was.
    pub(crate) fn divide_due(&self) -> Result<bool, Refusal> {
        if self.replica.as_ref().is_some_and(|replica| !replica.writes()) || !self.core().divisions_due() {
            return Ok(false);
        }
        let principal = Principal { role: "controller".into(), access: Access::Operator, tenant: None, node: None };
        let caller = Caller { principal, credential: (String::new(), Sort::Token), from: String::new() };
        let (docs, errors, consent) = (Documents::new(), Vec::new(), Consent::default());
        let request = Request {
            number: 0,
            what: "divide",
            caller,
            docs,
            errors,
            whole: false,
            consent,
            parse_s: 0.0,
            divides: true,
        };
        self.change(request).map(|report| report.committed)
    }

    /// A change that waits for its turn.
    fn change(&self, request: Request) -> Answer {
        let number = {
            let mut queue = self.changes.queue.lock();
            queue.number += 1;
            let number = queue.number;
            queue.requests.push_back(Request { number, ..request });
            number
        };
        loop {
            let _turn = self.changes.turn.lock();
            let together = {
                let mut queue = self.changes.queue.lock();
                if let Some(answer) = queue.answers.remove(&number) {
                    return answer;
                }
                if queue.requests.is_empty() {
                    // Who had it in hand has failed.
                    return Err(Refusal::Failed);
                }
                next(&mut queue.requests)
            };
            let real = together.iter().filter(|request| !request.consent.dry_run);
            let who: HashMap<_, _> = real.map(|r| (r.number, (r.what, r.caller.origin()))).collect();
            let (answers, revision) = self.change_together(together);
            let noted = answers.iter().filter_map(|(number, result)| Some((who.get(number)?.clone(), result)));
            self.audit.note_all(noted.map(|(who, result)| event(who, result, revision)).collect());
            self.changes.queue.lock().answers.extend(answers);
        }
    }

    /// Plans changes and writes them as one transaction: the answers to all of them, and the revision then.
    fn change_together(&self, all: Vec<Request>) -> (Vec<(u64, Answer)>, u64) {
        let mut guard = self.core();
        let core = &mut *guard;
        let (mut answers, mut planned, mut compares) = (Vec::new(), Vec::new(), Vec::new());
        // How many answers came before the first plan that waits for the store: the others stand on plans that it may not take.
        let mut firm = None;
        for request in all {
            match core.plan(&request) {
                Ok((proposal, report, its)) if request.consent.dry_run || report.empty => {
                    core.region.discard(proposal);
                    answers.push((request.number, self.compared(&its).map(|()| report)));
                }
                Ok((proposal, report, its)) => {
                    compares = its;
                    firm.get_or_insert(answers.len());
                    planned.push(Planned { number: request.number, proposal, report });
                }
                Err(refusal) => answers.push((request.number, Err(refusal))),
            }
        }
        let before = core.region.revision();
        if planned.is_empty() {
            return (answers, before);
        }
        let begun = Instant::now();
        match self.store.txn(&compares, &written(core.region.records(planned.iter().map(|p| &p.proposal)))) {
            Ok(Outcome::Written(revision)) => {
                let of = |kind: Kind| {
                    let tallies = planned.iter().map(|p| p.proposal.plan.tally(kind));
                    tallies.map(|t| t.added + t.changed + t.removed).sum::<u64>() > 0
                };
                let (roles, nodes) = (of(Kind::Role), of(Kind::Node) || of(Kind::Cluster));
                let clusters: BTreeSet<_> = planned.iter().flat_map(|p| p.proposal.clusters.clone()).collect();
                let journal_s = begun.elapsed().as_secs_f64();
                let mut proposals = Vec::with_capacity(planned.len());
                for Planned { number, proposal, report } in planned {
                    proposals.push(proposal);
                    let report = ApplyReport { committed: true, generation: revision, journal_s, ..report };
                    answers.push((number, Ok(report)));
                }
                core.region.commit(proposals, revision);
                if nodes {
                    let model = core.region.model();
                    core.fleet.forget(|node| model.by_name().nodes.contains_key(node));
                }
                drop(guard);
                match () {
                    () if roles => self.doubt(),
                    () if nodes => self.wakes.all(),
                    () => self.wakes.changed(&clusters),
                }
                return (answers, revision);
            }
            Ok(Outcome::Conflict(keys)) => {
                // Who compares goes alone.
                let told: Vec<String> = keys.iter().filter_map(|key| keys::object_of(key)).map(changed_since).collect();
                answers.extend(core.taken_back(planned).map(|number| (number, Err(Refusal::Outdated(told.clone())))));
            }
            Err(e) => {
                let refusal = Refusal::from(e);
                let others = answers.split_off(firm.unwrap_or(answers.len()));
                let refused = others.into_iter().map(|(number, _)| number).chain(core.taken_back(planned));
                answers.extend(refused.map(|number| (number, Err(refusal.clone()))));
                if let Some(replica) = &self.replica {
                    // Perhaps the store has it: nothing is planned before that is known.
                    replica.doubt();
                }
            }
        }
        (answers, before)
    }

    /// Whether the store is as compared, for what is not written.
    fn compared(&self, compares: &[Compare]) -> Result<(), Refusal> {
        if compares.is_empty() {
            return Ok(());
        }
        match self.store.txn(compares, &[])? {
            Outcome::Written(_) => Ok(()),
            Outcome::Conflict(keys) => {
                Err(Refusal::Outdated(keys.iter().filter_map(|key| keys::object_of(key)).map(changed_since).collect()))
            }
        }
    }
}

/// The changes whose turn it is: the first, and those behind it that join it.
fn next(requests: &mut VecDeque<Request>) -> Vec<Request> {
    let joining = requests.iter().take(TOGETHER_MAX).take_while(|r| r.joins_others()).count();
    requests.drain(..joining.max(1).min(requests.len())).collect()
}

impl Core {
    /// Plans a change on the model: what it would do, the report of it, and what the store must not have changed.
    fn plan(&mut self, request: &Request) -> Result<(Proposal, ApplyReport, Vec<Compare>), Refusal> {
        let begun = Instant::now();
        let Request { caller, docs, errors, whole, consent, .. } = request;
        let made = request.divides.then(|| self.known().divisions());
        let docs = made.as_ref().unwrap_or(docs);
        if !errors.is_empty() {
            let errors = self.region.errors_of(docs, errors.clone(), *whole);
            return Err(Refusal::Wrong(errors.iter().map(|e| e.to_string()).collect()));
        }
        if *whole {
            consent.to_emptiness(docs.len(), self.region.model()).map_err(wrong)?;
        }
        let compares = since(docs, *whole, consent, self.region.revision())?;
        let before = objects(self.region.model());
        let wish = if *whole { Wish::All(docs) } else { Wish::Some(docs) };
        let proposal = match request.divides {
            true => self.region.propose_division(docs),
            false => self.region.propose(&wish, &caller.principal),
        };
        let proposal = proposal.map_err(|unfit| match unfit {
            Unfit::Wrong(errors) => Refusal::Wrong(errors.iter().map(|e| e.to_string()).collect()),
            Unfit::Forbidden(why) => Refusal::Forbidden(why),
        })?;
        let deletes = Deletes::new(&proposal.plan, before);
        // What was planned for is compared object by object, below.
        let consent = Consent { base: None, ..consent.clone() };
        let refusal = consent.to_plan(&deletes, "").err().map(wrong);
        let refusal = refusal.or_else(|| self.known().finds_no_cluster(&proposal).map(|why| Refusal::Wrong(vec![why])));
        let refusal = refusal.or_else(|| self.known().lacks_public(&proposal).map(|why| Refusal::Wrong(vec![why])));
        if let Some(refusal) = refusal {
            self.region.discard(proposal);
            return Err(refusal);
        }
        let view = proposal.plan.view_of(&proposal.pairs, CHANGES_MAX);
        let report = ApplyReport {
            plan: view.to_json(),
            text: view.render(false),
            empty: proposal.plan.is_empty(),
            deletes: deletes.number(),
            objects: before,
            asks_deletes: deletes.needs_consent(),
            base: self.region.revision().to_string(),
            parse_s: request.parse_s,
            plan_s: begun.elapsed().as_secs_f64(),
            generation: self.region.revision(),
            ..ApplyReport::default()
        };
        Ok((proposal, report, compares))
    }

    /// Takes plans back, the last first: whose they were.
    fn taken_back(&mut self, planned: Vec<Planned>) -> impl Iterator<Item = u64> {
        let mut numbers = Vec::with_capacity(planned.len());
        for Planned { number, proposal, .. } in planned.into_iter().rev() {
            self.region.discard(proposal);
            numbers.push(number);
        }
        numbers.into_iter()
    }
}

/// What must not have changed since the plan was shown: the objects that are named, or if everything is replaced, anything.
fn since(docs: &Documents, whole: bool, consent: &Consent, revision: u64) -> Result<Vec<Compare>, Refusal> {
    let Some(base) = &consent.base else { return Ok(Vec::new()) };
    let at: u64 =
        base.parse().map_err(|_| Refusal::Wrong(vec![format!("base: `{}` is no revision", model::plain(base))]))?;
    if at > revision {
        return Err(Refusal::Wrong(vec![format!(
            "base: revision {at} has not been yet, the present one is {revision}"
        )]));
    }
    if whole && at != revision {
        let why = format!("the region has changed since revision {at} (it is at {revision}), so it is not replaced; make the plan anew");
        return Err(Refusal::Outdated(vec![why]));
    }
    let puts = docs.puts.iter().map(|i| keys::object(i.object.kind(), &i.object.name()));
    let deletes = docs.deletes.iter().map(|(kind, name, _)| keys::object(*kind, name));
    Ok(puts.chain(deletes).map(|key| Compare::NotSince(key, at)).collect())
}

fn changed_since((kind, name): (Kind, &str)) -> String {
    format!(
        "{kind} `{}` has been changed by somebody else meanwhile: nothing was changed; get it anew",
        model::plain(name)
    )
}

/// What the audit log says of a change.
fn event((what, origin): (&str, Origin), result: &Answer, revision: u64) -> Event {
    let result = match result {
        Ok(report) => Ok(report.clone()),
        Err(refusal) => Err(refusal.as_error()),
    };
    Event::outcome(what, &origin, &result, revision)
}

fn wrong(e: NodeError) -> Refusal {
    Refusal::Wrong(e.sentences())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::store::embedded::Embedded;
    use crate::store::{Entry, Revision, Snapshot, Store, StoreError, Watch, Write};
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::Arc;

    /// A store whose medium is full for a while.
    struct Full(Embedded, Arc<AtomicBool>);

    impl Store for Full {
        fn snapshot(&self) -> Result<Box<dyn Snapshot>, StoreError> {
            self.0.snapshot()
        }
        fn get(&self, keys: &[Vec<u8>]) -> Result<Vec<Option<Entry>>, StoreError> {
            self.0.get(keys)
        }
        fn txn(&self, compares: &[Compare], writes: &[Write]) -> Result<Outcome, StoreError> {
            match self.1.load(Ordering::Relaxed) {
                true => Err(StoreError::Medium { what: "written", why: "full".into() }),
                false => self.0.txn(compares, writes),
            }
        }
        fn watch(&self, after: Revision) -> Result<Box<dyn Watch>, StoreError> {
            self.0.watch(after)
        }
        fn compact(&self, upto: Revision) -> Result<(), StoreError> {
            self.0.compact(upto)
        }
    }

    fn request(number: u64, text: &str, dry_run: bool) -> Request {
        let principal = Principal { role: "o".into(), access: Access::Operator, tenant: None, node: None };
        let caller = Caller { principal, credential: (String::new(), Sort::Token), from: "here".into() };
        let docs = model::parse_text("request", text).unwrap();
        let consent = Consent { dry_run, ..Consent::default() };
        let (errors, whole, divides, parse_s) = (Vec::new(), false, false, 0.0);
        Request { number, what: "apply", caller, docs, errors, whole, consent, divides, parse_s }
    }

    #[test]
    fn what_stands_on_a_plan_that_the_store_does_not_take_is_refused_with_it() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("c");
        let (listen, names) = ("127.0.0.1:0".parse().unwrap(), vec!["localhost".into()]);
        let config = Config { region: "north".into(), listen, names, folder: None, store: None, url: None, evpn: None };
        crate::init::init(&folder, &config, 1).unwrap();
        let full = Arc::new(AtomicBool::new(false));
        let store = Full(Embedded::open(&folder.join(crate::server::STORE)).unwrap(), full.clone());
        let controller = Controller::open(&config, &folder, Arc::new(store), None).unwrap();
        let outcome = |requests: Vec<Request>| -> Vec<(u64, Result<bool, String>)> {
            let mut answers = controller.change_together(requests).0;
            answers.sort_by_key(|(number, _)| *number);
            let said = |answer: Answer| answer.map(|report| report.committed).map_err(|e| e.sentences().join("; "));
            answers.into_iter().map(|(number, answer)| (number, said(answer))).collect()
        };
        let (vpc, route) = (
            "{apiVersion: tunny/v1, kind: Vpc, metadata: {name: red}, spec: {vni: 101}}",
            "{apiVersion: tunny/v1, kind: Route, spec: {vpc: red, prefix: 10.0.0.0/8, scope: local}}",
        );
        assert_eq!(outcome(vec![request(1, vpc, false)]), [(1, Ok(true))]);
        // The first is what the store has. The others find the route of the second, which it does not take.
        let gone = route.replace("10.0.0.0/8", "10.9.0.0/16");
        assert_eq!(outcome(vec![request(2, &gone, false)]), [(2, Ok(true))]);
        full.store(true, Ordering::Relaxed);
        let all = [(3, &*gone, false), (4, route, false), (5, route, false), (6, route, true)];
        let all = outcome(all.map(|(number, text, dry_run)| request(number, text, dry_run)).into());
        assert_eq!(all[0], (3, Ok(false)));
        for (number, answer) in &all[1..] {
            assert!(answer.as_ref().is_err_and(|why| why.contains("full")), "{number}: {answer:?}");
        }
        full.store(false, Ordering::Relaxed);
        assert_eq!(outcome(vec![request(7, route, false)]), [(7, Ok(true))]);
    }
}
