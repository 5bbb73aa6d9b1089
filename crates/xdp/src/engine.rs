// SPDX-License-Identifier: Apache-2.0
//! [`XdpEngine`]: the loaded program, its maps and links.

use crate::link::{Link, TxWatch};
use crate::memory::{TableMaps, READERS_BYTES, TABLE_SEGMENTS};
use crate::{flow_cache, sys, BpfMemory, BpfSessionMemory, BpfStates, XdpError};
use abi::{layout_hash, program_hash, IfIndex, Root};
use libbpf_rs::{MapCore, OpenObject};
use std::fs;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The bytes of an object that build.rs compiled. libelf wants them aligned.
macro_rules! aligned {
    ($name:literal) => {{
        #[repr(C, align(16))]
        struct Aligned<T: ?Sized>(T);
        static BYTES: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), $name)));
        &BYTES.0
    }};
}
pub(crate) use aligned;

/// The compiled fast path (`bpf/gateway.bpf.c`).
pub static OBJECT: &[u8] = aligned!("/gateway.bpf.o");

/// Maps that are shared by a running program and its successor, and so are pinned.
pub(crate) const PINNED: [&str; 8] = [
    "tunny_root",
    "tunny_segments",
    "tunny_stats",
    "tunny_ports",
    "tunny_port_slots",
    "tunny_xsks",
    "tunny_events",
    FLOW_VERSIONS,
];
const FLOW_VERSIONS: &str = "tunny_flow_versions";
/// Maps of session memory, pinned beside them by programs that have sessions.
pub(crate) const SESSIONS: [&str; 2] = ["tunny_session_root", "tunny_session_segments"];
/// The slots of state tables, pinned beside them.
pub(crate) const STATES: &str = "tunny_states";
const READERS: &str = "tunny_readers";
const PROGRAM: &str = "tunny_gateway";

/// How the engine is loaded.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Folder on a BPF file system for the pins (`/sys/fs/bpf/tunny/<instance>`); None: nothing outlives the process.
    pub pins: Option<PathBuf>,
    /// Another object than the one built in (tests of the layout check).
    pub object: Option<Vec<u8>>,
    /// Lines of each CPU's flow cache; 0: none.
    pub flow_lines: u32,
    /// Every packet looks into the flow cache, however few find something there (tests).
    pub flow_always: bool,
}

/// Where the table memory of an engine comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// New and empty.
    Fresh,
    /// Pinned by a process before; its tables are in use.
    Adopted,
}

/// The XDP fast path, loaded.
pub struct XdpEngine {
    // Links go first when the engine is dropped.
    pub(crate) links: Vec<Link>,
    pub(crate) tx_watch: Option<TxWatch>,
    pub(crate) object: libbpf_rs::Object,
    memory: Arc<BpfMemory>,
    origin: Origin,
    /// Folder of the instance: links, and a folder for each layout.
    pub(crate) base: Option<PathBuf>,
    /// Folder of this layout's maps.
    pub(crate) pins: Option<PathBuf>,
    pub(crate) notes: Vec<String>,
    /// The tc program, once a port has asked for it.
    pub(crate) switch: Option<libbpf_rs::Object>,
    /// Where its punts leave.
    pub(crate) punt_port: IfIndex,
    _readers: OwnedFd,
}

impl XdpEngine {
    /// Loads the program on new, unpinned maps: for tests, benches and `tunny replay`.
    pub fn load() -> Result<XdpEngine, XdpError> {
        XdpEngine::open_or_create(&Options::default())
    }

