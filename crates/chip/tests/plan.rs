// SPDX-License-Identifier: Apache-2.0
//! The paper's tables from the derived entry counts, and placements that an independent counter accepts.

use chip::alloc::audit;
use chip::sailfish;
use chip::technique::{place, remedies, Load, Routes, Techniques};
use chip::{profile, Profile};

fn tofino() -> Profile {
    profile::parse("tofino1.yaml", profile::built_in("tofino1").expect("built in")).expect("valid")
}

#[test]
fn table_2_within_three_points() {
    for c in sailfish::table2(&tofino()).unwrap() {
        eprintln!("{c:?}");
        assert!(c.difference.abs() <= 3.0, "{c:?}");
    }
}

#[test]
fn table_3_and_figure_17_within_five_points() {
    for c in sailfish::table3(&tofino()).unwrap() {
        eprintln!("{c:?}");
        assert!(c.difference.abs() <= 5.0, "{c:?}");
    }
    for s in sailfish::steps(&tofino()).unwrap() {
        eprintln!("{} {:.2} {:.2}", s.step, s.usage.sram_percent, s.usage.tcam_percent);
        assert!(s.sram_difference.unwrap().abs() <= 5.0 && s.tcam_difference.unwrap().abs() <= 5.0, "{s:?}");
    }
}

#[test]
fn the_last_step_stands_in_real_stages() {
    let p = tofino();
    let (_, t) = sailfish::techniques().pop().unwrap();
    let chip = place(&p, &Load::sailfish(25), &t).unwrap();
    audit(&chip).unwrap();
    for pipe in 0..2 {
        eprintln!("pipe {pipe}: {:?}", chip.used(pipe));
    }
}

#[test]
fn what_does_not_fit_is_named_with_the_smallest_change() {
    let e = place(&tofino(), &Load::sailfish(25), &Techniques::NONE).err().expect("does not fit");
    eprintln!("{e}");
    assert_eq!(e.binds, "TCAM");
    assert!(e.change.contains("entries fit") && e.fit > 0 && e.fit < e.entries, "{e}");
    let changes = remedies(&tofino(), &Load::sailfish(25), &Techniques::NONE);
    eprintln!("{changes:?}");
    assert!(changes[0].contains("routes4") && changes.last().is_some_and(|c| c.contains("clusters")), "{changes:?}");
    let pool = sailfish::techniques()[3].1;
    assert!(matches!(pool.routes, Routes::Ternary));
    let e = place(&tofino(), &Load::sailfish(25), &pool).err().expect("does not fit");
    assert!(e.place.contains("stage"), "{e}");
}

/// The paper's hash lets addresses through that nobody installed; whole keys never do, and take more blocks.
#[test]
fn the_hole_in_the_hash_and_what_closes_it() {
    let all = sailfish::uninstalled(&tofino(), 100_000, 400_000, 3).unwrap();
    all.iter().for_each(|s| eprintln!("{s:?}"));
    assert_eq!(all.len(), 4);
    assert!(all[0].false_matches > 0 && all[0].expected > 5.0, "{:?}", all[0]);
    for whole in &all[1..3] {
        assert!(whole.false_matches == 0 && whole.more_than_paper > 0, "{whole:?}");
    }
    assert!(all[2].sram_match < all[1].sram_match, "over word borders whole keys take less");
}
