// SPDX-License-Identifier: Apache-2.0
//! Which numbers of a profile are too small for what is asked, and what would do.

use crate::blocks::{Geometry, Table};
use crate::profile::{ProfileError, FIELDS};
use crate::technique::{tables, Load, Techniques};
use crate::Profile;

/// A field of a stage that may be the reason, and in which steps it can be raised.
type Knob = (&'static str, fn(&mut Geometry) -> &mut u32, u32);

/// The rarer a resource is, the earlier it is blamed. Depths are left out: no table fails for want of them.
const KNOBS: &[Knob] = &[
    ("tcam_per_stage", |g| &mut g.tcam_per_stage, 1),
    ("ternary_tables_per_stage", |g| &mut g.ternary_tables_per_stage, 1),
    ("crossbar_ternary", |g| &mut g.crossbar_ternary, 1),
    ("crossbar_exact", |g| &mut g.crossbar_exact, 1),
    ("hash_groups", |g| &mut g.hash_groups, 1),
    ("map_ram_per_stage", |g| &mut g.map_ram_per_stage, 1),
    ("register_blocks_max", |g| &mut g.register_blocks_max, 1),
    ("meter_alus", |g| &mut g.meter_alus, 1),
    ("stats_alus", |g| &mut g.stats_alus, 1),
    ("tables_per_stage", |g| &mut g.tables_per_stage, 1),
    ("row_entries_max", |g| &mut g.row_entries_max, 1),
    ("pack_max", |g| &mut g.pack_max, 1),
    ("sram_rows", |g| &mut g.sram_rows, 1),
    ("sram_columns", |g| &mut g.sram_columns, 1),
    ("sram_width", |g| &mut g.sram_width, 16),
    ("stages", |g| &mut g.stages, 1),
];

/// The fields that must be raised so that `works` holds, each with the least value that does: first all are raised as
/// far as a profile may say, then one after the other is put back as far as it can. Empty if it works as it is; None if
/// nothing helps.
fn raise(p: &Profile, works: &dyn Fn(&Geometry) -> bool) -> Option<Vec<(&'static str, u32)>> {
    if works(&p.geometry) {
        return Some(Vec::new());
    }
    let mut now = p.geometry.clone();
    for (field, knob, _) in KNOBS {
        let most = FIELDS.iter().find(|f| f.0 == *field).map_or(0, |f| f.2);
        *knob(&mut now) = most.max(*knob(&mut now));
    }
    if !works(&now) {
        return None;
    }
    let mut needed = Vec::new();
    // What is blamed last is put back first.
    for (field, knob, step) in KNOBS.iter().rev() {
        let (least, most) = (*knob(&mut p.geometry.clone()), *knob(&mut now));
        let with = |value: u32| {
            let mut g = now.clone();
            *knob(&mut g) = value;
            g
        };
        let (mut low, mut high) = (0, (most - least) / step);
        while low < high {
            let middle = (low + high) / 2;
            (low, high) = if works(&with(least + middle * step)) { (low, middle) } else { (middle + 1, high) };
        }
        let value = least + low * step;
        now = with(value);
        if value > least {
            needed.push((*field, value));
        }
    }
    needed.reverse();
    Some(needed)
}

/// The error for what does not work with this profile: its first field that is too small, what would do, and what else is.
pub fn blame(p: &Profile, what: &str, works: &dyn Fn(&Geometry) -> bool) -> Option<ProfileError> {
    let Some(needed) = raise(p, works) else {
        return Some(p.refuse("name", format!("{what} has no place on this chip, whatever its numbers: leave it out")));
    };
    let (field, value) = *needed.first()?;
    let knob = KNOBS.iter().find(|k| k.0 == field)?.1;
    let mut reason = format!("{} is too little for {what}: at least {value} would do", knob(&mut p.geometry.clone()));
    for (field, value) in &needed[1..] {
        reason += &format!(", with {field} {value}");
    }
    Some(p.refuse(field, reason))
}

/// Every table must have room for one entry in empty stages, as many as it wants; if not, the profile is at fault, not the
/// load.
pub fn suits(p: &Profile, load: &Load, t: &Techniques) -> Result<(), ProfileError> {
    for n in tables(load, t).iter().filter(|n| !crate::technique::is_array(n)) {
        let one = Table { entries: 1, ..n.table.clone() };
        let what = format!("table {} ({}, key of {} bits)", n.name, how(&n.table), n.table.key.bits());
        if let Some(e) = blame(p, &what, &|g| one.alone(g).is_ok()) {
            return Err(e);
        }
    }
    Ok(())
}

fn how(t: &Table) -> String {
    match &t.kind {
        crate::Kind::Exact { digest: None } => "exact".into(),
        crate::Kind::Exact { digest: Some(bits) } => format!("digest of {bits} bits"),
        crate::Kind::Ternary => "in TCAM".into(),
        crate::Kind::Alpm(a) => format!("ALPM {} x {}, pivots in TCAM", a.partitions, a.subtrees),
    }
}
