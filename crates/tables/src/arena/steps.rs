// SPDX-License-Identifier: Apache-2.0
//! The allocator step by step: which line each call gives, what is free afterwards, and when memory grows.

use super::*;
use crate::{HeapMemory, LineMemory};
use std::sync::atomic::AtomicU32;

const SEG: u32 = SEGMENT_LINES;

fn arena(segments: u32, most: u32) -> Arena {
    let memory = HeapMemory::new().unwrap();
    memory.grow(segments).unwrap();
    Arena::new(Arc::new(memory), most)
}

impl Arena {
    /// Takes so much that so many lines are left, beside small blocks.
    pub(crate) fn leave(&mut self, lines: u32) {
        let much = self.extent_lines + self.slab.lines - lines;
        self.alloc_zeroed(much, 1, false).unwrap();
        assert_eq!(self.extent_lines + self.slab.lines, lines);
    }
}

/// The sums are what the lists hold, and every line but 0 is free or in use.
fn check(a: &Arena) {
    assert_eq!(a.extent_lines, a.extents.values().sum::<u32>());
    let classes: u32 = a.classes.iter().enumerate().map(|(n, class)| (n * class.len()) as u32).sum();
    assert_eq!(a.class_lines, classes + 2 * a.pairs.len() as u32);
    assert_eq!(a.used + a.extent_lines + a.class_lines + a.slab.lines, a.lines.limit().saturating_sub(1));
    let found = a.in_use();
    assert_eq!(found.iter().map(|b| b.lines).sum::<u32>(), a.used());
    assert!(a.extents.values().all(|lines| *lines > CLASS_MAX));
    for (n, class) in a.classes.iter().enumerate() {
        assert!(
            class.iter().all(|line| line.0 / SEG == (line.0 + n as u32 - 1) / SEG),
            "a block of {n} crosses a segment"
        );
    }
}

fn extents(a: &Arena) -> Vec<(u32, u32)> {
    check(a);
    a.extents.iter().map(|(line, lines)| (line.0, *lines)).collect()
}

/// Classes that are not empty.
fn classes(a: &Arena) -> Vec<(usize, Vec<u32>)> {
    check(a);
    let lines = |class: &Vec<LineNo>| class.iter().map(|line| line.0).collect();
    a.classes.iter().map(lines).enumerate().filter(|c: &(usize, Vec<u32>)| !c.1.is_empty()).collect()
}

/// A memory of one segment, all of it in use by blocks of 16 lines and one of 15.
fn filled(most: u32) -> (Arena, Vec<u32>) {
    let memory = HeapMemory::new().unwrap();
    memory.grow(1).unwrap();
    let mut live: Vec<Block> =
        (0..4096).map(|n| Block { line: LineNo(1 + 16 * n), lines: if n < 4095 { 16 } else { 15 } }).collect();
    let a = Arena::attach(Arc::new(memory), most, &mut live).unwrap();
    assert_eq!(a.used(), SEG - 1);
    check(&a);
    (a, live[..4095].iter().map(|b| b.line.0).collect())
}

#[test]
fn runs_are_taken_where_they_fit_first() {
    let mut a = arena(2, 2);
    assert_eq!(a.limit(), 2 * SEG);
    assert_eq!(a.alloc_zeroed(100, 1, true).unwrap(), LineNo(1));
    // Up to the last line of the segment, and one more than fits into it.
    assert_eq!(a.alloc_zeroed(SEG - 101, 1, true).unwrap(), LineNo(101));
    a.free(Block { line: LineNo(101), lines: SEG - 101 });
    assert_eq!(extents(&a), [(101, 2 * SEG - 101)]);
    assert_eq!(a.alloc_zeroed(SEG - 100, 1, true).unwrap(), LineNo(SEG));
    assert_eq!(extents(&a), [(101, SEG - 101), (2 * SEG - 100, 100)]);
    a.free(Block { line: LineNo(SEG), lines: SEG - 100 });
    assert_eq!(extents(&a), [(101, 2 * SEG - 101)]);
    assert_eq!(a.alloc_zeroed(SEG - 100, 1, false).unwrap(), LineNo(101), "this one may cross");
    // Aligned: what is left out before is free.
    let next = SEG + 1;
    assert_eq!(a.alloc_zeroed(200, 64, false).unwrap(), LineNo(SEG + 64));
    assert_eq!(classes(&a), [(63, vec![next])]);
    assert_eq!(extents(&a), [(SEG + 264, SEG - 264)]);
    // All that is left, to the last line.
    assert_eq!(a.alloc_zeroed(SEG - 264, 1, true).unwrap(), LineNo(SEG + 264));
    assert!(a.alloc_zeroed(64, 1, true).is_err() && extents(&a).is_empty());
    assert_eq!(a.alloc(63).unwrap(), LineNo(next));
    assert_eq!(a.used(), 2 * SEG - 1);
    assert_eq!(arena(0, u32::MAX).limit(), SEGMENTS_MAX << SEGMENT_SHIFT);
}

