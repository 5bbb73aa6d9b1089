// SPDX-License-Identifier: Apache-2.0
//! `tunny-lab sim`: a region simulated, with faults, and what is not as it must be.

use anyhow::bail;
use commandline::output::{print, show, Format, Patience};
use serde::Serialize;
use sim::{plan_of, run as run_plan, run_full, shrink, Counts, Full, Item, Outcome, Size};
use std::collections::BTreeSet;
use std::process::ExitCode;
use std::str::FromStr;
use std::time::Instant;

/// A region simulated: the controller's own decisions against simulated nodes, hosts, clocks, network and store, with faults.
///
/// Tenants come, grow, move and go; nodes, controllers, clusters and the store fail; nodes lie, are slow and damaged; clocks jump; versions are upgraded in
/// waves. Checkers that share no code with the controller say what is not as it must be: a tenant unserved, a change lost, an entry on a wrong cluster, a public
/// port given twice, no rest after the last fault. All comes of the seed. A seed that fails is shortened to the items of its plan that are needed, and can be
/// run again by the command that is printed. Exit status 1 if a seed fails.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// One seed.
    #[arg(long, conflicts_with = "seeds")]
    seed: Option<u64>,
    /// Seeds, from the first to the last one.
    #[arg(long, value_name = "N..M", default_value = "1..100")]
    seeds: Seeds,
    /// Only these items of the plan, by their numbers, with commas between.
    #[arg(long, value_name = "NUMBERS", value_delimiter = ',', requires = "seed")]
    only: Option<Vec<usize>>,
    /// Print all that happens.
    #[arg(long, requires = "seed")]
    log: bool,
    /// Do not shorten a plan that fails.
    #[arg(long)]
    no_shrink: bool,
    /// Clusters, in place of as many as the seed says.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=64))]
    clusters: Option<u16>,
    /// Nodes of each cluster.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=16))]
    nodes: Option<u16>,
    /// Controllers.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=9))]
    controllers: Option<u16>,
    /// Hosts.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=64))]
    hosts: Option<u16>,
    /// Tenants.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    tenants: Option<u32>,
    /// Requests; of a region of full size those of a day.
    #[arg(long)]
    requests: Option<usize>,
    /// Faults; of a region of full size those of a day.
    #[arg(long)]
    faults: Option<usize>,
    /// Seconds in which these begin.
    #[arg(long, value_parser = clap::value_parser!(u64).range(60..=31_536_000))]
    seconds: Option<u64>,
    /// A region of full size instead: a million VPCs, VMs and routes in twenty clusters, for a month.
    #[arg(long, conflicts_with_all = ["seeds", "hosts", "controllers", "seconds"])]
    full: bool,
    /// Days of a region of full size.
    #[arg(long, requires = "full", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=366))]
    days: u64,
}

/// Seeds from one to another.
#[derive(Clone, Debug)]
struct Seeds(u64, u64);

impl FromStr for Seeds {
    type Err = String;

    fn from_str(text: &str) -> Result<Seeds, String> {
        let wrong = || format!("`{text}` is no range of seeds: write it as 1..100");
        let (first, last) = text.split_once("..").ok_or_else(wrong)?;
        let number = |text: &str| text.parse::<u64>().map_err(|_| wrong());
        let (first, last) = (number(first)?, number(last)?);
        if first > last {
            return Err(wrong());
        }
        Ok(Seeds(first, last))
    }
}

/// A seed that fails.
#[derive(Debug, Serialize)]
struct Failure {
    seed: u64,
    at_s: f64,
    checker: &'static str,
    what: String,
    /// The items of the plan that are needed, and of how many.
    items: Vec<String>,
    of: usize,
    again: String,
}

/// What came of all seeds.
#[derive(Debug, Serialize)]
struct Answer {
    seeds: u64,
    counts: Counts,
    seconds: f64,
    failures: Vec<Failure>,
}

impl Args {
    /// The region of a seed.
    fn size(&self, seed: u64) -> Size {
        let own = Size::small(seed);
        Size {
            clusters: self.clusters.map_or(own.clusters, usize::from),
            nodes: self.nodes.map_or(own.nodes, usize::from),
            controllers: self.controllers.map_or(own.controllers, usize::from),
            hosts: self.hosts.map_or(own.hosts, usize::from),
            tenants: self.tenants.unwrap_or(own.tenants),
            requests: self.requests.unwrap_or(own.requests),
            faults: self.faults.unwrap_or(own.faults),
            seconds: self.seconds.unwrap_or(own.seconds),
        }
    }

    /// The options that make another region than the seed's own.
    fn options(&self) -> String {
        let numbers = [
            ("clusters", self.clusters.map(u64::from)),
            ("nodes", self.nodes.map(u64::from)),
            ("controllers", self.controllers.map(u64::from)),
            ("hosts", self.hosts.map(u64::from)),
            ("tenants", self.tenants.map(u64::from)),
            ("requests", self.requests.map(|n| n as u64)),
            ("faults", self.faults.map(|n| n as u64)),
            ("seconds", self.seconds),
        ];
        numbers.iter().filter_map(|(name, n)| Some(format!(" --{name} {}", (*n)?))).collect()
    }

