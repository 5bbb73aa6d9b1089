// SPDX-License-Identifier: Apache-2.0
//! Lookups in the cache beside megaflow lookups of Open vSwitch with DPDK: the same flows, the same packets, one core each.
//!
//! Two programs: the OVN logical switch model with as much traffic as fills the cache, and (where it is there) the dump of a real
//! OVN-Kubernetes node. Connection tracking would be the larger part of the dump's cost on both sides and is not what is measured:
//! `ct(table=N)` is a jump to table N in the text that both get, and every output goes to one port, which drops in its driver. All packets
//! are answered from the caches.
//!
//! Open vSwitch's exact-match cache and signature cache are off; its packets are 32 a batch, as ours. A lookup there cannot be timed alone, so
//! the same packets are forwarded a second time by one flow that sends everything to the same port: reception, parsing, *one* subtable
//! probe and transmission. What the real flows cost above that is taken for its lookup; it is less than the lookup is. Ours is
//! writing the header into the key, the lookup, and doing what the entries say.
use crate::lookups::{import, workload, Rig};
use crate::ovs::{Interval, Ovs, PMD_CPU, SINK};
use crate::ovs_trace::shared_dumps;
use crate::{cpu, report, stats, Context, Error, Goal, Report};
use cache::engine::Kind;
use cache::workload::{input, Parameters};
use pipeline::{CtCall, Field, Key, Sink, Target};
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

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

/// An IPv4 frame with these fields; none for other packets.
pub fn frame_of(key: &Key) -> Option<Vec<u8>> {
    if key.get(Field::EthType) != 0x0800 || key.get(Field::NwFrag) != 0 {
        return None;
    }
    let mut out = Vec::with_capacity(64);
    let mut put = |value: u128, bytes: usize| out.extend_from_slice(&value.to_be_bytes()[16 - bytes..]);
    put(key.get(Field::EthDst), 6);
    put(key.get(Field::EthSrc), 6);
    if key.get(Field::VlanTci) & 0x1000 != 0 {
        put(0x8100, 2);
        put(key.get(Field::VlanTci) & 0xefff, 2);
    }
    put(0x0800, 2);
    let protocol = key.get(Field::NwProto);
    let body = match protocol {
        6 => 20,
        _ => 8,
    };
    let mut header = [0u8; 20];
    header[..4].copy_from_slice(&[0x45, key.get(Field::NwTos) as u8, 0, 20 + body]);
    header[8..10].copy_from_slice(&[key.get(Field::NwTtl).max(2) as u8, protocol as u8]);
    header[12..16].copy_from_slice(&(key.get(Field::NwSrc) as u32).to_be_bytes());
    header[16..].copy_from_slice(&(key.get(Field::NwDst) as u32).to_be_bytes());
    let sum: u32 = header.chunks_exact(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]]))).sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    let checksum = !((sum & 0xffff) + (sum >> 16)) as u16;
    header[10..12].copy_from_slice(&checksum.to_be_bytes());
    out.extend_from_slice(&header);
    let mut put = |value: u128, bytes: usize| out.extend_from_slice(&value.to_be_bytes()[16 - bytes..]);
    match protocol {
        1 => put(key.get(Field::TcpSrc) << 8 | key.get(Field::TcpDst), 2),
        _ => put(key.get(Field::TcpSrc) << 16 | key.get(Field::TcpDst), 4),
    }
    match protocol {
        6 => [(0, 8), (0x5010, 2), (0xffff, 2), (0, 4)].into_iter().for_each(|(v, n)| put(v, n)),
        17 => put(8 << 16, 4),
        _ => put(0, 6),
    }
    out.resize(out.len().max(60), 0);
    Some(out)
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
        keys.push(input::frame(&frame, port).map_err(|why| Error::Failed { what: "making a frame".into(), why })?);
        ports.entry(port).or_default().push(frame);
    }
    Ok((ports, keys))
}

