// SPDX-License-Identifier: Apache-2.0
//! A region's store as a file and in etcd with TLS: backup while changes go on, restore into either, and what wrong certificates are told. What
//! a controller over either calls is what its unit lets through.

#[path = "../../controller/tests/etcd/mod.rs"]
mod etcd;
mod process;
mod terminal;

use etcd::EtcdServer;
use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;
use process::{begin_region, free_port, Daemon};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose,
};
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use terminal::TUNNY;

/// A CA of this test.
struct Ca(CertifiedIssuer<'static, KeyPair>);

impl Ca {
    fn new(name: &str) -> Ca {
        let mut params = CertificateParams::new(vec![]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        params.distinguished_name.push(DnType::CommonName, name);
        Ca(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    fn write(&self, path: &Path) {
        std::fs::write(path, self.0.pem()).unwrap();
    }

    /// Writes `NAME.crt` and `NAME.key` for a server or client at some addresses.
    fn issue(&self, dir: &Path, name: &str, addresses: &[&str]) {
        let mut params = CertificateParams::new(addresses.iter().map(|a| a.to_string()).collect::<Vec<_>>()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        std::fs::write(dir.join(format!("{name}.crt")), certificate.pem()).unwrap();
        std::fs::write(dir.join(format!("{name}.key")), key.serialize_pem()).unwrap();
    }
}

fn text(out: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr))
}

fn tunny(dir: &Path, words: &[&str]) -> Output {
    Command::new(TUNNY).args(words).current_dir(dir).output().unwrap()
}

fn said(dir: &Path, words: &[&str]) -> String {
    let out = tunny(dir, words);
    assert!(out.status.success(), "{words:?}: {}", text(&out));
    text(&out)
}

/// As the operator of the region in a folder.
fn tell(dir: &Path, url: &str, words: &[&str]) -> Output {
    let who =
        ["--server", url, "--ca", "region/ca.crt", "--cert", "region/operator.crt", "--key", "region/operator.key"];
    tunny(dir, &[&who[..], words].concat())
}

/// The names of NCs.
fn ncs(dir: &Path, url: &str) -> Vec<String> {
    let out = tell(dir, url, &["get", "nc", "-o", "name"]);
    assert!(out.status.success(), "{}", text(&out));
    String::from_utf8(out.stdout).unwrap().lines().map(String::from).collect()
}

fn nc(n: u64) -> String {
    format!("{{apiVersion: tunny/v1, kind: Nc, metadata: {{name: n{n:05}, labels: {{n: \"{n}\"}}}}, spec: {{address: 10.0.{}.{}}}}}", n / 200, n % 200 + 1)
}

/// Restores into a store that has nothing, serves it, and compares.
fn serve_restored(dir: &Path, folder: &str, listen: &str, wanted: &[String]) {
    let config = format!("{folder}/controller.yaml");
    let told = said(dir, &["controller", "restore", "saved", "--config", &config]);
    assert!(told.contains("nodes are sent everything anew"), "{told}");
    let again = tunny(dir, &["controller", "restore", "saved", "--config", &config]);
    assert!(!again.status.success() && text(&again).contains("not empty"), "{}", text(&again));
    let _controller = Daemon::start(dir, &["controller", "--config", &config]);
    let url = format!("https://localhost:{}", listen.rsplit_once(':').unwrap().1);
    assert_eq!(ncs(dir, &url), wanted);
    let more = dir.join("more.yaml");
    std::fs::write(&more, "{apiVersion: tunny/v1, kind: Nc, metadata: {name: z}, spec: {address: 10.9.9.9}}").unwrap();
    // Who leads in etcd is known a moment later.
    let begun = std::time::Instant::now();
    loop {
        let out = tell(dir, &url, &["apply", "--yes", "more.yaml"]);
        if out.status.success() {
            break;
        }
        assert!(begun.elapsed().as_secs() < 60, "{}", text(&out));
        std::thread::sleep(std::time::Duration::from_millis(200));
    }
    assert_eq!(ncs(dir, &url).len(), wanted.len() + 1);
}

#[test]
fn a_backup_while_changes_go_on_is_restored_into_a_file_and_into_etcd() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let (controller, url) = begin_region(dir, "north");
    let (end, made) = (AtomicBool::new(false), AtomicU64::new(0));
    let (first, last) = std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in (0..).take_while(|_| !end.load(Ordering::SeqCst)) {
                std::fs::write(dir.join("next.yaml"), nc(n)).unwrap();
                let out = tell(dir, &url, &["apply", "--yes", "next.yaml"]);
                assert!(out.status.success(), "{}", text(&out));
                made.store(n + 1, Ordering::SeqCst);
            }
        });
        let count = |more: u64| {
            let now = made.load(Ordering::SeqCst);
            while made.load(Ordering::SeqCst) < now + more {
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
            made.load(Ordering::SeqCst)
        };
        let first = count(5);
        let out = tell(dir, &url, &["controller", "backup", "saved"]);
        let last = made.load(Ordering::SeqCst);
        count(2);
        end.store(true, Ordering::SeqCst);
        assert!(out.status.success(), "{}", text(&out));
        (first, last)
    });
    controller.kill();
    let (ca, secret) = (Ca::new("etcd"), dir.join("tls"));
    std::fs::create_dir(&secret).unwrap();
    ca.write(&secret.join("ca.crt"));
    ca.issue(&secret, "client", &[]);
    let etcd = EtcdServer::start_tls(|at| {
        ca.write(&at.join("ca.crt"));
        ca.issue(at, "server", &["127.0.0.1"]);
    });
    // What was acknowledged before it is in it; what began after it is not.
    let head: serde_json::Value =
        serde_json::from_str(std::fs::read_to_string(dir.join("saved")).unwrap().lines().next().unwrap()).unwrap();
    assert_eq!(head["region"], "north");
    let port = [free_port(), free_port()].map(|port| format!("127.0.0.1:{port}"));
    let config = std::fs::read_to_string(dir.join("region/controller.yaml")).unwrap();
    let old = url.rsplit_once(':').unwrap().1;
    let tls = format!(
        "store: {{etcd: {{endpoints: [\"{}\"], ca: ../tls/ca.crt, cert: ../tls/client.crt, key: ../tls/client.key}}}}\n",
        etcd.url()
    );
    let mut wanted = Vec::new();
    for (folder, listen, store) in [("file", &port[0], ""), ("shared", &port[1], tls.as_str())] {
        std::fs::create_dir(dir.join(folder)).unwrap();
        for file in ["ca.crt", "ca.key"] {
            std::fs::copy(dir.join("region").join(file), dir.join(folder).join(file)).unwrap();
        }
        let own = config.replace(&format!("127.0.0.1:{old}"), listen) + store;
        std::fs::write(dir.join(folder).join("controller.yaml"), own).unwrap();
        if wanted.is_empty() {
            let saved = std::fs::read_to_string(dir.join("saved")).unwrap();
            let names = saved.lines().filter_map(|line| {
                let line: serde_json::Value = serde_json::from_str(line).unwrap();
                let name = line["key"].as_str()?.rsplit('/').next()?.to_string();
                (name.len() == 6 && name.starts_with("n0")).then_some(format!("nc/{name}"))
            });
            wanted = names.collect();
            let there = wanted.len() as u64;
            assert!(first <= there && there <= last + 1, "{there} of {first} to {last}");
        }
        serve_restored(dir, folder, listen, &wanted);
    }
}

