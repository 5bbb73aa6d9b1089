// SPDX-License-Identifier: Apache-2.0
//! The flow caches of the program, a CPU each: their size, their memory, and how their counts are gathered.
//!
//! They belong to a loaded program and go with it. A program that another process replaces has lines that have not told their counts: so the
//! program `tunny_gather` of each that has pins is pinned beside them, and the next process runs it before it takes over ids of VMs and VPCs,
//! and once more when no packet is in the old program any more.

use crate::engine::{find_map, find_program, load_error};
use crate::{sys, XdpError};
use abi::{FLOW_CHUNK_BYTES, FLOW_CHUNK_LINES, LINE_BYTES};
use libbpf_rs::OpenObject;
use nix::sched::{sched_setaffinity, CpuSet};
use nix::unistd::Pid;
use parking_lot::Mutex;
use std::fs;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

const CACHE: &str = "tunny_flow_cache";
const GATHER: &str = "tunny_gather";
/// Pins of programs that gather: this, the chunks of each CPU, and a number of the program.
const PIN: &str = "gather-";

/// The flow caches of the program at hand, and those of programs before it that may still have packets.
pub(crate) struct FlowCaches {
    own: Option<FlowCache>,
    used: AtomicU64,
    older: Mutex<Vec<FlowCache>>,
}

/// Flow caches of a program, whose counts can be gathered.
pub(crate) struct FlowCache {
    program: OwnedFd,
    chunks: u32,
    /// Where the program is pinned.
    pin: Option<PathBuf>,
}

/// CPUs that the kernel may have, each of which has a cache of its own.
pub fn possible_cpus() -> Result<u32, XdpError> {
    libbpf_rs::num_possible_cpus().map(|n| n as u32).map_err(|e| load_error(&e))
}

/// Lines of a flow cache in a MiB.
pub const FLOW_LINES_IN_MIB: u32 = (1 << 20) / LINE_BYTES;

/// Lines of each flow cache where nobody says how many: one part of 32 of the memory for all of them together, at most 2 GiB together (flows
/// spread over CPUs, and each GiB takes a second to make) and 256 MiB each. None where less than 1 MiB would be left for each.
pub fn default_flow_lines(caches: u32) -> u32 {
    let memory = nix::sys::sysinfo::sysinfo().map_or(0, |info| info.ram_total());
    default_flow_mib(memory, caches) * FLOW_LINES_IN_MIB
}

fn default_flow_mib(memory: u64, caches: u32) -> u32 {
    let all = (memory / 32).min(2 << 30);
    (all / u64::from(caches.max(1)) >> 20).min(256) as u32
}

/// Sizes the caches of an object that is not loaded yet, and gives them a salt. `always`: every packet looks there, however few find
/// something. Returns the chunks of each CPU.
pub(crate) fn size(open: &mut OpenObject, lines: u32, always: bool) -> Result<u32, XdpError> {
    let (cpus, chunks) = (possible_cpus()?, lines.div_ceil(FLOW_CHUNK_LINES));
    let total = chunks.checked_mul(cpus).ok_or(XdpError::FlowCache { lines, cpus })?;
    let missing = || XdpError::Missing { kind: "constant", name: "tunny_flow" };
    let mut map = open.maps_mut().find(|m| m.name().to_string_lossy().ends_with(".rodata.flow")).ok_or_else(missing)?;
    let value = map.initial_value_mut().and_then(|v| v.get_mut(..24)).ok_or_else(missing)?;
    value[..4].copy_from_slice(&chunks.to_ne_bytes());
    value[4..8].copy_from_slice(&cpus.to_ne_bytes());
    value[8..16].copy_from_slice(&rand::random::<u64>().to_ne_bytes());
    value[16..20].copy_from_slice(&u32::from(always).to_ne_bytes());
    let cache = open.maps_mut().find(|m| m.name() == CACHE);
    let mut cache = cache.ok_or(XdpError::Missing { kind: "map", name: CACHE })?;
    cache.set_max_entries(total.max(1)).map_err(|e| load_error(&e))?;
    Ok(chunks)
}

/// Makes the caches of a loaded object. `pins`: of this layout; programs before that left counts there tell them.
pub(crate) fn make(object: &libbpf_rs::Object, chunks: u32, pins: Option<&Path>) -> Result<FlowCaches, XdpError> {
    let older: Vec<FlowCache> = pins.into_iter().flat_map(pinned).collect();
    for cache in &older {
        cache.gather();
    }
    let own = if chunks == 0 { None } else { Some(make_own(object, chunks, pins)?) };
    Ok(FlowCaches { own, used: AtomicU64::new(0), older: Mutex::new(older) })
}

