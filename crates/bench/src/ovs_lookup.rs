// SPDX-License-Identifier: Apache-2.0
//! Lookups in the cache beside megaflow lookups of Open vSwitch with DPDK: the same flows, the same packets, one core each.
//!
//! Two programs: the OVN logical switch model with as much traffic as fills the cache, and (where it is there) the dump of a real
//! OVN-Kubernetes node. Connection tracking would be the larger part of the dump's cost on both sides and is not what is measured:
//! `ct(table=N)` is a jump to table N in the text that both get, and every output goes to one port, which drops in its driver. All packets
//! are answered from the caches.
//!
//! Open vSwitch's exact-match cache is off; its packets are 32 a batch, as ours. Its signature cache (which remembers for a packet's hash the entry that answered,
//! and holds that against the packet) is off for the megaflow lookup. Ours remembers entries by header, too, so its lookup is measured without that as well, and whole
//! packets are held against theirs with or without the signature cache, as it is faster. A lookup there cannot be timed alone. So the same
//! packets with the same flows are forwarded twice: with its megaflows, where a lookup probes as many subtables as it says by itself
//! (`avg. subtable lookups per megaflow hit`), and with wildcards switched off (`upcall/disable-megaflows`), where every header has an entry of its own, all
//! under one mask, and a lookup is one probe. Reception, parsing, actions, transmission and the number of packets in memory are the same, so the
//! difference is what the further probes cost; divided by their number it is a probe, and as many probes as a lookup makes are the lookup.
//! The one probe without wildcards hashes a longer key, which makes the difference rather too small. Where the difference is within the spread of the
//! samples nothing is said about the lookup. With the signature cache packets of one entry also stand together in another way, so what it saves is not the lookup
//! alone, and no lookup is told. Ours is the lookup alone, as in `cache-lookup`: writing the key and doing what the entries say are in neither.
//!
//! Beside that, whole packet against whole packet: theirs as it is, with a driver that copies descriptors from memory and one that drops; ours is
//! parsing the frame, which lies in a buffer of 2 KiB as theirs do, the lookup and the actions. Ours has no driver.
use crate::lookups::{import, workload, Parts, Rig};
use crate::ovs::{Interval, Ovs, PMD_CPU, SINK};
use crate::ovs_trace::shared_dumps;
use crate::{cpu, report, stats, Context, Error, Goal, Report};
use cache::engine::Kind;
use cache::workload::{input, Parameters};
use pipeline::frame::{frame_of, key_of};
use pipeline::{CtCall, Field, Key, Sink, Target};
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

/// Their lookup ÷ ours that should be reached.
const GOAL: f64 = 2.0;
/// Distinct packets at most: as many as Open vSwitch's packet memory holds.
const PACKETS: usize = 40_000;

/// Flows with connection tracking taken out and all outputs to one port.
pub fn plain_flows(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for line in text.lines().filter(|l| !l.starts_with("group_id")) {
        let Some((head, actions)) = line.split_once("actions=") else { continue };
        let _ = writeln!(out, "{head}actions={}", plain_actions(actions.trim()));
    }
    out
}

fn plain_actions(actions: &str) -> String {
    let mut plain: Vec<String> = Vec::new();
    for action in split(actions) {
        if let Some(call) = action.strip_prefix("ct(") {
            let table = call.split([',', ')']).find_map(|a| a.trim().strip_prefix("table="));
            plain.extend(table.map(|t| format!("resubmit(,{t})")));
        } else if action.starts_with("output:") || action.starts_with("group:") || action.parse::<u16>().is_ok() {
            plain.push(format!("output:{SINK}"));
        } else if let Some(inner) = action.strip_prefix("clone(").and_then(|a| a.strip_suffix(')')) {
            plain.push(format!("clone({})", plain_actions(inner)));
        } else if !action.starts_with("controller") && action != "ct_clear" {
            plain.push(action.to_string());
        }
    }
    match plain.is_empty() {
        true => "drop".into(),
        false => plain.join(","),
    }
}