#[test]
fn runs_that_are_given_back_join_their_neighbours() {
    for order in [[0, 1, 2, 3, 4], [4, 3, 2, 1, 0], [1, 3, 2, 0, 4], [0, 2, 4, 1, 3]] {
        let mut a = arena(1, 1);
        let lines = |n: u32| 100 + n;
        let blocks: Vec<u32> = (0..5).map(|n| a.alloc_zeroed(lines(n), 1, true).unwrap().0).collect();
        assert_eq!(blocks, [1, 101, 202, 304, 407]);
        let mut free = std::collections::BTreeSet::new();
        free.insert(5);
        for n in order {
            a.free(Block { line: LineNo(blocks[n as usize]), lines: lines(n) });
            free.insert(n);
            // Runs of numbers that are free.
            let mut want: Vec<(u32, u32)> = Vec::new();
            for n in &free {
                let (line, lines) = if *n == 5 { (511, SEG - 511) } else { (blocks[*n as usize], lines(*n)) };
                match want.last_mut() {
                    Some(last) if last.0 + last.1 == line => last.1 += lines,
                    _ => want.push((line, lines)),
                }
            }
            assert_eq!(extents(&a), want, "{order:?}");
        }
        assert_eq!((a.used(), a.freed), (0, 0));
    }
}

#[test]
fn small_blocks_come_from_their_class_then_from_the_slab() {
    let mut a = arena(1, 1);
    assert_eq!((a.alloc(3).unwrap(), a.alloc(80).unwrap(), a.alloc(1).unwrap()), (LineNo(1), LineNo(4), LineNo(84)));
    assert_eq!((a.slab, a.used()), (Block { line: LineNo(85), lines: SLAB - 84 }, 84));
    a.free(Block { line: LineNo(4), lines: 80 });
    a.free(Block { line: LineNo(1), lines: 3 });
    assert_eq!((classes(&a), a.freed), (vec![(3, vec![1]), (80, vec![4])], 83));
    assert_eq!((a.alloc(4).unwrap(), a.alloc(3).unwrap(), a.alloc(80).unwrap()), (LineNo(85), LineNo(1), LineNo(4)));
    // To the end of the slab; what is left of it is free.
    while a.slab.lines >= 80 {
        a.alloc(80).unwrap();
    }
    let rest = a.slab;
    assert!(rest.lines > 0 && rest.line + rest.lines == LineNo(SLAB + 1));
    assert_eq!(a.alloc(80).unwrap(), LineNo(SLAB + 1));
    assert_eq!(classes(&a), [(rest.lines as usize, vec![rest.line.0])]);
    // Exactly a slab.
    a.alloc(16).unwrap();
    for _ in 0..250 {
        a.alloc(16).unwrap();
    }
    assert_eq!(a.slab.lines, 0);
    assert_eq!(a.alloc(16).unwrap(), LineNo(2 * SLAB + 1));
    check(&a);
}

/// When no whole slab is left, smaller ones are cut, down to a single block.
#[test]
fn the_last_lines_are_used_up() {
    let mut a = arena(1, 1);
    let mut blocks = 0;
    while a.alloc(80).is_ok() {
        blocks += 1;
    }
    // Fifteen slabs of fifty-one blocks, then one of each piece of eighty-one lines.
    assert_eq!((blocks, a.used()), (15 * 51 + 50, 80 * (15 * 51 + 50)));
    // What is left: 16 lines of each slab, a line of each piece but the last, and the last one's with the 45 behind it.
    let mut left = |lines: u32| std::iter::from_fn(|| a.alloc(lines).ok()).count();
    assert_eq!([left(17), left(46), left(16), left(2), left(1)], [0, 1, 15, 0, 49]);
    assert_eq!(a.used(), SEG - 1);
    check(&a);
}

