// SPDX-License-Identifier: Apache-2.0
//! The controller's API beside its OpenAPI document: schemathesis makes requests of the document, right and wrong ones, and holds statuses,
//! media types and bodies of the answers against it.

mod process;
mod terminal;

use process::{begin_region, Daemon};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use terminal::TUNNY;

const WORLD: &str = "
{apiVersion: tunny/v1, kind: Cluster, metadata: {name: a}, spec: {addresses: [192.0.2.200]}}
---
{apiVersion: tunny/v1, kind: Node, metadata: {name: a1}, spec: {cluster: a}}
---
{apiVersion: tunny/v1, kind: Role, metadata: {name: a1}, spec: {access: node, node: a1}}
---
{apiVersion: tunny/v1, kind: Role, metadata: {name: host}, spec: {access: host}}
---
{apiVersion: tunny/v1, kind: Role, metadata: {name: red}, spec: {access: tenant, tenant: red}}
---
{apiVersion: tunny/v1, kind: Vpc, metadata: {name: red}, spec: {vni: 101}}
---
{apiVersion: tunny/v1, kind: Route, spec: {vpc: red, prefix: 10.0.0.0/8, scope: local}}
---
{apiVersion: tunny/v1, kind: Tenant, metadata: {name: red}, spec: {vpcs: [red], cluster: a}}
";

/// Paths whose answers have no end, or are as long as the store.
const ENDLESS: &str = "live|watch|stream|backup";

struct Api {
    dir: tempfile::TempDir,
    url: String,
    fuzzer: PathBuf,
    _controller: Daemon,
}

impl Api {
    fn start(fuzzer: PathBuf) -> Api {
        let dir = tempfile::tempdir().unwrap();
        let (_controller, url) = begin_region(dir.path(), "north");
        let api = Api { dir, url, fuzzer, _controller };
        std::fs::write(api.dir.path().join("world.yaml"), WORLD).unwrap();
        api.operator(&["apply", "world.yaml", "--yes"]);
        for role in ["a1", "host", "red"] {
            api.operator(&["credential", "create", role]);
        }
        api
    }

    fn operator(&self, words: &[&str]) {
        let mut command = Command::new(TUNNY);
        command.args(["--server", &self.url, "--ca", "region/ca.crt"]).args(["--token-file", "region/operator.token"]);
        let out = command.args(words).current_dir(self.dir.path()).output().unwrap();
        assert!(out.status.success(), "{words:?}: {}", String::from_utf8_lossy(&out.stderr));
    }

    /// Requests of a Role; what is found is told with the request that shows it.
    fn fuzz(&self, token: &str, words: &[&str], seed: &str) {
        let token = std::fs::read_to_string(self.dir.path().join(token)).unwrap();
        let config = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/fuzz-api/schemathesis.toml");
        // An answer without an end that the document does not know would hold it up for ever.
        let mut command = Command::new("timeout");
        command.arg("300").arg(&self.fuzzer).arg("--config-file").arg(config).args([
            "run",
            "openapi.json",
            "-u",
            &self.url,
        ]);
        command.args(["--tls-verify", "region/ca.crt", "--seed", seed, "--generation-database", "none"]);
        command.args(["-H", &format!("Authorization: Bearer {}", token.trim())]).args(words);
        let out = command.current_dir(self.dir.path()).output().unwrap();
        let said = String::from_utf8_lossy(&out.stdout);
        assert!(out.status.success(), "{said}{}", String::from_utf8_lossy(&out.stderr));
        println!("{}", said.lines().filter(|l| l.contains("generated")).collect::<String>());
    }
}

#[test]
fn the_api_answers_as_its_document_says() {
    // Beside the build.
    let fuzzer = Path::new(TUNNY).ancestors().nth(2).unwrap().join("fuzz-api/bin/schemathesis");
    if !fuzzer.exists() {
        return skip::test("needs schemathesis", "TUNNY_CI=1 scripts/deps.sh");
    }
    let api = Api::start(fuzzer);
    std::fs::write(api.dir.path().join("openapi.json"), controller::openapi::document().to_string()).unwrap();
    let seed = rand::random::<u32>().to_string();
    println!("seed {seed}");
    let most = ["--exclude-path-regex", ENDLESS, "--max-examples"];
    // All that is special in a schema is tried once, by whoever may try most; the others draw.
    api.fuzz("region/operator.token", &[&most[..], &["10"]].concat(), &seed);
    let drawn = ["--phases", "fuzzing"];
    api.fuzz("red.token", &[&most[..], &["5"], &drawn].concat(), &seed);
    api.fuzz("a1.token", &[&drawn[..], &["--include-path", "/v1/report"]].concat(), &seed);
    // GET has no end.
    let upstream = ["--include-path", "/v1/upstream", "--exclude-method", "GET"];
    api.fuzz("host.token", &[&drawn[..], &upstream].concat(), &seed);
}

/// Lines of an answer that may have no end: the first so many, or all.
fn first_lines(mut curl: Command, most: usize) -> String {
    let mut child = curl.stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let text = lines.take(most).map(|line| line + "\n").collect();
    let _ = child.kill();
    child.wait().unwrap();
    text
}