/// Actions at commas that are in no parentheses.
fn split(actions: &str) -> Vec<&str> {
    let (mut all, mut depth, mut from) = (Vec::new(), 0, 0);
    for (at, c) in actions.char_indices() {
        match c {
            '(' | '[' => depth += 1,
            ')' | ']' => depth -= 1,
            ',' if depth == 0 => {
                all.push(&actions[from..at]);
                from = at + 1;
            }
            _ => {}
        }
    }
    all.push(&actions[from..]);
    all
}

fn pcap(frames: &[Vec<u8>]) -> Vec<u8> {
    let mut out = Vec::new();
    for word in [0xA1B2_C3D4u32, 0x0004_0002, 0, 0, 65_535, 1] {
        out.extend_from_slice(&word.to_le_bytes());
    }
    for frame in frames {
        for word in [0, 0, frame.len() as u32, frame.len() as u32] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        out.extend_from_slice(frame);
    }
    out
}

/// Packets as frames by port, and as the keys that those frames are.
fn as_frames(headers: impl IntoIterator<Item = Key>) -> Result<(BTreeMap<u16, Vec<Vec<u8>>>, Vec<Key>), Error> {
    let (mut ports, mut keys): (BTreeMap<u16, Vec<Vec<u8>>>, Vec<Key>) = Default::default();
    for key in headers {
        let Some(frame) = frame_of(&key) else { continue };
        let port = key.get(Field::InPort) as u16;
        keys.push(key_of(&frame, port).map_err(|why| Error::Failed { what: "making a frame".into(), why })?);
        ports.entry(port).or_default().push(frame);
    }
    Ok((ports, keys))
}

/// Kinds of cache that are held beside Open vSwitch; the first is the default one.
const KINDS: [Kind; 3] = [Kind::Adaptive, Kind::Gigaflow, Kind::Megaflow];

/// One of our caches, ns a packet.
struct Ours {
    rig: Rig,
    lookup: Vec<f64>,
    /// Without remembering.
    walk: Vec<f64>,
    packet: Vec<f64>,
}

/// What was measured on one program, ns a packet.
struct Compared {
    ours: Vec<Ours>,
    /// With megaflows, and with an entry for each header.
    theirs: Vec<f64>,
    exact: Vec<f64>,
    /// With megaflows and the signature cache.
    signatures: Vec<f64>,
    /// Subtables that a lookup probed.
    probes: f64,
    exact_probes: f64,
    megaflows: usize,
    exact_entries: usize,
    packets: usize,
    settings: String,
}

impl Compared {
    /// What a probe costs Open vSwitch and a whole lookup, ns, and by how much samples vary that this comes from. None if that is more than the difference.
    fn lookup(&self) -> Option<(f64, f64)> {
        let further = self.probes - self.exact_probes;
        let difference = stats::median(&self.theirs) - stats::median(&self.exact);
        let noise = quartiles(&self.theirs) + quartiles(&self.exact);
        (further > 0.5 && difference > noise).then(|| (difference / further, difference / further * self.probes))
    }

    /// Their megaflow lookup ÷ ours in each sample of a kind of cache.
    fn ratios(&self, ours: &Ours) -> Vec<f64> {
        self.over(&ours.lookup)
    }

    /// The same with nothing remembered for a header.
    fn ratios_without_memory(&self, ours: &Ours) -> Vec<f64> {
        self.over(&ours.walk)
    }

    /// Their megaflow lookup ÷ these samples; nothing if theirs is within the spread.
    fn over(&self, samples: &[f64]) -> Vec<f64> {
        self.lookup().map_or(Vec::new(), |(_, lookup)| samples.iter().map(|o| lookup / o).collect())
    }
}

/// Half the distance of the quartiles.
fn quartiles(samples: &[f64]) -> f64 {
    (stats::quantile(samples, 0.75) - stats::quantile(samples, 0.25)) / 2.0
}

