// SPDX-License-Identifier: Apache-2.0
//! `chip-plan` and `chip-lookup`: how long a plan takes, how fast packets go through the model's tables.
use crate::{Context, Error, Goal, Report};
use chip::model::alpm;
use chip::model::key::{Address, BITS};
use chip::model::routes::Routes;
use chip::model::vms::{Form, Vms};
use chip::model::workload::{address, Size, Workload};
use chip::plan::{plan as make, Request};
use chip::technique::Load;
use rand::{RngExt, SeedableRng};
use rand_xoshiro::SplitMix64;
use std::time::Instant;

fn tofino() -> Result<chip::Profile, Error> {
    let text = chip::profile::built_in("tofino1").unwrap_or_default();
    chip::profile::parse("tofino1.yaml", text).map_err(Error::failed("reading the profile"))
}

/// `chip-plan`.
pub fn plan(context: &Context) -> Result<Report, Error> {
    let profile = tofino()?;
    let load = Load { routes4: 750_000, routes6: 250_000, vms4: 750_000, vms6: 250_000, vnis: 100_000, ncs: 32_768 };
    let techniques = chip::sailfish::techniques().pop().map_or(chip::technique::Techniques::NONE, |t| t.1);
    let (mut samples, mut verified) = (Vec::new(), Vec::new());
    for n in 0..context.samples {
        context.say(&format!("chip-plan: sample {} of {}", n + 1, context.samples));
        let mut request = Request { load, best: true, cofilter: true, ..Request::sailfish(techniques) };
        let start = Instant::now();
        make(&profile, &request).map_err(Error::failed("the plan"))?;
        samples.push(start.elapsed().as_secs_f64());
        if n == 0 {
            request.verify = true;
            let start = Instant::now();
            let p = make(&profile, &request).map_err(Error::failed("the plan"))?;
            verified.push((
                start.elapsed().as_secs_f64(),
                p.best.iter().filter(|c| c.verified.is_some()).count(),
                p.best.len(),
            ));
        }
    }
    let mut report = Report::new("chip-plan", "s", samples, Some(Goal::AtMost(10.0)), "goal 10 s");
    for (seconds, built, of) in verified {
        report.detail("with_all_tables_built_s", seconds).detail("layouts_verified", built).detail("layouts", of);
    }
    Ok(report)
}

/// `chip-lookup`.
pub fn lookup(context: &Context) -> Result<Report, Error> {
    let size = Size { vnis: 32_768, routes: 114_688, vms: 524_288, ipv6_percent: 25 };
    let w = Workload::new(size, context.seed);
    let shape = alpm::Shape { partitions: 1024, subtrees: 8, bucket: 124, pivot_min: 0, window: BITS };
    let lengths =
        Routes::lengths(15_100, 3, 1024, &w.routes, context.seed).map_err(Error::failed("routes by length"))?;
    let alpm = Routes::alpm(shape, &w.routes).map_err(Error::failed("ALPM"))?;
    let mut vms = Vms::new(Form::Digest { bits: 20, pack: 5 }, 573_440, context.seed);
    for (key, value) in &w.vms {
        vms.insert(*key, *value).map_err(Error::failed("the VM-NC table"))?;
    }
    let mut rng = SplitMix64::seed_from_u64(context.seed);
    let packets: Vec<(Address, Address)> = (0..1_000_000)
        .map(|_| {
            let r = &w.routes[rng.random_range(0..w.routes.len() as u64) as usize];
            let to = Address { vni: r.vni, v6: r.v6, addr: address(r.vni, r.v6, &mut rng) };
            (to, w.vms[rng.random_range(0..w.vms.len() as u64) as usize].0)
        })
        .collect();
    let rate = |routes: &Routes| {
        let start = Instant::now();
        let found: u64 = packets
            .iter()
            .map(|(to, vm)| u64::from(routes.lookup(to).unwrap_or(0)) ^ u64::from(vms.lookup(vm).unwrap_or(0)))
            .fold(0, u64::wrapping_add);
        std::hint::black_box(found);
        packets.len() as f64 / start.elapsed().as_secs_f64() / 1e6
    };
    let (mut samples, mut by_alpm) = (Vec::new(), Vec::new());
    for n in 0..context.samples {
        context.say(&format!("chip-lookup: sample {} of {}", n + 1, context.samples));
        samples.push(rate(&lengths));
        by_alpm.push(rate(&alpm));
    }
    let mut report =
        Report::new("chip-lookup", "Mpps", samples, Some(Goal::AtLeast(1.0)), "goal 1 million packets a second");
    report.detail_median("with_alpm_mpps", &by_alpm).detail("routes", size.routes).detail("vms", size.vms);
    Ok(report)
}
