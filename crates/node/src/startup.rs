// SPDX-License-Identifier: Apache-2.0
//! The steps of a start: each is timed and logged, and one that takes long says so while it does.

use crate::types::Step;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time after which a step says that it is still at work, and says so again.
const PATIENCE: Duration = Duration::from_secs(2);

/// What is being done, and since when.
type Now = Option<(&'static str, Instant)>;
type Current = Arc<Mutex<Now>>;

/// The steps so far, and the one at hand.
pub(crate) struct Steps {
    list: Vec<Step>,
    current: Current,
}

impl Steps {
    /// No step yet.
    pub(crate) fn new() -> Steps {
        let current: Current = Arc::default();
        let seen = Arc::downgrade(&current);
        let watch = move || {
            let mut said = None;
            // Ends with the steps.
            while let Some(current) = seen.upgrade() {
                let now = *current.lock();
                drop(current);
                if let Some((what, since)) = now.filter(|(_, since)| since.elapsed() >= PATIENCE) {
                    let number = since.elapsed().as_secs() / PATIENCE.as_secs();
                    if said.replace((since, number)) != Some((since, number)) {
                        tracing::info!("still {what} ({} s)", since.elapsed().as_secs());
                    }
                }
                std::thread::sleep(PATIENCE / 10);
            }
        };
        // Without the thread nothing is missing but these words.
        let _ = std::thread::Builder::new().name("tunny-start".into()).spawn(watch);
        Steps { list: Vec::new(), current }
    }

    /// Begins a step.
    pub(crate) fn begin(&mut self, what: &'static str) {
        *self.current.lock() = Some((what, Instant::now()));
    }

    /// The step at hand is done.
    pub(crate) fn done(&mut self, what: impl Into<String>) {
        let begun = self.current.lock().take().map_or_else(Instant::now, |(_, since)| since);
        let step = Step { what: what.into(), seconds: begun.elapsed().as_secs_f64() };
        tracing::info!("{} ({:.3} s)", step.what, step.seconds);
        self.list.push(step);
    }

    /// All of them.
    pub(crate) fn list(self) -> Vec<Step> {
        self.list
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_listed_in_order_with_their_own_times() {
        let mut steps = Steps::new();
        steps.begin("waiting");
        std::thread::sleep(Duration::from_millis(20));
        steps.done("waited");
        steps.begin("hurrying");
        steps.done("hurried");
        let list = steps.list();
        assert_eq!(list.iter().map(|s| s.what.as_str()).collect::<Vec<_>>(), ["waited", "hurried"]);
        assert!(list[0].seconds >= 0.02, "{list:?}");
    }
}
