// SPDX-License-Identifier: Apache-2.0
//! Real traffic between VMs: ping and iperf3, with what they measured.

use crate::shell::Namespace;
use crate::LabError;
use serde_json::Value;

/// What `ping` saw.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ping {
    /// Echo requests sent.
    pub sent: u32,
    /// Echo replies received.
    pub received: u32,
    /// ICMP errors received instead.
    pub errors: u32,
    /// Mean round trip in milliseconds.
    pub rtt_ms: Option<f64>,
    /// Everything it printed.
    pub output: String,
}

/// What `iperf3` saw.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tcp {
    /// Bits per second that the receiver got.
    pub bps: f64,
    /// Bytes that the receiver got.
    pub bytes: u64,
    /// Segments sent again.
    pub retransmits: u64,
    /// Largest segment of the connection.
    pub mss: u64,
    /// Why it failed, if it did.
    pub error: Option<String>,
}

/// Sends `count` echo requests; `more` are further options.
pub fn ping(from: &Namespace, to: &str, count: u32, more: &[&str]) -> Result<Ping, LabError> {
    let count = count.to_string();
    let mut argv = vec!["ping", "-n", "-c", &count, "-i", "0.2", "-W", "1"];
    argv.extend(more);
    argv.push(to);
    let output = from.try_argv(&argv)?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    Ok(parse_ping(text))
}

/// A counter of a kernel's protocol; 0 if there is none of that name.
pub fn snmp(ns: &Namespace, protocol: &str, name: &str) -> Result<u64, LabError> {
    Ok(parse_snmp(&ns.run("cat /proc/self/net/snmp")?, protocol, name))
}

fn parse_snmp(text: &str, protocol: &str, name: &str) -> u64 {
    let mut lines = text.lines().filter_map(|l| l.strip_prefix(protocol)?.strip_prefix(':'));
    let (Some(names), Some(values)) = (lines.next(), lines.next()) else { return 0 };
    let at = names.split_whitespace().position(|word| word == name);
    at.and_then(|at| values.split_whitespace().nth(at)?.parse().ok()).unwrap_or(0)
}

fn parse_ping(text: String) -> Ping {
    let summary = text.lines().find(|l| l.contains("packets transmitted")).unwrap_or("");
    let number = |what: &str| {
        let part = summary.split(',').find(|p| p.contains(what))?;
        part.trim().trim_start_matches('+').split(' ').next()?.parse().ok()
    };
    let rtt = text.lines().find(|l| l.starts_with("rtt")).and_then(|l| l.split('/').nth(4)?.parse().ok());
    Ping {
        sent: number("transmitted").unwrap_or(0),
        received: number("received").unwrap_or(0),
        errors: number("errors").unwrap_or(0),
        rtt_ms: rtt,
        output: text,
    }
}

/// Transfers by TCP for some seconds.
pub fn tcp(from: &Namespace, to: &str, seconds: u32) -> Result<Tcp, LabError> {
    tcp_to_port(from, to, 5201, seconds)
}

/// The same to another port than the usual one.
pub fn tcp_to_port(from: &Namespace, to: &str, port: u16, seconds: u32) -> Result<Tcp, LabError> {
    let (seconds, port) = (seconds.to_string(), port.to_string());
    let output =
        from.try_argv(&["iperf3", "-J", "--connect-timeout", "2000", "-p", &port, "-t", &seconds, "-c", to])?;
    Ok(parse_iperf(&String::from_utf8_lossy(&output.stdout)))
}

fn parse_iperf(text: &str) -> Tcp {
    let Ok(v) = serde_json::from_str::<Value>(text) else {
        return Tcp { error: Some(format!("iperf3 printed no JSON: {}", text.trim())), ..Tcp::default() };
    };
    let error = v["error"].as_str().map(str::to_string);
    let received = &v["end"]["sum_received"];
    Tcp {
        bps: received["bits_per_second"].as_f64().unwrap_or(0.0),
        bytes: received["bytes"].as_u64().unwrap_or(0),
        retransmits: v["end"]["sum_sent"]["retransmits"].as_u64().unwrap_or(0),
        mss: v["start"]["tcp_mss_default"].as_u64().unwrap_or(0),
        error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ping_with_replies() {
        let p = parse_ping(
            "PING 10.0.0.12 (10.0.0.12) 56(84) bytes of data.\n\n--- 10.0.0.12 ping statistics ---\n\
             5 packets transmitted, 4 received, 20% packet loss, time 807ms\nrtt min/avg/max/mdev = 0.1/0.234/0.5/0.1 ms\n"
                .into(),
        );
        assert_eq!((p.sent, p.received, p.errors, p.rtt_ms), (5, 4, 0, Some(0.234)));
    }

    #[test]
    fn ping_with_errors() {
        let p = parse_ping("3 packets transmitted, 0 received, +3 errors, 100% packet loss, time 2030ms\n".into());
        assert_eq!((p.sent, p.received, p.errors, p.rtt_ms), (3, 0, 3, None));
        assert_eq!(parse_ping("ping: unknown host".into()).sent, 0);
    }

    #[test]
    fn counters_of_protocols() {
        let text = "Icmp: InMsgs InEchos\nIcmp: 5 3\nUdpLite: InDatagrams\nUdpLite: 9\nUdp: InDatagrams RcvbufErrors\nUdp: 7 2\n";
        assert_eq!((parse_snmp(text, "Icmp", "InEchos"), parse_snmp(text, "Udp", "RcvbufErrors")), (3, 2));
        assert_eq!((parse_snmp(text, "Udp", "InEchos"), parse_snmp("", "Udp", "InDatagrams")), (0, 0));
    }

    #[test]
    fn iperf_that_failed() {
        let t = parse_iperf(r#"{"start":{},"end":{},"error":"unable to connect to server: No route to host"}"#);
        assert!(t.error.unwrap().contains("No route"));
        assert!(parse_iperf("").error.is_some());
    }
}
