// SPDX-License-Identifier: Apache-2.0
//! What is asked at the metadata address, and what is answered: the tree of EC2 (`/latest/meta-data/…`, with tokens as IMDSv2 has them), and
//! OpenStack's documents (`/openstack/latest/…`), which cloud-init and other agents of guests read.

use super::Guest;
use rand::RngExt;
use serde_json::json;
use std::net::IpAddr;
use std::time::Duration;

/// The longest head of a request.
const HEAD_MAX: usize = 4_096;
const HEADERS_MAX: usize = 32;
/// Tokens of one VM that are good at a time; the oldest goes.
const TOKENS_MAX: usize = 64;
/// The longest that a token is good, as in EC2.
const TOKEN_S_MAX: u64 = 21_600;
/// Versions of EC2's tree, all of which are answered alike.
const VERSIONS: [&str; 5] = ["2009-04-04", "2016-09-02", "2018-09-24", "2021-03-23", "latest"];
/// Versions of OpenStack's.
const OPENSTACK: [&str; 3] = ["2012-08-10", "2018-08-27", "latest"];

/// What is to be done on a connection.
pub(super) enum Step {
    /// More must come.
    More,
    /// This goes out; behind the last answer the connection ends.
    Answer { bytes: Vec<u8>, last: bool },
}

/// Tokens of a VM that are good, oldest first, each with when it ends.
#[derive(Default)]
pub(super) struct Tokens(Vec<(String, Duration)>);

impl Tokens {
    fn give(&mut self, seconds: u64, now: Duration) -> String {
        self.0.retain(|(_, end)| *end > now);
        if self.0.len() >= TOKENS_MAX {
            self.0.remove(0);
        }
        let token = format!("{:032x}", rand::rng().random::<u128>());
        self.0.push((token.clone(), now + Duration::from_secs(seconds)));
        token
    }

    fn is_good(&self, token: &str, now: Duration) -> bool {
        self.0.iter().any(|(t, end)| t == token && *end > now)
    }
}

/// A request, as far as it matters.
struct Request<'a> {
    method: &'a str,
    path: &'a str,
    token: Option<&'a str>,
    seconds: Option<&'a str>,
    forwarded: bool,
    has_body: bool,
    keeps: bool,
}

/// An answer.
struct Reply {
    status: &'static str,
    kind: &'static str,
    body: String,
    /// Of a token: for how many seconds it is good.
    seconds: Option<u64>,
}

impl Reply {
    fn text(body: impl Into<String>) -> Reply {
        Reply { status: "200 OK", kind: "text/plain; charset=utf-8", body: body.into(), seconds: None }
    }

    fn json(body: &serde_json::Value) -> Reply {
        Reply { kind: "application/json", ..Reply::text(body.to_string()) }
    }

    fn error(status: &'static str, why: &str) -> Reply {
        Reply { status, ..Reply::text(format!("{why}\n")) }
    }
}

/// Answers the first request of what has come, which then is gone.
pub(super) fn step(came: &mut Vec<u8>, guest: &Guest, tokens: &mut Tokens, now: Duration) -> Step {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut parsed = httparse::Request::new(&mut headers);
    let length = match parsed.parse(came) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) if came.len() < HEAD_MAX => return Step::More,
        Ok(httparse::Status::Partial) => {
            return written(&Reply::error("431 Request Header Fields Too Large", "the request is too long"), true, true)
        }
        Err(_) => return written(&Reply::error("400 Bad Request", "this is no HTTP"), true, true),
    };
    let request = read(&parsed);
    let last = !request.keeps || request.has_body;
    let reply = reply(&request, guest, tokens, now);
    let step = written(&reply, request.method != "HEAD", last);
    came.drain(..length);
    step
}

