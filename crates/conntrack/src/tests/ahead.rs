// SPDX-License-Identifier: Apache-2.0
//! What is asked for ahead is what is read then: memory whose loading is begun too early, too late or elsewhere costs what it was to save.

use super::*;
use memory::testing::prefetched;

fn place<T>(of: &T) -> usize {
    std::ptr::from_ref(of) as usize
}

#[test]
fn buckets_and_records_are_asked_for_before_they_are_read() {
    let t = tracker(Options { sessions: 700_000, initial: 64, ..Options::default() });
    let new: Vec<NewSession> = (0..200).map(|n| udp(Vni(1), n, n as u16)).collect();
    let mut made = Vec::new();
    for new in &new {
        let (shared, _) = t.shared_for_tests();
        let mut at = None;
        let prefetched = prefetched(|| at = t.create(new, S, &mut never).ok());
        let lines = shared.lines;
        for hash in [new.inner.hash(shared.salt()), new.outer.hash(shared.salt())] {
            for line in crate::table::buckets_of(shared.root(0x18), hash) {
                assert!(prefetched.contains(&place(lines.at(line))), "a bucket of a new session");
            }
        }
        assert!(
            made.is_empty() || prefetched.contains(&place(lines.at(at.unwrap().0 + 1))),
            "the record of the next one"
        );
        made.push(at.unwrap());
    }
    let sessions = t.sessions();
    let guard = sessions.enter();
    for growing in [false, true] {
        if growing {
            t.keep_index_for_tests(1 << 20);
        }
        let (shared, _) = t.shared_for_tests();
        let line = |n: LineNo| place(shared.lines.at(n));
        let (index, old) = (shared.root(0x18), shared.root(0x20));
        assert_eq!(old != 0, growing);
        for (n, new) in new.iter().enumerate() {
            for (hash, candidates) in [
                (new.inner.hash(shared.salt()), guard.candidates_inner(&new.inner)),
                (new.outer.hash(shared.salt()), guard.candidates_outer(&new.outer)),
            ] {
                let [a, b] = crate::table::buckets_of(index, hash).map(line);
                let [c, d] = crate::table::buckets_of(old, hash).map(line);
                let (all, first) = if growing { (vec![a, b, c, d], vec![a, c]) } else { (vec![a, b], vec![a]) };
                assert_eq!(prefetched(|| guard.prefetch(&candidates)), all);
                assert_eq!(prefetched(|| guard.prefetch_first(&candidates)), first);
                let mut found = false;
                let records = prefetched(|| found = guard.prefetch_records(&candidates));
                assert!(found && records.contains(&line(made[n].0)), "session {n}");
            }
            let other = udp(Vni(2), n as u32, 9).inner;
            let candidates = guard.candidates_inner(&other);
            let mut found = true;
            let seconds = prefetched(|| found = guard.prefetch_records(&candidates));
            if !found {
                let hash = other.hash(shared.salt());
                let old = if growing { crate::table::buckets_of(old, hash)[1] } else { LineNo(0) };
                assert_eq!(seconds, [line(crate::table::buckets_of(index, hash)[1]), line(old)]);
            }
        }
    }
}

#[test]
fn tenants_and_vms_are_asked_for_before_a_session_is_counted() {
    let quotas = crate::quota::Quotas::new(5, TenantLimits::default());
    let vm = |n: u32| crate::quota::vm_of(Vni(7), std::net::IpAddr::V4(n.into()));
    let tenant = quotas.tenant(Vni(7));
    (0..600).for_each(|n| quotas.adopt(tenant, &vm(n), true, false));
    let mut bucket = 0;
    for n in 0..600 {
        let all = prefetched(|| quotas.prefetch(&vm(n)));
        assert_eq!(all[1..], [place(tenant), place(tenant) + 64]);
        assert_eq!(prefetched(|| quotas.prefetch_vm(&vm(n))), all[..1]);
        bucket += u32::from(Some(all[0]) == quotas.place_for_tests(&vm(n)));
    }
    assert!(bucket > 400, "{bucket} of 600 lie where they are asked for");
    assert_eq!(prefetched(|| quotas.prefetch_tenant(Vni(7))), [place(tenant)]);
    assert!(prefetched(|| quotas.prefetch_tenant(Vni(8))).is_empty());
    assert_eq!(prefetched(|| quotas.prefetch(&crate::quota::vm_of(Vni(8), std::net::IpAddr::V4(1.into())))).len(), 1);
}

/// While sessions end by time, each one's record, tenant, buckets and VM were asked for some sessions earlier.
#[test]
fn what_ends_by_time_is_asked_for_ahead() {
    let t = tracker(Options { sessions: 4096, initial: 64, ..Options::default() });
    let new: Vec<NewSession> = (0..300).map(|n| udp(Vni(1 + n % 3), n, n as u16)).collect();
    let made: Vec<SessionRef> = new.iter().map(|new| t.create(new, S, &mut never).unwrap()).collect();
    let (shared, _) = t.shared_for_tests();
    let (lines, salt, index) = (shared.lines, shared.salt(), shared.root(0x18));
    let mut ended: Vec<(InnerKey, usize)> = Vec::new();
    let all = prefetched(|| {
        for now in 2..50 {
            t.expire(now * S, 10_000, &mut |e| ended.push((e.session.inner, memory::testing::prefetched_so_far())));
        }
    });
    assert_eq!(ended.len(), 300);
    for (inner, so_far) in ended {
        let n = new.iter().position(|new| new.inner == inner).unwrap();
        let before = &all[..so_far];
        assert!(before.contains(&place(lines.at(made[n].0))), "record of {n}");
        for hash in [inner.hash(salt), new[n].outer.hash(salt)] {
            assert!(before.contains(&place(lines.at(crate::table::buckets_of(index, hash)[0]))), "bucket of {n}");
        }
    }
}