#[test]
fn a_certificate_that_does_not_fit_is_named_with_what_would_help() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let (ca, other) = (Ca::new("etcd"), Ca::new("other"));
    ca.write(&dir.join("ca.crt"));
    other.write(&dir.join("other.crt"));
    ca.issue(dir, "client", &[]);
    other.issue(dir, "stranger", &[]);
    std::fs::write(dir.join("empty"), "").unwrap();
    let etcd = EtcdServer::start_tls(|at| {
        ca.write(&at.join("ca.crt"));
        ca.issue(at, "server", &["127.0.0.1"]);
    });
    let url = etcd.url();
    let localhost = url.replace("127.0.0.1", "localhost");
    let init = |url: &str, words: &[&str]| {
        let head = ["controller", "init", "region", "--region", "north", "--listen", "127.0.0.1:0", "--etcd", url];
        tunny(dir, &[&head[..], words].concat())
    };
    let (own, client) = (["--etcd-ca", "ca.crt"], ["--etcd-cert", "client.crt", "--etcd-key", "client.key"]);
    let plain = url.replace("https", "http");
    for (url, words, why) in [
        (&url, vec![], "store.etcd.ca: it is missing"),
        (&plain, own.to_vec(), "is not encrypted, and certificates are given"),
        (
            &url,
            [&["--etcd-ca", "other.crt"], &client[..]].concat(),
            "its certificate is not of the CA of store.etcd.ca",
        ),
        (&url, own.to_vec(), "it asks for a client's certificate: give store.etcd.cert"),
        (
            &url,
            [&own[..], &["--etcd-cert", "stranger.crt", "--etcd-key", "stranger.key"]].concat(),
            "it does not take the certificate of store.etcd.cert",
        ),
        (
            &url,
            [&own[..], &["--etcd-cert", "client.crt", "--etcd-key", "stranger.key"]].concat(),
            "stranger.key is not the key of the certificate",
        ),
        (&localhost, [&own[..], &client[..]].concat(), "its certificate is not for `localhost`"),
        (&url, [&["--etcd-ca", "empty"], &client[..]].concat(), "empty: it has no certificate"),
        (&url, [&["--etcd-ca", "none.crt"], &client[..]].concat(), "none.crt"),
    ] {
        let out = init(url, &words);
        assert!(!out.status.success() && text(&out).contains(why), "{words:?}: {}", text(&out));
        assert!(!dir.join("region").exists(), "{words:?}");
    }
    // And with the right ones it starts, also from another folder than that of `init`.
    let out = init(&url, &[&own[..], &client[..]].concat());
    assert!(out.status.success(), "{}", text(&out));
    let away = dir.join("away");
    std::fs::create_dir(&away).unwrap();
    let controller = Daemon::start(&away, &["controller", "--config", "../region/controller.yaml"]);
    assert!(controller.log.lock().unwrap().contains("listening on"));
}

