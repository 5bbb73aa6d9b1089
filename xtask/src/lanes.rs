// SPDX-License-Identifier: Apache-2.0
//! `cargo xtask test`: every test of the workspace, those that wait beside those that compute.
//!
//! `cargo test` runs one test program after another. The command's tests start nodes in network namespaces and wait for them most of
//! the time, those of a controller for TLS, disks and a browser; those that load programs and maps wait for the kernel half of the time; the
//! others keep the processors busy. The lanes run side by side, all but the nodes' at a lower priority, so that a node is never late because
//! of a differential test. When all that computes has run, or all of the controller's, its lane goes on with the nodes' last programs: nodes wait beside each other.
//!
//! Built by one `cargo test --no-run`. What a program prints goes to `target/test-logs/` and appears as a whole when it ends.

use serde_json::Value;
use std::collections::VecDeque;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Mutex;
use std::time::Instant;

/// The programs and packages of each lane and its niceness; the first lane that names a program has it. What is named nowhere computes and
/// has the last lane.
const LANES: [(&[&str], &str); 4] = [
    (
        &[
            "cli tests/controller.rs",
            "cli tests/controllers.rs",
            "cli tests/dashboard.rs",
            "cli tests/edge_bgp.rs",
            "cli tests/edit.rs",
            "cli tests/fuzz_api.rs",
            "cli tests/monitoring.rs",
        ],
        "3",
    ),
    (&["cli"], "0"),
    (&["testkit", "xdp"], "5"),
    (&[], "5"),
];

/// The lane of nodes, which takes longest, and those that help it once their own programs have run.
const NODES: usize = 1;
const HELPERS: [usize; 2] = [0, LANES.len() - 1];

/// The next program of a lane, and how nice it is: its own ones in order, then a helper's are the last ones of the nodes.
fn next<'a>(queues: &[Mutex<VecDeque<&'a Program>>], lane: usize) -> Option<(&'a Program, &'static str)> {
    let of = |lane: usize| queues[lane].lock().unwrap_or_else(|e| e.into_inner());
    if let Some(own) = of(lane).pop_front() {
        return Some((own, LANES[lane].1));
    }
    HELPERS.contains(&lane).then(|| of(NODES).pop_back())?.map(|program| (program, LANES[NODES].1))
}

/// The lane of a program.
fn lane(program: &Program) -> usize {
    let names = |lane: &(&[&str], &str)| lane.0.iter().any(|n| *n == program.package || *n == program.name);
    LANES.iter().position(names).unwrap_or(LANES.len() - 1)
}

/// One test program.
#[derive(Debug, PartialEq)]
struct Program {
    package: String,
    /// As a person says it: `cli tests/traffic.rs`.
    name: String,
    path: PathBuf,
    /// Where its package lies: tests run there.
    dir: PathBuf,
}

/// `args`: what comes after `test`: `--release`, and behind `--` what every test program gets.
pub fn run(args: &[String]) -> ExitCode {
    match all(args) {
        Ok(failed) if failed.is_empty() => ExitCode::SUCCESS,
        Ok(failed) => {
            eprintln!("{} test programs failed: {}", failed.len(), failed.join(", "));
            ExitCode::FAILURE
        }
        Err(e) => {
            eprintln!("{e}");
            ExitCode::FAILURE
        }
    }
}

