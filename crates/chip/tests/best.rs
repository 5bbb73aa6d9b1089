// SPDX-License-Identifier: Apache-2.0
//! What beats the paper, and that it works. With TUNNY_HEAVY=1 the tables are built with all entries.

use chip::optimise;
use chip::technique::Load;
use chip::{profile, Profile};

fn tofino() -> Profile {
    profile::parse("tofino1.yaml", profile::built_in("tofino1").expect("built in")).expect("valid")
}

#[test]
fn the_front_beats_the_paper() {
    let heavy = std::env::var_os("TUNNY_HEAVY").is_some();
    let load = Load::sailfish(25);
    let all = optimise::best(&tofino(), &load, 0x5a11, heavy);
    for c in &all {
        let u = &c.usage;
        eprintln!(
            "{} | {} | {}: SRAM {:.2} (with action {:.2}), TCAM {:.2}, false {:.2e}, lookups {} {:?} {}",
            c.pipes,
            c.routes,
            c.vms,
            u.sram_percent,
            u.sram_with_action_percent,
            u.tcam_percent,
            c.false_match_probability,
            c.lookups,
            c.verified,
            c.why
        );
        assert!(
            c.verified.is_none_or(|v| v.tables_a_packet <= c.lookups),
            "{} with {}: {:?}",
            c.routes,
            c.vms,
            c.verified
        );
        assert!(!heavy || c.verified.is_some(), "{} with {} was not shown to work", c.routes, c.vms);
    }
    assert_eq!(all.iter().filter(|c| c.chosen).count(), 1);
    // The paper's points are those of its own arrangement: folded, with halves.
    let folded = |c: &&optimise::Candidate| c.techniques.fold && c.techniques.split.is_some();
    let all: Vec<_> = all.iter().filter(folded).collect();
    let fits = |alpm: bool, sram: f64, tcam: f64| {
        all.iter().any(|c| {
            c.routes.starts_with("alpm") == alpm && c.usage.sram_percent <= sram && c.usage.tcam_percent <= tcam
        })
    };
    assert!(fits(true, 27.0, 11.2), "the paper's routing scheme");
    assert!(fits(false, 20.0, 11.2) && fits(false, 14.0, 2.0), "a better routing layout");
    assert!(all.iter().any(|c| c.false_match_probability == 0.0), "a variant without false matches");
}