/// Packets that these flows send once, by a way of ordinary length.
fn sent_once(flows: &str, headers: Vec<Key>) -> Result<Vec<Key>, Error> {
    let (pipeline, (_, mut keys)) = (import(flows)?, as_frames(headers)?);
    // Ways that loop take long to find out, and many packets go the same way but for their source port.
    let mut known: HashMap<Key, bool> = HashMap::new();
    keys.retain(|key| {
        let mut kind = *key;
        kind.set(Field::TcpSrc, 0);
        *known.entry(kind).or_insert_with(|| {
            let traversal = pipeline.pass(&pipeline::Entry::table(0), key);
            let mut sent = Sent(0);
            traversal.run(key, &mut sent);
            sent.0 == 1 && traversal.uncacheable().is_none() && traversal.steps.len() < 200
        })
    });
    Ok(keys)
}

/// Counts what is sent.
struct Sent(usize);

impl Sink for Sent {
    fn output(&mut self, _: &Target, _: &Key) {
        self.0 += 1;
    }
    fn ct(&mut self, _: &Arc<CtCall>, _: &mut Key) {}
}

fn interval(ovs: &Ovs) -> Result<Interval, Error> {
    ovs.yield_cpu(false);
    std::thread::sleep(Duration::from_millis(200));
    let interval = ovs.measure(Duration::from_millis(700))?;
    ovs.yield_cpu(true);
    match interval.upcalls {
        0 => Ok(interval),
        n => Err(Error::Failed { what: "Open vSwitch".into(), why: format!("{n} upcalls while it was measured") }),
    }
}

fn compared(context: &Context, name: &str, flows: &str, headers: Vec<Key>) -> Result<Compared, Error> {
    context.say(&format!("{name}: filling the cache"));
    let keys = sent_once(flows, headers)?;
    let mut first = Rig::new(import(flows)?, &keys, Kind::Gigaflow, context.seed);
    let (ports, keys) = as_frames(first.answered(&keys).0.into_iter().take(PACKETS))?;
    let mut ours = Vec::new();
    for kind in KINDS {
        let mut rig = match kind {
            Kind::Gigaflow => std::mem::replace(&mut first, Rig::new(import("")?, &[], kind, 1)),
            _ => Rig::new(import(flows)?, &keys, kind, context.seed),
        };
        let (answered, _) = rig.answered(&keys);
        rig.take(&answered, context.seed)?;
        rig.take_frames(&answered, frame_of)?;
        ours.push(Ours { rig, lookup: vec![], walk: vec![], packet: vec![] });
    }
    let pcaps: Vec<(u16, Vec<u8>)> = ports.iter().map(|(port, frames)| (*port, pcap(frames))).collect();
    let ovs = Ovs::with_flows(flows, &pcaps, context)?;
    cpu::pin(0, PMD_CPU).map_err(Error::io("pinning the thread"))?;
    let (mut theirs, mut exact, mut signatures, mut megaflows, mut exact_entries) = (vec![], vec![], vec![], 0, 0);
    let (mut probes, mut exact_probes) = (0.0, 0.0);
    // Both ways twice, so that a drift is not taken for a difference.
    for round in 0..2 {
        for n in 0..context.samples.div_ceil(2) {
            context.say(&format!("{name}: sample {} of round {}", n + 1, round + 1));
            let full = interval(&ovs)?;
            probes = full.masks;
            theirs.push(full.ns());
            for side in &mut ours {
                let parts = side.rig.parts(1)?;
                side.lookup.extend(parts.lookup);
                side.walk.extend(parts.walk);
                side.packet.push(side.rig.framed()?);
            }
        }
        megaflows = ovs.megaflows()?;
        ovs.signature_cache(true)?;
        for _ in 0..context.samples.div_ceil(2) {
            signatures.push(interval(&ovs)?.ns());
        }
        ovs.signature_cache(false)?;
        ovs.wildcards(false)?;
        for _ in 0..context.samples.div_ceil(2) {
            let one = interval(&ovs)?;
            exact_probes = one.masks;
            exact.push(one.ns());
        }
        exact_entries = ovs.megaflows()?;
        if round == 0 {
            ovs.wildcards(true)?;
        }
    }
    let (packets, settings) = (keys.len(), ovs.settings());
    Ok(Compared { ours, theirs, exact, signatures, probes, exact_probes, megaflows, exact_entries, packets, settings })
}