#[test]
fn pairs_are_even_and_nothing_of_their_block_is_lost() {
    // Behind an odd line first, then behind an even one.
    for (before, first, single) in [(0, 2, 1), (1, 2, 18)] {
        let mut a = arena(1, 1);
        (0..before).for_each(|_| _ = a.alloc(1).unwrap());
        let pairs: Vec<u32> = (0..8).map(|_| a.alloc_pair().unwrap().0).collect();
        assert_eq!(pairs, (0..8).rev().map(|n| first + 2 * n).collect::<Vec<_>>());
        assert_eq!((a.used(), classes(&a)), (before + 16, vec![(1, vec![single])]));
        assert_eq!(a.alloc(1).unwrap(), LineNo(single));
        let ninth = a.alloc_pair().unwrap();
        assert_eq!((ninth.0 % 2, a.pairs.len(), a.used()), (0, 7, before + 19));
        for line in [pairs[3], ninth.0, pairs[0]] {
            let used = a.used();
            for l in [line, line + 1] {
                a.lines.fill(LineNo(l), &[7; 8]);
            }
            let neighbours = [line - 1, line + 2].map(|l| (l, a.lines.at(LineNo(l)).snapshot()));
            a.free_pair(LineNo(line));
            assert_eq!(a.used(), used - 2);
            check(&a);
            assert_eq!(a.alloc_pair().unwrap(), LineNo(line));
            assert!([line, line + 1].iter().all(|l| a.lines.at(LineNo(*l)).snapshot() == [0; 8]));
            neighbours.iter().for_each(|(l, words)| assert_eq!(a.lines.at(LineNo(*l)).snapshot(), *words));
        }
    }
}

/// All free space is one run again, where blocks lay side by side; and a hole that fits is taken before memory grows.
#[test]
fn free_blocks_merge_before_memory_grows() {
    let (mut a, blocks) = filled(2);
    blocks.iter().for_each(|line| a.free(Block { line: LineNo(*line), lines: 16 }));
    assert_eq!((a.class_lines, a.freed, a.worth_merging()), (65_520, 65_520, true));
    assert_eq!(a.alloc(17).unwrap(), LineNo(1));
    assert_eq!((a.slab, a.freed, a.lines.limit()), (Block { line: LineNo(18), lines: SLAB - 17 }, 0, SEG));
    assert_eq!((extents(&a), classes(&a)), (vec![(SLAB + 1, 65_520 - SLAB)], vec![]));
    // Holes of 17 lines between blocks that stay.
    let mut a = arena(1, 2);
    let mut lines = Vec::new();
    for _ in 0..2978 {
        lines.push([16, 1, 5].map(|n| Block { line: a.alloc(n).unwrap(), lines: n }));
    }
    while a.alloc(16).is_ok() && a.lines.limit() == SEG {}
    let (used, limit) = (a.used(), a.lines.limit());
    lines.iter().for_each(|[x, y, _]| [x, y].iter().for_each(|b| a.free(**b)));
    a.slab = Block { line: LineNo(0), lines: 0 };
    a.extents.clear();
    (a.extent_lines, a.pairs) = (0, Vec::new());
    assert!(a.worth_merging());
    let line = a.alloc(17).unwrap();
    assert!(lines.iter().any(|[x, y, _]| x.line == line && y.line == line + 16), "a hole at {line}");
    assert_eq!((a.used(), a.lines.limit()), (used - 2978 * 17 + 17, limit));
    assert_eq!((a.slab.lines, a.classes[17].len() > 2000), (0, true));
}

