// SPDX-License-Identifier: Apache-2.0
//! Single tables as `tunny-lab plan table` asks for them: action data, counters, meters and registers (cases computed by hand in
//! docs/design/chip-blocks.md), tables that cannot be, and what is said of those that do not fit.

use chip::alloc::{audit, Chip};
use chip::blocks::{fit, sram, state, Blocks, Geometry, Grid, Request, Resource};
use chip::{profile, Alpm, Attached, Bucket, Key, Kind, Profile, State, Table};
use testkit::rng::Rng;

fn tofino() -> Profile {
    profile::parse("tofino1.yaml", profile::built_in("tofino1").expect("built in")).expect("valid")
}

fn geometry() -> Geometry {
    tofino().geometry
}

/// Tofino 1 with another number in a field.
fn with(field: &str, value: u32) -> Geometry {
    let text = profile::built_in("tofino1").expect("built in");
    let line =
        |l: &str| if l.starts_with(&format!("{field}:")) { format!("{field}: {value}\n") } else { format!("{l}\n") };
    let text: String = text.lines().map(line).collect();
    profile::parse("mine.yaml", &text).expect("valid").geometry
}

fn table(kind: Kind, key: &str, entries: u64, action_bits: u32) -> Table {
    let key = Key::named(key).unwrap_or_else(|| Key::of(&[key.parse().expect("bits")]));
    Table { kind, key, entries, action_bits, packing: Default::default() }
}

const EXACT: Kind = Kind::Exact { digest: None };

fn counter(bits: u32) -> Attached {
    Attached([Some(State::Counter { bits }), None, None])
}

fn blocks(t: &Table, attached: Attached) -> Blocks {
    let request = Request::Table { table: t.clone(), attached, prefixes: false };
    Blocks::of(&fit(&request, &geometry()).expect("fits"))
}

/// However wide, action data has a bit for each of its bits, in the action RAM or beside the entry, and no more than 32 there.
#[test]
fn no_bit_of_action_data_is_forgotten() {
    for bits in 0..=1024 {
        let formats = sram::action_formats(bits, 32);
        assert_eq!(formats[0].immediate, 0, "all of it may be in the RAM");
        for f in &formats {
            assert!(f.ram_bytes * 8 + f.immediate >= bits, "{bits} bits of action data have no room in {f:?}");
            assert!(f.immediate <= 32 && f.immediate <= bits, "{bits}: {f:?}");
            assert!(f.ram_bytes <= (bits.div_ceil(8)).next_power_of_two().max(bits.div_ceil(8) + 16), "{bits}: {f:?}");
        }
    }
}

/// 25 to 32 bits take a slot of 32: 65,536 entries of a VNI are 13 x 5 x 1024 = 66,560 places of 4 bytes: 65 / 4 = 17 blocks.
/// 185 to 192 take six, which is 24 bytes, so two words of 16: 20,480 entries, 4 x 5 x 1024, take 20 x 2 = 40 blocks.
#[test]
fn action_data_between_the_slots() {
    for bits in [25, 28, 31, 32] {
        let b = blocks(&table(EXACT, "vni", 65_536, bits), Attached::default());
        assert_eq!((b.sram_match, b.sram_action), (13, 17), "{bits} bits");
    }
    for bits in [185, 188, 191, 192] {
        let b = blocks(&table(EXACT, "vni", 20_480, bits), Attached::default());
        assert_eq!((b.sram_match, b.sram_action), (4, 40), "{bits} bits");
    }
    // 24 bits are slots of 16 and 8. Beside the entry goes the one of 8, and the RAM's entries are 2 bytes: 14 + 4 + 8 = 26
    // bits, 4 a word, 16 blocks; 65,536 / 8 a word = 8 blocks.
    let b = blocks(&table(EXACT, "vni", 65_536, 24), Attached::default());
    assert_eq!((b.sram_match, b.sram_action), (16, 8));
    // Of 17 bits the slot of 8 holds one.
    let formats = sram::action_formats(17, 32);
    assert!(formats.iter().any(|f| (f.ram_bytes, f.immediate) == (2, 1)), "{formats:?}");
    assert!(formats.iter().any(|f| (f.ram_bytes, f.immediate) == (1, 16)), "the slot of 16 is full: {formats:?}");
}

