// SPDX-License-Identifier: Apache-2.0
//! A region in network namespaces that lives as long as a test. Tests of one file take turns, since each region is worth a machine.
#![allow(dead_code)] // Each test file is a crate of its own and uses what it needs.

use lab::plan::Names;
use lab::progress::Progress;
use lab::{Lab, Options};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard};

static TURN: Mutex<()> = Mutex::new(());

/// A region that is removed when the test ends, also by a panic.
pub struct Region {
    pub lab: Option<Lab>,
    pub names: Names,
    _turn: MutexGuard<'static, ()>,
}

impl std::ops::Deref for Region {
    type Target = Lab;
    fn deref(&self) -> &Lab {
        self.lab.as_ref().expect("up until the end")
    }
}

impl std::ops::DerefMut for Region {
    fn deref_mut(&mut self) -> &mut Lab {
        self.lab.as_mut().expect("up until the end")
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the node's last words:\n{}", lab::node::tail(&self.names.dir().join("node.log")));
            if let Some(Ok(counters)) = self.lab.as_ref().and_then(|l| l.node.as_ref()).map(|n| n.counters()) {
                eprintln!("the node's counters: {counters:?}");
            }
        }
        self.lab = None;
        if let Err(error) = lab::lifecycle::remove_all(&self.names) {
            eprintln!("removing the region: {error}");
        }
    }
}

/// A region for a test, with a name of its own.
pub fn options(name: &str) -> Options {
    Options {
        suffix: format!("{name}{}", std::process::id()),
        quiet: true,
        seconds: 1,
        ..Options::new(PathBuf::from(env!("CARGO_BIN_EXE_tunny")))
    }
}

/// Brings it up; `None`: not root, which has been said.
pub fn region_with(options: &Options) -> Option<Region> {
    if !nix::unistd::geteuid().is_root() {
        println!("skipped: needs root to make network namespaces");
        return None;
    }
    let turn = TURN.lock().unwrap_or_else(|e| e.into_inner());
    let names = Names::new(&options.suffix);
    match lab::up(options, &Progress::new(true)) {
        Ok(lab) => Some(Region { lab: Some(lab), names, _turn: turn }),
        Err(error) => {
            lab::lifecycle::remove_all(&names).unwrap();
            panic!("the region did not come up: {error}");
        }
    }
}

pub fn region(name: &str) -> Option<Region> {
    region_with(&options(name))
}