fn all(args: &[String]) -> Result<Vec<String>, String> {
    let (cargo, tests) = match args.iter().position(|a| a == "--") {
        Some(at) => (&args[..at], &args[at + 1..]),
        None => (args, &[][..]),
    };
    if let Some(unknown) = cargo.iter().find(|a| *a != "--release") {
        return Err(format!("{unknown}: there is only --release; arguments for the tests go behind --"));
    }
    let programs = build(cargo)?;
    let logs = PathBuf::from(std::env::var_os("CARGO_TARGET_DIR").unwrap_or("target".into())).join("test-logs");
    fs::create_dir_all(&logs).map_err(|e| format!("{}: {e}", logs.display()))?;
    let failed = Mutex::new(Vec::new());
    let of = |number| Mutex::new(programs.iter().filter(|p| lane(p) == number).collect());
    let queues: Vec<Mutex<VecDeque<&Program>>> = (0..LANES.len()).map(of).collect();
    std::thread::scope(|scope| {
        for (number, (names, _)) in LANES.into_iter().enumerate() {
            let (failed, logs, queues) = (&failed, &logs, &queues);
            scope.spawn(move || {
                let start = Instant::now();
                while let Some((program, nice)) = next(queues, number) {
                    if let Err(why) = program.run(nice, tests, logs, failed) {
                        eprintln!("{}: {why}", program.name);
                        failed.lock().unwrap_or_else(|e| e.into_inner()).push(program.name.clone());
                    }
                }
                let of = if names.is_empty() { "the other packages".to_string() } else { names.join(", ") };
                println!("     tests of {of}: {:.0} s", start.elapsed().as_secs_f64());
            });
        }
    });
    Ok(failed.into_inner().unwrap_or_else(|e| e.into_inner()))
}

/// Builds every test and names the programs.
fn build(options: &[String]) -> Result<Vec<Program>, String> {
    let mut cargo = Command::new("cargo");
    cargo.args([
        "test",
        "--workspace",
        "--lib",
        "--bins",
        "--tests",
        "--no-run",
        "--message-format=json-render-diagnostics",
    ]);
    // `cargo run` has told this program of its own package. A build script that looks at such a variable (ring's does) would run again, and
    // all that stands on its crate would be compiled once more.
    let told = |name: &str| ["CARGO_PKG_", "CARGO_MANIFEST_"].iter().any(|of| name.starts_with(of));
    for (name, _) in std::env::vars().filter(|(name, _)| told(name)) {
        cargo.env_remove(name);
    }
    let out = cargo.args(options).stderr(Stdio::inherit()).output().map_err(|e| format!("cannot run cargo: {e}"))?;
    if !out.status.success() {
        return Err("the tests do not build".into());
    }
    let programs: Vec<_> = String::from_utf8_lossy(&out.stdout).lines().filter_map(program).collect();
    match programs.is_empty() {
        true => Err("cargo named no test program".into()),
        false => Ok(programs),
    }
}

/// The test program that one line of cargo's output tells of.
fn program(line: &str) -> Option<Program> {
    let line: Value = serde_json::from_str(line).ok()?;
    if line["reason"] != "compiler-artifact" || line["profile"]["test"] != true {
        return None;
    }
    let dir = Path::new(line["manifest_path"].as_str()?).parent()?.to_path_buf();
    let package = dir.file_name()?.to_str()?.to_string();
    let source = Path::new(line["target"]["src_path"].as_str()?);
    let source = source.strip_prefix(&dir).unwrap_or(source).display();
    Some(Program { name: format!("{package} {source}"), path: line["executable"].as_str()?.into(), package, dir })
}

impl Program {
    fn run(&self, nice: &str, tests: &[String], logs: &Path, failed: &Mutex<Vec<String>>) -> Result<(), String> {
        let log = logs.join(self.path.file_name().ok_or("a program without a name")?);
        let wrong = |e: std::io::Error| format!("{}: {e}", log.display());
        let out = File::create(&log).map_err(wrong)?;
        let start = Instant::now();
        let mut command = Command::new("nice");
        command
            .args(["-n", nice])
            .arg(&self.path)
            .args(tests)
            .current_dir(&self.dir)
            .env("CARGO_MANIFEST_DIR", &self.dir);
        command.stdin(Stdio::null()).stderr(out.try_clone().map_err(wrong)?).stdout(out);
        let status = command.status().map_err(|e| format!("{}: {e}", self.path.display()))?;
        let text = String::from_utf8_lossy(&fs::read(&log).map_err(wrong)?).into_owned();
        // One lane prints at a time.
        let mut failed = failed.lock().unwrap_or_else(|e| e.into_inner());
        println!("\n     {} ({:.1} s)\n{}", self.name, start.elapsed().as_secs_f64(), text.trim());
        if !status.success() {
            println!("     {} FAILED ({status})", self.name);
            failed.push(self.name.clone());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_programs_are_named_and_nothing_else() {
        let of = |reason: &str, test: bool| {
            format!(
                r#"{{"reason":"{reason}","manifest_path":"/t/crates/cli/Cargo.toml","profile":{{"test":{test}}},
                "target":{{"src_path":"/t/crates/cli/tests/a.rs"}},"executable":"/t/target/debug/deps/a-1"}}"#
            )
        };
        let want = Program {
            package: "cli".into(),
            name: "cli tests/a.rs".into(),
            path: "/t/target/debug/deps/a-1".into(),
            dir: "/t/crates/cli".into(),
        };
        assert_eq!(program(&of("compiler-artifact", true)), Some(want));
        assert_eq!(program(&of("compiler-artifact", false)), None);
        assert_eq!(program(&of("build-script-executed", true)), None);
        assert_eq!(program("warning: something"), None);
    }

