// SPDX-License-Identifier: Apache-2.0
//! Who changed what: an event for every apply, delete, refusal and rollback, and the history of generations.
//!
//! Each event is one line in the log and one in the file `events` beside the journal; those that made a generation also stand in
//! `history`, and of the events commits and others have a bound each, so that a flood of refusals washes no commit away. All are bounded ([`EVENTS_MAX`], [`GENERATIONS_MAX`]), in memory
//! and on disk: a file is written anew when it has twice as many lines. Both lines are written before the change is answered, and that of
//! the history is synced, which costs a change a second sync. A
//! kill leaves at most a torn last line, which is dropped; a generation whose line is missing is entered at the next start. What
//! came from outside (names, errors) is cut to a length and printed only with its control characters written out.

use crate::error::NodeError;
use crate::types::ApplyReport;
use model::plain;
use parking_lot::Mutex;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

/// Commits that are kept as events, and as many refusals and changes that changed nothing.
pub const EVENTS_MAX: usize = 1000;
/// Generations that are kept, as far as the disk's share for them goes (`store::Store`).
pub const GENERATIONS_MAX: usize = 1000;
/// Characters of a text in an event.
const TEXT_MAX: usize = 400;
/// Bytes of a file that are read.
const FILE_MAX: u64 = 16 << 20;

/// Who asks for a change, and by which way.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Origin {
    /// User id; none if it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// Name of the user, if it has one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub user: String,
    /// Process id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<i32>,
    /// Name of the program.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub program: String,
    /// `socket`, `startup`, `SIGHUP`, with the files where there are some.
    pub from: String,
}

impl Origin {
    /// What the kernel says of the other end of a Unix socket (SO_PEERCRED).
    pub fn peer(uid: u32, pid: Option<i32>, socket: &str) -> Origin {
        let comm = pid.and_then(|pid| std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()).unwrap_or_default();
        Origin {
            uid: Some(uid),
            user: user(uid),
            pid,
            program: cut(comm.trim_end()),
            from: cut(&format!("socket {socket}")),
        }
    }

    /// The node itself: `from` says at which occasion.
    pub fn node(from: &str) -> Origin {
        let uid = nix::unistd::geteuid().as_raw();
        Origin {
            uid: Some(uid),
            user: user(uid),
            pid: Some(std::process::id() as i32),
            program: "tunny".into(),
            from: cut(from),
        }
    }

    /// In a few words: who, by which process.
    pub fn who(&self) -> String {
        let name = match (self.uid, self.user.as_str()) {
            (None, "") => "somebody unknown".to_string(),
            (None, user) => user.to_string(),
            (Some(uid), "") => format!("uid {uid}"),
            (Some(uid), user) => format!("{user} (uid {uid})"),
        };
        match (self.pid, self.program.as_str()) {
            (Some(pid), "") => plain(&format!("{name}, pid {pid}")).into_owned(),
            (Some(pid), program) => plain(&format!("{name}, pid {pid} {program}")).into_owned(),
            _ => plain(&name).into_owned(),
        }
    }
}

fn user(uid: u32) -> String {
    nix::unistd::User::from_uid(nix::unistd::Uid::from_raw(uid)).ok().flatten().map_or(String::new(), |u| cut(&u.name))
}

fn cut(text: &str) -> String {
    match text.char_indices().nth(TEXT_MAX) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_string(),
    }
}

/// Objects of a kind that a change concerned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Count {
    /// Created.
    pub added: u64,
    /// Changed.
    pub changed: u64,
    /// Deleted.
    pub removed: u64,
}

/// One event.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Event {
    /// Milliseconds since 1970.
    pub time_ms: u64,
    /// The same in words, UTC.
    pub time: String,
    /// `apply`, `replace`, `delete`, `rollback`, `start` or `reload`; `announce` or `withdraw` of a route; `trace` of a flow of real packets.
    pub what: String,
    /// `committed`, `unchanged` (it was so already) or `refused`; of a trace `begun` or `ended`.
    pub outcome: String,
    /// The generation that it made, or that there was.
    pub generation: u64,
    /// Who, from where.
    #[serde(flatten)]
    pub origin: Origin,
    /// By kind.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub counts: BTreeMap<String, Count>,
    /// Why it was refused, or which generation was gone back to.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
}

