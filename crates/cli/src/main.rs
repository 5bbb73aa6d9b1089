// SPDX-License-Identifier: Apache-2.0
//! The `tunny` binary. One file a command: each has an `Args` structure, whose documentation is the command's help and
//! manual page, and a `run` function. What several commands share is in [`output`], beside what `tunny-lab` has too.
#![forbid(unsafe_code)]

mod agent;
mod announced;
mod apply;
mod attach;
mod capture;
mod context;
mod controller;
mod credential;
mod delete;
mod describe;
mod diff;
mod edit;
mod events;
mod followed;
mod get;
mod history;
mod host_agent;
mod host_commands;
mod lines;
mod listing;
mod mirrors;
mod moving;
mod node;
mod openflow;
mod region;
mod replay;
mod schema;
mod sessions;
mod shaped;
mod top;
mod trace;
mod validate;
mod version;
mod watch;
mod watchdog;

use ::node::client::Client;
use ::node::tls::{Address, Remote};
use clap::error::{ContextKind, ContextValue};
use clap::{Parser, Subcommand};
use commandline::{completion, input, output, reference, sink, Program};
use output::{Format, FormatParser};
use std::path::PathBuf;
use std::process::ExitCode;

/// A multi-tenant cloud gateway and virtual switch.
#[derive(Debug, Parser)]
#[command(name = "tunny", version, arg_required_else_help = true, max_term_width = 120)]
struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

/// What every command understands.
#[derive(Clone, Debug, clap::Args)]
pub struct Global {
    /// Which node: several may run on one machine.
    #[arg(long, global = true, default_value = "default", env = "TUNNY_INSTANCE", value_parser = instance_name)]
    pub instance: String,
    /// The node's API socket [default: /run/tunny/INSTANCE.sock].
    #[arg(long, global = true, env = "TUNNY_SOCKET")]
    pub socket: Option<PathBuf>,
    /// A controller, as https://HOST[:PORT]: the command speaks to it and not to the node on this machine.
    #[arg(long, global = true, env = "TUNNY_SERVER", value_name = "URL", hide_env_values = true)]
    pub server: Option<String>,
    /// A controller by the name under which `tunny context` keeps it, instead of --server, --ca and who asks.
    #[arg(long, global = true, env = "TUNNY_CONTEXT", value_name = "NAME", hide_env_values = true, value_parser = instance_name)]
    pub context: Option<String>,
    /// The CA of the controller's region.
    #[arg(long, global = true, env = "TUNNY_CA", value_name = "FILE", hide_env_values = true)]
    pub ca: Option<PathBuf>,
    /// A certificate that says who asks the controller; with --key.
    #[arg(long, global = true, env = "TUNNY_CERT", value_name = "FILE", hide_env_values = true)]
    pub cert: Option<PathBuf>,
    /// The key of --cert.
    #[arg(long, global = true, env = "TUNNY_KEY", value_name = "FILE", hide_env_values = true)]
    pub key: Option<PathBuf>,
    /// A file with a token, instead of --cert.
    #[arg(long, global = true, env = "TUNNY_TOKEN_FILE", value_name = "FILE", hide_env_values = true)]
    pub token_file: Option<PathBuf>,
    /// How to print the result.
    #[arg(short, long, global = true, value_parser = FormatParser, default_value = "table")]
    pub output: Format,
}

/// An instance's name becomes part of file names, so it may hold nothing that leads elsewhere.
fn instance_name(text: &str) -> Result<String, String> {
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    match text.len() {
        1..=40 if text.chars().all(fits) => Ok(text.to_string()),
        _ => Err("an instance is named by 1 to 40 letters, digits, '-' and '_'".to_string()),
    }
}

impl Global {
    /// The API socket that these options name.
    pub fn socket(&self) -> PathBuf {
        self.socket.clone().unwrap_or_else(|| PathBuf::from(format!("/run/tunny/{}.sock", self.instance)))
    }

    /// The controller at a URL, spoken to as these options say.
    pub fn controller(&self, url: &str) -> anyhow::Result<Address> {
        let ca = self.ca.clone().ok_or_else(|| {
            anyhow::anyhow!("--ca is missing: the file {} that `tunny controller init` has made", "ca.crt")
        })?;
        let identity = match (&self.cert, &self.key) {
            (Some(cert), Some(key)) => Some((cert.clone(), key.clone())),
            (None, None) => None,
            _ => anyhow::bail!("--cert and --key go together: a certificate is worth nothing without its key"),
        };
        anyhow::ensure!(
            identity.is_some() != self.token_file.is_some(),
            "say who asks, and once: either --cert and --key, or --token-file"
        );
        Ok(Address { url: url.into(), ca, identity, token: self.token_file.clone() })
    }

    /// Whoever answers: the controller that is named, or the node on this machine.
    pub fn client(&self) -> anyhow::Result<Client> {
        match &self.server {
            None => self.node_client(),
            Some(url) => {
                let remote = Remote::new(&self.controller(url)?).map_err(|why| anyhow::anyhow!(why))?;
                Ok(Client::remote(remote)?)
            }
        }
    }

    /// The node on this machine, which alone can answer.
    pub fn node_client(&self) -> anyhow::Result<Client> {
        anyhow::ensure!(
            self.server.is_none(),
            "only a node can answer this, and --server or --context (or TUNNY_SERVER, TUNNY_CONTEXT) names a controller: leave it out"
        );
        Ok(Client::new(&self.socket())?)
    }

    /// The controller, which alone can answer.
    pub fn region_client(&self) -> anyhow::Result<Client> {
        anyhow::ensure!(
            self.server.is_some(),
            "only a controller can answer this: name it by --server URL or --context NAME"
        );
        self.client()
    }
}

