// SPDX-License-Identifier: Apache-2.0
//! Building and changing route trees: persistent B-trees of intervals.
//!
//! Nodes are one line; the children of a node lie in adjacent lines (a block). What is reachable never changes: a change
//! writes new blocks along the path, shares everything else with the old tree, and is published by storing the root. The
//! old blocks go to a list that is freed after a grace period. The lowest inner node and its leaves are rewritten
//! together, so leaves stay packed; upper nodes split and shrink as in any B-tree, and a tree that has become sparse is
//! built anew (`Grown::lines` against `lines_needed`).

use crate::arena::{Arena, Block};
use crate::intervals::{Interval, Key};
use abi::*;
use memory::Lines;
use std::io;
use std::mem::offset_of;

/// A node's content and the largest key below it.
#[derive(Clone, Copy)]
pub(crate) struct Node<K> {
    upper: K,
    words: [u64; 8],
}

/// How a tree over this key lays out its nodes.
pub(crate) trait TreeKey: Key {
    /// Intervals in a leaf.
    const LEAF: usize;
    /// Children of an inner node.
    const FANOUT: usize;
    /// Intervals in a tree of one node of two lines (ROOT_FLAT), 0 if there is none.
    const FLAT: usize;
    /// Such a tree, if the intervals fit.
    fn flat(intervals: &[Interval<Self>]) -> Option<[[u64; 8]; 2]>;
    /// The intervals of such a tree.
    fn flat_intervals(words: &[[u64; 8]; 2]) -> Vec<Interval<Self>>;
    /// A leaf.
    fn leaf(intervals: &[Interval<Self>]) -> [u64; 8];
    /// An inner node with these upper bounds.
    fn inner(uppers: &mut dyn Iterator<Item = Self>, child: LineNo) -> [u64; 8];
    /// Bound `i` of a node.
    fn bound(words: &[u64; 8], i: usize) -> Self;
    /// Value `i` of a leaf.
    fn value(words: &[u64; 8], i: usize) -> u32;
    /// First child's line.
    fn child(words: &[u64; 8]) -> LineNo;
}

fn half(words: &[u64; 8], i: usize) -> u32 {
    (words[i >> 1] >> ((i & 1) * 32)) as u32
}

fn set_half(words: &mut [u64; 8], i: usize, value: u32) {
    let shift = (i & 1) * 32;
    words[i >> 1] = words[i >> 1] & !(0xffff_ffff << shift) | u64::from(value) << shift;
}

/// Half words of the fields of a Flat32.
const FLAT_BOUNDS: usize = 20;
const FLAT_VALUES: usize = offset_of!(Flat32, values) / 4;
const FLAT_PICKS: usize = offset_of!(Flat32, picks) / 8;

impl TreeKey for u32 {
    const LEAF: usize = 8;
    const FANOUT: usize = 16;
    const FLAT: usize = FLAT_BOUNDS + 1;
    fn flat(intervals: &[Interval<u32>]) -> Option<[[u64; 8]; 2]> {
        if intervals.len() > Self::FLAT {
            return None;
        }
        let mut words = [[u64::MAX; 8], [0; 8]];
        let set = |words: &mut [[u64; 8]; 2], i: usize, v: u32| set_half(&mut words[i / 16], i % 16, v);
        let (mut values, mut known) = ([0; 8], 0);
        for (i, interval) in intervals.iter().enumerate() {
            let pick = values[..known].iter().position(|v| *v == interval.value).unwrap_or(known);
            if pick == known {
                *values.get_mut(known)? = interval.value;
                known += 1;
                set(&mut words, FLAT_VALUES + pick, interval.value);
            }
            words[1][FLAT_PICKS - 8] |= (pick as u64) << (3 * i);
        }
        for i in 0..FLAT_BOUNDS {
            let more = i + 1 < intervals.len();
            set(&mut words, i, if more { intervals[i].upper } else { u32::MAX });
        }
        Some(words)
    }
    fn flat_intervals(words: &[[u64; 8]; 2]) -> Vec<Interval<u32>> {
        let at = |i: usize| half(&words[i / 16], i % 16);
        let used = (0..FLAT_BOUNDS).take_while(|i| at(*i) != u32::MAX).count();
        let value = |i: usize| at(FLAT_VALUES + (words[1][FLAT_PICKS - 8] >> (3 * i) & 7) as usize);
        (0..=used).map(|i| Interval { upper: if i < used { at(i) } else { u32::MAX }, value: value(i) }).collect()
    }
    fn leaf(intervals: &[Interval<u32>]) -> [u64; 8] {
        let mut words = [0; 8];
        for i in 0..7 {
            set_half(&mut words, i, if i + 1 < intervals.len() { intervals[i].upper } else { u32::MAX });
        }
        intervals.iter().enumerate().for_each(|(i, v)| set_half(&mut words, 8 + i, v.value));
        words
    }
    fn inner(uppers: &mut dyn Iterator<Item = u32>, child: LineNo) -> [u64; 8] {
        let mut words = [u64::MAX; 8];
        uppers.take(15).enumerate().for_each(|(i, upper)| set_half(&mut words, i, upper));
        set_half(&mut words, 15, child.0);
        words
    }
    fn bound(words: &[u64; 8], i: usize) -> u32 {
        half(words, i)
    }
    fn value(words: &[u64; 8], i: usize) -> u32 {
        half(words, 8 + i)
    }
    fn child(words: &[u64; 8]) -> LineNo {
        LineNo(half(words, 15))
    }
}

