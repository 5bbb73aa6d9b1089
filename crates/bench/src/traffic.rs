// SPDX-License-Identifier: Apache-2.0
//! Generators and sinks in BPF (bpf/traffic.bpf.c) and the memory that they share: packets, words of control and counting, samples.
use crate::workload::PACKET_SLOT;
use crate::{cpu, Error};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use xdp::object::{Mapping, Object};

static TRAFFIC: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/traffic.o"));

/// Words of `struct traffic_state` in bpf/traffic.bpf.c.
pub(crate) const SENT: usize = 0;
pub(crate) const NEXT: usize = 1;
pub(crate) const WINDOW_WORD: usize = 2;
const PACKETS: usize = 3;
pub(crate) const PROBE_OFFSET: usize = 4;
pub(crate) const BUDGET: usize = 5;
pub(crate) const ROUNDS: usize = 6;
pub(crate) const GAP: usize = 7;
pub(crate) const RECEIVED: usize = 8;
pub(crate) const STRANGE: usize = 9;
pub(crate) const SAMPLES: usize = 10;
pub(crate) const PROBE_GAP: usize = 12;
pub(crate) const PROBES: usize = 14;
pub(crate) const SENT_AT: usize = 15;
pub(crate) const ARRIVAL_OFFSET: usize = 16;
const LAST: usize = 17;
const STATE_BYTES: usize = LAST * 8 + PACKET_SLOT;
/// Samples that a sink keeps.
pub(crate) const LATENCIES: usize = 65_536;
/// Packets that the memory holds, the template of probes among them.
const SLOTS: usize = 65_536;

/// One generator, one sink, and their memory.
pub(crate) struct Traffic {
    object: Object,
    memory: Mapping,
    state: Mapping,
    latencies: Mapping,
}

impl Traffic {
    /// Loads the programs. Their packets come with [`Traffic::fill`].
    pub fn load() -> Result<Traffic, Error> {
        let object = Object::load("tunny_traffic", TRAFFIC, &[], &[])?;
        let memory = Mapping::new(object.map("packets")?, SLOTS * PACKET_SLOT)?;
        let state = Mapping::new(object.map("traffic")?, STATE_BYTES.next_multiple_of(4096))?;
        let latencies = Mapping::new(object.map("latencies")?, LATENCIES * 8)?;
        Ok(Traffic { object, memory, state, latencies })
    }

    /// Fills packet memory: a power of two of packets, and behind them the template of probes.
    pub fn fill(&mut self, packets: &[u8], template: Option<&[u8; PACKET_SLOT]>) {
        let count = (packets.len() / PACKET_SLOT).min(SLOTS);
        // SAFETY: the mapping is SLOTS slots long; generators run in calls on `&self`, so none runs now.
        unsafe { std::ptr::copy_nonoverlapping(packets.as_ptr(), self.memory.as_ptr(), count * PACKET_SLOT) };
        if let Some(template) = template.filter(|_| count < SLOTS) {
            // SAFETY: slot `count` lies within the mapping.
            unsafe {
                std::ptr::copy_nonoverlapping(
                    template.as_ptr(),
                    self.memory.as_ptr().add(count * PACKET_SLOT),
                    PACKET_SLOT,
                )
            };
        }
        self.word(PACKETS).store(count as u64, Ordering::Relaxed);
    }

    /// A program of the object.
    pub fn program(&self, name: &str) -> Result<BorrowedFd<'_>, Error> {
        Ok(self.object.program(name)?)
    }

    /// A word of the state.
    pub fn word(&self, index: usize) -> &AtomicU64 {
        // SAFETY: the state is mapped for as long as self lives; the kernel writes its words with aligned stores.
        unsafe { &*self.state.as_ptr().cast::<AtomicU64>().add(index) }
    }

    /// Waits until nothing more arrives, and takes what did not for lost.
    pub fn settle(&self) {
        let mut last = u64::MAX;
        cpu::wait_for(Duration::from_millis(500), || {
            let now = self.word(RECEIVED).load(Ordering::Relaxed);
            std::mem::replace(&mut last, now) == now
        });
        let received = self.word(RECEIVED).load(Ordering::Relaxed);
        self.word(SENT).store(received, Ordering::Relaxed);
    }

    /// Takes the samples that the sink has written since the last call, ns.
    pub fn take_samples(&self) -> Vec<f64> {
        let taken = (self.word(SAMPLES).swap(0, Ordering::Relaxed) as usize).min(LATENCIES);
        // SAFETY: the mapping holds LATENCIES words; a word that the sink writes meanwhile is a sample of the next interval.
        let samples = unsafe { std::slice::from_raw_parts(self.latencies.as_ptr().cast::<u64>(), taken) };
        samples.iter().map(|ns| *ns as f64).collect()
    }

    /// The packet that came last of those that the sink keeps (one of 1,024).
    pub fn last(&self) -> [u8; PACKET_SLOT] {
        let mut last = [0u8; PACKET_SLOT];
        // SAFETY: the state holds PACKET_SLOT bytes behind LAST; a torn copy would at worst fail a check.
        unsafe { std::ptr::copy_nonoverlapping(self.state.as_ptr().add(LAST * 8), last.as_mut_ptr(), PACKET_SLOT) };
        last
    }
}