    /// Loads the program on the maps that are pinned for this layout, or on new ones, which are then pinned.
    ///
    /// Nothing is attached yet: fill or check the tables, then attach.
    pub fn open_or_create(options: &Options) -> Result<XdpEngine, XdpError> {
        check_kernel()?;
        let bytes = options.object.as_deref().unwrap_or(OBJECT);
        let mut open = open_object(bytes)?;
        check_object(&open)?;
        set_netns(&mut open)?;
        let chunks = flow_cache::size(&mut open, options.flow_lines, options.flow_always)?;
        if redirects_buffers() {
            let program = open.progs_mut().find(|p| p.name() == PROGRAM);
            program
                .ok_or(XdpError::Missing { kind: "program", name: PROGRAM })?
                .set_flags(libbpf_rs::libbpf_sys::BPF_F_XDP_HAS_FRAGS);
        }
        let pins = options.pins.as_ref().map(|dir| dir.join(format!("layout-{:016x}", layout_hash())));
        let origin = match &pins {
            Some(dir) => adopt_maps(&mut open, dir)?,
            None => Origin::Fresh,
        };
        let object = open.load().map_err(|e| load_error(&e))?;
        let readers = readers_map(pins.as_deref(), origin)?;
        if let (Some(dir), Origin::Fresh) = (&pins, origin) {
            pin_maps(&object, readers.as_fd(), dir)?;
        }
        let flow_caches = flow_cache::make(&object, chunks, pins.as_deref())?;
        let memory = {
            let map = |name| find_map(&object, name);
            let (root, segments) = (map("tunny_root")?, map("tunny_segments")?);
            let more = TableMaps::open(map("tunny_stats")?, readers.as_fd(), map(FLOW_VERSIONS)?, flow_caches);
            more.and_then(|more| BpfMemory::open(&TABLE_SEGMENTS, root, segments, more, pins.clone()))
                .map_err(XdpError::call("Mapping the table memory"))?
        };
        Ok(XdpEngine {
            links: Vec::new(),
            tx_watch: None,
            object,
            memory: Arc::new(memory),
            origin,
            base: options.pins.clone(),
            pins,
            notes: Vec::new(),
            switch: None,
            punt_port: IfIndex(0),
            _readers: readers,
        })
    }

    /// Whether the tables were there before.
    pub fn origin(&self) -> Origin {
        self.origin
    }

    /// The table memory.
    pub fn memory(&self) -> Arc<BpfMemory> {
        self.memory.clone()
    }

    /// Lines in use of the flow caches when counts were gathered last, and lines there are, of all CPUs together. None: there is none.
    pub fn flow_cache_level(&self) -> Option<(u64, u64)> {
        self.memory.flow_caches().level()
    }

    /// The session memory, mapped anew: call it once and share the result.
    pub fn session_memory(&self) -> Result<Arc<BpfSessionMemory>, XdpError> {
        let [root, segments] = SESSIONS;
        let memory = BpfSessionMemory::open(
            &crate::memory::SESSION_SEGMENTS,
            self.map(root)?,
            self.map(segments)?,
            (),
            self.pins.clone(),
        );
        memory.map(Arc::new).map_err(XdpError::call("Mapping the session memory"))
    }

    /// Where state tables of the filter lie. Call it once and share the result.
    pub fn states(&self) -> Result<Arc<BpfStates>, XdpError> {
        let states = BpfStates::open(self.map(STATES)?, self.pins.clone());
        states.map(Arc::new).map_err(XdpError::call("Opening the slots of state tables"))
    }

    /// Folder of this layout's pins.
    pub fn pins(&self) -> Option<&Path> {
        self.pins.as_deref()
    }

    /// The program, to attach it or to tail-call into it.
    pub fn program(&self) -> BorrowedFd<'_> {
        find_program(&self.object, PROGRAM).expect("checked when it was loaded")
    }

    /// A map by name.
    pub(crate) fn map(&self, name: &'static str) -> Result<BorrowedFd<'_>, XdpError> {
        find_map(&self.object, name)
    }
}

pub(crate) fn find_map<'a>(object: &'a libbpf_rs::Object, name: &'static str) -> Result<BorrowedFd<'a>, XdpError> {
    let found = object.maps().find(|m| m.name() == name).map(|m| m.as_fd().as_raw_fd());
    let fd = found.ok_or(XdpError::Missing { kind: "map", name })?;
    // SAFETY: the descriptor belongs to `object`, which outlives the borrow.
    Ok(unsafe { BorrowedFd::borrow_raw(fd) })
}

/// A program by name.
pub(crate) fn find_program<'a>(object: &'a libbpf_rs::Object, name: &'static str) -> Result<BorrowedFd<'a>, XdpError> {
    let found = object.progs().find(|p| p.name() == name).map(|p| p.as_fd().as_raw_fd());
    let fd = found.ok_or(XdpError::Missing { kind: "program", name })?;
    // SAFETY: the descriptor belongs to `object`, which outlives the borrow.
    Ok(unsafe { BorrowedFd::borrow_raw(fd) })
}

/// Lets an object that is not loaded yet use maps of a loaded one, as far as it knows them.
pub(crate) fn share_maps(
    open: &mut OpenObject,
    object: &libbpf_rs::Object,
    names: impl IntoIterator<Item = &'static str>,
) -> Result<(), XdpError> {
    for name in names {
        if let Some(mut map) = open.maps_mut().find(|m| m.name() == name) {
            map.reuse_fd(find_map(object, name)?).map_err(|e| load_error(&e))?;
        }
    }
    Ok(())
}