impl TreeKey for u64 {
    const LEAF: usize = 6;
    const FANOUT: usize = 8;
    const FLAT: usize = 0;
    fn flat(_: &[Interval<u64>]) -> Option<[[u64; 8]; 2]> {
        None
    }
    fn flat_intervals(_: &[[u64; 8]; 2]) -> Vec<Interval<u64>> {
        Vec::new()
    }
    fn leaf(intervals: &[Interval<u64>]) -> [u64; 8] {
        let mut words = [0; 8];
        for (i, word) in words.iter_mut().take(5).enumerate() {
            *word = if i + 1 < intervals.len() { intervals[i].upper } else { u64::MAX };
        }
        intervals.iter().enumerate().for_each(|(i, v)| set_half(&mut words, 10 + i, v.value));
        words
    }
    fn inner(uppers: &mut dyn Iterator<Item = u64>, child: LineNo) -> [u64; 8] {
        let mut words = [u64::MAX; 8];
        uppers.take(7).enumerate().for_each(|(i, upper)| words[i] = upper);
        words[7] = u64::from(child);
        words
    }
    fn bound(words: &[u64; 8], i: usize) -> u64 {
        words[i]
    }
    fn value(words: &[u64; 8], i: usize) -> u32 {
        half(words, 10 + i)
    }
    fn child(words: &[u64; 8]) -> LineNo {
        LineNo(half(words, 14))
    }
}

/// Entries of a node: one more than its bounds in use.
fn entries<K: TreeKey>(words: &[u64; 8], max: usize) -> usize {
    (0..max - 1).take_while(|i| K::bound(words, *i) != K::MAX).count() + 1
}

/// Intervals of a leaf whose largest key is `upper`.
fn leaf_intervals<K: TreeKey>(words: &[u64; 8], upper: K, out: &mut Vec<Interval<K>>) {
    let n = entries::<K>(words, K::LEAF);
    for i in 0..n {
        let upper = if i + 1 < n { K::bound(words, i) } else { upper };
        out.push(Interval { upper, value: K::value(words, i) });
    }
}

/// Children of an inner node as (line, largest key).
fn children<'a, K: TreeKey + 'a>(words: &'a [u64; 8], upper: K) -> impl Iterator<Item = (LineNo, K)> + 'a {
    let n = entries::<K>(words, K::FANOUT);
    (0..n).map(move |i| (K::child(words).wrapping_add(i as u32), if i + 1 < n { K::bound(words, i) } else { upper }))
}

/// Line and levels of a tree; levels 0 = no tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Top {
    pub line: LineNo,
    pub levels: u32,
}

impl Top {
    /// Out of a ROUTE_ROOT.
    pub(crate) fn of_root(root: u32) -> Top {
        Top { line: LineNo(root & ROOT_LINE_MASK), levels: (root >> ROOT_LEVELS_SHIFT) & 0xf }
    }

