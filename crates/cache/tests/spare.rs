// SPDX-License-Identifier: Apache-2.0
//! Entries that are the first to go.
use cache::ltm::{Eviction, Ltm, Request, Unchanged};
use cache::segment::{Tags, Walk};
use pipeline::{Field, Key, Machine};

#[test]
fn spare_entries_go_first_until_somebody_uses_them() {
    let text: String = (0..8).map(|n| format!("in_port={n} actions=output:9\n")).collect();
    let pipeline = pipeline::text::import(&text, &Default::default()).unwrap().pipeline;
    let key = |port: u128| {
        let mut key = Key::default();
        key.set(Field::InPort, port);
        key
    };
    for pooled in [true, false] {
        let mut tags = Tags::default();
        let mut ltm = match pooled {
            true => Ltm::pooled(2, 4, Eviction::Lru, 1),
            false => Ltm::new(1, 4, Eviction::Lru, 1),
        };
        let find = |ltm: &mut Ltm, tags: &mut Tags, port: u128| {
            let tag = tags.of_table(0).unwrap();
            let request = Request { tag, key: &key(port), now: 0 };
            ltm.lookup(request, &mut Machine::default(), &mut Unchanged(pipeline.version()), &mut Vec::new())
        };
        let put = |ltm: &mut Ltm, tags: &mut Tags, port: u128, spare: bool| {
            let traversal = pipeline.pass(&pipeline::Entry::table(0), &key(port));
            let segment = Walk::new(&traversal).whole(pipeline.version(), tags).unwrap();
            ltm.install(&[segment], 0, spare, 0)
        };
        // Two others are older than the spare ones. Lookups count as time.
        (0..4).for_each(|_| assert!(!find(&mut ltm, &mut tags, 7)));
        for (port, spare) in [(2, false), (3, false), (0, true), (1, true)] {
            assert!(!find(&mut ltm, &mut tags, port));
            assert_eq!(put(&mut ltm, &mut tags, port, spare), Some(1));
        }
        assert!(ltm.len() == 4 && find(&mut ltm, &mut tags, 1));
        // A new one takes the place of the spare one that nobody used, and then of the oldest; in a full table none is spare.
        for (port, gone) in [(4, 0), (5, 2)] {
            assert!(!find(&mut ltm, &mut tags, port));
            put(&mut ltm, &mut tags, port, port == 5);
            assert!(!find(&mut ltm, &mut tags, gone) && find(&mut ltm, &mut tags, 1), "pooled {pooled}, port {port}");
        }
        put(&mut ltm, &mut tags, 6, false);
        assert!(find(&mut ltm, &mut tags, 5) && !find(&mut ltm, &mut tags, 3));
    }
}
