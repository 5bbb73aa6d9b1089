// SPDX-License-Identifier: Apache-2.0
//! A VPC changes its path, fast and in software, to and fro under traffic between real Linux VTEPs: no datagram is lost or comes twice, sessions go on,
//! and the counts say which path served how many. Needs root.

mod region;

use node::types::{Counters, TenantCounters};
use region::{inside, region, Region};
use serde_json::Value;
use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

/// Changes of the path.
const SWITCHES: u64 = 40;
/// Between two of them.
const PAUSE: Duration = Duration::from_millis(60);
/// Between two datagrams.
const GAP: Duration = Duration::from_micros(200);

/// What came of numbered datagrams.
#[derive(Debug, Default)]
struct Came {
    datagrams: u64,
    /// Behind one with a higher number.
    late: u64,
    twice: u64,
}

impl Region {
    fn counters(&self) -> Counters {
        self.client().get("/v1/counters").unwrap()
    }

    fn blue(&self) -> TenantCounters {
        self.counters().tenants.into_iter().find(|t| t.vpc == "blue").unwrap()
    }

    /// Serves VPC blue so.
    fn take(&self, path: &Value) {
        let mut blue: Value = serde_json::from_str(&self.tunny(&["get", "vpc", "blue", "-o", "json"])).unwrap();
        blue["spec"]["path"] = path.clone();
        self.apply(&blue.to_string());
    }
}

/// Numbered datagrams from blue-1 to blue-2 until `stop`; what came when all must have.
fn stream(region: &Region, stop: Arc<AtomicBool>, sent: Arc<AtomicU64>) -> std::thread::JoinHandle<Came> {
    let (counted, bound) = (sent.clone(), Arc::new(Barrier::new(2)));
    let listening = bound.clone();
    let receiver = inside(&region.ns("blue-2"), move || {
        let socket = UdpSocket::bind("10.0.0.12:7777").unwrap();
        listening.wait();
        nix::sys::socket::setsockopt(&socket, nix::sys::socket::sockopt::RcvBufForce, &(64 << 20)).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
        let (mut came, mut seen, mut highest, mut buffer) = (Came::default(), Vec::<bool>::new(), 0, [0; 64]);
        let mut silent = 0;
        while silent < 4 {
            let Ok(8) = socket.recv(&mut buffer) else {
                silent += u32::from(counted.load(Relaxed) > 0);
                continue;
            };
            silent = 0;
            let number = u64::from_be_bytes(buffer[..8].try_into().unwrap());
            seen.resize(seen.len().max(number as usize + 1), false);
            came.twice += u64::from(std::mem::replace(&mut seen[number as usize], true));
            came.datagrams += 1;
            came.late += u64::from(number < highest);
            highest = highest.max(number);
        }
        came
    });
    drop(inside(&region.ns("blue-1"), move || {
        let socket = UdpSocket::bind("10.0.0.11:0").unwrap();
        socket.connect("10.0.0.12:7777").unwrap();
        bound.wait();
        let (begun, mut number) = (Instant::now(), 0u64);
        while !stop.load(Relaxed) {
            if begun.elapsed() < GAP * number as u32 {
                std::thread::sleep(GAP / 4);
                continue;
            }
            socket.send(&number.to_be_bytes()).unwrap();
            number += 1;
            sent.store(number, Relaxed);
        }
    }));
    receiver
}

#[test]
fn a_vpc_changes_its_path_under_traffic_and_loses_nothing() {
    let Some(region) = region("pa") else { return };
    // The first packets find neighbours that are not resolved.
    let ping = lab::traffic::ping(&region.ns("blue-1"), "10.0.0.12", 20, &["-q", "-i", "0.002"]).unwrap();
    assert!(ping.received > 0, "{}", ping.output);
    let (stop, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let before = region.blue();
    let receiver = stream(&region, stop.clone(), sent.clone());
    let (mut in_software, mut fast, mut last) = (0, 0, before.clone());
    for n in 0..SWITCHES {
        let path = if n % 2 == 0 { "software" } else { "fast" };
        region.take(&serde_json::json!({ "vpc": path }));
        std::thread::sleep(PAUSE);
        let now = region.blue();
        let (all, handed_over) = (now.packets - last.packets, now.software - last.software);
        (in_software, fast) = (in_software + handed_over, fast + all - handed_over);
        last = now;
    }
    stop.store(true, Relaxed);
    let came = receiver.join().unwrap();
    let (sent, after) = (sent.load(Relaxed), region.blue());
    println!("{sent} datagrams over {SWITCHES} changes of the path: {in_software} in software, {fast} in the fast path, {came:?}");
    assert_eq!((came.datagrams, came.twice), (sent, 0), "{came:?}; {:?}", region.counters());
    assert_eq!(after.packets - before.packets, sent, "each is counted once");
    assert_eq!(after.drops, before.drops);
    assert!(
        in_software > sent / 10 && fast > sent / 10,
        "{in_software} in software, {fast} in the fast path, of {sent}"
    );
    // What is still in the ring when the fast path takes over is overtaken: far less than what a ring holds.
    assert!(came.late <= SWITCHES / 2 * 32, "{came:?}");
    let counters = region.counters();
    assert_eq!(counters.fast.punts.get("path_software").copied().unwrap_or(0), after.software);
    assert!(counters.balance.balanced, "{:?}", counters.balance);
}

/// A connection to the Internet and one between VMs go on, whatever serves them.
#[test]
fn sessions_go_on_when_their_vpc_changes_its_path() {
    let Some(region) = region("pb") else { return };
    let sessions = |region: &Region| region.get(&["--vpc", "blue"]).len();
    let ns = region.ns("blue-1");
    let traffic = std::thread::spawn(move || lab::traffic::tcp(&ns, &lab::plan::WEB4.to_string(), 3));
    let mut most = 0;
    for path in ["software", "fast", "software", "fast"] {
        std::thread::sleep(Duration::from_millis(500));
        most = most.max(sessions(&region));
        region.take(&serde_json::json!({ "vpc": path }));
    }
    // Then its sessions alone.
    region.take(&serde_json::json!({ "sessions": "software" }));
    let done = traffic.join().unwrap().unwrap();
    println!("{done:?}; {most} sessions at most");
    assert!(done.error.is_none() && done.bps > 1e6, "{done:?}");
    let blue = region.blue();
    assert!(blue.software > 0 && most > 0, "{blue:?}");
    assert_eq!(
        region.counters().fast.punts.get("session_stale"),
        None,
        "no session is judged anew for a change of the path"
    );
}
