// SPDX-License-Identifier: Apache-2.0
//! `tunny attach` and `tunny detach`: the VmPort of a VM, without a document.

use crate::Global;
use anyhow::Context;
use node::body::write_document;
use serde_json::{json, Map, Value};
use std::path::PathBuf;
use std::process::ExitCode;

/// Tie a VM to an interface of this node, which then is its port: create the VmPort, or change it.
///
/// The Vm must be there, with an Nc that has this node's tunnel address, and the Gateway must say `spec.vms: here`. What a VM may send, and what it is
/// told, follows from its Vm and Vpc.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Name of the Vm.
    vm: String,
    /// The interface: the host's end of a veth pair, or a TAP.
    interface: String,
    /// Name of the VmPort [default: the interface].
    #[arg(long)]
    name: Option<String>,
    /// How the port is served [default: as spec.engine of the Gateway].
    #[arg(long, value_parser = clap::builder::PossibleValuesParser::new(model::Engine::ALL.map(|(word, _)| word)))]
    engine: Option<String>,
    /// Whether the VM is answered at the metadata address [default: on].
    #[arg(long, value_parser = clap::builder::PossibleValuesParser::new(model::MetadataService::ALL.map(|(word, _)| word)))]
    metadata: Option<String>,
    /// A file with the user data that the metadata address tells it.
    #[arg(long, value_name = "FILE")]
    user_data: Option<PathBuf>,
    #[command(flatten)]
    how: How,
}

/// Take a VM's port away: delete its VmPort. What the VM sends then is left to the host.
#[derive(Debug, clap::Args)]
pub struct DetachArgs {
    /// Name of the VmPort: the interface, unless `tunny attach --name` gave another one.
    name: String,
    #[command(flatten)]
    how: How,
}

#[derive(Debug, clap::Args)]
struct How {
    /// Show the plan and change nothing.
    #[arg(long)]
    dry_run: bool,
    /// Show the plan and wait for a yes.
    #[arg(long)]
    confirm: bool,
    /// Change a node that takes its configuration from a controller all the same: see `tunny apply --help`.
    #[arg(long)]
    break_glass: bool,
}

impl How {
    fn change(&self, body: &[u8], mode: &str, global: &Global) -> anyhow::Result<ExitCode> {
        let agreed = crate::apply::Agreed { dry_run: self.dry_run, yes: !self.confirm, deletes: None };
        let glass = crate::apply::break_glass(self.break_glass, global)?;
        crate::apply::change(body, &format!("{mode}{glass}"), &agreed, global)
    }
}

/// Runs `attach`.
pub fn attach(args: Args, global: &Global) -> anyhow::Result<ExitCode> {
    let mut spec = Map::new();
    spec.insert("interface".into(), args.interface.clone().into());
    spec.insert("vm".into(), args.vm.into());
    for (field, value) in [("engine", args.engine), ("metadata", args.metadata)] {
        spec.extend(value.map(|value| (field.to_string(), Value::from(value))));
    }
    if let Some(path) = &args.user_data {
        let text = std::fs::read_to_string(path).with_context(|| format!("{}: cannot be read", path.display()))?;
        spec.insert("userData".into(), text.into());
    }
    let name = args.name.unwrap_or(args.interface);
    let document = json!({"apiVersion": "tunny/v1", "kind": "VmPort", "metadata": {"name": name}, "spec": spec});
    let mut body = Vec::new();
    write_document(&mut body, "attach.ndjson", document.to_string().as_bytes());
    args.how.change(&body, "replace=false", global)
}

/// Runs `detach`.
pub fn detach(args: DetachArgs, global: &Global) -> anyhow::Result<ExitCode> {
    let mut body = Vec::new();
    write_document(&mut body, "names", json!([["VmPort", args.name]]).to_string().as_bytes());
    args.how.change(&body, "names=true", global)
}
