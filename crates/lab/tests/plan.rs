// SPDX-License-Identifier: Apache-2.0
//! `tunny-lab plan chip` from the shell: where a load comes from, what does not fit, what is refused, and that text, JSON and page
//! say the same.

use serde_json::Value;
use std::process::{Command, Output};

const LAB: &str = env!("CARGO_BIN_EXE_tunny-lab");
const PROFILE: &str = include_str!("../../chip/profiles/tofino1.yaml");

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Folder {
        Folder(tempfile::tempdir().unwrap())
    }

    fn file(&self, name: &str, content: &str) -> String {
        let path = self.0.path().join(name);
        std::fs::write(&path, content).unwrap();
        path.display().to_string()
    }

    /// The profile with one field changed.
    fn profile(&self, field: &str, value: &str) -> String {
        let line = |l: &str| match l.starts_with(&format!("{field}:")) {
            true => format!("{field}: {value}\n"),
            false => format!("{l}\n"),
        };
        self.file(&format!("{field}-{value}.yaml"), &PROFILE.lines().map(line).collect::<String>())
    }
}

fn chip(args: &[&str]) -> Output {
    Command::new(LAB).args(["plan", "chip"]).args(args).output().unwrap()
}

/// Exit status and text.
fn text(args: &[&str]) -> (i32, String) {
    let out = chip(args);
    (out.status.code().unwrap(), String::from_utf8(out.stdout).unwrap())
}

fn json(args: &[&str]) -> (i32, Value) {
    let (status, text) = text(&[args, &["-o", "json"]].concat());
    (status, serde_json::from_str(&text).unwrap())
}

/// What stands on standard error of a command that must fail and print nothing else.
fn refused(args: &[&str]) -> String {
    let out = chip(args);
    assert!(!out.status.success(), "{args:?} was taken");
    assert!(out.stdout.is_empty(), "{args:?}: nothing is half done");
    String::from_utf8(out.stderr).unwrap()
}

#[test]
fn each_number_says_what_load_it_is_of() {
    let (status, paper) = json(&["--sailfish"]);
    assert_eq!(status, 0);
    assert_eq!(paper["load_origin"]["counts"], serde_json::json!(["paper"; 6].map(|s| s.to_string())));
    let steps = paper["steps"].as_array().unwrap();
    assert_eq!(steps.len(), 5);
    for s in steps {
        assert!((s["sram_percent"].as_f64().unwrap() - s["paper_sram_percent"].as_f64().unwrap()).abs() <= 5.0);
        assert!((s["tcam_percent"].as_f64().unwrap() - s["paper_tcam_percent"].as_f64().unwrap()).abs() <= 5.0);
    }
    let (status, own) = json(&["--routes4", "100000", "--vms4", "500000"]);
    assert_eq!(status, 0);
    let counts = ["given", "none", "given", "none", "assumed", "assumed"].map(|s| s.to_string());
    assert_eq!(own["load_origin"]["counts"], serde_json::json!(counts));
    assert!(
        own["steps"][0]["tcam_percent"].as_f64() < paper["steps"][0]["tcam_percent"].as_f64(),
        "own counts, own steps"
    );
    let (_, shown) = text(&["--routes4", "100000", "--vms4", "500000"]);
    for part in ["not given, so none: routes6 0, vms6 0", "(of this load in one cluster", "; load -", "so assumed"] {
        assert!(shown.contains(part), "{part} is not in\n{shown}");
    }
    // Each explanation of the JSON stands in the text and in the page.
    let folder = Folder::new();
    let page = folder.0.path().join("plan.html").display().to_string();
    assert!(chip(&["--routes4", "100000", "--vms4", "500000", "--html", &page]).status.success());
    let page = std::fs::read_to_string(&page).unwrap();
    let mut said: Vec<&Value> =
        own["steps"].as_array().unwrap().iter().map(|s| &s["tcam_explained"]["because"]).collect();
    for list in ["table2", "table3", "table4"] {
        let cells = own[list].as_array().unwrap();
        assert!(!cells.is_empty(), "{list}");
        said.extend(cells.iter().map(|c| &c["explained"]["because"]));
    }
    for because in said {
        let because = because.as_str().unwrap();
        assert!(shown.contains(because) && page.contains(because), "{because}");
    }
}

#[test]
fn what_does_not_fit_names_what_binds_and_leads_with_the_smallest_change() {
    let args = ["--routes4", "750000", "--routes6", "250000", "--vms4", "750000", "--vms6", "250000"];
    let (status, plan) = json(&args);
    assert_eq!(status, 1);
    let binds = &plan["binds"];
    assert_eq!(binds["resource"], "SRAM blocks");
    assert!(binds["stage"].is_u64() && binds["pipe"].is_u64() && plan["does_not_fit"].is_string(), "{binds}");
    let changes = plan["would_fit"].as_array().unwrap();
    let percents: Vec<f64> = changes.iter().map(|c| c["percent"].as_f64().unwrap()).collect();
    assert!(percents.len() > 2 && percents.is_sorted(), "{percents:?}");
    assert_eq!((plan["stages"].as_array().unwrap().len(), plan["blocks"].as_array().unwrap().len()), (0, 0));
    let (status, shown) = text(&args);
    assert_eq!(status, 1);
    let first = changes[0]["change"].as_str().unwrap();
    let list = shown.split("the smallest change first\n").nth(1).unwrap();
    assert!(list.lines().nth(1).unwrap().contains(first), "{list}");
    assert!(!shown.contains("\nStages\n"), "a table that does not fit is not shown in part");
    // The first change, given as it is printed, does fit; as do other techniques and clusters.
    for change in changes.iter().filter(|c| c["options"].as_str().unwrap().starts_with("--")) {
        let mut again: Vec<&str> = args.to_vec();
        let options: Vec<&str> = change["options"].as_str().unwrap().split(' ').collect();
        for pair in options.chunks(2) {
            match again.iter().position(|a| *a == pair[0]) {
                Some(at) => again[at + 1] = pair[1],
                None => again.extend(pair),
            }
        }
        let (status, plan) = json(&again);
        assert!(status == 0 && plan["does_not_fit"].is_null(), "{again:?}: {}", plan["does_not_fit"]);
    }
}