pub(crate) fn open_object(bytes: &[u8]) -> Result<OpenObject, XdpError> {
    libbpf_rs::ObjectBuilder::default()
        .name("tunny")
        .and_then(|builder| builder.open_memory(bytes))
        .map_err(|e| load_error(&e))
}

pub(crate) fn load_error(error: &libbpf_rs::Error) -> XdpError {
    // EPERM is a matter of rights, EACCES the verifier's verdict.
    let advice = match error.to_string().contains("(os error 1)") {
        true => "Run as root, or with CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON.",
        false => "It needs Linux 6.1 or newer with BTF; the verifier's words are above.",
    };
    XdpError::Load { reason: error.to_string(), advice: advice.into() }
}

/// Least Linux version: the first Debian stable with multi-buffer XDP (5.18) and all helpers that the program calls.
pub const LEAST_KERNEL: (u32, u32) = (6, 1);

/// From here on Linux redirects frames that lie in several buffers (jumbo frames, GRO). Before, it takes them into a program
/// that says it can read them, and then loses what the program redirects, without a word.
const REDIRECTS_BUFFERS: (u32, u32) = (6, 3);

/// Whether this kernel redirects frames that lie in several buffers. If not, the program takes only frames in one buffer, and drivers
/// refuse native mode on interfaces with a larger MTU.
pub fn redirects_buffers() -> bool {
    runs_since(REDIRECTS_BUFFERS)
}

/// Whether this kernel is as new as that version; one that does not say so is.
pub(crate) fn runs_since(version: (u32, u32)) -> bool {
    kernel_version(&release()).is_none_or(|own| own >= version)
}

fn release() -> String {
    fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_string()
}

fn check_kernel() -> Result<(), XdpError> {
    let have = release();
    match kernel_version(&have) {
        Some(version) if version < LEAST_KERNEL => {
            Err(XdpError::Kernel { have, need: format!("{}.{}", LEAST_KERNEL.0, LEAST_KERNEL.1) })
        }
        // An odd version string: let the verifier decide.
        _ => Ok(()),
    }
}

