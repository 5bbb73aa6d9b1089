// SPDX-License-Identifier: Apache-2.0
//! Who owns which lines: the allocator of table memory.
//!
//! Its state lies in the writer's own memory, never in table memory: what is free is, by definition, what nothing
//! reachable refers to, and a new writer finds that out by walking everything (`Arena::attach`). So a writer may die at
//! any instruction of an allocation and nothing is lost or corrupt.
//!
//! Free space is kept twofold. *Extents* are long runs, for hash arrays, cell chunks and slabs. *Classes* are stacks of
//! freed blocks of one exact size up to `CLASS_MAX` lines (tree nodes of 1–16 lines, meter blocks of 2, tenant blocks,
//! overflow lines); a new small block is cut from the current slab. When extents run out while much lies in classes,
//! all free space is merged again (`coalesce`), so that churn of one size cannot starve another. No block but a hash
//! array crosses a segment boundary, so that a BPF program may add to a pointer inside a block.

use crate::Memory;
use abi::{LineNo, SEGMENTS_MAX, SEGMENT_LINES, SEGMENT_SHIFT};
use memory::Lines;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

#[cfg(test)]
mod steps;

/// Largest block that is kept by size.
pub(crate) const CLASS_MAX: u32 = 80;
/// Lines cut from an extent at a time for small blocks.
const SLAB: u32 = 4096;

/// A run of lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    pub line: LineNo,
    pub lines: u32,
}

pub(crate) struct Arena {
    memory: Arc<dyn Memory>,
    lines: Lines,
    segments_max: u32,
    classes: Vec<Vec<LineNo>>,
    class_lines: u32,
    /// Free even-aligned pairs (Vm6Bucket).
    pairs: Vec<LineNo>,
    extents: BTreeMap<LineNo, u32>,
    extent_lines: u32,
    slab: Block,
    used: u32,
    /// Lines given back as small blocks since the last merge.
    freed: u32,
    /// Lines from here on have never been written and are zero.
    fresh: u32,
    /// What was taken since `begin`, if that is to be given back at once.
    taken: Option<Vec<Taken>>,
    /// So many calls that may fail from now on do not.
    #[cfg(test)]
    pub(crate) good_calls: Option<u32>,
    /// Calls that may fail.
    #[cfg(test)]
    pub(crate) calls: u32,
}

/// Something that was taken.
enum Taken {
    Block(Block),
    Pair(LineNo),
}

impl Arena {
    /// Over a memory of which nothing is in use.
    pub(crate) fn new(memory: Arc<dyn Memory>, segments_max: u32) -> Arena {
        let lines = Lines::new(&*memory);
        let mut arena = Arena {
            lines,
            segments_max: segments_max.min(SEGMENTS_MAX),
            classes: vec![Vec::new(); CLASS_MAX as usize + 1],
            class_lines: 0,
            pairs: Vec::new(),
            extents: BTreeMap::new(),
            extent_lines: 0,
            slab: Block { line: LineNo(0), lines: 0 },
            used: 0,
            freed: 0,
            fresh: 1,
            taken: None,
            #[cfg(test)]
            good_calls: None,
            #[cfg(test)]
            calls: 0,
            memory,
        };
        let limit = lines.limit();
        if limit > 1 {
            arena.add_extent(LineNo(1), limit - 1);
        }
        arena
    }

    /// Over a memory of which the blocks in `live` are in use (they must not overlap); the rest is free and dirty.
    /// Returns None if blocks overlap or lie outside: the memory is not what a writer left.
    pub(crate) fn attach(memory: Arc<dyn Memory>, segments_max: u32, live: &mut [Block]) -> Option<Arena> {
        let mut arena = Arena::new(memory, segments_max);
        arena.extents.clear();
        arena.extent_lines = 0;
        arena.fresh = arena.lines.limit();
        live.sort_unstable_by_key(|b| b.line);
        let mut at = LineNo(1);
        for block in live.iter() {
            if block.line < at || block.lines > arena.fresh - block.line.0.min(arena.fresh) {
                return None;
            }
            arena.add_hole(at, block.line - at);
            at = block.line + block.lines;
            arena.used += block.lines;
        }
        arena.add_hole(at, arena.fresh.saturating_sub(at.0));
        Some(arena)
    }

    /// Lines in use.
    pub(crate) fn used(&self) -> u32 {
        self.used
    }

