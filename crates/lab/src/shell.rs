// SPDX-License-Identifier: Apache-2.0
//! Running commands in network namespaces.
//!
//! `nsenter --net` and not `ip netns exec`: the latter gives the command a fresh mount of /sys, which hides the BPF file
//! system that the node pins its tables in.

use crate::LabError;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

/// A named network namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namespace(pub String);

impl Namespace {
    /// The file that names it.
    pub fn path(&self) -> PathBuf {
        Path::new("/run/netns").join(&self.0)
    }

    /// Whether it exists.
    pub fn exists(&self) -> bool {
        self.path().exists()
    }

    /// A command that will run in it.
    pub fn command<S: AsRef<std::ffi::OsStr>>(&self, argv: &[S]) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", self.path().display())).arg("--").args(argv).stdin(Stdio::null());
        command
    }

    /// Runs a command line (cut at blanks) and fails if it does.
    pub fn run(&self, line: &str) -> Result<String, LabError> {
        self.run_argv(&line.split_whitespace().collect::<Vec<_>>())
    }

    /// Runs a command and fails if it does.
    pub fn run_argv<S: AsRef<std::ffi::OsStr>>(&self, argv: &[S]) -> Result<String, LabError> {
        finish(self.command(argv), &self.0)
    }

    /// Runs a command whatever comes of it.
    pub fn try_argv<S: AsRef<std::ffi::OsStr>>(&self, argv: &[S]) -> Result<Output, LabError> {
        let mut command = self.command(argv);
        command.output().map_err(|e| LabError::Spawn { command: words(&command), source: e })
    }

    /// Sets kernel parameters of this namespace; `/proc/sys/net` shows those of the process that reads it.
    pub fn sysctl(&self, settings: &[(&str, &str)]) -> Result<(), LabError> {
        let script: Vec<String> =
            settings.iter().map(|(k, v)| format!("echo {v} > /proc/sys/{}", k.replace('.', "/"))).collect();
        self.run_argv(&["sh", "-ec", &script.join("\n")]).map(drop)
    }

    /// Starts a command in the background: a process group of its own, so that Ctrl-C in the terminal does not reach it;
    /// its output goes to a file.
    pub fn spawn<S: AsRef<std::ffi::OsStr>>(&self, argv: &[S], log: &Path) -> Result<Child, LabError> {
        let io = |e| LabError::File { path: log.to_path_buf(), source: e };
        let file = File::options().create(true).append(true).open(log).map_err(io)?;
        let mut command = self.command(argv);
        command.env("NO_COLOR", "1").stdout(file.try_clone().map_err(io)?).stderr(file).process_group(0);
        command.spawn().map_err(|e| LabError::Spawn { command: words(&command), source: e })
    }
}

/// Runs a command outside of any namespace of the lab.
pub fn run(line: &str) -> Result<String, LabError> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).stdin(Stdio::null());
    finish(command, "the host")
}

fn finish(mut command: Command, place: &str) -> Result<String, LabError> {
    let output = command.output().map_err(|e| LabError::Spawn { command: words(&command), source: e })?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(LabError::Command {
        command: words(&command),
        place: place.to_string(),
        message: String::from_utf8_lossy(&output.stderr).trim().to_string(),
    })
}

fn words(command: &Command) -> String {
    let mut out = command.get_program().to_string_lossy().into_owned();
    for arg in command.get_args() {
        out.push(' ');
        out += &arg.to_string_lossy();
    }
    out
}
