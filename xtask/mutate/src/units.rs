// SPDX-License-Identifier: Apache-2.0
//! Units of testing: a test, or the text cases of one file. Each is run once without a mutant, which tells whether it passes, what
//! it costs and which mutants it reaches.

use crate::compile::Program;
use crate::process::{self, End};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Mutex;
use std::time::Duration;

/// Longest CPU time of a unit without a mutant.
const UNIT_MAX: Duration = Duration::from_secs(8);

/// Tests over all text cases: a unit for each file.
const CASE_TESTS: &[&str] = &["all_cases_on_the_rust_path", "filter_cases_with_state_tables_on_the_rust_path"];

/// Random tests get less to do than in `make test`: names and values of variables.
const FEWER: &[(&str, &str)] = &[
    ("TUNNY_PACKETS", "40000"),
    ("TUNNY_NAT_PACKETS", "6000"),
    ("TUNNY_FILTER_PACKETS", "20000"),
    ("TUNNY_EVENTS", "60000"),
    ("TUNNY_GROWTH", "100000"),
    ("TUNNY_KILLS", "4"),
];

/// A unit.
#[derive(Clone, Debug)]
pub struct Unit {
    /// Index of its program.
    pub program: usize,
    /// Name of the test.
    pub test: String,
    /// Only the cases of this file.
    pub cases: Option<String>,
    /// CPU time without a mutant.
    pub cost: Duration,
    /// A byte a mutant: reached.
    pub reached: Vec<u8>,
}

/// All that tests are run with.
pub struct Bench {
    /// The programs.
    pub programs: Vec<Program>,
    /// Units that pass, cheapest first.
    pub units: Vec<Unit>,
    /// Those that do not, or take too long: name and why.
    pub left_out: Vec<(String, String)>,
    /// Seed of the random tests.
    pub seed: u64,
    /// Where runs keep temporary files.
    pub scratch: PathBuf,
}

impl Bench {
    /// The name of a unit.
    pub fn name(&self, unit: &Unit) -> String {
        let cases = unit.cases.as_ref().map_or(String::new(), |c| format!(" [{c}]"));
        format!("{}::{}{cases}", self.programs[unit.program].name, unit.test)
    }

    /// A command that runs these tests of a program.
    pub fn command(&self, program: usize, tests: &[&str], cases: Option<&str>, worker: usize) -> Command {
        let p = &self.programs[program];
        let mut c = Command::new(&p.path);
        c.args(tests).args(["--exact", "--test-threads=1"]).current_dir(&p.dir);
        let scratch = self.scratch.join(worker.to_string());
        let _ = std::fs::remove_dir_all(&scratch);
        let _ = std::fs::create_dir_all(&scratch);
        c.env("TMPDIR", scratch).env("TUNNY_SEED", self.seed.to_string()).envs(FEWER.iter().copied());
        c.env("CARGO_MANIFEST_DIR", &p.dir).env_remove("TUNNY_MUTANT").env_remove("RUST_BACKTRACE");
        if let Some(cases) = cases {
            c.env("TUNNY_CASE", cases);
        }
        c
    }

    /// Finds the units of these programs and tries them.
    pub fn new(programs: Vec<Program>, copy: &Path, seed: u64, mutants: usize, jobs: usize) -> Result<Bench, String> {
        let scratch = copy.with_file_name("scratch");
        let mut bench = Bench { programs, units: Vec::new(), left_out: Vec::new(), seed, scratch };
        let mut units = Vec::new();
        for program in 0..bench.programs.len() {
            for test in bench.tests(program)? {
                let all = CASE_TESTS.contains(&test.as_str());
                let cases = if all {
                    case_files(&copy.join("tests/packets"))?.into_iter().map(Some).collect()
                } else {
                    vec![None]
                };
                units.extend(cases.into_iter().map(|cases| Unit {
                    program,
                    test: test.clone(),
                    cases,
                    cost: Duration::ZERO,
                    reached: Vec::new(),
                }));
            }
        }
        let (next, tried) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
        std::thread::scope(|s| {
            for worker in 0..jobs {
                let (bench, units, next, tried) = (&bench, &units, &next, &tried);
                s.spawn(move || {
                    while let Some(unit) = units.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let outcome = bench.try_unit(unit, mutants, worker);
                        tried.lock().expect("no thread panics").push((unit.clone(), outcome));
                    }
                });
            }
        });
        for (unit, outcome) in tried.into_inner().expect("no thread panics") {
            match outcome {
                Ok((cost, reached)) => bench.units.push(Unit { cost, reached, ..unit }),
                Err(why) => bench.left_out.push((bench.name(&unit), why)),
            }
        }
        bench.units.sort_by_key(|u| u.cost);
        let list: String =
            bench.units.iter().map(|u| format!("{:8.3} s {}\n", u.cost.as_secs_f64(), bench.name(u))).collect();
        std::fs::write(copy.with_file_name("units.txt"), list).map_err(|e| e.to_string())?;
        bench.left_out.sort();
        Ok(bench)
    }

    /// The tests of a program that are not ignored.
    fn tests(&self, program: usize) -> Result<Vec<String>, String> {
        let list = |more: &[&str]| -> Result<Vec<String>, String> {
            let p = &self.programs[program];
            let out =
                Command::new(&p.path).args(["--list", "--format", "terse"]).args(more).current_dir(&p.dir).output();
            let out = out.map_err(|e| format!("cannot run {}: {e}", p.path.display()))?;
            Ok(String::from_utf8_lossy(&out.stdout)
                .lines()
                .filter_map(|l| l.strip_suffix(": test"))
                .map(String::from)
                .collect())
        };
        let ignored = list(&["--ignored"])?;
        Ok(list(&[])?.into_iter().filter(|t| !ignored.contains(t)).collect())
    }

    fn try_unit(&self, unit: &Unit, mutants: usize, worker: usize) -> Result<(Duration, Vec<u8>), String> {
        let file = self.scratch.join(format!("reached-{worker}"));
        std::fs::create_dir_all(&self.scratch)
            .and_then(|()| std::fs::write(&file, vec![0; mutants.max(1)]))
            .map_err(|e| e.to_string())?;
        let mut command = self.command(unit.program, &[&unit.test], unit.cases.as_deref(), worker);
        command.env("TUNNY_MUTANT_REACHED", &file);
        let run = process::run(&mut command, UNIT_MAX, UNIT_MAX * 100).map_err(|e| e.to_string())?;
        if run.end != End::Passed {
            return Err(format!("{:?} without a mutant", run.end));
        }
        Ok((run.cpu, std::fs::read(&file).map_err(|e| e.to_string())?))
    }
}

/// Names of the case files, as they stand in `TUNNY_CASE`.
fn case_files(dir: &Path) -> Result<Vec<String>, String> {
    let (mut todo, mut out) = (vec![dir.to_path_buf()], Vec::new());
    while let Some(at) = todo.pop() {
        for entry in std::fs::read_dir(&at).map_err(|e| format!("cannot read {}: {e}", at.display()))?.flatten() {
            let path = entry.path();
            if path.is_dir() {
                todo.push(path);
            } else if path.extension().is_some_and(|e| e == "case") {
                out.extend(path.file_name().map(|n| n.to_string_lossy().into_owned()));
            }
        }
    }
    // Files of the same name in several directories are run together.
    out.sort();
    out.dedup();
    Ok(out)
}