/// Milliseconds since 1970.
pub(crate) fn now_ms() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}

impl Event {
    /// Now.
    pub fn new(what: &str, outcome: &str, generation: u64, origin: &Origin) -> Event {
        let time_ms = now_ms();
        Event {
            time_ms,
            time: utc(time_ms / 1000),
            what: what.into(),
            outcome: outcome.into(),
            generation,
            origin: origin.clone(),
            ..Event::default()
        }
    }

    fn is_commit(&self) -> bool {
        self.outcome == "committed"
    }

    /// By kind, as `Vm +3 ~0 -1`.
    pub fn changes(&self) -> String {
        let one = |(kind, c): (&String, &Count)| format!("{} +{} ~{} -{}", plain(kind), c.added, c.changed, c.removed);
        self.counts.iter().map(one).collect::<Vec<_>>().join(", ")
    }

    fn say(&self) {
        let changes = if self.counts.is_empty() { String::new() } else { format!("; {}", self.changes()) };
        let note = if self.note.is_empty() { String::new() } else { format!("; {}", plain(&self.note)) };
        let (what, who, from) = (&self.what, self.origin.who(), plain(&self.origin.from));
        match self.outcome.as_str() {
            "committed" => tracing::info!("{what} by {who} from {from}: generation {}{changes}{note}", self.generation),
            "unchanged" => {
                tracing::info!("{what} by {who} from {from}: nothing changes, generation {}{note}", self.generation)
            }
            "refused" => tracing::warn!(
                "{what} by {who} from {from}: refused, generation stays {}{changes}{note}",
                self.generation
            ),
            other => tracing::info!("{what} by {who} from {from}: {other}{note}"),
        }
    }
}

/// Seconds since 1970 as a date and time.
pub fn utc(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Civil date of a number of days, counted in eras of 400 years that begin in March.
    let z = days + 719_468;
    let (era, of_era) = (z / 146_097, z % 146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let (month, carry) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let year = year_of_era + era * 400 + carry;
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", rest / 3600, rest / 60 % 60, rest % 60)
}

/// The latest events of a kind, in memory and in a file.
#[derive(Debug, Default)]
struct Ring {
    list: VecDeque<Event>,
    max: usize,
    /// A history: in the order of generations, and synced. Else in the order in which they came.
    sorted: bool,
    path: Option<PathBuf>,
    /// Lines in the file; none: it must be written anew.
    lines: Option<usize>,
    /// What an operator should know of the file.
    note: Option<String>,
}

impl Ring {
    fn open(path: Option<PathBuf>, max: usize, sorted: bool) -> Ring {
        let mut ring = Ring { max, sorted, path, lines: Some(0), ..Ring::default() };
        let Some(path) = ring.path.clone() else { return ring };
        let mut text = Vec::new();
        match File::open(&path).and_then(|file| file.take(FILE_MAX).read_to_end(&mut text)) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return ring,
            Err(e) => ring.note = Some(format!("{} cannot be read, so what it had is not shown: {e}", path.display())),
            Ok(_) => {}
        }
        let text = String::from_utf8_lossy(&text);
        let (mut lines, mut bad) = (0, 0);
        let whole = text.rfind('\n').map_or(0, |at| at + 1);
        for (line, torn) in text[..whole].lines().map(|l| (l, false)).chain(text[whole..].lines().map(|l| (l, true))) {
            lines += 1;
            let event = serde_json::from_str::<Event>(line).ok();
            // A kill may leave a torn last line, which begins as any other.
            bad += u64::from(event.is_none() && !(torn && line.starts_with('{')));
            if let Some(event) = event {
                let committed = event.is_commit();
                ring.list.push_back(event);
                ring.trim(committed);
            }
        }
        // A torn or foreign line goes when the file is written anew.
        ring.lines = (bad == 0 && (text.is_empty() || text.ends_with('\n'))).then_some(lines);
        if bad > 0 {
            let (path, left) = (path.display(), ring.list.len());
            ring.note =
                Some(format!("{path} is damaged: {bad} of its lines cannot be read and are not shown; {left} can"));
        }
        ring
    }

    /// The latest, oldest first; 0: all.
    fn latest(&self, limit: usize) -> Vec<Event> {
        let most = if limit == 0 { usize::MAX } else { limit };
        self.list.iter().skip(self.list.len().saturating_sub(most)).cloned().collect()
    }

    /// Drops the oldest of a sort of which there are too many.
    fn trim(&mut self, committed: bool) {
        let alike = |e: &&Event| e.is_commit() == committed;
        if self.list.len() > self.max && self.list.iter().filter(alike).count() > self.max {
            let oldest = self.list.iter().position(|e| e.is_commit() == committed);
            oldest.and_then(|at| self.list.remove(at));
        }
    }

    /// Takes events in; the file is written, and synced, once for all.
    fn push(&mut self, events: Vec<Event>) {
        let (mut text, new) = (String::new(), events.len());
        for event in events {
            text += &(serde_json::to_string(&event).unwrap_or_default() + "\n");
            // Two changes at once may be noted in either order.
            let before = |e: &Event| !self.sorted || e.generation <= event.generation;
            let at = self.list.iter().rposition(before).map_or(0, |at| at + 1);
            let committed = event.is_commit();
            self.list.insert(at, event);
            self.trim(committed);
        }
        let Some(path) = &self.path else { return };
        // One that somebody removed is written anew as a whole.
        let there = self.lines == Some(0) || path.exists();
        let written = match self.lines {
            Some(lines) if there && lines < 2 * self.list.len().max(self.max) => {
                append(path, &text, self.sorted).map(|()| lines + new)
            }
            _ => rewrite(path, &self.list).map(|()| self.list.len()),
        };
        if let (Err(e), true) = (&written, self.lines.is_some()) {
            tracing::warn!("{} cannot be written: events since are kept in memory until it can: {e}", path.display());
        }
        self.lines = written.ok();
    }
}