    #[test]
    fn every_program_has_one_lane() {
        let of = |package: &str, name: &str| {
            lane(&Program { package: package.into(), name: name.into(), path: "".into(), dir: "".into() })
        };
        assert_eq!(of("cli", "cli tests/traffic.rs"), of("cli", "cli src/main.rs"));
        assert_ne!(of("cli", "cli tests/traffic.rs"), of("cli", "cli tests/controllers.rs"));
        assert_eq!(of("tables", "tables src/lib.rs"), LANES.len() - 1);
        // What is named is there.
        let named = LANES.iter().flat_map(|(names, _)| names.iter()).filter_map(|n| n.strip_prefix("cli "));
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/cli");
        named.for_each(|file| assert!(folder.join(file).exists(), "{file}"));
    }

    #[test]
    fn who_has_done_his_own_helps_the_nodes_from_the_end() {
        let of = |name: &str| Program { package: "cli".into(), name: name.into(), path: "".into(), dir: "".into() };
        let (a, b, c, d) = (of("a"), of("b"), of("c"), of("d"));
        let mut queues: Vec<Mutex<VecDeque<&Program>>> = LANES.iter().map(|_| Mutex::default()).collect();
        queues[NODES] = Mutex::new([&a, &b, &c].into());
        let [controllers, computes] = HELPERS;
        queues[computes] = Mutex::new([&d].into());
        let mut order = Vec::new();
        for lane in [computes, NODES, computes, 2, controllers, NODES, computes] {
            order.push(next(&queues, lane).map(|(p, nice)| (p.name.as_str(), nice)));
        }
        let (nodes, own) = (LANES[NODES].1, LANES[computes].1);
        assert_eq!(LANES[NODES].0, ["cli"]);
        assert_eq!(
            order,
            [Some(("d", own)), Some(("a", nodes)), Some(("c", nodes)), None, Some(("b", nodes)), None, None]
        );
    }

    #[test]
    fn unknown_options_are_refused() {
        assert!(all(&["--realease".to_string()]).is_err_and(|e| e.contains("--realease")));
    }

    #[test]
    fn a_program_that_fails_is_named_and_its_log_is_kept() {
        let dir = std::env::temp_dir().join(format!("tunny-lanes-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let program =
            |path: &str| Program { package: "a".into(), name: path.into(), path: path.into(), dir: dir.clone() };
        let failed = Mutex::new(Vec::new());
        program("/bin/true").run("0", &[], &dir, &failed).unwrap();
        program("/bin/false").run("0", &[], &dir, &failed).unwrap();
        program("/bin/echo").run("10", &["said".to_string()], &dir, &failed).unwrap();
        assert!(program("/bin/no-such-program").run("0", &[], &dir, &failed).is_ok());
        assert_eq!(failed.into_inner().unwrap(), ["/bin/false", "/bin/no-such-program"]);
        assert_eq!(fs::read_to_string(dir.join("echo")).unwrap(), "said\n");
        fs::remove_dir_all(&dir).unwrap();
    }
}
