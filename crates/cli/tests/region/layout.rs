// SPDX-License-Identifier: Apache-2.0
//! A running node's pins made to look like those of a version with another layout.

use super::Region;
use std::path::PathBuf;
use std::time::Duration;

const OTHER: &str = "00000000deadbeef";

impl Region {
    /// Where the node's maps are pinned.
    pub fn pins(&self) -> PathBuf {
        PathBuf::from("/sys/fs/bpf/tunny").join(self.names.instance())
    }

    /// The layouts of which there are pins.
    pub fn layouts(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.pins()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
        entries.filter_map(|name| name.strip_prefix("layout-").map(str::to_string)).collect()
    }

    /// Of the layouts that there are pins of, there is only this program's.
    pub fn only_own_layout(&self) {
        assert_eq!(self.layouts(), [own()], "the old tables are gone");
    }

    /// Ends the node in order, and what it leaves is of another version.
    pub fn leave_another_layout(&self) {
        stop(self.node().unwrap().process.pid);
        let (pins, described) = (self.pins(), self.names.dir().join("node/layouts"));
        std::fs::rename(pins.join(format!("layout-{}", own())), pins.join(format!("layout-{OTHER}"))).unwrap();
        std::fs::rename(described.join(format!("{}.json", own())), described.join(format!("{OTHER}.json"))).unwrap();
    }
}

impl Region {
    /// What the node of another version left has no description any more, so that nobody can tell where its counters lie.
    pub fn forget_description(&self) {
        std::fs::remove_file(self.names.dir().join(format!("node/layouts/{OTHER}.json"))).unwrap();
    }
}

fn own() -> String {
    format!("{:016x}", abi::layout_hash())
}

/// Ends a node in order, as `systemctl stop` does.
pub fn stop(pid: i32) {
    let pid = nix::unistd::Pid::from_raw(pid);
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
    while nix::sys::signal::kill(pid, None).is_ok() {
        std::thread::sleep(Duration::from_millis(5));
    }
}
