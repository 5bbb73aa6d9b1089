// SPDX-License-Identifier: Apache-2.0
//! What is being done, while it takes long: a moving line on a terminal, a line a step elsewhere.

use commandline::output::say;
use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// Shows the step at hand.
#[derive(Debug)]
pub struct Progress {
    bar: Option<ProgressBar>,
    begun: Instant,
    quiet: bool,
}

impl Progress {
    /// Starts to show; `quiet` shows nothing (in tests).
    pub fn new(quiet: bool) -> Progress {
        let bar = (!quiet && std::io::stderr().is_terminal()).then(|| {
            let bar = ProgressBar::new_spinner();
            bar.set_style(ProgressStyle::with_template("{spinner} [{elapsed}] {msg}").expect("a constant template"));
            bar.enable_steady_tick(Duration::from_millis(120));
            bar
        });
        Progress { bar, begun: Instant::now(), quiet }
    }

    /// Names the step that begins now.
    pub fn step(&self, what: &str) {
        match &self.bar {
            Some(bar) => bar.set_message(what.to_string()),
            None if !self.quiet => say(format_args!("[{:5.1} s] {what}", self.begun.elapsed().as_secs_f64())),
            None => {}
        }
    }

    /// Clears the line.
    pub fn done(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.done();
    }
}