/// What was measured on one program, ns a packet.
struct Beside {
    ratios: Vec<f64>,
    ours: Vec<f64>,
    megaflow: Vec<f64>,
    theirs: Vec<f64>,
    base: Vec<f64>,
    masks: f64,
    megaflows: usize,
    packets: usize,
    entries: usize,
    our_masks: usize,
    settings: String,
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

fn beside(context: &Context, name: &str, flows: &str, headers: Vec<Key>) -> Result<Beside, Error> {
    context.say(&format!("{name}: filling the cache"));
    let keys = sent_once(flows, headers)?;
    let mut rig = Rig::new(import(flows)?, &keys, Kind::Gigaflow, context.seed);
    let (ports, keys) = as_frames(rig.answered(&keys).into_iter().take(PACKETS))?;
    rig.take(&keys, context.seed)?;
    let mut whole = Rig::new(import(flows)?, &keys, Kind::Megaflow, context.seed);
    let whole_keys = whole.answered(&keys);
    whole.take(&whole_keys, context.seed)?;
    let pcaps: Vec<(u16, Vec<u8>)> = ports.iter().map(|(port, frames)| (*port, pcap(frames))).collect();
    let ovs = Ovs::with_flows(flows, &pcaps, context)?;
    cpu::pin(0, PMD_CPU).map_err(Error::io("pinning the thread"))?;
    let (mut ours, mut megaflow, mut theirs, mut base) = (vec![], vec![], vec![], vec![]);
    let interval = |ovs: &Ovs| -> Result<Interval, Error> {
        ovs.yield_cpu(false);
        std::thread::sleep(Duration::from_millis(200));
        let interval = ovs.measure(Duration::from_millis(700))?;
        ovs.yield_cpu(true);
        match interval.upcalls {
            0 => Ok(interval),
            n => Err(Error::Failed { what: "Open vSwitch".into(), why: format!("{n} upcalls while it was measured") }),
        }
    };
    let mut masks = 0.0;
    for n in 0..context.samples {
        context.say(&format!("{name}: sample {} of {}", n + 1, context.samples));
        let full = interval(&ovs)?;
        masks = full.masks;
        theirs.push(full.ns());
        ours.push(rig.batched()?);
        megaflow.push(whole.batched()?);
    }
    let megaflows = ovs.megaflows()?;
    ovs.yield_cpu(false);
    ovs.replace_flows(&format!("priority=1,actions=output:{SINK}\n"))?;
    ovs.warm_up(0.99)?;
    for _ in 0..context.samples {
        base.push(interval(&ovs)?.ns());
    }
    let forwarded = stats::median(&base);
    let ratios = theirs.iter().zip(&ours).map(|(t, o)| (t - forwarded) / o).collect();
    Ok(Beside {
        ratios,
        ours,
        megaflow,
        theirs,
        base,
        masks,
        megaflows,
        packets: keys.len(),
        entries: rig.entries().iter().sum(),
        our_masks: rig.masks(),
        settings: ovs.settings(),
    })
}

fn details(report: &mut Report, name: &'static str, side: &Beside) {
    let lookup = stats::median(&side.theirs) - stats::median(&side.base);
    let figures = [
        ("ratio", stats::median(&side.ratios)),
        ("tunny_ns", stats::median(&side.ours)),
        ("tunny_megaflow_ns", stats::median(&side.megaflow)),
        ("ovs_lookup_ns", lookup),
        ("ovs_packet_ns", stats::median(&side.theirs)),
        ("ovs_one_flow_packet_ns", stats::median(&side.base)),
        ("ovs_masks_tried", side.masks),
        ("ovs_megaflows", side.megaflows as f64),
        ("tunny_entries", side.entries as f64),
        ("tunny_masks", side.our_masks as f64),
        ("packets", side.packets as f64),
    ];
    let figures: BTreeMap<&str, f64> = figures.into_iter().map(|(n, v)| (n, report::round(v))).collect();
    report.detail(name, serde_json::json!(figures));
}

/// `peer-ovs-lookup`.
pub fn peer(context: &Context) -> Result<Report, Error> {
    let work = workload("ols", 60_000, 1, context.seed)?;
    let model = beside(context, "peer-ovs-lookup, OVN model", &plain_flows(&work.flows), work.headers)?;
    let mut dump = None;
    for (name, text) in shared_dumps().into_iter().filter(|(name, _)| name.starts_with("ovn")) {
        let flows = plain_flows(&text);
        let trace = input::explore(&import(&text)?, 10_000, &Parameters::with_flows(20_000), context.seed);
        dump = Some(beside(context, &format!("peer-ovs-lookup, {name}"), &flows, trace.headers)?);
    }
    let against = "Open vSwitch-DPDK of Debian, megaflow lookup on the same flows and packets, CPU time a packet";
    let mut report = Report::new("peer-ovs-lookup", "ratio", model.ratios.clone(), Some(Goal::AtLeast(2.0)), against);
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

    #[test]
    fn a_frame_is_read_back_as_the_key_that_it_was_made_of() {
        for protocol in [1u128, 6, 17, 47] {
            let mut key = Key::default();
            let fields = [
                (Field::InPort, 3),
                (Field::EthDst, 0x02_0000_0000_01),
                (Field::EthSrc, 0x02_0000_0000_02),
                (Field::EthType, 0x0800),
                (Field::VlanTpid, 0x8100),
                (Field::VlanTci, 0x3005),
                (Field::NwTtl, 64),
                (Field::NwSrc, 0x0a00_0001),
                (Field::NwDst, 0x0a00_0002),
                (Field::NwProto, protocol),
            ];
            fields.into_iter().for_each(|(field, value)| key.set(field, value));
            if protocol != 47 {
                key.set(Field::TcpSrc, 8);
                key.set(Field::TcpDst, 0);
            }
            if protocol == 6 {
                key.set(Field::TcpFlags, 0x10);
            }
            let frame = frame_of(&key).unwrap();
            assert_eq!(input::frame(&frame, 3).unwrap(), key, "protocol {protocol}");
        }
    }
}
