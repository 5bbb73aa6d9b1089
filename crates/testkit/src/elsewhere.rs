// SPDX-License-Identifier: Apache-2.0
//! An agent on another host, without the host: a thread that has its records, and the messages as they would go over the wire.

use conntrack_compact::message::{Messages, Request};
use conntrack_compact::remote::EndsLog;
use conntrack_compact::{HeapSlots, Host, Remote, Timeouts};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// Turns in which the hand of an agent has come round.
const ROUND: u64 = 101;

/// The thread. It ends when this is dropped.
pub struct Elsewhere {
    stop: Arc<AtomicBool>,
    now: Arc<AtomicU64>,
    turns: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Elsewhere {
    /// The agent of this node; when it returns, it answers.
    pub fn start(remote: Arc<Remote>, now: u64) -> Elsewhere {
        let (stop, turns) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let now = Arc::new(AtomicU64::new(now));
        let (ending, clock, due, node) = (stop.clone(), now.clone(), turns.clone(), remote.clone());
        let thread = std::thread::spawn(move || serve(&node, &ending, &clock, &due));
        assert!(remote.wait_up(Duration::from_secs(20)), "an agent in this process did not come up");
        Elsewhere { stop, now, turns, thread: Some(thread) }
    }

    /// What its clock says from now on.
    pub fn set_time(&self, now: u64) {
        self.now.store(now, Ordering::Release);
    }

    /// Ends everything that is due; when it returns, the node knows.
    pub fn expire(&self) {
        self.turns.store(ROUND, Ordering::Release);
        while self.turns.load(Ordering::Acquire) > 0 {
            std::thread::yield_now();
        }
    }
}

impl Drop for Elsewhere {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            // What it found wrong was said by its panic.
            let _ = thread.join();
        }
    }
}

fn serve(remote: &Remote, stop: &AtomicBool, now: &AtomicU64, turns: &AtomicU64) {
    let (backing, ends): (_, EndsLog) = (HeapSlots::default(), Box::new(|_| ()));
    let mut host: Option<Host> = None;
    remote.connected();
    while !stop.load(Ordering::Acquire) {
        let chunk = remote.pop(Duration::from_micros(200)).unwrap_or_default();
        // The time is told before what is asked at it.
        let due = turns.load(Ordering::Acquire);
        let now = now.load(Ordering::Acquire);
        let mut messages = Messages::of(&chunk);
        while let Some(request) = messages.next_request().expect("a message") {
            match (&mut host, request) {
                (None, Request::Open { spec, timeouts, .. }) => {
                    let opened = Host::open(&backing, spec, 1, Timeouts::default()).expect("records");
                    host.insert(opened).connected(timeouts);
                }
                (host, request) => host.as_mut().expect("it was opened").request(&request, now),
            }
        }
        let Some(host) = &mut host else { continue };
        (0..due).for_each(|_| host.turn(now));
        while let Some(chunk) = host.pop() {
            remote.receive(&chunk, &ends).unwrap_or_else(|e| panic!("{e}"));
        }
        if due > 0 {
            turns.store(0, Ordering::Release);
        }
    }
    remote.disconnected();
}