fn append(path: &Path, line: &str, sync: bool) -> std::io::Result<()> {
    let mut file = File::options().create(true).append(true).open(path)?;
    file.write_all(line.as_bytes())?;
    if sync {
        file.sync_data()?;
    }
    Ok(())
}

fn rewrite(path: &Path, list: &VecDeque<Event>) -> std::io::Result<()> {
    let temporary = path.with_extension("new");
    let mut file = File::create(&temporary)?;
    for event in list {
        file.write_all((serde_json::to_string(event)? + "\n").as_bytes())?;
    }
    file.sync_all()?;
    std::fs::rename(&temporary, path)
}

/// Events and history of a node.
#[derive(Debug)]
pub struct Audit {
    rings: Mutex<(Ring, Ring)>,
    /// What an operator should know of the files.
    pub notes: Vec<String>,
}

/// The last generation that the events and the history in a folder name.
pub fn noted_generation(dir: &Path) -> u64 {
    let ring = |name: &str, max| Ring::open(Some(dir.join(name)), max, false);
    let rings = [ring("events", EVENTS_MAX), ring("history", GENERATIONS_MAX)];
    rings.iter().flat_map(|ring| ring.list.iter().map(|e| e.generation)).max().unwrap_or(0)
}

impl Audit {
    /// Reads what is kept in a folder; without one, events end with the process. `generation` is the present one.
    pub fn open(dir: Option<&Path>, generation: u64) -> Audit {
        Audit::bounded(dir, generation, (EVENTS_MAX, GENERATIONS_MAX))
    }