    /// Lines that may be in use at most.
    pub(crate) fn limit(&self) -> u32 {
        (u64::from(self.segments_max) << SEGMENT_SHIFT).min(u64::from(u32::MAX)) as u32
    }

    /// Whatever the free lines hold is not zero.
    pub(crate) fn forget_content(&mut self) {
        self.fresh = self.fresh.max(self.lines.limit());
    }

    fn add_extent(&mut self, line: LineNo, lines: u32) {
        if lines > 0 {
            self.extents.insert(line, lines);
            self.extent_lines += lines;
        }
    }

    /// Adds free lines that have no free neighbours.
    fn add_hole(&mut self, mut line: LineNo, mut lines: u32) {
        if lines > CLASS_MAX {
            self.add_extent(line, lines);
            return;
        }
        while lines > 0 {
            // A class block must not cross a segment boundary.
            let n = lines.min(SEGMENT_LINES - line.0 % SEGMENT_LINES);
            self.classes[n as usize].push(line);
            self.class_lines += n;
            line += n;
            lines -= n;
        }
    }

    /// Takes `lines` lines from the extents; `whole` keeps them inside one segment. First fit from the bottom.
    fn take_extent(&mut self, lines: u32, align: u32, whole: bool) -> Option<LineNo> {
        let fit = |start: LineNo, len: u32| {
            let mut at = start.0.next_multiple_of(align);
            if whole && at / SEGMENT_LINES != (at + lines - 1) / SEGMENT_LINES {
                at = (at / SEGMENT_LINES + 1) * SEGMENT_LINES;
            }
            (at - start.0 + lines <= len).then_some(LineNo(at))
        };
        let (start, len, at) = self.extents.iter().find_map(|(s, l)| fit(*s, *l).map(|at| (*s, *l, at)))?;
        self.extents.remove(&start);
        self.extent_lines -= len;
        self.add_hole(start, at - start);
        self.add_hole(at + lines, start.0 + len - at.0 - lines);
        Some(at)
    }

    /// From now on notes what is taken, until `keep` or `take_back`.
    pub(crate) fn begin(&mut self) {
        self.taken = Some(self.taken.take().unwrap_or_default());
    }

    /// What was taken since `begin` stays taken.
    pub(crate) fn keep(&mut self) {
        self.taken = None;
    }

    /// Gives everything back that was taken since `begin`. Nobody may reach it any more.
    pub(crate) fn take_back(&mut self) {
        for taken in self.taken.take().unwrap_or_default().into_iter().rev() {
            match taken {
                Taken::Block(block) => self.free(block),
                Taken::Pair(line) => self.free_pair(line),
            }
        }
    }

    fn note(&mut self, taken: Taken) {
        if let Some(list) = &mut self.taken {
            list.push(taken);
        }
    }

    /// In the tests of this crate any call that asks for memory may be made to fail.
    fn permit(&mut self) -> io::Result<()> {
        #[cfg(test)]
        {
            self.calls += 1;
            if let Some(good) = &mut self.good_calls {
                *good = good.checked_sub(1).ok_or_else(out_of_memory)?;
            }
        }
        Ok(())
    }

    /// A block of at most CLASS_MAX lines, content undefined, inside one segment.
    pub(crate) fn alloc(&mut self, lines: u32) -> io::Result<LineNo> {
        self.permit()?;
        let line = self.small(lines)?;
        self.note(Taken::Block(Block { line, lines }));
        Ok(line)
    }

    fn small(&mut self, lines: u32) -> io::Result<LineNo> {
        debug_assert!((1..=CLASS_MAX).contains(&lines));
        if let Some(line) = self.classes[lines as usize].pop() {
            self.class_lines -= lines;
            self.used += lines;
            return Ok(line);
        }
        if self.slab.lines < lines {
            self.new_slab(lines)?;
            // Merging may have left a fitting block.
            if self.slab.lines < lines {
                return self.small(lines);
            }
        }
        let line = self.slab.line;
        self.slab.line += lines;
        self.slab.lines -= lines;
        self.used += lines;
        Ok(line)
    }

