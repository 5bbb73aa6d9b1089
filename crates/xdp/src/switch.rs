// SPDX-License-Identifier: Apache-2.0
//! The tc fast path: the same stages on socket buffers, over the same maps (`bpf/switch.bpf.c`).
//!
//! It is loaded with the first port that asks for it. A port's link is pinned as one of XDP is, so that it is found by the next process and
//! outlives this one; before Linux 6.6, which has no such links, a filter at the port's clsact hook does the same.

use crate::engine::{
    aligned, check_object, find_program, load_error, open_object, runs_since, share_maps, PINNED, SESSIONS, STATES,
};
use crate::link::Link;
use crate::{sys, Attached, Mode, XdpEngine, XdpError};
use abi::IfIndex;
use libbpf_rs::{MapCore, TcHook, TcHookBuilder, TC_INGRESS};
use std::fs;
use std::os::fd::{AsFd, BorrowedFd};

/// The compiled tc program (`bpf/switch.bpf.c`).
pub static SWITCH_OBJECT: &[u8] = aligned!("/switch.bpf.o");
const PROGRAM: &str = "tunny_switch";
const GIVE_BACK: &str = "tunny_give_back";
/// By which a filter is known to the kernel. That of `IngressDrop` is another one.
const HANDLE: u32 = 0x7477;
const PRIORITY: u32 = 1;

impl XdpEngine {
    /// The tc program, loaded on this engine's maps if it is not yet.
    pub fn switch_program(&mut self) -> Result<BorrowedFd<'_>, XdpError> {
        if self.switch.is_none() {
            self.switch = Some(self.load_switch()?);
        }
        find_program(self.switch.as_ref().expect("loaded above"), PROGRAM)
    }

    fn load_switch(&self) -> Result<libbpf_rs::Object, XdpError> {
        let mut open = open_object(SWITCH_OBJECT)?;
        check_object(&open)?;
        share_maps(&mut open, &self.object, PINNED.into_iter().chain(SESSIONS).chain([STATES]))?;
        let object = open.load().map_err(|e| load_error(&e))?;
        set_punt_port(&object, self.punt_port)?;
        Ok(object)
    }

    /// Names the interface by which the tc program's punts reach the software path: each with a VLAN tag (`PUNT_TAG_REASON_SHIFT`). A frame that
    /// comes in there behind an Ethernet header whose first word is the number of an interface (big-endian), and whose type is IPv4's, comes in at
    /// that interface, past the program.
    pub fn set_punt_port(&mut self, ifindex: IfIndex) -> Result<(), XdpError> {
        self.switch_program()?;
        let object = self.switch.as_ref().expect("loaded above");
        let attached = hook(find_program(object, GIVE_BACK)?, ifindex).create().and_then(|mut hook| hook.attach());
        attached.map_err(|e| refused(ifindex)(std::io::Error::other(e)))?;
        sys::update_u32(self.map("tunny_ports")?, ifindex.0, ifindex.0)
            .map_err(XdpError::call(format!("Adding interface {ifindex} to the egress ports")))?;
        set_punt_port(object, ifindex)?;
        self.punt_port = ifindex;
        Ok(())
    }

    /// Attaches the tc program to an interface that is a port; a program of ours that is there is exchanged between two packets. XDP on it goes.
    pub fn attach_tc(&mut self, ifindex: IfIndex) -> Result<Attached, XdpError> {
        if let Some(link) = self.links.iter().find(|l| l.port.ifindex == ifindex && l.port.mode == Mode::Tc) {
            return Ok(link.port.clone());
        }
        let pin = self.link_pin(ifindex, Mode::Tc);
        let program = self.switch_program()?;
        let old = pin.as_ref().and_then(|path| sys::open_pin(path).ok());
        let adopted =
            old.filter(|fd| sys::link_is_at(fd.as_fd(), ifindex) && sys::update_link(fd.as_fd(), program).is_ok());
        let (fd, adopted) = match adopted {
            Some(fd) => (Some(fd), true),
            None => match sys::create_tcx_link(program, ifindex) {
                Ok(fd) => {
                    if let Some(path) = &pin {
                        let _ = fs::remove_file(path);
                        sys::pin(fd.as_fd(), path).map_err(XdpError::call(format!("Pinning {}", path.display())))?;
                    }
                    (Some(fd), false)
                }
                // Linux before 6.6 knows no links here.
                Err(e) if e.raw_os_error() == Some(libc::EINVAL) => {
                    let mut hook = hook(program, ifindex);
                    let there = hook.query().is_ok();
                    hook.create()
                        .and_then(|mut hook| hook.attach())
                        .map_err(|e| refused(ifindex)(std::io::Error::other(e)))?;
                    (None, there)
                }
                Err(e) => return Err(refused(ifindex)(e)),
            },
        };
        // XDP goes when this has begun: no packet is seen by neither.
        self.unpin_links(ifindex, |mode| mode != Mode::Tc);
        self.links.retain(|l| l.port.ifindex != ifindex);
        let port = Attached { ifindex, mode: Mode::Tc, adopted, note: None };
        self.links.push(Link { port: port.clone(), _fd: fd });
        Ok(port)
    }

    /// Takes a filter off an interface, if there is one, also of an earlier process: links go with their pins.
    pub(crate) fn remove_tc_filter(&self, ifindex: IfIndex) {
        if has_links() {
            return;
        }
        // Whose it is does not matter for that. An interface that is gone has no filter either.
        let _ = hook(self.program(), ifindex).detach();
    }
}

/// Whether the kernel has links for tc programs (Linux 6.6).
fn has_links() -> bool {
    runs_since((6, 6))
}

fn refused(ifindex: IfIndex) -> impl FnOnce(std::io::Error) -> XdpError {
    XdpError::call(format!("Attaching the tc program to interface {ifindex}"))
}

fn set_punt_port(object: &libbpf_rs::Object, ifindex: IfIndex) -> Result<(), XdpError> {
    const NAME: &str = "tunny_punt_port";
    let map = object.maps().find(|m| m.name().to_string_lossy().ends_with(".data.punt"));
    let map = map.ok_or(XdpError::Missing { kind: "variable", name: NAME })?;
    sys::update_u32(map.as_fd(), 0, ifindex.0).map_err(XdpError::call(format!("Setting {NAME}")))
}

fn hook(program: BorrowedFd, ifindex: IfIndex) -> TcHook {
    let mut builder = TcHookBuilder::new(program);
    builder.ifindex(ifindex.0 as i32).replace(true).handle(HANDLE).priority(PRIORITY);
    builder.hook(TC_INGRESS)
}
