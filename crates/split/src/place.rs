// SPDX-License-Identifier: Apache-2.0
//! Where a stage can be: on one target, or its whole on one and a copy of its most used entries on another in front; and
//! why it cannot be on the others.

use crate::description::{Description, Stage, Table, Target};
use crate::memory::{self, NoMemory};

/// Where a stage is.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub enum Place {
    /// On one target.
    Whole(usize),
    /// All of it on `back`, and on `front` the logic with a copy of some entries: what misses there goes on to `back`.
    Copied {
        /// Where the copy is.
        front: usize,
        /// Entries of the copy.
        entries: f64,
        /// Where all are.
        back: usize,
    },
}

impl Place {
    /// The target that has all of it.
    pub fn whole(&self) -> usize {
        match *self {
            Place::Whole(t) | Place::Copied { back: t, .. } => t,
        }
    }

    /// Whether it is a copy beside the whole.
    pub fn is_copied(&self) -> bool {
        matches!(self, Place::Copied { .. })
    }
}

/// Why a stage cannot be on a target.
#[derive(Clone, Debug, PartialEq)]
pub enum Barred {
    /// The target cannot do it.
    Lacks(String),
    /// The target cannot do it so often in a stage.
    TooMany {
        /// What.
        operation: String,
        /// How often the stage needs it.
        needs: f64,
        /// How often the target can.
        most: f64,
    },
    /// A table finds no memory.
    Memory {
        /// Which.
        table: String,
        /// Why.
        why: NoMemory,
    },
    /// Its tables change more often than the target takes.
    Changes {
        /// Changes a second.
        needs: f64,
        /// The target takes.
        most: f64,
    },
    /// Its logic changes more often than the target's can.
    Revisions {
        /// Revisions a year.
        needs: f64,
        /// The target's.
        most: f64,
    },
}

/// A place of a stage with all that it costs there.
#[derive(Clone, Debug)]
pub struct Choice {
    /// Where.
    pub place: Place,
    /// Target, part of its memory, amount.
    pub memory: Vec<(usize, usize, f64)>,
    /// Target, changes a second from outside.
    pub changes: Vec<(usize, f64)>,
    /// Target, changes that a packet of the stage makes.
    pub writes: Vec<(usize, f64)>,
    /// Share of packets that the copy in front serves.
    pub hit: f64,
    /// Time of a packet that the copy serves.
    pub served: f64,
    /// Time of one that it looks up in vain.
    pub missed: f64,
    /// Time of a packet where all of the stage is.
    pub time: f64,
}

/// Sizes of copies that are thought of, as parts of what fits: the most, and halves of it.
const COPIES: u32 = 4;

/// All places of a stage.
pub fn choices(d: &Description, stage: &Stage) -> Vec<Choice> {
    let whole: Vec<Option<Choice>> = (0..d.targets.len()).map(|t| on(d, stage, t, 1.0).ok()).collect();
    let mut all: Vec<Choice> = whole.iter().flatten().cloned().collect();
    let Some(hot) = stage.tables.iter().find(|t| t.hot.is_some()) else { return all };
    for (front, target) in d.targets.iter().enumerate() {
        for entries in copies(target, hot) {
            let part = entries / hot.entries;
            let Ok(copy) = on(d, stage, front, part) else { continue };
            for back in whole.iter().flatten().filter(|c| c.place.whole() != front) {
                all.push(behind(&copy, back, hot, entries, lookups(stage, target, part)));
            }
        }
    }
    all
}

/// Whether a stage could be on a target, and why not.
pub fn barred(d: &Description, stage: &Stage, target: usize) -> Option<Barred> {
    on(d, stage, target, 1.0).err()
}

fn behind(copy: &Choice, back: &Choice, hot: &Table, entries: f64, missed: f64) -> Choice {
    let joined = |a: &[(usize, f64)], b: &[(usize, f64)]| [a, b].concat();
    Choice {
        place: Place::Copied { front: copy.place.whole(), entries, back: back.place.whole() },
        memory: [&copy.memory[..], &back.memory[..]].concat(),
        changes: joined(&copy.changes, &back.changes),
        writes: joined(&copy.writes, &back.writes),
        hit: hot.hot.map_or(1.0, |h| h.hit(entries, hot.entries)),
        served: copy.time,
        missed,
        time: back.time,
    }
}