    fn new_slab(&mut self, lines: u32) -> io::Result<()> {
        let rest = std::mem::replace(&mut self.slab, Block { line: LineNo(0), lines: 0 });
        if rest.lines > 0 {
            self.classes[rest.lines as usize].push(rest.line);
            self.class_lines += rest.lines;
        }
        let mut coalesced = false;
        loop {
            for size in [SLAB, CLASS_MAX + 1, lines] {
                if let Some(line) = self.take_extent(size.max(lines), 1, true) {
                    self.slab = Block { line, lines: size.max(lines) };
                    self.fresh = self.fresh.max(line.0 + self.slab.lines);
                    return Ok(());
                }
            }
            if !coalesced && self.worth_merging() {
                coalesced = true;
                self.coalesce();
                if !self.classes[lines as usize].is_empty() {
                    return Ok(());
                }
                continue;
            }
            if let Err(e) = self.grow(SLAB) {
                if coalesced {
                    return Err(e);
                }
                coalesced = true;
                self.coalesce();
                if !self.classes[lines as usize].is_empty() {
                    return Ok(());
                }
            }
        }
    }

    /// A run of any length, its lines zeroed. `whole`: inside one segment; `align` is a power of two.
    pub(crate) fn alloc_zeroed(&mut self, lines: u32, align: u32, whole: bool) -> io::Result<LineNo> {
        debug_assert!(lines > 0 && (!whole || lines <= SEGMENT_LINES));
        self.permit()?;
        let mut coalesced = false;
        let line = loop {
            if let Some(line) = self.take_extent(lines, align, whole) {
                break line;
            }
            if !coalesced && self.class_lines + self.extent_lines >= lines {
                coalesced = true;
                self.coalesce();
                continue;
            }
            // The end of the memory may be free already and then needs only the rest; a whole block needs a segment.
            self.grow(if whole { SEGMENT_LINES } else { lines + align })?;
        };
        self.used += lines;
        let dirty = self.fresh.saturating_sub(line.0).min(lines);
        self.lines.zero(line, dirty);
        self.fresh = self.fresh.max(line.0 + lines);
        self.note(Taken::Block(Block { line, lines }));
        Ok(line)
    }

    /// Two adjacent lines at an even number, zeroed.
    pub(crate) fn alloc_pair(&mut self) -> io::Result<LineNo> {
        self.permit()?;
        if self.pairs.is_empty() {
            let line = self.small(17)?;
            self.used -= 17;
            let first = LineNo(line.0.next_multiple_of(2));
            self.pairs.extend((0..8).map(|i| first + 2 * i));
            self.class_lines += 17;
            self.classes[1].push(if first == line { line + 16 } else { line });
        }
        let line = self.pairs.pop().expect("filled above");
        self.class_lines -= 2;
        self.used += 2;
        self.lines.zero(line, 2);
        self.note(Taken::Pair(line));
        Ok(line)
    }

    /// Gives back what `alloc_pair` gave.
    pub(crate) fn free_pair(&mut self, line: LineNo) {
        self.pairs.push(line);
        self.class_lines += 2;
        self.used -= 2;
    }

    /// Gives back what `alloc` or `alloc_zeroed` gave. Nobody may reach it any more.
    pub(crate) fn free(&mut self, block: Block) {
        self.used -= block.lines;
        if block.lines <= CLASS_MAX {
            self.classes[block.lines as usize].push(block.line);
            self.class_lines += block.lines;
            self.freed += block.lines;
        } else {
            // Join with a free neighbour on either side.
            let (mut line, mut lines) = (block.line, block.lines);
            if let Some((&s, &l)) = self.extents.range(..line).next_back() {
                if s + l == line {
                    self.extents.remove(&s);
                    self.extent_lines -= l;
                    (line, lines) = (s, l + lines);
                }
            }
            if let Some(l) = self.extents.remove(&(line + lines)) {
                self.extent_lines -= l;
                lines += l;
            }
            self.add_extent(line, lines);
        }
    }

    /// Makes sure that at least `lines` lines can be had as small blocks without asking the memory again.
    pub(crate) fn reserve(&mut self, lines: u64) -> io::Result<()> {
        self.permit()?;
        // A slab may lose its tail, and the end of a segment too.
        let want = lines + lines / 16 + u64::from(SLAB);
        let have = u64::from(self.extent_lines + self.slab.lines);
        if have >= want {
            return Ok(());
        }
        if self.worth_merging() {
            self.coalesce();
        }
        if self.reserve_by_growth(want).is_err() {
            self.coalesce();
            return self.reserve_by_growth(want);
        }
        Ok(())
    }

