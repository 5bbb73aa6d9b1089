// SPDX-License-Identifier: Apache-2.0
//! `tunny controller`: the controller of a region.

use crate::output::note;
use crate::Global;
use controller::backup;
use controller::config::{Config, StoreConfig, FILE};
use controller::init::{self, OPERATOR};
use controller::store::etcd::EtcdConfig;
use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Run the controller of a region.
///
/// It keeps what the region should be, and tells each node what its cluster needs. It runs until SIGTERM or SIGINT. Without it all nodes forward
/// on, and start, by what they have.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Args {
    #[command(subcommand)]
    action: Option<Action>,
    /// The file that `tunny controller init` has made.
    #[arg(long, value_name = "FILE", default_value = "/var/lib/tunny-controller/controller.yaml")]
    config: PathBuf,
}

impl Args {
    /// Whether it asks a controller that runs.
    pub fn calls(&self) -> bool {
        matches!(self.action, Some(Action::Backup(_)))
    }
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    Init(InitArgs),
    Backup(BackupArgs),
    Restore(RestoreArgs),
    Migrate(MigrateArgs),
}

/// Write all that a running controller's store holds into a file, as of one revision, while changes go on.
///
/// The file does not have the CA and its key: keep those of the controller's folder with it. Tokens and certificates are in it as hashes alone.
#[derive(Debug, clap::Args)]
pub struct BackupArgs {
    /// The file. One that exists is replaced when the new one is whole.
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

/// Fill an empty store from a backup. No controller may run on it.
#[derive(Debug, clap::Args)]
pub struct RestoreArgs {
    /// The file that `tunny controller backup` has written.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The file of the controller whose store is filled: in a file of its folder, or in etcd.
    #[arg(long, value_name = "FILE", default_value = "/var/lib/tunny-controller/controller.yaml")]
    config: PathBuf,
}

/// Bring a store to the form of this version of tunny, or down to an earlier one. No controller may run on it.
#[derive(Debug, clap::Args)]
pub struct MigrateArgs {
    /// The form; without it: that of this version.
    #[arg(long, value_name = "N", default_value_t = controller::schema::NOW)]
    to: u32,
    /// The file of the controller whose store it is.
    #[arg(long, value_name = "FILE", default_value = "/var/lib/tunny-controller/controller.yaml")]
    config: PathBuf,
}

/// Make the folder of a controller: CA, store, the first operator's certificate and token, and a file with which it starts.
#[derive(Debug, clap::Args)]
pub struct InitArgs {
    /// The folder. It must be empty, or not exist.
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    /// Name of the region.
    #[arg(long, value_name = "NAME", value_parser = name)]
    region: String,
    /// Where to listen.
    #[arg(long, value_name = "ADDR:PORT", default_value = "[::]:6474")]
    listen: SocketAddr,
    /// A name or address under which nodes and people reach it. May be given several times; localhost, 127.0.0.1 and ::1 are among them.
    #[arg(long = "name", value_name = "HOST")]
    names: Vec<String>,
    /// Days that the first operator's certificate and token are good for.
    #[arg(long, value_name = "N", default_value_t = 365, value_parser = clap::value_parser!(u32).range(1..=3650))]
    days: u32,
    /// Keep the region's intent in etcd, for several controllers: the URL of a member. May be given several times. Without it: in a file.
    #[arg(long, value_name = "URL")]
    etcd: Vec<String>,
    /// What all keys in etcd begin with.
    #[arg(long, value_name = "TEXT", default_value = "tunny/")]
    etcd_prefix: String,
    /// The CA of etcd's certificates, which https:// needs.
    #[arg(long, value_name = "FILE")]
    etcd_ca: Option<PathBuf>,
    /// The certificate for etcd; with --etcd-key.
    #[arg(long, value_name = "FILE", requires = "etcd_key")]
    etcd_cert: Option<PathBuf>,
    /// The key of --etcd-cert.
    #[arg(long, value_name = "FILE", requires = "etcd_cert")]
    etcd_key: Option<PathBuf>,
}

fn name(text: &str) -> Result<String, String> {
    model::check_name(text).map(|()| text.to_string())
}

/// Runs the command.
pub fn run(args: Args, global: &Global) -> anyhow::Result<ExitCode> {
    match args.action {
        None => {
            node::daemon::log_to_stderr();
            controller::run(&args.config).map_err(|why| anyhow::anyhow!(why))?;
            Ok(ExitCode::SUCCESS)
        }
        Some(Action::Init(args)) => make(args),
        Some(Action::Backup(args)) => save(&args, global),
        Some(Action::Restore(args)) => {
            let (head, entries) = backup::restore(&args.file, &args.config).map_err(|why| anyhow::anyhow!(why))?;
            note(format_args!(
                "the store of region {} is as it was at revision {}: {entries} entries; nodes are sent everything anew",
                head.region, head.revision
            ));
            Ok(ExitCode::SUCCESS)
        }
        Some(Action::Migrate(args)) => {
            let from = backup::migrate(&args.config, args.to).map_err(|why| anyhow::anyhow!(why))?;
            note(format_args!("the store was of form {from} and is of form {}", args.to));
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Writes a backup beside its place, and there only when it is whole.
fn save(args: &BackupArgs, global: &Global) -> anyhow::Result<ExitCode> {
    let at = |e: std::io::Error| anyhow::anyhow!("{}: {e}", args.file.display());
    let folder = args.file.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = args.file.file_name().ok_or_else(|| anyhow::anyhow!("{} names no file", args.file.display()))?;
    let new = folder.join(format!(".{}.new-{}", name.to_string_lossy(), std::process::id()));
    let client = global.region_client()?;
    let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new).map_err(at)?;
    let mut failed = None;
    let taken = client.get_pieces("/v1/backup", |piece| {
        failed = file.write_all(piece).err();
        failed.is_none()
    });
    let done = taken.map_err(anyhow::Error::from).and_then(|()| {
        failed.map_or(Ok(()), Err).and_then(|()| file.sync_all()).map_err(at)?;
        let (head, entries) = backup::read(&new).map_err(|why| anyhow::anyhow!(why))?;
        std::fs::rename(&new, &args.file).map_err(at)?;
        Ok((head, entries.len()))
    });
    if done.is_err() {
        let _ = std::fs::remove_file(&new);
    }
    let (head, entries) = done?;
    note(format_args!(
        "region {} at revision {}: {entries} entries in {}",
        head.region,
        head.revision,
        args.file.display()
    ));
    Ok(ExitCode::SUCCESS)
}

/// Makes the folder of a controller.
fn make(args: InitArgs) -> anyhow::Result<ExitCode> {
    let mut names = args.names;
    names.extend(["localhost", "127.0.0.1", "::1"].map(String::from));
    names.dedup();
    anyhow::ensure!(
        !args.etcd.is_empty() || (args.etcd_ca.is_none() && args.etcd_cert.is_none()),
        "--etcd-ca, --etcd-cert and --etcd-key are for --etcd, which is not given"
    );
    // The file that is made names them, and stands in another folder than this command does.
    let whole = |path: Option<PathBuf>| path.map(std::path::absolute).transpose();
    let etcd = EtcdConfig {
        endpoints: args.etcd,
        prefix: args.etcd_prefix,
        ca: whole(args.etcd_ca)?,
        cert: whole(args.etcd_cert)?,
        key: whole(args.etcd_key)?,
    };
    let store = match etcd.endpoints.is_empty() {
        true => None,
        false => {
            etcd.check().map_err(|why| anyhow::anyhow!(why))?;
            Some(StoreConfig { etcd })
        }
    };
    let config = Config { region: args.region, listen: args.listen, names, folder: None, store, url: None, evpn: None };
    init::init(&args.folder, &config, args.days).map_err(|why| anyhow::anyhow!(why))?;
    let at = args.folder.display();
    note(format_args!(
        "{at} is made. Start it: tunny controller --config {at}/{FILE}\n\
         Then ask it: tunny --server https://localhost:{} --ca {at}/ca.crt --cert {at}/{OPERATOR}.crt --key {at}/{OPERATOR}.key get status",
        config.listen.port()
    ));
    Ok(ExitCode::SUCCESS)
}
