// SPDX-License-Identifier: Apache-2.0
//! Attaching: one pinned link a port. A process that comes later finds the link and puts its own program behind it between
//! two packets; a process that dies leaves link, program and maps to go on forwarding.

use crate::engine::{aligned, find_program, load_error, open_object, redirects_buffers, set_netns, share_maps, PINNED};
use crate::{sys, XdpEngine, XdpError};
use abi::IfIndex;
use libbpf_rs::MapCore;
use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use tables::LineMemory;

/// Where in the receive path the program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// In the driver.
    Native,
    /// In the stack, on socket buffers: several times slower.
    Generic,
    /// Not XDP at all: the tc program, on socket buffers, which may each stand for many packets.
    Tc,
}

impl Mode {
    /// `native`, `generic` or `tc`.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Native => "native",
            Mode::Generic => "generic",
            Mode::Tc => "tc",
        }
    }

    fn flags(self) -> u32 {
        match self {
            Mode::Native => 1 << 2,
            Mode::Generic => 1 << 1,
            Mode::Tc => 0,
        }
    }
}

/// Which modes may be used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Attach {
    /// Native; generic if the driver cannot, with a loud word.
    #[default]
    NativeElseGeneric,
    /// Native or an error.
    Native,
    /// Generic or an error.
    Generic,
}

/// A port that the program is attached to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attached {
    /// The interface.
    pub ifindex: IfIndex,
    /// Where the program runs.
    pub mode: Mode,
    /// The link was there before, with a program that forwarded until now.
    pub adopted: bool,
    /// What the operator must be told, if anything.
    pub note: Option<String>,
}

pub(crate) struct Link {
    pub(crate) port: Attached,
    /// A pinned link outlives this descriptor, one without a pin ends with it. None: a filter, which outlives it.
    pub(crate) _fd: Option<OwnedFd>,
}

impl XdpEngine {
    /// Attaches the program to an interface and makes it a port; if a pinned link is there, its program is exchanged
    /// between two packets. Packets are passed to the host until the tables are ready, so fill them first.
    pub fn attach(&mut self, ifindex: IfIndex, how: Attach) -> Result<Attached, XdpError> {
        self.add_port(ifindex)?;
        if let Some(link) = self.links.iter().find(|l| l.port.ifindex == ifindex && l.port.mode != Mode::Tc) {
            return Ok(link.port.clone());
        }
        self.watch_tx();
        if sys::driver(ifindex).is_ok_and(|name| name == "veth") {
            self.redirect_back()?;
        }
        let link = match self.adopt_link(ifindex) {
            Some(link) => link,
            None => self.new_link(ifindex, how)?,
        };
        // The tc program, also of an earlier process, goes when this has begun: no packet is seen by neither.
        self.unpin_links(ifindex, |mode| mode == Mode::Tc);
        self.remove_tc_filter(ifindex);
        self.links.retain(|l| l.port.ifindex != ifindex);
        let port = link.port.clone();
        self.links.push(link);
        Ok(port)
    }

    /// Ports that the program is attached to.
    pub fn attached(&self) -> Vec<Attached> {
        self.links.iter().map(|l| l.port.clone()).collect()
    }

    /// Whether the program forwards on when this process ends.
    pub fn outlives(&self) -> bool {
        self.base.is_some() && !self.links.is_empty()
    }

    /// Takes the program off an interface and forgets the port.
    pub fn detach(&mut self, ifindex: IfIndex) -> Result<(), XdpError> {
        self.remove_tc_filter(ifindex);
        self.unpin_links(ifindex, |_| true);
        self.links.retain(|l| l.port.ifindex != ifindex);
        self.remove_port(ifindex)
    }

    /// Removes the pins of an interface's links in some modes.
    pub(crate) fn unpin_links(&self, ifindex: IfIndex, of: impl Fn(Mode) -> bool) {
        for mode in [Mode::Native, Mode::Generic, Mode::Tc].into_iter().filter(|mode| of(*mode)) {
            if let Some(path) = self.link_pin(ifindex, mode) {
                let _ = fs::remove_file(path);
            }
        }
    }

    /// Removes everything that outlives the process: links, programs, maps. The tables are gone after this.
    pub fn unpin_all(mut self) -> Result<(), XdpError> {
        self.links.clear();
        for (_, ifindex) in self.slots().unwrap_or_default() {
            self.remove_tc_filter(ifindex);
        }
        let Some(base) = self.base.take() else { return Ok(()) };
        for path in own_entries(&base, &["layout-", "link-"])? {
            let removed = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
            removed.map_err(XdpError::call(format!("Removing {}", path.display())))?;
        }
        // What is left is not ours: another instance may have been given a folder in here.
        let _ = fs::remove_dir(&base);
        Ok(())
    }

