// SPDX-License-Identifier: Apache-2.0
//! Where a lookup's time goes. `cargo run --release -p bench --example lookup_probe -- [MODEL...] [dump] [adaptive] [gigaflow] [megaflow]`
//!
//! TUNNY_SAMPLES: samples of each figure (7); the median is printed, and of lookups also the least.
use bench::{lookups, ovs_lookup, stats};
use cache::engine::Kind;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let samples = std::env::var("TUNNY_SAMPLES").ok().and_then(|s| s.parse().ok()).unwrap_or(7);
    let named = |name: &str| args.iter().any(|a| a == name);
    let models = ["ols", "ofd", "otl", "psc", "ant", "dump"];
    let kinds = [Kind::Adaptive, Kind::Gigaflow, Kind::Megaflow];
    let (all_models, all_kinds) = (!models.iter().any(|m| named(m)), !kinds.iter().any(|k| named(k.name())));
    for model in models.into_iter().filter(|m| all_models || named(m)) {
        for kind in kinds.into_iter().filter(|k| all_kinds || named(k.name())) {
            let parts = match model {
                "dump" => ovs_lookup::dump_parts(kind, 1, samples).map(|p| vec![p]),
                _ => lookups::parts(model, kind, 1, samples).map(Vec::from),
            };
            match parts {
                Ok(orders) => {
                    for (order, p) in ["trace", "random order"].iter().zip(orders) {
                        let [key, lookup, walk, actions] =
                            [&p.key, &p.lookup, &p.walk, &p.actions].map(|s| stats::median(s));
                        let (name, least) = (kind.name(), p.lookup.iter().copied().fold(f64::INFINITY, f64::min));
                        println!(
                            "{model} {name}, {order}: key {key:.0}, lookup {lookup:.0} (least {least:.0}, walk {walk:.0}), actions {actions:.0} ns"
                        );
                    }
                }
                Err(error) => println!("{model} {}: {error}", kind.name()),
            }
        }
    }
}