    /// Whether much of the free space lies in small blocks, and enough was freed lately for a merge to pay.
    fn worth_merging(&self) -> bool {
        let much = (self.used / 8).max(2 * SLAB);
        self.class_lines >= much && self.freed >= much
    }

    fn reserve_by_growth(&mut self, want: u64) -> io::Result<()> {
        let have = u64::from(self.extent_lines + self.slab.lines);
        if have >= want {
            return Ok(());
        }
        let more = u32::try_from(want - have).map_err(|_| out_of_memory())?;
        self.grow_exactly(more, more)
    }

    /// Asks the memory for at least `lines` lines more, in one step, and a little ahead.
    fn grow(&mut self, lines: u32) -> io::Result<()> {
        let ahead = (self.lines.limit() / 8).max(lines);
        self.grow_exactly(lines, ahead)
    }

    fn grow_exactly(&mut self, least: u32, wish: u32) -> io::Result<()> {
        let have = self.lines.limit() >> SEGMENT_SHIFT;
        let need = have + least.div_ceil(SEGMENT_LINES);
        if need > self.segments_max {
            return Err(out_of_memory());
        }
        let wish = (have + wish.div_ceil(SEGMENT_LINES)).min(self.segments_max);
        let before = self.lines.limit().max(1);
        if self.memory.grow(wish).is_err() {
            self.memory.grow(need)?;
        }
        let mut line = LineNo(before);
        let mut lines = self.lines.limit() - before;
        if let Some((&s, &l)) = self.extents.range(..line).next_back() {
            if s + l == line {
                self.extents.remove(&s);
                self.extent_lines -= l;
                (line, lines) = (s, l + lines);
            }
        }
        self.add_extent(line, lines);
        Ok(())
    }

    /// Runs of lines in use.
    #[cfg(test)]
    pub(crate) fn in_use(&self) -> Vec<Block> {
        let mut free: Vec<(LineNo, u32)> = self.extents.iter().map(|(line, lines)| (*line, *lines)).collect();
        for (lines, class) in self.classes.iter().enumerate() {
            free.extend(class.iter().map(|line| (*line, lines as u32)));
        }
        free.extend(self.pairs.iter().map(|line| (*line, 2)));
        free.push((self.slab.line, self.slab.lines));
        free.push((LineNo(self.lines.limit()), 0));
        free.sort_unstable();
        let (mut at, mut used) = (LineNo(1), Vec::new());
        for (line, lines) in free.into_iter().filter(|(line, lines)| *lines > 0 || line.0 == self.lines.limit()) {
            assert!(line >= at, "line {line} is free twice");
            if line > at {
                used.push(Block { line: at, lines: line - at });
            }
            at = line + lines;
        }
        used
    }

    /// Merges all free space.
    fn coalesce(&mut self) {
        self.freed = 0;
        let mut holes: Vec<Block> = Vec::new();
        for (lines, class) in self.classes.iter_mut().enumerate() {
            holes.extend(class.drain(..).map(|line| Block { line, lines: lines as u32 }));
        }
        holes.extend(self.pairs.drain(..).map(|line| Block { line, lines: 2 }));
        holes.extend(self.extents.iter().map(|(line, lines)| Block { line: *line, lines: *lines }));
        if self.slab.lines > 0 {
            holes.push(std::mem::replace(&mut self.slab, Block { line: LineNo(0), lines: 0 }));
        }
        self.extents.clear();
        (self.extent_lines, self.class_lines) = (0, 0);
        holes.sort_unstable_by_key(|b| b.line);
        let mut run = Block { line: LineNo(0), lines: 0 };
        for hole in holes {
            if run.line + run.lines == hole.line && run.lines > 0 {
                run.lines += hole.lines;
            } else {
                self.add_hole(run.line, run.lines);
                run = hole;
            }
        }
        self.add_hole(run.line, run.lines);
    }
}

