// SPDX-License-Identifier: Apache-2.0
//! The rows of the demonstration: real traffic over every route of the region, one table, an exit status that tells the truth.

use crate::node::Counters;
use crate::plan::{self, vm};
use crate::region::Shape;
use crate::traffic::{self, Ping, Tcp};
use crate::{interrupt, LabError};
use comfy_table::{presets::UTF8_FULL_CONDENSED, Attribute, Cell, CellAlignment, Color, Table};
use serde::Serialize;

/// Least share of packets on the fast path during a transfer.
pub const FAST_SHARE_MIN: f64 = 0.999;
/// The same of a connection that has a session: what comes until that stands is the software path's, on a busy machine some hundred packets of a
/// hundred thousand.
pub const FAST_SHARE_WITH_SESSION_MIN: f64 = 0.995;
/// Echo requests a row.
pub(crate) const PINGS: u32 = 5;
/// MTU of the underlay for the rows with jumbo frames.
pub(crate) const JUMBO: u32 = 9000;

/// Behind the name of a row for which the router used one node of each cluster.
pub(crate) const ALONE: &str = " (one node)";
/// What that means, below the table.
pub const ALONE_MEANS: &str =
    "one node: where answers may come to another node than what they answer, the router used one node of each cluster";

/// What is expected of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// Ping and TCP get through, on the fast path.
    Forwarded,
    /// Nothing gets through, and the gateway counts this reason.
    Refused(&'static str),
}

/// A route to try.
#[derive(Clone, Copy, Debug)]
pub struct Route {
    /// What it shows.
    pub what: &'static str,
    /// Sending VM.
    pub from: &'static str,
    /// Receiving VM.
    pub to: &'static str,
    /// Over IPv6 inside.
    pub v6: bool,
    /// Underlay of 9000 bytes.
    pub jumbo: bool,
    /// What is expected.
    pub expect: Expect,
}

const fn both(what: &'static str, from: &'static str, to: &'static str, jumbo: bool, expect: Expect) -> [Route; 2] {
    [Route { what, from, to, v6: false, jumbo, expect }, Route { what, from, to, v6: true, jumbo, expect }]
}

/// Every route of the demonstration, in order; those with jumbo frames last.
pub fn routes() -> Vec<Route> {
    [
        both("same VPC", "blue-1", "blue-2", false, Expect::Forwarded),
        both("peered VPCs", "blue-1", "red-1", false, Expect::Forwarded),
        both("VPCs not peered", "blue-1", "green-2", false, Expect::Refused("route_none")),
        both("same VPC, IPv6 underlay", "green-1", "green-2", false, Expect::Forwarded),
        both("same VPC, jumbo frames", "blue-1", "blue-2", true, Expect::Forwarded),
    ]
    .concat()
}

/// What a route did.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Row {
    /// What it shows.
    pub route: String,
    /// From and to, with addresses.
    pub path: String,
    /// 4 or 6: the inner family.
    pub family: u8,
    /// Bytes of the largest underlay packet.
    pub underlay_mtu: u32,
    /// Echo requests sent.
    pub pings: u32,
    /// Echo replies.
    pub replies: u32,
    /// Mean round trip, ms.
    pub rtt_ms: Option<f64>,
    /// TCP throughput, bits per second.
    pub tcp_bps: f64,
    /// TCP segments sent again.
    pub retransmits: u64,
    /// Share of the forwarded packets that took the fast path during the transfer.
    pub fast_share: Option<f64>,
    /// Packets forwarded during the transfer.
    pub packets: u64,
    /// Drops during the row, by reason.
    pub drops: std::collections::BTreeMap<String, u64>,
    /// Empty if everything is as expected.
    pub problems: Vec<String>,
}

/// Runs one route over the gateways that have these counters.
pub(crate) fn run_route(
    shape: &Shape,
    route: &Route,
    seconds: u32,
    counters: impl Fn() -> Result<Counters, LabError>,
) -> Result<Row, LabError> {
    let (from, to) = (vm(route.from).expect("in the plan"), vm(route.to).expect("in the plan"));
    let address = if route.v6 { to.v6.0 } else { to.v4.0 };
    let ns = shape.names.namespace(from.name);
    let before = counters()?;
    // With jumbo frames: as large as the VM's MTU allows, so that the whole path proves that it carries them.
    let size = (shape.mtu - plan::INNER_OVERHEAD - if route.v6 { 48 } else { 28 }).to_string();
    let more: &[&str] = if route.jumbo { &["-M", "do", "-s", &size] } else { &[] };
    let ping = traffic::ping(&ns, address, PINGS, more)?;
    interrupt::check()?;
    let middle = counters()?;
    let tcp = traffic::tcp(&ns, address, seconds)?;
    interrupt::check()?;
    let after = counters()?;
    let transfer = after.since(&middle);
    let all = after.since(&before);
    Ok(Row {
        route: route.what.to_string(),
        path: format!("{} → {} ({address})", route.from, route.to),
        family: if route.v6 { 6 } else { 4 },
        underlay_mtu: shape.mtu,
        pings: ping.sent,
        replies: ping.received,
        rtt_ms: ping.rtt_ms,
        tcp_bps: tcp.bps,
        retransmits: tcp.retransmits,
        fast_share: (route.expect == Expect::Forwarded).then(|| transfer.fast_share()),
        packets: transfer.forwarded,
        drops: all.drops.clone(),
        problems: judge(route, &ping, &tcp, &transfer, &all),
    })
}