    fn bounded(dir: Option<&Path>, generation: u64, max: (usize, usize)) -> Audit {
        let ring = |name: &str, max, sorted| Ring::open(dir.map(|d| d.join(name)), max, sorted);
        let (mut events, mut history) = (ring("events", max.0, false), ring("history", max.1, true));
        let known = |history: &Ring| history.list.back().map_or(0, |e| e.generation);
        if known(&history) > generation {
            // An older state was put back: what came after it is no history of it.
            history.list.retain(|e| e.generation <= generation);
            history.lines = None;
        }
        if known(&history) < generation {
            let mut event =
                Event::new("start", "committed", generation, &Origin { from: "startup".into(), ..Origin::default() });
            event.note = "found at the start: who changed it, and when, was not noted".into();
            history.push(vec![event]);
        }
        let notes = [events.note.take(), history.note.take()].into_iter().flatten().collect();
        Audit { rings: Mutex::new((events, history)), notes }
    }

    fn rings(&self) -> parking_lot::MutexGuard<'_, (Ring, Ring)> {
        self.rings.lock()
    }

    /// Logs and keeps an event.
    pub fn note(&self, event: Event) {
        self.note_all(vec![event]);
    }

    /// The same of several, which are on disk together.
    pub fn note_all(&self, mut events: Vec<Event>) {
        if events.is_empty() {
            return;
        }
        for event in &mut events {
            event.note = cut(&event.note);
            event.say();
        }
        let commits: Vec<Event> = events.iter().filter(|e| e.outcome == "committed").cloned().collect();
        let mut rings = self.rings();
        if !commits.is_empty() {
            rings.1.push(commits);
        }
        rings.0.push(events);
    }

    /// The latest events, oldest first; 0: all.
    pub fn events(&self, limit: usize) -> Vec<Event> {
        self.rings().0.latest(limit)
    }

    /// The latest generations that are noted, oldest first; 0: all.
    pub fn history(&self, limit: usize) -> Vec<Event> {
        self.rings().1.latest(limit)
    }

    /// Notes how a change went: what it was, who asked for it. `generation` is the present one.
    pub fn outcome(&self, what: &str, origin: &Origin, result: &Result<ApplyReport, NodeError>, generation: u64) {
        self.note(Event::outcome(what, origin, result, generation));
    }
}

impl Event {
    /// How a change went.
    pub fn outcome(what: &str, origin: &Origin, result: &Result<ApplyReport, NodeError>, generation: u64) -> Event {
        let mut event = match result {
            Ok(report) if report.committed => Event::new(what, "committed", report.generation, origin),
            Ok(_) => Event::new(what, "unchanged", generation, origin),
            Err(_) => Event::new(what, "refused", generation, origin),
        };
        match result {
            Ok(report) => event.counts = counts(&report.plan),
            Err(e) => {
                let sentences = e.sentences();
                let more = sentences.len().saturating_sub(1);
                let rest = if more > 0 { format!(" (and {more} more errors)") } else { String::new() };
                event.note = cut(sentences.first().map_or("", |s| s.as_str())) + &rest;
            }
        }
        event
    }
}

