// SPDX-License-Identifier: Apache-2.0
//! `agent-remote`: connections that begin through an agent on another host, with packets that wait by themselves, against one at a time.
//!
//! A whole agent (`tunny agent`: TCP, seals, records in a file) and a node's side of it, in this process over the loopback interface. A
//! connection is SYN, SYN-ACK, ACK: three packets, each of which waits for its answer, three round trips. In the design that was beaten a worker
//! waits for each answer before it takes the next packet; in the one that was built packets wait, and the worker goes on. Both in one run, in
//! turns. Beside them the agent in the node's process.
use crate::report::round;
use crate::{Context, Error, Goal, Report};
use abi::Vni;
use conntrack_compact::message::Begin;
use conntrack_compact::*;
use node::agent::link::{AgentLink, Hearers, Target};
use node::agent::serve::{Listening, Options};
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Connections of a run that waits for each answer, and of one that does not.
const ALONE: u32 = 3_000;
const TOGETHER: u32 = 60_000;
/// Connections that begin at a time, of eight tenants.
const AT_A_TIME: usize = 1024;
const TENANTS: u32 = 8;
const ROUNDS: usize = 5;

fn packet(i: u32, step: usize) -> Control {
    let key = Key::v4(Vni(1 + i % TENANTS), 6, i, (i >> 16) as u16, 9, 443);
    let (kind, from) =
        [(Kind::Syn, Direction::Out), (Kind::SynAck, Direction::In), (Kind::Ack, Direction::Out)][step.min(2)];
    Control { key, kind, from }
}

/// Rounds trips of so many packets, each of which waits for the last one's answer: connections a second.
fn alone(remote: &Remote, completions: &Arc<Completions>, from: u32) -> Result<f64, Error> {
    let begun = Instant::now();
    for i in from..from + ALONE {
        for step in 0..3 {
            request(remote, completions, i, step)?;
            while completions.take(1).is_empty() {
                std::hint::spin_loop();
            }
        }
    }
    Ok(f64::from(ALONE) / begun.elapsed().as_secs_f64())
}

fn request(remote: &Remote, completions: &Arc<Completions>, i: u32, step: usize) -> Result<u64, Error> {
    let begin = if step == 0 { Begin::Allowed } else { Begin::Never };
    let refused = |why| Error::Failed { what: "asking the agent".into(), why: format!("{why:?}") };
    remote.request(completions, &packet(i, step), begin, false).map_err(refused)
}

/// The same with many connections under way: connections a second.
fn together(remote: &Remote, completions: &Arc<Completions>, from: u32) -> Result<f64, Error> {
    let (begun, end) = (Instant::now(), from + TOGETHER);
    let (mut next, mut done) = (from, 0);
    let mut waiting = std::collections::HashMap::new();
    while done < TOGETHER {
        while waiting.len() < AT_A_TIME && next < end {
            waiting.insert(request(remote, completions, next, 0)?, (next, 0));
            next += 1;
        }
        for (ticket, answer) in completions.take(AT_A_TIME) {
            let Some((i, step)) = waiting.remove(&ticket) else { continue };
            if answer.outcome != Outcome::Pass {
                return Err(Error::Failed { what: "a connection".into(), why: format!("{:?}", answer.outcome) });
            }
            match step {
                2 => done += 1,
                _ => {
                    waiting.insert(request(remote, completions, i, step + 1)?, (i, step + 1));
                }
            }
        }
    }
    Ok(f64::from(TOGETHER) / begun.elapsed().as_secs_f64())
}

/// With the agent in this process.
fn here(spec: Spec, seed: u64) -> Result<f64, Error> {
    let opened = Shared::open(&HeapSlots::default(), spec, seed, Timeouts::default());
    let (shared, _) = opened.map_err(Error::failed("making a table"))?;
    let begun = Instant::now();
    for i in 0..TOGETHER {
        (0..3).for_each(|step| {
            shared.control(&packet(i, step), false, 1_000_000_000, &mut |_| true);
        });
    }
    Ok(f64::from(TOGETHER) / begun.elapsed().as_secs_f64())
}

/// `agent-remote`.
pub fn agent_remote(context: &Context) -> Result<Report, Error> {
    let dir = tempfile::tempdir().map_err(Error::failed("making a folder"))?;
    let key = dir.path().join("key");
    std::fs::write(&key, [b'k'; 64])
        .and_then(|()| std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)))
        .map_err(Error::failed("writing a key"))?;
    let (spec, stop) = (Spec::new(TableKind::Digest, 1 << 20, 1024), Arc::<AtomicBool>::default());
    let listen = ([127, 0, 0, 1], 0).into();
    let options = Options {
        listen,
        key: key.clone(),
        records: dir.path().join("records"),
        state: None,
        connections: 1 << 22,
        nodes: 1,
    };
    let listening = Listening::new(options, stop.clone()).map_err(Error::failed("listening"))?;
    let address = listening.address().map_err(Error::failed("listening"))?;
    let serving = std::thread::spawn(move || listening.run());
    let slots: Arc<dyn Backing> = Arc::new(HeapSlots::default());
    let opened = Shared::open_remote(&slots, ("bench", spec), context.seed, Timeouts::default(), Vec::new());
    let shared = opened.map_err(Error::failed("making a table"))?;
    let lacks = || Error::Failed { what: "the agent".into(), why: "it did not come up".into() };
    let remote = shared.remote().ok_or_else(lacks)?.clone();
    let hearers = Hearers { ends: Box::new(|_| ()), up: Box::new(|| ()) };
    let link =
        AgentLink::start(Target { address, key }, remote.clone(), hearers).map_err(Error::failed("connecting"))?;
    if !remote.wait_up(Duration::from_secs(10)) {
        return Err(lacks());
    }
    let completions = Arc::new(Completions::default());
    let (mut ratios, mut slow, mut fast, mut compared) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut from = 0;
    for round in 0..ROUNDS {
        context.say(&format!("agent-remote: round {} of {ROUNDS}", round + 1));
        slow.push(alone(&remote, &completions, from)?);
        fast.push(together(&remote, &completions, from + ALONE)?);
        compared.push(here(spec, context.seed)?);
        ratios.push(fast[round] / slow[round]);
        from += ALONE + TOGETHER;
    }
    drop(link);
    stop.store(true, Ordering::Release);
    // What it found wrong was said.
    let _ = serving.join();
    let goal = Some(Goal::AtLeast(3.0));
    let mut report =
        Report::new("agent-remote", "ratio", ratios, goal, "one packet at a time, each waiting for the agent's answer");
    let rounded = |list: &[f64]| list.iter().map(|n| round(*n)).collect::<Vec<_>>();
    report
        .detail("round_trips_a_connection", 3)
        .detail("connections_a_second_one_at_a_time", rounded(&slow))
        .detail("connections_a_second_many_at_a_time", rounded(&fast))
        .detail("connections_a_second_agent_in_the_process", rounded(&compared))
        .detail("connections_at_a_time", AT_A_TIME);
    Ok(report)
}
