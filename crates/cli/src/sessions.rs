// SPDX-License-Identifier: Apache-2.0
//! `tunny get sessions` and `tunny get ports`.

use crate::output::{show, table, yaml, Format, Out};
use node::client::Client;
use node::sessions::{ElasticView, Ports, SessionQuery, SessionView};
use std::fmt::Write as _;
use std::io::Write;
use std::net::IpAddr;
use std::process::ExitCode;

/// Which sessions, or holders of ports, are wanted.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Options of sessions and ports")]
pub struct Which {
    /// Only of this VM, by its address in the VPC.
    #[arg(long)]
    vm: Option<IpAddr>,
    /// Only with this port of the VM.
    #[arg(long)]
    vm_port: Option<u16>,
    /// Only with this public address.
    #[arg(long)]
    public: Option<IpAddr>,
    /// Only with this public port: who holds it?
    #[arg(long)]
    public_port: Option<u16>,
    /// Only with this other side.
    #[arg(long)]
    remote: Option<IpAddr>,
    /// Only with this port of the other side.
    #[arg(long)]
    remote_port: Option<u16>,
    /// Only of this protocol: tcp, udp, icmp, icmpv6, or a number from 0 to 255.
    #[arg(long)]
    protocol: Option<String>,
    /// Only in this state, as the list shows it: syn-sent, established, time-wait, paired, ...
    #[arg(long)]
    state: Option<String>,
}