/// More action data never takes fewer blocks.
#[test]
fn more_action_data_takes_no_fewer_blocks() {
    let all = |bits| {
        let b = blocks(&table(EXACT, "vni_ip4", 65_536, bits), Attached::default());
        b.sram_match + b.sram_action
    };
    let counts: Vec<u32> = (0..=256).map(all).collect();
    // The packing may be worse by chance of the bytes, never by more than a stage's granularity of a way.
    let mut most = 0;
    for (bits, n) in counts.iter().enumerate() {
        assert!(n + 4 >= most, "{bits} bits take {n} blocks, fewer bits took {most}");
        most = most.max(*n);
    }
}

#[test]
fn state_by_itself() {
    let g = geometry();
    let at = |s: State, cells: u64| {
        let p = fit(&Request::State { state: s, cells }, &g).expect("fits").remove(0).1;
        (p.sram_indirect, p.map_ram, p.stats_alus, p.alus)
    };
    // 65,536 / (4 a word x 1024) = 16, and a spare; of 64 bits 2 a word.
    assert_eq!(at(State::Counter { bits: 32 }, 65_536), (17, 17, 1, 0));
    assert_eq!(at(State::Counter { bits: 64 }, 65_536), (33, 33, 1, 0));
    assert_eq!(at(State::Counter { bits: 33 }, 65_536), (33, 33, 1, 0));
    // Packets (28 bits) and bytes (36) share half a word, of 64 bits each all of it.
    assert_eq!(at(State::CounterPair { bits: 36 }, 65_536), (33, 33, 1, 0));
    assert_eq!(at(State::CounterPair { bits: 64 }, 32_768), (33, 33, 1, 0));
    // A meter a word, and its colours: 16,384 / (4 x 1024) = 4 more map RAMs.
    assert_eq!(at(State::Meter, 16_384), (17, 21, 0, 1));
    // 128 / width cells a word.
    for (bits, cells) in [(1, 4_194_304), (8, 524_288), (16, 262_144), (32, 131_072), (64, 65_536)] {
        assert_eq!(at(State::Register { bits }, cells), (33, 33, 0, 1), "{bits} bits");
        let m = fit(&Request::State { state: State::Register { bits }, cells: 2 * cells }, &g).unwrap_err();
        assert_eq!((m.binds, m.taken, m.of), (Resource::AluReach, 64, 32), "{m:?}");
        assert_eq!(m.changes[0].to, format!("2 of {cells} each"));
        assert!(m.changes.iter().any(|c| c.to == cells.to_string()), "{m:?}");
    }
    // 32 data blocks of meters, a spare and 8 map RAMs of colours are 41 of 48.
    assert_eq!(at(State::Meter, 32_768), (33, 41, 0, 1));
    assert_eq!(State::Meter.most(&g), 32_768);
    assert_eq!(State::Meter.most(&with("map_ram_per_stage", 20)), 15 * 1024, "15 + 1 + 4");
    assert_eq!(State::Counter { bits: 32 }.most(&with("stats_alus", 0)), 0);
}