fn make_own(object: &libbpf_rs::Object, chunks: u32, pins: Option<&Path>) -> Result<FlowCache, XdpError> {
    const BATCH: u32 = 512;
    let cache = find_map(object, CACHE)?;
    let total = chunks * possible_cpus()?;
    for first in (0..total).step_by(BATCH as usize) {
        let keys: Vec<u32> = (first..(first + BATCH).min(total)).collect();
        let made: Result<Vec<OwnedFd>, _> =
            keys.iter().map(|_| sys::create_plain_array("tunny_flows", FLOW_CHUNK_BYTES, 1)).collect();
        let made = made.map_err(XdpError::call("Making the flow cache"))?;
        let values: Vec<u32> = made.iter().map(|fd| fd.as_raw_fd() as u32).collect();
        sys::update_batch(cache, &keys, &values).map_err(XdpError::call("Making the flow cache"))?;
    }
    let program = find_program(object, GATHER)?;
    let program = program.try_clone_to_owned().map_err(XdpError::call("Keeping a BPF program"))?;
    let pin = pins.map(|dir| dir.join(format!("{PIN}{chunks}-{:016x}", rand::random::<u64>())));
    if let Some(path) = &pin {
        sys::pin(program.as_fd(), path).map_err(XdpError::call(format!("Pinning {}", path.display())))?;
    }
    Ok(FlowCache { program, chunks, pin })
}

/// Caches of programs that are pinned in a layout's folder.
pub(crate) fn pinned(dir: &Path) -> Vec<FlowCache> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten().map(|e| e.path());
    let cache = |path: PathBuf| {
        let chunks = path.file_name()?.to_str()?.strip_prefix(PIN)?.split('-').next()?.parse().ok()?;
        Some(FlowCache { program: sys::open_pin(&path).ok()?, chunks, pin: Some(path) })
    };
    entries.filter_map(cache).collect()
}

impl FlowCache {
    /// Has all lines tell their counts: each CPU's on that CPU, all CPUs side by side. A CPU on which no thread may run keeps its counts for
    /// later. Returns how many lines are in use.
    pub(crate) fn gather(&self) -> u64 {
        let Ok(cpus) = possible_cpus() else { return 0 };
        std::thread::scope(|scope| {
            let all: Vec<_> = (0..cpus).map(|cpu| scope.spawn(move || self.gather_on(cpu))).collect();
            all.into_iter().map(|thread| thread.join().unwrap_or(0)).sum()
        })
    }

    fn gather_on(&self, cpu: u32) -> u64 {
        let mut only = CpuSet::new();
        if only.set(cpu as usize).and_then(|()| sched_setaffinity(Pid::from_raw(0), &only)).is_err() {
            return 0;
        }
        let (mut frame, mut out, mut used) = ([0; 64], [0; 64], 0);
        for chunk in 0..self.chunks {
            frame[..4].copy_from_slice(&chunk.to_ne_bytes());
            let how = sys::How { repeat: 1, ..Default::default() };
            used += sys::run(self.program.as_fd(), &frame, &mut out, how).map_or(0, |run| u64::from(run.verdict));
        }
        used
    }
}

impl FlowCaches {
    /// Whether there are any.
    pub(crate) fn any(&self) -> bool {
        self.own.is_some() || !self.older.lock().is_empty()
    }

    /// Has all lines tell their counts.
    pub(crate) fn gather(&self) {
        if let Some(own) = &self.own {
            self.used.store(own.gather(), Ordering::Relaxed);
        }
        self.older.lock().iter().for_each(|cache| {
            cache.gather();
        });
    }

    /// Lines in use when counts were gathered last, and lines there are, of all CPUs together. None: the program has no cache.
    pub(crate) fn level(&self) -> Option<(u64, u64)> {
        let own = self.own.as_ref()?;
        let lines = u64::from(own.chunks) * u64::from(possible_cpus().unwrap_or(1)) * u64::from(FLOW_CHUNK_LINES);
        Some((self.used.load(Ordering::Relaxed), lines))
    }

    /// No port runs an older program any more: when no packet is in one (`grace`), their caches tell what they have, and go.
    pub(crate) fn retire_older(&self, grace: impl FnOnce()) {
        let mut older = self.older.lock();
        if older.is_empty() {
            return;
        }
        grace();
        for cache in older.drain(..) {
            cache.gather();
            let _ = cache.pin.map(fs::remove_file);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::default_flow_mib;

    #[test]
    fn the_default_size_is_a_small_part_of_the_memory() {
        let of = |gib: u64, caches| default_flow_mib(gib << 30, caches);
        assert_eq!([of(24, 2), of(4, 2), of(1, 4), of(512, 128), of(0, 0)], [256, 64, 8, 16, 0]);
        assert_eq!(default_flow_mib(64 << 20, 4), 0);
    }
}
