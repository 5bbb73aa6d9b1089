// SPDX-License-Identifier: Apache-2.0
//! Many tables in the stages of a chip: whatever is placed, no stage is over its limits, by two counts that know nothing of the
//! placement: `alloc::audit` and the one here.

use chip::alloc::{audit, Chip, Placed};
use chip::blocks::state;
use chip::{profile, Alpm, Bucket, Key, Kind, Profile, State, Table};
use std::collections::BTreeMap;
use testkit::rng::Rng;

fn chip_named(name: &str) -> Profile {
    profile::parse(name, profile::built_in(name).expect("built in")).expect("valid")
}

/// Every block by itself: (pipe, stage, row, column) is taken once, by counting columns up from the left of each row.
fn count(chip: &Chip) -> Result<(), String> {
    let g = &chip.profile.geometry;
    let mut rows: BTreeMap<(u32, u32, u32), u32> = BTreeMap::new();
    let mut sums: BTreeMap<(u32, u32), [u32; 9]> = BTreeMap::new();
    for p in &chip.placed {
        let at = (p.segment.pipe, p.stage);
        let mut take = |row: u32, n: u32| *rows.entry((at.0, at.1, row)).or_default() += n;
        for (first, width, columns) in &p.placement.columns {
            (*first..first + width).for_each(|row| take(row, *columns));
        }
        p.placement.single.iter().for_each(|row| take(*row, 1));
        let stands: u32 =
            p.placement.columns.iter().map(|(_, w, c)| w * c).sum::<u32>() + p.placement.single.len() as u32;
        if stands != p.part.sram_match + p.part.sram_action + p.part.sram_indirect {
            return Err(format!("{}: {stands} blocks stand", p.table));
        }
        let part = &p.part;
        let more = [
            part.tcam,
            part.map_ram,
            part.logical_tables.max(1),
            part.alus,
            part.stats_alus,
            part.crossbar_exact,
            part.crossbar_ternary,
            part.hash_groups,
            u32::from(part.tcam > 0),
        ];
        sums.entry(at).or_default().iter_mut().zip(more).for_each(|(sum, n)| *sum += n);
    }
    if let Some((at, n)) = rows.iter().find(|(at, n)| at.2 >= g.sram_rows || **n > g.sram_columns) {
        return Err(format!("{n} blocks in row {at:?}"));
    }
    let limits = [
        g.tcam_per_stage,
        g.map_ram_per_stage,
        g.tables_per_stage,
        g.meter_alus,
        g.stats_alus,
        g.crossbar_exact,
        g.crossbar_ternary,
        g.hash_groups,
        g.ternary_tables_per_stage,
    ];
    for (at, sum) in &sums {
        if let Some(i) = (0..limits.len()).find(|i| sum[*i] > limits[*i]) {
            return Err(format!("resource {i} of {at:?}: {} of {}", sum[i], limits[i]));
        }
    }
    Ok(())
}

fn random_table(rng: &mut Rng) -> Table {
    let kind = match rng.below(4) {
        0 => Kind::Ternary,
        1 => Kind::Exact { digest: Some(12 + rng.below(28) as u32) },
        2 => Kind::Exact { digest: None },
        _ => Kind::Alpm(Alpm {
            partitions: 1024 << rng.below(3),
            subtrees: 1 + rng.below(4) as u32,
            bucket: Bucket::Whole,
        }),
    };
    let key = ["vni", "ip4", "vni_ip4", "vni_lbl1_ip4", "vni_ip6", "five_tuple4"][rng.below(6)];
    let most = if rng.below(3) == 0 { 400_000 } else { 20_000 };
    let entries = 1 + rng.below(most) as u64;
    let action_bits = [0, 8, 16, 28, 32, 64, 190][rng.below(7)];
    Table { kind, key: Key::named(key).unwrap(), entries, action_bits, packing: Default::default() }
}

/// Fills chips of three kinds, flat and folded, until tables are refused again and again.
#[test]
fn no_stage_is_ever_over_its_limits() {
    let mut rng = Rng::new(0x0b10c5);
    let (mut placed, mut refused, mut full) = (0, 0, 0);
    for round in 0..45 {
        let profile = chip_named(["tofino1", "tofino2", "example-rmt"][round % 3]);
        let mut chip = if round % 2 == 0 && profile.loopback { Chip::folded(&profile) } else { Chip::flat(&profile) };
        chip.across = rng.below(2) == 0;
        let (mut from, mut failed) = (0, 0);
        while failed < 6 {
            let before = chip.placed.len();
            let end = if rng.below(4) == 0 {
                let kinds = [
                    State::Register { bits: 1 },
                    State::Counter { bits: 64 },
                    State::CounterPair { bits: 36 },
                    State::Meter,
                ];
                let cells = 1000 + rng.below(30_000) as u64;
                let part =
                    state::part(kinds[rng.below(4)], cells, &profile.geometry).expect("no more than an ALU reaches");
                chip.place_part("state", &part, from)
            } else {
                chip.place("table", &random_table(&mut rng), from)
            };
            match end {
                Ok(end) => {
                    placed += 1;
                    // Some depend on what was placed before them.
                    from = if rng.below(6) == 0 { end.min(chip.slots() - 1) } else { from };
                }
                Err(e) => {
                    failed += 1;
                    refused += 1;
                    assert_eq!(chip.placed.len(), before, "what is refused leaves nothing behind: {e}");
                    from = 0;
                }
            }
            audit(&chip).unwrap_or_else(|e| panic!("round {round}: {e}"));
            count(&chip).unwrap_or_else(|e| panic!("round {round}: {e}"));
        }
        let taken: u32 = (0..chip.pipes() as u32).map(|p| chip.used(p).1).sum();
        full += u32::from(taken * 2 > profile.sram_per_pipe() * chip.pipes() as u32);
    }
    assert!(placed > 300 && refused > 200 && full > 20, "{placed} placed, {refused} refused, {full} chips half full");
}

/// Both counts see whatever is too much: each resource in turn.
#[test]
fn both_counts_see_what_is_too_much() {
    let mut chip = Chip::flat(&chip_named("tofino1"));
    let t = Table { kind: Kind::Ternary, ..random_table(&mut Rng::new(1)) };
    chip.place("table", &Table { entries: 512, key: Key::named("ip4").unwrap(), action_bits: 16, ..t }, 0).unwrap();
    audit(&chip).unwrap();
    count(&chip).unwrap();
    let spoils: [fn(&mut Placed); 11] = [
        |p| p.part.tcam = 25,
        |p| p.part.map_ram = 49,
        |p| p.part.logical_tables = 17,
        |p| p.part.alus = 5,
        |p| p.part.stats_alus = 5,
        |p| p.part.crossbar_exact = 129,
        |p| p.part.crossbar_ternary = 67,
        |p| p.part.hash_groups = 9,
        |p| p.part.sram_action += 1,
        |p| p.placement.single.push(0),
        |p| {
            p.placement.columns.push((0, 1, 11));
            p.part.sram_match += 11;
        },
    ];
    for (i, spoil) in spoils.iter().enumerate() {
        let mut spoilt = chip.clone();
        spoil(&mut spoilt.placed[0]);
        assert!(audit(&spoilt).is_err() && count(&spoilt).is_err(), "spoilt in way {i}, nobody saw it");
    }
    // The same table nine times in a stage: more ternary tables than it has.
    let mut many = chip.clone();
    many.placed = vec![chip.placed[0].clone(); 9];
    assert!(audit(&many).is_err() && count(&many).is_err());
}
