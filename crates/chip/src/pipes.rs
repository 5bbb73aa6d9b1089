// SPDX-License-Identifier: Apache-2.0
//! How a chip's pipes are used: all alike, in pairs that are folded, in halves of pairs.

use crate::profile::ProfileError;
use crate::technique::Techniques;
use crate::Profile;

/// How the pipes are used.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Arrangement {
    /// Pipes whose ports packets come in by and leave by.
    pub entry: u32,
    /// Pipes whose ports are looped back.
    pub looped_back: u32,
    /// Pipes that nothing can be made of.
    pub unused: u32,
    /// The same in words.
    pub says: String,
}

/// How these techniques use the chip's pipes. Refused if it has too few of them, or no loopback.
///
/// Folding takes two pipes: packets enter the first, go over looped-back ports through the second, and leave by the first
/// (Sailfish, Fig. 13). Entries divided between halves take two such pairs, or any even number: the parity of a VNI or an
/// address has two values.
pub fn arrange(p: &Profile, t: &Techniques) -> Result<Arrangement, ProfileError> {
    let pipes = p.pipes;
    if !t.fold {
        let says = match pipes {
            1 => "one pipe".to_string(),
            n => format!("{n} pipes that all hold the same tables"),
        };
        return Ok(Arrangement { entry: pipes, looped_back: 0, unused: 0, says });
    }
    if !p.loopback {
        return Err(
            p.refuse("loopback", "no: the ports cannot be looped back, so no pipe can be folded: leave fold out")
        );
    }
    let pairs = pipes / 2;
    if pairs == 0 {
        return Err(p.refuse("pipes", format!("{pipes}: folding takes two pipes: leave fold out")));
    }
    if t.split.is_some() && pairs < 2 {
        let reason = format!(
            "{pipes} pipes fold into one pair, and entries can be divided only between two: leave the splitting out \
             (split-vni, split-address), or take a chip with 4 pipes"
        );
        return Err(p.refuse("pipes", reason));
    }
    let used = if t.split.is_some() { pairs - pairs % 2 } else { pairs };
    let unused = pipes - 2 * used;
    let halves = if t.split.is_some() { ", half of them for each half of the entries" } else { "" };
    let mut says = match used {
        1 => "one pair of folded pipes".to_string(),
        n => format!("{n} pairs of folded pipes{halves}"),
    };
    if unused > 0 {
        says += &format!(
            "; {unused} of {pipes} pipes left unused, with {} ports: pipes fold in pairs",
            unused * p.ports_per_pipe
        );
        if pairs % 2 == 1 && used < pairs {
            says += ", and halves need an even number of them";
        }
    }
    Ok(Arrangement { entry: used, looped_back: used, unused, says })
}

/// As much of these techniques as the chip's pipes allow: without halves if they make one pair only, without folding if
/// they make none.
pub fn allowed(p: &Profile, t: &Techniques) -> Techniques {
    let folded = Techniques { split: None, ..*t };
    let flat = Techniques { fold: false, bridge_bytes: 0, ..folded };
    [*t, folded].into_iter().find(|t| arrange(p, t).is_ok()).unwrap_or(flat)
}
