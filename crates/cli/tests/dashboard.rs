// SPDX-License-Identifier: Apache-2.0
//! The dashboard in a real browser: a controller and its nodes as processes, headless Chromium before them (`dashboard/check.mjs`). With
//! `TUNNY_PICTURES=FOLDER` its screenshots stay.

mod process;
mod terminal;

use process::{begin_region, Daemon};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use terminal::TUNNY;

const GATEWAY: &str = "apiVersion: tunny/v1
kind: Gateway
metadata: {name: gateway}
spec: {vtep: {ipv4: 198.51.100.9}, limits: {vpcs: 20, routes: 64, vms: 400, ncs: 12}}
";

/// Two clusters of two nodes, a dozen tenants.
fn region() -> String {
    let mut lines = vec![
        "kind: Cluster, metadata: {name: north}, spec: {addresses: [198.51.100.1]}".to_string(),
        "kind: Cluster, metadata: {name: south}, spec: {addresses: [198.51.100.2]}".into(),
        "kind: Role, metadata: {name: reader}, spec: {access: readOnly}".into(),
        "kind: Role, metadata: {name: payments}, spec: {access: tenant, tenant: payments}".into(),
    ];
    for node in ["north-1", "north-2", "south-1", "south-2"] {
        let cluster = &node[..5];
        lines.push(format!("kind: Node, metadata: {{name: {node}}}, spec: {{cluster: {cluster}}}"));
        lines.push(format!("kind: Role, metadata: {{name: {node}}}, spec: {{access: node, node: {node}}}"));
    }
    for rack in 1..=8 {
        lines.push(format!("kind: Nc, metadata: {{name: rack{rack}}}, spec: {{address: 192.0.2.{rack}}}"));
    }
    let tenants =
        ["payments", "search", "media", "maps", "mail", "games", "ledger", "shop", "lab", "press", "health", "freight"];
    for (t, tenant) in tenants.iter().enumerate() {
        let cluster = ["north", "north", "south"][t % 3];
        lines.push(format!("kind: Tenant, metadata: {{name: {tenant}}}, spec: {{vpcs: [{tenant}-prod, {tenant}-test], cluster: {cluster}}}"));
        for (v, vpc) in ["prod", "test"].into_iter().enumerate() {
            let name = format!("{tenant}-{vpc}");
            lines.push(format!("kind: Vpc, metadata: {{name: {name}}}, spec: {{vni: {}}}", 1000 + 10 * t + v));
            lines.push(format!("kind: Route, spec: {{vpc: {name}, prefix: 10.{t}.{v}.0/24, scope: local}}"));
            lines.push(format!("kind: Route, spec: {{vpc: {name}, prefix: 10.{t}.99.0/24, scope: blackhole}}"));
            for vm in 1..=12 {
                lines.push(format!("kind: Vm, metadata: {{name: {name}-web{vm:02}}}, spec: {{vpc: {name}, addresses: [10.{t}.{v}.{vm}], mac: \"02:00:{t:02x}:{v:02x}:00:{vm:02x}\", nc: rack{}}}", (t + vm) % 8 + 1));
            }
        }
    }
    lines.iter().map(|line| format!("{{apiVersion: tunny/v1, {line}}}\n---\n")).collect()
}

#[test]
fn the_dashboard_works_in_a_browser() {
    // Beside the build.
    let browser = Path::new(TUNNY).ancestors().nth(2).unwrap().join("browser/node_modules/playwright-core");
    if !skip::have_tool("chromium", "chromium") || !skip::have_tool("node", "nodejs") {
        return;
    }
    if !browser.is_dir() {
        return skip::test("needs playwright-core", "TUNNY_CI=1 scripts/deps.sh");
    }
    let dir = tempfile::tempdir().unwrap();
    let (_controller, url) = begin_region(dir.path(), "alpine");
    let run = |words: &[&str], input: &str| {
        let mut command = Command::new(TUNNY);
        command.args(words).current_dir(dir.path()).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
        let out = child.wait_with_output().unwrap();
        assert!(out.status.success(), "{words:?}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap()
    };
    let server =
        ["--server", &url, "--ca", "region/ca.crt", "--cert", "region/operator.crt", "--key", "region/operator.key"];
    let operator = |words: &[&str], input: &str| run(&[&server[..], words].concat(), input);
    operator(&["apply", "-", "--yes"], &region());
    // With limits that are small, levels are to be seen.
    std::fs::write(dir.path().join("gateway.yaml"), GATEWAY).unwrap();
    let mut nodes = Vec::new();
    for name in ["north-1", "north-2", "south-1", "south-2"] {
        operator(&["credential", "create", name, "--certificate"], "");
        let (socket, state) = (format!("{name}.sock"), format!("{name}.state"));
        let (cert, key) = (format!("{name}.crt"), format!("{name}.key"));
        let own = [
            "node",
            "--instance",
            name,
            "--engine",
            "none",
            "--config",
            "gateway.yaml",
            "--socket",
            &socket,
            "--state",
            &state,
        ];
        let controller = ["--controller", &url, "--ca", "region/ca.crt", "--cert", &cert, "--key", &key];
        nodes.push(Daemon::start(dir.path(), &[&own[..], &controller[..]].concat()));
    }
    let token = |role: &str| {
        operator(&["credential", "create", role], "");
        std::fs::read_to_string(dir.path().join(format!("{role}.token"))).unwrap().trim().to_string()
    };
    let tokens = ["operator", "payments"].map(token);
    let kept = std::env::var_os("TUNNY_PICTURES").map(PathBuf::from);
    let pictures = kept.unwrap_or_else(|| dir.path().join("pictures"));
    std::fs::create_dir_all(&pictures).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/dashboard/check.mjs");
    let out = Command::new("node")
        .arg(script)
        .env("TUNNY_URL", &url)
        .env("TUNNY_OPERATOR", &tokens[0])
        .env("TUNNY_TENANT", &tokens[1])
        .env("TUNNY_PICTURES", &pictures)
        .env("TUNNY_PLAYWRIGHT", browser.join("index.mjs"))
        .output()
        .unwrap();
    let said = [out.stdout, out.stderr].map(|s| String::from_utf8_lossy(&s).into_owned()).concat();
    assert!(out.status.success() && said.contains("all is well"), "{said}");
    print!("{said}");
}
