// SPDX-License-Identifier: Apache-2.0

use super::answer::{step, Step, Tokens};
use super::*;
use rand::{RngExt, SeedableRng};
use std::net::IpAddr;

fn guest(user_data: Option<&str>, token_needed: bool) -> Guest {
    let addresses = ["10.0.0.21", "fd00:64::21"].map(|a| a.parse::<IpAddr>().unwrap()).to_vec();
    let told = MetadataPlan {
        name: "blue/vm.1".into(),
        vpc: "blue".into(),
        addresses,
        user_data: user_data.map(str::to_string),
        token_needed,
    };
    Guest {
        vni: Vni(100),
        mac: Mac(0x0200_0000_0021),
        gateway_mac: Mac(0x0200_0000_6401),
        lease: Lease { address: 0x0a00_0015, bits: 24, gateway: 0x0a00_0001, mtu: 1450 },
        told: Arc::new(told),
    }
}

/// What is answered to one request: head and body.
fn fetched(guest: &Guest, tokens: &mut Tokens, now: u64, request: &str) -> (String, String) {
    let mut came = request.as_bytes().to_vec();
    match step(&mut came, guest, tokens, Duration::from_secs(now)) {
        Step::Answer { bytes, .. } => {
            let text = String::from_utf8(bytes).unwrap();
            let (head, body) = text.split_once("\r\n\r\n").unwrap();
            (head.to_string(), body.to_string())
        }
        Step::More => panic!("{request}: more is wanted"),
    }
}

