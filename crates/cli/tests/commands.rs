// SPDX-License-Identifier: Apache-2.0
//! Golden command lines: `tests/commands/*.case`, whose README describes the format.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

const TUNNY: &str = env!("CARGO_BIN_EXE_tunny");

/// Command lines that are refused must be at least so many.
const REFUSED_MIN: usize = 50;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// What a command line must give, and where in the file that is said.
#[derive(Default)]
struct Run {
    words: Vec<String>,
    stdin: String,
    status: i32,
    out: Vec<String>,
    err: Vec<String>,
    /// Number of its line, from 0.
    line: usize,
    /// Lines behind it that say what it gives.
    said: usize,
}

/// The folder and the node of one file.
struct Scene {
    dir: TempDir,
    node: Option<Child>,
}

impl Scene {
    fn new() -> Scene {
        Scene { dir: tempfile::tempdir().unwrap(), node: None }
    }

    /// Paths for their names in braces.
    fn names(&self) -> [(&'static str, String); 3] {
        [
            ("{socket}", self.dir.path().join("s").display().to_string()),
            ("{dir}", self.dir.path().display().to_string()),
            ("{example}", root().join("examples/region.yaml").display().to_string()),
        ]
    }

    fn fill(&self, text: &str) -> String {
        self.names().iter().fold(text.to_string(), |t, (name, path)| t.replace(name, path))
    }

    fn unfill(&self, text: &str) -> String {
        self.names().iter().fold(text.to_string(), |t, (name, path)| t.replace(path, name))
    }

    fn command(&self) -> Command {
        let mut command = Command::new(TUNNY);
        command.current_dir(self.dir.path());
        for name in ["TUNNY_INSTANCE", "TUNNY_SOCKET", "RUST_LOG", "NOTIFY_SOCKET", "INVOCATION_ID"] {
            command.env_remove(name);
        }
        command
    }

    fn start(&mut self, more: &[String]) {
        let mut command = self.command();
        command
            .args(["node", "--instance", "commands", "--engine", "none", "--socket", "s", "--state", "state"])
            .args(more);
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap());
        let mut said = String::new();
        while !said.contains("listening on") {
            assert!(log.read_line(&mut said).unwrap() > 0, "the node ended at once: {said}");
        }
        // A full pipe would stop the node.
        std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
        self.node = Some(child);
    }

