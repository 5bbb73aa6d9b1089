// SPDX-License-Identifier: Apache-2.0
//! `tunny credential`: tokens and certificates of Roles.

use crate::output::{note, show, table};
use crate::Global;
use anyhow::Context;
use controller::types::{Credential, Made, NewCredential, Sort};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::process::ExitCode;

/// Make, list and revoke what proves to a controller that somebody is a Role.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    Create(CreateArgs),
    List(ListArgs),
    Revoke(RevokeArgs),
}

/// Make a token, or with --certificate a certificate, for a Role. The controller keeps no more of it than its hash.
#[derive(Debug, clap::Args)]
struct CreateArgs {
    /// The Role.
    #[arg(value_name = "ROLE")]
    role: String,
    /// A certificate with its key, which a node needs, and not a token.
    #[arg(long)]
    certificate: bool,
    /// Days that it is good for.
    #[arg(long, value_name = "N", default_value_t = 365, value_parser = clap::value_parser!(u32).range(1..=3650))]
    days: u32,
    /// Where to write it: PATH.token, or PATH.crt and PATH.key. They must not exist [default: the name of the Role, in this folder].
    #[arg(long, value_name = "PATH")]
    out: Option<PathBuf>,
}

/// List credentials that count, and of which Role.
#[derive(Debug, clap::Args)]
struct ListArgs {}

/// Revoke a credential: from then on it opens nothing, and a node's stream that it opened ends within seconds.
#[derive(Debug, clap::Args)]
struct RevokeArgs {
    /// Its id, as `tunny credential list` has it.
    #[arg(value_name = "ID")]
    id: String,
}

/// Runs the command.
pub fn run(args: Args, global: &Global) -> anyhow::Result<ExitCode> {
    let client = global.region_client()?;
    match args.action {
        Action::Create(args) => {
            let sort = if args.certificate { Sort::Certificate } else { Sort::Token };
            let path = args.out.unwrap_or_else(|| PathBuf::from(&args.role));
            let ends = if args.certificate { &["crt", "key"][..] } else { &["token"][..] };
            // The files are there before the secret is: it cannot be had again.
            let mut files = Vec::new();
            for end in ends {
                let path = PathBuf::from(format!("{}.{end}", path.display()));
                let file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
                files.push((file.with_context(|| format!("cannot make {}", path.display()))?, path));
            }
            let wanted = serde_json::to_vec(&NewCredential { role: args.role, sort, days: args.days })?;
            let made = client.post::<Made>("/v1/credentials", wanted);
            if made.is_err() {
                files.iter().for_each(|(_, path)| drop(std::fs::remove_file(path)));
            }
            let made = made?;
            let texts = if args.certificate { vec![&made.certificate, &made.key] } else { vec![&made.token] };
            for ((file, path), text) in files.iter_mut().zip(texts) {
                let written = writeln!(file, "{}", text.trim_end()).and_then(|()| file.sync_all());
                written.with_context(|| format!("cannot write {}", path.display()))?;
            }
            let paths: Vec<String> = files.iter().map(|(_, path)| path.display().to_string()).collect();
            note(format_args!(
                "credential {} of Role {} is in {}",
                made.credential.id,
                made.credential.role,
                paths.join(" and ")
            ));
        }
        Action::List(ListArgs {}) => {
            let list: Vec<Credential> = client.get("/v1/credentials")?;
            show(global.output, &list, |list| {
                let time = |ms: u64| node::audit::utc(ms / 1000);
                let sort = |c: &Credential| if c.sort == Sort::Token { "token" } else { "certificate" };
                let row = |c: &Credential| {
                    vec![c.id.clone(), c.role.clone(), sort(c).into(), time(c.made_ms), time(c.until_ms)]
                };
                table(&["id", "role", "sort", "made", "good until"], list.iter().map(row))
            })?;
        }
        Action::Revoke(args) => {
            let gone: Credential = client.delete(&format!("/v1/credentials/{}", node::client::escape(&args.id)))?;
            note(format_args!("credential {} of Role {} opens nothing any more", gone.id, gone.role));
        }
    }
    Ok(ExitCode::SUCCESS)
}
