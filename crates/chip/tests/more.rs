// SPDX-License-Identifier: Apache-2.0
//! Profiles with impossible numbers, a month of updates, CoFilter, performance, the region.

use chip::alloc::audit;
use chip::performance::{balance, performance};
use chip::technique::{Load, Split, Techniques};
use chip::{cofilter, month, profile, region, sailfish, Profile};

fn tofino() -> Profile {
    profile::parse("tofino1.yaml", profile::built_in("tofino1").expect("built in")).expect("valid")
}

fn pipes(fold: bool) -> chip::pipes::Arrangement {
    chip::pipes::arrange(&tofino(), &Techniques { fold, ..Techniques::NONE }).unwrap()
}

#[test]
fn every_built_in_profile_is_valid_and_its_own_name() {
    for (name, text) in profile::BUILT_IN {
        assert_eq!(profile::parse(name, text).unwrap().name, *name);
    }
}

#[test]
fn impossible_profiles_are_refused_with_line_and_field() {
    let text = profile::built_in("tofino1").unwrap();
    let line = |field: &str| text.lines().position(|l| l.starts_with(field)).unwrap() + 1;
    for (field, value, reason) in [
        ("stages", "0", "1 to 64"),
        ("stages", "twelve", "no whole number"),
        ("sram_depth", "1000", "power of two"),
        ("sram_width", "100", "multiple of 16"),
        ("hash_bits", "20", "cannot address"),
        ("map_ram_per_stage", "500", "each belongs to one block"),
        ("crossbar_group", "60", "more than a word"),
        ("ternary_tables_per_stage", "17", "of the 16 of tables_per_stage"),
        ("ternary_tables_per_stage", "0", "without a use"),
        ("crossbar_ternary", "0", "without a use"),
        ("pipes", "1", "cannot"),
        ("loopback", "maybe", "yes or no"),
        ("name", "a/b", "letters"),
    ] {
        let changed: String = text
            .lines()
            .map(|l| if l.starts_with(&format!("{field}:")) { format!("{field}: {value}\n") } else { format!("{l}\n") })
            .collect();
        let e = profile::parse("mine.yaml", &changed).unwrap_err();
        if field == "pipes" {
            assert_eq!(e.field, "loopback");
            continue;
        }
        assert_eq!((e.file.as_str(), e.line, e.field.as_str()), ("mine.yaml", line(field), field), "{e}");
        assert!(e.reason.contains(reason), "{e}");
    }
    for (bad, field) in
        [("colour: 3", "colour"), ("stages: 12", "stages"), ("no mapping", "no mapping"), ("  deep: 1", "deep")]
    {
        let e = profile::parse("mine.yaml", &format!("{text}{bad}\n")).unwrap_err();
        assert_eq!((e.line, e.field.as_str()), (text.lines().count() + 1, field), "{e}");
    }
    let missing: String = text.lines().filter(|l| !l.starts_with("tcam_depth")).map(|l| format!("{l}\n")).collect();
    let e = profile::parse("mine.yaml", &missing).unwrap_err();
    assert_eq!(e.field, "tcam_depth");
    assert!(e.reason.contains("missing"));
}

#[test]
fn a_month_needs_no_new_mapping() {
    let m = month::Month {
        routes: 4000,
        vnis: 1500,
        vms: 8000,
        partitions: 256,
        subtrees: 8,
        bucket: 26,
        ipv6_percent: 25,
    };
    let days = month::run(&m, 0x23).unwrap();
    assert_eq!(days.len(), 30);
    assert_eq!(days.iter().map(|d| d.refused).sum::<u64>(), 0);
    assert!(days.iter().any(|d| d.jump > 0) && days[29].routes > 4000);
    let (moved, updates): (u64, u64) = days.iter().fold((0, 0), |(m, u), d| (m + d.moved, u + d.updates));
    eprintln!("{moved} prefixes moved for {updates} updates, fragmentation {:.3}", days[29].fragmentation);
    assert!(moved < 4 * updates, "{moved} moved for {updates} updates");
}

/// Where no partition has room for half of a subtree a smaller piece is moved, or a subtree that cannot be cut as a whole.
#[test]
fn a_month_with_little_room_refuses_nothing() {
    for (bucket, ipv6_percent) in [(120, 0), (112, 25), (106, 0)] {
        let size =
            month::Month { routes: 5000, vnis: 1500, vms: 2000, partitions: 64, subtrees: 8, bucket, ipv6_percent };
        let days = month::run(&size, 0x23).unwrap();
        let refused: u64 = days.iter().map(|d| d.refused).sum();
        eprintln!("{bucket} places, {ipv6_percent}% IPv6: {refused} refused, fill {:.3}", days[29].fill);
        assert_eq!(refused, 0, "{bucket} places, fill {:.3}", days[29].fill);
    }
}

#[test]
fn cofilter_stands_in_real_stages() {
    let c = cofilter::place(&tofino(), 2_000_000, 10_000, 1024).unwrap();
    eprintln!("{c:?}");
    assert!(c.stages <= 24 && c.sram > 32);
    let small = cofilter::capacity(16.0);
    assert!((small.hashed_millions - 5.66).abs() < 0.01 && small.paper_millions > 10.0 && small.digest_millions > 10.0);
    // About 8.6 MiB of a pipe are usable as registers.
    let mib = cofilter::register_limit(&tofino()) as f64 * 2.0 / 8.0 / 1048576.0;
    assert!((mib - 8.6).abs() < 0.4, "{mib}");
}

#[test]
fn folded_performance_is_near_the_papers() {
    let p = performance(&tofino(), &pipes(true), 28);
    assert!((p.port_tbps - 3.2).abs() < 1e-9 && p.line_rate_from_bytes < 256);
    let at = |bytes| p.points.iter().find(|x| x.bytes == bytes).unwrap().latency_us;
    assert!((at(128) - 2.173).abs() < 0.05 && (at(1024) - 2.303).abs() < 0.05, "{:?}", p.points);
    let flat = performance(&tofino(), &pipes(false), 0);
    assert!(flat.port_tbps > 2.0 * p.port_tbps - 1e-9);
}

#[test]
fn halves_are_balanced() {
    let address = balance(Split::Address, 2000, 1.1, 1);
    assert!(address.worst_points < 10.0, "{address:?}");
    assert_eq!(balance(Split::Vni, 2000, 1.1, 1).hours.len(), 24);
}

#[test]
fn a_region_of_fourteen_instead_of_six_hundred() {
    let t: Techniques = sailfish::techniques().pop().unwrap().1;
    let r = region::size(&tofino(), &region::Demand::sailfish(), &t, 3.2);
    assert_eq!((r.software_only_nodes, r.hardware_nodes, r.software_nodes), (600, 10, 4), "{r:?}");
    assert!(r.saved_percent > 90.0 && r.loads_a_chip >= 1.0);
}

#[test]
fn all_tables_of_table_4_fit() {
    let load = Load::sailfish(25);
    audit(&sailfish::overall(&tofino(), &load).unwrap()).unwrap();
    for c in sailfish::table4(&tofino(), &load).unwrap() {
        eprintln!("{c:?}");
    }
}