/// The system calls that a unit's filter lets through, its sets spelled out by systemd itself.
fn let_through(unit: &str) -> BTreeSet<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging").join(unit);
    let text = std::fs::read_to_string(path).unwrap();
    let filter = text.lines().find_map(|line| line.strip_prefix("SystemCallFilter=")).unwrap();
    let (mut open, mut calls) = (filter.split_whitespace().map(String::from).collect::<Vec<_>>(), BTreeSet::new());
    while let Some(word) = open.pop() {
        if !word.starts_with('@') {
            calls.insert(word);
            continue;
        }
        let out = Command::new("systemd-analyze").args(["syscall-filter", &word]).output().unwrap();
        assert!(out.status.success(), "{word}: {}", self::text(&out));
        let lines = String::from_utf8(out.stdout).unwrap();
        let lines = lines.lines().skip(1).map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        open.extend(lines.map(String::from));
    }
    calls
}

/// strace with a controller as its child, which it goes with.
struct Traced(Child);

impl Traced {
    fn end(&mut self, signal: Signal) {
        let children = format!("/proc/{0}/task/{0}/children", self.0.id());
        if let Ok(child) = std::fs::read_to_string(children).unwrap_or_default().trim().parse() {
            kill(Pid::from_raw(child), signal).unwrap();
        }
        self.0.wait().unwrap();
    }
}

impl Drop for Traced {
    fn drop(&mut self) {
        self.end(Signal::SIGKILL);
    }
}

/// A controller under the eyes of strace does all that it is asked for, over either store: the filter of its unit would have killed none of it.
#[test]
fn the_filter_of_the_unit_lets_through_what_a_controller_calls() {
    if !skip::have_tool("strace", "strace") || !skip::have_tool("systemd-analyze", "systemd") {
        return;
    }
    let allowed = let_through("tunny-controller.service");
    assert!(allowed.len() > 200 && !allowed.contains("mount") && !allowed.contains("ptrace"), "{allowed:?}");
    let etcd = EtcdServer::start();
    let url = etcd.url();
    for more in [&[][..], &["--etcd", &url]] {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let port = free_port().to_string();
        let listen = format!("127.0.0.1:{port}");
        said(dir, &[&["controller", "init", "region", "--region", "north", "--listen", &listen], more].concat());
        let words = ["-f", "-qq", "-s", "0", "-o", "calls", TUNNY, "controller", "--config", "region/controller.yaml"];
        let begun = Command::new("strace").args(words).current_dir(dir).stderr(Stdio::piped()).spawn();
        let mut traced = Traced(begun.unwrap());
        let mut lines = BufReader::new(traced.0.stderr.take().unwrap()).lines().map_while(Result::ok);
        assert!(lines.any(|line| line.contains("listening on")), "it does not start");
        std::thread::spawn(move || lines.for_each(drop));
        let url = format!("https://localhost:{port}");
        std::fs::write(dir.join("one.yaml"), nc(1)).unwrap();
        let begun = std::time::Instant::now();
        while !tell(dir, &url, &["apply", "--yes", "one.yaml"]).status.success() {
            assert!(begun.elapsed().as_secs() < 120, "nothing can be changed");
            std::thread::sleep(std::time::Duration::from_millis(200));
        }
        for words in [
            &["get", "all", "-o", "yaml"][..],
            &["get", "status"],
            &["get", "nodes"],
            &["get", "events"],
            &["describe", "nc", "n00001"],
            &["credential", "create", "operator"],
            &["controller", "backup", "saved"],
            &["delete", "--yes", "--deletes", "1", "nc/n00001"],
        ] {
            let out = tell(dir, &url, words);
            assert!(out.status.success(), "{words:?}: {}", text(&out));
        }
        traced.end(Signal::SIGTERM);
        let calls: BTreeSet<String> = std::fs::read_to_string(dir.join("calls"))
            .unwrap()
            .lines()
            .filter_map(|line| {
                let call = line.split_once(' ')?.1.trim_start().split_once('(')?.0;
                (!call.contains([' ', '<', '+', '-'])).then(|| call.to_string())
            })
            .collect();
        let seen = ["epoll_wait", "socket", "openat"].into_iter().all(|call| calls.contains(call));
        assert!(seen && calls.len() > 30, "{calls:?}");
        let killed: Vec<&String> = calls.difference(&allowed).collect();
        assert!(killed.is_empty(), "SystemCallFilter= of the unit refuses {killed:?}");
    }
}
