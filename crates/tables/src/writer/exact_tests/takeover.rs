// SPDX-License-Identifier: Apache-2.0
//! Taking over a memory in which something was left undone, or which contradicts itself.

use super::*;
use crate::LineMemory;

/// What is put right when a memory is taken over: marks by the generation, words of nobody, cells of nobody, twins.
#[test]
fn a_writer_puts_right_what_another_one_left() {
    let mut w = writer();
    let vms: Vec<VmSpec> = (1..7).map(|n| vm(n, 1)).chain((7..13).map(|n| vm6(n, 3))).collect();
    w.commit(&Commit {
        nc_add: (1..5).map(nc).collect(),
        ..of(vec![new(Vni(10), vms), new(Vni(20), vec![metered(vm(1, 2))])])
    })
    .unwrap();
    w.commit(&of(vec![TenantChange { vm_add: vec![vm(20, 1), vm(21, 1)], ..on(Vni(10)) }])).unwrap();
    w.settle();
    let generation = u64::from(crate::reader::generation_of(w.tenants[&Vni(10)].roots));
    assert_eq!(generation, 1);
    let used = w.store.arena.used();
    let other = generation ^ 3;
    let marks = [
        KEY_VALID | KEY_ADDING | generation << 3,
        KEY_VALID | KEY_ADDING | other << 3,
        KEY_VALID | KEY_DYING | generation << 3,
        KEY_VALID | KEY_DYING | other << 3,
        0,
        KEY_VALID,
    ];
    let stays = [true, false, false, true, false, true];
    for (n, mark) in (1..7u32).zip(marks) {
        let place = w.tables.vm4.find4(&w.store, Vni(10), 0x0a00_0000 + n, |_| true).unwrap().0;
        w.tables.vm4.set_state(&w.store, place, mark);
        let place = w.tables.vm6.find6(&w.store, Vni(10), (0x2001 << 48, u64::from(n) + 6), |_| true).unwrap().0;
        w.tables.vm6.set_state(&w.store, place, mark);
    }
    // Of a VPC that there is not, and of nobody: entries, members, meters.
    w.tables
        .vm4
        .insert4(
            &mut w.store,
            crate::reader::vm4_key(Vni(99), 5) | KEY_VALID,
            &crate::VmEntry { mac: 1, vm: VmId(5000), nc: NcId(1), flags: 0 },
        )
        .unwrap();
    w.tables.members.put_word(&mut w.store, 99 << 40 | 0xc0a8_0001 << 8 | MEMBER_V4).unwrap();
    w.tables.members.put_word(&mut w.store, 10 << 40 | 0xc0a8_0077 << 8 | MEMBER_V4).unwrap();
    w.tables.members.put_word(&mut w.store, 10 << 40 | 777 << 8 | MEMBER_V6).unwrap();
    w.tables.members.put_word(&mut w.store, 20 << 40 | 0xc0a8_0001 << 8 | MEMBER_V4).unwrap();
    let block = w.store.arena.alloc(2).unwrap();
    w.tables.vm_meters.put_word(&mut w.store, 5000 << 32 | u64::from(block)).unwrap();
    // An NC that was taken out and not cleared, one that was filled and not published.
    let place = w
        .tables
        .nc6
        .find6(
            &w.store,
            Vni(0),
            halves(match nc(4) {
                IpAddr::V6(a) => a.to_bits(),
                _ => 0,
            }),
            |_| true,
        )
        .unwrap()
        .0;
    w.tables.nc6.set_state(&w.store, place, 0);
    let (line, (words, at)) = (w.nc_line(NcId(77)), w.nc_word(NcId(77)));
    w.store.lines.fill(line, &[7; 8]);
    w.store.lines.at(words).set(at, 5 << 32 | NC_VALID);
    // A second entry of a VPC, and a policy of which only the record knows.
    let entry = w.tables.tenants.tenant_at(&w.store.lines, w.tables.tenants.find_tenant(&w.store, Vni(20)).unwrap());
    w.tables
        .tenants
        .insert_tenant(&mut w.store, &crate::hashtable::TenantEntry { key: entry.key ^ 0x70, ..entry }, &[0; 6])
        .unwrap();
    let record = w.tenant_line(w.tenants[&Vni(10)].id);
    w.store.lines.at(record).set(7, 3 << 16 | POLICY_PICKUP);
    // Counts of ids in use stay, those of others go.
    let (mine, id) = (w.tenants[&Vni(10)].vms[&vm(6, 1).mac].id.0, w.tenants[&Vni(10)].id.0);
    let t = w.tables();
    [mine, mine ^ 1, mine ^ 64, 5000, 65_535].iter().for_each(|id| t.count_vm(VmId(*id), 100));
    [id, id ^ 1, id ^ 64].iter().for_each(|id| t.count_vpc(VpcId(*id), 1, 100));
    let mut w = attach(w).unwrap();
    for ((n, mark), stays) in (1..7u32).zip(marks).zip(stays) {
        let state = |found: Option<(_, u64)>| found.map(|f: (crate::hashtable::Place, u64)| f.1 & KEY_STATE_MASK);
        let want = stays.then_some(KEY_VALID);
        assert_eq!(state(w.tables.vm4.find4(&w.store, Vni(10), 0x0a00_0000 + n, |_| true)), want, "{mark:b}");
        assert_eq!(
            state(w.tables.vm6.find6(&w.store, Vni(10), (0x2001 << 48, u64::from(n) + 6), |_| true)),
            want,
            "{mark:b}"
        );
        assert_eq!(w.tenants[&Vni(10)].vms.contains_key(&vm(n, 1).mac), stays);
    }
    assert_eq!((w.tables.vm4.entries(), w.tables.vm6.entries(), w.vms), (3 + 2 + 1, 3, 9));
    assert_eq!((w.tables.members.entries(), w.tables.vm_meters.entries(), w.tables.nc6.entries()), (4, 1, 1));
    let ids: Vec<NcId> = (1..4).map(|n| w.ncs[&nc_key(nc(n))].id).collect();
    assert_eq!((w.ncs.len(), [1, 2, 3].map(|n| w.ncs[&nc_key(nc(n))].tenants)), (3, [2, 1, 1]));
    assert_eq!(
        (w.tenants[&Vni(20)].extra.clone(), w.tenants[&Vni(10)].extra.len(), w.tenants[&Vni(10)].members.clone()),
        (vec![ids[0]], 0, vec![(ids[0], 5), (ids[2], 3)])
    );
    assert_eq!(
        (w.tables.tenants.entries(), w.policy(Vni(10)), w.store.arena.used()),
        (2, Some(3 << 16 | POLICY_PICKUP), used)
    );
    let place = w.tables.tenants.find_tenant(&w.store, Vni(10)).unwrap();
    assert_eq!(w.tables.tenants.tenant_at(&w.store.lines, place).policy, (3 << 16 | POLICY_PICKUP) as u32);
    assert_eq!((w.store.lines.at(line).snapshot(), w.store.lines.at(words).word(at)), ([0; 8], 0));
    let counts = |id| t.vm_count(VmId(id)).packets;
    assert_eq!([mine, mine ^ 1, mine ^ 64, 5000, 65_535].map(counts), [1, 0, 0, 0, 0]);
    assert_eq!(
        [id, id ^ 1, id ^ 64]
            .map(|id| t.tenant_count(&crate::Tenant { key: u64::from(id) << 16, ..crate::Tenant::NONE }).packets),
        [1, 0, 0]
    );
    // The VM that has a meter has it still.
    assert!(w.dump(Vni(20)).unwrap().vms[0].metered && w.dump(Vni(10)).unwrap().vms.iter().all(|vm| !vm.metered));
    // Ids: those in use stay in use, all others are free, the NCs' from the first behind the last on.
    assert_eq!(w.nc_ids.content(), (4, vec![]));
    w.commit(&of(vec![TenantChange { vm_add: vec![vm(1, 1), vm(2, 1), vm6(8, 3)], ..on(Vni(10)) }])).unwrap();
    let mut all: Vec<VmId> = [10, 20].iter().flat_map(|vni| w.dump(Vni(*vni)).unwrap().vms).map(|vm| vm.id).collect();
    all.sort_unstable();
    all.dedup();
    assert_eq!((all.len(), w.vm_ids.content().2[0]), (w.vms as usize, all.len() as u32));
}

