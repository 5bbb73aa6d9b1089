// SPDX-License-Identifier: Apache-2.0
//! `tunny replay`: a capture through the software path.

use crate::output::{say, show, table, Patience};
use crate::sink::Sink;
use crate::Global;
use anyhow::Context;
use node::offline::{replay, Offline, Summary, AHEAD};
use node::pcap::{PcapWriter, Reader};
use node::NodeError;
use std::fs::File;
use std::io::{BufReader, BufWriter};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::ExitCode;

/// Send the packets of a capture through the gateway's software path, without privileges.
///
/// Reads pcap or pcapng, writes what leaves (forwarded, answered, ICMP errors, fragments) as pcap with the times of the packets
/// that caused it, and says what became of each packet. The underlay is made up: every NC is a direct neighbour.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Capture to read.
    input: PathBuf,
    /// Capture to write.
    output_file: PathBuf,
    /// Configuration file or folder. May be given several times.
    #[arg(long, value_name = "FILE", required = true)]
    config: Vec<PathBuf>,
    /// MTU of the underlay.
    #[arg(long, default_value_t = 9000)]
    mtu: u16,
}

/// Runs the command.
pub fn run(args: Args, global: &Global) -> anyhow::Result<ExitCode> {
    for (path, device) in
        [(&args.input, "/dev/stdin"), (&args.output_file, "/dev/stdout, to which the summary goes too")]
    {
        anyhow::ensure!(
            path.as_os_str() != "-",
            "`-` is no file here: name one, or {device}, or a file of that name as ./-"
        );
    }
    let waiting = crate::input::patience(&[&args.config[..], std::slice::from_ref(&args.input)].concat());
    let offline = Offline::new(&args.config, args.mtu)?;
    for warning in &offline.warnings {
        say(format_args!("warning: {warning}"));
    }
    let (from, to) = (args.input.display(), args.output_file.display());
    let source = File::open(&args.input).with_context(|| format!("cannot read {from}"))?;
    same_file(&source, &args)?;
    let mut reader = Reader::new(BufReader::with_capacity(1 << 20, source)).with_context(|| from.to_string())?;
    let sink = Sink::create(&args.output_file).with_context(|| format!("cannot write {to}"))?;
    let file = sink.file.try_clone().with_context(|| format!("cannot write {to}"))?;
    let mut writer = PcapWriter::new(BufWriter::with_capacity(1 << 20, file)).with_context(|| to.to_string())?;
    drop(waiting);
    let patience = Patience::new("replaying");
    let failed =
        |path: &dyn std::fmt::Display, error: &dyn std::fmt::Display| NodeError::Request(format!("{path}: {error}"));
    let summary = replay(
        &offline,
        AHEAD,
        || reader.next_packet().map_err(|e| failed(&from, &e)),
        |time, data| writer.write(time, data).map_err(|e| failed(&to, &e)),
        |packets| patience.say(format!("replaying: {packets} packets")),
    )?;
    writer.flush().with_context(|| to.to_string())?;
    sink.keep().with_context(|| format!("cannot write {to}"))?;
    drop(patience);
    show(global.output, &summary, text)?;
    Ok(if summary.balanced { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Refuses to write over the capture that is being read.
fn same_file(source: &File, args: &Args) -> anyhow::Result<()> {
    let (Ok(a), Ok(b)) = (source.metadata(), std::fs::metadata(&args.output_file)) else { return Ok(()) };
    let same = a.is_file() && (a.dev(), a.ino()) == (b.dev(), b.ino());
    anyhow::ensure!(!same, "{} is the capture that is read: name another file to write", args.output_file.display());
    Ok(())
}

fn text(s: &Summary) -> String {
    let outcomes = s.outcomes.iter().map(|(name, n)| vec![name.to_string(), String::new(), n.to_string()]);
    let drops = s.drops.iter().map(|(name, n)| vec!["dropped".to_string(), name.to_string(), n.to_string()]);
    let balanced = if s.balanced { "yes" } else { "NO: this is a bug, please report it" };
    format!(
        "{}\n{} packets read, {} written; balanced (in + generated = forwarded + answered + passed + dropped): {balanced}\n",
        table(&["outcome", "reason", "packets"], outcomes.chain(drops)),
        s.packets,
        s.written
    )
}
