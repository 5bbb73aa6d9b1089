// SPDX-License-Identifier: Apache-2.0
//! Mixed traffic, and traffic made to hurt: the adaptive cache is never much behind the better of the two others, and ahead where it can be. Caches
//! are small (2,048 entries) and epochs as long as ever, so what a wrong decision costs weighs sixteen times as much as with 32K entries.
use cache::engine::{Engine, Kind, Setup};
use cache::workload::mixed::{traffic, Size, Traffic};
use cache::workload::{models, Workload};
use pipeline::text::{import, ImportOptions};
use pipeline::{Conntrack, Pipeline};

const ENTRIES: usize = 2_048;
const PACKETS: usize = 36_000;

fn hit_percent(work: &Workload, pipeline: &Pipeline, kind: Kind, seed: u64) -> f64 {
    let mut engine = Engine::new(Setup { seed, ..Setup::new(kind) }.sized(4, ENTRIES / 4));
    let mut ct = Conntrack::new(1);
    for (n, packet) in work.packets.iter().enumerate() {
        let key = &work.headers[packet.flow as usize];
        let answer = engine.packet(key, pipeline, &mut ct, packet.time, &mut || 0);
        if n % 61 == 0 {
            let want = pipeline.run(key, &mut Conntrack::new(1), 0);
            assert_eq!(answer.outputs, want.outputs, "{}, {}: {key:?}", work.name, kind.name());
        }
    }
    100.0 * engine.counters().hits as f64 / work.packets.len() as f64
}

/// Hit rates of Megaflow, Gigaflow and the adaptive cache.
fn three(model: &str, what: Traffic, seed: u64) -> [f64; 3] {
    let model = models::named(model).unwrap();
    let work = traffic(&model, what, Size { entries: ENTRIES, packets: PACKETS }, seed);
    let pipeline = import(&work.flows, &ImportOptions::default()).unwrap().pipeline;
    let rates = [Kind::Megaflow, Kind::Gigaflow, Kind::Adaptive].map(|kind| hit_percent(&work, &pipeline, kind, seed));
    println!("{}: {rates:.1?}", work.name);
    rates
}

/// What is lost at most before the first decision, and to decisions that the traffic then proves wrong, points of the hit rate.
const MARGIN: f64 = 2.5;

#[test]
fn no_pattern_makes_the_adaptive_cache_much_worse_than_the_better_of_the_two() {
    for model in ["psc", "otl"] {
        for what in Traffic::ALL {
            let [mega, giga, adaptive] = three(model, what, 3);
            assert!(adaptive >= mega.max(giga) - MARGIN, "{model}, {what:?}: {mega:.1}, {giga:.1}, {adaptive:.1}");
        }
    }
}

#[test]
fn where_flows_that_share_and_flows_that_do_not_come_together_it_is_ahead_of_both() {
    for model in ["psc", "otl"] {
        let [mega, giga, adaptive] = three(model, Traffic::Mixed, 4);
        assert!(adaptive > mega.max(giga) + 10.0, "{model}: {mega:.1}, {giga:.1}, {adaptive:.1}");
    }
}