#[test]
fn state_beside_entries() {
    // 13 x 5 x 1024 = 66,560 places: 66,560 / 4096 = 16.25, 17 and a spare.
    let b = blocks(&table(EXACT, "vni", 65_536, 0), counter(32));
    assert_eq!((b.stages, b.sram_match, b.sram_indirect, b.map_ram), (1, 13, 18, 18));
    // Four TCAM blocks of 512 and an SRAM for what hits say: 2048 counters are half a block, and a spare.
    let b = blocks(&table(Kind::Ternary, "ip4", 2048, 16), counter(32));
    assert_eq!((b.tcam, b.sram_action, b.sram_indirect, b.map_ram), (4, 1, 2, 2));
    // 64 bits: the 66,560 places of five entries a word would be 33 blocks, more than the 32 that an ALU reaches. Four a word,
    // 16 x 4 x 1024 = 65,536 places, are 32, and a spare.
    let b = blocks(&table(EXACT, "vni", 65_536, 0), counter(64));
    assert_eq!((b.stages, b.sram_match, b.sram_indirect, b.map_ram), (1, 16, 33, 33));
    // One more entry is in a second stage: the least depth of 4, whose packing with fewest blocks is one a word, 4,096 places:
    // 2 and a spare. The first stage takes what brings most entries: 16 deep again.
    let b = blocks(&table(EXACT, "vni", 65_537, 0), counter(64));
    assert_eq!((b.stages, b.sram_match, b.sram_indirect, b.map_ram), (2, 20, 33 + 3, 33 + 3));
    // A meter, a counter and a register together.
    let all = Attached([Some(State::Counter { bits: 32 }), Some(State::Meter), Some(State::Register { bits: 8 })]);
    let b = blocks(&table(EXACT, "vni", 4096, 0), all);
    // Four blocks of one entry a word: 1 + 1, 4 + 1 (and one of colours), 1 + 1.
    assert_eq!((b.stages, b.sram_match, b.sram_indirect, b.map_ram), (1, 4, 2 + 5 + 2, 2 + 6 + 2));
    // Buckets of ALPM have counters, pivots have none.
    let alpm = Kind::Alpm(Alpm { partitions: 1024, subtrees: 2, bucket: Bucket::Whole });
    let plain = blocks(&table(alpm.clone(), "vni_ip4", 16_384, 16), Attached::default());
    let counted = blocks(&table(alpm, "vni_ip4", 16_384, 16), counter(32));
    assert_eq!((plain.tcam, plain.sram_match), (counted.tcam, counted.sram_match));
    assert!(counted.sram_indirect > 17_408u64.div_ceil(4096) as u32, "{counted:?}");
}

/// State stands beside map RAMs, 6 a row: an independent count finds no stage over its limits, and no part whose state is
/// less than its entries ask for.
#[test]
fn random_tables_with_state_overfill_nothing() {
    let p = tofino();
    let g = &p.geometry;
    let mut rng = Rng::new(0x57a7e);
    let mut placed = 0;
    for round in 0..300 {
        let kind = match rng.below(3) {
            0 => Kind::Ternary,
            1 => EXACT,
            _ => Kind::Alpm(Alpm { partitions: 1024, subtrees: 2, bucket: Bucket::Whole }),
        };
        let key = ["vni", "vni_ip4", "vni_ip6", "five_tuple4"][rng.below(4)];
        let t = table(kind, key, 3000 + rng.below(60_000) as u64, [0, 16, 28, 64][rng.below(4)]);
        let mut some = |s: State| (rng.below(2) == 0).then_some(s);
        let attached =
            Attached([some(State::Counter { bits: 32 }), some(State::Meter), some(State::Register { bits: 16 })]);
        let request = Request::Table { table: t.clone(), attached, prefixes: false };
        let Ok(parts) = fit(&request, g) else { continue };
        placed += 1;
        for (stage, p) in &parts {
            assert!(p.sram() <= 80 && p.map_ram <= 48, "round {round}, stage {stage}: {p:?}");
            let mut grid = Grid::empty(g);
            let placement = grid.put(p, g).expect("it was placed in an empty stage");
            for row in 0..8u32 {
                let state = placement.single.iter().take(p.sram_indirect as usize).filter(|r| **r == row).count();
                assert!(state <= 6, "round {round}: {state} blocks of state in row {row}, which has 6 map RAMs");
            }
            // The naive count: every kind has its cells for every entry, and a spare.
            let pivots = matches!(t.kind, Kind::Alpm(_)) && p.tcam > 0;
            let least: u64 = attached
                .states()
                .map(|s| match s {
                    State::Counter { .. } | State::CounterPair { .. } => 4,
                    State::Meter => 1,
                    State::Register { .. } => 8,
                })
                .map(|cells_a_word| 1 + p.entries.div_ceil(1024 * cells_a_word))
                .sum();
            let enough = u64::from(p.sram_indirect) >= least;
            assert!(pivots && p.sram_indirect == 0 || enough, "round {round}: {p:?} for {attached:?}");
        }
    }
    assert!(placed > 150, "{placed} of 300 fit");
}

