// SPDX-License-Identifier: Apache-2.0
//! [`BpfStates`]: where state tables lie that the program reads: each in an mmapable BPF array of its own size, in the slots of the
//! array of maps `tunny_states`.
//!
//! A table of another kind or size is filled in a new array beside the one in use and then takes its slot by one map update, so that
//! the program reads the one or the other, whole; the kernel waits for runs that are under way. Arrays in a slot are pinned as `states-ID`
//! (opening a map by its id takes CAP_SYS_ADMIN); a pin whose array is in no slot is one that a killed process left.

use crate::object::Mapping;
use crate::sys;
use abi::LINE_BYTES;
use conntrack_compact::{Backing, WordMemory};
use parking_lot::Mutex;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const SLOTS: [u32; abi::STATES_SLOT_COUNT as usize] =
    [abi::STATES_SLOT_TABLE, abi::STATES_SLOT_RECORDS, abi::STATES_SLOT_MIGRATE];
const PIN: &str = "states-";

/// State tables on BPF maps.
pub struct BpfStates {
    slots: OwnedFd,
    pins: Option<PathBuf>,
    made: Mutex<[Option<OwnedFd>; SLOTS.len()]>,
}

/// Id and number of elements of a map.
fn id_and_entries(map: BorrowedFd) -> io::Result<(u32, u32)> {
    let info = sys::info::<20>(map)?;
    let word = |at: usize| u32::from_ne_bytes([info[at], info[at + 1], info[at + 2], info[at + 3]]);
    Ok((word(4), word(16)))
}

fn path(dir: &Path, id: u32) -> PathBuf {
    dir.join(format!("{PIN}{id}"))
}

impl BpfStates {
    /// On this array of maps. What is entered is pinned in `pins`.
    pub fn open(slots: BorrowedFd, pins: Option<PathBuf>) -> io::Result<BpfStates> {
        let states = BpfStates { slots: slots.try_clone_to_owned()?, pins, made: Mutex::default() };
        states.sweep()?;
        Ok(states)
    }

    /// The agent's records that are pinned in the folder of another layout, for reading; none if it has none, or its lines are of another length.
    pub fn old_records(dir: &Path) -> io::Result<Option<Arc<dyn WordMemory>>> {
        let slots = sys::open_pin(&dir.join(crate::engine::STATES))?;
        let Some(id) = sys::lookup_u32(slots.as_fd(), abi::STATES_SLOT_RECORDS)? else { return Ok(None) };
        let array = sys::open_pin(&path(dir, id)).or_else(|_| sys::map_by_id(id))?;
        map(array.as_fd()).map(Some)
    }

    /// Removes the pins of arrays that are in no slot.
    fn sweep(&self) -> io::Result<()> {
        let Some(dir) = &self.pins else { return Ok(()) };
        let mut used = Vec::new();
        for slot in SLOTS {
            used.extend(sys::lookup_u32(self.slots.as_fd(), slot)?.map(|id| format!("{PIN}{id}")));
        }
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.starts_with(PIN) && !used.contains(&name) {
                fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }

    fn array(&self, slot: u32) -> io::Result<Option<OwnedFd>> {
        let Some(id) = sys::lookup_u32(self.slots.as_fd(), slot)? else { return Ok(None) };
        let pinned = self.pins.as_deref().and_then(|dir| sys::open_pin(&path(dir, id)).ok());
        pinned.map_or_else(|| sys::map_by_id(id), Ok).map(Some)
    }
}

fn map(array: BorrowedFd) -> io::Result<Arc<dyn WordMemory>> {
    let bytes = id_and_entries(array)?.1 as usize * LINE_BYTES as usize;
    Ok(Arc::new(Mapping::from(sys::Mapping::of_map(array, bytes, true)?)))
}

impl Backing for BpfStates {
    fn left(&self, slot: u32) -> Option<Arc<dyn WordMemory>> {
        let array = self.array(slot).ok()??;
        map(array.as_fd()).ok()
    }

    fn make(&self, slot: u32, lines: u64) -> io::Result<Arc<dyn WordMemory>> {
        let lines = u32::try_from(lines).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let array = sys::create_inner_array("tunny_states", LINE_BYTES, lines)?;
        let memory = map(array.as_fd())?;
        let mut made = self.made.lock();
        *made.get_mut(slot as usize).ok_or(io::ErrorKind::InvalidInput)? = Some(array);
        Ok(memory)
    }

    fn enter(&self, slot: u32) -> io::Result<()> {
        let mut made = self.made.lock();
        let array = made.get_mut(slot as usize).and_then(Option::take).ok_or(io::ErrorKind::InvalidInput)?;
        if let Some(dir) = &self.pins {
            let at = path(dir, id_and_entries(array.as_fd())?.0);
            let _ = fs::remove_file(&at);
            sys::pin(array.as_fd(), &at)?;
        }
        sys::update_u32(self.slots.as_fd(), slot, array.as_raw_fd() as u32)?;
        self.sweep()
    }

    fn give_back(&self, slot: u32) {
        let mut made = self.made.lock();
        if let Some(made) = made.get_mut(slot as usize) {
            *made = None;
        }
    }

    fn clear(&self, slot: u32) -> io::Result<()> {
        if sys::lookup_u32(self.slots.as_fd(), slot)?.is_some() {
            sys::delete(self.slots.as_fd(), slot)?;
        }
        self.sweep()
    }
}