/// The real OVN-Kubernetes dump, if it is there: its name, its flows as both sides get them, and headers made to explore it.
fn dump(seed: u64) -> Result<Option<(String, String, Vec<Key>)>, Error> {
    let Some((name, text)) = shared_dumps().into_iter().find(|(name, _)| name.starts_with("ovn")) else {
        return Ok(None);
    };
    let trace = input::explore(&import(&text)?, 10_000, &Parameters::with_flows(20_000), seed);
    Ok(Some((name, plain_flows(&text), trace.headers)))
}

/// The parts of a lookup of a kind of cache in front of that dump, without Open vSwitch.
pub fn dump_parts(kind: Kind, seed: u64, samples: usize) -> Result<Parts, Error> {
    let missing = || Error::Failed { what: "the dump".into(), why: "the folder with dumps is not there".into() };
    let (_, flows, headers) = dump(seed)?.ok_or_else(missing)?;
    let (_, keys) = as_frames(sent_once(&flows, headers)?)?;
    let mut rig = Rig::new(import(&flows)?, &keys, kind, seed);
    let (answered, _) = rig.answered(&keys);
    rig.take(&answered, seed)?;
    rig.parts(samples)
}

fn details(report: &mut Report, name: &'static str, side: &Compared) {
    let mut figures: BTreeMap<String, f64> = BTreeMap::new();
    let mut put = |name: &str, value: f64| figures.insert(name.into(), report::round(value));
    put("ovs_packet_ns", stats::median(&side.theirs));
    put("ovs_packet_ns_spread", stats::spread(&side.theirs));
    put("ovs_one_mask_packet_ns", stats::median(&side.exact));
    put("ovs_one_mask_packet_ns_spread", stats::spread(&side.exact));
    put("ovs_signature_cache_packet_ns", stats::median(&side.signatures));
    put("ovs_probes", side.probes);
    put("ovs_one_mask_probes", side.exact_probes);
    put("ovs_megaflows", side.megaflows as f64);
    put("ovs_one_mask_entries", side.exact_entries as f64);
    put("packets", side.packets as f64);
    if let Some((probe, lookup)) = side.lookup() {
        put("ovs_probe_ns", probe);
        put("ovs_lookup_ns", lookup);
    }
    for (kind, ours) in KINDS.iter().zip(&side.ours) {
        let kind = kind.name();
        put(&format!("{kind}_lookup_ns"), stats::median(&ours.lookup));
        put(&format!("{kind}_without_memory_ns"), stats::median(&ours.walk));
        put(&format!("{kind}_packet_ns"), stats::median(&ours.packet));
        put(&format!("{kind}_entries"), ours.rig.entries().iter().sum::<usize>() as f64);
        put(&format!("{kind}_masks"), ours.rig.masks() as f64);
        let fastest = stats::median(&side.theirs).min(stats::median(&side.signatures));
        put(&format!("{kind}_packet_ratio"), fastest / stats::median(&ours.packet));
        let ratios = side.ratios(ours);
        if !ratios.is_empty() {
            put(&format!("{kind}_lookup_ratio"), stats::median(&ratios));
            put(&format!("{kind}_without_memory_lookup_ratio"), stats::median(&side.ratios_without_memory(ours)));
        }
    }
    let mut all = serde_json::json!(figures);
    if side.lookup().is_none() {
        all["ovs_lookup"] = "the difference between many masks and one is within the spread of the samples".into();
    }
    report.detail(name, all);
}

