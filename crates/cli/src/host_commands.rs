// SPDX-License-Identifier: Apache-2.0
//! `tunny host-commands`.

use crate::Global;
use lab::host::{Port, Vtep};
use std::net::IpAddr;
use std::process::ExitCode;

/// Print the commands that make a Linux host a VTEP for this gateway.
///
/// A shell script with comments: one VXLAN device and one bridge a VPC, and the ports of the VMs. It changes nothing by
/// itself. The lab sets its hosts up by the very same commands.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Name of the host, for the script's title.
    nc: String,
    /// The host's own tunnel address: `spec.address` of its Nc.
    #[arg(long)]
    local: IpAddr,
    /// The gateway's tunnel address of the same family: `spec.vtep` of the Gateway.
    #[arg(long)]
    gateway: IpAddr,
    /// VNIs of the VPCs that the host serves.
    #[arg(long, required = true, value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=0xff_ffff))]
    vni: Vec<u32>,
    /// A VM: its tap or veth device, its MAC address and its VNI, as `tap0,02:00:00:00:00:01,100`.
    #[arg(long, value_parser = port)]
    port: Vec<Port>,
    /// MTU of the host's underlay interface.
    #[arg(long, default_value_t = 1500, value_parser = clap::value_parser!(u32).range(1350..=65535))]
    mtu: u32,
    /// IPv6: send no outer UDP checksum; the gateway must accept that (`spec.udpChecksum.zeroOverIpv6`).
    #[arg(long)]
    zero_checksum: bool,
}

fn port(text: &str) -> Result<Port, String> {
    let parts: Vec<&str> = text.split(',').collect();
    let [device, mac, vni] = parts[..] else {
        return Err("three parts are needed: DEVICE,MAC,VNI".into());
    };
    let octets: Vec<&str> = mac.split(':').collect();
    if octets.len() != 6 || !octets.iter().all(|o| o.len() == 2 && u8::from_str_radix(o, 16).is_ok()) {
        return Err(format!("`{mac}` is no MAC address"));
    }
    let named = (1..=15).contains(&device.len()) && !device.contains(|c: char| c.is_whitespace() || c == '/');
    if !named {
        return Err(format!("`{device}` is no interface name"));
    }
    let vni = vni.parse().map_err(|_| format!("`{vni}` is no VNI"))?;
    Ok(Port { device: device.into(), vni, mac: mac.into() })
}

/// Runs the command.
pub fn run(args: Args, _global: &Global) -> anyhow::Result<ExitCode> {
    anyhow::ensure!(
        args.local.is_ipv4() == args.gateway.is_ipv4(),
        "--local {} and --gateway {} are of different families",
        args.local,
        args.gateway
    );
    for port in &args.port {
        anyhow::ensure!(args.vni.contains(&port.vni), "--port {} names VNI {}, which is not in --vni", port.device, port.vni);
    }
    let vteps: Vec<Vtep> = args
        .vni
        .iter()
        .map(|vni| Vtep {
            vni: *vni,
            local: args.local,
            gateway: args.gateway,
            underlay_mtu: args.mtu,
            zero_checksum: args.zero_checksum,
        })
        .collect();
    print!("{}", lab::host_commands(&args.nc, &vteps, &args.port));
    Ok(ExitCode::SUCCESS)
}