    /// Exit status, standard output, standard error.
    fn run(&self, run: &Run) -> (i32, String, String) {
        let mut command = self.command();
        let socket =
            if self.node.is_some() { self.dir.path().join("s") } else { PathBuf::from("/nonexistent/tunny.sock") };
        command.env("TUNNY_SOCKET", socket).env("COLUMNS", "120").args(run.words.iter().map(|w| self.fill(w)));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // A command that reads nothing may be gone already.
        let _ = child.stdin.take().unwrap().write_all(self.fill(&run.stdin).as_bytes());
        let out = child.wait_with_output().unwrap();
        let text = |bytes: &[u8]| self.unfill(&String::from_utf8_lossy(bytes));
        (out.status.code().unwrap_or(-1), text(&out.stdout), text(&out.stderr))
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        if let Some(mut child) = self.node.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Words as a shell takes them.
fn words(line: &str) -> Vec<String> {
    let (mut list, mut word, mut quote) = (Vec::new(), None::<String>, None);
    for c in line.chars() {
        match (quote, c) {
            (Some(q), c) if c == q => quote = None,
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, ' ') => list.extend(word.take()),
            _ => word.get_or_insert_default().push(c),
        }
    }
    assert!(quote.is_none(), "a quote is open: {line}");
    list.extend(word);
    list
}

/// Whether a line is as expected, where `{*}` stands for anything.
fn fits(expected: &str, line: &str) -> bool {
    let mut parts = expected.split("{*}");
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = line.strip_prefix(first) else { return false };
    let parts: Vec<&str> = parts.collect();
    let Some((last, middle)) = parts.split_last() else { return rest.is_empty() };
    for part in middle {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

fn all_fit(expected: &[String], text: &str) -> bool {
    let lines: Vec<&str> = text.lines().collect();
    expected == ["..."]
        || expected.len() == lines.len() && expected.iter().zip(lines).all(|(e, l)| fits(e, l.trim_end()))
}

/// A file that is read and run at once, case by case.
struct Reader<'a> {
    lines: Vec<&'a str>,
    at: usize,
    scene: Scene,
    case: String,
    stdin: String,
    refused: usize,
    wrong: Vec<String>,
    /// The file with what was said in place of what was expected.
    blessed: Vec<String>,
}

impl<'a> Reader<'a> {
    fn new(text: &'a str) -> Self {
        let lines = text.lines().collect();
        let (case, stdin) = (String::new(), String::new());
        Reader { lines, at: 0, scene: Scene::new(), case, stdin, refused: 0, wrong: Vec::new(), blessed: Vec::new() }
    }

    fn next(&mut self) -> Option<&'a str> {
        let line = *self.lines.get(self.at)?;
        self.at += 1;
        Some(line)
    }

    /// The lines that follow, each after `| `.
    fn content(&mut self) -> String {
        let mut text = String::new();
        while let Some(line) = self.lines.get(self.at).and_then(|l| l.strip_prefix('|')) {
            text += line.strip_prefix(' ').unwrap_or(line);
            text.push('\n');
            self.blessed.push(self.lines[self.at].to_string());
            self.at += 1;
        }
        text
    }

    fn all(&mut self) {
        while let Some(line) = self.next() {
            let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
            self.blessed.push(line.to_string());
            match word {
                "" | "#" => {}
                "node" => self.scene.start(&words(rest).iter().map(|w| self.scene.fill(w)).collect::<Vec<_>>()),
                "case" => self.case = rest.to_string(),
                "file" => {
                    let text = self.content();
                    let path = self.scene.dir.path().join(rest);
                    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                    std::fs::write(path, self.scene.fill(&text)).unwrap();
                }
                "stdin" => self.stdin = self.content(),
                "run" => self.run(rest),
                _ => panic!("line {}: `{word}` is none of node, case, file, stdin, run, status, out, err", self.at),
            }
        }
    }

    fn run(&mut self, line: &str) {
        let mut run =
            Run { words: words(line), stdin: std::mem::take(&mut self.stdin), line: self.at - 1, ..Default::default() };
        while let Some(line) = self.lines.get(self.at) {
            let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
            match word {
                "status" => run.status = rest.parse().unwrap(),
                "out" => run.out.push(rest.to_string()),
                "err" => run.err.push(rest.to_string()),
                _ => break,
            }
            (self.at, run.said) = (self.at + 1, run.said + 1);
        }
        let (status, out, err) = self.scene.run(&run);
        self.refused += usize::from(status != 0);
        let (out_fits, err_fits) = (all_fit(&run.out, &out), all_fit(&run.err, &err));
        if status != run.status || !out_fits || !err_fits {
            let place = format!("line {}: {}: tunny {line}", run.line + 1, self.case);
            self.wrong.push(format!("{place}\nstatus {status}, expected {}\n{out}{err}", run.status));
        }
        let mut say = |word: &str, good: bool, old: Vec<String>, new: &str| {
            let lines = if good { old } else { new.lines().map(|l| l.trim_end().to_string()).collect() };
            self.blessed.extend(lines.iter().map(|l| format!("{word} {l}").trim_end().to_string()));
        };
        say("status", false, Vec::new(), &if status == 0 { String::new() } else { status.to_string() });
        say("out", out_fits, run.out, &out);
        say("err", err_fits, run.err, &err);
    }
}

fn check(path: &Path) -> (usize, Vec<String>) {
    let text = std::fs::read_to_string(path).unwrap();
    let mut reader = Reader::new(&text);
    reader.all();
    let name = path.file_name().unwrap().to_string_lossy();
    if std::env::var_os("TUNNY_BLESS").is_some() {
        std::fs::write(path, reader.blessed.join("\n") + "\n").unwrap();
    }
    (reader.refused, reader.wrong.iter().map(|w| format!("{name} {w}")).collect())
}

#[test]
fn every_command_line_says_what_is_written() {
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(root().join("tests/commands")).unwrap().map(|e| e.unwrap().path()).collect();
    files.retain(|f| f.extension().is_some_and(|e| e == "case"));
    let results: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = files.iter().map(|file| scope.spawn(|| check(file))).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    let wrong: Vec<String> = results.iter().flat_map(|(_, wrong)| wrong.clone()).collect();
    let refused: usize = results.iter().map(|(n, _)| n).sum();
    println!("{} files, {refused} command lines refused as they must be", files.len());
    assert!(wrong.is_empty(), "{}\nTUNNY_BLESS=1 accepts what is said", wrong.join("\n"));
    assert!(refused >= REFUSED_MIN, "only {refused} command lines are refused");
}

#[test]
fn the_format_is_read_as_its_readme_says() {
    assert_eq!(words("get vm 'a b' \"\" x\"y\"z"), ["get", "vm", "a b", "", "xyz"]);
    assert!(fits("a {*} c", "a b b c") && fits("{*}", "") && fits("a", "a") && fits("{*}b{*}b", "abab"));
    assert!(!fits("a {*} c", "a c") && !fits("a", "ab") && !fits("a{*}", "ba") && !fits("{*}b", "abc"));
    assert!(all_fit(&["...".into()], "x\ny\n") && all_fit(&[], "") && !all_fit(&[], "x\n"));
}
