// SPDX-License-Identifier: Apache-2.0
//! Counters of VPCs and VMs across an upgrade to another table layout.
//!
//! These counters lie in the tables, in a form that each layout chooses anew. A node that ends in order writes them down by
//! VNI and name; the next one, if its tables are new ones, adds what was written to what it counts. So no version needs to
//! know how another one counts. What the fast path counts between the end of one and the switch by the next is lost, as is
//! everything since the last orderly end when the old node was killed; packets are not. Statistics of engines and drops are read
//! from the old tables themselves (`upgrade`). Meters begin with a full burst.

use abi::Vni;
use std::collections::HashMap;
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use tables::Count;

/// First line of the file; the last one says how many lines stand between.
const MARK: &str = "tunny counters 2";
/// First line as an earlier version wrote it, without a last line.
const MARK_OPEN: &str = "tunny counters 1";
/// Lines that are read at most: VPCs and VMs of a full node, twice.
const LINES_MAX: usize = 1 << 26;

/// What is counted by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// By VNI.
    pub vpcs: HashMap<Vni, Count>,
    /// By name of the VM.
    pub vms: HashMap<String, Count>,
}

impl Counts {
    /// What was counted for a VPC.
    pub fn vpc(&self, vni: Vni) -> Count {
        self.vpcs.get(&vni).copied().unwrap_or_default()
    }

    /// What was counted for a VM.
    pub fn vm(&self, name: &str) -> Count {
        self.vms.get(name).copied().unwrap_or_default()
    }

    fn write(&self, out: &mut impl Write, section: &str) -> std::io::Result<()> {
        for (vni, count) in &self.vpcs {
            writeln!(out, "{section} vpc {vni} {} {}", count.packets, count.bytes)?;
        }
        for (name, count) in &self.vms {
            writeln!(out, "{section} vm {name} {} {}", count.packets, count.bytes)?;
        }
        Ok(())
    }
}

/// What a node leaves to its successor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Saved {
    /// Counted by tables that are no more; to be added to what the present ones count.
    pub before: Counts,
    /// All of it, with what the tables counted until the end.
    pub total: Counts,
}

fn path(state: &Path) -> PathBuf {
    state.join("counters")
}

/// Reads what an earlier process left. A damaged file is as none: counters are no reason not to start.
pub fn load(state: &Path) -> Saved {
    let mut saved = Saved::default();
    let Ok(file) = std::fs::File::open(path(state)) else { return saved };
    let mut lines = BufReader::new(file).lines().map_while(Result::ok);
    let open = match lines.next().as_deref() {
        Some(MARK) => false,
        Some(MARK_OPEN) => true,
        _ => return saved,
    };
    let (mut count, mut whole) = (0, open);
    for line in lines.take(LINES_MAX) {
        if let Some(said) = line.strip_prefix("end ") {
            whole = said.parse() == Ok(count);
            break;
        }
        count += 1;
        let mut words = line.split(' ');
        let (section, kind, name) = (words.next(), words.next(), words.next());
        let mut number = || words.next().and_then(|n| n.parse::<u64>().ok());
        let (Some(packets), Some(bytes), Some(name)) = (number(), number(), name) else { continue };
        let counts = if section == Some("before") { &mut saved.before } else { &mut saved.total };
        let count = Count { packets, bytes };
        match (kind, name.parse::<u32>()) {
            (Some("vpc"), Ok(vni)) => drop(counts.vpcs.insert(Vni(vni), count)),
            (Some("vm"), _) => drop(counts.vms.insert(name.to_string(), count)),
            _ => {}
        }
    }
    if whole {
        return saved;
    }
    tracing::warn!("{} is cut off, so the counters of VPCs and VMs from before begin anew", path(state).display());
    Saved::default()
}

/// Leaves counters to whoever comes after.
pub fn save(state: &Path, saved: &Saved) -> std::io::Result<()> {
    let (file, temporary) = (path(state), state.join("counters.new"));
    let mut out = BufWriter::with_capacity(1 << 20, std::fs::File::create(&temporary)?);
    writeln!(out, "{MARK}")?;
    saved.before.write(&mut out, "before")?;
    saved.total.write(&mut out, "total")?;
    let lines: usize = [&saved.before, &saved.total].map(|c| c.vpcs.len() + c.vms.len()).iter().sum();
    writeln!(out, "end {lines}")?;
    out.into_inner().map_err(|e| e.into_error())?.sync_all()?;
    std::fs::rename(temporary, file)?;
    std::fs::File::open(state)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_saved_is_loaded_and_damage_is_none() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(load(dir.path()), Saved::default());
        let count = |n: u64| Count { packets: n, bytes: n * 100 };
        let counts = |n: u64| Counts {
            vpcs: HashMap::from([(Vni(100), count(n))]),
            vms: HashMap::from([("blue/10.0.0.1".to_string(), count(n + 1)), ("n".to_string(), count(u64::MAX / 100))]),
        };
        let saved = Saved { before: counts(1), total: counts(5) };
        save(dir.path(), &saved).unwrap();
        assert_eq!(load(dir.path()), saved);
        assert_eq!((saved.total.vpc(Vni(100)), saved.total.vpc(Vni(7))), (count(5), Count::default()));
        let whole = std::fs::read(path(dir.path())).unwrap();
        for cut in 0..whole.len() {
            std::fs::write(path(dir.path()), &whole[..cut]).unwrap();
            // Without the very last line's end everything is there all the same.
            let expected = if cut + 1 == whole.len() { saved.clone() } else { Saved::default() };
            assert_eq!(load(dir.path()), expected, "{cut}");
        }
        let old = String::from_utf8(whole)
            .unwrap()
            .replace(MARK, MARK_OPEN)
            .lines()
            .filter(|l| !l.starts_with("end"))
            .fold(String::new(), |t, l| t + l + "\n");
        std::fs::write(path(dir.path()), old).unwrap();
        assert_eq!(load(dir.path()), saved, "what an earlier version left");
        std::fs::write(path(dir.path()), b"\xff\xfe\nvpc").unwrap();
        assert_eq!(load(dir.path()), Saved::default());
    }
}