/// Sizes of copies of a table on a target.
fn copies(target: &Target, hot: &Table) -> Vec<f64> {
    let Some(most) =
        target.memory.iter().filter(|p| p.holds.contains(&hot.kind)).map(|p| memory::most(p, hot)).reduce(f64::min)
    else {
        return Vec::new();
    };
    let most = most.min(hot.entries);
    let mut sizes: Vec<f64> = (0..COPIES).map(|i| (most / f64::from(1 << i)).floor()).collect();
    if let Some(crate::hot::Hot::Set { entries, .. }) = hot.hot {
        sizes.push((entries * hot.entries).floor());
    }
    sizes.retain(|k| *k >= 1.0 && *k <= most);
    sizes.sort_by(|a, b| b.total_cmp(a));
    sizes.dedup();
    sizes
}

/// The stage on a target, with so large a part of its hot table and all of the others.
fn on(d: &Description, stage: &Stage, t: usize, part: f64) -> Result<Choice, Barred> {
    let target = &d.targets[t];
    let mut time = lookups(stage, target, part);
    for (operation, needs) in &stage.needs {
        let Some(o) = target.operations.get(operation) else { return Err(Barred::Lacks(operation.clone())) };
        if let Some(most) = o.most.filter(|most| needs > most) {
            return Err(Barred::TooMany { operation: operation.clone(), needs: *needs, most });
        }
        time += needs * o.time;
    }
    if let Some(most) = target.revisions.filter(|most| stage.revisions > *most) {
        return Err(Barred::Revisions { needs: stage.revisions, most });
    }
    let (mut memory, mut changes, mut writes) = (Vec::new(), 0.0, 0.0);
    for table in &stage.tables {
        let part = if table.hot.is_some() { part } else { 1.0 };
        let taken = memory::takes(target, table, (part * table.entries).round());
        let taken = taken.map_err(|why| Barred::Memory { table: table.name.clone(), why })?;
        memory.extend(taken.into_iter().map(|(pool, amount)| (t, pool, amount)));
        changes += part * table.changes;
        writes += part * table.writes;
    }
    if let Some(most) = target.changes.filter(|most| changes > *most) {
        return Err(Barred::Changes { needs: changes, most });
    }
    let listed = |v: f64| if v > 0.0 { vec![(t, v)] } else { Vec::new() };
    let (changes, writes) = (listed(changes), listed(writes));
    Ok(Choice { place: Place::Whole(t), memory, changes, writes, hit: 1.0, served: time, missed: 0.0, time })
}

/// Time of a stage's reads on a target.
fn lookups(stage: &Stage, target: &Target, part: f64) -> f64 {
    let read = |table: &Table| {
        let part = if table.hot.is_some() { part } else { 1.0 };
        table.reads * between(&target.lookup, memory::bytes(target, table, part * table.entries))
    };
    stage.tables.iter().map(read).sum()
}

/// The value at `x` of the line through these points, in proportion to the logarithm of `x`; outside of them that of the nearest.
fn between(points: &[(f64, f64)], x: f64) -> f64 {
    let Some(next) = points.iter().position(|p| p.0 >= x) else { return points.last().map_or(0.0, |p| p.1) };
    let (to, y) = points[next];
    let Some(&(from, before)) = next.checked_sub(1).map(|i| &points[i]) else { return y };
    before + (y - before) * (x / from).ln() / (to / from).ln()
}

#[cfg(test)]
mod tests {
    use super::between;

    #[test]
    fn a_read_takes_longer_the_larger_the_table() {
        let points = [(1e3, 1.0), (1e6, 4.0)];
        let at = |x| (between(&points, x) * 1000.0).round() / 1000.0;
        assert_eq!([at(1.0), at(1e3), at(1e4), at(1e6), at(1e9)], [1.0, 1.0, 2.0, 4.0, 4.0]);
        assert_eq!((between(&[], 5.0), between(&[(10.0, 3.0)], 50.0)), (0.0, 3.0));
    }
}
