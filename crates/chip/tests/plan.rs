// SPDX-License-Identifier: Apache-2.0
//! The paper's tables from the derived entry counts, and placements that an independent counter accepts.

use chip::alloc::audit;
use chip::plan::{plan, PlanError, Request};
use chip::remedy::remedies;
use chip::sailfish;
use chip::technique::{fits, place, Load, Routes, Techniques, Vms};
use chip::{profile, Profile};
use rand::{RngExt, SeedableRng};
use rand_xoshiro::SplitMix64;

fn tofino() -> Profile {
    profile::parse("tofino1.yaml", profile::built_in("tofino1").expect("built in")).expect("valid")
}

#[test]
fn table_2_within_three_points() {
    for c in sailfish::table2(&tofino(), &Load::sailfish(25)).unwrap() {
        eprintln!("{c:?}");
        assert!(c.difference.abs() <= 3.0, "{c:?}");
    }
}

#[test]
fn table_3_and_figure_17_within_five_points() {
    for c in sailfish::table3(&tofino(), &Load::sailfish(25)).unwrap() {
        eprintln!("{c:?}");
        assert!(c.difference.abs() <= 5.0, "{c:?}");
    }
    for s in sailfish::steps(&tofino(), &Load::sailfish(25)).unwrap() {
        eprintln!("{} {:.2} {:.2}", s.step, s.usage.sram_percent, s.usage.tcam_percent);
        assert!(s.sram_difference.abs() <= 5.0 && s.tcam_difference.abs() <= 5.0, "{s:?}");
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

/// The profile with some numbers changed.
fn changed(fields: &[(&str, &str)]) -> String {
    let change = |line: &str| match fields.iter().find(|(field, _)| line.starts_with(&format!("{field}:"))) {
        Some((field, value)) => format!("{field}: {value}\n"),
        None => format!("{line}\n"),
    };
    profile::built_in("tofino1").expect("built in").lines().map(change).collect()
}

/// The same chip with some numbers changed.
fn with(fields: &[(&str, &str)]) -> Profile {
    profile::parse("mine.yaml", &changed(fields)).expect("valid")
}

/// The line of a field in `mine.yaml`.
fn line(field: &str) -> usize {
    let text = profile::built_in("tofino1").expect("built in");
    text.lines().position(|l| l.starts_with(&format!("{field}:"))).expect("known") + 1
}

#[test]
fn what_does_not_fit_is_named_with_resource_and_stage() {
    let e = place(&tofino(), &Load::sailfish(25), &Techniques::NONE).expect_err("does not fit");
    eprintln!("{e}");
    assert_eq!((e.binds.resource, e.binds.free, e.binds.of, e.binds.stage), ("TCAM blocks", 0, 24, 11));
    assert!(e.fit > 0 && e.fit < e.entries && e.to_string().contains("entries fit"), "{e}");
    // Whichever number is made scarce is what binds.
    let paper = sailfish::techniques().pop().unwrap().1;
    let lengths = Techniques { routes: Routes::Lengths { spill: 1024 }, ..sailfish::techniques()[2].1 };
    for (fields, percent, techniques, resource) in [
        (
            vec![("stages", "4"), ("tables_per_stage", "1"), ("ternary_tables_per_stage", "1")],
            5,
            &lengths,
            "logical tables",
        ),
        (vec![("stages", "4"), ("hash_groups", "1")], 5, &lengths, "hash functions"),
        (vec![("stages", "3"), ("crossbar_exact", "20")], 5, &lengths, "bytes of the exact crossbar"),
        (vec![], 100, &sailfish::techniques()[3].1, "TCAM blocks"),
        (vec![("sram_columns", "4"), ("map_ram_per_stage", "32")], 100, &paper, "SRAM blocks"),
    ] {
        let e = place(&with(&fields), &Load::sailfish(25).hundredths(percent), techniques).expect_err(resource);
        eprintln!("{e}");
        assert_eq!(e.binds.resource, resource, "{fields:?}: {e}");
    }
}

/// Loads and techniques that do not fit, each for another reason.
fn too_much() -> Vec<(&'static str, Profile, Load, Techniques)> {
    let paper = sailfish::techniques().pop().unwrap().1;
    let million = Load { routes4: 750_000, routes6: 250_000, vms4: 750_000, vms6: 250_000, vnis: 100_000, ncs: 32_768 };
    vec![
        ("none", tofino(), Load::sailfish(25), Techniques::NONE),
        ("pooling", tofino(), Load::sailfish(25), sailfish::techniques()[3].1),
        ("a million of each", tofino(), million, paper),
        ("a little too much", tofino(), Load { vms4: 4_200_000, ..Load::sailfish(25) }, paper),
        ("fewer stages", with(&[("stages", "5")]), Load::sailfish(25), paper),
    ]
}

#[test]
fn every_change_fits_and_the_smallest_comes_first() {
    for (name, p, load, t) in too_much() {
        assert!(!fits(&p, &load, &t), "{name}");
        let all = remedies(&p, &load, &t);
        eprintln!("{name}");
        all.iter().for_each(|r| eprintln!("  {:6.2} {} ({})", r.percent, r.change, r.options));
        assert!(all.len() >= 2, "{name}");
        assert!(all.is_sorted_by(|a, b| a.percent <= b.percent), "{name}");
        for r in &all {
            let mut p = p.clone();
            p.geometry.stages = r.stages;
            let chip = place(&p, &r.load, &r.techniques).unwrap_or_else(|e| panic!("{name}: {}: {e}", r.change));
            audit(&chip).unwrap();
        }
        let given_up = all.iter().find(|r| r.change.starts_with("take away")).expect("entries to take away");
        let share = 100.0 * (load.entries() - given_up.load.entries()) as f64 / load.entries() as f64;
        assert!((given_up.percent - share).abs() < 1e-9, "{name}");
        // One entry more of any count that was reduced does not fit.
        let l = given_up.load;
        for (less, more) in [
            (l.routes4 < load.routes4, Load { routes4: l.routes4 + 1, ..l }),
            (l.routes6 < load.routes6, Load { routes6: l.routes6 + 1, ..l }),
            (l.vms4 < load.vms4, Load { vms4: l.vms4 + 1, ..l }),
            (l.vms6 < load.vms6, Load { vms6: l.vms6 + 1, ..l }),
        ] {
            // Halves are rounded up, so the next entry but one decides.
            let two = |n: u64, was: u64| if n > was { n + 1 } else { n };
            let more = Load {
                routes4: two(more.routes4, l.routes4),
                routes6: two(more.routes6, l.routes6),
                vms4: two(more.vms4, l.vms4),
                vms6: two(more.vms6, l.vms6),
                ..more
            };
            assert!(!less || !fits(&p, &more, &t), "{name}: {more:?}");
        }
        if let Some(r) = all.iter().find(|r| r.techniques.clusters > 1) {
            let fewer = Techniques { clusters: r.techniques.clusters - 1, ..t };
            assert!(!fits(&p, &load, &fewer), "{name}: fewer clusters do as well");
        }
    }
}

/// The difference from the paper is told apart into model, chip and load, and the parts add up.
#[test]
fn every_difference_is_explained() {
    let paper = Load::sailfish(25);
    let own = Load { routes4: 150_000, vms6: 250_000, ..paper };
    let tofino2 = profile::parse("tofino2.yaml", profile::built_in("tofino2").expect("built in")).expect("valid");
    for (p, load) in [(tofino(), paper), (tofino(), own), (tofino2.clone(), paper), (tofino2, own)] {
        let (steps, table3) = (sailfish::steps(&p, &load).unwrap(), sailfish::table3(&p, &load).unwrap());
        assert_eq!((steps.len(), table3.len()), (5, 5));
        let mut cells = sailfish::table2(&p, &load).unwrap();
        cells.extend(table3);
        cells.extend(sailfish::table4(&p, &load).unwrap());
        assert_eq!(cells.len(), 17);
        let mut all: Vec<_> = cells.iter().map(|c| (c.difference, &c.explained)).collect();
        for s in &steps {
            all.extend([(s.sram_difference, &s.sram_explained), (s.tcam_difference, &s.tcam_explained)]);
        }
        let (other_chip, other_load) = (p.name != "tofino1", load != paper);
        for (difference, e) in all {
            assert!((e.of_model + e.of_chip + e.of_load - difference).abs() < 1e-9, "{e:?}");
            assert!(e.because.starts_with("model ") && e.because.contains(" blocks; "), "{e:?}");
            assert!(other_chip || e.of_chip == 0.0, "{e:?}");
            assert!(other_load || e.of_load == 0.0, "{e:?}");
            assert!(e.of_chip == 0.0 || e.because.contains("; chip "), "{e:?}");
            assert!(e.of_load == 0.0 || e.because.contains("; load "), "{e:?}");
        }
        assert_eq!(steps[0].tcam_explained.of_load != 0.0, other_load);
        assert_eq!(steps[0].tcam_explained.of_chip != 0.0, other_chip);
    }
}

/// A chip with few pipes is planned for what it can do, and what it cannot do is refused with its line.
#[test]
fn pipes_that_do_not_pair_are_said_or_refused() {
    let paper = sailfish::techniques().pop().unwrap().1;
    let folded = Techniques { split: None, ..paper };
    for (pipes, entry, unused) in [("2", 1, 0), ("3", 1, 1), ("4", 2, 0), ("5", 2, 1), ("6", 3, 0)] {
        let p = with(&[("pipes", pipes)]);
        let plan = plan(&p, &Request::sailfish(folded)).unwrap();
        assert_eq!((plan.pipes.entry, plan.pipes.unused), (entry, unused), "{pipes} pipes");
        assert!(unused == 0 || plan.pipes.says.contains("unused"), "{}", plan.pipes.says);
        // Ports of pipes that nobody enters carry nothing.
        assert_eq!(plan.performance.port_tbps, f64::from(entry * 1600) / 1000.0, "{pipes} pipes");
    }
    for (pipes, entry, unused) in [("4", 2, 0), ("5", 2, 1), ("6", 2, 2), ("7", 2, 3), ("8", 4, 0)] {
        let a = chip::pipes::arrange(&with(&[("pipes", pipes)]), &paper).unwrap();
        assert_eq!((a.entry, a.unused), (entry, unused), "{pipes} pipes: {}", a.says);
    }
    for pipes in ["2", "3"] {
        let p = with(&[("pipes", pipes)]);
        let e = plan(&p, &Request::sailfish(paper)).unwrap_err().to_string();
        assert!(e.starts_with(&format!("mine.yaml:{}: pipes: {pipes} pipes fold into one pair", line("pipes"))), "{e}");
        // What the paper did with two pairs is left out, with the reason; the rest is without it.
        let plan = plan(&p, &Request::sailfish(folded)).unwrap();
        let steps: Vec<&str> = plan.steps.iter().map(|s| s.step).collect();
        assert_eq!(steps, ["none", "folding", "pooling", "alpm"]);
        assert_eq!((plan.table2.len(), plan.table3.len()), (6, 5));
        assert!(plan.left_out[0].reason.contains("'splitting' cannot be here"), "{:?}", plan.left_out);
        assert!(plan.basis("steps").contains("that its pipes allow") && plan.basis("table3").contains("allow"));
        // Without halves a pair holds all entries.
        assert!(plan.table3[3].percent > 60.0 && plan.table3[3].explained.of_chip > 30.0, "{:?}", plan.table3[3]);
    }
    let rmt = profile::parse("rmt.yaml", profile::built_in("example-rmt").expect("built in")).expect("valid");
    let flat = plan(&rmt, &Request::sailfish(chip::pipes::allowed(&rmt, &paper))).unwrap();
    assert_eq!(flat.steps.iter().map(|s| s.step).collect::<Vec<_>>(), ["none", "pooling", "alpm"]);
    assert!(flat.table4.is_empty() && flat.left_out.iter().any(|l| l.section == "table4"));
}

/// Numbers that are possible by themselves, and too small for what is asked.
#[test]
fn a_profile_that_lacks_what_is_asked_is_refused_with_its_line() {
    let paper = Request::sailfish(sailfish::techniques().pop().unwrap().1);
    let cofilter = Request { cofilter: true, ..paper.clone() };
    let digest = Techniques { vms: Vms::Digest { bits: 20, conflicts: 4096 }, ..paper.techniques };
    for (fields, request, field, least) in [
        (vec![("tcam_per_stage", "0")], &paper, "tcam_per_stage", 4),
        (vec![("tcam_per_stage", "3")], &paper, "tcam_per_stage", 4),
        (vec![("tcam_per_stage", "0"), ("crossbar_ternary", "0")], &paper, "tcam_per_stage", 4),
        (vec![("crossbar_ternary", "18")], &paper, "crossbar_ternary", 19),
        (vec![("crossbar_exact", "18")], &paper, "crossbar_exact", 19),
        (vec![("hash_groups", "1")], &Request { techniques: digest, ..paper.clone() }, "hash_groups", 2),
        (vec![("map_ram_per_stage", "0")], &cofilter, "map_ram_per_stage", 17),
        (vec![("meter_alus", "0")], &cofilter, "meter_alus", 1),
        (vec![("register_blocks_max", "0")], &cofilter, "register_blocks_max", 2),
        (vec![("phv_bits", "512")], &paper, "phv_bits", 0),
    ] {
        let e = plan(&with(&fields), request).map(|p| p.does_not_fit).unwrap_err();
        eprintln!("{e}");
        let PlanError::Profile(e) = e else { panic!("{e}") };
        assert_eq!((e.file.as_str(), e.line, e.field.as_str()), ("mine.yaml", line(field), field), "{e}");
        assert!(least == 0 || e.reason.contains(&format!("at least {least} would do")), "{e}");
    }
    // Nobody asked for map RAM here but the counters assumed in Table 4: it alone is left out.
    let plan = plan(&with(&[("map_ram_per_stage", "0")]), &paper).unwrap();
    assert!(plan.does_not_fit.is_none() && plan.table3.len() == 5 && plan.table4.is_empty());
    let reason = &plan.left_out.iter().find(|l| l.section == "table4").expect("said").reason;
    assert!(reason.contains("tenant-meter") && reason.contains("map RAM"), "{reason}");
}

/// Whatever a profile says within its bounds, a plan is made or refused: no panic, no stage over its limits.
#[test]
fn random_profiles_are_planned_or_refused() {
    let seed = std::env::var("TUNNY_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(0x5eed);
    eprintln!("seed {seed}");
    let mut rng = SplitMix64::seed_from_u64(seed);
    let (mut planned, mut refused) = (0, 0);
    for _ in 0..50 {
        // One field in six is another than the chip's.
        let mut other = |usual: u32, list: &[u32]| {
            if rng.random_range(0..6u64) > 0 {
                usual
            } else {
                list[rng.random_range(0..list.len() as u64) as usize]
            }
        };
        let fields = [
            ("pipes", other(4, &[2, 3, 5])),
            ("stages", other(12, &[1, 2, 20])),
            ("sram_rows", other(8, &[1, 3, 32])),
            ("sram_columns", other(10, &[1, 5, 20])),
            ("sram_depth", other(1024, &[64, 512, 8192])),
            ("sram_width", other(128, &[64, 80, 112])),
            ("tcam_per_stage", other(24, &[0, 1, 4])),
            ("tcam_depth", other(512, &[64, 2048])),
            ("map_ram_per_stage", other(48, &[0, 1])),
            ("row_entries_max", other(5, &[1, 2])),
            ("pack_max", other(9, &[1, 4])),
            ("immediate_bits", other(32, &[0, 16])),
            ("crossbar_group", other(8, &[4, 16])),
            ("crossbar_exact", other(128, &[16, 64])),
            ("hash_groups", other(8, &[1, 2])),
            ("tables_per_stage", other(16, &[8, 9])),
            ("meter_alus", other(4, &[0])),
            ("register_blocks_max", other(32, &[0, 1])),
        ];
        let fields = fields.map(|(name, n)| (name, n.to_string()));
        let given: Vec<(&str, &str)> = fields.iter().map(|(name, n)| (*name, n.as_str())).collect();
        let Ok(p) = profile::parse("mine.yaml", &changed(&given)) else {
            refused += 1;
            continue;
        };
        let mut any = |list: &[u32]| list[rng.random_range(0..list.len() as u64) as usize];
        let load = Load::sailfish(25).hundredths(u64::from(any(&[1, 30, 100])));
        let techniques = sailfish::techniques()[any(&[0, 1, 2, 3, 4]) as usize].1;
        let cofilter = any(&[0, 1]) == 1;
        match plan(&p, &Request { load, cofilter, ..Request::sailfish(techniques) }) {
            Ok(plan) => {
                planned += 1;
                for s in &plan.stages {
                    assert!(s.sram <= s.sram_of && s.tcam <= s.tcam_of, "{s:?} of {p:?}");
                }
                assert_eq!(plan.does_not_fit.is_some(), plan.stages.is_empty(), "{p:?}");
                assert_eq!(plan.does_not_fit.is_some(), plan.binds.is_some(), "{p:?}");
            }
            Err(e) => {
                refused += 1;
                assert!(matches!(e, PlanError::Profile(_) | PlanError::NoRoom(_)), "{e} of {p:?}");
            }
        }
    }
    eprintln!("{planned} planned, {refused} refused");
    assert!(planned > 10 && refused > 10, "{planned} planned, {refused} refused");
}

/// What a section is computed from stands beside it, and follows the request.
#[test]
fn every_section_says_what_it_is_computed_from() {
    let paper = Request::sailfish(sailfish::techniques().pop().unwrap().1);
    let of = |r: &Request| plan(&tofino(), r).unwrap();
    let p = of(&paper);
    for b in p.computed_from.iter().filter(|b| matches!(b.of, "usage" | "stages" | "steps" | "table3" | "region")) {
        assert!(b.from.contains("the Sailfish paper's load"), "{b:?}");
    }
    let load = Load { routes4: 100_000, ..paper.load };
    let techniques = Techniques { clusters: 3, ..paper.techniques };
    let q = of(&Request { load, techniques, tbps: Some(60.0), ..paper });
    for b in q.computed_from.iter().filter(|b| matches!(b.of, "usage" | "stages" | "steps" | "table3" | "region")) {
        assert!(b.from.contains("this load") && !b.from.contains("Sailfish"), "{b:?}");
    }
    assert!(q.basis("usage").contains("one of 3 clusters") && q.basis("region").contains("60 Tbit/s as given"));
    // The figures follow the load, the traffic and the clusters.
    assert!(q.steps[0].usage.tcam < p.steps[0].usage.tcam && q.table2[0].percent < p.table2[0].percent);
    assert!(q.table4[1].percent <= p.table4[1].percent);
    assert!(q.usage.as_ref().unwrap().sram_match < p.usage.as_ref().unwrap().sram_match);
    assert_eq!((p.region.clusters, q.region.clusters, p.region.hardware_nodes), (1, 3, 10));
    assert_eq!(q.region.hardware_nodes, 42, "20 Tbit/s a cluster are seven pairs");
    let page = chip::html::page(&q);
    for b in q.computed_from.iter().filter(|b| !matches!(b.of, "best" | "month" | "cofilter")) {
        assert!(page.contains(&b.from), "{b:?} is not in the page");
    }
    for s in &q.steps {
        assert!(page.contains(&s.sram_explained.because) && page.contains(&s.tcam_explained.because));
    }
}

/// `verify` builds the plan's own tables: what the paper declares for ALPM does not hold as many random prefixes, whole keys by
/// length do; a load of one kind only is built too.
#[test]
fn the_plan_itself_is_built() {
    let paper = sailfish::techniques().pop().unwrap().1;
    let load = Load::sailfish(25).hundredths(5);
    let spill = Routes::Lengths { spill: 1024 };
    let lengths = Techniques { routes: spill, vms: Vms::Digest { bits: 20, conflicts: 4096 }, nc_bits: 15, ..paper };
    let built = |t: Techniques, load| {
        let p = plan(&tofino(), &Request { load, verify: true, ..Request::sailfish(t) }).unwrap();
        assert!(p.does_not_fit.is_none() && p.verified_says().is_some());
        (p.verified, p.verify_failed)
    };
    let (held, failed) = built(lengths, load);
    assert!(
        failed.is_none() && held.is_some_and(|v| v.routes == load.part(2).routes() && v.false_matches < 100),
        "{failed:?}"
    );
    let (held, failed) = built(Techniques { vms: Vms::Whole, nc_bits: 32, ..paper }, load);
    assert!(held.is_none() && failed.as_ref().is_some_and(|e| e.contains("prefixes")), "{failed:?}");
    for load in [Load { routes4: 0, routes6: 0, ..load }, Load { vms4: 0, vms6: 0, ncs: 0, ..load }] {
        let (held, failed) = built(lengths, load);
        assert!(held.is_some(), "{failed:?}");
    }
}

/// The essay's figures are those that `plan chip --sailfish` and `--month` print.
#[test]
fn the_essay_says_what_the_program_prints() {
    let essay = include_str!("../../../docs/design/chip.md");
    let paper = Request::sailfish(sailfish::techniques().pop().unwrap().1);
    let p = plan(&tofino(), &Request { month: true, ..paper }).unwrap();
    let said = |text: String| assert!(essay.contains(&text), "docs/design/chip.md does not say '{text}'");
    let steps: Vec<_> = p.steps.iter().map(|s| (s.usage.sram_percent, s.usage.tcam_percent)).collect();
    for (name, (sram, tcam)) in ["none", "folding", "splitting", "pooling", "ALPM"].iter().zip(steps) {
        let row = essay.lines().find(|l| l.starts_with(&format!("| {name} |"))).expect("a row a step");
        assert!(
            row.contains(&format!("| {sram:.1} |")) && row.contains(&format!("| {tcam:.1} |")),
            "{row}: {sram} {tcam}"
        );
    }
    let [m0, t0, m1, t1] = [0, 1, 2, 3].map(|i| p.table4[i].percent);
    said(format!("({t0:.1} / {t1:.1}% TCAM, {m0:.1} / {m1:.1}%"));
    let sum = |f: fn(&chip::month::Day) -> u64| p.month.iter().map(f).sum::<u64>();
    assert_eq!(sum(|d| d.refused), 0);
    let thousands = chip::load::thousands;
    said(format!("{} updates, {} prefixes moved", thousands(sum(|d| d.updates)), thousands(sum(|d| d.moved))));
}

/// The paper's hash lets addresses through that nobody installed; whole keys never do, and take more blocks.
#[test]
fn the_hole_in_the_hash_and_what_closes_it() {
    let all = sailfish::uninstalled(&tofino(), &Load::sailfish(25), 100_000, 400_000, 3).unwrap();
    all.iter().for_each(|s| eprintln!("{s:?}"));
    assert_eq!(all.len(), 4);
    assert!(all[0].false_matches > 0 && all[0].expected > 5.0, "{:?}", all[0]);
    for whole in &all[1..3] {
        assert!(whole.false_matches == 0 && whole.more_than_paper > 0, "{whole:?}");
    }
    assert!(all[2].sram_match < all[1].sram_match, "over word borders whole keys take less");
}
