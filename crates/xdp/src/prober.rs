// SPDX-License-Identifier: Apache-2.0
//! [`Prober`]: the program once more, attached nowhere, on the very maps that packets meet. Probes run through it.
//!
//! It is the same object with one constant set (`tunny_probes` in bpf/platform.h), by which the verifier removes every instruction that
//! counts, meters or touches a session. Tables, sessions, state tables and egress ports are the maps of the attached program; statistics,
//! listeners and events are its own, so that what became of a probe can be told while others' packets go by.

use crate::engine::{find_map, find_program, load_error, open_object, set_netns, OBJECT, SESSIONS, STATES};
use crate::ports::QUEUES_MAX;
use crate::run::{read_meta, total, unbound_socket, verdict};
use crate::sys::{self, Mapping};
use crate::{TestRun, XdpEngine, XdpError};
use abi::{IfIndex, Stats, FRAME_BYTES_MAX, PORTS_MAX, SLOTS_MAX};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// The maps that it shares with the program beside it.
const SHARED: [&str; 6] = ["tunny_root", "tunny_segments", "tunny_ports", SESSIONS[0], SESSIONS[1], STATES];
const PROGRAM: &str = "tunny_gateway";

/// What a [`Prober`] shares with an engine.
pub struct ProberMaps(Vec<(&'static str, OwnedFd)>);

/// The program for probes.
pub struct Prober {
    object: libbpf_rs::Object,
    stats: Mapping,
    /// Who would get punts, by port.
    listeners: BTreeMap<IfIndex, OwnedFd>,
}

impl XdpEngine {
    /// What [`Prober::load`] needs. The engine may do other things while that goes on.
    pub fn prober_maps(&self) -> Result<ProberMaps, XdpError> {
        let shared = SHARED.into_iter().map(|name| {
            let fd = self.map(name)?.try_clone_to_owned();
            Ok((name, fd.map_err(XdpError::call(format!("Keeping the map {name}")))?))
        });
        shared.collect::<Result<_, _>>().map(ProberMaps)
    }
}

impl Prober {
    /// Loads the program on these maps. The verifier takes its time: about as long as at a start.
    pub fn load(maps: &ProberMaps) -> Result<Prober, XdpError> {
        let mut open = open_object(OBJECT)?;
        set_netns(&mut open)?;
        for mut program in open.progs_mut() {
            let wanted = program.name() == PROGRAM;
            program.set_autoload(wanted);
        }
        let missing = || XdpError::Missing { kind: "constant", name: "tunny_probes" };
        {
            let found = open.maps_mut().find(|m| m.name().to_string_lossy().ends_with(".rodata.probes"));
            let mut constant = found.ok_or_else(missing)?;
            let value = constant.initial_value_mut().and_then(|v| v.get_mut(..4)).ok_or_else(missing)?;
            value.copy_from_slice(&1u32.to_ne_bytes());
        }
        for (name, fd) in &maps.0 {
            let mut map = open.maps_mut().find(|m| m.name() == *name).ok_or(XdpError::Missing { kind: "map", name })?;
            map.reuse_fd(fd.as_fd()).map_err(|e| load_error(&e))?;
        }
        let object = open.load().map_err(|e| load_error(&e))?;
        let bytes = size_of::<Stats>() * SLOTS_MAX as usize;
        let stats = Mapping::of_map(find_map(&object, "tunny_stats")?, bytes, false);
        let stats = stats.map_err(XdpError::call("Mapping the statistics of probes"))?;
        Ok(Prober { object, stats, listeners: BTreeMap::new() })
    }

    fn program(&self) -> BorrowedFd<'_> {
        find_program(&self.object, PROGRAM).expect("it was loaded")
    }

    /// Runs a frame as if it came in by a port. Nothing leaves, whatever the verdict is.
    pub fn run(&mut self, frame: &[u8], ifindex: IfIndex) -> Result<TestRun, XdpError> {
        self.listen(ifindex)?;
        let mut out = vec![0; FRAME_BYTES_MAX as usize + 1024];
        let before = self.total();
        let how = sys::How { repeat: 1, from: (ifindex.0, 0), ..Default::default() };
        let run = sys::run(self.program(), frame, &mut out, how).map_err(XdpError::call("BPF_PROG_TEST_RUN"))?;
        let after = self.total();
        out.truncate(run.bytes);
        let frame = out.split_off(run.meta.min(out.len()));
        Ok(TestRun { verdict: verdict(run.verdict, &before, &after), frame, meta: read_meta(&out), ns: run.ns })
    }

    /// Whoever would get the punts of a port: a socket that is bound to nothing.
    fn listen(&mut self, ifindex: IfIndex) -> Result<(), XdpError> {
        if self.listeners.contains_key(&ifindex) {
            return Ok(());
        }
        let slot = self.listeners.len() as u32;
        if slot >= PORTS_MAX {
            return Err(XdpError::Limit { what: "Ports of probes".into(), limit: PORTS_MAX });
        }
        let socket = unbound_socket()?;
        let write = |name, key, value| {
            let map = find_map(&self.object, name)?;
            sys::update_u32(map, key, value).map_err(XdpError::call(format!("Writing {name}")))
        };
        write("tunny_port_slots", ifindex.0, slot)?;
        write("tunny_xsks", slot * QUEUES_MAX, socket.as_raw_fd() as u32)?;
        self.listeners.insert(ifindex, socket);
        Ok(())
    }

    fn total(&self) -> Stats {
        // SAFETY: the mapping has SLOTS_MAX elements, is page-aligned and lives as long as `self`.
        unsafe { total(self.stats.at().cast(), SLOTS_MAX) }
    }
}
