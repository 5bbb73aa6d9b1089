// SPDX-License-Identifier: Apache-2.0
//! `tunny-lab plan table` as its user meets it: what it prints, what it refuses, and how it exits.

use serde_json::Value;
use std::process::{Command, Output};

fn plan(args: &str) -> Output {
    let all = ["plan", "table"].into_iter().chain(args.split(' '));
    Command::new(env!("CARGO_BIN_EXE_tunny-lab")).args(all).output().expect("the binary runs")
}

fn json(args: &str) -> (bool, Value) {
    let out = plan(&format!("{args} -o json"));
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    (out.status.success(), serde_json::from_str(&text).unwrap_or_else(|e| panic!("{args}: {e}: {text}")))
}

/// Cases of docs/design/chip-blocks.md; 30 blocks is what the vendor's compiler takes too.
#[test]
fn counts_are_printed() {
    let (ok, a) = json("--kind exact --key vni_ip4 --key-bits 56 --entries 65536 --action-bits 0");
    assert!(ok && a["fits"] == true && a.get("does_not_fit").is_none(), "{a}");
    assert_eq!((&a["stages"], &a["sram_match"], &a["tcam"]), (&1.into(), &30.into(), &0.into()), "{a}");
    let (ok, a) = json("--kind counter --entries 65536 --counter-bits 32");
    assert!(ok, "{a}");
    assert_eq!((&a["sram_match"], &a["sram_indirect"], &a["map_ram"]), (&0.into(), &17.into(), &17.into()), "{a}");
    let (ok, a) = json("--kind ternary --key ip4 --entries 2048 --action-bits 16 --counter packets --counter-bits 32");
    assert!(ok, "{a}");
    assert_eq!((&a["tcam"], &a["sram_action"], &a["sram_indirect"]), (&4.into(), &1.into(), &2.into()), "{a}");
    let text = plan("--kind register --entries 131072 --register-bits 32");
    assert!(text.status.success() && String::from_utf8_lossy(&text.stdout).contains("33 indirect"), "{text:?}");
}

/// What does not fit fails: what binds, at which stage, and the smallest change, which then does fit.
#[test]
fn what_does_not_fit_fails_and_says_what_would() {
    let args = "--kind lpm --key vni_ip6 --action-bits 16 --entries";
    let (ok, a) = json(&format!("{args} 229376"));
    let why = &a["does_not_fit"];
    assert!(!ok && a["fits"] == false, "{a}");
    assert_eq!((&a["tcam"], &a["stages"]), (&1792.into(), &75.into()), "the counts are those of the whole table: {a}");
    assert_eq!((&why["binds"], &why["stage"], &why["needs_stages"]), (&"tcam".into(), &11.into(), &75.into()), "{why}");
    let change = &why["changes"][0];
    assert_eq!((&change["field"], &change["to"]), (&"entries".into(), &"36864".into()), "12 x 24 / 4 x 512: {why}");
    assert!(plan(&format!("{args} 36864")).status.success());
    assert!(!plan(&format!("{args} 36865")).status.success());
    let out = plan(&format!("{args} 229376"));
    let text = String::from_utf8_lossy(&out.stdout);
    for words in
        ["What binds: TCAM blocks, at stage 11", "Smallest change that fits: --entries 36864", "It does not fit"]
    {
        assert!(text.contains(words), "{text}");
    }
}

/// A chip without TCAM says so, and not that the key is too wide.
#[test]
fn a_chip_without_tcam() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("notcam.yaml");
    let text: String = include_str!("../../chip/profiles/tofino1.yaml")
        .lines()
        .map(|l| if l.starts_with("tcam_per_stage:") { "tcam_per_stage: 0\n".into() } else { format!("{l}\n") })
        .collect();
    std::fs::write(&file, text).unwrap();
    let profile = file.to_str().unwrap();
    for table in ["--kind lpm --key ip4 --entries 1000", "--kind alpm --key vni_ip4 --entries 10000"] {
        let (ok, a) = json(&format!("{table} --profile {profile}"));
        let why = &a["does_not_fit"];
        assert!(!ok && why["binds"] == "tcam" && a["stages"].is_null(), "{a}");
        let reason = why["reason"].as_str().unwrap();
        assert!(reason.contains("this chip has none") && !reason.contains("wider"), "{reason}");
    }
}

/// Tables that cannot be are refused on standard error: the option, the value, why, what to do; and nothing is printed.
#[test]
fn tables_that_cannot_be() {
    for (args, words) in [
        ("--kind exact --key x --key-bits 1 --entries 1000000", "--entries 1000000: a key of 1 bits has only 2"),
        ("--kind exact --key vni --entries 16777217", "--entries 16777217: a key of 24 bits"),
        ("--kind exact --key ip4 --entries 100 --digest-bits 40", "--digest-bits 40: the key itself has only 32 bits"),
        ("--kind alpm --key ip4 --entries 10000 --option exvni", "--option exvni: this key has no VNI"),
        ("--kind alpm --key vni_ip4 --entries 10000 --partitions 3000", "--partitions 3000: must be one of"),
        ("--kind alpm --key vni_ip4 --entries 10000 --subtrees 11", "--subtrees 11: must be 1 to 10"),
        ("--kind alpm --key vni_ip4 --entries 10000 --partitions 8192", "--partitions 8192: 8192 partitions of 2"),
        ("--kind alpm --key vni_ip4 --entries 10000 --exclude-bits 8", "--exclude-bits is for --option exvni"),
        ("--kind lpm --key five_tuple4 --entries 100", "--key without an address"),
        ("--kind lpm --key ip4 --entries 100 --partitions 1024", "are for --kind alpm"),
        ("--kind ternary --key ip4 --entries 100 --digest-bits 8", "--digest-bits is for --kind exact"),
        ("--kind exact --entries 100", "--key is missing"),
        ("--kind exact --key nonsense --entries 100", "say its --key-bits"),
        ("--kind exact --key vni_ip4 --key-bits 57 --entries 100", "has 56 bits, not 57"),
        ("--kind exact --key x --key-bits 513 --entries 100", "--key-bits 513 is impossible"),
        ("--kind exact --key ip4 --entries 0", "0"),
        ("--kind exact --key ip4 --entries 100 --counter-bits 32", "--counter-bits is for counters"),
        (
            "--kind exact --key ip4 --entries 100 --counter bytes --counter-bits 65",
            "--counter-bits 65: a counter has 1 to 64",
        ),
        ("--kind register --entries 100 --register-bits 2", "--register-bits 2: an ALU reads cells of"),
        ("--kind meter --key ip4 --entries 100", "are for tables"),
        ("--kind meter --entries 100 --counter bytes", "plan them by themselves"),
        ("--kind exact --key ip4 --entries 100 --profile no-such-chip", "no-such-chip is neither one of tofino1"),
        ("--kind exact --key ip4 --entries 100 --profile /dev/zero", "bytes are no profile"),
        ("--kind exact --key ip4 --entries 100 --profile /", "nor a file that can be read"),
    ] {
        let out = plan(args);
        let (text, said) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
        assert!(!out.status.success() && text.is_empty(), "{args}: {text}");
        assert!(said.contains(words), "{args}: {said}");
    }
}
