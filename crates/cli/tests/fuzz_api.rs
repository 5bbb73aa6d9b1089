// SPDX-License-Identifier: Apache-2.0
//! The controller's API beside its OpenAPI document: schemathesis makes requests of the document, right and wrong ones, and holds statuses,
//! media types and bodies of the answers against it.

mod process;
mod terminal;

use process::{begin_region, Daemon};
use std::path::{Path, PathBuf};
use std::process::Command;
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