/// The independent count of `alloc::audit` sees a stage with more state in a row than map RAMs.
#[test]
fn the_audit_sees_state_without_map_rams() {
    let mut chip = Chip::flat(&tofino());
    let part = state::part(State::Register { bits: 8 }, 524_288, &geometry()).expect("fits");
    chip.place_part("register", &part, 0).expect("fits");
    audit(&chip).expect("nothing is over its limits");
    chip.placed[0].placement.single = vec![0; 33];
    assert!(audit(&chip).is_err());
    chip.placed[0].placement.single = (0..33).map(|i| i % 4).collect();
    let why = audit(&chip).expect_err("9 blocks in a row of 6 map RAMs");
    assert!(why.contains("over its limits"), "{why}");
}

#[test]
fn tables_that_cannot_be_are_refused() {
    let g = geometry();
    let alpm = |partitions, subtrees, bucket| Kind::Alpm(Alpm { partitions, subtrees, bucket });
    let whole = Bucket::Whole;
    let digest = |bits| Kind::Exact { digest: Some(bits) };
    for (t, prefixes, field, why) in [
        (table(EXACT, "1", 1_000_000, 0), false, "entries", "only 2 different keys"),
        (table(EXACT, "vni", (1 << 24) + 1, 0), false, "entries", "16777216 different keys"),
        (table(Kind::Ternary, "2", 10, 0), false, "entries", "9 different ternary patterns"),
        (table(Kind::Ternary, "2", 8, 0), true, "entries", "7 different prefixes"),
        (table(EXACT, "vni", 0, 0), false, "entries", "takes nothing"),
        (table(digest(24), "vni", 1000, 0), false, "digest-bits", "only 24 bits"),
        (table(digest(40), "ip4", 1000, 0), false, "digest-bits", "only 32 bits"),
        (table(digest(2), "ip4", 1000, 0), false, "digest-bits", "3 bits at least"),
        (table(digest(60), "ip6", 1000, 0), false, "digest-bits", "gives only 52 bits"),
        (table(alpm(1000, 2, whole), "vni_ip4", 100_000, 0), true, "partitions", "one of"),
        (table(alpm(1024, 11, whole), "vni_ip4", 100_000, 0), true, "subtrees", "1 to 10"),
        (table(alpm(8192, 2, whole), "vni_ip4", 16_383, 0), true, "partitions", "16384 pivots"),
        (table(alpm(1024, 2, Bucket::Exclude { lpm_bits: 0 }), "ip4", 100_000, 0), true, "option", "no VNI"),
        (table(alpm(1024, 2, Bucket::Exclude { lpm_bits: 0 }), "five_tuple4", 100_000, 0), true, "key", "no address"),
        (
            table(alpm(1024, 2, Bucket::Exclude { lpm_bits: 32 }), "vni_ip4", 100_000, 0),
            true,
            "exclude-bits",
            "nothing",
        ),
        (table(alpm(1024, 2, Bucket::Subset32), "24", 100_000, 0), true, "option", "only 24 bits"),
        (table(Kind::Ternary, "five_tuple4", 1000, 0), true, "key", "no address"),
    ] {
        let e = t.check(prefixes, &g).expect_err(&format!("{t:?}"));
        assert_eq!(e.field, field, "{e}");
        assert!(e.reason.contains(why), "{e}");
    }
    for t in [
        table(EXACT, "1", 2, 0),
        table(EXACT, "vni", 1 << 24, 0),
        table(digest(20), "vni", 1000, 0),
        table(alpm(8192, 2, whole), "vni_ip4", 16_384, 0),
        table(alpm(1024, 2, Bucket::Subset32), "vni_ip4", 100_000, 0),
        table(Kind::Ternary, "five_tuple4", 1000, 0),
    ] {
        t.check(false, &g).unwrap_or_else(|e| panic!("{t:?}: {e}"));
    }
    table(Kind::Ternary, "2", 7, 0).check(true, &g).expect("seven prefixes of two bits");
    for bits in [0, 2, 12, 33, 128] {
        assert!(State::Register { bits }.check().is_err(), "{bits}");
    }
    assert!(State::Counter { bits: 65 }.check().is_err() && State::CounterPair { bits: 0 }.check().is_err());
}