/// Next hops and groups of NCs and of the way to the Internet, found again with all that is known of them.
#[test]
fn a_writer_finds_groups_and_next_hops() {
    let mut w = small();
    let spec = |n: u32, addr| NexthopSpec {
        addr,
        ifindex: IfIndex(n),
        dmac: (n.is_multiple_of(2)).then_some(0x0200_0000_0000 | u64::from(n)),
        smac: 1,
        mtu: 1500,
    };
    let addrs = [v4(5), v4(u32::MAX), v6(0xfe80 << 112 | 1), v6(7 << 32), v6(1 << 64), v6(u128::MAX)];
    let hops: Vec<NexthopId> = addrs.iter().zip(1..).map(|(a, n)| w.put_nexthop(None, &spec(n, *a)).unwrap()).collect();
    let groups = [&hops[..2], &hops[1..5], &[hops[5]; 15][..], &[]].map(|m| w.set_group(None, m).unwrap());
    w.bind_nc_group(nc(1), Some(groups[0]));
    w.bind_nc_group(nc(2), Some(groups[0]));
    w.bind_nc_group(nc(4), Some(groups[1]));
    w.set_internet(Some(groups[1]), Some(groups[2]));
    // The last group leads nowhere: nobody would find it.
    assert!(w.remove_group(groups[3]));
    w.settle();
    let (was, used) = ((w.groups(), w.nexthops(), w.ncs()), w.store.arena.used());
    let mut w = attach(w).unwrap();
    assert_eq!(((w.groups(), w.nexthops(), w.ncs()), w.store.arena.used()), (was, used));
    assert_eq!(w.set_nexthop(&spec(3, addrs[2])).unwrap(), hops[2], "known by its neighbour");
    assert!(!w.remove_group(groups[2]) && !w.remove_nexthop(hops[5]));
    // What cannot be: a group or a next hop in lines that are something else.
    let line = |w: &Writer| w.store.root.get(root!(drops)) as u32;
    for (n, bad) in [(0, 0), (0, u32::MAX), (1, 0), (1, 1)] {
        let mut w = small();
        let hop = w.put_nexthop(None, &spec(1, v4(5))).unwrap();
        let group = w.set_group(None, &[hop]).unwrap();
        w.set_internet(None, Some(group));
        let bad = if bad == 0 {
            line(&w)
        } else if bad == 1 {
            group.0.into()
        } else {
            bad
        };
        match n {
            0 => w.store.root.set(root!(internet), u64::from(bad)),
            _ => w.store.lines.at(group.0).set_half(1, bad),
        }
        let e = attach(w).err();
        // A line that is taken is no next hop of its own: it is not taken again.
        assert_eq!(
            matches!(e, Some(AttachError::Corrupt { what: "a next-hop group" })),
            bad == u32::MAX,
            "{n} {bad}: {e:?}"
        );
    }
}

