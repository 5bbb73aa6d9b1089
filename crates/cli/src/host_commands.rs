// SPDX-License-Identifier: Apache-2.0
//! `tunny host-commands`.

use crate::Global;
use anyhow::Context;
use config::{Kind, Model, Object};
use lab::host::{Port, Vtep};
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;

/// Print the commands that make a Linux host a VTEP for this gateway.
///
/// A shell script with comments: one VXLAN device and one bridge a VPC, and the ports of the VMs. It changes nothing by
/// itself. The lab sets its hosts up by the very same commands. What the host serves is taken from configuration files
/// (--config), or given by --local, --gateway and --vni.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Name of the host: of its Nc in the configuration, or any name with --local.
    nc: String,
    /// Configuration files that name the Gateway, the Nc and its VMs.
    #[arg(long, value_name = "FILE", required_unless_present = "local")]
    config: Vec<PathBuf>,
    /// The host's own tunnel address: `spec.address` of its Nc.
    #[arg(long, requires = "gateway", requires = "vni", conflicts_with = "config")]
    local: Option<IpAddr>,
    /// The gateway's tunnel address of the same family: `spec.vtep` of the Gateway.
    #[arg(long, requires = "local")]
    gateway: Option<IpAddr>,
    /// VNIs of the VPCs that the host serves.
    #[arg(long, requires = "local", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=0xff_ffff))]
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

/// What a host is to serve.
struct Host {
    local: IpAddr,
    gateway: IpAddr,
    vnis: BTreeSet<u32>,
    /// VMs with MAC address and VNI, for whose devices the operator must be asked.
    vms: Vec<(String, String, u32)>,
}

fn from_files(nc: &str, files: &[PathBuf]) -> anyhow::Result<Host> {
    let documents = config::parse_files(files);
    let (model, _) = documents.and_then(|d| Model::from_documents(&d)).map_err(|errors| {
        let lines: Vec<String> = errors.iter().map(|e| e.to_string()).collect();
        anyhow::anyhow!("the configuration is not valid:\n{}", lines.join("\n"))
    })?;
    let names = || -> Vec<String> { model.objects(Kind::Nc).map(|o| o.name().to_string()).collect() };
    let Some(Object::Nc(found)) = model.get(Kind::Nc, nc) else {
        anyhow::bail!("no Nc is called `{nc}`; there are: {}", names().join(", "));
    };
    let gateway = model.gateway().context("the configuration names no Gateway")?;
    let vtep = match found.address {
        IpAddr::V4(_) => gateway.vtep4.map(IpAddr::V4),
        IpAddr::V6(_) => gateway.vtep6.map(IpAddr::V6),
    };
    let gateway = vtep.with_context(|| format!("the Gateway has no tunnel address of the family of {}", found.address))?;
    let vni = |vpc: &str| match model.get(Kind::Vpc, vpc) {
        Some(Object::Vpc(vpc)) => Some(vpc.vni),
        _ => None,
    };
    let mut host = Host { local: found.address, gateway, vnis: BTreeSet::new(), vms: Vec::new() };
    host.vnis.extend(found.vpcs.iter().filter_map(|vpc| vni(vpc)));
    for object in model.objects(Kind::Vm) {
        let name = object.name();
        let Object::Vm(vm) = object else { continue };
        if let (true, Some(vni)) = (*vm.nc == *nc, vni(&vm.vpc)) {
            host.vnis.insert(vni);
            host.vms.push((name.to_string(), vm.mac.to_string(), vni));
        }
    }
    Ok(host)
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
    let host = match (args.local, args.gateway) {
        (Some(local), Some(gateway)) => Host { local, gateway, vnis: args.vni.iter().copied().collect(), vms: Vec::new() },
        _ => from_files(&args.nc, &args.config)?,
    };
    anyhow::ensure!(
        host.local.is_ipv4() == host.gateway.is_ipv4(),
        "--local {} and --gateway {} are of different families",
        host.local,
        host.gateway
    );
    for port in &args.port {
        anyhow::ensure!(host.vnis.contains(&port.vni), "--port {} names VNI {}, which the host does not serve", port.device, port.vni);
    }
    let vtep = |vni: &u32| Vtep {
        vni: *vni,
        local: host.local,
        gateway: host.gateway,
        underlay_mtu: args.mtu,
        zero_checksum: args.zero_checksum,
    };
    let vteps: Vec<Vtep> = host.vnis.iter().map(vtep).collect();
    let mut text = lab::host_commands(&args.nc, &vteps, &args.port);
    for (name, mac, vni) in host.vms.iter().filter(|(_, mac, _)| !args.port.iter().any(|p| p.mac.eq_ignore_ascii_case(mac))) {
        text += &format!("\n# VM {name}: run again with --port DEVICE,{mac},{vni} for the commands of its port.\n");
    }
    print!("{text}");
    Ok(ExitCode::SUCCESS)
}
