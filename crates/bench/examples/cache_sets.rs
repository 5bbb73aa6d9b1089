// SPDX-License-Identifier: Apache-2.0
//! Hit rates over ClassBench sets and seeds: what `tunny-lab cache compare` counts, without its clock and its exact-match cache, a JSON line a workload.
//! `cargo run --release -p bench --example cache_sets -- FOLDER SEED[,SEED...] [SET...]`: SETs are files of the folder, all of them if none is named.
use bench::Error;
use cache::compare::{run, Env, Subject};
use cache::engine::{Engine, Kind, Setup};
use cache::workload::{generate, models, rules, Locality, Parameters};
use std::path::Path;

fn main() -> Result<(), Error> {
    let mut args = std::env::args().skip(1);
    let (folder, seeds) = (args.next().unwrap_or_default(), args.next().unwrap_or_default());
    let mut sets: Vec<String> = args.collect();
    if sets.is_empty() {
        let files = std::fs::read_dir(&folder).map_err(Error::io("listing the folder"))?.flatten();
        sets = files.filter_map(|f| f.file_name().into_string().ok()).filter(|name| name.contains('_')).collect();
        sets.sort();
    }
    for seed in seeds.split(',').filter_map(|s| s.parse().ok()) {
        for set in &sets {
            workloads(Path::new(&folder), set, seed)?;
        }
    }
    Ok(())
}

/// All models and localities of a set.
fn workloads(folder: &Path, name: &str, seed: u64) -> Result<(), Error> {
    let text = std::fs::read_to_string(folder.join(name)).map_err(Error::io("reading a set"))?;
    let set = rules::parse(name, &text).map_err(Error::failed("reading a set"))?;
    for model in models::all() {
        for (locality, called) in [(Locality::High, "high"), (Locality::Low, "low")] {
            let work = generate(&model, &set, locality, &Parameters::FIXED, seed);
            let pipeline = bench::lookups::import(&work.flows)?;
            let subject = Subject { pipeline: &pipeline, headers: &work.headers, packets: &work.packets };
            let mut row = serde_json::json!({ "set": name, "seed": seed, "workload": model.name, "locality": called });
            for kind in [Kind::Megaflow, Kind::Gigaflow, Kind::Adaptive] {
                let mut env = Env { clock: &mut || 0, progress: &mut |_| (), coverage: 0 };
                let out = run(subject, Engine::new(Setup { seed, ..Setup::new(kind) }), &mut env);
                row[kind.name()] = serde_json::json!({ "hit": out.hit_percent, "misses": out.misses, "packets": out.packets, "entries": out.entries });
            }
            println!("{row}");
        }
    }
    Ok(())
}