    /// Removes the pinned maps of other layouts, and has the flow caches of other programs tell their last counts. Call it when every port runs
    /// this engine's program.
    pub fn retire_other_layouts(&self) -> Result<u32, XdpError> {
        let (Some(base), Some(own)) = (&self.base, &self.pins) else { return Ok(0) };
        let memory = self.memory();
        memory.flow_caches().retire_older(|| memory.grace());
        let mut removed = 0;
        for path in own_entries(base, &["layout-"])? {
            if path.is_dir() && path != *own {
                fs::remove_dir_all(&path).map_err(XdpError::call(format!("Removing {}", path.display())))?;
                removed += 1;
            }
        }
        Ok(removed)
    }

    pub(crate) fn link_pin(&self, ifindex: IfIndex, mode: Mode) -> Option<PathBuf> {
        self.base.as_ref().map(|dir| dir.join(format!("link-{ifindex}-{}", mode.name())))
    }

    fn adopt_link(&self, ifindex: IfIndex) -> Option<Link> {
        [Mode::Native, Mode::Generic].into_iter().find_map(|mode| {
            let pin = self.link_pin(ifindex, mode)?;
            let fd = sys::open_pin(&pin).ok()?;
            if !sys::link_is_at(fd.as_fd(), ifindex) || sys::update_link(fd.as_fd(), self.program()).is_err() {
                let _ = fs::remove_file(&pin);
                return None;
            }
            let port = Attached { ifindex, mode, adopted: true, note: note(ifindex, mode, None) };
            Some(Link { port, _fd: Some(fd) })
        })
    }

    fn new_link(&self, ifindex: IfIndex, how: Attach) -> Result<Link, XdpError> {
        let try_mode = |mode: Mode| sys::create_xdp_link(self.program(), ifindex, mode.flags());
        let not_tried = || "not tried".to_string();
        let refused = |native: String, generic: String, errno: Option<i32>| XdpError::Attach {
            ifindex,
            native,
            generic,
            advice: match errno {
                Some(libc::EBUSY) => ATTACHED,
                Some(libc::EEXIST) => ATTACHED_ELSEWHERE,
                Some(libc::ENODEV) => "The interface does not exist in this network namespace.",
                Some(libc::ERANGE | libc::EINVAL | libc::EOPNOTSUPP) if !redirects_buffers() => ONE_BUFFER,
                _ => "Use the `user` engine, or an interface whose driver supports XDP with multi-buffer frames.",
            },
        };
        let (mode, fd, why) = match how {
            Attach::Generic => match try_mode(Mode::Generic) {
                Ok(fd) => (Mode::Generic, fd, None),
                Err(e) => return Err(refused(not_tried(), e.to_string(), e.raw_os_error())),
            },
            _ => match try_mode(Mode::Native) {
                Ok(fd) => (Mode::Native, fd, None),
                Err(e) if how == Attach::Native => return Err(refused(e.to_string(), not_tried(), e.raw_os_error())),
                Err(native) => match try_mode(Mode::Generic) {
                    Ok(fd) => (Mode::Generic, fd, Some(native.to_string())),
                    // One in native mode is in the way of both, and generic mode alone would blame the mode.
                    Err(e) if native.raw_os_error() == Some(libc::EBUSY) => {
                        return Err(refused(native.to_string(), e.to_string(), Some(libc::EBUSY)))
                    }
                    Err(e) => return Err(refused(native.to_string(), e.to_string(), e.raw_os_error())),
                },
            },
        };
        let pin = self.link_pin(ifindex, mode);
        if let Some(path) = &pin {
            let _ = fs::remove_file(path);
            sys::pin(fd.as_fd(), path).map_err(XdpError::call(format!("Pinning {}", path.display())))?;
        }
        Ok(Link { port: Attached { ifindex, mode, adopted: false, note: note(ifindex, mode, why) }, _fd: Some(fd) })
    }

    /// Tells the program not to use XDP_TX, see bpf/tables/ports.h.
    fn redirect_back(&self) -> Result<(), XdpError> {
        const NAME: &str = "tunny_redirect_back";
        let map = self.object.maps().find(|m| m.name().to_string_lossy().ends_with(".data.redirect"));
        let map = map.ok_or(XdpError::Missing { kind: "variable", name: NAME })?;
        sys::update_u32(map.as_fd(), 0, 1).map_err(XdpError::call(format!("Setting {NAME}")))
    }

    /// Attaches the trace programs that count failed transmissions, unless those of an earlier process still do.
    fn watch_tx(&mut self) {
        if self.tx_watch.is_some() {
            return;
        }
        let watch = TxWatch::start(self);
        if let Err(e) = &watch {
            self.notes.push(format!(
                "Failed transmissions are not counted as `tx_failed`, because the trace programs did not load: {e} \
                 Look at `ethtool -S` of the port instead."
            ));
        }
        self.tx_watch = watch.ok();
    }

    /// What the operator must be told about this engine, apart from single ports.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }
}

