// SPDX-License-Identifier: Apache-2.0
//! A controller and a hundred nodes that follow it: the smaller edition of `region-crowd`.

use bench::region::crowd::{changes, current, gather};
use bench::region::{documents, names, tunny, Rig};
use bench::workload::Workload;
use tokio::task::LocalSet;

#[test]
fn a_hundred_nodes_follow_and_none_misses_a_change() {
    if let Err(e) = tunny() {
        return skip::test(e, "build all programs: `cargo build --bins`");
    }
    let clusters: Vec<(String, usize)> = (0..10).map(|n| (format!("c{n}-"), 10)).collect();
    let names: Vec<String> = names(&clusters).collect();
    let rig = Rig::begin(&clusters).unwrap();
    let workload = Workload::region(40, 4, 8, 1);
    rig.apply(documents(&workload, &clusters)).unwrap();
    names.iter().for_each(|name| rig.credential(name).unwrap());
    let local = LocalSet::new();
    let work = async {
        let heard = gather(&rig, &names).await.unwrap();
        current(&rig.operator, names.len()).await.unwrap();
        // Each got what there was, and is told nothing of other clusters' changes.
        assert_eq!((heard.snapshots.get(), heard.changes.get()), (100, 0));
        let took = changes(&rig.operator, &workload, 200, 200).await.unwrap();
        current(&rig.operator, names.len()).await.unwrap();
        assert_eq!((took.len(), heard.ended.get(), heard.snapshots.get()), (200, 0, 100));
        // Changes that came together are one.
        let told = heard.changes.get();
        assert!((100..=2000).contains(&told), "{told}");
    };
    rig.runtime.block_on(local.run_until(work));
}
