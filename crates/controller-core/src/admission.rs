// SPDX-License-Identifier: Apache-2.0
//! Whether a node serves in its region. It is decided of what the node says of its probes (`docs/design/probes.md`), and of nothing else:
//!
//! ```text
//!            all that was intended when it came is probed             a probe fails
//!  joining ──────────────────────────────────────────────► admitted ───────────────► out
//!     ▲                                                       │  ▲                     │
//!     └───────────────── away, for longer than a pause ───────┘  └─────────────────────┘
//!                                                                none fails, all that was installed then is probed
//! ```
//!
//! A controller that has just begun believes a node which says that it was admitted: else each restart would take every node out for a moment.
//! A node that makes no probes (an older version, or one without ports) is admitted as it always was.

use node::distribution::Report;

/// How a node stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Admission {
    /// It has not shown yet that it serves.
    #[default]
    Joining,
    /// It serves.
    Admitted,
    /// One of its probes fails.
    Out,
}

impl Admission {
    /// As operators see it.
    pub fn name(self) -> &'static str {
        match self {
            Admission::Joining => "joining",
            Admission::Admitted => "admitted",
            Admission::Out => "out",
        }
    }
}

/// What leads to the admission of a node.
#[derive(Clone, Debug, Default)]
pub struct Probation {
    admission: Admission,
    /// The revision that must be probed before it is admitted; none: it has not been heard.
    goal: Option<u64>,
    /// It was away, and shows anew that it serves.
    returns: bool,
}

impl Probation {
    /// How the node stands.
    pub fn admission(&self) -> Admission {
        self.admission
    }

    /// Whether the node has said anything since it came.
    pub fn is_heard(&self) -> bool {
        self.goal.is_some()
    }

    /// The node comes back after it was away.
    pub fn returned(&mut self) {
        *self = Probation { returns: true, ..Probation::default() };
    }

    /// The node has said something; `intent` is what its cluster shall hold. Whether it stands differently now.
    pub fn heard(&mut self, report: &Report, intent: u64) -> bool {
        let before = self.admission;
        let goal = *self.goal.get_or_insert(intent);
        let fails = report.probes.as_ref().is_some_and(|probes| !probes.failures.is_empty());
        let probed = report.probes.as_ref().is_none_or(|probes| probes.revision >= goal && !probes.engines.is_empty());
        self.admission = match before {
            Admission::Admitted if fails => {
                self.goal = Some(report.installed);
                Admission::Out
            }
            Admission::Admitted => Admission::Admitted,
            Admission::Joining if !fails && report.admitted && !self.returns => Admission::Admitted,
            Admission::Joining | Admission::Out if !fails && probed => Admission::Admitted,
            kept => kept,
        };
        self.admission != before
    }
}

/// Why a node is not admitted, in a sentence; nothing of one that is.
pub fn why(admission: Admission, report: &Report) -> String {
    let Some(probes) = report.probes.as_ref().filter(|_| admission != Admission::Admitted) else {
        return String::new();
    };
    match probes.failures.first() {
        Some(failure) => format!("a probe fails: {failure}"),
        None if probes.engines.is_empty() => "it has not made its probes yet".into(),
        None => format!("its probes have come to revision {}", probes.revision),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use node::probes;
    use rand::{RngExt, SeedableRng};

    fn report(installed: u64, revision: u64, fails: bool) -> Report {
        let failures = if fails { vec![probes::Failure::default()] } else { Vec::new() };
        let probes = probes::Report { revision, engines: vec!["user".into()], failures, ..probes::Report::default() };
        Report { installed, probes: Some(probes), ..Report::default() }
    }

    #[test]
    fn a_node_is_admitted_after_its_probes_and_out_by_one_that_fails() {
        let mut node = Probation::default();
        let mut stands = |report: Report, intent| {
            node.heard(&report, intent);
            node.admission()
        };
        // Nothing probed; not all that was intended when it came; later changes do not put it off.
        let none = Report { probes: Some(probes::Report::default()), ..Report::default() };
        assert_eq!(stands(none, 7), Admission::Joining);
        assert_eq!(stands(report(6, 6, false), 9), Admission::Joining);
        assert_eq!(stands(report(7, 7, true), 9), Admission::Joining);
        assert_eq!(stands(report(7, 7, false), 9), Admission::Admitted);
        // It may lag behind; a probe that fails takes it out until none does and what it had then is probed.
        assert_eq!(stands(report(8, 7, false), 9), Admission::Admitted);
        assert_eq!(stands(report(9, 8, true), 9), Admission::Out);
        assert_eq!(stands(report(9, 8, false), 9), Admission::Out);
        assert_eq!(stands(report(10, 9, false), 10), Admission::Admitted);
        // Away for long: it shows anew that it serves, whatever it says of itself.
        node.returned();
        let said = Report { admitted: true, ..report(10, 10, false) };
        assert!(!node.heard(&said, 12));
        assert!(node.heard(&report(12, 12, false), 12));
    }

    #[test]
    fn a_new_controller_believes_a_node_and_one_without_probes_is_admitted() {
        let mut node = Probation::default();
        assert!(node.heard(&Report { admitted: true, ..report(5, 3, false) }, 7));
        assert_eq!(node.admission(), Admission::Admitted);
        let mut failing = Probation::default();
        assert!(!failing.heard(&Report { admitted: true, ..report(5, 3, true) }, 7));
        let mut old = Probation::default();
        assert!(old.heard(&Report::default(), 7));
    }

    /// Under random words: whoever is admitted had no failure in its last word, and had all probed at some time since it came.
    #[test]
    fn nobody_is_admitted_who_fails() {
        let seed: u64 = rand::random();
        println!("seed {seed}");
        let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(seed);
        for _ in 0..2000 {
            let (mut node, mut intent, mut first, mut proved) = (Probation::default(), 5, None, false);
            for _ in 0..40 {
                intent += rng.random_range(0..2);
                if rng.random_range(0..20) == 0 {
                    node.returned();
                    (first, proved) = (None, false);
                    continue;
                }
                let installed = rng.random_range(0..=intent);
                let said = report(installed, rng.random_range(0..=installed), rng.random_range(0..4) == 0);
                let goal = *first.get_or_insert(intent);
                let probes = said.probes.as_ref().unwrap();
                proved |= probes.failures.is_empty() && probes.revision >= goal;
                node.heard(&said, intent);
                let admitted = node.admission() == Admission::Admitted;
                assert!(!admitted || probes.failures.is_empty() && proved);
                assert_eq!(admitted, why(node.admission(), &said).is_empty());
            }
        }
    }
}