/// A link cannot be taken off by `ip`, which is what most people would try first.
const ATTACHED: &str = "A program is attached to it already. One of another Tunny instance goes with \
     `tunny --instance NAME node --uninstall`; one that `ip` attached, with `ip link set dev … xdp off`; any other ends with \
     the process that holds its link (`bpftool link`).";
const ATTACHED_ELSEWHERE: &str = "A program is attached to it in the other XDP mode, or to a bond or team above it \
     (`ip -d link`): take that off, or name the upper interface as the uplink.";

/// See [`redirects_buffers`].
const ONE_BUFFER: &str =
    "Linux before 6.3 does not redirect frames that lie in several buffers, so native mode needs an MTU that fits one \
     (about 3,500 bytes): lower the MTU, use a newer kernel, or the `user` engine.";

fn note(ifindex: IfIndex, mode: Mode, why: Option<String>) -> Option<String> {
    match (mode, why) {
        (Mode::Native | Mode::Tc, _) => None,
        (Mode::Generic, why) => Some(format!(
            "ATTENTION: interface {ifindex} runs XDP in GENERIC mode{}: it works, but several times slower than native mode.",
            why.map_or(String::new(), |w| {
                let kernel = if redirects_buffers() { "" } else { "; before Linux 6.3 that may be for an MTU over about 3,500" };
                format!(", because its driver refused native mode ({w}{kernel})")
            })
        )),
    }
}

/// The trace programs of bpf/txwatch.bpf.c and their links.
pub(crate) struct TxWatch {
    _links: Vec<OwnedFd>,
    _object: Option<libbpf_rs::Object>,
}

static TX_OBJECT: &[u8] = aligned!("/txwatch.bpf.o");

const TX_PROGRAMS: [&str; 4] = ["tunny_tx_port", "tunny_tx_back", "tunny_tx_exception", "tunny_tx_redirect"];

impl TxWatch {
    fn start(engine: &XdpEngine) -> Result<TxWatch, XdpError> {
        let pins: Vec<PathBuf> =
            engine.pins.iter().flat_map(|dir| TX_PROGRAMS.iter().map(move |name| dir.join(name))).collect();
        let old: Vec<OwnedFd> = pins.iter().filter_map(|p| sys::open_pin(p).ok()).collect();
        if !pins.is_empty() && old.len() == pins.len() {
            return Ok(TxWatch { _links: old, _object: None });
        }
        for path in &pins {
            let _ = fs::remove_file(path);
        }
        let mut open = open_object(TX_OBJECT)?;
        set_netns(&mut open)?;
        share_maps(&mut open, &engine.object, PINNED)?;
        let object = open.load().map_err(|e| load_error(&e))?;
        let mut links = Vec::new();
        for (i, name) in TX_PROGRAMS.into_iter().enumerate() {
            let link = sys::create_trace_link(find_program(&object, name)?)
                .map_err(XdpError::call(format!("Attaching {name}")))?;
            if let Some(path) = pins.get(i) {
                sys::pin(link.as_fd(), path).map_err(XdpError::call(format!("Pinning {}", path.display())))?;
            }
            links.push(link);
        }
        Ok(TxWatch { _links: links, _object: Some(object) })
    }
}

/// What lies in an instance's folder under names that this crate gives.
fn own_entries(base: &std::path::Path, prefixes: &[&str]) -> Result<Vec<PathBuf>, XdpError> {
    let entries = fs::read_dir(base).map_err(XdpError::call(format!("Reading {}", base.display())))?;
    let ours = |path: &PathBuf| {
        path.file_name().and_then(|n| n.to_str()).is_some_and(|n| prefixes.iter().any(|prefix| n.starts_with(prefix)))
    };
    Ok(entries.flatten().map(|entry| entry.path()).filter(ours).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_put_into_the_folder_is_not_ours() {
        let base = std::env::temp_dir().join(format!("tunny-own-{}", std::process::id()));
        for name in ["layout-1", "layout-other", "layouts", "tables"] {
            fs::create_dir_all(base.join(name)).unwrap();
        }
        for name in ["link-3-native", "linked", "notes.txt"] {
            fs::write(base.join(name), "").unwrap();
        }
        let names = |prefixes: &[&str]| {
            let mut names: Vec<_> = own_entries(&base, prefixes)
                .unwrap()
                .iter()
                .map(|p| p.file_name().unwrap().to_str().unwrap().to_string())
                .collect();
            names.sort();
            names
        };
        assert_eq!(names(&["layout-", "link-"]), ["layout-1", "layout-other", "link-3-native"]);
        assert_eq!(names(&["layout-"]), ["layout-1", "layout-other"]);
        fs::remove_dir_all(&base).unwrap();
        assert!(
            own_entries(&base, &["link-"]).unwrap_err().to_string().contains("tunny-own-"),
            "an absent folder is named"
        );
    }
}