#[test]
fn clusters_cost_nodes() {
    let nodes = |args: &[&str]| json(&[&["--sailfish"], args].concat()).1["region"]["hardware_nodes"].as_u64().unwrap();
    assert_eq!((nodes(&[]), nodes(&["--clusters", "4"]), nodes(&["--clusters", "40"])), (10, 16, 80));
    assert_eq!(nodes(&["--tbps", "150"]), 94);
}

#[test]
fn bad_requests_are_refused_with_place_and_reason() {
    let folder = Folder::new();
    for (args, parts) in [
        (vec!["--techniques", "fold,split-vni,split-address"], vec!["split-vni", "split-address", "one of them"]),
        (vec!["--techniques", "pool-vms,digest"], vec!["pool-vms", "digest", "one of them"]),
        (vec!["--techniques", "across,alpm"], vec!["across", "fold"]),
        (vec!["--techniques", "lengths,alpm"], vec!["lengths", "alpm"]),
        (vec!["--techniques", "pool-routes", "--alpm", "4096x2"], vec!["--alpm", "alpm"]),
        (vec!["--sailfish", "--ncs", "5"], vec!["--sailfish", "leave it out"]),
        (vec!["--routes4", "1000", "--vnis", "0"], vec!["--vnis", "belong to VPCs"]),
        (vec!["--vms4", "1000", "--ncs", "0"], vec!["--ncs", "on servers"]),
        (vec!["--vnis", "0", "--ncs", "0"], vec!["nothing to plan"]),
        (vec!["--tbps", "0"], vec!["--tbps", "0.001"]),
    ] {
        let e = refused(&args);
        assert!(parts.iter().all(|p| e.contains(p)), "{args:?}: {e}");
    }
    for (field, value, args, reason) in [
        ("pipes", "2", vec!["--techniques", "fold,split-vni"], "fold into one pair"),
        ("pipes", "3", vec!["--techniques", "fold,split-address"], "fold into one pair"),
        ("loopback", "no", vec!["--techniques", "fold"], "leave fold out"),
        ("tcam_per_stage", "0", vec![], "at least 4 would do"),
        ("map_ram_per_stage", "0", vec!["--cofilter"], "too little for CoFilter"),
        ("phv_bits", "600", vec![], "too few"),
        ("stages", "0", vec![], "1 to 64"),
        ("tcam_depth", "500", vec![], "power of two"),
    ] {
        let path = folder.profile(field, value);
        let line = PROFILE.lines().position(|l| l.starts_with(&format!("{field}:"))).unwrap() + 1;
        let e = refused(&[vec!["--profile", &path], args].concat());
        assert!(e.contains(&format!("{path}:{line}: {field}: ")) && e.contains(reason), "{field} {value}: {e}");
    }
    // Pipes that make no pair are said to be unused.
    let (status, shown) = text(&["--profile", &folder.profile("pipes", "5")]);
    assert!(status == 0 && shown.contains("1 of 5 pipes left unused"), "{shown}");
    // A region with a wrong value.
    let region = folder.file("region.yaml", "kind: VPC\nname: a\nspec:\n  vni: many\n");
    let e = refused(&["--region", &region]);
    assert!(e.contains(&format!("{region}:")), "{e}");
    let e = refused(&["--profile", "/dev/zero"]);
    assert!(e.contains("no profile"), "{e}");
}

/// What takes minutes says what it does: to a person by a line that is drawn again and again, to a pipe once, and never on standard output.
#[test]
fn a_long_plan_says_what_it_does() {
    use std::io::Read;
    use std::process::Stdio;
    let begin = |stderr: Stdio| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_tunny-lab"));
        command.args(["plan", "chip", "--sailfish", "--best", "--verify", "-o", "json"]).env("TERM", "xterm");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(stderr).spawn().unwrap()
    };
    let pty =
        nix::pty::openpty(&nix::pty::Winsize { ws_row: 24, ws_col: 160, ws_xpixel: 0, ws_ypixel: 0 }, None).unwrap();
    let (mut on_terminal, mut in_pipe) = (begin(pty.slave.into()), begin(Stdio::piped()));
    let mut terminal = std::fs::File::from(pty.master);
    let mut shown = String::new();
    let mut bytes = [0; 4096];
    while shown.matches("--verify sends packets").count() < 3 {
        let n = terminal.read(&mut bytes).unwrap();
        assert!(n > 0, "it ended, and said: {shown:?}");
        shown.push_str(&String::from_utf8_lossy(&bytes[..n]));
    }
    assert!(shown.contains("\u{1b}[") || shown.contains('\r'), "drawn again: {shown:?}");
    std::thread::sleep(std::time::Duration::from_secs(1));
    for child in [&mut on_terminal, &mut in_pipe] {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let (mut said, mut out) = (String::new(), String::new());
    in_pipe.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    in_pipe.stdout.take().unwrap().read_to_string(&mut out).unwrap();
    on_terminal.stdout.take().unwrap().read_to_string(&mut out).unwrap();
    let line = "tunny-lab: planning: --best tries every choice of techniques, --verify sends packets through the compressed tables\n";
    assert_eq!((said.as_str(), out.as_str()), (line, ""));
}
