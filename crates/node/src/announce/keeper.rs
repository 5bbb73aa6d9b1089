// SPDX-License-Identifier: Apache-2.0
//! What becomes of the routes: entered, marked, removed. The daemon and the watchdog do the same with them; no clock is read here.

use super::kernel::{Entered, Routes};
use abi::{Prefix, ANNOUNCE_METRIC, ANNOUNCE_METRIC_LEAVING};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::{Duration, Instant};

/// Prefixes that went, and of which is still known why, at most.
const GONE_MAX: usize = 256;

/// What is to become of the routes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Stance {
    /// What is wanted is announced.
    Serve,
    /// It is marked, and goes after the grace time; why.
    Leave(String),
    /// It goes at once; why.
    Gone(String),
}

/// Where a prefix is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum State {
    /// The kernel has its route.
    Announced,
    /// The route is marked.
    Leaving,
    /// There is none.
    Withdrawn,
    /// The kernel does not take it.
    Refused,
}

impl State {
    /// As it is told.
    pub fn name(self) -> &'static str {
        match self {
            State::Announced => "announced",
            State::Leaving => "leaving",
            State::Withdrawn => "withdrawn",
            State::Refused => "refused",
        }
    }
}

/// A prefix, where it is and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Known {
    pub state: State,
    pub reason: String,
    /// Changes before it.
    pub at: u64,
}

/// Something that happened to a prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Happened {
    pub prefix: Prefix,
    pub state: State,
    pub reason: String,
}

/// The routes of a node, as they were looked at last.
#[derive(Debug, Default)]
pub(super) struct Keeper {
    /// Since when they are marked.
    leaving: Option<Instant>,
    pub known: BTreeMap<Prefix, Known>,
    changes: u64,
}

/// What is announced, and whose that is.
pub(super) type Wanted = BTreeMap<Prefix, Vec<String>>;

impl Keeper {
    /// Brings the kernel nearer to what is wanted. What a process before has left is taken over as it is.
    pub fn pass(
        &mut self,
        kernel: &mut impl Routes,
        (wanted, stance): (&Wanted, &Stance),
        (now, grace): (Instant, Duration),
    ) -> io::Result<Vec<Happened>> {
        let have = kernel.list()?;
        let marked_long = match stance {
            Stance::Serve => {
                self.leaving = None;
                false
            }
            Stance::Gone(_) => true,
            // Where nothing is announced there is nothing to wait for.
            Stance::Leave(_) if have.is_empty() => true,
            Stance::Leave(_) => now - *self.leaving.get_or_insert(now) >= grace,
        };
        let mut happened = Vec::new();
        let all: BTreeSet<Prefix> = have.keys().chain(wanted.keys()).chain(self.known.keys()).copied().collect();
        for prefix in all {
            let why = wanted.get(&prefix);
            let (state, reason) = match (stance, why) {
                (Stance::Serve, Some(why)) => bring(kernel, &have, prefix, ANNOUNCE_METRIC, why.join(", ")),
                (Stance::Leave(reason), Some(_)) if !marked_long && have.contains_key(&prefix) => {
                    bring(kernel, &have, prefix, ANNOUNCE_METRIC_LEAVING, reason.clone())
                }
                (_, None) => take_away(kernel, &have, prefix, "no longer served here"),
                (Stance::Leave(reason) | Stance::Gone(reason), Some(_)) => take_away(kernel, &have, prefix, reason),
            };
            let adopted = !self.known.contains_key(&prefix)
                && state == State::Announced
                && have.get(&prefix).is_some_and(|metrics| metrics.contains(&ANNOUNCE_METRIC));
            self.note(Happened { prefix, state, reason }, adopted, &mut happened);
        }
        self.forget(wanted);
        Ok(happened)
    }

    /// Whether the kernel has a route of these.
    pub fn has_routes(&self) -> bool {
        self.known.values().any(|k| matches!(k.state, State::Announced | State::Leaving))
    }

    fn note(&mut self, new: Happened, adopted: bool, happened: &mut Vec<Happened>) {
        let old = self.known.get(&new.prefix);
        if old.is_some_and(|old| (old.state, &old.reason) == (new.state, &new.reason)) {
            return;
        }
        self.changes += 1;
        let (prefix, news) = (new.prefix, old.is_none_or(|old| old.state != new.state));
        let known = Known { state: new.state, reason: new.reason.clone(), at: self.changes };
        // A state that stays is no news, even if its reason is another one now.
        if news {
            let more = if adopted { " (taken over from the process before)" } else { "" };
            happened.push(Happened { reason: format!("{}{more}", new.reason), ..new });
        }
        self.known.insert(prefix, known);
    }