#[test]
fn what_contradicts_itself_is_refused() {
    let what = |spoil: &dyn Fn(&mut Writer)| {
        let mut w = small();
        w.commit(&of(vec![TenantChange {
            routes: RoutesChange::Replace((0..40).map(|i| route(i << 20, 24, Target::Line(0))).collect()),
            ..new(Vni(20), vec![metered(vm(1, 1))])
        }]))
        .unwrap();
        w.settle();
        spoil(&mut w);
        match attach(w) {
            Err(AttachError::Corrupt { what }) => what,
            Err(e) => panic!("{e}"),
            Ok(_) => "",
        }
    };
    let place = |w: &Writer, vni| w.tables.tenants.find_tenant(&w.store, vni).unwrap();
    let key = |w: &Writer, vni, change: &dyn Fn(u64) -> u64| {
        let place = place(w, vni);
        let line = w.store.lines.at(place.line);
        line.set(place.slot, change(line.word(place.slot)));
    };
    assert_eq!(what(&|_| {}), "");
    let no_id = !(u64::from(TENANTS_MAX - 1) << 16);
    assert_eq!(what(&|w| key(w, Vni(10), &|k| k & no_id)), "a VPC's id");
    assert_eq!(what(&|w| key(w, Vni(10), &|k| k | 1 << (16 + 12))), "a VPC's id", "there is no such chunk");
    // Two of one id: whichever is looked at first.
    assert!(
        what(&|w| key(w, Vni(10), &|k| k & no_id | u64::from(w.tenants[&Vni(20)].id) << 16)).starts_with("a VPC's ")
    );
    assert_eq!(what(&|w| key(w, Vni(10), &|k| k ^ 0x10 << 16)), "a VPC's record");
    assert_eq!(what(&|w| w.store.lines.at(w.tenant_line(w.tenants[&Vni(10)].id)).set(0, 11)), "a VPC's record");
    let meter = |w: &mut Writer, line: u32| {
        key(w, Vni(10), &|k| k | TENANT_METERED);
        w.store.lines.at(w.tenant_line(w.tenants[&Vni(10)].id)).set_half(7, line);
    };
    assert_eq!(what(&|w| meter(w, 1)), "a meter block");
    assert_eq!((what(&|w| meter(w, 0)), what(&|w| meter(w, u32::MAX))), ("", "a meter block"));
    let tree =
        |w: &Writer, vni: Vni, roots: u64| w.store.lines.at(place(w, vni).line).set(3 + place(w, vni).slot, roots);
    assert_eq!(what(&|w| tree(w, Vni(10), w.tenants[&Vni(20)].roots)), "a route tree");
    assert_eq!(what(&|w| tree(w, Vni(10), 1 << 26 | 1)), "a route tree");
    assert_eq!(what(&|w| tree(w, Vni(10), (1 << 26 | 1) << 32)), "a route tree");
    let word = |w: &mut Writer, vm: u32, line: u32| {
        w.tables.vm_meters.put_word(&mut w.store, u64::from(vm) << 32 | u64::from(line)).unwrap()
    };
    let id = |w: &Writer, vni: Vni| w.dump(vni).unwrap().vms[0].id;
    assert_eq!(what(&|w| word(w, id(w, Vni(10)).0, 1)), "a VM's meter block");
    assert_eq!(what(&|w| word(w, id(w, Vni(10)).0, (w.tables().vm_meter(id(w, Vni(20)))).0)), "a VM's meter block");
    assert_eq!(what(&|w| w.store.root.set(root!(drops), 1 << 32)), "drop counters or chunks");
    for chunk in ["vm", "nc", "tenant"] {
        let spoil = |w: &mut Writer| {
            let root = &w.store.root;
            let at = match chunk {
                "vm" => root.vm_chunk(9),
                "nc" => root.nc_chunk(9),
                _ => root.tenant_chunk(9),
            };
            at.store(1, std::sync::atomic::Ordering::Relaxed);
        };
        assert_eq!(what(&spoil), "drop counters or chunks", "{chunk}");
    }
    assert_eq!(what(&|w| w.store.root.set(root!(public_roots), 1 << 26 | 1)), "the tree of public addresses");
    assert_eq!(what(&|w| w.store.root.set(root!(wire_servers), 1 << 26 | 1)), "the trees of servers");
    assert_eq!(what(&|w| w.store.root.set(root!(vm4), w.store.root.get(root!(members)))), "a hash table's chain");
}