fn kernel_version(release: &str) -> Option<(u32, u32)> {
    let mut parts = release.split(|c: char| !c.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

/// Compares what the object was compiled with (layouts and reasons) with this program's own.
pub(crate) fn check_object(open: &OpenObject) -> Result<(), XdpError> {
    let map = open.maps().find(|m| m.name().to_string_lossy().ends_with(".rodata.abi"));
    let value = map.as_ref().and_then(|m| m.initial_value());
    let bytes =
        value.and_then(|v| v.get(..8)).ok_or(XdpError::Missing { kind: "constant", name: "tunny_program_hash" })?;
    let object = u64::from_ne_bytes(bytes.try_into().expect("eight bytes"));
    if object != program_hash() {
        return Err(XdpError::ObjectLayout { object, program: program_hash() });
    }
    Ok(())
}

/// Tells the trace programs which network namespace is ours.
pub(crate) fn set_netns(open: &mut OpenObject) -> Result<(), XdpError> {
    let netns = fs::metadata("/proc/thread-self/ns/net")
        .map_err(XdpError::call("Reading /proc/thread-self/ns/net"))?
        .ino() as u32;
    let map = open.maps_mut().find(|m| m.name().to_string_lossy().ends_with(".rodata"));
    let mut map = map.ok_or(XdpError::Missing { kind: "constant", name: "tunny_netns" })?;
    let value = map.initial_value_mut().and_then(|v| v.get_mut(..4));
    value.ok_or(XdpError::Missing { kind: "constant", name: "tunny_netns" })?.copy_from_slice(&netns.to_ne_bytes());
    Ok(())
}

/// Lets the object use the pinned maps of this layout, if all are there.
fn adopt_maps(open: &mut OpenObject, dir: &Path) -> Result<Origin, XdpError> {
    if !dir.join(READERS).exists() {
        // The readers' map is pinned last: without it the pins are incomplete, left by a process that was killed.
        let _ = fs::remove_dir_all(dir);
        return Ok(Origin::Fresh);
    }
    let root = sys::open_pin(&dir.join("tunny_root")).map_err(XdpError::call("Opening the pinned map tunny_root"))?;
    check_root(&root, dir)?;
    for name in PINNED {
        let fd = sys::open_pin(&dir.join(name)).map_err(XdpError::call(format!("Opening the pinned map {name}")))?;
        let mut map = open.maps_mut().find(|m| m.name() == name).ok_or(XdpError::Missing { kind: "map", name })?;
        map.reuse_fd(fd.as_fd()).map_err(|e| load_error(&e))?;
    }
    for name in SESSIONS.into_iter().chain([STATES]) {
        if let Some(mut map) = open.maps_mut().find(|m| m.name() == name) {
            let fd =
                sys::open_pin(&dir.join(name)).map_err(XdpError::call(format!("Opening the pinned map {name}")))?;
            map.reuse_fd(fd.as_fd()).map_err(|e| load_error(&e))?;
        }
    }
    Ok(Origin::Adopted)
}

/// Refuses table memory that another layout wrote.
fn check_root(root: &OwnedFd, dir: &Path) -> Result<(), XdpError> {
    let mapping =
        sys::Mapping::of_map(root.as_fd(), size_of::<Root>(), false).map_err(XdpError::call("Mapping tunny_root"))?;
    // SAFETY: the mapping is as long as Root, and both fields are aligned words that are read once.
    let (magic, memory) = unsafe {
        let root = mapping.at().cast::<Root>();
        ((&raw const (*root).magic).read_volatile(), (&raw const (*root).layout_hash).read_volatile())
    };
    if magic != 0 && memory != layout_hash() {
        return Err(XdpError::MemoryLayout { path: dir.into(), memory, program: layout_hash() });
    }
    Ok(())
}

/// The map of the Rust readers' slots: the program does not know it.
fn readers_map(pins: Option<&Path>, origin: Origin) -> Result<OwnedFd, XdpError> {
    match (pins, origin) {
        (Some(dir), Origin::Adopted) => {
            sys::open_pin(&dir.join(READERS)).map_err(XdpError::call("Opening the pinned map tunny_readers"))
        }
        _ => sys::create_array(READERS, READERS_BYTES as u32, 1).map_err(XdpError::call("Creating a BPF map")),
    }
}

/// Pins every map; the readers' map last, as the sign that all are there.
fn pin_maps(object: &libbpf_rs::Object, readers: BorrowedFd, dir: &Path) -> Result<(), XdpError> {
    fs::create_dir_all(dir).map_err(|e| match e.raw_os_error() {
        Some(libc::EPERM | libc::EACCES | libc::EROFS | libc::ENOENT) => XdpError::NoBpffs(dir.into()),
        _ => XdpError::call(format!("Creating {}", dir.display()))(e),
    })?;
    let pin = |name: &str, fd: BorrowedFd| {
        sys::pin(fd, &dir.join(name)).map_err(|e| match e.raw_os_error() {
            Some(libc::EPERM) | Some(libc::EINVAL) => XdpError::NoBpffs(dir.into()),
            _ => XdpError::call(format!("Pinning {name}"))(e),
        })
    };
    for name in PINNED {
        pin(name, find_map(object, name)?)?;
    }
    for name in SESSIONS.into_iter().chain([STATES]) {
        if let Ok(map) = find_map(object, name) {
            pin(name, map)?;
        }
    }
    pin(READERS, readers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_versions_are_compared_as_numbers() {
        assert_eq!(kernel_version("6.1.0-13-amd64"), Some((6, 1)));
        assert_eq!(kernel_version("5.10.0"), Some((5, 10)));
        assert!(kernel_version("5.15.1").unwrap() < LEAST_KERNEL && kernel_version("6.18.4-x").unwrap() > LEAST_KERNEL);
        assert_eq!(kernel_version("strange"), None);
    }

    #[test]
    fn an_object_of_another_layout_is_refused_in_plain_words() {
        let hash = program_hash().to_ne_bytes();
        let mut object = OBJECT.to_vec();
        let found: Vec<usize> = (0..object.len() - 8).filter(|&i| object[i..i + 8] == hash).collect();
        assert_eq!(found.len(), 1, "the hash stands once in the object");
        object[found[0]] ^= 1;
        let error =
            XdpEngine::open_or_create(&Options { object: Some(object), ..Options::default() }).err().expect("refused");
        assert!(matches!(error, XdpError::ObjectLayout { .. }), "{error}");
        assert!(error.to_string().contains("different builds"), "{error}");
    }
}