fn get(guest: &Guest, path: &str) -> (String, String) {
    fetched(guest, &mut Tokens::default(), 0, &format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n"))
}

#[test]
fn a_vm_is_told_what_it_is() {
    let guest = guest(Some("#!/bin/sh\necho hi\n"), false);
    let told = |path: &str| {
        let (head, body) = get(&guest, path);
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{path}: {head}");
        assert!(head.ends_with(&format!("Content-Length: {}", body.len())), "{path}: {head}");
        body
    };
    for (path, is) in [
        ("/latest/meta-data/local-ipv4", "10.0.0.21"),
        ("/2009-04-04/meta-data/instance-id", "i-000064020000000021"),
        ("/latest/meta-data/hostname", "vm-1"),
        ("/latest/meta-data/mac", "02:00:00:00:00:21"),
        ("/latest/meta-data/network/interfaces/macs/02:00:00:00:00:21/ipv6s", "fd00:64::21"),
        ("/latest/meta-data/network/interfaces/macs/02:00:00:00:00:21/subnet-ipv4-cidr-block", "10.0.0.0/24"),
        ("/latest/user-data", "#!/bin/sh\necho hi\n"),
        ("/openstack/latest/user_data", "#!/bin/sh\necho hi\n"),
    ] {
        assert_eq!(told(path), is, "{path}");
    }
    let json = |path: &str| serde_json::from_str::<serde_json::Value>(&told(path)).unwrap();
    assert_eq!(json("/openstack/latest/meta_data.json")["hostname"], "vm-1");
    assert_eq!(json("/openstack/latest/meta_data.json")["uuid"], "00000064-0000-4000-8000-020000000021");
    let network = json("/openstack/latest/network_data.json");
    assert_eq!(network["networks"][0]["ip_address"], "10.0.0.21");
    assert_eq!(network["networks"][0]["routes"][0]["gateway"], "10.0.0.1");
    assert_eq!(network["links"][0]["mtu"], 1450);
    // Each name of a list leads somewhere.
    for directory in ["/latest/meta-data/", "/latest/meta-data/network/interfaces/macs/02:00:00:00:00:21/"] {
        for name in told(directory).lines() {
            told(&format!("{directory}{name}"));
        }
    }
}

#[test]
fn who_asks_wrongly_is_told_so() {
    let plain = guest(None, false);
    for (request, status) in [
        ("GET /latest/user-data HTTP/1.1\r\n\r\n", "404"),
        ("GET /latest/meta-data/network/interfaces/macs/02:00:00:00:00:22/mac HTTP/1.1\r\n\r\n", "404"),
        ("GET /../../etc/passwd HTTP/1.1\r\n\r\n", "404"),
        ("POST /latest/user-data HTTP/1.1\r\n\r\n", "405"),
        ("PUT /latest/user-data HTTP/1.1\r\n\r\n", "405"),
        ("PUT /latest/api/token HTTP/1.1\r\n\r\n", "400"),
        ("PUT /latest/api/token HTTP/1.1\r\nX-aws-ec2-metadata-token-ttl-seconds: 21601\r\n\r\n", "400"),
        ("PUT /latest/api/token HTTP/1.1\r\nX-Forwarded-For: 10.0.0.9\r\nX-aws-ec2-metadata-token-ttl-seconds: 60\r\n\r\n", "403"),
        ("GET /latest/meta-data/mac HTTP/1.1\r\nX-aws-ec2-metadata-token: 0\r\n\r\n", "401"),
        ("\u{1}\u{2}\r\n\r\n", "400"),
    ] {
        let (head, _) = fetched(&plain, &mut Tokens::default(), 0, request);
        assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{request}: {head}");
    }
    let long = format!("GET / HTTP/1.1\r\nX: {}", "y".repeat(5000));
    assert!(fetched(&plain, &mut Tokens::default(), 0, &long).0.starts_with("HTTP/1.1 431 "));
}

#[test]
fn a_token_is_good_for_its_time_and_its_vm() {
    let (guest, mut tokens) = (guest(None, true), Tokens::default());
    let with = |token: &str| format!("GET /latest/meta-data/mac HTTP/1.1\r\nX-aws-ec2-metadata-token: {token}\r\n\r\n");
    let plain = "GET /latest/meta-data/mac HTTP/1.1\r\n\r\n";
    assert!(fetched(&guest, &mut tokens, 0, plain).0.starts_with("HTTP/1.1 401 "));
    let put = "PUT /latest/api/token HTTP/1.1\r\nX-aws-ec2-metadata-token-ttl-seconds: 60\r\n\r\n";
    let (head, token) = fetched(&guest, &mut tokens, 0, put);
    assert!(head.contains("X-aws-ec2-metadata-token-ttl-seconds: 60"), "{head}");
    assert_eq!(fetched(&guest, &mut tokens, 59, &with(&token)).1, "02:00:00:00:00:21");
    assert!(fetched(&guest, &mut tokens, 60, &with(&token)).0.starts_with("HTTP/1.1 401 "));
    assert!(fetched(&guest, &mut Tokens::default(), 1, &with(&token)).0.starts_with("HTTP/1.1 401 "));
    // So many are good at a time, and no more is kept.
    let first = fetched(&guest, &mut tokens, 61, put).1;
    for _ in 0..64 {
        fetched(&guest, &mut tokens, 61, put);
    }
    assert!(fetched(&guest, &mut tokens, 61, &with(&first)).0.starts_with("HTTP/1.1 401 "));
}

/// Whatever a VM sends: it is answered or not, and nothing else happens.
#[test]
fn random_requests_and_packets_harm_nobody() {
    let seed = rand::rng().random::<u64>();
    println!("seed {seed}");
    let mut random = rand_chacha::ChaCha8Rng::seed_from_u64(seed);
    let (guest, mut tokens) = (guest(Some("x"), false), Tokens::default());
    let model = b"GET /openstack/latest/meta_data.json HTTP/1.1\r\nHost: x\r\nConnection: keep-alive\r\n\r\n";
    for _ in 0..20_000 {
        let mut came = model.to_vec();
        for _ in 0..random.random_range(0..4) {
            let at = random.random_range(0..came.len());
            came[at] = random.random();
        }
        came.truncate(random.random_range(0..=came.len()));
        let before = came.len();
        match step(&mut came, &guest, &mut tokens, Duration::ZERO) {
            Step::Answer { bytes, .. } => assert!(bytes.starts_with(b"HTTP/1.1 ")),
            Step::More => assert_eq!(came.len(), before),
        }
    }
    let mut stack = Stack::new(IfIndex(0), &Arc::new(guest), Duration::ZERO);
    for n in 0..20_000u32 {
        let mut frame = vec![0u8; random.random_range(0..80)];
        random.fill(&mut frame[..]);
        // Half of them are nearly a SYN for the right place.
        if let Some(ip) = frame.get_mut(14..54).filter(|_| n % 2 == 0) {
            ip[..20].copy_from_slice(&[0x45, 0, 0, 40, 0, 1, 0, 0, 64, 6, 0, 0, 10, 0, 0, 21, 169, 254, 169, 254]);
            let sum = !wire::checksum::sum_ipv4_header(ip.first_chunk().unwrap());
            ip[10..12].copy_from_slice(&sum.to_be_bytes());
            ip[22..24].copy_from_slice(&80u16.to_be_bytes());
        }
        stack.receive(frame);
        stack.go_on(Duration::from_millis(n.into()));
    }
}