/// A memory that counts how often it was waited for.
struct Counted(HeapMemory, std::sync::atomic::AtomicU32);

// SAFETY: everything is asked of a memory that keeps the promises.
unsafe impl LineMemory<Root> for Counted {
    fn root(&self) -> *mut Root {
        self.0.root()
    }
    fn base(&self) -> *mut u8 {
        self.0.base()
    }
    fn limit(&self) -> &std::sync::atomic::AtomicU32 {
        self.0.limit()
    }
    fn grow(&self, n: u32) -> io::Result<()> {
        self.0.grow(n)
    }
    fn grace(&self) {
        self.1.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }
}

// SAFETY: as above.
unsafe impl Memory for Counted {
    fn stats(&self) -> *mut Stats {
        self.0.stats()
    }
    fn readers(&self) -> &crate::Readers {
        self.0.readers()
    }
    fn flow_versions(&self) -> &[std::sync::atomic::AtomicU64] {
        self.0.flow_versions()
    }
}

/// Readers in the kernel and those in Rust are waited for alike: by a new writer, and whenever something settles.
#[test]
fn both_kinds_of_readers_are_waited_for() {
    let counted = Arc::new(Counted(HeapMemory::new().unwrap(), Default::default()));
    let epoch = || {
        // The epoch is the first word of what readers share.
        // SAFETY: it is an aligned atomic word.
        unsafe { &*std::ptr::from_ref(counted.readers()).cast::<std::sync::atomic::AtomicU64>() }
            .load(std::sync::atomic::Ordering::Relaxed)
    };
    let waits = || (counted.1.load(std::sync::atomic::Ordering::Relaxed), epoch());
    let mut w = Writer::create(counted.clone(), WriterOptions::default()).unwrap();
    assert_eq!(waits(), (1, 1), "before what was there is forgotten");
    w.commit(&Commit { nc_add: vec![nc(1)], ..of(vec![new(Vni(10), vec![vm(1, 1), vm(2, 1)])]) }).unwrap();
    w.settle();
    assert_eq!(waits(), (1, 1), "nothing was there");
    w.commit(&of(vec![TenantChange { vm_replace: true, ..on(Vni(10)) }])).unwrap();
    assert_eq!(waits(), (1, 1));
    w.settle();
    w.settle();
    assert_eq!(waits(), (2, 2));
    drop(w);
    Writer::attach(counted.clone(), WriterOptions::default()).unwrap();
    assert_eq!(waits(), (3, 3));
}