impl Which {
    /// The options with whether they are given.
    pub fn given(&self) -> [(&'static str, bool); 8] {
        [
            ("--vm", self.vm.is_some()),
            ("--vm-port", self.vm_port.is_some()),
            ("--public", self.public.is_some()),
            ("--public-port", self.public_port.is_some()),
            ("--remote", self.remote.is_some()),
            ("--remote-port", self.remote_port.is_some()),
            ("--protocol", self.protocol.is_some()),
            ("--state", self.state.is_some()),
        ]
    }

    fn query(&self, vpc: Option<String>, limit: u64) -> anyhow::Result<Vec<u8>> {
        let Which { vm, vm_port, public, public_port, remote, remote_port, protocol, state } = self.clone();
        let query = SessionQuery { vpc, protocol, vm, vm_port, public, public_port, remote, remote_port, state, limit };
        Ok(serde_json::to_vec(&query)?)
    }
}

fn endpoint(address: &str, port: u16) -> String {
    if address.contains(':') {
        format!("[{address}]:{port}")
    } else {
        format!("{address}:{port}")
    }
}

/// Shows sessions as they come: for people in columns of fixed width, as JSON a list with one object a line, as YAML one document each.
pub fn sessions(
    client: &Client,
    which: &Which,
    vpc: Option<String>,
    limit: u64,
    format: Format,
) -> anyhow::Result<ExitCode> {
    let query = which.query(vpc, limit)?;
    let mut out = std::io::BufWriter::new(Out);
    let line = |v: &SessionView| {
        format!(
            "{:<12} {:<6} {:<3} {:<28} {:<24} {:<28} {:<12} {:>8} {:>7} {:>10} {:>12}",
            v.vpc,
            v.protocol,
            v.direction,
            endpoint(&v.vm, v.vm_port),
            v.public.as_deref().map_or("-".into(), |public| endpoint(public, v.public_port.unwrap_or(0))),
            endpoint(&v.remote, v.remote_port),
            v.state,
            v.age_s,
            v.idle_s,
            v.packets,
            v.bytes
        )
    };
    let head = || {
        let head = ["vpc", "proto", "dir", "vm", "public", "remote", "state", "age s", "idle s", "packets", "bytes"];
        let [a, b, c, d, e, f, g, h, i, j, k] = head;
        format!("{a:<12} {b:<6} {c:<3} {d:<28} {e:<24} {f:<28} {g:<12} {h:>8} {i:>7} {j:>10} {k:>12}")
    };
    let (mut count, mut chosen) = (0u64, Vec::new());
    let put = |text: &[u8]| -> anyhow::Result<()> {
        count += 1;
        if format.is_table() && count == 1 {
            writeln!(out, "{}", head())?;
        }
        match format {
            Format::Table | Format::Wide => writeln!(out, "{}", model::plain(&line(&serde_json::from_slice(text)?)))?,
            Format::Json => {
                out.write_all(if count == 1 { &b"["[..] } else { &b",\n"[..] })?;
                out.write_all(model::plain_json(&String::from_utf8_lossy(text)).as_bytes())?;
            }
            Format::Yaml => write!(out, "---\n{}", yaml(&serde_json::from_slice(text)?))?,
            Format::Name => anyhow::bail!("sessions have no names: -o name is for objects"),
            Format::Jsonpath(_) => chosen.push(serde_json::from_slice::<serde_json::Value>(text)?),
        }
        Ok(())
    };
    let end = client.post_lines("/v1/sessions", query, put)??;
    if let Format::Jsonpath(_) = format {
        crate::output::show(format, &chosen, |_| String::new())?;
    }
    if format.is_table() && count == 0 {
        writeln!(out, "nothing to show")?;
    }
    if format == Format::Json {
        out.write_all(if count == 0 { &b"[]\n"[..] } else { &b"]\n"[..] })?;
    }
    out.flush()?;
    Ok(if !end.rest.is_empty() { crate::listing::cut(count, &end.rest) } else { ExitCode::SUCCESS })
}

/// An elastic address, or a forward, as a row.
fn elastic(e: &ElasticView) -> Vec<String> {
    let range = |first: u16, last: u16| if first == last { first.to_string() } else { format!("{first}-{last}") };
    let (ports, protocol, own) = match &e.protocol {
        Some(name) => (range(e.first, e.last), name.clone(), range(e.vm_port, e.vm_port + (e.last - e.first))),
        None => ("all".into(), "all".into(), "the same".into()),
    };
    vec![e.public.clone(), ports, protocol, e.vpc.clone(), e.vm.clone(), own]
}

/// Shows pools, VPCs and who holds which ports.
pub fn ports(
    client: &Client,
    which: &Which,
    vpc: Option<String>,
    limit: u64,
    format: Format,
) -> anyhow::Result<ExitCode> {
    let ports: Ports = client.post("/v1/ports", which.query(vpc, limit)?)?;
    show(format, &ports, |p| {
        let number = |n: u64| n.to_string();
        let pools = p.pools.iter().map(|p| {
            let percent = format!("{:.2} %", p.percent);
            vec![p.pool.clone(), number(p.addresses), number(p.ports), number(p.held), percent, number(p.reused)]
        });
        let mut text = table(&["pool", "addresses", "ports", "held", "level", "reused"], pools);
        text.push('\n');
        let vpcs = p.vpcs.iter().map(|t| {
            let refused = t.refused.iter().filter(|(_, n)| **n > 0).map(|(why, n)| format!("{why} {n}"));
            let of = |n: u64, limit: u64| format!("{n} of {limit}");
            // Without a Snat it can have none.
            let ports = if t.ports_limit == 0 && t.ports == 0 { "-".into() } else { of(t.ports, t.ports_limit) };
            vec![
                t.vpc.clone(),
                ports,
                of(t.sessions, t.sessions_limit),
                number(t.sessions_fast),
                number(t.half_open),
                number(t.evicted),
                refused.collect::<Vec<_>>().join(" "),
            ]
        });
        text.push_str(&table(&["vpc", "ports", "sessions", "fast", "half-open", "evicted", "refused"], vpcs));
        text.push('\n');
        let holders = p.holders.iter().map(|h| {
            let range = format!("{}-{}", h.first, h.last);
            let used = [h.tcp, h.udp, h.icmp].map(|n| n.to_string());
            let [tcp, udp, icmp] = used;
            vec![h.public.clone(), range, h.vpc.clone(), h.vm.clone(), tcp, udp, icmp]
        });
        match p.holders.is_empty() {
            true => text.push_str("no VM holds ports of a pool that were asked for\n"),
            false => text.push_str(&table(&["public", "ports", "vpc", "vm", "tcp", "udp", "icmp"], holders)),
        }
        if !p.elastic.is_empty() {
            text.push('\n');
            text.push_str(&table(
                &["elastic", "ports", "protocol", "vpc", "vm", "its ports"],
                p.elastic.iter().map(elastic),
            ));
        }
        let (fast, all) = (p.packets.fast, p.packets.fast + p.packets.software);
        if all > 0 {
            let share = fast as f64 / all as f64 * 100.0;
            let _ = writeln!(text, "\n{all} packets to and from the Internet, {share:.3} % of them by the fast path");
        }
        text
    })?;
    Ok(if ports.more { crate::listing::cut(limit, "") } else { ExitCode::SUCCESS })
}