/// The goal is one of lookups on a real dump: the value is of a model, and with the memory of headers in front.
fn judge(report: &mut Report, dump: Option<Vec<f64>>) {
    let what = "The value is of the OVN model, with our memory of what answered each header in front of the lookup and their exact-match and \
                signature caches off";
    let (holds, found) = match dump {
        None => (false, "the dump is not there (../shared), so the goal is not met".into()),
        Some(ratios) if ratios.is_empty() => {
            (false, "on the dump their lookup is within the spread, so the goal is not met".into())
        }
        Some(ratios) => {
            let ratio = stats::median(&ratios);
            report.detail("dump_without_memory_lookup_ratio", report::round(ratio));
            (ratio >= GOAL, format!("on the dump without that memory it is {}, which decides", report::round(ratio)))
        }
    };
    report.only_if(holds, format!("{what}; {found}."));
}

/// `peer-ovs-lookup`.
pub fn peer(context: &Context) -> Result<Report, Error> {
    let work = workload("ols", 60_000, 1, context.seed)?;
    let model = compared(context, "peer-ovs-lookup, OVN model", &plain_flows(&work.flows), work.headers)?;
    let dump = match dump(context.seed)? {
        Some((name, flows, headers)) => Some(compared(context, &format!("peer-ovs-lookup, {name}"), &flows, headers)?),
        None => None,
    };
    let against = "Open vSwitch-DPDK of Debian, megaflow lookup on the same flows and packets, CPU time; ours: the adaptive cache";
    let mut ratios = model.ratios(&model.ours[0]);
    if ratios.is_empty() {
        // Nothing is known of its lookup: no ratio is shown, and the goal is not met.
        ratios = vec![0.0];
    }
    let mut report = Report::new("peer-ovs-lookup", "ratio", ratios, Some(Goal::AtLeast(GOAL)), against);
    judge(&mut report, dump.as_ref().map(|d| d.ratios_without_memory(&d.ours[0])));
    details(&mut report, "ovn_model", &model);
    match &dump {
        Some(dump) => details(&mut report, "ovn_kubernetes_dump", dump),
        None => {
            report.detail("ovn_kubernetes_dump", "the folder with dumps is not there");
        }
    }
    report.detail("ovs_settings", model.settings.clone());
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_dump_without_memory_decides() {
        let report = |dump| {
            let mut r = Report::new("peer-ovs-lookup", "ratio", vec![4.0], Some(Goal::AtLeast(GOAL)), "x");
            judge(&mut r, dump);
            (r.met, r.caveats.concat())
        };
        assert_eq!(report(Some(vec![2.1, 2.2, 2.3])).0, Some(true));
        let (met, said) = report(Some(vec![0.4, 0.5, 0.6]));
        assert!(met == Some(false) && said.contains("it is 0.5, which decides"), "{said}");
        assert_eq!(report(Some(vec![])).0, Some(false));
        assert_eq!(report(None).0, Some(false));
    }

    #[test]
    fn tracking_becomes_a_jump_and_outputs_one_port() {
        let text = "table=1,ip actions=load:0x1->NXM_NX_REG10[0],ct(table=13,zone=NXM_NX_REG11[0..15],nat)\n\
                    table=2 actions=ct(commit,zone=NXM_NX_REG13[0..15],exec(load:0->NXM_NX_CT_LABEL[0])),resubmit(,48)\n\
                    table=3 actions=clone(ct_clear,resubmit(,4),output:7),3\ntable=4 actions=controller(userdata=00.01)\ngroup_id=1,type=all\n";
        let plain = plain_flows(text);
        let lines: Vec<&str> = plain.lines().collect();
        assert_eq!(lines[0], "table=1,ip actions=load:0x1->NXM_NX_REG10[0],resubmit(,13)");
        assert_eq!(lines[1], "table=2 actions=resubmit(,48)");
        assert_eq!(lines[2], "table=3 actions=clone(resubmit(,4),output:200),output:200");
        assert_eq!(lines[3..], ["table=4 actions=drop"]);
    }
}