#[test]
fn a_merge_keeps_every_free_line() {
    let (mut a, blocks) = filled(1);
    // A long run, then runs of one, two and five blocks.
    let free = |n: usize| n < 22 || [0, 2, 3, 5, 6, 7, 8, 9].contains(&(n % 11));
    blocks
        .iter()
        .enumerate()
        .filter(|(n, _)| free(*n))
        .for_each(|(_, line)| a.free(Block { line: LineNo(*line), lines: 16 }));
    let lines = a.class_lines;
    a.coalesce();
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for n in (0..4095).filter(|n| free(*n)) {
        match runs.last_mut() {
            Some((line, lines)) if *line + *lines == blocks[n] => *lines += 16,
            _ => runs.push((blocks[n], 16)),
        }
    }
    assert_eq!((extents(&a), runs[0]), (vec![(1, 368)], (1, 368)));
    for n in [16, 32, 80] {
        let mut class = a.classes[n].clone();
        class.sort_unstable();
        assert!(
            class.len() > 300
                && class.into_iter().map(|line| line.0).eq(runs.iter().filter(|r| r.1 == n as u32).map(|r| r.0)),
            "{n}"
        );
    }
    // A slab that is begun and a pair that is free are merged too.
    let pair = [a.alloc_pair(), a.alloc_pair()].map(|p| p.unwrap());
    assert_eq!((a.slab, pair), (Block { line: LineNo(18), lines: 64 }, [LineNo(16), LineNo(14)]));
    a.free_pair(LineNo(16));
    a.freed = 9;
    a.coalesce();
    assert_eq!((a.class_lines + a.extent_lines, a.freed), (lines - 2, 0));
    assert!(a.pairs.is_empty() && a.slab.lines == 0);
    assert_eq!((extents(&a), a.classes[13].clone()), (vec![(16, 353)], vec![LineNo(1)]));
    a.coalesce();
    assert_eq!(a.class_lines + a.extent_lines, lines - 2, "a second time changes nothing");
    let mut a = arena(1, 1);
    let line = a.alloc(16).unwrap();
    a.free(Block { line, lines: 16 });
    a.coalesce();
    assert_eq!((extents(&a), classes(&a), a.used()), (vec![(1, SEG - 1)], vec![], 0));
}

#[test]
fn when_a_merge_is_worth_its_while() {
    let mut a = arena(1, 1);
    let mut worth = |used, class_lines, freed| {
        (a.used, a.class_lines, a.freed) = (used, class_lines, freed);
        a.worth_merging()
    };
    assert_eq!([worth(0, 8192, 8192), worth(0, 8191, 8192), worth(0, 8192, 8191)], [true, false, false]);
    assert_eq!([worth(65_536, 8192, 8192), worth(65_544, 8192, 8193), worth(65_544, 8193, 8193)], [true, false, true]);
}

/// A long run takes what is free in small blocks before it asks for more memory, if that could be enough.
#[test]
fn long_runs_merge_what_is_free() {
    let (mut a, blocks) = filled(1);
    blocks.iter().for_each(|line| a.free(Block { line: LineNo(*line), lines: 16 }));
    assert_eq!(a.alloc_zeroed(65_520, 1, false).unwrap(), LineNo(1), "to the last line");
    a.free(Block { line: LineNo(1), lines: 65_520 });
    assert!(a.alloc_zeroed(65_521, 1, false).is_err());
    let (mut a, blocks) = filled(3);
    blocks[1..].iter().for_each(|line| a.free(Block { line: LineNo(*line), lines: 16 }));
    assert_eq!(a.alloc_zeroed(65_504, 1, false).unwrap(), LineNo(17));
    assert_eq!(a.lines.limit(), SEG);
    // More than there is: the memory grows by what is needed and an eighth of what there is at least.
    assert_eq!(a.alloc_zeroed(SEG, 1, false).unwrap(), LineNo(SEG));
    assert_eq!((a.lines.limit(), extents(&a)), (3 * SEG, vec![(2 * SEG, SEG)]));
    assert!(a.alloc_zeroed(SEG + 1, 1, false).is_err());
    assert_eq!(a.alloc_zeroed(SEG, 2, true).unwrap(), LineNo(2 * SEG));
}

