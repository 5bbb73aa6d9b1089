// SPDX-License-Identifier: Apache-2.0
//! `tunny host-commands`.

use crate::Global;
use anyhow::Context;
use model::{parse_mac, Kind, Model, Object};
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::process::ExitCode;
use vtep::{Port, Vtep};

/// Print the commands that make a Linux host a VTEP for this gateway.
///
/// A shell script with comments: one VXLAN device and one bridge a VPC, and the ports of the VMs. It changes nothing by
/// itself. The lab sets its hosts up by the very same commands. What the host serves is taken from configuration files
/// (--config), or given by --local, --gateway and --vni.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Name of the host: of its Nc in the configuration, or any name with --local.
    #[arg(value_parser = name)]
    nc: String,
    /// Configuration files that name the Gateway, the Nc and its VMs.
    #[arg(long, value_name = "FILE", required_unless_present = "local")]
    config: Vec<PathBuf>,
    /// The host's own tunnel address: `spec.address` of its Nc.
    #[arg(long, requires = "gateway", requires = "vni", conflicts_with = "config", value_parser = endpoint)]
    local: Option<IpAddr>,
    /// The gateway's tunnel address of the same family: `spec.vtep` of the Gateway.
    #[arg(long, requires = "local", value_parser = endpoint)]
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
    let files = crate::input::files(files)?;
    let _patience = crate::input::patience(&files);
    let mut model = Model::new();
    let tried = model::validate_files(&files, &mut model).and_then(|(docs, _)| model.apply(&docs));
    tried.map_err(|errors| {
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
    let gateway =
        vtep.with_context(|| format!("the Gateway has no tunnel address of the family of {}", found.address))?;
    let vni = |vpc: &str| match model.get(Kind::Vpc, vpc) {
        Some(Object::Vpc(vpc)) => Some(vpc.vni.0),
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

fn name(text: &str) -> Result<String, String> {
    model::check_name(text).map(|()| text.to_string())
}

/// An address that a tunnel can end at.
fn endpoint(text: &str) -> Result<IpAddr, String> {
    let address: IpAddr = text.parse().map_err(|_| format!("`{text}` is no IP address"))?;
    let broadcast = address == IpAddr::V4(Ipv4Addr::BROADCAST);
    if address.is_unspecified() || address.is_loopback() || address.is_multicast() || broadcast {
        return Err(format!("`{text}` is no unicast address of a host"));
    }
    Ok(address)
}

fn port(text: &str) -> Result<Port, String> {
    let parts: Vec<&str> = text.split(',').collect();
    let [device, mac, vni] = parts[..] else {
        return Err("three parts are needed: DEVICE,MAC,VNI".into());
    };
    let mac = parse_mac(mac)?;
    let odd = |c: char| c.is_whitespace() || c.is_control() || c == '/' || c == ':';
    if !(1..=15).contains(&device.len())
        || device.starts_with('-')
        || device.contains(odd)
        || [".", ".."].contains(&device)
    {
        return Err(format!("`{}` is no interface name", device.escape_debug()));
    }
    let vni = vni.parse().ok().filter(|vni| (1..=0xff_ffff).contains(vni));
    let vni = vni.ok_or("the last part is no VNI: a whole number from 1 to 16777215")?;
    Ok(Port { device: device.into(), vni, mac: mac.to_string() })
}

/// Runs the command.
pub fn run(args: Args, global: &Global) -> anyhow::Result<ExitCode> {
    let host = match (args.local, args.gateway) {
        (Some(local), Some(gateway)) => {
            Host { local, gateway, vnis: args.vni.iter().copied().collect(), vms: Vec::new() }
        }
        _ => from_files(&args.nc, &args.config)?,
    };
    anyhow::ensure!(
        host.local.is_ipv4() == host.gateway.is_ipv4(),
        "--local {} and --gateway {} are of different families",
        host.local,
        host.gateway
    );
    anyhow::ensure!(host.local != host.gateway, "{} is the host's own address and the gateway's", host.local);
    let mut devices = BTreeSet::new();
    for port in &args.port {
        anyhow::ensure!(devices.insert(&port.device), "--port {} is given twice", port.device);
        anyhow::ensure!(
            host.vnis.contains(&port.vni),
            "--port {} names VNI {}, which the host does not serve",
            port.device,
            port.vni
        );
    }
    let vtep = |vni: &u32| Vtep {
        vni: *vni,
        local: host.local,
        gateway: host.gateway,
        underlay_mtu: args.mtu,
        zero_checksum: args.zero_checksum,
    };
    let vteps: Vec<Vtep> = host.vnis.iter().map(vtep).collect();
    let steps = vtep::host_steps(&vteps, &args.port);
    let given = |mac: &str| args.port.iter().any(|p| p.mac.eq_ignore_ascii_case(mac));
    let without_port: Vec<_> = host.vms.iter().filter(|(_, mac, _)| !given(mac)).collect();
    let value = serde_json::json!({
        "nc": args.nc,
        "steps": steps.iter().map(|s| serde_json::json!({"why": s.why, "argv": s.argv})).collect::<Vec<_>>(),
        "withoutPort": without_port
            .iter()
            .map(|(vm, mac, vni)| serde_json::json!({"vm": vm, "mac": mac, "vni": vni}))
            .collect::<Vec<_>>(),
    });
    crate::output::show(global.output, &value, |_| {
        let mut text = vtep::host_commands(&args.nc, &steps);
        for (name, mac, vni) in &without_port {
            text += &format!("\n# VM {name}: run again with --port DEVICE,{mac},{vni} for the commands of its port.\n");
        }
        text
    })?;
    Ok(ExitCode::SUCCESS)
}