fn read<'a>(parsed: &httparse::Request<'_, 'a>) -> Request<'a> {
    let header = |name: &str| {
        let found = parsed.headers.iter().find(|h| h.name.eq_ignore_ascii_case(name));
        found.and_then(|h| std::str::from_utf8(h.value).ok()).map(str::trim)
    };
    let says = |what| header("connection").is_some_and(|c| c.eq_ignore_ascii_case(what));
    let path = parsed.path.unwrap_or("/");
    Request {
        method: parsed.method.unwrap_or(""),
        path: path.split(['?', '#']).next().unwrap_or(path),
        token: header("x-aws-ec2-metadata-token"),
        seconds: header("x-aws-ec2-metadata-token-ttl-seconds"),
        forwarded: header("x-forwarded-for").is_some(),
        has_body: header("transfer-encoding").is_some() || header("content-length").is_some_and(|n| n != "0"),
        keeps: if parsed.version == Some(1) { !says("close") } else { says("keep-alive") },
    }
}

fn written(reply: &Reply, body: bool, last: bool) -> Step {
    let Reply { status, kind, body: text, seconds } = reply;
    let mut head =
        format!("HTTP/1.1 {status}\r\nServer: tunny\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n", text.len());
    if let Some(seconds) = seconds {
        head += &format!("X-aws-ec2-metadata-token-ttl-seconds: {seconds}\r\n");
    }
    head += if last { "Connection: close\r\n\r\n" } else { "\r\n" };
    if body {
        head += text;
    }
    Step::Answer { bytes: head.into_bytes(), last }
}

fn reply(request: &Request<'_>, guest: &Guest, tokens: &mut Tokens, now: Duration) -> Reply {
    // Who is a proxy for somebody else is to get no token.
    let parts: Vec<&str> = request.path.split('/').filter(|p| !p.is_empty()).collect();
    if request.method == "PUT" {
        return match parts.as_slice() {
            ["latest", "api", "token"] if request.forwarded => Reply::error("403 Forbidden", "no token for a proxy"),
            ["latest", "api", "token"] => match request.seconds.and_then(|s| s.parse().ok()) {
                Some(seconds @ 1..=TOKEN_S_MAX) => {
                    Reply { seconds: Some(seconds), ..Reply::text(tokens.give(seconds, now)) }
                }
                _ => Reply::error("400 Bad Request", "X-aws-ec2-metadata-token-ttl-seconds must be 1 to 21600"),
            },
            _ => Reply::error("405 Method Not Allowed", "only /latest/api/token can be PUT"),
        };
    }
    if !matches!(request.method, "GET" | "HEAD") {
        return Reply::error("405 Method Not Allowed", "GET, HEAD, and PUT of /latest/api/token");
    }
    match request.token {
        Some(token) if !tokens.is_good(token, now) => return Reply::error("401 Unauthorized", "the token is not good"),
        None if guest.told.token_needed => return Reply::error("401 Unauthorized", "PUT /latest/api/token first"),
        _ => {}
    }
    found(&parts, guest).unwrap_or_else(|| Reply::error("404 Not Found", "there is no such thing here"))
}

/// The document of a path.
fn found(parts: &[&str], guest: &Guest) -> Option<Reply> {
    match parts {
        [] => Some(Reply::text(VERSIONS.join("\n"))),
        ["openstack"] => Some(Reply::text(OPENSTACK.join("\n"))),
        ["openstack", version, rest @ ..] if OPENSTACK.contains(version) => openstack(rest, guest),
        [version, rest @ ..] if VERSIONS.contains(version) => match rest {
            [] => Some(Reply::text("meta-data/\nuser-data")),
            ["user-data"] => guest.told.user_data.clone().map(Reply::text),
            ["meta-data", rest @ ..] => ec2(rest, guest).map(Reply::text),
            _ => None,
        },
        _ => None,
    }
}

/// The name that a VM has for itself: that of its Vm, without a VPC in front, as a host name.
fn host_name(guest: &Guest) -> String {
    let name = guest.told.name.rsplit('/').next().unwrap_or_default();
    name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect()
}

/// VPC and MAC address tell a VM apart from all others.
fn instance_id(guest: &Guest) -> String {
    format!("i-{:06x}{:012x}", guest.vni.0, guest.mac.0)
}

