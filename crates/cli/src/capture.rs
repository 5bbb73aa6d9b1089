// SPDX-License-Identifier: Apache-2.0
//! `tunny capture`: punted and dropped packets with their reasons.

use crate::output::{note, print, say, Format};
use crate::Global;
use abi::IfIndex;
use anyhow::Context;
use node::events::{decode, reason_name, stage_name, EventFilter};
use node::live::Followed;
use node::pcap::PcapNgWriter;
use std::collections::HashMap;
use std::io::BufWriter;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime};

/// Write the packets that a node punts or drops, with their reasons, into a pcapng file.
///
/// Each packet carries its reason, stage and VNI as a packet comment (Wireshark: frame.comment). The first 256 bytes of each packet are kept.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Where to write; `-` writes to standard output, for `| wireshark -k -i -`. Without it the packets are listed.
    #[arg(short = 'w', long = "write", value_name = "FILE")]
    file: Option<PathBuf>,
    /// Dropped packets (the default is dropped and punted ones).
    #[arg(long)]
    drops: bool,
    /// Punted packets.
    #[arg(long)]
    punts: bool,
    /// Also one packet in 2^N of all.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=31))]
    sample: Option<u8>,
    /// Only this reason; may be given several times.
    #[arg(long = "reason", value_name = "NAME")]
    reasons: Vec<String>,
    /// Only this VNI.
    #[arg(long)]
    vni: Option<u32>,
    /// All that this VM sends and gets, whole, as it comes in, with what became of it: at most 200 packets a second, for at most 600 seconds. Meanwhile its
    /// VPC is served in software (`tunny trace --live`); a Mirror takes more, and longer.
    #[arg(long, value_name = "NAME", conflicts_with_all = ["drops", "punts", "sample", "reasons", "vni"])]
    vm: Option<String>,
    /// Stop after this many packets.
    #[arg(short = 'c', long, value_name = "N")]
    count: Option<u64>,
    /// Stop after this many seconds.
    #[arg(long, value_name = "S", value_parser = crate::input::seconds)]
    seconds: Option<f64>,
}

type File = PcapNgWriter<BufWriter<Box<dyn std::io::Write>>>;

/// Runs the command.
pub fn run(args: Args, global: &Global) -> anyhow::Result<ExitCode> {
    if let Some(vm) = &args.vm {
        return of_vm(vm, &args, global);
    }
    let both = !args.drops && !args.punts && args.sample.is_none();
    let filter = EventFilter {
        drops: args.drops || both,
        punts: args.punts || both,
        sample: args.sample,
        reasons: args.reasons.clone(),
        vni: args.vni,
    };
    filter.check().map_err(anyhow::Error::msg)?;
    let client = global.node_client()?;
    let mut file = open(&args)?;
    // Event times are CLOCK_MONOTONIC; a capture has the time of day.
    let epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_nanos() as u64;
    let offset = epoch.wrapping_sub(node::counters::monotonic_ns());
    let started = Instant::now();
    let (mut buffer, mut taken, mut failed) = (Vec::new(), 0u64, None);
    let mut reasons: HashMap<&'static str, u64> = HashMap::new();
    say("tunny: capturing; Ctrl-C stops");
    client.stream("/v1/capture", serde_json::to_vec(&filter)?, Duration::from_millis(200), |piece| {
        buffer.extend_from_slice(piece);
        let mut used = 0;
        while let Some((event, size)) = decode(&buffer[used..]) {
            used += size;
            if args.count.is_some_and(|c| taken >= c) {
                break;
            }
            taken += 1;
            *reasons.entry(reason_name(&event)).or_default() += 1;
            if let Err(e) = write(&mut file, &event, event.time.wrapping_add(offset), global.output) {
                failed = Some(e);
                return false;
            }
        }
        buffer.drain(..used);
        if let Some(Err(e)) = file.as_mut().map(|f| f.flush()) {
            failed = Some(e.into());
            return false;
        }
        args.count.is_none_or(|c| taken < c) && args.seconds.is_none_or(|s| started.elapsed().as_secs_f64() < s)
    })?;
    if let Some(error) = failed {
        return Err(error.context("the capture could not be written"));
    }
    let mut reasons: Vec<_> = reasons.into_iter().collect();
    reasons.sort_by_key(|(name, n)| (std::cmp::Reverse(*n), *name));
    let list: Vec<_> = reasons.iter().map(|(name, n)| format!("{name} {n}")).collect();
    note(format_args!("{taken} packets{}{}", if list.is_empty() { "" } else { ": " }, list.join(", ")));
    Ok(ExitCode::SUCCESS)
}

