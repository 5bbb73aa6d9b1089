// SPDX-License-Identifier: Apache-2.0
//! Which records are free. All of it lies on the heap: a record is in use exactly if its state word is not 0, so a tracker
//! that attaches finds the free ones by looking.

use crate::table::Shared;
use abi::*;
use std::io;
use std::sync::atomic::Ordering::*;

const CHUNK: usize = 4096;

/// A stack of line numbers that neither moves nor copies what it holds.
#[derive(Default)]
pub(crate) struct Stack {
    chunks: Vec<Box<[LineNo; CHUNK]>>,
    used: usize,
    spare: Option<Box<[LineNo; CHUNK]>>,
}

impl Stack {
    pub(crate) fn push(&mut self, line: LineNo) {
        if self.chunks.is_empty() || self.used == CHUNK {
            self.chunks.push(self.spare.take().unwrap_or_else(|| Box::new([LineNo(0); CHUNK])));
            self.used = 0;
        }
        if let Some(chunk) = self.chunks.last_mut() {
            chunk[self.used] = line;
            self.used += 1;
        }
    }

    pub(crate) fn pop(&mut self) -> Option<LineNo> {
        let chunk = self.chunks.last()?;
        let line = chunk[self.used - 1];
        self.used -= 1;
        if self.used == 0 {
            self.spare = self.chunks.pop();
            self.used = CHUNK;
        }
        Some(line)
    }

    /// What is taken next.
    fn peek(&self) -> Option<LineNo> {
        self.chunks.last().map(|chunk| chunk[self.used - 1])
    }

    fn iter(&self) -> impl Iterator<Item = LineNo> + '_ {
        let last = self.chunks.len().saturating_sub(1);
        let used = move |i: usize| if i == last { self.used } else { CHUNK };
        self.chunks.iter().enumerate().flat_map(move |(i, chunk)| chunk[..used(i)].iter().copied())
    }

    pub(crate) fn len(&self) -> usize {
        (self.chunks.len() * CHUNK).saturating_sub(if self.chunks.is_empty() { 0 } else { CHUNK - self.used })
    }

    pub(crate) fn bytes(&self) -> u64 {
        (self.chunks.len() * CHUNK * 4) as u64
    }
}

/// Free records of one family.
#[derive(Default)]
struct Family {
    /// Never used lines: from, to.
    fresh: (LineNo, LineNo),
    free: Stack,
    /// Segments that it has.
    segments: u32,
    /// Records given back, and how many that were when it was last looked for segments without any record.
    given: u64,
    looked: u64,
}

/// Free records and segments.
pub(crate) struct Alloc {
    families: [Family; 2],
    /// Segments that exist and hold nothing.
    segments: Vec<u32>,
    /// Lines of records that exist, of both families.
    lines: u64,
    /// Lines of records at most.
    max: u64,
}

fn lines_each(v6: bool) -> u32 {
    1 + u32::from(v6)
}

fn kind_of(v6: bool) -> u8 {
    if v6 {
        SESSION_SEGMENT_V6
    } else {
        SESSION_SEGMENT_V4
    }
}

impl Alloc {
    /// `max` records of one line; room is made by whole segments.
    pub(crate) fn new(max: u32) -> Alloc {
        let mut alloc = Alloc { families: Default::default(), segments: Vec::new(), lines: 0, max: 0 };
        alloc.set_max(max);
        alloc
    }

    /// Another number of records at most. Those that exist stay.
    pub(crate) fn set_max(&mut self, max: u32) {
        // A segment holds one family: one more for the other.
        self.max = u64::from(max).next_multiple_of(SEGMENT_LINES.into()) + u64::from(SEGMENT_LINES);
    }

    /// A free record. None: there is no room, or no memory. The next one begins to load meanwhile.
    pub(crate) fn take(&mut self, shared: &Shared, v6: bool) -> Option<LineNo> {
        loop {
            let family = &mut self.families[usize::from(v6)];
            if let Some(line) = family.free.pop() {
                shared.lines.prefetch(family.free.peek().unwrap_or(line));
                return Some(line);
            }
            let (from, to) = family.fresh;
            if from < to {
                family.fresh.0 += lines_each(v6);
                shared.lines.prefetch(family.fresh.0);
                return Some(from);
            }
            if self.grow(shared, v6).is_err() && !self.reclaim(shared, !v6) {
                return None;
            }
        }
    }

    /// A record that nobody can reach any more.
    pub(crate) fn give(&mut self, v6: bool, line: LineNo) {
        let family = &mut self.families[usize::from(v6)];
        family.free.push(line);
        family.given += 1;
    }

