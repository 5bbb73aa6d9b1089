// SPDX-License-Identifier: Apache-2.0
//! Customers' routers with FRR, and routing daemons of the node's side, in network namespaces.
#![allow(dead_code)] // Each test file is a crate of its own and uses what it needs.

use super::region::{inside, Region};
use abi::IfIndex;
use lab::shell::Namespace;
use node::afpacket::PacketSocket;
use node::routing::tap::{self, Setup, Tap};
use std::os::unix::fs::PermissionsExt;
use std::process::Child;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// Bytes of the MAC addresses, and of two tags.
const MACS: usize = 12;
const TAGS: usize = 8;

/// A namespace that goes with the test.
pub struct Room(pub Namespace);

impl Drop for Room {
    fn drop(&mut self) {
        let _ = lab::shell::run(&format!("ip netns del {}", self.0 .0));
    }
}

/// FRR's daemons in a namespace, which end with this.
pub struct Frr {
    pub dir: tempfile::TempDir,
    space: Namespace,
    running: Vec<(&'static str, Child)>,
}

impl Frr {
    /// Starts zebra and those named, with one configuration for all.
    pub fn start(space: &Namespace, daemons: &[&'static str], config: &str) -> Frr {
        let dir = tempfile::tempdir().unwrap();
        // They are user frr, and this is root.
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
        std::fs::write(dir.path().join("frr.conf"), config).unwrap();
        let mut frr = Frr { dir, space: space.clone(), running: Vec::new() };
        frr.run("zebra");
        super::region::wait("zebra", || frr.dir.path().join("zserv").exists().then_some(()));
        daemons.iter().for_each(|d| frr.run(d));
        frr
    }

    /// Starts one of them.
    pub fn run(&mut self, daemon: &'static str) {
        let log = self.dir.path().join(format!("{daemon}.log"));
        let argv = lab::fabric::frr_command(self.dir.path(), daemon);
        self.running.push((daemon, self.space.spawn(&argv, &log).unwrap()));
    }

    /// Asks a daemon.
    pub fn show(&self, daemon: &str, what: &str) -> String {
        let dir = self.dir.path().display().to_string();
        self.space.run_argv(&["vtysh", "--vty_socket", &dir, "-d", daemon, "-c", what]).unwrap_or_default()
    }

    /// Kills one of them.
    pub fn kill(&mut self, daemon: &str) {
        for (_, child) in self.running.iter_mut().filter(|(name, _)| *name == daemon) {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        self.running.retain(|(name, _)| *name != daemon);
    }
}

impl Drop for Frr {
    fn drop(&mut self) {
        for (_, child) in &mut self.running {
            let _ = child.kill();
            let _ = child.wait();
        }
        if std::thread::panicking() {
            for entry in std::fs::read_dir(self.dir.path()).unwrap().flatten() {
                if entry.path().extension().is_some_and(|e| e == "log") {
                    let text = std::fs::read_to_string(entry.path()).unwrap_or_default();
                    eprintln!("{}:\n{text}", entry.path().display());
                }
            }
        }
    }
}

/// A customer's router: a namespace with one interface towards the edge port, whose frames get two tags on their way.
pub struct Ce {
    pub room: Room,
    /// Frames of the namespace that went to the node.
    pub sent: Arc<AtomicU64>,
    /// What is sent besides, with other tags or addresses.
    pub to_send: Arc<Mutex<Vec<Vec<u8>>>>,
    pub link: String,
    /// Nothing passes, though the link has its carrier.
    pub cut: Arc<AtomicBool>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Ce {
    /// Makes the link, of which `edgeN` is the node's port, and a router with this address behind it, whose site is `site`.
    pub fn new(region: &Region, n: u8, address: &str, site: &str) -> Ce {
        let (port, link, gw) = (format!("edge{n}"), format!("ce{n}"), region.ns("gw"));
        gw.run(&format!("ip link add {port} type veth peer name {link}")).unwrap();
        for dev in [&port, &link] {
            gw.run(&format!("sysctl -q -w net.ipv6.conf.{dev}.disable_ipv6=1")).unwrap();
            gw.run(&format!("ip link set {dev} up")).unwrap();
        }
        // On veth that starts the receiving NAPI context, without which the kernel drops what an XDP program sends.
        gw.run(&format!("ethtool -K {link} gro on")).unwrap();
        let room = Room(Namespace(format!("{}-ce{n}", region.ns("gw").0)));
        lab::shell::run(&format!("ip netns add {}", room.0 .0)).unwrap();
        room.0.run("ip link set lo up").unwrap();
        room.0.run(&format!("ip addr add {site}/32 dev lo")).unwrap();
        let mac = 0x0200_0000_ce00 | u64::from(n);
        let setup = Setup { mac, mtu: 1492, address: address.parse().unwrap(), owner: "a test's router".into() };
        let tap = tap::inside(&room.0 .0, || Tap::open("wan0", &setup)).unwrap();
        room.0.run("sysctl -q -w net.ipv6.conf.wan0.disable_ipv6=1").unwrap();
        let (sent, to_send, stop, cut) = (Arc::default(), Arc::default(), Arc::default(), Arc::default());
        let mut ce = Ce { room, sent, to_send, link, cut, stop, thread: None };
        ce.thread = Some(ce.wire(region, tap));
        ce
    }

    /// Customer 100, overlay 7: the tags of all customers are the same.
    pub const TAG: [u8; TAGS] = [0x88, 0xa8, 0, 100, 0x81, 0, 0, 7];

    /// Carries frames between the namespace and the link, with tags there.
    fn wire(&self, region: &Region, tap: Tap) -> JoinHandle<()> {
        let said = region.ns("gw").run(&format!("ip -o link show dev {}", self.link)).unwrap();
        let index: u32 = said.split(':').next().unwrap().parse().unwrap();
        let (stop, sent, to_send) = (self.stop.clone(), self.sent.clone(), self.to_send.clone());
        let cut = self.cut.clone();
        inside(&region.ns("gw"), move || {
            let mut socket = PacketSocket::open(IfIndex(index), None).unwrap();
            socket.keep_tags(true);
            let mut buffer = vec![0; 1 << 16];
            while !stop.load(Relaxed) {
                let mut idle = true;
                to_send.lock().unwrap().drain(..).for_each(|frame: Vec<u8>| {
                    socket.send(&frame);
                });
                // The link may be down.
                let n = socket.receive().unwrap_or(0);
                for (region, (start, len)) in socket.regions(n) {
                    let frame = &region[start..start + len];
                    if frame.get(MACS..MACS + TAGS) == Some(&Ce::TAG) && !cut.load(Relaxed) {
                        tap.send(&frame[..MACS], &frame[MACS + TAGS..]);
                    }
                    idle = false;
                }
                while let Some(n) = tap.receive(&mut buffer).ok().filter(|n| *n > 0) {
                    if !cut.load(Relaxed) {
                        socket.send(&[&buffer[..MACS], &Ce::TAG, &buffer[MACS..n]].concat());
                        sent.fetch_add(1, Relaxed);
                    }
                    idle = false;
                }
                if idle {
                    std::thread::sleep(Duration::from_micros(300));
                }
            }
        })
    }
}

impl Drop for Ce {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