    /// The line and levels bits of a ROUTE_ROOT.
    pub(crate) fn root_bits(self) -> u32 {
        self.line.0 | self.levels << ROOT_LEVELS_SHIFT
    }

    /// The SCOPE_DESCEND value that leads to this tree.
    pub(crate) fn descend(self) -> u32 {
        (SCOPE_DESCEND + self.levels - 1) << VALUE_SCOPE_SHIFT | self.line.0
    }

    /// The tree that a value descends into.
    pub(crate) fn of_value(value: u32) -> Option<Top> {
        let scope = value >> VALUE_SCOPE_SHIFT;
        (scope >= SCOPE_DESCEND)
            .then(|| Top { line: LineNo(value & VALUE_ARG_MASK), levels: scope - SCOPE_DESCEND + 1 })
    }
}

/// Lines of a packed tree over `intervals` intervals.
pub(crate) fn lines_needed<K: TreeKey>(intervals: usize) -> usize {
    let mut level = intervals.div_ceil(K::LEAF).max(1);
    let mut lines = level;
    while level > 1 {
        level = level.div_ceil(K::FANOUT);
        lines += level;
    }
    lines
}

/// Builds and changes trees: where lines come from and where old blocks go.
pub(crate) struct Forest<'a> {
    pub arena: &'a mut Arena,
    pub lines: Lines,
    pub retired: &'a mut Vec<Block>,
}

/// A change of a key range: what it holds from now on.
pub(crate) struct Edit<K> {
    pub first: K,
    pub last: K,
    pub intervals: Vec<Interval<K>>,
}

