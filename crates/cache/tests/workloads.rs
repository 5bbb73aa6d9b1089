// SPDX-License-Identifier: Apache-2.0
//! Caches on the model pipelines and on real dumps: answers equal the pipeline's, and misses behave as they must.
//!
//! `TUNNY_PACKETS=1000000` makes it a long run. Tests that need third-party data are skipped without it (crate `skip`).
use cache::compare::strategies::sweep;
use cache::compare::{run, Env, Subject};
use cache::engine::{Engine, Kind, Setup};
use cache::workload::{generate, input, models, rules, Locality, Packet, Parameters, Workload};
use pipeline::text::{import, ImportOptions};
use pipeline::{Conntrack, Field, Key, Pipeline};

fn packets(default: u64) -> u64 {
    std::env::var("TUNNY_PACKETS").ok().and_then(|n| n.parse().ok()).unwrap_or(default)
}

#[track_caller]
fn shared(file: &str) -> Option<String> {
    let path = skip::have_shared(&format!("data/{file}"))?;
    Some(std::fs::read_to_string(path).unwrap())
}

fn program(text: &str) -> Pipeline {
    import(text, &ImportOptions { lenient: true, ..ImportOptions::default() }).unwrap().pipeline
}

fn workload(name: &str, locality: Locality, flows: usize, seed: u64) -> (Workload, Pipeline) {
    let model = models::named(name).unwrap();
    let set = rules::made("acl1_1k", seed).unwrap();
    let work = generate(&model, &set, locality, &Parameters::with_flows(flows), seed);
    let pipeline = import(&work.flows, &ImportOptions::default()).unwrap().pipeline;
    (work, pipeline)
}

/// Sends packets through a cache and the pipeline and compares every byte.
fn equal(
    what: &str,
    pipeline: &Pipeline,
    headers: &[Key],
    sequence: impl Iterator<Item = usize>,
    setup: Setup,
) -> (u64, u64) {
    let mut engine = Engine::new(setup);
    let (mut one, mut two) = (Conntrack::new(10_000), Conntrack::new(10_000));
    let (mut passes, mut hits) = (0, 0);
    for (n, at) in sequence.enumerate() {
        let now = n as u64 * 1_000_000;
        let want = pipeline.run(&headers[at], &mut one, now);
        let got = engine.packet(&headers[at], pipeline, &mut two, now, &mut || 0);
        assert_eq!(got.outputs, want.outputs, "{what}, {setup:?}, packet {n}: {:?}", headers[at]);
        assert_eq!((got.passes as usize, got.cut_off), (want.passes.len(), want.cut_off), "{what}, packet {n}");
        passes += u64::from(got.passes);
        hits += u64::from(got.hits);
    }
    (passes, hits)
}

#[test]
fn every_packet_of_every_workload_gets_the_pipelines_answer() {
    let each = (packets(200_000) / 20) as usize;
    for model in models::all() {
        let (work, pipeline) = workload(model.name, Locality::High, (each / 3).max(300), 11);
        for kind in Kind::ALL {
            let sequence = work.packets.iter().map(|p| p.flow as usize).take(each);
            let (passes, hits) = equal(model.name, &pipeline, &work.headers, sequence, Setup::new(kind).sized(4, 250));
            assert!(passes >= each as u64 / 2 && hits > 0, "{}: {hits} of {passes}", model.name);
        }
        let sent =
            work.headers.iter().filter(|h| !pipeline.run(h, &mut Conntrack::new(1), 0).outputs.is_empty()).count();
        assert_eq!(sent, work.headers.len(), "{}: every flow is forwarded", model.name);
    }
}

#[test]
fn the_models_ways_are_all_used() {
    for model in models::all() {
        let (work, pipeline) = workload(model.name, Locality::Low, 1_000, 2);
        let table_paths: std::collections::HashSet<Vec<u8>> = work
            .headers
            .iter()
            .map(|h| pipeline.pass(&pipeline::Entry::table(0), h).steps.iter().map(|s| s.entry.table).collect())
            .collect();
        let want: std::collections::HashSet<Vec<u8>> = model.table_paths.iter().cloned().collect();
        assert_eq!(table_paths, want, "{}", model.name);
    }
}

