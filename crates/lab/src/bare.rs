// SPDX-License-Identifier: Apache-2.0
//! The rows of the demonstration behind the filter node: a bare-metal server that is reached and refused, one that uses another
//! address, and one that floods while the other goes on.

use crate::demo::Row;
use crate::flood::{self, Flood};
use crate::internet::{curl_within, url, Place, Trial};
use crate::plan::{Segment, BARES, WEB4};
use crate::progress::Progress;
use crate::traffic;
use crate::{Lab, LabError};
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// What is asked for during the flood, at least.
const REQUESTS: u32 = 15;
/// Time from one request to the next at least: what bare-2 begins stays within its tenant's committed rate.
const PACE: Duration = Duration::from_millis(40);
/// What the flood sends: many times what the node's meters let through, for a few seconds.
const FLOOD: Flood = Flood { per_second: 20_000, length: Duration::from_secs(4) };

/// All rows behind the filter node.
pub(crate) fn run(lab: &Lab, seconds: u32, progress: &Progress) -> Result<Vec<Row>, LabError> {
    let at = Place { lab, nodes: std::slice::from_ref(lab.edge()?), seconds };
    let mut rows = Vec::new();
    for v6 in [false, true] {
        progress.step("traffic: a bare-metal server behind a filter node");
        rows.push(allowed(at, v6)?);
        rows.push(refused(at, v6)?);
    }
    progress.step("traffic: a bare-metal server with a stolen address");
    rows.push(spoofed(at)?);
    progress.step("traffic: a SYN flood by one tenant");
    rows.push(flooded(at)?);
    Ok(rows)
}

fn address(index: usize, v6: bool) -> IpAddr {
    match v6 {
        true => Segment::bare(index).node6().into(),
        false => Segment::bare(index).node4().into(),
    }
}

fn allowed(at: Place<'_>, v6: bool) -> Result<Row, LabError> {
    let to = address(0, v6).to_string();
    let path = format!("Internet → bare-1 ({to}) port 5201");
    let mut t = Trial::new(at, "bare metal, allowed", path, v6)?;
    let traffic = t.traffic("inet", &to, 5201)?;
    t.row(Some(traffic))
}

/// Nothing of it may arrive, and the reason must be counted.
fn refused(at: Place<'_>, v6: bool) -> Result<Row, LabError> {
    let to = address(0, v6);
    let path = format!("Internet → bare-1 ({to}) port 80");
    let mut t = Trial::new(at, "bare metal, refused", path, v6)?;
    let status = curl_within(&t.ns("inet"), &url(to, "/"), "2")?;
    t.expect(status == "000", || format!("curl: status {status}"));
    let drops = t.drops()?;
    t.expect(drops.get("filter_ingress").is_some_and(|n| *n > 0), || {
        format!("filter_ingress was not counted: {drops:?}")
    });
    t.row(None)
}

/// bare-1 takes an address that is not its own.
fn spoofed(at: Place<'_>) -> Result<Row, LabError> {
    let stolen = "172.31.48.77";
    let path = format!("bare-1 as {stolen} → {WEB4}");
    let mut t = Trial::new(at, "bare metal, stolen address", path, false)?;
    let ns = t.ns("bare-1");
    ns.run(&format!("ip addr add {stolen}/24 dev eth0"))?;
    let ping = traffic::ping(&ns, &WEB4.to_string(), 2, &["-I", stolen]);
    ns.run(&format!("ip addr del {stolen}/24 dev eth0"))?;
    let ping = ping?;
    t.expect(ping.received == 0, || format!("{} pings answered", ping.received));
    let drops = t.drops()?;
    t.expect(drops.get("filter_spoofed").is_some_and(|n| *n > 0), || {
        format!("filter_spoofed was not counted: {drops:?}")
    });
    t.row(None)
}

/// Packets of each VPC that the meters of the way to the software path dropped.
fn limited(lab: &Lab) -> Result<[u64; 2], LabError> {
    let counters = lab.edge()?.get("/v1/counters")?;
    let tenants = counters["tenants"].as_array().cloned().unwrap_or_default();
    let of = |vni: u32| {
        let tenant = tenants.iter().find(|t| t["vni"].as_u64() == Some(vni.into()));
        tenant.and_then(|t| t["drops"]["punt_limited"].as_u64()).unwrap_or(0)
    };
    Ok([of(BARES[0].vni), of(BARES[1].vni)])
}

/// bare-1 begins connections as fast as it can; each new connection of bare-2 must succeed all the same.
fn flooded(at: Place<'_>) -> Result<Row, LabError> {
    let path = format!("bare-2 → {WEB4}, bare-1 floods SYNs");
    let mut t = Trial::new(at, "SYN flood by another tenant", path, false)?;
    // The way is known before it counts.
    let (one, two) = (t.ns("bare-1"), t.ns("bare-2"));
    traffic::ping(&one, &WEB4.to_string(), 1, &[])?;
    let page = url(WEB4.into(), "/during-a-flood");
    t.expect(curl_within(&two, &page, "5")? == "200", || "there was no answer before the flood".into());
    let before = limited(at.lab)?;
    let flood = flood::start(&one, Segment::bare(0), FLOOD)?;
    let (mut requests, mut answered, mut worst) = (0, 0, Duration::ZERO);
    while requests < REQUESTS || !flood.is_finished() {
        let begun = Instant::now();
        requests += 1;
        answered += u32::from(curl_within(&two, &page, "5")? == "200");
        let took = begun.elapsed();
        worst = worst.max(took);
        std::thread::sleep(PACE.saturating_sub(took));
    }
    let sent = flood.join().map_err(|_| LabError::Node("the flood failed".into()))??;
    let after = limited(at.lab)?;
    let [flooder, other] = [after[0] - before[0], after[1] - before[1]];
    let worst = worst.as_secs_f64() * 1e3;
    t.note(&format!("\n{answered} of {requests} pages, the slowest {worst:.0} ms; {sent} SYNs, {flooder} limited"));
    t.expect(answered == requests, || format!("{answered} of {requests} connections during the flood"));
    t.expect(flooder > 0, || format!("of {sent} SYNs none was limited"));
    t.expect(other == 0, || format!("{other} packets of the other tenant were limited"));
    t.row(None)
}
