// SPDX-License-Identifier: Apache-2.0
//! `tunny host-agent`: keeps a host's VXLAN devices pointed at the clusters that serve their VNIs.

use crate::output::note;
use crate::Global;
use node::distribution::{Switched, Upstream, ALIVE_S};
use std::collections::BTreeSet;
use std::process::ExitCode;
use std::sync::mpsc;
use std::time::{Duration, Instant};
use vtep::devices::{Device, Kernel};

/// Keep a host's VXLAN devices pointed at the clusters that serve their VNIs, as the controller says, while tenants move.
///
/// Of every VXLAN device with a VNI (`tunny host-commands` makes them) the default entry is set to an address of the cluster, first the new one and then without
/// the old one. The credential is for a Role with access host. Without a controller everything stays as it is.
#[derive(Debug, clap::Args)]
pub struct Args {}

/// Between two looks at the devices, and between two attempts.
const PAUSE: Duration = Duration::from_secs(1);

/// Runs the command.
pub fn run(_: Args, global: &Global) -> anyhow::Result<ExitCode> {
    let client = global.region_client()?;
    let (said, to_say) = mpsc::channel::<u64>();
    let teller = global.region_client()?;
    std::thread::spawn(move || {
        for revision in to_say {
            let body = serde_json::to_vec(&Switched { revision }).unwrap_or_default();
            // The controller asks again with its next line.
            if let Err(e) = teller.post::<Switched>("/v1/upstream", body) {
                note(format_args!("the controller does not hear that revision {revision} is in force: {e}"));
            }
        }
    });
    let mut kernel = Kernel::open()?;
    let mut trouble = String::new();
    loop {
        let vnis: BTreeSet<u32> = kernel.devices()?.iter().map(|d| d.vni).collect();
        let list = vnis.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
        let mut heard = Instant::now();
        let mut failed = None;
        let ended = client.follow(&format!("/v1/upstream?vnis={list}"), PAUSE, |line| {
            if line.is_empty() {
                let same = kernel.devices().is_ok_and(|d| d.iter().all(|d| vnis.contains(&d.vni)));
                return same && heard.elapsed() < Duration::from_secs(3 * ALIVE_S);
            }
            heard = Instant::now();
            match follow(&mut kernel, line) {
                Ok(revision) => said.send(revision).is_ok(),
                Err(why) => {
                    failed = Some(why);
                    false
                }
            }
        });
        let why = match (failed, ended) {
            (Some(why), _) => why.to_string(),
            (None, Err(e)) => format!("the controller is not there, devices stay as they are: {e}"),
            (None, Ok(())) => String::new(),
        };
        if why != trouble && !why.is_empty() {
            note(format_args!("{why}"));
        }
        trouble = why;
        std::thread::sleep(PAUSE);
    }
}

/// Makes the devices as a line says, and returns its revision.
fn follow(kernel: &mut Kernel, line: &[u8]) -> anyhow::Result<u64> {
    let upstream: Upstream = serde_json::from_slice(line)?;
    for Device { index, vni, is_v4 } in kernel.devices()? {
        // A VNI that nobody serves keeps what it has.
        let Some(addresses) = upstream.vnis.get(&vni) else { continue };
        let fit: Vec<_> = addresses.iter().filter(|a| a.is_ipv4() == is_v4).collect();
        anyhow::ensure!(
            !fit.is_empty(),
            "VNI {vni} goes over IPv{}, and its cluster has no such address: give the Cluster one",
            if is_v4 { 4 } else { 6 }
        );
        let to = *fit[vni as usize % fit.len()];
        if kernel.point(index, to)? {
            note(format_args!("VNI {vni} goes to {to} (revision {})", upstream.revision));
        }
    }
    Ok(upstream.revision)
}