    /// Of what is neither there nor wanted the latest is remembered.
    fn forget(&mut self, wanted: &Wanted) {
        let gone = self.known.iter().filter(|(p, k)| k.state == State::Withdrawn && !wanted.contains_key(*p));
        let mut gone: Vec<(u64, Prefix)> = gone.map(|(p, k)| (k.at, *p)).collect();
        gone.sort_unstable();
        for (_, prefix) in gone.iter().take(gone.len().saturating_sub(GONE_MAX)) {
            self.known.remove(prefix);
        }
    }
}

/// Removes a prefix, if it is there.
fn take_away(kernel: &mut impl Routes, have: &Entered, prefix: Prefix, reason: &str) -> (State, String) {
    let metrics = have.get(&prefix).into_iter().flatten();
    let failed = metrics.filter_map(|metric| kernel.remove(prefix, *metric).err()).last();
    match failed {
        Some(e) => (State::Announced, format!("the kernel does not remove the route, and it is tried again: {e}")),
        None => (State::Withdrawn, reason.to_string()),
    }
}

/// Has the kernel know a prefix with this metric and no other. The new route is entered before the old one goes, so that there always is one.
fn bring(kernel: &mut impl Routes, have: &Entered, prefix: Prefix, metric: u32, why: String) -> (State, String) {
    let there = have.get(&prefix).cloned().unwrap_or_default();
    if !there.contains(&metric) {
        if let Err(e) = kernel.add(prefix, metric) {
            return (State::Refused, format!("the kernel does not take the route, and it is tried again: {e}"));
        }
    }
    for other in there.into_iter().filter(|m| *m != metric) {
        if let Err(e) = kernel.remove(prefix, other) {
            return (
                State::Announced,
                format!("the kernel does not remove the other route, and it is tried again: {e}"),
            );
        }
    }
    let state = if metric == ANNOUNCE_METRIC { State::Announced } else { State::Leaving };
    (state, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A kernel that notes the order of what it is told, and may refuse.
    #[derive(Default)]
    struct Fake {
        entered: Entered,
        told: Vec<String>,
        refuses: bool,
    }

    impl Routes for Fake {
        fn list(&mut self) -> io::Result<Entered> {
            Ok(self.entered.clone())
        }

        fn add(&mut self, prefix: Prefix, metric: u32) -> io::Result<()> {
            if self.refuses {
                return Err(io::Error::from_raw_os_error(libc::ENOMEM));
            }
            self.told.push(format!("+{prefix} {metric}"));
            self.entered.entry(prefix).or_default().insert(metric);
            Ok(())
        }

        fn remove(&mut self, prefix: Prefix, metric: u32) -> io::Result<()> {
            self.told.push(format!("-{prefix} {metric}"));
            self.entered.get_mut(&prefix).unwrap().remove(&metric);
            self.entered.retain(|_, metrics| !metrics.is_empty());
            Ok(())
        }
    }

    fn wanted(prefixes: &[&str]) -> Wanted {
        prefixes.iter().map(|p| (p.parse().unwrap(), vec!["tunnel address".into()])).collect()
    }

    const GRACE: Duration = Duration::from_secs(5);

    fn told(fake: &mut Fake) -> Vec<String> {
        std::mem::take(&mut fake.told)
    }

    #[test]
    fn routes_are_entered_marked_and_removed_in_this_order() {
        let (mut keeper, mut fake, begin) = (Keeper::default(), Fake::default(), Instant::now());
        let both = wanted(&["192.0.2.1/32", "2001:db8::1/128"]);
        let mut pass = |fake: &mut Fake, wanted: &Wanted, stance: &Stance, s: u64| {
            let happened = keeper.pass(fake, (wanted, stance), (begin + Duration::from_secs(s), GRACE)).unwrap();
            (happened.len(), keeper.known.values().map(|k| k.state).collect::<Vec<_>>())
        };
        assert_eq!(pass(&mut fake, &both, &Stance::Serve, 0), (2, vec![State::Announced; 2]));
        assert_eq!(told(&mut fake), ["+192.0.2.1/32 8400", "+2001:db8::1/128 8400"]);
        assert_eq!(pass(&mut fake, &both, &Stance::Serve, 1).0, 0);
        assert!(told(&mut fake).is_empty());
        // Somebody took one away.
        fake.remove("192.0.2.1/32".parse().unwrap(), 8400).unwrap();
        told(&mut fake);
        pass(&mut fake, &both, &Stance::Serve, 2);
        assert_eq!(told(&mut fake), ["+192.0.2.1/32 8400"]);
        // The mark comes before the other route goes, and both before the end.
        let leave = Stance::Leave("drained".into());
        assert_eq!(pass(&mut fake, &both, &leave, 10), (2, vec![State::Leaving; 2]));
        assert_eq!(told(&mut fake)[..2], ["+192.0.2.1/32 8401", "-192.0.2.1/32 8400"]);
        assert_eq!(pass(&mut fake, &both, &leave, 14).0, 0);
        assert!(told(&mut fake).is_empty());
        // It changes its mind, and again: the grace time begins anew.
        pass(&mut fake, &both, &Stance::Serve, 14);
        assert_eq!(told(&mut fake)[..2], ["+192.0.2.1/32 8400", "-192.0.2.1/32 8401"]);
        pass(&mut fake, &both, &leave, 20);
        assert_eq!(pass(&mut fake, &both, &leave, 24).1, vec![State::Leaving; 2]);
        told(&mut fake);
        assert_eq!(pass(&mut fake, &both, &leave, 25), (2, vec![State::Withdrawn; 2]));
        assert_eq!(told(&mut fake), ["-192.0.2.1/32 8401", "-2001:db8::1/128 8401"]);
        // What was never announced is not announced in order to be marked.
        pass(&mut fake, &both, &leave, 26);
        assert!(told(&mut fake).is_empty() && fake.entered.is_empty());
    }

    #[test]
    fn what_was_left_is_taken_over_and_what_is_not_served_goes_at_once() {
        let (mut keeper, mut fake, now) = (Keeper::default(), Fake::default(), Instant::now());
        fake.add("192.0.2.1/32".parse().unwrap(), 8400).unwrap();
        fake.add("203.0.113.9/32".parse().unwrap(), 8401).unwrap();
        fake.add("203.0.113.10/32".parse().unwrap(), 8400).unwrap();
        told(&mut fake);
        let served = wanted(&["192.0.2.1/32", "203.0.113.9/32"]);
        let happened = keeper.pass(&mut fake, (&served, &Stance::Serve), (now, GRACE)).unwrap();
        let order = ["+203.0.113.9/32 8400", "-203.0.113.9/32 8401", "-203.0.113.10/32 8400"];
        assert_eq!(told(&mut fake), order, "the first one does not flap");
        assert!(
            happened[0].reason.contains("taken over") && !happened[1].reason.contains("taken over"),
            "{happened:?}"
        );
        let gone = happened.iter().find(|h| h.state == State::Withdrawn).unwrap();
        assert_eq!(
            (gone.prefix.to_string().as_str(), gone.reason.as_str()),
            ("203.0.113.10/32", "no longer served here")
        );
        // Out of order: no mark, no grace.
        let out = Stance::Gone("no port is up".into());
        keeper.pass(&mut fake, (&served, &out), (now, GRACE)).unwrap();
        assert!(fake.entered.is_empty());
        assert_eq!(keeper.known[&"192.0.2.1/32".parse().unwrap()].reason, "no port is up");
        // A kernel that refuses is said, and asked again.
        fake.refuses = true;
        keeper.pass(&mut fake, (&served, &Stance::Serve), (now, GRACE)).unwrap();
        assert_eq!(keeper.known[&"192.0.2.1/32".parse().unwrap()].state, State::Refused);
        fake.refuses = false;
        assert_eq!(keeper.pass(&mut fake, (&served, &Stance::Serve), (now, GRACE)).unwrap().len(), 2);
    }

    #[test]
    fn of_what_went_the_latest_is_remembered() {
        let (mut keeper, mut fake, now) = (Keeper::default(), Fake::default(), Instant::now());
        for n in 0..2 * GONE_MAX {
            let one = wanted(&[&format!("203.0.{}.{}/32", n / 256, n % 256)]);
            keeper.pass(&mut fake, (&one, &Stance::Serve), (now, GRACE)).unwrap();
        }
        keeper.pass(&mut fake, (&Wanted::new(), &Stance::Serve), (now, GRACE)).unwrap();
        assert_eq!(keeper.known.len(), GONE_MAX);
        assert!(keeper.known.contains_key(&"203.0.1.255/32".parse().unwrap()));
    }
}
