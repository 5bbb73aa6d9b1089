// SPDX-License-Identifier: Apache-2.0
//! Why a value differs from the paper's: what the model, the chip and the load have in it.

use crate::load::{thousands, Load};
use crate::Profile;

/// A share of a memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Share {
    /// Blocks taken.
    pub blocks: u32,
    /// Blocks there are.
    pub of: u32,
}

impl Share {
    /// In percent.
    pub fn percent(&self) -> f64 {
        100.0 * f64::from(self.blocks) / f64::from(self.of.max(1))
    }
}

/// The difference from the paper's value in three parts that add up to it, in percentage points.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Explained {
    /// Our model's value for the paper's chip and load, less the paper's.
    pub of_model: f64,
    /// What this chip changes in it.
    pub of_chip: f64,
    /// What this load changes in it.
    pub of_load: f64,
    /// The three in words.
    pub because: String,
}

/// A difference with its sign and one decimal; nothing has no minus.
pub fn signed(v: f64) -> String {
    let text = format!("{v:+.1}");
    if text == "-0.0" {
        "+0.0".into()
    } else {
        text
    }
}

/// The chip that the paper's tables are about.
pub fn reference() -> Option<Profile> {
    crate::profile::parse("tofino1.yaml", crate::profile::built_in("tofino1")?).ok()
}

/// The same share three times: for the paper's load on its chip, for the paper's load on this chip, and for this load.
#[derive(Clone, Copy, Debug)]
pub struct Thrice {
    /// The paper's load on the paper's chip.
    pub reference: Share,
    /// The paper's load on this chip.
    pub on_chip: Share,
    /// This load on this chip.
    pub own: Share,
}

/// Runs `values` for the paper's load on the paper's chip, on this one, and for this load.
pub fn thrice<E>(
    p: &Profile,
    load: &Load,
    values: impl Fn(&Profile, &Load) -> Result<Vec<Share>, E>,
) -> Result<Vec<Thrice>, E> {
    let paper = Load::sailfish(25);
    let own = values(p, load)?;
    let on_chip = if *load == paper { own.clone() } else { values(p, &paper)? };
    let of = |p: &Profile| (p.geometry.clone(), p.pipes, p.loopback);
    let reference = match reference().filter(|r| of(r) != of(p)) {
        Some(r) => values(&r, &paper)?,
        None => on_chip.clone(),
    };
    let all = reference.into_iter().zip(on_chip).zip(own);
    Ok(all.map(|((reference, on_chip), own)| Thrice { reference, on_chip, own }).collect())
}

impl Thrice {
    /// Explains the difference from `paper`; `why` says what the model's part comes from.
    pub fn explain(&self, paper: f64, why: &str, memory: &str, p: &Profile, load: &Load) -> Explained {
        let [reference, on_chip, own] = [self.reference, self.on_chip, self.own].map(|s| s.percent());
        let (of_model, of_chip, of_load) = (reference - paper, on_chip - reference, own - on_chip);
        let Share { blocks, of } = self.reference;
        let mut because = format!("model {}: {blocks} of {of} blocks; {why}", signed(of_model));
        if self.reference != self.on_chip {
            because += &format!("; chip {}: {}", signed(of_chip), chip(p, memory, &self.on_chip));
        }
        if self.on_chip != self.own {
            because += &format!("; load {}: {}", signed(of_load), entries(load, &self.own));
        }
        Explained { of_model, of_chip, of_load, because }
    }
}

fn chip(p: &Profile, memory: &str, here: &Share) -> String {
    let g = &p.geometry;
    let (depth, width) = match memory {
        "TCAM" => (g.tcam_depth, format!("{} bytes a pair", g.tcam_pair_bytes)),
        _ => (g.sram_depth, format!("{} bits", g.sram_width)),
    };
    format!("on {} {} of {} blocks ({} pipe(s), {depth} deep, {width})", p.name, here.blocks, here.of, p.pipes)
}

fn entries(load: &Load, own: &Share) -> String {
    let paper = Load::sailfish(25);
    let six = |part: u64, all: u64| 100.0 * part as f64 / all.max(1) as f64;
    format!(
        "{} blocks for {} routes ({:.0}% IPv6) and {} VM addresses ({:.0}%), the paper's are {} and {} (25%)",
        own.blocks,
        thousands(load.routes()),
        six(load.routes6, load.routes()),
        thousands(load.vms()),
        six(load.vms6, load.vms()),
        thousands(paper.routes()),
        thousands(paper.vms())
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_add_up() {
        let share = |blocks, of| Share { blocks, of };
        let t = Thrice { reference: share(896, 288), on_chip: share(896, 480), own: share(500, 480) };
        let p = Profile { name: "other".into(), ..reference().unwrap() };
        let load = Load::sailfish(25).hundredths(50);
        let e = t.explain(311.0, "whole percents", "TCAM", &p, &load);
        assert!((e.of_model + e.of_chip + e.of_load - (share(500, 480).percent() - 311.0)).abs() < 1e-9, "{e:?}");
        for part in
            ["model +0.1: 896 of 288", "chip -124.4: on other 896 of 480", "load -82.5: 500 blocks for 114,688 routes"]
        {
            assert!(e.because.contains(part), "{}", e.because);
        }
        let same = Thrice { reference: share(1, 2), on_chip: share(1, 2), own: share(1, 2) };
        let e = same.explain(50.0, "equal", "SRAM", &p, &load);
        assert!(!e.because.contains("chip") && !e.because.contains("load"), "{}", e.because);
    }
}
