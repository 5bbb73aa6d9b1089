// SPDX-License-Identifier: Apache-2.0
//! Sessions and translation in a running node, in network namespaces (see crate `lab`): 10,000 live TCP connections through a
//! SIGKILL of the node, and a pool that runs dry and is filled again. Without root they say so and pass.

mod region;

use lab::plan::WEB4;
use lab::shell::Namespace;
use nix::sys::socket::{setsockopt, sockopt};
use node::sessions::{Ports, SessionQuery};
use node::types::Level;
use region::{inside, region, Region};
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const CONNECTIONS: u32 = 10_000;
/// Connections that begin in a second: each punts some packets, and a VPC may punt 10,000 a second.
const BEGIN_RATE: u32 = 2000;

impl Region {
    fn sessions(&self) -> u64 {
        let levels: Vec<Level> = self.client().get("/v1/levels").unwrap();
        levels.iter().find(|l| l.name == "sessions").unwrap().used
    }

    fn ports(&self) -> Ports {
        let query = SessionQuery { limit: 10_000, ..Default::default() };
        self.client().post("/v1/ports", serde_json::to_vec(&query).unwrap()).unwrap()
    }
}

/// What the connections have seen so far.
#[derive(Default)]
struct Seen {
    connected: AtomicU32,
    /// The phase of the test: each connection does one exchange more after each.
    phase: AtomicU32,
    /// Connections that have done an exchange in the present phase.
    done: [AtomicU32; 4],
    failed: AtomicU32,
    exchanges: AtomicU64,
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// Not a test: the server of the connections, which needs a process of its own, since a process may have 20,000 files on some
/// machines. It sends back what comes, until it is ended.
#[test]
#[ignore = "the server of another test"]
fn the_server() {
    runtime().block_on(async {
        let listener = TcpListener::bind((WEB4, 7000)).await.unwrap();
        loop {
            let Ok((mut stream, _)) = listener.accept().await else { continue };
            tokio::spawn(async move {
                let mut buffer = [0; 64];
                while stream.read_exact(&mut buffer).await.is_ok() && stream.write_all(&buffer).await.is_ok() {}
            });
        }
    });
}

/// One connection: an exchange every second or so, until phase 3.
async fn connection(seen: Arc<Seen>, number: u32) {
    let to: SocketAddr = (WEB4, 7000).into();
    let exchange = async {
        let mut stream = TcpStream::connect(to).await?;
        stream.set_nodelay(true)?;
        seen.connected.fetch_add(1, Relaxed);
        let (mut buffer, mut last) = ([0; 64], u32::MAX);
        loop {
            let phase = seen.phase.load(Relaxed);
            if phase >= 3 {
                return std::io::Result::Ok(());
            }
            buffer[..4].copy_from_slice(&number.to_be_bytes());
            stream.write_all(&buffer).await?;
            stream.read_exact(&mut buffer).await?;
            assert_eq!(buffer[..4], number.to_be_bytes(), "an answer of another connection");
            seen.exchanges.fetch_add(1, Relaxed);
            if last != phase {
                last = phase;
                seen.done[phase as usize].fetch_add(1, Relaxed);
            }
            tokio::time::sleep(Duration::from_millis(800 + u64::from(number % 400))).await;
        }
    };
    if let Err(e) = exchange.await {
        if seen.failed.fetch_add(1, Relaxed) < 5 {
            eprintln!("connection {number}: {e}");
        }
    }
}

fn connect(seen: &Arc<Seen>) {
    runtime().block_on(async {
        let mut tasks = Vec::new();
        for number in 0..CONNECTIONS {
            tasks.push(tokio::spawn(connection(seen.clone(), number)));
            if number % (BEGIN_RATE / 100) == 0 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
        for task in tasks {
            task.await.unwrap();
        }
    });
}

/// Waits until all connections have done an exchange in a phase.
fn all_done(seen: &Seen, phase: usize) {
    let begun = Instant::now();
    while seen.done[phase].load(Relaxed) < CONNECTIONS {
        let (done, failed) = (seen.done[phase].load(Relaxed), seen.failed.load(Relaxed));
        let connected = seen.connected.load(Relaxed);
        assert!(
            begun.elapsed() < Duration::from_secs(40) && failed == 0,
            "phase {phase}: {connected} connected, {done} of {CONNECTIONS} went on, {failed} failed"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn ten_thousand_connections_go_on_through_a_kill_of_the_node() {
    let Some(mut region) = region("i") else { return };
    let files = nix::sys::resource::Resource::RLIMIT_NOFILE;
    let (_, most) = nix::sys::resource::getrlimit(files).unwrap();
    nix::sys::resource::setrlimit(files, most, most).unwrap();
    assert!(most > u64::from(CONNECTIONS) + 100, "{most} files are too few for {CONNECTIONS} connections");
    let seen = Arc::new(Seen::default());
    let program = std::env::current_exe().unwrap().display().to_string();
    region.background("inet", "echo server", &[&program, "--ignored", "--exact", "the_server"]).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    let clients = inside(&region.ns("blue-1"), {
        let seen = seen.clone();
        move || connect(&seen)
    });
    all_done(&seen, 0);
    let (before, ports) = (region.sessions(), region.ports());
    assert!(before >= u64::from(CONNECTIONS), "{before} sessions");
    region.node().unwrap().process.kill();
    // Nobody but the fast path is there.
    seen.phase.store(1, Relaxed);
    all_done(&seen, 1);
    region.start_node().unwrap();
    seen.phase.store(2, Relaxed);
    all_done(&seen, 2);
    assert!(region.sessions() >= u64::from(CONNECTIONS), "{} sessions after the restart", region.sessions());
    let after = region.ports();
    let held = |p: &Ports| p.holders.iter().map(|h| u64::from(h.tcp)).sum::<u64>();
    assert_eq!(held(&after), held(&ports), "TCP ports in use before and after");
    // Connections that begin now get ports that no other one has: what comes back is theirs (asserted by each connection).
    let web = region.ns("blue-1").run(&format!("curl -s --max-time 5 http://{WEB4}/"));
    assert_eq!(web.unwrap(), "hello\n");
    let exchanges = seen.exchanges.load(Relaxed);
    seen.phase.store(3, Relaxed);
    clients.join().unwrap();
    assert_eq!(seen.failed.load(Relaxed), 0);
    println!("{CONNECTIONS} connections, {exchanges} exchanges, {before} sessions at the kill, none lost");
}

/// Sends a datagram from each of these ports. Returns how many the VM was told that they cannot go.
fn datagrams(ns: &Namespace, ports: std::ops::Range<u16>) -> usize {
    let work = move || {
        ports
            .filter(|port| {
                let socket = UdpSocket::bind(("0.0.0.0", *port)).unwrap();
                socket.connect((WEB4, 5201)).unwrap();
                socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
                // "Host unreachable" is no hard error: only who asks is told.
                setsockopt(&socket, sockopt::Ipv4RecvErr, &true).unwrap();
                let sent = socket.send(b"x").err();
                let answer = socket.recv(&mut [0; 16]).err();
                [sent, answer].into_iter().flatten().any(|e| e.raw_os_error() == Some(nix::libc::EHOSTUNREACH))
            })
            .count()
    };
    inside(ns, work).join().unwrap()
}

#[test]
fn a_pool_runs_dry_tells_the_vm_disturbs_nobody_and_is_filled_again() {
    let Some(region) = region("p") else { return };
    let pool = |last: u16| {
        format!(
            "{{apiVersion: tunny/v1, kind: PublicPool, metadata: {{name: small}}, \
             spec: {{ranges: [203.0.113.16], ports: {{first: 1024, last: {last}}}}}}}\n---\n\
             {{apiVersion: tunny/v1, kind: Snat, metadata: {{name: blue}}, spec: {{vpc: blue, pools: [small]}}}}\n"
        )
    };
    region.ns("net").run("ip route add 203.0.113.16/32 via 172.31.16.2").unwrap();
    region.apply(&pool(1151));
    let blue = region.ns("blue-1");
    // iperf3 listens on TCP alone: the server says so by "port unreachable", which is not "host unreachable".
    assert_eq!(datagrams(&blue, 20_000..20_128), 0, "there are 128 ports");
    let (before, small) = (region.drops("nat_ports_exhausted"), region.ports());
    let level = small.pools.iter().find(|p| p.pool == "small").unwrap();
    assert_eq!((level.held, level.ports, before), (128, 128, 0));
    let told = datagrams(&blue, 21_000..21_010);
    assert!(told >= 8, "the VM was told {told} of 10 times");
    assert!(region.drops("nat_ports_exhausted") >= 10);
    let refused = region.ports().vpcs.iter().find(|v| v.vpc == "blue").unwrap().refused["ports_of_pools"];
    assert!(refused >= 10, "{refused}");
    // Another tenant, and what blue has, are as before.
    let page = |ns: Namespace| ns.run(&format!("curl -s --max-time 5 http://{WEB4}/")).unwrap();
    assert_eq!(page(region.ns("green-1")), "hello\n");
    assert_eq!(datagrams(&blue, 20_000..20_010), 0, "mappings in use serve on");
    // The pool grows: new connections at once, old mappings as before.
    region.apply(&pool(1279));
    let exhausted = region.drops("nat_ports_exhausted");
    assert_eq!(datagrams(&blue, 21_000..21_050), 0);
    assert_eq!(region.drops("nat_ports_exhausted"), exhausted);
    assert_eq!(page(blue), "hello\n");
    assert!(region.node().unwrap().counters().unwrap().balanced);
}