#[test]
fn real_dumps_are_answered_as_without_a_cache_and_do_not_mix_tenants() {
    for (file, least) in
        [("ovs-pipelines/ovn_kubernetes_node.flows", 60), ("ovs-pipelines/antrea_documented.flows", 30)]
    {
        let Some(text) = shared(file) else { return };
        let pipeline = program(&text);
        let total = packets(12_000) as usize / 4;
        // As many however long the run is, for the caches below stay as small as they are.
        let traffic = input::explore(&pipeline, 4_000, &Parameters::with_flows(750), 5);
        let table_paths: std::collections::HashSet<_> = traffic
            .headers
            .iter()
            .map(|h| {
                pipeline.run(h, &mut Conntrack::new(16), 0).passes.iter().flat_map(|p| p.rules()).collect::<Vec<_>>()
            })
            .collect();
        assert!(table_paths.len() >= least, "{file}: the traffic goes {} ways", table_paths.len());
        for kind in Kind::ALL {
            let sequence = traffic.packets.iter().map(|p| p.flow as usize).cycle().take(total);
            let (passes, hits) = equal(file, &pipeline, &traffic.headers, sequence, Setup::new(kind).sized(4, 500));
            assert!(hits * 4 > passes, "{file}, {kind:?}: {hits} of {passes} passes from the cache");
        }
    }
}

#[test]
fn two_tenants_with_the_same_headers_do_not_meet_in_the_ovn_dump() {
    let Some(text) = shared("ovs-pipelines/ovn_kubernetes_node.flows") else { return };
    let pipeline = program(&text);
    // The same packets from every port: what tells tenants apart afterwards is metadata, reg14 and reg15 only.
    let traffic = input::explore(&pipeline, 3_000, &Parameters::with_flows(300), 9);
    let ports: Vec<u128> = {
        let mut ports: Vec<u128> = pipeline.names().ports.values().map(|p| u128::from(*p)).collect();
        ports.sort_unstable();
        ports
    };
    assert!(ports.len() >= 2);
    let mut headers = Vec::new();
    for header in &traffic.headers {
        for port in &ports {
            let mut other = *header;
            other.set(Field::InPort, *port);
            headers.push(other);
        }
    }
    let tenants: std::collections::HashSet<u128> = headers
        .iter()
        .flat_map(|h| pipeline.run(h, &mut Conntrack::new(16), 0).passes)
        .flat_map(|p| p.steps.into_iter().map(|s| s.key.get(Field::Metadata)))
        .filter(|m| *m != 0)
        .collect();
    assert!(tenants.len() >= 2, "more than one logical datapath is visited: {tenants:?}");
    for kind in [Kind::Megaflow, Kind::Gigaflow, Kind::Adaptive] {
        let order = (0..3).flat_map(|_| 0..headers.len());
        let (passes, hits) = equal("tenants", &pipeline, &headers, order, Setup::new(kind));
        assert!(hits * 3 > passes);
    }
}

#[test]
fn misses_do_not_rise_with_tables_in_high_locality() {
    for model in models::all() {
        let (work, pipeline) = workload(model.name, Locality::High, 20_000, 3);
        let subject = Subject { pipeline: &pipeline, headers: &work.headers, packets: &work.packets };
        let mut env = Env { clock: &mut || 0, progress: &mut |_| {}, coverage: 0 };
        let rows = sweep(subject, Setup::new(Kind::Gigaflow), 5, 100_000, &mut env);
        let misses: Vec<u64> = rows.iter().map(|r| r.misses).collect();
        println!("{}: {misses:?}", model.name);
        // With a tenth of these flows nearly every one misses however it is cut, and ways that are cut differently share less.
        assert!(misses.windows(2).all(|w| w[1] <= w[0]), "{}: {misses:?}", model.name);
        let mut mega = Env { clock: &mut || 0, progress: &mut |_| {}, coverage: 0 };
        let whole = run(subject, Engine::new(Setup::new(Kind::Megaflow).sized(1, 100_000)), &mut mega);
        assert_eq!(whole.misses, misses[0], "one table is Megaflow");
    }
}

