// SPDX-License-Identifier: Apache-2.0
//! The instrumented copy of the workspace, under `target/mutate/tree`: what git knows, with the mutants in it.

use crate::scan::Scan;
use crate::site::{render, Form, Rendered};
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{fs, io};

/// The crate that every instrumented one uses.
const SWITCH: &str = include_str!("switch.rs.in");

/// The copy, and what of the scan is in it.
pub struct Tree {
    /// Root of the workspace.
    pub root: PathBuf,
    /// Root of the copy.
    pub copy: PathBuf,
    /// All mutants and their sites.
    pub scan: Scan,
    /// Mutants that do not compile.
    pub dropped: HashSet<u32>,
    /// The files as they were written last.
    pub rendered: Vec<Rendered>,
}

impl Tree {
    /// Scans these crates and copies the rest.
    pub fn new(root: &Path, crates: &[String]) -> Result<Tree, String> {
        let mut scan = Scan::default();
        for krate in crates {
            scan.add_crate(root, krate)?;
        }
        let copy = root.join("target/mutate/tree");
        let mut tree = Tree { root: root.into(), copy, scan, dropped: HashSet::new(), rendered: Vec::new() };
        tree.copy_rest(crates)?;
        tree.write()?;
        Ok(tree)
    }

    fn copy_rest(&self, crates: &[String]) -> Result<(), String> {
        let out = Command::new("git")
            .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
            .current_dir(&self.root)
            .output();
        let out = out.map_err(|e| format!("cannot run git: {e}"))?;
        let names = String::from_utf8(out.stdout).map_err(|_| "a file name is not UTF-8")?;
        let mutated: HashSet<&str> = self.scan.files.iter().map(|f| f.path.as_str()).collect();
        let members = members(&self.root, crates)?;
        let mut have = HashSet::new();
        for name in names.split('\0').filter(|n| !n.is_empty() && !mutated.contains(n)) {
            have.insert(PathBuf::from(name));
            let Ok(bytes) = fs::read(self.root.join(name)) else { continue };
            let bytes = match name.strip_prefix("crates/").and_then(|n| n.strip_suffix("/Cargo.toml")) {
                _ if name == "Cargo.toml" => workspace_manifest(&bytes, &members),
                Some(krate) if crates.iter().any(|c| c == krate) => with_switch(&bytes),
                _ => bytes,
            };
            put(&self.copy.join(name), &bytes)
                .map_err(|e| format!("cannot write {}: {e}", self.copy.join(name).display()))?;
        }
        self.remove_old(Path::new("tests"), &have).map_err(|e| e.to_string())?;
        let manifest = "[package]\nname = \"mutant\"\nversion = \"0.1.0\"\nedition = \"2021\"\n[dependencies]\nlibc.workspace = true\n";
        put(&self.copy.join("mutant/Cargo.toml"), manifest.as_bytes()).map_err(|e| e.to_string())?;
        let switch = SWITCH.replace("MUTANTS", &self.scan.mutants.len().to_string());
        put(&self.copy.join("mutant/src/lib.rs"), switch.as_bytes()).map_err(|e| e.to_string())
    }