impl Forest<'_> {
    /// Builds a tree; `intervals` cover the whole key space. A single interval of value 0 is no tree at all.
    pub(crate) fn build<K: TreeKey>(&mut self, intervals: &[Interval<K>]) -> io::Result<Top> {
        if matches!(intervals, [] | [Interval { value: 0, .. }]) {
            return Ok(Top::default());
        }
        if intervals.len() <= K::LEAF {
            let line = self.arena.alloc(1)?;
            self.lines.fill(line, &K::leaf(intervals));
            return Ok(Top { line, levels: 1 });
        }
        // Most VPCs have a few routes: all of them in one node, so that a packet waits for memory once.
        if let Some(words) = K::flat(intervals) {
            let line = self.arena.alloc(2)?;
            self.lines.fill(line, &words[0]);
            self.lines.fill(line + 1, &words[1]);
            return Ok(Top { line, levels: ROOT_FLAT });
        }
        let count = intervals.len().div_ceil(K::LEAF);
        if count > K::FANOUT {
            let nodes = leaves(intervals);
            return self.raise(nodes, 1);
        }
        // Two levels, without buffers.
        let part = |i: usize| &intervals[i * intervals.len() / count..(i + 1) * intervals.len() / count];
        let block = self.arena.alloc(count as u32)?;
        for i in 0..count {
            self.lines.fill(block + i as u32, &K::leaf(part(i)));
        }
        let line = self.arena.alloc(1)?;
        let mut uppers = (0..count - 1).map(|i| part(i)[part(i).len() - 1].upper);
        self.lines.fill(line, &K::inner(&mut uppers, block));
        Ok(Top { line, levels: 2 })
    }

    /// Puts levels above nodes that have `levels` levels until one is left.
    fn raise<K: TreeKey>(&mut self, mut nodes: Vec<Node<K>>, mut levels: u32) -> io::Result<Top> {
        while nodes.len() > 1 {
            nodes = self.group(&nodes)?;
            levels += 1;
        }
        let line = self.arena.alloc(1)?;
        self.lines.fill(line, &nodes[0].words);
        Ok(Top { line, levels })
    }

    /// Writes nodes into blocks of adjacent lines and returns their parents, evenly filled.
    fn group<K: TreeKey>(&mut self, nodes: &[Node<K>]) -> io::Result<Vec<Node<K>>> {
        let groups = nodes.len().div_ceil(K::FANOUT);
        let mut parents = Vec::with_capacity(groups);
        for g in 0..groups {
            let group = &nodes[g * nodes.len() / groups..(g + 1) * nodes.len() / groups];
            let block = self.arena.alloc(group.len() as u32)?;
            for (i, node) in group.iter().enumerate() {
                self.lines.fill(block + i as u32, &node.words);
            }
            let words = K::inner(&mut group[..group.len() - 1].iter().map(|n| n.upper), block);
            parents.push(Node { upper: group[group.len() - 1].upper, words });
        }
        Ok(parents)
    }

    /// Applies edits (sorted, disjoint, not empty) by copying paths; the old tree stays whole.
    pub(crate) fn edit<K: TreeKey>(&mut self, top: Top, edits: &[Edit<K>]) -> io::Result<Top> {
        let words = self.lines.at(top.line).snapshot();
        self.retire(top.line, 1);
        let (mut nodes, mut levels) = if top.levels <= 1 {
            let mut old = Vec::new();
            leaf_intervals(&words, K::MAX, &mut old);
            self.retire_descents(&old, edits);
            (leaves(&splice(&old, None, K::MAX, edits)), 1)
        } else {
            (self.edit_node(Node { upper: K::MAX, words }, None, top.levels, edits)?, top.levels)
        };
        // An inner node with one child left is no level.
        while nodes.len() == 1 && levels > 1 && entries::<K>(&nodes[0].words, K::FANOUT) == 1 {
            let child = K::child(&nodes[0].words);
            nodes = vec![Node { upper: K::MAX, words: self.lines.at(child).snapshot() }];
            // Written a moment ago or shared with the old tree; either way nothing leads to it after this.
            self.retire(child, 1);
            levels -= 1;
        }
        if levels == 1 && nodes.len() == 1 {
            let mut left = Vec::new();
            leaf_intervals(&nodes[0].words, K::MAX, &mut left);
            if matches!(left[..], [Interval { value: 0, .. }]) {
                return Ok(Top::default());
            }
        }
        self.raise(nodes, levels)
    }

    /// New nodes in place of an inner node; `before` is the largest key before it.
    fn edit_node<K: TreeKey>(
        &mut self,
        node: Node<K>,
        before: Option<K>,
        level: u32,
        edits: &[Edit<K>],
    ) -> io::Result<Vec<Node<K>>> {
        let n = entries::<K>(&node.words, K::FANOUT);
        let mut below: Vec<Node<K>> = Vec::with_capacity(n + 2);
        let mut old: Vec<Interval<K>> = Vec::new();
        let mut from = before;
        for (line, upper) in children::<K>(&node.words, node.upper) {
            let words = self.lines.at(line).snapshot();
            if level == 2 {
                leaf_intervals(&words, upper, &mut old);
            } else {
                let touched = overlapping(edits, from.map(|f| f.next()), upper);
                if touched.is_empty() {
                    below.push(Node { upper, words });
                } else {
                    below.extend(self.edit_node(Node { upper, words }, from, level - 1, touched)?);
                }
            }
            from = Some(upper);
        }
        if level == 2 {
            self.retire_descents(&old, edits);
            below = leaves(&splice(&old, before, node.upper, edits));
        }
        self.retire(K::child(&node.words), n as u32);
        self.group(&below)
    }

    /// Retires the trees over lower halves that lie in the edited ranges.
    fn retire_descents<K: TreeKey>(&mut self, old: &[Interval<K>], edits: &[Edit<K>]) {
        for o in old {
            let edited = || !overlapping(edits, Some(o.upper), o.upper).is_empty();
            if let Some(top) = Top::of_value(o.value).filter(|_| edited()) {
                self.retire_tree::<u64>(top);
            }
        }
    }

    fn retire(&mut self, line: LineNo, lines: u32) {
        self.retired.push(Block { line, lines });
    }

    /// Retires every block of a tree, and of the trees that its values descend into.
    pub(crate) fn retire_tree<K: TreeKey>(&mut self, top: Top) {
        let lines = self.lines;
        walk_all::<K>(&lines, top, &mut |block| {
            self.retired.push(block);
            true
        });
    }
}

