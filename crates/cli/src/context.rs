// SPDX-License-Identifier: Apache-2.0
//! `tunny context`: controllers by name, with who asks them. Each is a file in `~/.config/tunny/contexts`. None is ever meant unless it is named: on
//! a node's machine `tunny apply` is for the node.

use crate::output::{note, show, table};
use crate::Global;
use anyhow::Context as _;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Keep the address of a controller, and who asks it, under a name: `tunny --context NAME get nodes`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    Set(SetArgs),
    List(ListArgs),
    Delete(DeleteArgs),
}

/// Keep what --server, --ca and --cert with --key, or --token-file, say. The files stay where they are.
#[derive(Debug, clap::Args)]
struct SetArgs {
    /// The name.
    #[arg(value_parser = crate::instance_name)]
    name: String,
}

/// List what is kept.
#[derive(Debug, clap::Args)]
struct ListArgs {}

/// Forget one.
#[derive(Debug, clap::Args)]
struct DeleteArgs {
    /// The name.
    #[arg(value_parser = crate::instance_name)]
    name: String,
}

/// What is kept of one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Kept {
    server: String,
    ca: PathBuf,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cert: Option<PathBuf>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    key: Option<PathBuf>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    token_file: Option<PathBuf>,
}

fn folder() -> anyhow::Result<PathBuf> {
    let own = std::env::var_os("XDG_CONFIG_HOME").map(PathBuf::from).filter(|p| p.is_absolute());
    let user = || std::env::var_os("HOME").map(|dir| PathBuf::from(dir).join(".config"));
    let base = own.or_else(user).ok_or_else(|| anyhow::anyhow!("there is no HOME in which contexts could be kept"))?;
    Ok(base.join("tunny/contexts"))
}

fn file(name: &str) -> anyhow::Result<PathBuf> {
    Ok(folder()?.join(format!("{name}.json")))
}

fn names(folder: &Path) -> Vec<String> {
    let list = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let name = |e: std::fs::DirEntry| e.file_name().to_str()?.strip_suffix(".json").map(String::from);
    let mut names: Vec<String> = list.filter_map(name).collect();
    names.sort();
    names
}

/// The context of a name.
pub fn named(name: &str) -> anyhow::Result<Kept> {
    let path = file(name)?;
    let text = std::fs::read(&path).map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => {
            let known = names(path.parent().unwrap_or(Path::new("")));
            let known =
                if known.is_empty() { "none is kept".into() } else { format!("there are {}", known.join(", ")) };
            anyhow::anyhow!("there is no context `{name}`; {known}; `tunny context set {name}` makes one")
        }
        _ => anyhow::anyhow!("{}: {e}", path.display()),
    })?;
    serde_json::from_slice(&text).with_context(|| format!("{} is no context", path.display()))
}

impl Global {
    /// The same, with what its context says.
    pub fn in_context(self) -> anyhow::Result<Global> {
        let Some(name) = &self.context else { return Ok(self) };
        anyhow::ensure!(
            self.server.is_none(),
            "--context {name} names a controller, and so does --server (or TUNNY_SERVER): give one of them"
        );
        let Kept { server, ca, cert, key, token_file } = named(name)?;
        Ok(Global { server: Some(server), ca: Some(ca), cert, key, token_file, ..self })
    }
}

/// Runs the command.
pub fn run(args: Args, global: &Global) -> anyhow::Result<ExitCode> {
    match args.action {
        Action::Set(SetArgs { name }) => {
            let url = global
                .server
                .as_ref()
                .ok_or_else(|| anyhow::anyhow!("--server is missing: the controller that `{name}` shall mean"))?;
            let address = global.controller(url)?;
            // What could not be used is not kept.
            node::tls::Remote::new(&address).map_err(|why| anyhow::anyhow!(why))?;
            let absolute = |path: &PathBuf| std::path::absolute(path).with_context(|| format!("{}", path.display()));
            let (cert, key) = match &address.identity {
                Some((cert, key)) => (Some(absolute(cert)?), Some(absolute(key)?)),
                None => (None, None),
            };
            let token_file = address.token.as_ref().map(absolute).transpose()?;
            let kept = Kept { server: address.url.clone(), ca: absolute(&address.ca)?, cert, key, token_file };
            let path = file(&name)?;
            let write = || -> std::io::Result<()> {
                std::fs::create_dir_all(path.parent().unwrap_or(Path::new("")))?;
                std::fs::write(&path, serde_json::to_string_pretty(&kept)? + "\n")
            };
            write().with_context(|| format!("cannot write {}", path.display()))?;
            note(format_args!("`--context {name}` means {}", address.url));
        }
        Action::List(ListArgs {}) => {
            let list: Vec<(String, Kept)> = names(&folder()?)
                .into_iter()
                .map(|name| Ok((name.clone(), named(&name)?)))
                .collect::<anyhow::Result<_>>()?;
            show(global.output, &list, |list| {
                let row = |(name, kept): &(String, Kept)| {
                    let who = kept.cert.as_ref().or(kept.token_file.as_ref());
                    vec![name.clone(), kept.server.clone(), who.map_or(String::new(), |p| p.display().to_string())]
                };
                table(&["context", "server", "as"], list.iter().map(row))
            })?;
        }
        Action::Delete(DeleteArgs { name }) => {
            named(&name)?;
            let path = file(&name)?;
            std::fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
