// SPDX-License-Identifier: Apache-2.0
//! A network namespace of the test's own thread with a veth pair, packet sockets on it, and a BPF file system.

use abi::IfIndex;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::PathBuf;
use std::process::Command;

/// Runs a test in a thread with a network namespace of its own, which ends with the thread.
pub fn in_namespace(test: impl FnOnce() + Send + 'static) {
    // A skipped test says the name of its thread.
    let name = std::thread::current().name().unwrap_or_default().to_string();
    let body = move || {
        // SAFETY: no pointers; only this thread changes its namespace.
        if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
            let e = io::Error::last_os_error();
            skip::test(format_args!("no permission for a network namespace: {e}"), "run it as root");
            return;
        }
        test();
    };
    let thread = std::thread::Builder::new().name(name).spawn(body).expect("a thread");
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

pub fn ip(arguments: &str) {
    let output = Command::new("ip").args(arguments.split_whitespace()).output().expect("ip is installed");
    assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}

/// A veth pair, both ends up; the names are those of the two ends. Returns their interface indexes.
pub fn veth(a: &str, b: &str, mtu: u32) -> (IfIndex, IfIndex) {
    ip(&format!("link add {a} mtu {mtu} numrxqueues 1 numtxqueues 1 type veth peer name {b} mtu {mtu} numrxqueues 1 numtxqueues 1"));
    for name in [a, b] {
        let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6"), "1");
        ip(&format!("link set {name} up"));
    }
    // Without GRO (or a program of its own) the peer has no NAPI, and XDP_TX towards it fails.
    let status = Command::new("ethtool").args(["-K", b, "gro", "on"]).status().expect("ethtool is installed");
    assert!(status.success());
    (index(a), index(b))
}

pub fn index(name: &str) -> IfIndex {
    let name = std::ffi::CString::new(name).unwrap();
    // SAFETY: a valid C string.
    IfIndex(unsafe { libc::if_nametoindex(name.as_ptr()) })
}

/// A raw packet socket on an interface.
pub struct Wire(OwnedFd);

impl Wire {
    pub fn open(ifindex: IfIndex) -> Wire {
        // SAFETY: no pointers; the descriptor is new.
        let fd = unsafe {
            let fd = libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0);
            assert!(fd >= 0);
            OwnedFd::from_raw_fd(fd)
        };
        let size: libc::c_int = 64 << 20;
        // SAFETY: zeroes are a valid sockaddr_ll; pointers and sizes describe live values.
        unsafe {
            let mut address: libc::sockaddr_ll = std::mem::zeroed();
            address.sll_family = libc::AF_PACKET as u16;
            address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
            address.sll_ifindex = ifindex.0 as i32;
            let size_of = |n: usize| n as libc::socklen_t;
            libc::setsockopt(
                fd.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_RCVBUFFORCE,
                (&raw const size).cast(),
                size_of(4),
            );
            let rc = libc::bind(fd.as_raw_fd(), (&raw const address).cast(), size_of(size_of_val(&address)));
            assert_eq!(rc, 0, "{}", io::Error::last_os_error());
        }
        Wire(fd)
    }

    pub fn send(&self, frame: &[u8]) {
        loop {
            // SAFETY: pointer and length describe `frame`.
            let rc = unsafe { libc::send(self.0.as_raw_fd(), frame.as_ptr().cast(), frame.len(), 0) };
            if rc >= 0 {
                return;
            }
            let error = io::Error::last_os_error();
            assert_eq!(error.raw_os_error(), Some(libc::ENOBUFS), "{error}");
        }
    }

    /// The next frame that was not sent by ourselves, within `ms`.
    pub fn receive(&self, ms: i32) -> Option<Vec<u8>> {
        let mut frame = vec![0; 16384];
        loop {
            let mut poll = libc::pollfd { fd: self.0.as_raw_fd(), events: libc::POLLIN, revents: 0 };
            // SAFETY: one live pollfd; a live buffer and address with their sizes.
            unsafe {
                if libc::poll(&mut poll, 1, ms) <= 0 {
                    return None;
                }
                let mut from: libc::sockaddr_ll = std::mem::zeroed();
                let mut length = size_of_val(&from) as libc::socklen_t;
                let at = frame.as_mut_ptr().cast();
                let n = libc::recvfrom(self.0.as_raw_fd(), at, frame.len(), 0, (&raw mut from).cast(), &mut length);
                if n >= 0 && from.sll_pkttype != libc::PACKET_OUTGOING {
                    frame.truncate(n as usize);
                    return Some(frame);
                }
            }
        }
    }
}

/// A BPF file system of the test's own, unmounted at the end.
pub struct Bpffs(pub PathBuf);

impl Bpffs {
    pub fn mount(name: &str) -> Bpffs {
        let path = std::env::temp_dir().join(format!("tunny-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        let target = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
        // SAFETY: valid C strings.
        let rc = unsafe { libc::mount(c"bpf".as_ptr(), target.as_ptr(), c"bpf".as_ptr(), 0, std::ptr::null()) };
        assert_eq!(rc, 0, "{}", io::Error::last_os_error());
        Bpffs(path)
    }
}

impl Drop for Bpffs {
    fn drop(&mut self) {
        let target = std::ffi::CString::new(self.0.to_str().unwrap()).unwrap();
        // SAFETY: a valid C string.
        unsafe { libc::umount2(target.as_ptr(), libc::MNT_DETACH) };
        let _ = std::fs::remove_dir(&self.0);
    }
}