    /// A text case that is gone must not be run.
    fn remove_old(&self, dir: &Path, have: &HashSet<PathBuf>) -> io::Result<()> {
        for entry in fs::read_dir(self.copy.join(dir))? {
            let entry = entry?;
            let name = dir.join(entry.file_name());
            if entry.file_type()?.is_dir() {
                self.remove_old(&name, have)?;
            } else if !have.contains(&name) {
                fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }

    /// Writes the instrumented files.
    pub fn write(&mut self) -> Result<(), String> {
        self.rendered.clear();
        for file in &self.scan.files {
            let rendered = render(&file.text, &file.sites, &self.dropped);
            let path = self.copy.join(&file.path);
            put(&path, rendered.text.as_bytes()).map_err(|e| format!("cannot write {}: {e}", path.display()))?;
            self.rendered.push(rendered);
        }
        Ok(())
    }

    /// Drops what stands at a place that does not compile: the smallest site around it with mutants in it, else all in the
    /// statement's lines, else in the function. False: nothing was found to drop.
    pub fn drop_at(&mut self, file: &str, start: usize, end: usize) -> bool {
        let Some(index) = self.scan.files.iter().position(|f| f.path == file) else { return false };
        let (sites, rendered) = (&self.scan.files[index].sites, &self.rendered[index]);
        let live =
            |site: usize| sites[site].ids().into_iter().filter(|id| !self.dropped.contains(id)).collect::<Vec<_>>();
        let around =
            rendered.placed.iter().filter(|p| p.range.start <= start && end <= p.range.end && !live(p.site).is_empty());
        // The statement and the function are around everything: they are not to blame as long as there is something else.
        let blame = |p: &&crate::site::Placed| (matches!(sites[p.site].form, Form::Statement(_)), p.range.len());
        if let Some(place) = around.min_by_key(blame) {
            self.dropped.extend(live(place.site));
            return true;
        }
        let line_start = rendered.text[..start].rfind('\n').map_or(0, |i| i + 1);
        let line_end = rendered.text[end..].find('\n').map_or(rendered.text.len(), |i| end + i);
        let function = rendered
            .placed
            .iter()
            .filter(|p| matches!(sites[p.site].form, Form::Function) && p.range.start <= start && end <= p.range.end);
        let function = function.map(|p| p.range.clone()).min_by_key(|r| r.len());
        for span in [Some(line_start..line_end), function].into_iter().flatten() {
            let inside = rendered.placed.iter().filter(|p| span.start <= p.range.start && p.range.end <= span.end);
            let ids: Vec<u32> = inside.flat_map(|p| live(p.site)).collect();
            if !ids.is_empty() {
                self.dropped.extend(ids);
                return true;
            }
        }
        false
    }

    /// A function that constants use stays `const`, and is not mutated.
    pub fn keep_const(&mut self, name: &str) -> bool {
        let mut found = false;
        for file in &mut self.scan.files {
            let starts: Vec<usize> = file
                .sites
                .iter()
                .filter(|s| matches!(&s.form, Form::Unconst(n) if n == name))
                .map(|s| s.span.start)
                .collect();
            for start in starts {
                let function =
                    file.sites.iter().filter(|s| matches!(s.form, Form::Function) && s.span.contains(&start));
                let Some(span) = function.map(|s| s.span.clone()).min_by_key(|s| s.len()) else { continue };
                let inside = file.sites.iter().filter(|s| span.start <= s.span.start && s.span.end <= span.end);
                self.dropped.extend(inside.flat_map(|s| s.ids()));
                file.sites.retain(|s| !(s.span.start == start && matches!(s.form, Form::Unconst(_))));
                found = true;
            }
        }
        found
    }
}

/// Writes a file only if it changes, so that cargo builds only what it must.
fn put(path: &Path, bytes: &[u8]) -> io::Result<()> {
    if fs::read(path).is_ok_and(|have| have == bytes) {
        return Ok(());
    }
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir)?;
    }
    fs::write(path, bytes)
}

/// Crates that take part in a build of the tests: these, `testkit`, and all that they use.
fn members(root: &Path, crates: &[String]) -> Result<Vec<String>, String> {
    let mut members: Vec<String> = crates.to_vec();
    members.push("testkit".into());
    let mut next = 0;
    while let Some(krate) = members.get(next) {
        let path = root.join("crates").join(krate).join("Cargo.toml");
        let text = fs::read_to_string(&path).map_err(|e| format!("cannot read {}: {e}", path.display()))?;
        let used = text.lines().filter_map(|l| l.strip_suffix(".workspace = true"));
        let used: Vec<String> = used
            .filter(|n| root.join("crates").join(n).is_dir() && !members.iter().any(|m| m == n))
            .map(String::from)
            .collect();
        members.extend(used);
        next += 1;
    }
    members.sort();
    members.dedup();
    Ok(members)
}

/// The workspace's manifest: fewer members, and no lint that a mutant could trip over.
fn workspace_manifest(bytes: &[u8], members: &[String]) -> Vec<u8> {
    let text = String::from_utf8_lossy(bytes);
    let mut out = String::new();
    let mut lints = false;
    for line in text.lines() {
        lints = if line.starts_with('[') { line.starts_with("[workspace.lints") } else { lints };
        if line.starts_with("members") {
            let members: Vec<String> = members.iter().map(|m| format!("\"crates/{m}\"")).collect();
            out += &format!("members = [\"mutant\", {}]\n", members.join(", "));
        } else if !lints {
            out += &format!("{line}\n");
        }
    }
    out += "[workspace.lints.rust]\nwarnings = \"allow\"\nunsafe_op_in_unsafe_fn = \"allow\"\noverflowing_literals = \"allow\"\n";
    out += "arithmetic_overflow = \"allow\"\nunconditional_panic = \"allow\"\n";
    out.into_bytes()
}

fn with_switch(bytes: &[u8]) -> Vec<u8> {
    let text = String::from_utf8_lossy(bytes);
    text.replacen("\n[dependencies]\n", "\n[dependencies]\nmutant = { path = \"../../mutant\" }\n", 1).into_bytes()
}
