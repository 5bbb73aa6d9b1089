// SPDX-License-Identifier: Apache-2.0
//! The Internet of the lab, and the rows of the demonstration that go there: out by Snat and as IPv6, in by an elastic address and
//! a port forward, path-MTU discovery through the translation, two tenants with the same private address at once.
//!
//! The server is nginx. Which address a packet really came from is what its log says, and the rows are judged by that.

use crate::demo::{Row, FAST_SHARE_WITH_SESSION_MIN, PINGS};
use crate::node::{Counters, Node};
use crate::plan::{self, vm, ELASTIC, FORWARD, INTERNET_MTU, WEB4, WEB6};
use crate::progress::Progress;
use crate::shell::Namespace;
use crate::traffic::{self, Ping, Tcp};
use crate::{interrupt, Lab, LabError};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Requests of each tenant when both go out at once.
const REQUESTS: usize = 20;
/// How long the server may take to write down a request that it has answered.
const LOG_PATIENCE: Duration = Duration::from_secs(3);

fn log(lab: &Lab) -> PathBuf {
    lab.shape.names.dir().join("web.log")
}

/// Starts nginx in the Internet.
pub(crate) fn start_web(lab: &mut Lab) -> Result<(), LabError> {
    let dir = lab.shape.names.dir();
    let at = dir.display();
    let text = format!(
        "daemon off;\nworker_processes 1;\npid {at}/nginx.pid;\nerror_log {at}/nginx-error.log;\n\
         events {{ worker_connections 4096; }}\nhttp {{\n  log_format seen '$remote_addr $remote_port $uri';\n\
         \x20 access_log {at}/web.log seen;\n  server {{\n    listen 80;\n    listen [::]:80;\n\
         \x20   location / {{ return 200 \"hello\\n\"; }}\n  }}\n}}\n"
    );
    let conf = lab.shape.names.write("nginx.conf", text)?;
    lab.background("inet", "nginx on the Internet", &["nginx", "-c", &conf]).map(drop)
}

/// One address and port that the server saw, for a path that was asked for.
type Seen = (IpAddr, u16);