#[test]
fn coverage_is_counted_exactly_and_the_estimate_is_near_it() {
    let (work, pipeline) = workload("otl", Locality::High, 300, 4);
    let subject = Subject { pipeline: &pipeline, headers: &work.headers, packets: &work.packets };
    let table_paths = |limit: u64, kind| {
        let mut time = 0;
        let mut clock = || {
            time += 1_000;
            time
        };
        let mut env = Env { clock: &mut clock, progress: &mut |_| {}, coverage: limit };
        run(subject, Engine::new(Setup::new(kind)), &mut env).coverage_detail.unwrap()
    };
    use cache::coverage::PathCount;
    let mega = table_paths(u64::MAX / 4, Kind::Megaflow);
    let giga = table_paths(u64::MAX / 4, Kind::Gigaflow);
    let PathCount::Exact { table_paths: whole } = mega.counted else { panic!("{mega:?}") };
    let PathCount::Exact { table_paths: exact } = giga.counted else { panic!("{giga:?}") };
    assert!(exact > whole && giga.by_tags >= exact, "{mega:?} {giga:?}");
    let PathCount::Estimate { table_paths: mean, error, samples } = table_paths(20_000, Kind::Gigaflow).counted else {
        panic!("it was counted after all")
    };
    // Ways are unevenly spread, so the standard error of few samples is itself too small: a factor of two is what is asked.
    assert!(mean > exact / 2.0 && mean < exact * 2.0 && error > 0.0, "{mean} ± {error} from {samples} for {exact}");
}

#[test]
fn passes_that_are_broken_off_are_among_the_misses_whose_cost_is_told() {
    let pipeline = program("table=0,in_port=1 actions=resubmit(,0),output:1\ntable=0,in_port=2 actions=output:3");
    let headers: Vec<Key> =
        ["in_port=1", "in_port=2"].map(|p| pipeline::text::packet(p, pipeline.names()).unwrap()).to_vec();
    let packets: Vec<Packet> = (0..100).map(|n| Packet { time: n, flow: u32::from(n == 0) }).collect();
    let subject = Subject { pipeline: &pipeline, headers: &headers, packets: &packets };
    // The clock counts how often it is asked: once before and once after a pass.
    let mut time = 0;
    let mut clock = || {
        time += 1;
        time
    };
    let mut env = Env { clock: &mut clock, progress: &mut |_| {}, coverage: 0 };
    let outcome = run(subject, Engine::new(Setup::new(Kind::Megaflow)), &mut env);
    assert_eq!((outcome.misses, outcome.slow_path.pipeline_ns), (100, 1.0));
}

/// Plans come and go meanwhile, and with them the parts that were cached; only what was never but hit by parts can be lost so.
#[test]
fn while_it_learns_the_adaptive_cache_loses_nearly_nothing_that_megaflow_has() {
    for model in models::all() {
        for locality in [Locality::High, Locality::Low] {
            let (work, pipeline) = workload(model.name, locality, 3_000, 6);
            let mut caches = [Kind::Megaflow, Kind::Adaptive].map(|kind| Engine::new(Setup::new(kind)));
            let mut ct = [Conntrack::new(1_000), Conntrack::new(1_000)];
            let (mut lost, mut won) = (0, 0);
            for packet in &work.packets {
                let key = &work.headers[packet.flow as usize];
                let [mega, adaptive] = [0, 1].map(|n| {
                    let answer = caches[n].packet(key, &pipeline, &mut ct[n], packet.time, &mut || 0);
                    answer.hits == answer.passes
                });
                lost += u32::from(mega && !adaptive);
                won += u32::from(adaptive && !mega);
            }
            println!("{}, {locality:?}: {lost} lost, {won} won", model.name);
            assert!(lost * 100 <= won, "{}, {locality:?}: {lost} lost, {won} won", model.name);
        }
    }
}

#[test]
fn the_exact_cache_has_an_entry_for_every_header_whatever_the_flows_look_at() {
    let pipeline = program("dl_dst=00:00:00:00:00:02 actions=output:2");
    let text = |port: u64| format!("in_port=1,tcp,dl_dst=00:00:00:00:00:02,tp_src={port}");
    let headers: Vec<Key> = (0..50).map(|p| pipeline::text::packet(&text(p), pipeline.names()).unwrap()).collect();
    for (kind, misses) in [(Kind::Exact, 50), (Kind::Megaflow, 1)] {
        let mut engine = Engine::new(Setup::new(kind).sized(1, 100));
        for n in 0..200 {
            engine.packet(&headers[n % 50], &pipeline, &mut Conntrack::new(1), n as u64, &mut || 0);
        }
        assert_eq!((engine.counters().misses, engine.cache.len() as u64), (misses, misses), "{kind:?}");
    }
}
