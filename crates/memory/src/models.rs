// SPDX-License-Identifier: Apache-2.0
//! Publication and grace periods under loom, which runs each model in every order that the memory model allows.
//!
//! The models call the functions that lines and readers use. Each has a twin that leaves out the one thing that it is about, and must fail.

use crate::sync::{observe, publish, AtomicU64, Ordering};
use crate::Readers;
use loom::sync::Arc;
use loom::thread;

/// What a line holds that was taken into use again.
const REUSED: u64 = 0xdead;

/// A writer fills a line and publishes its number; a reader that finds the number reads the line.
fn publication(store: fn(&AtomicU64, u64)) {
    loom::model(move || {
        let shared = Arc::new((AtomicU64::new(0), AtomicU64::new(0)));
        let writer = thread::spawn({
            let shared = shared.clone();
            move || {
                let (link, line) = &*shared;
                line.store(7, Ordering::Relaxed);
                store(link, 1);
            }
        });
        let (link, line) = &*shared;
        if observe(link) == 1 {
            assert_eq!(line.load(Ordering::Relaxed), 7, "a reader sees a line that is not filled yet");
        }
        writer.join().unwrap();
    });
}

#[test]
fn a_reader_that_finds_a_line_finds_it_filled() {
    publication(publish);
}

#[test]
#[should_panic(expected = "a line that is not filled yet")]
fn a_relaxed_store_does_not_publish() {
    publication(|word, value| word.store(value, Ordering::Relaxed));
}

/// A writer unlinks a line, waits, and uses it again; a reader reads it meanwhile.
fn reuse(wait: fn(&Readers)) {
    loom::model(move || {
        let shared = Arc::new((Readers::default(), AtomicU64::new(1), AtomicU64::new(7)));
        let slot = shared.0.claim().unwrap();
        let writer = thread::spawn({
            let shared = shared.clone();
            move || {
                let (readers, link, line) = &*shared;
                publish(link, 0);
                wait(readers);
                line.store(REUSED, Ordering::Relaxed);
            }
        });
        let (readers, link, line) = &*shared;
        readers.enter(slot);
        if observe(link) == 1 {
            assert_ne!(line.load(Ordering::Relaxed), REUSED, "a reader sees a line that is used again");
        }
        readers.leave(slot);
        writer.join().unwrap();
    });
}

#[test]
fn no_line_is_used_again_before_its_readers_have_left() {
    reuse(Readers::wait);
}

#[test]
#[should_panic(expected = "a line that is used again")]
fn without_a_grace_period_a_reader_sees_it() {
    reuse(|_| {});
}