/// Kind and name of an object, from two words or from one as KIND/NAME.
pub fn named<'a>(kind: &'a str, name: Option<&'a str>) -> anyhow::Result<(&'a str, &'a str)> {
    let (kind, name) = match (kind.split_once('/'), name) {
        (Some((kind, name)), None) => (kind, name),
        (None, Some(name)) => (kind, name),
        (Some(_), Some(name)) => anyhow::bail!("`{kind}` is a kind with its name: what is `{name}`?"),
        (None, None) => anyhow::bail!("a NAME is missing: which {kind}?"),
    };
    anyhow::ensure!(!kind.is_empty() && !name.is_empty(), "write KIND/NAME, as vm/web-1");
    Ok((kind, name))
}

#[derive(Debug, Subcommand)]
enum Command {
    Node(Box<node::Args>),
    Watchdog(watchdog::Args),
    Agent(agent::Args),
    Controller(controller::Args),
    Validate(validate::Args),
    Apply(apply::Args),
    Delete(delete::Args),
    Attach(attach::Args),
    Detach(attach::DetachArgs),
    Diff(diff::Args),
    Edit(edit::Args),
    Get(get::Args),
    Describe(describe::Args),
    Watch(watch::Args),
    Events(events::Args),
    Resync(region::ResyncArgs),
    Move(moving::MoveArgs),
    Rebalance(moving::RebalanceArgs),
    Credential(credential::Args),
    Context(context::Args),
    History(history::Args),
    Rollback(history::RollbackArgs),
    Top(top::Args),
    Trace(Box<trace::Args>),
    Capture(capture::Args),
    Replay(replay::Args),
    Schema(schema::Args),
    HostCommands(host_commands::Args),
    HostAgent(host_agent::Args),
    Completion(completion::Args),
    Version(version::Args),
    #[command(hide = true)]
    CliReference(reference::Args),
}

impl Program for Cli {
    const NAME: &'static str = "tunny";

    fn format(&self) -> Format {
        self.global.output
    }

    fn run(self) -> anyhow::Result<ExitCode> {
        let global = &match self.command {
            // It says what contexts mean, and daemons ask nobody.
            Command::Context(_) | Command::Node(_) | Command::Watchdog(_) => self.global,
            Command::Controller(ref args) if !args.calls() => self.global,
            _ => self.global.in_context()?,
        };
        match self.command {
            Command::Node(args) => node::run(*args, global),
            Command::Watchdog(args) => watchdog::run(args, global),
            Command::Agent(args) => agent::run(args, global),
            Command::Controller(args) => controller::run(args, global),
            Command::Validate(args) => validate::run(args, global),
            Command::Apply(args) => apply::run(args, global),
            Command::Delete(args) => delete::run(args, global),
            Command::Attach(args) => attach::attach(args, global),
            Command::Detach(args) => attach::detach(args, global),
            Command::Diff(args) => diff::run(args, global),
            Command::Edit(args) => edit::run(args, global),
            Command::Get(args) => get::run(args, global),
            Command::Describe(args) => describe::run(args, global),
            Command::Watch(args) => watch::run(args, global),
            Command::Events(args) => events::run(args, global),
            Command::Resync(args) => region::resync(args, global),
            Command::Move(args) => moving::run(args, global),
            Command::Rebalance(args) => moving::rebalance(args, global),
            Command::Credential(args) => credential::run(args, global),
            Command::Context(args) => context::run(args, global),
            Command::History(args) => history::run(args, global),
            Command::Rollback(args) => history::rollback(args, global),
            Command::Top(args) => top::run(args, global),
            Command::Trace(args) => trace::run(*args, global),
            Command::Capture(args) => capture::run(args, global),
            Command::Replay(args) => replay::run(args, global),
            Command::Schema(args) => schema::run(args, global),
            Command::HostCommands(args) => host_commands::run(args, global),
            Command::HostAgent(args) => host_agent::run(args, global),
            Command::Completion(args) => completion::run::<Cli>(args),
            Command::Version(args) => version::run(args, global),
            Command::CliReference(args) => {
                reference::run::<Cli>(args, "cli.md", &[("configuration.md", model::reference())])
            }
        }
    }

    fn instead(refusal: &clap::Error) -> Option<String> {
        moved(refusal, std::env::args().skip(1))
    }
}

/// What was said of a command that is the laboratory's: how it is called now.
fn moved(refusal: &clap::Error, words: impl Iterator<Item = String>) -> Option<String> {
    let Some(ContextValue::String(command)) = refusal.get(ContextKind::InvalidSubcommand) else { return None };
    let rest: Vec<String> = words.skip_while(|word| word != command).collect();
    ["lab", "bench", "plan", "cache"].contains(&command.as_str()).then(|| format!("use tunny-lab {}", rest.join(" ")))
}

fn main() -> ExitCode {
    commandline::main::<Cli>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instance_name_leads_nowhere_else() {
        for name in ["default", "lab-t7", "A_1", &"x".repeat(40)] {
            assert_eq!(instance_name(name).as_deref(), Ok(name));
        }
        for name in ["", ".", "..", "a/b", "../../etc", "a b", "a\n", "ä", "a.b", &"x".repeat(41)] {
            assert!(instance_name(name).is_err(), "{name:?}");
            let refused = Cli::try_parse_from(["tunny", "--instance", name, "get", "status"]);
            assert!(refused.is_err(), "{name:?}");
        }
    }

    #[test]
    fn committed_reference_is_current() {
        let have = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/cli.md"));
        assert!(
            have.is_ok_and(|have| have == reference::markdown::<Cli>()),
            "docs/reference/cli.md is stale: run `make generate`"
        );
    }

    #[test]
    fn commands_are_consistent() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }
}