    /// A segment that was found with records, and those of its lines that are free.
    pub(crate) fn adopt(&mut self, v6: bool, free: &[LineNo]) {
        self.lines += u64::from(SEGMENT_LINES);
        self.families[usize::from(v6)].segments += 1;
        free.iter().rev().for_each(|at| self.give(v6, *at));
    }

    /// A segment that holds nothing any more; it is zeroed when it is used again.
    pub(crate) fn give_segment(&mut self, n: u32) {
        self.segments.push(n);
    }

    fn grow(&mut self, shared: &Shared, v6: bool) -> io::Result<()> {
        // The last segment is for a family that has none yet.
        let kept = if self.families[usize::from(!v6)].segments > 0 { 0 } else { u64::from(SEGMENT_LINES) };
        if self.lines + kept >= self.max {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        if self.segments.is_empty() {
            // By an eighth, so that a kernel that waits for RCU at each growth is not asked often.
            let left = self.max.saturating_sub(self.lines) / u64::from(SEGMENT_LINES);
            let more = (self.lines / u64::from(SEGMENT_LINES) / 8).clamp(1, 32).min(left) as u32;
            self.extend(shared, more)?;
        }
        let Some(n) = self.segments.pop() else { return Err(io::ErrorKind::OutOfMemory.into()) };
        self.prepare(shared, n, kind_of(v6));
        let first = LineNo(n * SEGMENT_LINES);
        // Line 0 means none.
        let from = if first == LineNo(0) { LineNo(lines_each(v6)) } else { first };
        let family = &mut self.families[usize::from(v6)];
        family.fresh = (from, first + SEGMENT_LINES);
        family.segments += 1;
        self.lines += u64::from(SEGMENT_LINES);
        Ok(())
    }

    /// Makes memory for so many records of IPv4 sessions in advance, and its pages with it, those of an index of so many segments
    /// as well: who makes a session then never waits for the kernel to find and zero them.
    pub(crate) fn prepare_records(&mut self, shared: &Shared, records: u32, index: (LineNo, u32)) -> io::Result<()> {
        touch(shared, index.0, index.1);
        let segments = records
            .div_ceil(SEGMENT_LINES)
            .min((self.max.saturating_sub(self.lines) / u64::from(SEGMENT_LINES)) as u32);
        let more = segments.saturating_sub(self.segments.len() as u32);
        if more > 0 {
            let first = self.extend(shared, more)?;
            // Records come out of the memory in its order.
            self.segments.sort_unstable_by(|a, b| b.cmp(a));
            touch(shared, LineNo(first * SEGMENT_LINES), more);
        }
        Ok(())
    }

    /// Takes from a family the segments in which it has no record any more: the other one needs them. False: there are none. What
    /// this costs is paid for by records that were given back since it was last in vain.
    fn reclaim(&mut self, shared: &Shared, v6: bool) -> bool {
        let each = SEGMENT_LINES / lines_each(v6);
        let family = &mut self.families[usize::from(v6)];
        let enough = u64::from(each / 2).max(family.free.len() as u64 / 16);
        if family.looked != 0 && family.given - family.looked < enough {
            return false;
        }
        family.looked = family.given.max(1);
        let (from, to) = std::mem::take(&mut family.fresh);
        (from.0..to.0).step_by(lines_each(v6) as usize).for_each(|line| family.free.push(LineNo(line)));
        let mut free = vec![0u32; SESSION_SEGMENTS_MAX as usize];
        family.free.iter().for_each(|line| free[(line.0 / SEGMENT_LINES) as usize] += 1);
        // Segment 0 has one record less, so it stays.
        let whole = |n: u32| free[n as usize] == each;
        let mut kept = Stack::default();
        while let Some(line) = family.free.pop() {
            if !whole(line.0 / SEGMENT_LINES) {
                kept.push(line);
            }
        }
        family.free = kept;
        let before = self.segments.len();
        for n in (0..SESSION_SEGMENTS_MAX).rev().filter(|n| whole(*n)) {
            shared.lines.kind(n).store(SESSION_SEGMENT_FREE, Release);
            self.segments.push(n);
            self.lines -= u64::from(SEGMENT_LINES);
            family.segments -= 1;
        }
        self.segments.len() > before
    }

    /// Adds segments to the memory; returns the first.
    fn extend(&mut self, shared: &Shared, more: u32) -> io::Result<u32> {
        let have = shared.memory.segments();
        shared.memory.grow(have + more)?;
        self.segments.extend((have..have + more).rev());
        Ok(have)
    }

    fn prepare(&self, shared: &Shared, n: u32, kind: u8) {
        let first = n * SEGMENT_LINES;
        for line in first..first + SEGMENT_LINES {
            let line = shared.lines.at(LineNo(line));
            for i in 0..8 {
                // Reading does not make a page exist, writing does.
                if line.cell(i).load(Relaxed) != 0 {
                    line.cell(i).store(0, Relaxed);
                }
            }
        }
        shared.lines.kind(n).store(kind, Release);
    }

    /// Adjacent segments for an index, zeroed. Returns the first line.
    pub(crate) fn take_index(&mut self, shared: &Shared, segments: u32) -> io::Result<LineNo> {
        let first = self.extend(shared, segments)?;
        self.segments.retain(|n| !(first..first + segments).contains(n));
        for n in first..first + segments {
            self.prepare(shared, n, SESSION_SEGMENT_INDEX);
        }
        Ok(LineNo(first * SEGMENT_LINES))
    }

    /// Records for which there is room without growth.
    pub(crate) fn room(&self) -> u64 {
        let each = |v6: bool| {
            let f = &self.families[usize::from(v6)];
            f.free.len() as u64 + u64::from(f.fresh.1 .0.saturating_sub(f.fresh.0 .0) / lines_each(v6))
        };
        each(false) + each(true)
    }

    /// Bytes on the heap.
    pub(crate) fn bytes(&self) -> u64 {
        self.families.iter().map(|f| f.free.bytes()).sum()
    }
}

/// Makes the pages of segments, from this line on, which are zeroed and nobody's yet. It takes a store: an operation that changes
/// nothing (`fetch_or(0)`) is compiled to a load, which finds the one page of zeroes that all have until they are written to.
fn touch(shared: &Shared, first: LineNo, segments: u32) {
    const PAGE_LINES: usize = 4096 / 64;
    for line in (0..segments * SEGMENT_LINES).step_by(PAGE_LINES) {
        shared.lines.at(first + line).cell(0).store(0, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::HeapMemory;
    use std::sync::Arc;

    /// Pages that this thread has waited for.
    fn faults() -> u64 {
        let text = std::fs::read_to_string("/proc/thread-self/stat").expect("procfs");
        let (_, rest) = text.rsplit_once(") ").expect("a name in brackets");
        rest.split(' ').nth(7).and_then(|n| n.parse().ok()).expect("a number of faults")
    }

    fn shared() -> Shared {
        Shared::new(Arc::new(HeapMemory::new().unwrap()))
    }

    /// Memory grows by an eighth of what there is, by 32 segments at most, and never beyond the limit.
    #[test]
    fn memory_grows_by_an_eighth_and_up_to_the_limit() {
        // Segments in use, segments at most, segments that are added.
        for (used, most, more) in [
            (0u32, 100, 1),
            (7, 100, 1),
            (15, 100, 1),
            (16, 100, 2),
            (80, 1000, 10),
            (80, 84, 4),
            (256, 1000, 32),
            (400, 1000, 32),
            (99, 100, 1),
        ] {
            let (shared, mut alloc) = (shared(), Alloc::new((most - 1) * SEGMENT_LINES));
            alloc.families[1].segments = 1;
            alloc.lines = u64::from(used) * u64::from(SEGMENT_LINES);
            assert!(alloc.take(&shared, false).is_some());
            assert_eq!(shared.memory.segments(), more, "{used} of {most}");
            assert_eq!((alloc.segments.len() as u32, alloc.families[0].segments), (more - 1, 1));
        }
        // At the limit there is none; and the last one is kept for a family that has none.
        for (used, others, taken) in [(100, 1, false), (99, 1, true), (99, 0, false), (98, 0, true)] {
            let (shared, mut alloc) = (shared(), Alloc::new(99 * SEGMENT_LINES));
            alloc.families[1].segments = others;
            alloc.lines = used * u64::from(SEGMENT_LINES);
            assert_eq!(alloc.take(&shared, false).is_some(), taken, "{used} {others}");
            assert_eq!(alloc.lines, (used + u64::from(taken)) * u64::from(SEGMENT_LINES));
        }
        // A limit is that of whole segments, and one more for the other family.
        let mut alloc = Alloc::new(1);
        for (max, segments) in [(1, 2), (SEGMENT_LINES, 2), (SEGMENT_LINES + 1, 3), (5 * SEGMENT_LINES, 6)] {
            alloc.set_max(max);
            assert_eq!(alloc.max, segments * u64::from(SEGMENT_LINES));
        }
    }

    #[test]
    fn segments_are_prepared_for_so_many_records_and_taken_in_order() {
        for (records, most, want) in
            [(0, 10, 0), (1, 10, 1), (SEGMENT_LINES, 10, 1), (SEGMENT_LINES + 1, 10, 2), (9 * SEGMENT_LINES, 4, 4)]
        {
            let (shared, mut alloc) = (shared(), Alloc::new((most - 1) * SEGMENT_LINES));
            let index = alloc.take_index(&shared, 1).unwrap();
            alloc.prepare_records(&shared, records, (index, 1)).unwrap();
            assert_eq!(
                (alloc.segments.len(), shared.memory.segments()),
                (want, want as u32 + 1),
                "{records} of {most}"
            );
            // What is prepared already is not prepared again; one in use counts towards the limit.
            alloc.prepare_records(&shared, records, (index, 1)).unwrap();
            assert_eq!((alloc.segments.len(), index), (want, LineNo(0)));
            if want > 0 {
                alloc.families[1].segments = 1;
                assert_eq!(alloc.take(&shared, false), Some(LineNo(SEGMENT_LINES)), "the first of them");
                assert_eq!(alloc.segments, (2..=want as u32).rev().collect::<Vec<_>>());
                alloc.prepare_records(&shared, 100 * SEGMENT_LINES, (index, 1)).unwrap();
                assert_eq!(alloc.segments.len() as u32, most - 1);
            }
        }
    }

    /// Lines of IPv6 records come in twos; line 0 is nobody's; what is given back comes again, and room is what is left.
    #[test]
    fn records_of_either_family_have_their_lines() {
        let (shared, mut alloc) = (shared(), Alloc::new(3 * SEGMENT_LINES));
        let segment = u64::from(SEGMENT_LINES);
        assert_eq!([false, true].map(|v6| alloc.take(&shared, v6)), [1, SEGMENT_LINES].map(|line| Some(LineNo(line))));
        assert_eq!(
            [false, true].map(|v6| alloc.take(&shared, v6)),
            [2, SEGMENT_LINES + 2].map(|line| Some(LineNo(line)))
        );
        assert_eq!((alloc.room(), alloc.lines, alloc.bytes()), (segment - 3 + segment / 2 - 2, 2 * segment, 0));
        let kind = |n| shared.lines.kind(n).load(Relaxed);
        assert_eq!((kind(0), kind(1)), (SESSION_SEGMENT_V4, SESSION_SEGMENT_V6));
        alloc.give(false, LineNo(1));
        alloc.give(true, LineNo(SEGMENT_LINES));
        assert_eq!((alloc.room(), alloc.bytes()), (segment - 2 + segment / 2 - 1, 2 * 16_384));
        assert_eq!([false, true].map(|v6| alloc.take(&shared, v6)), [1, SEGMENT_LINES].map(|line| Some(LineNo(line))));
        // A segment that is used again is empty.
        shared.lines.at(LineNo(SEGMENT_LINES + 77)).cell(5).store(9, Relaxed);
        alloc.families[1] = Family::default();
        alloc.give_segment(1);
        assert_eq!(alloc.take(&shared, true), Some(LineNo(SEGMENT_LINES)));
        assert_eq!(shared.lines.at(LineNo(SEGMENT_LINES + 77)).cell(5).load(Relaxed), 0);
    }

    /// A family gives up the segments of which it uses no record, and looks for them again only after enough records have come back.
    #[test]
    fn segments_without_a_record_in_use_are_given_up() {
        let (shared, mut alloc) = (shared(), Alloc::new(3 * SEGMENT_LINES));
        // Segments 1 and 2 of IPv6, found by a tracker that attached: all of one is free, one record of the other is not.
        shared.memory.grow(3).unwrap();
        let lines = |n: u32| (n * SEGMENT_LINES..(n + 1) * SEGMENT_LINES).step_by(2);
        let free: Vec<LineNo> = lines(1).map(LineNo).collect();
        alloc.adopt(true, &free);
        let free: Vec<LineNo> = lines(2).skip(1).map(LineNo).collect();
        alloc.adopt(true, &free);
        assert_eq!(
            (alloc.families[1].segments, alloc.lines, alloc.room()),
            (2, 2 * u64::from(SEGMENT_LINES), u64::from(SEGMENT_LINES) - 1)
        );
        assert_eq!(alloc.families[1].free.peek(), Some(LineNo(2 * SEGMENT_LINES + 2)), "the lowest of what came last");
        assert!(alloc.reclaim(&shared, true));
        assert_eq!(
            (&alloc.segments[..], alloc.families[1].segments, alloc.lines),
            (&[1][..], 1, u64::from(SEGMENT_LINES))
        );
        assert_eq!(
            (alloc.families[1].free.len() as u32, shared.lines.kind(1).load(Relaxed)),
            (SEGMENT_LINES / 2 - 1, SESSION_SEGMENT_FREE)
        );
        assert!(alloc.families[1].free.iter().all(|line| line > LineNo(2 * SEGMENT_LINES)));
        // In vain; then not again before a quarter of a segment's lines came back, half of its records.
        assert!(!alloc.reclaim(&shared, true));
        for n in 1..SEGMENT_LINES / 4 {
            let line = alloc.take(&shared, true).unwrap();
            alloc.give(true, line);
            if n % 4096 == 0 {
                assert!(!alloc.reclaim(&shared, true));
            }
        }
        alloc.families[1].free.push(LineNo(2 * SEGMENT_LINES));
        assert!(!alloc.reclaim(&shared, true), "one less than enough");
        let line = alloc.take(&shared, true).unwrap();
        alloc.give(true, line);
        assert!(alloc.reclaim(&shared, true));
        assert_eq!(
            (&alloc.segments[..], alloc.families[1].segments, alloc.lines, alloc.room()),
            (&[1, 2][..], 0, 0, 0)
        );
    }

    /// A long list of free records is gone through again only after a sixteenth of it came back.
    #[test]
    fn a_long_list_is_looked_through_seldom() {
        let (shared, mut alloc) = (shared(), Alloc::new(SEGMENT_LINES));
        (0..16 * 20_000).for_each(|_| alloc.families[1].free.push(LineNo(7)));
        for (given, looked) in [(19_999, 1), (20_000, 20_001)] {
            (alloc.families[1].looked, alloc.families[1].given) = (1, 1 + given);
            assert!(!alloc.reclaim(&shared, true));
            assert_eq!(alloc.families[1].looked, looked, "{given} came back");
        }
    }

    #[test]
    fn memory_that_is_prepared_needs_no_page_when_it_is_written_to() {
        const SEGMENTS: u32 = 4;
        let shared = Shared::new(Arc::new(HeapMemory::new().unwrap()));
        let mut alloc = Alloc::new(SEGMENTS * SEGMENT_LINES);
        let index = alloc.take_index(&shared, 1).unwrap();
        alloc.prepare_records(&shared, SEGMENTS * SEGMENT_LINES, (index, 1)).unwrap();
        let before = faults();
        let lines = shared.memory.segments() * SEGMENT_LINES;
        (0..lines).for_each(|line| shared.lines.at(LineNo(line)).cell(1).store(1, Relaxed));
        let found = faults() - before;
        assert!(found <= 2, "{found} pages of {} segments were made late", shared.memory.segments());
    }

    #[test]
    fn a_stack_has_as_many_chunks_as_it_needs() {
        let mut stack = Stack::default();
        for n in 0..3 * CHUNK as u32 {
            assert_eq!((stack.len(), stack.bytes()), (n as usize, 16_384 * (n as usize).div_ceil(CHUNK) as u64));
            stack.push(LineNo(n + 7));
            assert_eq!((stack.peek(), stack.len()), (Some(LineNo(n + 7)), n as usize + 1));
        }
        assert!(stack.iter().eq((0..3 * CHUNK as u32).map(|n| LineNo(n + 7))));
        for n in (0..3 * CHUNK as u32).rev() {
            assert_eq!(stack.pop(), Some(LineNo(n + 7)));
            assert_eq!(
                (stack.len(), stack.peek(), stack.bytes()),
                (n as usize, n.checked_sub(1).map(|n| LineNo(n + 7)), 16_384 * (n as usize).div_ceil(CHUNK) as u64)
            );
        }
        assert_eq!((stack.pop(), stack.peek(), stack.iter().count()), (None, None, 0));
    }

    #[test]
    fn a_stack_gives_back_what_it_took() {
        let mut stack = Stack::default();
        assert_eq!((stack.len(), stack.pop()), (0, None));
        for i in 0..10_000 {
            stack.push(LineNo(i));
        }
        assert_eq!(stack.len(), 10_000);
        for i in (0..10_000).rev() {
            assert_eq!(stack.pop(), Some(LineNo(i)));
        }
        assert_eq!((stack.len(), stack.pop()), (0, None));
    }
}