/// Packets and seconds of a VM, if nothing is said.
const OF_VM: (u64, f64) = (1_000, 60.0);

/// Captures what a VM sends and gets.
fn of_vm(vm: &str, args: &Args, global: &Global) -> anyhow::Result<ExitCode> {
    let (count, seconds) = (args.count.unwrap_or(OF_VM.0), args.seconds.unwrap_or(OF_VM.1).ceil());
    // What is more than a node gives it refuses.
    let (count, seconds) = (count.min(u32::MAX.into()) as u32, seconds as u32);
    let request = node::live::Request { flow: format!("vm={vm}"), count, seconds };
    let client = global.node_client()?;
    let (mut file, mut taken, mut left_out) = (open(args)?, 0u64, 0);
    say("tunny: capturing; Ctrl-C stops");
    crate::followed::each(&client, &request, |packet| {
        (taken, left_out) = (taken + 1, left_out + packet.left_out);
        write_followed(&mut file, packet, global.output)?;
        file.as_mut().map_or(Ok(()), |f| f.flush()).context("the capture could not be written")
    })?;
    let lost = if left_out > 0 { format!(", {left_out} left out") } else { String::new() };
    note(format_args!("{taken} packets{lost}"));
    Ok(ExitCode::SUCCESS)
}

fn write_followed(file: &mut Option<File>, packet: &Followed, format: Format) -> anyhow::Result<()> {
    let data = node::describe::from_hex(&packet.report.frame)?;
    let (r, ifindex, length) = (&packet.report, packet.ifindex, data.len());
    let reason = r.reason.as_deref().map_or(String::new(), |reason| format!(" reason={reason}"));
    if let Some(file) = file {
        let (time_ns, comment) = (packet.time_ms * 1_000_000, format!("{}{reason}", r.verdict));
        file.write(IfIndex(ifindex), &format!("if{ifindex}"), time_ns, length as u32, &data, &comment)?;
        return Ok(());
    }
    let flow = node::flows::key(&data).or_else(|| node::flows::plain_key(&data)).map_or(String::new(), |k| {
        format!("{} > {} {}", k.source, k.destination, node::flows::protocol_name(k.protocol))
    });
    let seconds = packet.time_ms as f64 / 1e3;
    if format.is_table() {
        return print(&format!("{seconds:.6} {}{reason} {length} bytes {flow}\n", r.verdict));
    }
    let object = serde_json::json!({
        "time": seconds, "kind": r.verdict, "reason": r.reason, "ifindex": ifindex, "length": length, "flow": flow,
        "data": r.frame,
    });
    print(&format!("{object}\n"))
}

fn open(args: &Args) -> anyhow::Result<Option<File>> {
    let Some(path) = &args.file else { return Ok(None) };
    let sink: Box<dyn std::io::Write> = if path.as_os_str() == "-" {
        Box::new(crate::output::Out)
    } else {
        Box::new(std::fs::File::create(path).with_context(|| format!("cannot create {}", path.display()))?)
    };
    let application = concat!("tunny capture ", env!("CARGO_PKG_VERSION"));
    Ok(Some(PcapNgWriter::new(BufWriter::new(sink), application)?))
}

fn kind_name(kind: u8) -> &'static str {
    match kind {
        abi::EVENT_DROP => "drop",
        abi::EVENT_PUNT => "punt",
        _ => "sample",
    }
}

fn write(file: &mut Option<File>, event: &abi::Event, time_ns: u64, format: Format) -> anyhow::Result<()> {
    let data = &event.data[..event.captured as usize];
    let (kind, reason, stage) = (kind_name(event.kind), reason_name(event), stage_name(event));
    if let Some(file) = file {
        let comment = format!("{kind} reason={reason} stage={stage} vni={}", event.vni);
        file.write(IfIndex(event.ifindex), &format!("if{}", event.ifindex), time_ns, event.length, data, &comment)?;
        return Ok(());
    }
    let flow = node::flows::key(data).map_or(String::new(), |k| {
        format!("{} > {} {}", k.source, k.destination, node::flows::protocol_name(k.protocol))
    });
    let seconds = time_ns as f64 / 1e9;
    if format.is_table() {
        return print(&format!(
            "{seconds:.6} {kind} {reason} ({stage}) vni {} {} bytes {flow}\n",
            event.vni, event.length
        ));
    }
    let object = serde_json::json!({
        "time": seconds, "kind": kind, "reason": reason, "stage": stage, "vni": event.vni, "ifindex": event.ifindex,
        "length": event.length, "flow": flow, "data": node::describe::to_hex(data),
    });
    print(&format!("{object}\n"))
}