/// Who asked for a path, by the server's log: at least `wanted` requests, or as many as there are in the end. The server writes its
/// log after its answer, so a request may be in it a little later.
pub(crate) fn seen(lab: &Lab, path: &str, wanted: usize) -> Vec<Seen> {
    let deadline = Instant::now() + LOG_PATIENCE;
    loop {
        let seen = seen_by_now(lab, path);
        if seen.len() >= wanted || Instant::now() >= deadline {
            return seen;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn seen_by_now(lab: &Lab, path: &str) -> Vec<Seen> {
    let text = std::fs::read_to_string(log(lab)).unwrap_or_default();
    let line = |l: &str| {
        let mut words = l.split(' ');
        let (address, port) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        (words.next()? == path).then_some((address, port))
    };
    text.lines().filter_map(line).collect()
}

pub(crate) fn url(server: IpAddr, path: &str) -> String {
    match server {
        IpAddr::V4(a) => format!("http://{a}{path}"),
        IpAddr::V6(a) => format!("http://[{a}]{path}"),
    }
}

/// Asks for a page; the answer's status, `000` if there was none.
pub(crate) fn curl(ns: &Namespace, url: &str) -> Result<String, LabError> {
    curl_within(ns, url, "5")
}

/// The same with so many seconds to wait.
pub(crate) fn curl_within(ns: &Namespace, url: &str, seconds: &str) -> Result<String, LabError> {
    let argv = ["curl", "-s", "-g", "-o", "/dev/null", "-w", "%{http_code}", "--max-time", seconds, url];
    Ok(String::from_utf8_lossy(&ns.try_argv(&argv)?.stdout).into_owned())
}

fn pool() -> (IpAddr, IpAddr) {
    ("203.0.113.0".parse().expect("an address"), "203.0.113.15".parse().expect("an address"))
}

/// Whether Snat may have used this address: in the pool, and nobody's own.
fn of_snat(a: IpAddr) -> bool {
    let (first, last) = pool();
    first <= a && a <= last && a != IpAddr::V4(ELASTIC)
}

/// Where rows are tried: a lab, and the nodes between its VMs and the Internet.
#[derive(Clone, Copy)]
pub(crate) struct Place<'a> {
    pub(crate) lab: &'a Lab,
    pub(crate) nodes: &'a [Node],
    /// Seconds of each TCP transfer.
    pub(crate) seconds: u32,
}

/// A row in the making.
pub(crate) struct Trial<'a> {
    at: Place<'a>,
    pub(crate) before: Counters,
    what: &'static str,
    path: String,
    v6: bool,
    problems: Vec<String>,
}

impl<'a> Trial<'a> {
    pub(crate) fn new(at: Place<'a>, what: &'static str, path: String, v6: bool) -> Result<Self, LabError> {
        interrupt::check()?;
        Ok(Trial { at, before: Counters::of(at.nodes)?, what, path, v6, problems: Vec::new() })
    }

    fn counters(&self) -> Result<Counters, LabError> {
        Counters::of(self.at.nodes)
    }

    /// What the nodes have dropped since the trial began.
    pub(crate) fn drops(&self) -> Result<BTreeMap<String, u64>, LabError> {
        Ok(self.counters()?.since(&self.before).drops)
    }

    pub(crate) fn expect(&mut self, ok: bool, what: impl FnOnce() -> String) {
        if !ok {
            self.problems.push(what());
        }
    }

    /// Adds to what is said of the path.
    pub(crate) fn note(&mut self, what: &str) {
        self.path.push_str(what);
    }

    pub(crate) fn ns(&self, what: &str) -> Namespace {
        self.at.lab.shape.names.namespace(what)
    }

    /// Ping and TCP, both of which must get through.
    pub(crate) fn traffic(&mut self, from: &str, to: &str, port: u16) -> Result<(Ping, Tcp, f64, u64), LabError> {
        let ns = self.ns(from);
        let ping = if port == 5201 { traffic::ping(&ns, to, PINGS, &[])? } else { Ping::default() };
        self.expect(ping.received == ping.sent, || format!("{} of {} pings answered", ping.received, ping.sent));
        let middle = self.counters()?;
        let tcp = traffic::tcp_to_port(&ns, to, port, self.at.seconds)?;
        let transfer = self.counters()?.since(&middle);
        let share = transfer.fast_share();
        self.expect(tcp.error.is_none(), || format!("TCP: {}", tcp.error.as_deref().unwrap_or("")));
        self.expect(tcp.bytes > 0, || "TCP moved no byte".into());
        self.expect(share >= FAST_SHARE_WITH_SESSION_MIN, || format!("only {:.3} % on the fast path", share * 100.0));
        Ok((ping, tcp, share, transfer.forwarded))
    }

    /// Asks the server for a page; it must have seen a source that `right` accepts.
    fn page(&mut self, from: &str, server: IpAddr, right: impl Fn(IpAddr) -> bool) -> Result<(), LabError> {
        let path = format!("/{from}-{}", if server.is_ipv4() { 4 } else { 6 });
        let status = curl(&self.ns(from), &url(server, &path))?;
        self.expect(status == "200", || format!("curl: status {status}"));
        let sources = seen(self.at.lab, &path, 1);
        let good = sources.last().is_some_and(|(a, _)| right(*a));
        self.expect(good, || format!("the server saw {:?}", sources.last()));
        if let Some((a, _)) = sources.last() {
            self.path = format!("{} seen as {a}", self.path);
        }
        Ok(())
    }

    pub(crate) fn row(mut self, traffic: Option<(Ping, Tcp, f64, u64)>) -> Result<Row, LabError> {
        let all = self.counters()?.since(&self.before);
        self.expect(all.balanced, || "the nodes' counters do not balance".into());
        let (ping, tcp, share, packets) =
            traffic.map_or((Ping::default(), Tcp::default(), None, all.forwarded), |(p, t, s, n)| (p, t, Some(s), n));
        Ok(Row {
            route: self.what.into(),
            path: self.path,
            family: if self.v6 { 6 } else { 4 },
            underlay_mtu: self.at.lab.shape.mtu,
            pings: ping.sent,
            replies: ping.received,
            rtt_ms: ping.rtt_ms,
            tcp_bps: tcp.bps,
            retransmits: tcp.retransmits,
            fast_share: share,
            packets,
            drops: all.drops,
            problems: self.problems,
        })
    }
}

/// A row, and what is said while it is tried.
type Step = (&'static str, fn(Place<'_>) -> Result<Row, LabError>);

/// Rows that go out by pools: each node has a part of them, to which answers come.
pub(crate) const SHARED: [Step; 3] = [
    ("VM to the Internet", out4),
    ("path MTU through the translation", path_mtu),
    ("two tenants, one private address", at_once),
];
/// Rows of addresses that are one VM's or go out as they are: answers come to any node.
pub(crate) const ALONE: [Step; 3] = [
    ("VM to the Internet, IPv6", out6),
    ("Internet to VM, elastic address", elastic),
    ("Internet to VM, port forward", forward),
];

/// Tries rows that go to the Internet or come from there.
pub(crate) fn run(at: Place<'_>, steps: &[Step], progress: &Progress) -> Result<Vec<Row>, LabError> {
    let mut rows = Vec::new();
    for (what, row) in steps {
        progress.step(&format!("traffic: {what}"));
        rows.push(row(at)?);
    }
    Ok(rows)
}