/// The numbers of a plan that are not zero.
fn counts(plan: &serde_json::Value) -> BTreeMap<String, Count> {
    let kinds = plan["counts"].as_object().into_iter().flatten();
    let count = |v: &serde_json::Value| Count {
        added: v["added"].as_u64().unwrap_or(0),
        changed: v["changed"].as_u64().unwrap_or(0),
        removed: v["removed"].as_u64().unwrap_or(0),
    };
    kinds.map(|(kind, v)| (kind.clone(), count(v))).filter(|(_, c)| *c != Count::default()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_767_225_599, "2025-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(utc(seconds), text);
        }
    }

    #[test]
    fn events_are_bounded_in_memory_and_on_disk_and_survive_a_torn_line() {
        const MAX: usize = 50;
        let dir = tempfile::tempdir().unwrap();
        let open = |generation| Audit::bounded(Some(dir.path()), generation, (MAX, MAX));
        let audit = open(0);
        let peer = Origin::peer(0, Some(1), "/run/x.sock");
        for generation in 1..=2 * MAX as u64 + 5 {
            let mut event =
                Event::new("apply", if generation % 2 == 0 { "committed" } else { "refused" }, generation, &peer);
            event.note = "x".repeat(10_000);
            audit.note(event);
        }
        drop(audit);
        let path = dir.path().join("events");
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.lines().count() <= 4 * MAX && text.len() < 3_000 * MAX, "{}", text.len());
        std::fs::write(&path, &text[..text.len() - 40]).unwrap();
        let audit = open(104);
        let events = audit.events(usize::MAX);
        assert!(events.len() >= MAX - 1 && events.last().unwrap().generation == 104);
        assert!(events[0].note.chars().count() <= TEXT_MAX + 1);
        assert_eq!((audit.history(0).len(), audit.history(3).len(), audit.events(3).len()), (MAX, 3, 3));
        assert_eq!(audit.events(0), events, "0 is no limit");
        // Going on behind a torn line loses nothing more.
        audit.note(Event::new("delete", "committed", 105, &peer));
        let again = open(105);
        assert_eq!((again.events(1)[0].generation, again.history(0).last().unwrap().generation), (105, 105));
        assert!(again.notes.is_empty(), "a torn line is what a kill leaves: {:?}", again.notes);
        // A generation that nobody noted is entered; an older state that was put back has no future.
        assert!(open(109).history(0).last().unwrap().note.contains("was not noted"));
        assert_eq!(open(7).history(0).last().map(|e| e.generation), Some(7));
    }

    #[test]
    fn refusals_push_no_commit_out_and_a_file_that_is_removed_is_written_anew() {
        const MAX: usize = 20;
        let dir = tempfile::tempdir().unwrap();
        let open = || Audit::bounded(Some(dir.path()), 5, (MAX, MAX));
        let note = |audit: &Audit, outcome, generation| {
            audit.note(Event::new("apply", outcome, generation, &Origin::default()))
        };
        let numbers = |audit: &Audit, outcome: &str| -> Vec<u64> {
            audit.events(usize::MAX).iter().filter(|e| e.outcome == outcome).map(|e| e.generation).collect()
        };
        let audit = open();
        (1..=5).for_each(|generation| note(&audit, "committed", generation));
        (0..10 * MAX).for_each(|_| note(&audit, "refused", 5));
        for audit in [&audit, &open()] {
            assert_eq!((numbers(audit, "committed"), numbers(audit, "refused").len()), (vec![1, 2, 3, 4, 5], MAX));
        }
        // Nor do commits push refusals out.
        (6..=100).for_each(|generation| note(&audit, "committed", generation));
        assert_eq!((numbers(&audit, "committed"), numbers(&audit, "refused").len()), ((81..=100).collect(), MAX));
        for name in ["events", "history"] {
            std::fs::remove_file(dir.path().join(name)).unwrap();
        }
        note(&audit, "committed", 101);
        let again = Audit::bounded(Some(dir.path()), 101, (MAX, MAX));
        assert_eq!((again.events(0), again.history(0)), (audit.events(0), audit.history(0)));
    }

    #[test]
    fn damaged_files_are_said() {
        let dir = tempfile::tempdir().unwrap();
        let event = |generation| Event::new("apply", "committed", generation, &Origin::default());
        let audit = Audit::open(Some(dir.path()), 0);
        (1..=3).for_each(|generation| audit.note(event(generation)));
        assert_eq!(noted_generation(dir.path()), 3);
        let whole = std::fs::read(dir.path().join("history")).unwrap();
        let mut broken = whole.clone();
        broken[0] ^= 1;
        for (content, bad, left) in [(&b"garbage"[..], 1, 0), (&[0xff; 100], 1, 0), (&broken, 1, 2), (b"x\ny\n", 2, 0)]
        {
            std::fs::write(dir.path().join("history"), content).unwrap();
            let notes = Audit::open(Some(dir.path()), 3).notes;
            let wanted = format!("history is damaged: {bad} of its lines cannot be read and are not shown; {left} can");
            assert!(notes.len() == 1 && notes[0].ends_with(&wanted), "{notes:?}");
            assert!(noted_generation(dir.path()) >= 3, "the events know, too");
            // What is written next puts it right.
            Audit::open(Some(dir.path()), 3).note(event(4));
            assert!(Audit::open(Some(dir.path()), 4).notes.is_empty());
        }
    }
}