fn judge(route: &Route, ping: &Ping, tcp: &Tcp, transfer: &Counters, all: &Counters) -> Vec<String> {
    let mut problems = Vec::new();
    let mut expect = |ok: bool, what: String| {
        if !ok {
            problems.push(what);
        }
    };
    match route.expect {
        Expect::Forwarded => {
            expect(
                ping.sent == PINGS && ping.received == PINGS,
                format!("{} of {} pings answered", ping.received, ping.sent),
            );
            expect(tcp.error.is_none(), format!("TCP: {}", tcp.error.as_deref().unwrap_or("")));
            expect(tcp.bytes > 0, "TCP moved no byte".into());
            let share = transfer.fast_share();
            expect(share >= FAST_SHARE_MIN, format!("only {:.3} % on the fast path", share * 100.0));
        }
        Expect::Refused(reason) => {
            expect(ping.received == 0, format!("{} pings answered", ping.received));
            expect(tcp.bytes == 0 && tcp.error.is_some(), "TCP got through".into());
            let counted = all.drops.get(reason).copied().unwrap_or(0);
            expect(counted >= PINGS as u64, format!("the gateway counted {reason} only {counted} times"));
        }
    }
    expect(all.balanced, "the gateway's counters do not balance".into());
    problems
}

/// The rows as one table.
pub fn table(rows: &[Row]) -> Table {
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED).set_header(vec![
        "route",
        "path",
        "IP",
        "MTU",
        "ping",
        "rtt",
        "TCP",
        "retr.",
        "fast path",
        "dropped",
        "as expected",
    ]);
    for row in rows {
        let right = |text: String| Cell::new(text).set_alignment(CellAlignment::Right);
        let verdict = if row.problems.is_empty() {
            Cell::new("yes").fg(Color::Green)
        } else {
            Cell::new(format!("NO: {}", row.problems.join("; "))).fg(Color::Red).add_attribute(Attribute::Bold)
        };
        let refused = row.fast_share.is_none() && row.pings > 0;
        table.add_row(vec![
            Cell::new(&row.route),
            Cell::new(&row.path),
            Cell::new(row.family),
            right(row.underlay_mtu.to_string()),
            right(if row.pings > 0 { format!("{}/{}", row.replies, row.pings) } else { "–".into() }),
            right(row.rtt_ms.map_or("–".into(), |r| format!("{r:.2} ms"))),
            right(if row.tcp_bps > 0.0 {
                rate(row.tcp_bps)
            } else if refused {
                "refused".into()
            } else {
                "–".into()
            }),
            right(if row.fast_share.is_none() { "–".into() } else { row.retransmits.to_string() }),
            right(row.fast_share.map_or("–".into(), percent)),
            Cell::new(row.drops.iter().map(|(k, v)| format!("{k} {v}")).collect::<Vec<_>>().join("\n")),
            verdict,
        ]);
    }
    table
}

fn rate(bps: f64) -> String {
    if bps >= 1e9 {
        format!("{:.2} Gbit/s", bps / 1e9)
    } else {
        format!("{:.0} Mbit/s", bps / 1e6)
    }
}

/// Never rounded up: 99.9996 % is not 100 %.
fn percent(share: f64) -> String {
    format!("{:.3} %", (share * 1e5).floor() / 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(expect: Expect) -> Route {
        Route { what: "x", from: "blue-1", to: "blue-2", v6: false, jumbo: false, expect }
    }
    fn good() -> (Ping, Tcp, Counters) {
        (
            Ping { sent: PINGS, received: PINGS, ..Ping::default() },
            Tcp { bytes: 1, bps: 1.0, ..Tcp::default() },
            Counters { forwarded: 1000, fast_forwarded: 999, balanced: true, ..Counters::default() },
        )
    }

    #[test]
    fn a_row_is_as_expected_only_if_all_of_it_is() {
        let (ping, tcp, counters) = good();
        let forwarded = route(Expect::Forwarded);
        assert!(judge(&forwarded, &ping, &tcp, &counters, &counters).is_empty());
        let slow = Counters { fast_forwarded: 998, ..counters.clone() };
        assert!(judge(&forwarded, &ping, &tcp, &slow, &slow)[0].contains("99.800 %"));
        let lost = Ping { received: PINGS - 1, ..ping.clone() };
        assert_eq!(judge(&forwarded, &lost, &tcp, &counters, &counters), ["4 of 5 pings answered"]);
        let unbalanced = Counters { balanced: false, ..counters.clone() };
        assert_eq!(judge(&forwarded, &ping, &tcp, &counters, &unbalanced).len(), 1);
    }

    #[test]
    fn a_refused_route_must_be_refused_for_the_right_reason() {
        let (ping, tcp, mut counters) = good();
        let refused = route(Expect::Refused("route_none"));
        assert_eq!(judge(&refused, &ping, &tcp, &counters, &counters).len(), 3);
        let (ping, tcp) = (Ping { received: 0, ..ping }, Tcp { error: Some("no".into()), ..Tcp::default() });
        assert_eq!(judge(&refused, &ping, &tcp, &counters, &counters).len(), 1);
        counters.drops.insert("route_none".into(), 6);
        assert!(judge(&refused, &ping, &tcp, &counters, &counters).is_empty());
    }

    #[test]
    fn shares_are_never_rounded_up() {
        assert_eq!(percent(0.999_999), "99.999 %");
        assert_eq!(percent(1.0), "100.000 %");
    }
}