    /// A region of full size.
    fn full(&self) -> Full {
        let own = Full::default();
        Full {
            tenants: self.tenants.unwrap_or(own.tenants),
            clusters: self.clusters.map_or(own.clusters, usize::from),
            nodes: self.nodes.map_or(own.nodes, usize::from),
            requests: self.requests.map_or(own.requests, |n| n as u64),
            faults: self.faults.map_or(own.faults, |n| n as u64),
            days: self.days,
            ..own
        }
    }

    /// A plan as far as it is wanted.
    fn wanted(&self, mut plan: Vec<Item>) -> Vec<Item> {
        if let Some(only) = &self.only {
            plan.retain(|item| only.contains(&item.number));
        }
        plan
    }

    /// What is told of a seed that fails.
    fn failure(&self, size: &Size, plan: &[Item], outcome: Outcome) -> Option<Failure> {
        let seed = outcome.seed;
        let (shortest, outcome) = match self.no_shrink {
            true => (plan.to_vec(), outcome),
            false => shrink(seed, size, plan, None),
        };
        let violation = outcome.violation?;
        let numbers: BTreeSet<usize> = shortest.iter().map(|item| item.number).collect();
        let list = numbers.iter().map(|n| n.to_string()).collect::<Vec<_>>().join(",");
        Some(Failure {
            seed,
            at_s: violation.at as f64 / 1000.0,
            checker: violation.checker,
            what: violation.what,
            items: shortest.iter().map(|item| item.to_string()).collect(),
            of: plan.len(),
            again: format!("tunny-lab sim --seed {seed}{} --only {list} --no-shrink --log", self.options()),
        })
    }
}

/// Runs the command.
pub fn run(args: Args, format: Format) -> anyhow::Result<ExitCode> {
    if args.full {
        return run_whole(&args, format);
    }
    let (first, last) = args.seed.map_or((args.seeds.0, args.seeds.1), |seed| (seed, seed));
    let begun = Instant::now();
    let waiting = Patience::new("simulating");
    let (mut counts, mut failures) = (Counts::default(), Vec::new());
    for seed in first..=last {
        let size = args.size(seed);
        let plan = args.wanted(plan_of(seed, &size));
        if plan.is_empty() && args.only.is_some() {
            bail!("the plan of seed {seed} has none of these items");
        }
        let outcome = run_plan(seed, &size, &plan, None, args.log);
        counts.add(&outcome.counts);
        if let Some(log) = &outcome.log {
            print(log)?;
        }
        if outcome.violation.is_some() {
            failures.extend(args.failure(&size, &plan, outcome));
        }
    }
    drop(waiting);
    let failed = !failures.is_empty();
    let answer = Answer { seeds: last - first + 1, counts, seconds: begun.elapsed().as_secs_f64(), failures };
    show(format, &answer, text)?;
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// A region of full size: one seed, and a plan that fails is not shortened, since each run takes a while.
fn run_whole(args: &Args, format: Format) -> anyhow::Result<ExitCode> {
    let (full, seed, begun) = (args.full(), args.seed.unwrap_or(1), Instant::now());
    let plan = args.wanted(full.plan(seed));
    let waiting = Patience::new("simulating");
    let outcome = run_full(seed, &full, &plan, args.log);
    drop(waiting);
    if let Some(log) = &outcome.log {
        print(log)?;
    }
    let seconds = begun.elapsed().as_secs_f64();
    let failures = outcome.violation.iter().map(|violation| Failure {
        seed,
        at_s: violation.at as f64 / 1000.0,
        checker: violation.checker,
        what: violation.what.clone(),
        items: Vec::new(),
        of: plan.len(),
        again: format!("tunny-lab sim --full --seed {seed}{} --days {} --log", args.options(), args.days),
    });
    let failures: Vec<Failure> = failures.collect();
    let failed = !failures.is_empty();
    show(format, &Answer { seeds: 1, counts: outcome.counts, seconds, failures }, text)?;
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// What came of all seeds, for people.
fn text(answer: &Answer) -> String {
    let Counts { events, requests, refused, changes, terms, moves, snapshots, reports, faults } = answer.counts;
    let mut text = String::new();
    for failure in &answer.failures {
        let Failure { seed, at_s, checker, what, items, of, again } = failure;
        text += &format!("Seed {seed} fails at {at_s:.3} s, {checker}: {what}\n");
        if !items.is_empty() {
            text += &format!("  {} of {of} items are needed:\n", items.len());
        }
        items.iter().for_each(|item| text += &format!("    {item}\n"));
        text += &format!("  again: {again}\n");
    }
    let failed = answer.failures.len();
    text + &format!(
        "{} seeds in {:.1} s, {failed} failed: {events} events, {requests} requests done and {refused} refused, {faults} faults, {changes} changes, {terms} \
         terms, {moves} moves, {snapshots} snapshots, {reports} reports\n",
        answer.seeds, answer.seconds
    )
}