/// The reason is the true one: a chip without TCAM has none, however narrow the key.
#[test]
fn what_the_chip_lacks_is_named() {
    let alpm = Kind::Alpm(Alpm { partitions: 1024, subtrees: 2, bucket: Bucket::Whole });
    let request = |t: Table, attached| Request::Table { table: t, attached, prefixes: true };
    let none = Attached::default();
    for (g, request, binds, why) in [
        (
            with("tcam_per_stage", 0),
            request(table(Kind::Ternary, "ip4", 100, 0), none),
            Resource::Tcam,
            "this chip has none",
        ),
        (
            with("tcam_per_stage", 0),
            request(table(alpm.clone(), "vni_ip4", 9000, 0), none),
            Resource::Tcam,
            "this chip has none",
        ),
        (
            with("tcam_per_stage", 3),
            request(table(Kind::Ternary, "vni_ip6", 100, 0), none),
            Resource::Tcam,
            "has 3 in each",
        ),
        (
            with("crossbar_ternary", 6),
            request(table(Kind::Ternary, "vni_ip4", 100, 0), none),
            Resource::TernaryCrossbar,
            "needs 7",
        ),
        (
            Geometry { ternary_tables_per_stage: 0, ..geometry() },
            request(table(Kind::Ternary, "ip4", 100, 0), none),
            Resource::TernaryTables,
            "none",
        ),
        (
            with("crossbar_exact", 16),
            request(table(EXACT, "vni_ip6", 100, 0), none),
            Resource::ExactCrossbar,
            "needs 19",
        ),
        (with("stats_alus", 0), request(table(EXACT, "vni", 100, 0), counter(32)), Resource::StatisticsAlus, "none"),
        (
            with("hash_groups", 1),
            request(table(Kind::Exact { digest: Some(20) }, "ip6", 100, 0), none),
            Resource::HashFunctions,
            "needs 2",
        ),
    ] {
        let m = fit(&request, &g).expect_err(&format!("{request:?}"));
        assert_eq!(m.binds, binds, "{m:?}");
        assert!(m.reason.contains(why) && !m.reason.contains("wider"), "{m:?}");
    }
    let m = fit(&request(table(Kind::Ternary, "ip4", 100, 0), none), &with("tcam_per_stage", 0)).unwrap_err();
    assert!(m.changes.iter().any(|c| c.field == "kind" && c.to == "exact"), "{m:?}");
    // An exact table does not need the ternary crossbar, nor the other way round.
    fit(&request(table(EXACT, "vni_ip6", 100, 0), none), &with("crossbar_ternary", 4)).expect("fits");
    fit(&request(table(Kind::Ternary, "vni_ip6", 100, 0), none), &with("crossbar_exact", 16)).expect("fits");
}

fn requested(request: &Request, c: &chip::blocks::Change) -> Option<Request> {
    let Request::Table { table, attached, prefixes } = request.clone() else { return None };
    let n = c.to.parse::<u64>().ok();
    let table = match (c.field, n) {
        ("entries", Some(n)) => Table { entries: n, ..table },
        ("action-bits", Some(n)) => Table { action_bits: n as u32, ..table },
        ("digest-bits", Some(n)) => Table { kind: Kind::Exact { digest: Some(n as u32) }, ..table },
        _ => return None,
    };
    Some(Request::Table { table, attached, prefixes })
}

