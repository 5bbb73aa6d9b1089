// SPDX-License-Identifier: Apache-2.0
//! Which entries still hold after rules changed, and what becomes of the others.
//!
//! An entry knows the version of the pipeline at which it was last known to be right, and of each lookup that it stands for the flow that was found. A
//! later version is asked table by table: where nothing changed, or the flow is still there and no flow that came since can be met
//! ([`pipeline::Pipeline::still_finds`]), the lookup is answered as before. If that is so for all of them, the entry is right and gets the new version. That costs a
//! few comparisons, whatever the number of changes. Only else is the pipeline run from where the entry begins, as far as the entry goes.
//!
//! # Which bits are known
//! A flow that came to a table meets packets as they stand there, the entry knows them as they stand where it begins. Both are the same in
//! bits that nobody writes in between:
//! * Consecutive lookups: what the entry's own program does not write.
//! * Lookups that do not follow each other ([`crate::factor`]): others write between them. What no table was ever seen to write.
//! * Ports only where the packet is known to be no fragment: lookups see the ports of fragments as zero.
//!
//! The other bits are taken for unknown, which can only lead to a check too many.
use crate::ltm::{Checked, Recheck};
use crate::program::Program;
use crate::segment::{Entry, Lookup, Next, Tags};
use crate::table::Tag;
use crate::words::{Words, WORDS};
use pipeline::{Field, Key, Mask, Op, Pipeline};
use std::cell::OnceCell;
use std::sync::Arc;

/// Checks old entries against the pipeline as it is.
pub(crate) struct Checker<'a> {
    pub pipeline: &'a Pipeline,
    pub tags: &'a mut Tags,
    /// What any table was seen to write, where entries of lookups may be that do not follow each other.
    pub written: Option<&'a Mask>,
}

impl Recheck for Checker<'_> {
    fn version(&self) -> u64 {
        self.pipeline.version()
    }

    fn check(&mut self, tag: Tag, words: &[(u8, u64)], key: &Key, entry: &Entry) -> Checked {
        if self.holds(words, key, entry) {
            return Checked::Right;
        }
        // Its lookups do not follow each other: it is made anew when it is needed.
        if entry.plan != 0 {
            return Checked::Wrong;
        }
        self.run(tag, words, key, entry).unwrap_or(Checked::Wrong)
    }
}

impl Checker<'_> {
    /// Whether each of its lookups finds what it found. No is said also where only the pipeline can tell.
    fn holds(&self, words: &[(u8, u64)], key: &Key, entry: &Entry) -> bool {
        if self.pipeline.groups_version() > entry.version {
            return false;
        }
        let known = OnceCell::new();
        let bits = || known.get_or_init(|| self.known(words, key, entry));
        entry.path.iter().all(|lookup| lookup.holds(self.pipeline, entry.version, key, bits))
    }

    /// The bits that the entry matches and that its lookups see as they stand where it begins.
    fn known(&self, words: &[(u8, u64)], key: &Key, entry: &Entry) -> Mask {
        let mut written = Mask::default();
        match (entry.plan, self.written) {
            (0, _) => entry.action.written.iter().for_each(|&(n, m)| written.0[usize::from(n)] = m),
            (_, Some(all)) => written = *all,
            (_, None) => written = Mask::all(),
        }
        let mut known = Mask::default();
        words.iter().for_each(|&(n, m)| known.0[usize::from(n)] = m & !written.0[usize::from(n)]);
        if known.get(Field::NwFrag) & 1 == 0 || key.get(Field::NwFrag) & 1 == 1 {
            known.remove(Field::TcpSrc);
            known.remove(Field::TcpDst);
        }
        known
    }

    /// Runs the part of the pipeline that the entry stands for. None if the entry is not what would be made now.
    fn run(&mut self, tag: Tag, words: &[(u8, u64)], key: &Key, entry: &Entry) -> Option<Checked> {
        let n = entry.path.len();
        let traversal = self.pipeline.pass_of(self.tags.point(tag)?, key, n);
        let steps = traversal.steps.get(..n)?;
        if traversal.failed.is_some() || steps.iter().any(|s| s.ops.iter().any(|op| matches!(op, Op::Learn(_)))) {
            return None;
        }
        let next = match (entry.action.next, traversal.steps.get(n)) {
            (Next::End, None) => true,
            (Next::Tag(tag), Some(step)) => step.cut && self.tags.point(tag) == Some(&step.entry),
            _ => false,
        };
        let same_path = steps.iter().zip(entry.path.iter()).all(|(s, lookup)| s.entry.table == lookup.table);
        let mut matched: Words = [0; WORDS];
        words.iter().for_each(|&(i, m)| matched[i as usize] = m);
        let mask = traversal.range_mask(0..n);
        let narrow = mask.0.iter().zip(&matched).all(|(need, have)| need & !have == 0);
        if !(next && same_path && narrow) {
            return None;
        }
        let path: Arc<[Lookup]> = steps.iter().map(Lookup::of).collect();
        let program = Program::of_steps(steps.iter(), entry.is_last());
        let action = match entry.action.does(&program) {
            true => Arc::clone(&entry.action),
            false => self.tags.actions.of(program, entry.action.next),
        };
        Some(Checked::Does(action, path))
    }
}