/// Lines that were never written are zero by themselves; all others are zeroed, and none beside them.
#[test]
fn runs_are_zero_and_their_neighbours_stay() {
    let garbage = [0x5555_5555_5555_5555; 8];
    let mut a = arena(1, 1);
    a.forget_content();
    (1..SEG).for_each(|l| a.lines.fill(LineNo(l), &garbage));
    let line = a.alloc_zeroed(300, 1, true).unwrap();
    for l in 1..700 {
        assert_eq!(
            a.lines.at(LineNo(l)).snapshot(),
            if (line..line + 300).contains(&LineNo(l)) { [0; 8] } else { garbage },
            "line {l}"
        );
    }
    // Half of it was in use before, half is fresh.
    let mut a = arena(1, 1);
    let first = a.alloc_zeroed(100, 1, true).unwrap();
    (0..100).for_each(|l| a.lines.fill(first + l, &garbage));
    a.free(Block { line: first, lines: 100 });
    assert_eq!(a.fresh, 101);
    let line = a.alloc_zeroed(500, 1, true).unwrap();
    assert_eq!((line, a.fresh), (LineNo(1), 501));
    assert!((0..500).all(|l| a.lines.at(line + l).snapshot() == [0; 8]));
    // Lines of a slab were in use too.
    let mut a = arena(1, 1);
    let line = a.alloc(50).unwrap();
    (0..50).for_each(|l| a.lines.fill(line + l, &garbage));
    assert_eq!(a.fresh, 1 + SLAB);
    a.free(Block { line, lines: 50 });
    a.coalesce();
    let line = a.alloc_zeroed(200, 1, true).unwrap();
    assert!((0..200).all(|l| a.lines.at(line + l).snapshot() == [0; 8]));
    let (mut dirty, mut clean) = (arena(2, 2), arena(0, 2));
    dirty.forget_content();
    clean.forget_content();
    assert_eq!((dirty.fresh, clean.fresh), (2 * SEG, 1));
}

#[test]
fn what_was_taken_is_given_back() {
    let mut a = arena(1, 1);
    a.alloc(7).unwrap();
    let before = a.used();
    a.begin();
    let first = a.alloc(5).unwrap();
    a.begin();
    a.alloc(5).unwrap();
    let pair = a.alloc_pair().unwrap();
    let run = a.alloc_zeroed(500, 1, true).unwrap();
    a.take_back();
    assert_eq!(a.used(), before);
    check(&a);
    assert_eq!(
        [a.alloc(5).unwrap(), a.alloc_pair().unwrap(), a.alloc_zeroed(500, 1, true).unwrap()],
        [first, pair, run]
    );
    // Nothing more is given back, neither now nor after what is kept.
    let used = a.used();
    a.take_back();
    assert_eq!(a.used(), used);
    a.begin();
    a.alloc(5).unwrap();
    a.keep();
    a.alloc(5).unwrap();
    a.take_back();
    assert_eq!(a.used(), used + 10);
}

#[test]
fn a_reserve_grows_by_what_is_missing() {
    // A sixteenth and a slab more than is wanted.
    let mut a = arena(0, 8);
    a.reserve(60_000).unwrap();
    assert_eq!((a.lines.limit(), extents(&a)), (2 * SEG, vec![(1, 2 * SEG - 1)]));
    a.reserve(119_506).unwrap();
    assert_eq!(a.lines.limit(), 2 * SEG, "119,506 + 7,469 + 4,096 are there");
    a.reserve(119_507).unwrap();
    assert_eq!((a.lines.limit(), extents(&a)), (3 * SEG, vec![(1, 3 * SEG - 1)]));
    // What is left of the slab counts.
    a.alloc(1).unwrap();
    a.reserve(181_186).unwrap();
    assert_eq!((a.lines.limit(), a.slab.lines), (3 * SEG, SLAB - 1));
    a.reserve(181_187).unwrap();
    assert_eq!(a.lines.limit(), 4 * SEG);
    assert!(a.reserve(1 << 33).is_err() && a.reserve(u64::from(8 * SEG)).is_err());
    assert_eq!(a.lines.limit(), 4 * SEG, "nothing has grown");
}

/// At the limit, what is free in small blocks is merged, whether it is worth it or not.
#[test]
fn a_reserve_at_the_limit_merges() {
    for (lines, fits) in [(3600, true), (3674, true), (3676, false)] {
        let (mut a, blocks) = filled(1);
        blocks[..500].iter().for_each(|line| a.free(Block { line: LineNo(*line), lines: 16 }));
        assert!(!a.worth_merging() && a.reserve_by_growth(1).is_err());
        // 3,674 + 229 + 4,096 are 7,999 of 8,000; 3,676 are 8,001.
        assert_eq!(a.reserve(lines).is_ok(), fits, "{lines}");
        assert_eq!((extents(&a), a.lines.limit()), (vec![(1, 8000)], SEG));
        a.reserve_by_growth(8000).unwrap();
        assert!(a.reserve_by_growth(8001).is_err());
    }
    // Where there is much, memory does not grow for it.
    let (mut a, blocks) = filled(9);
    blocks.iter().for_each(|line| a.free(Block { line: LineNo(*line), lines: 16 }));
    a.reserve(40_000).unwrap();
    assert_eq!((extents(&a), a.lines.limit()), (vec![(1, 65_520)], SEG));
}

