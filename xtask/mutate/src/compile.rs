// SPDX-License-Identifier: Apache-2.0
//! Builds the instrumented copy: what does not compile is dropped, and the rest built again.

use crate::tree::Tree;
use serde_json::Value;
use std::path::PathBuf;
use std::process::Command;

/// Builds after which a compiler that still complains is given up.
const BUILDS_MAX: usize = 40;

/// A test program.
#[derive(Clone, Debug)]
pub struct Program {
    /// `gateway::stories`; a library's own tests have no second part.
    pub name: String,
    /// The file.
    pub path: PathBuf,
    /// Where cargo would run it.
    pub dir: PathBuf,
}

/// Drops what does not compile, builds the tests of these crates, and returns the programs.
pub fn build(tree: &mut Tree, packages: &[&str]) -> Result<Vec<Program>, String> {
    for round in 1..=BUILDS_MAX {
        let before = tree.dropped.len();
        let (ok, lines) = cargo(tree, packages)?;
        if ok {
            return Ok(programs(&lines));
        }
        let mut first = String::new();
        for line in lines.iter().filter(|l| l["reason"] == "compiler-message" && l["message"]["level"] == "error") {
            let message = &line["message"];
            if !complaint(tree, message) && first.is_empty() {
                first = message["rendered"].as_str().unwrap_or("").to_string();
            }
        }
        eprintln!("build {round}: {} mutants do not compile", tree.dropped.len());
        if tree.dropped.len() == before {
            return Err(format!("the instrumented copy does not compile, and no mutant is to blame:\n{first}"));
        }
        tree.write()?;
    }
    Err(format!("the instrumented copy still does not compile after {BUILDS_MAX} builds"))
}

/// Drops what the compiler complains of. False: nothing of it is a mutant.
fn complaint(tree: &mut Tree, message: &Value) -> bool {
    let empty = Vec::new();
    if message["code"]["code"] == "E0015" {
        let text = message["message"].as_str().unwrap_or("");
        let name = text.split('`').nth(1).unwrap_or("").rsplit("::").next().unwrap_or("");
        return tree.keep_const(name);
    }
    let children =
        message["children"].as_array().unwrap_or(&empty).iter().flat_map(|c| c["spans"].as_array().unwrap_or(&empty));
    let spans: Vec<Value> = message["spans"].as_array().unwrap_or(&empty).iter().chain(children).cloned().collect();
    let (primary, other): (Vec<_>, Vec<_>) = spans.into_iter().partition(|s| s["is_primary"] == true);
    primary.iter().chain(&other).any(|span| {
        let file = span["file_name"].as_str().unwrap_or("");
        let at = |name: &str| span[name].as_u64().unwrap_or(0) as usize;
        tree.drop_at(file, at("byte_start"), at("byte_end"))
    })
}

fn cargo(tree: &Tree, packages: &[&str]) -> Result<(bool, Vec<Value>), String> {
    let mut cargo = Command::new("nice");
    cargo.args([
        "-n",
        "10",
        "cargo",
        "test",
        "--offline",
        "--no-run",
        "--lib",
        "--tests",
        "--message-format=json",
        "--quiet",
    ]);
    cargo.arg("--target-dir").arg(tree.root.join("target"));
    packages.iter().for_each(|p| {
        cargo.args(["-p", p]);
    });
    let out = cargo
        .current_dir(&tree.copy)
        .stderr(std::process::Stdio::piped())
        .output()
        .map_err(|e| format!("cannot run cargo: {e}"))?;
    let text = String::from_utf8_lossy(&out.stdout);
    let lines: Vec<Value> = text.lines().filter_map(|l| serde_json::from_str(l).ok()).collect();
    if lines.is_empty() && !out.status.success() {
        return Err(String::from_utf8_lossy(&out.stderr).into_owned());
    }
    Ok((out.status.success(), lines))
}

fn programs(lines: &[Value]) -> Vec<Program> {
    let tests = lines.iter().filter(|l| l["reason"] == "compiler-artifact" && l["profile"]["test"] == true);
    let program = |l: &Value| {
        let path = PathBuf::from(l["executable"].as_str()?);
        let manifest = PathBuf::from(l["manifest_path"].as_str()?);
        let dir = manifest.parent()?.to_path_buf();
        let (package, target) = (dir.file_name()?.to_str()?.to_string(), l["target"]["name"].as_str()?.to_string());
        let name = if package == target { package } else { format!("{package}::{target}") };
        Some(Program { name, path, dir })
    };
    tests.filter_map(program).collect()
}