/// Every block of a tree and of the trees below it, until `block` says false. Garbage ends it early at the latest then.
pub(crate) fn walk_all<K: TreeKey>(lines: &Lines, top: Top, block: &mut dyn FnMut(Block) -> bool) -> bool {
    let mut lower = Vec::new();
    if !walk::<K>(lines, top, block, &mut |i| lower.extend(Top::of_value(i.value))) {
        return false;
    }
    lower.into_iter().all(|top| walk::<u64>(lines, top, block, &mut |_| {}))
}

/// Walks a tree: every block, and every interval in order.
pub(crate) fn walk<K: TreeKey>(
    lines: &Lines,
    top: Top,
    block: &mut dyn FnMut(Block) -> bool,
    interval: &mut dyn FnMut(Interval<K>),
) -> bool {
    if top.levels == 0 {
        return true;
    }
    if K::FLAT > 0 && top.levels == ROOT_FLAT {
        let words = [0, 1].map(|i| lines.at(top.line.wrapping_add(i)).snapshot());
        return block(Block { line: top.line, lines: 2 }) && {
            K::flat_intervals(&words).into_iter().for_each(interval);
            true
        };
    }
    block(Block { line: top.line, lines: 1 })
        && walk_node(lines, lines.at(top.line).snapshot(), K::MAX, top.levels, block, interval)
}

fn walk_node<K: TreeKey>(
    lines: &Lines,
    words: [u64; 8],
    upper: K,
    levels: u32,
    block: &mut dyn FnMut(Block) -> bool,
    interval: &mut dyn FnMut(Interval<K>),
) -> bool {
    if levels <= 1 {
        let mut out = Vec::with_capacity(K::LEAF);
        leaf_intervals(&words, upper, &mut out);
        out.into_iter().for_each(interval);
        return true;
    }
    block(Block { line: K::child(&words), lines: entries::<K>(&words, K::FANOUT) as u32 })
        && children::<K>(&words, upper)
            .all(|(line, upper)| walk_node(lines, lines.at(line).snapshot(), upper, levels - 1, block, interval))
}

/// Packs intervals into leaves.
fn leaves<K: TreeKey>(intervals: &[Interval<K>]) -> Vec<Node<K>> {
    let count = intervals.len().div_ceil(K::LEAF);
    (0..count)
        .map(|i| {
            let some = &intervals[i * intervals.len() / count..(i + 1) * intervals.len() / count];
            Node { upper: some[some.len() - 1].upper, words: K::leaf(some) }
        })
        .collect()
}

/// The edits that overlap the keys from `first` (None = from the start) up to `upper`.
fn overlapping<K: Key>(edits: &[Edit<K>], first: Option<K>, upper: K) -> &[Edit<K>] {
    let from = first.map_or(0, |first| edits.partition_point(|e| e.last < first));
    let to = edits.partition_point(|e| e.first <= upper);
    &edits[from..to.max(from)]
}

/// The intervals of a node behind `before` and up to `upper`, with the edits' intervals in place of what they cover.
fn splice<K: Key>(old: &[Interval<K>], before: Option<K>, upper: K, edits: &[Edit<K>]) -> Vec<Interval<K>> {
    let mut out: Vec<Interval<K>> = Vec::with_capacity(old.len() + 8);
    let first = before.map_or(K::MIN, |b| b.next());
    // The first key not yet covered; None when the node is done.
    let mut at = Some(first);
    let mut next_old = 0;
    let mut push = |at: &mut Option<K>, last: K, value: u32| {
        match out.last_mut() {
            Some(previous) if previous.value == value => previous.upper = last,
            _ => out.push(Interval { upper: last, value }),
        }
        *at = (last < upper).then(|| last.next());
    };
    for edit in overlapping(edits, Some(first), upper) {
        while let Some(a) = at.filter(|a| *a < edit.first) {
            while old[next_old].upper < a {
                next_old += 1;
            }
            push(&mut at, old[next_old].upper.min(edit.first.prev()), old[next_old].value);
        }
        for i in &edit.intervals {
            let last = i.upper.min(upper);
            if at.is_some_and(|a| a <= last) {
                push(&mut at, last, i.value);
            }
        }
    }
    while let Some(a) = at {
        while old[next_old].upper < a {
            next_old += 1;
        }
        push(&mut at, old[next_old].upper, old[next_old].value);
    }
    out
}