fn addresses(guest: &Guest, v6: bool) -> Vec<String> {
    guest.told.addresses.iter().filter(|a| a.is_ipv6() == v6).map(IpAddr::to_string).collect()
}

/// The prefix that has the VM's first IPv4 address.
fn subnet(guest: &Guest) -> String {
    let lease = &guest.lease;
    let mask = u32::MAX.checked_shl(32 - u32::from(lease.bits)).unwrap_or(0);
    format!("{}/{}", std::net::Ipv4Addr::from_bits(lease.address & mask), lease.bits)
}

fn ec2(parts: &[&str], guest: &Guest) -> Option<String> {
    const TREE: [&str; 8] =
        ["hostname", "instance-id", "instance-type", "local-hostname", "local-ipv4", "mac", "network/", "services/"];
    Some(match parts {
        [] => TREE.join("\n"),
        ["hostname" | "local-hostname"] => host_name(guest),
        ["instance-id"] => instance_id(guest),
        ["instance-type"] => "tunny".into(),
        ["local-ipv4"] => std::net::Ipv4Addr::from_bits(guest.lease.address).to_string(),
        ["mac"] => guest.mac.to_string(),
        ["services"] => "domain\npartition".into(),
        ["services", "domain"] => "tunny.local".into(),
        ["services", "partition"] => "tunny".into(),
        ["network"] => "interfaces/".into(),
        ["network", "interfaces"] => "macs/".into(),
        ["network", "interfaces", "macs"] => format!("{}/", guest.mac),
        ["network", "interfaces", "macs", mac, rest @ ..] if *mac == guest.mac.to_string() => {
            return interface(rest, guest)
        }
        _ => return None,
    })
}

/// What is said of the VM's interface.
fn interface(parts: &[&str], guest: &Guest) -> Option<String> {
    let v6 = addresses(guest, true);
    Some(match parts {
        [] => {
            let v6 = if v6.is_empty() { "" } else { "ipv6s\n" };
            format!("device-number\n{v6}local-hostname\nlocal-ipv4s\nmac\nsubnet-ipv4-cidr-block\nvpc-id")
        }
        ["device-number"] => "0".into(),
        ["local-hostname"] => host_name(guest),
        ["local-ipv4s"] => addresses(guest, false).join("\n"),
        ["ipv6s"] if !v6.is_empty() => v6.join("\n"),
        ["mac"] => guest.mac.to_string(),
        ["subnet-ipv4-cidr-block"] => subnet(guest),
        ["vpc-id"] => guest.told.vpc.clone(),
        _ => return None,
    })
}

fn openstack(parts: &[&str], guest: &Guest) -> Option<Reply> {
    let (mac, lease) = (guest.mac.to_string(), &guest.lease);
    let ip = |a: u32| std::net::Ipv4Addr::from_bits(a).to_string();
    Some(match parts {
        [] => Reply::text("meta_data.json\nnetwork_data.json\nuser_data"),
        ["meta_data.json"] => {
            let uuid = format!("{:08x}-0000-4000-8000-{:012x}", guest.vni.0, guest.mac.0);
            let name = host_name(guest);
            Reply::json(&json!({"uuid": uuid, "name": name, "hostname": name, "meta": {"vpc": guest.told.vpc}}))
        }
        ["network_data.json"] => {
            let mask = ip(u32::MAX.checked_shl(32 - u32::from(lease.bits)).unwrap_or(0));
            let route = json!({"network": "0.0.0.0", "netmask": "0.0.0.0", "gateway": ip(lease.gateway)});
            Reply::json(&json!({
                "links": [{"id": "eth0", "type": "phy", "ethernet_mac_address": mac, "mtu": lease.mtu}],
                "networks": [{"id": "network0", "type": "ipv4", "link": "eth0", "ip_address": ip(lease.address), "netmask": mask, "routes": [route]}],
                "services": [],
            }))
        }
        ["user_data"] => return guest.told.user_data.clone().map(Reply::text),
        _ => return None,
    })
}