fn out_of_memory() -> io::Error {
    io::Error::new(io::ErrorKind::OutOfMemory, "the limit of table memory is reached")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::seeded;
    use crate::HeapMemory;
    use rand::RngExt;

    #[test]
    fn random_blocks_never_overlap_and_never_cross_segments() {
        let (_seed, mut rng) = seeded("arena");
        let mut arena = Arena::new(Arc::new(HeapMemory::new().unwrap()), 8);
        let mut live: Vec<(Block, char)> = Vec::new();
        for step in 0..60_000 {
            if rng.random_range(0..100) < if step % 20_000 < 12_000 { 60 } else { 40 } || live.is_empty() {
                let (got, lines, kind) = match rng.random_range(0..1000) {
                    0..=899 => {
                        let n = rng.random_range(1..=16);
                        (arena.alloc(n), n, 's')
                    }
                    900..=979 => (arena.alloc_pair(), 2, 'p'),
                    980..=994 => {
                        let n = rng.random_range(17..=CLASS_MAX);
                        (arena.alloc(n), n, 's')
                    }
                    995..=998 => {
                        let n = rng.random_range(81..9_000);
                        (arena.alloc_zeroed(n, 1, true), n, 'w')
                    }
                    _ => {
                        let n = rng.random_range(60_000..90_000);
                        (arena.alloc_zeroed(n, 2, false), n, 'a')
                    }
                };
                let Ok(line) = got else { continue };
                assert!(line > LineNo(0) && line + lines <= LineNo(arena.lines.limit()));
                if kind != 'a' {
                    assert_eq!(line.0 / SEGMENT_LINES, (line + lines - 1).0 / SEGMENT_LINES);
                }
                if kind == 'p' || kind == 'a' {
                    assert_eq!(line.0 % 2, 0);
                }
                if kind == 'w' || kind == 'a' {
                    assert!((0..lines).all(|l| arena.lines.at(line + l).snapshot() == [0; 8]));
                }
                for l in [line, line + lines - 1] {
                    arena.lines.fill(l, &[u64::from(line); 8]);
                }
                live.push((Block { line, lines }, kind));
            } else {
                let (block, kind) = live.swap_remove(rng.random_range(0..live.len()));
                let id = u64::from(block.line);
                assert_eq!(arena.lines.at(block.line).word(3), id, "somebody wrote into a live block");
                assert_eq!(arena.lines.at(block.line + block.lines - 1).word(3), id);
                if kind == 'p' {
                    arena.free_pair(block.line);
                } else {
                    arena.free(block);
                }
            }
            if step % 5_000 == 0 {
                check_partition(&arena, &live);
            }
        }
        check_partition(&arena, &live);
        // Whether chance reached the limit or not: in the end it is reached.
        // (The smaller blocks fit into one segment, for the last one may stand alone.)
        for lines in [90_000, 60_000] {
            while let Ok(line) = arena.alloc_zeroed(lines, 2, false) {
                live.push((Block { line, lines }, 'a'));
            }
        }
        assert_eq!(arena.lines.limit(), 8 * SEGMENT_LINES);
        check_partition(&arena, &live);
        let mut blocks: Vec<Block> = live.iter().map(|(b, _)| *b).collect();
        let again = Arena::attach(arena.memory.clone(), 8, &mut blocks).unwrap();
        assert_eq!(again.used(), arena.used());
        check_partition(&again, &live);
        // A block may end exactly where the memory ends, and not one line behind.
        let limit = arena.lines.limit();
        let at_end = |lines| vec![Block { line: LineNo(limit - 3), lines }];
        assert!(Arena::attach(arena.memory.clone(), 8, &mut at_end(3)).is_some_and(|a| a.used() == 3));
        assert!(Arena::attach(arena.memory.clone(), 8, &mut at_end(4)).is_none());
        blocks[1].line = blocks[0].line;
        assert!(Arena::attach(arena.memory.clone(), 8, &mut blocks).is_none());
    }

    /// Every line but 0 is either in use or free, exactly once.
    fn check_partition(arena: &Arena, live: &[(Block, char)]) {
        let mut seen = vec![0u8; arena.lines.limit() as usize];
        let mut mark = |line: LineNo, lines: u32| (line.0..line.0 + lines).for_each(|l| seen[l as usize] += 1);
        live.iter().for_each(|(b, _)| mark(b.line, b.lines));
        arena.extents.iter().for_each(|(s, l)| mark(*s, *l));
        arena.pairs.iter().for_each(|l| mark(*l, 2));
        mark(arena.slab.line, arena.slab.lines);
        for (n, class) in arena.classes.iter().enumerate() {
            class.iter().for_each(|l| mark(*l, n as u32));
        }
        assert!(seen[1..].iter().all(|n| *n == 1));
        assert_eq!(arena.used(), live.iter().map(|(b, _)| b.lines).sum::<u32>());
    }
}