/// Of what does not fit: the resource that binds, the last stage, and changes that really fit; one step less does not.
#[test]
fn what_does_not_fit_says_what_would() {
    let g = geometry();
    let mut rng = Rng::new(0xf17);
    let (mut refused, mut tried) = (0, 0);
    for round in 0..32 {
        let kind = match rng.below(4) {
            0 => Kind::Ternary,
            1 => Kind::Exact { digest: Some(24 + rng.below(20) as u32) },
            2 => EXACT,
            _ => Kind::Alpm(Alpm { partitions: 1024 << rng.below(3), subtrees: 2, bucket: Bucket::Whole }),
        };
        let prefixes = !matches!(kind, Kind::Exact { .. });
        let key = ["vni_ip4", "vni_ip6"][rng.below(2)];
        let t = table(kind, key, 20_000 + rng.below(3_000_000) as u64, [0, 16, 32, 64][rng.below(4)]);
        let request = Request::Table { table: t.clone(), attached: Attached::default(), prefixes };
        let Err(m) = fit(&request, &g) else { continue };
        refused += 1;
        let binds = if t.kind == Kind::Ternary { Resource::Tcam } else { Resource::Sram };
        assert_eq!((m.binds, m.stage), (binds, 11), "round {round}, {t:?}: {m:?}");
        assert!(m.taken <= m.of && (m.taken == m.of || !m.left_over.is_empty()), "round {round}: {m:?}");
        assert!(m.needs_stages.is_some_and(|n| n > 12), "round {round}: {m:?}");
        assert!(!m.changes.is_empty(), "round {round}: {m:?}");
        for c in &m.changes {
            let Some(changed) = requested(&request, c) else { continue };
            tried += 1;
            let parts = fit(&changed, &g).unwrap_or_else(|e| panic!("round {round}: {c:?} does not fit: {e:?}"));
            assert!(parts.iter().all(|(stage, _)| *stage < 12));
            if c.field == "entries" {
                let n: u64 = c.to.parse().unwrap();
                for step in [1, 2, 5, 30] {
                    let more = Request::Table {
                        table: Table { entries: n + step * 1024, ..t.clone() },
                        attached: Attached::default(),
                        prefixes,
                    };
                    assert!(
                        n + step * 1024 >= t.entries || fit(&more, &g).is_err(),
                        "round {round}: {step} more blocks fit"
                    );
                }
            }
        }
        let shares: Vec<f64> = m.changes.iter().filter(|c| c.field != "stages").map(|c| c.share).collect();
        assert!(shares.windows(2).all(|w| w[0] <= w[1]), "the smallest first: {m:?}");
    }
    assert!(refused > 15 && tried > 20, "{refused} refused, {tried} changes tried");
}

/// However much is asked for, there is an answer, and it is the true one.
#[test]
fn far_too_much_is_answered() {
    let g = geometry();
    let alpm = Kind::Alpm(Alpm { partitions: 8192, subtrees: 1, bucket: Bucket::Whole });
    for (kind, key, prefixes, action_bits, binds) in [
        (EXACT, "vni_ip6", false, 1024, Resource::Sram),
        (Kind::Ternary, "five_tuple6", false, 1024, Resource::Tcam),
        (alpm, "vni_ip6", true, 64, Resource::Sram),
    ] {
        let t = table(kind, key, 1 << 32, action_bits);
        let m = fit(&Request::Table { table: t, attached: Attached::default(), prefixes }, &g).unwrap_err();
        assert!(m.binds == binds || m.binds_too.contains(&binds), "{m:?}");
        assert!(m.needs_stages.is_none() && m.reason.contains("more than 1024 stages"), "{m:?}");
    }
}

/// Beside wide state it is not the match memory that ends: a counter pair and a meter for every entry take the map RAMs, and a
/// counter alone what its ALU reaches.
#[test]
fn state_binds_where_it_ends_first() {
    let request = |attached| Request::Table { table: table(EXACT, "vni", 700_000, 0), attached, prefixes: false };
    let both = Attached([Some(State::CounterPair { bits: 64 }), Some(State::Meter), None]);
    let m = fit(&request(both), &geometry()).unwrap_err();
    assert_eq!(m.binds, Resource::MapRam, "{m:?}");
    let one = Attached([Some(State::CounterPair { bits: 64 }), None, None]);
    let m = fit(&request(one), &geometry()).unwrap_err();
    assert_eq!(m.binds, Resource::AluReach, "{m:?}");
}