/// How many lines there are of each form that a document knows; what is of none is told.
fn of_each_form(python: &Path, document: &Path, request: [&str; 2], lines: &str) -> Vec<usize> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/fuzz-api/lines.py");
    let mut child = Command::new(python)
        .arg(script)
        .arg(document)
        .args(request)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    let out = child.wait_with_output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap().split_whitespace().map(|n| n.parse().unwrap()).collect()
}

#[test]
fn lines_are_those_that_the_documents_describe() {
    let python = Path::new(TUNNY).ancestors().nth(2).unwrap().join("fuzz-api/bin/python");
    if !python.exists() {
        return skip::test("needs schemathesis", "TUNNY_CI=1 scripts/deps.sh");
    }
    let api = Api::start(PathBuf::new());
    let document = api.dir.path().join("openapi.json");
    std::fs::write(&document, controller::openapi::document().to_string()).unwrap();
    let token = |file: &str| std::fs::read_to_string(api.dir.path().join(file)).unwrap().trim().to_string();
    let objects = WORLD.matches("apiVersion").count();
    let tell = |who: &str, path: &str, most: usize| {
        let mut curl = Command::new("curl");
        curl.args(["-sSN", "--cacert", "region/ca.crt", "-H", &format!("Authorization: Bearer {}", token(who))]);
        curl.arg(format!("{}{path}", api.url)).current_dir(api.dir.path());
        first_lines(curl, most)
    };
    let operator = "region/operator.token";
    // Region and its operator were there before.
    for (who, wanted, path, most, expected) in [
        (operator, "/v1/objects/all", "/v1/objects/{kind}", usize::MAX, vec![objects + 2, 1]),
        (operator, "/v1/objects/vm", "/v1/objects/{kind}", usize::MAX, vec![0, 1]),
        (operator, "/v1/watch?after=1", "/v1/watch", objects, vec![objects, 0]),
        (operator, "/v1/live", "/v1/live", 1, vec![1]),
        ("host.token", "/v1/upstream?vnis=101", "/v1/upstream", 1, vec![1]),
    ] {
        let lines = tell(who, wanted, most);
        assert_eq!(of_each_form(&python, &document, ["get", path], &lines), expected, "{wanted}: {lines}");
    }
    let saved = tell(operator, "/v1/backup", usize::MAX);
    let forms = of_each_form(&python, &document, ["get", "/v1/backup"], &saved);
    assert!(forms[0] == 1 && forms[1] > objects && forms[2] == 1, "{forms:?}");
    // And those of a node.
    let node = terminal::Node::start();
    let tell = |words: &[&str]| {
        let mut curl = Command::new("curl");
        curl.args(["-sSN", "--unix-socket"]).arg(node.socket()).args(words);
        first_lines(curl, usize::MAX)
    };
    std::fs::write(&document, tell(&["http://n/v1/openapi.json"])).unwrap();
    for (path, words, request) in [
        ("/v1/objects/{kind}", vec!["http://n/v1/objects/all"], "get"),
        ("/v1/objects/{kind}", vec!["http://n/v1/objects/vm?tables=true"], "get"),
        ("/v1/vm-counters", vec!["http://n/v1/vm-counters"], "get"),
    ] {
        let lines = tell(&words);
        let forms = of_each_form(&python, &document, [request, path], &lines);
        assert!(forms[0] > 0 && forms[1] == 1, "{path}: {forms:?} {lines}");
    }
    let lines = tell(&["-H", "content-type: application/json", "-d", "{}", "http://n/v1/sessions"]);
    assert_eq!(of_each_form(&python, &document, ["post", "/v1/sessions"], &lines), [0, 1], "{lines}");
    // What is not described is found.
    let stranger =
        std::panic::catch_unwind(|| of_each_form(&python, &document, ["get", "/v1/vm-counters"], "{\"vm\": 7}\n"));
    assert!(stranger.is_err());
}

#[test]
fn whoever_sends_too_much_sees_why_it_is_refused() {
    let api = Api::start(PathBuf::new());
    let file = api.dir.path().join("long");
    std::fs::write(&file, vec![b'x'; 3 << 20]).unwrap();
    let operator = std::fs::read_to_string(api.dir.path().join("region/operator.token")).unwrap();
    for (token, expected) in [("none", "401"), (operator.trim(), "413")] {
        for _ in 0..20 {
            // Without asking first whether it may go on (RFC 9110, 10.1.1).
            let mut curl = Command::new("curl");
            curl.args(["-sS", "--cacert", "region/ca.crt", "-H", "Expect:", "-o", "/dev/null", "-w", "%{http_code}"]);
            curl.args(["-H", &format!("Authorization: Bearer {token}"), "--data-binary", "@long"]);
            let out = curl.arg(format!("{}/v1/trace", api.url)).current_dir(api.dir.path()).output().unwrap();
            let (said, error) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
            assert!(out.status.success() && said == expected, "{said} {error}");
        }
    }
}