fn out4(at: Place<'_>) -> Result<Row, LabError> {
    let mut t = Trial::new(at, "VM to Internet, Snat", format!("blue-1 → {WEB4}"), false)?;
    let traffic = t.traffic("blue-1", &WEB4.to_string(), 5201)?;
    t.page("blue-1", WEB4.into(), of_snat)?;
    t.row(Some(traffic))
}

fn out6(at: Place<'_>) -> Result<Row, LabError> {
    let mut t = Trial::new(at, "VM to Internet, untranslated", format!("blue-1 → {WEB6}"), true)?;
    let traffic = t.traffic("blue-1", &WEB6.to_string(), 5201)?;
    let own: Option<IpAddr> = vm("blue-1").and_then(|v| v.v6.0.parse().ok());
    t.page("blue-1", WEB6.into(), |a| Some(a) == own)?;
    t.row(Some(traffic))
}

/// A packet that the VM's link takes and the Internet does not: the router's ICMP error must find the VM.
fn path_mtu(at: Place<'_>) -> Result<Row, LabError> {
    let mut t = Trial::new(at, "path MTU through Snat", format!("blue-1 → {WEB4}"), false)?;
    let ns = t.ns("blue-1");
    ns.run("ip route flush cache")?;
    let vm_mtu = at.lab.shape.mtu - plan::INNER_OVERHEAD;
    let ping = traffic::ping(&ns, &WEB4.to_string(), 2, &["-M", "do", "-s", &(vm_mtu - 28).to_string()])?;
    let told = format!("mtu = {INTERNET_MTU}");
    t.expect(ping.received == 0, || format!("{} pings of {vm_mtu} bytes answered", ping.received));
    t.expect(ping.output.contains(&told), || format!("the VM was not told \"{told}\": {}", ping.output));
    let fits = traffic::ping(&ns, &WEB4.to_string(), 2, &["-M", "do", "-s", &(INTERNET_MTU - 28).to_string()])?;
    t.expect(fits.received == 2, || format!("{} of 2 pings of {INTERNET_MTU} bytes answered", fits.received));
    t.row(None)
}

/// blue-1 and green-1 have one private address; both ask at the same time.
fn at_once(at: Place<'_>) -> Result<Row, LabError> {
    let mut t = Trial::new(at, "one private address, two tenants", format!("blue-1, green-1 → {WEB4}"), false)?;
    let names = ["blue-1", "green-1"];
    let run = |name: &str| {
        let page = url(WEB4.into(), &format!("/at-once-{name}"));
        let line = format!("for i in $(seq {REQUESTS}); do curl -s -o /dev/null --max-time 5 {page} || exit 1; done");
        at.lab.shape.names.namespace(name).run_argv(&["sh", "-c", &line]).map(drop)
    };
    let results: Vec<Result<(), LabError>> = std::thread::scope(|s| {
        let threads = names.map(|name| s.spawn(move || run(name)));
        threads.into_iter().map(|t| t.join().unwrap_or(Err(LabError::Node("a thread failed".into())))).collect()
    });
    for (name, result) in names.iter().zip(&results) {
        t.expect(result.is_ok(), || format!("{name}: a request failed"));
    }
    let [blue, green] =
        names.map(|name| seen(at.lab, &format!("/at-once-{name}"), REQUESTS).into_iter().collect::<BTreeSet<Seen>>());
    t.expect(blue.len() == REQUESTS && green.len() == REQUESTS, || format!("{} and {} came", blue.len(), green.len()));
    t.expect(blue.is_disjoint(&green), || "a public endpoint was both tenants'".into());
    let all = blue.iter().chain(&green);
    t.expect(all.clone().all(|(a, _)| of_snat(*a)), || format!("the server saw {:?}", all.collect::<Vec<_>>()));
    t.row(None)
}

fn elastic(at: Place<'_>) -> Result<Row, LabError> {
    let mut t = Trial::new(at, "Internet to VM, elastic", format!("{WEB4} → {ELASTIC} (red-1)"), false)?;
    let traffic = t.traffic("inet", &ELASTIC.to_string(), 5201)?;
    t.page("red-1", WEB4.into(), |a| a == IpAddr::V4(ELASTIC))?;
    t.row(Some(traffic))
}

fn forward(at: Place<'_>) -> Result<Row, LabError> {
    let mut t = Trial::new(at, "Internet to VM, forward", format!("{WEB4} → {FORWARD}:8080 (blue-2:5201)"), false)?;
    let traffic = t.traffic("inet", &FORWARD.to_string(), 8080)?;
    t.row(Some(traffic))
}
