// SPDX-License-Identifier: Apache-2.0
//! The paper's tables from the derived entry counts, and placements that an independent counter accepts.

use chip::alloc::audit;
use chip::sailfish;
use chip::technique::{place, Load, Routes, Techniques};
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
    assert!(e.change.contains("entries fit"), "{e}");
    let pool = sailfish::techniques()[3].1;
    assert!(matches!(pool.routes, Routes::Ternary));
    let e = place(&tofino(), &Load::sailfish(25), &pool).err().expect("does not fit");
    assert!(e.place.contains("stage"), "{e}");
}
