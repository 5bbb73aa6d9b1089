// SPDX-License-Identifier: Apache-2.0
//! The agent that judges control packets, on another host than the node (CoFilter §6.1, hybrid pattern): the connection between the two.
//!
//! What they say is `conntrack_compact::message`; what a node does with it `conntrack_compact::remote`, an agent `conntrack_compact::Host`. Here is what carries it: TCP, frames with
//! a seal ([`frame`]), the node's thread that keeps the connection ([`link`]), the agent's process ([`serve`]), the files in which its records
//! outlive it ([`records`]), and those in which they outlive its machine's restart ([`keep`]). `docs/design/agent.md` has the design, `docs/operations.md` the practice.

pub mod frame;
pub mod keep;
pub mod link;
pub mod records;
pub mod serve;
mod strangers;

use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Shortest shared key, bytes.
pub const KEY_MIN: usize = 32;
/// Longest, bytes.
const KEY_MAX: u64 = 4096;

/// The shared key in a file, which nobody but its owner may read; space around it does not count.
pub fn read_key(path: &Path) -> Result<Vec<u8>, String> {
    let failed = |e: std::io::Error| format!("the key file {} cannot be read: {e}", path.display());
    let mode = std::fs::metadata(path).map_err(failed)?.permissions().mode();
    if mode & 0o077 != 0 {
        return Err(format!(
            "the key file {} can be read by others (mode {:o}): `chmod 600` it",
            path.display(),
            mode & 0o777
        ));
    }
    let mut key = Vec::new();
    std::fs::File::open(path).and_then(|file| file.take(KEY_MAX).read_to_end(&mut key)).map_err(failed)?;
    let key = key.trim_ascii().to_vec();
    match key.len() {
        KEY_MIN.. => Ok(key),
        n => Err(format!(
            "the key file {} holds {n} bytes, and {KEY_MIN} are needed: make one with `openssl rand -hex 32`",
            path.display()
        )),
    }
}

/// Random bytes from the system.
fn nonce() -> std::io::Result<[u8; 32]> {
    let mut bytes = [0; 32];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}