/// A memory that gives no more than so many segments, whatever the limit.
struct Scarce(HeapMemory, u32);

// SAFETY: everything is asked of a memory that keeps the promises.
unsafe impl LineMemory<abi::Root> for Scarce {
    fn root(&self) -> *mut abi::Root {
        self.0.root()
    }
    fn base(&self) -> *mut u8 {
        self.0.base()
    }
    fn limit(&self) -> &AtomicU32 {
        self.0.limit()
    }
    fn grow(&self, n: u32) -> io::Result<()> {
        if n > self.1 {
            Err(out_of_memory())
        } else {
            self.0.grow(n)
        }
    }
    fn grace(&self) {
        self.0.grace();
    }
}

// SAFETY: as above.
unsafe impl Memory for Scarce {
    fn stats(&self) -> *mut abi::Stats {
        self.0.stats()
    }
    fn readers(&self) -> &crate::Readers {
        self.0.readers()
    }
    fn flow_versions(&self) -> &[std::sync::atomic::AtomicU64] {
        self.0.flow_versions()
    }
}

#[test]
fn memory_grows_ahead_where_it_can() {
    let grown = |segments: u32, scarce: u32, most: u32| {
        let memory = HeapMemory::new().unwrap();
        memory.grow(segments).unwrap();
        let all = Block { line: LineNo(1), lines: segments * SEG - 1 };
        let mut a = Arena::attach(Arc::new(Scarce(memory, scarce)), most, &mut [all]).unwrap();
        let got = a.alloc_zeroed(10, 1, true).ok();
        check(&a);
        (got, a.lines.limit() / SEG)
    };
    let at = |segments: u32| Some(LineNo(segments * SEG));
    // An eighth of what there is, one segment at least; as far as the limit goes; or at least what is needed.
    assert_eq!(grown(1, 99, 99), (at(1), 2));
    assert_eq!(grown(15, 99, 99), (at(15), 17));
    assert_eq!(grown(32, 99, 99), (at(32), 36));
    assert_eq!(grown(32, 99, 34), (at(32), 34));
    assert_eq!(grown(32, 33, 99), (at(32), 33));
    assert_eq!((grown(32, 32, 99), grown(32, 99, 32)), ((None, 32), (None, 32)));
}

#[test]
fn free_lines_are_what_nobody_lives_in() {
    let holes = |live: &[(u32, u32)]| {
        let memory = HeapMemory::new().unwrap();
        memory.grow(2).unwrap();
        let mut live: Vec<Block> =
            live.iter().map(|(line, lines)| Block { line: LineNo(*line), lines: *lines }).collect();
        let a = Arena::attach(Arc::new(memory), 2, &mut live)?;
        assert_eq!((a.used(), a.fresh), (live.iter().map(|b| b.lines).sum::<u32>(), 2 * SEG));
        Some((extents(&a), classes(&a)))
    };
    let whole = (vec![(1, 2 * SEG - 1)], vec![]);
    assert_eq!(holes(&[]), Some(whole));
    // Eighty lines are a class, eighty-one a run; a hole over the edge of a segment is two.
    let last = 2 * SEG - 1;
    assert_eq!(
        holes(&[(82, 10), (172, SEG - 178), (SEG + 10, SEG - 10)]),
        Some((vec![(1, 81)], vec![(6, vec![SEG - 6]), (10, vec![SEG]), (80, vec![92])]))
    );
    assert_eq!(holes(&[(last, 1), (1, SEG - 5)]).unwrap().0, [(SEG - 4, SEG + 3)]);
    assert_eq!(holes(&[(1, 100), (100, 5)]), None, "two blocks in a line");
    assert_eq!(holes(&[(1, 99), (100, 5)]).unwrap().0, [(105, 2 * SEG - 105)]);
    assert_eq!(
        [holes(&[(0, 5)]), holes(&[(last, 2)]), holes(&[(2 * SEG, 1)]), holes(&[(2 * SEG + 9, 1)])],
        [None, None, None, None]
    );
}
