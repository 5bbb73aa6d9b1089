// SPDX-License-Identifier: Apache-2.0
//! Network namespaces of a bench's own, removed when dropped.
use crate::Error;
use abi::IfIndex;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::process::Command;

/// Runs a program to its end; an error carries what it wrote.
pub fn run(program: &str, arguments: &[&str]) -> Result<String, Error> {
    let output = Command::new(program)
        .args(arguments)
        .output()
        .map_err(|source| Error::Io { what: format!("running `{program}`"), source })?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr).trim().to_string();
        return Err(Error::Failed { what: format!("`{program} {}`", arguments.join(" ")), why: text });
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// A named network namespace.
#[derive(Debug)]
pub struct Netns {
    name: String,
}

const PREFIX: &str = "tnybench";

/// Removes what benches left that were killed.
fn remove_stale() {
    for entry in std::fs::read_dir("/run/netns").into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let owner =
            name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next()).and_then(|id| id.parse::<u32>().ok());
        if owner.is_some_and(|id| !std::path::Path::new(&format!("/proc/{id}")).exists()) {
            let _ = run("ip", &["netns", "del", &name]);
        }
    }
}

impl Netns {
    /// Creates a namespace; its name carries this process's id.
    pub fn create(role: &str) -> Result<Netns, Error> {
        remove_stale();
        let name = format!("{PREFIX}{}-{role}", std::process::id());
        run("ip", &["netns", "add", &name])?;
        let ns = Netns { name };
        ns.ip("link set lo up")?;
        Ok(ns)
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The file that stands for it.
    pub fn path(&self) -> PathBuf {
        PathBuf::from("/run/netns").join(&self.name)
    }

    /// Runs `ip` in it, with arguments separated by blanks.
    pub fn ip(&self, arguments: &str) -> Result<String, Error> {
        let mut all = vec!["-n", self.name.as_str()];
        all.extend(arguments.split_whitespace());
        run("ip", &all)
    }

    /// Runs a shell line in it (with a /sys of its own, so that its interfaces are seen).
    pub fn shell(&self, line: &str) -> Result<String, Error> {
        run("ip", &["netns", "exec", &self.name, "sh", "-c", line])
    }

    /// A command in it. By its file alone: `ip netns exec` would hide BPF file systems.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", self.path().display())).arg(program);
        command
    }

    /// Moves the calling thread into it, for good.
    pub fn enter(&self) -> Result<(), Error> {
        let io = |source| Error::Io { what: format!("entering network namespace {}", self.name), source };
        let file = File::open(self.path()).map_err(io)?;
        // SAFETY: plain system call on a descriptor that we hold.
        if unsafe { libc::setns(file.as_raw_fd(), libc::CLONE_NEWNET) } < 0 {
            return Err(io(std::io::Error::last_os_error()));
        }
        Ok(())
    }

    /// Runs a closure in a thread of its own inside the namespace.
    pub fn inside<T: Send>(&self, work: impl FnOnce() -> Result<T, Error> + Send) -> Result<T, Error> {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                self.enter()?;
                work()
            });
            thread
                .join()
                .unwrap_or_else(|_| Err(Error::Failed { what: "a bench thread".into(), why: "it panicked".into() }))
        })
    }

    /// Number of an interface in it.
    pub fn ifindex(&self, interface: &str) -> Result<IfIndex, Error> {
        let text = self.ip(&format!("-o link show dev {interface}"))?;
        text.split(':')
            .next()
            .and_then(|n| n.trim().parse().ok())
            .map(IfIndex)
            .ok_or_else(|| Error::Failed { what: format!("looking up interface {interface}"), why: text.clone() })
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        let _ = run("ip", &["netns", "del", &self.name]);
    }
}
