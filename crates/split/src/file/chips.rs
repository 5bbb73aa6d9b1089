// SPDX-License-Identifier: Apache-2.0
//! Switch chips of crate `chip` as targets: rates, latency and blocks of their profiles.

use super::figure::{Figure, Source};
use crate::description::{Blocks, Pool, Target, Unit};
use chip::performance::performance;
use chip::pipes::arrange;
use chip::sailfish::techniques;
use chip::technique::Techniques;

/// Kinds of tables that lie in blocks of SRAM; those of TCAM too lie in both.
const SRAM: [&str; 6] = ["exact", "lpm", "ternary", "register", "counter", "meter"];
const TCAM: [&str; 2] = ["lpm", "ternary"];

/// Fills a target with a chip's figures. Else the field that is wrong, and why.
pub(super) fn fill(named: &str, pipes: &str, t: &mut Target) -> Result<Vec<Figure>, (&'static str, String)> {
    let Some(text) = chip::profile::built_in(named) else {
        let known: Vec<&str> = chip::profile::BUILT_IN.iter().map(|(n, _)| *n).collect();
        return Err((
            "chip",
            format!("`{named}` is none of the chips that come with the program: {}", known.join(", ")),
        ));
    };
    let p = chip::profile::parse(&format!("{named}.yaml"), text).map_err(|e| ("chip", e.to_string()))?;
    let step = |wanted: &str| techniques().into_iter().find(|(n, _)| *n == wanted).map_or(Techniques::NONE, |(_, t)| t);
    let (techniques, halves) = match pipes {
        "flat" => (Techniques::NONE, 1.0),
        "folded" => (step("folding"), 1.0),
        "halved" => (step("splitting"), 2.0),
        _ => return Err(("pipes", format!("`{pipes}` is none of flat, folded, halved"))),
    };
    let arrangement = arrange(&p, &techniques).map_err(|e| ("pipes", e.to_string()))?;
    let speed = performance(&p, &arrangement, techniques.bridge_bytes);
    let behind = if arrangement.looped_back > 0 { 2.0 } else { 1.0 };
    t.packets = Some(speed.pipe_gpps * 1e9);
    t.ports = Some(speed.port_tbps * 1e12);
    t.latency = speed.points.first().map_or(0.0, |p| p.latency_us * 1000.0);
    let pool = |name: &str, tcam: bool, each: u32| Pool {
        name: name.into(),
        holds: if tcam { TCAM.map(String::from).to_vec() } else { SRAM.map(String::from).to_vec() },
        room: behind * f64::from(each),
        unit: Unit::Blocks(Box::new(Blocks { geometry: p.geometry.clone(), tcam, halves })),
    };
    t.memory = vec![pool("SRAM", false, p.sram_per_pipe()), pool("TCAM", true, p.tcam_per_pipe())];
    let figure = |field: &str, written: String, value: f64| Figure {
        field: format!("chip {named} ({}): {field}", arrangement.says),
        written,
        value,
        source: Source::From(format!("profile {named}.yaml, simulated")),
    };
    let mut figures = vec![
        figure("packets", format!("{:.2} Gpps", speed.pipe_gpps), speed.pipe_gpps * 1e9),
        figure("ports", format!("{:.2} Tbit", speed.port_tbps), speed.port_tbps * 1e12),
        figure("latency", format!("{:.0} ns", t.latency), t.latency),
    ];
    figures.extend(t.memory.iter().map(|m| figure(&m.name, format!("{} blocks", m.room), m.room)));
    Ok(figures)
}
