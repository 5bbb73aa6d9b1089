// SPDX-License-Identifier: Apache-2.0
//! Garbage in table memory: readers must come to an end and never panic; a writer that is asked to take it over must say
//! so or repair it.

use super::world::*;
use crate::testing::seeded;
use crate::*;
use abi::*;
use memory::{Lines, RootRef};
use rand::{Rng, RngExt};
use rand_chacha::rand_core::SeedableRng;
use rand_chacha::ChaCha8Rng;
use std::sync::Arc;

/// Asks everything that there is to ask.
fn permit(tables: &Tables, rng: &mut ChaCha8Rng) {
    let _guard = tables.enter();
    let mut line = || match rng.random_range(0..4) {
        0 => rng.next_u32(),
        1 => tables.lines.limit().wrapping_sub(rng.random_range(0..3)),
        _ => rng.random_range(0..tables.lines.limit().max(1)),
    };
    let (a, b, c) = (line(), line(), line());
    let (x, y) = (rng.next_u64(), rng.next_u64());
    let vni = rng.next_u32() & 0xff_ffff;
    let _ = (tables.ready(), tables.vtep4(), tables.vtep6(), tables.commits(), tables.slots());
    tables.prefetch_vm4(Vni(vni), a);
    tables.prefetch_vm6(Vni(vni), (x, y));
    tables.prefetch_tenant(Vni(vni));
    tables.prefetch_line(LineNo(a));
    let t = tables.tenant(Vni(vni)).or(tables.tenant_from(LineNo(a), Vni(vni))).unwrap_or(Tenant {
        key: x,
        roots: y,
        vni: Vni(vni),
        ..Tenant::NONE
    });
    let _ = (tables.gateway_mac(&t), tables.gateway4(&t), tables.gateway6(&t));
    let _ = (
        tables.may_send4(Vni(vni), a),
        tables.may_send6(Vni(vni), NcId(b)),
        tables.nc_by_addr4(c),
        tables.nc_by_addr6((x, y)),
    );
    let _ = (tables.route4(t.root4(), c), tables.route6(t.root6(), (x, y)));
    let _ = (tables.route4(a, c), tables.route6(b, (y, x)));
    for vm in [tables.vm4(Vni(vni), c, 1), tables.vm6(Vni(vni), (x, y), 2)].into_iter().flatten() {
        let _ = tables.nc(vm.nc).map(|nc| tables.nexthop(tables.group_member(nc.group, x)));
        tables.count_vm(vm.vm, 100);
    }
    let _ = (tables.vm4_from(tables.vm4_bucket(Vni(vni), c), &t, c), tables.vm4_from(BucketRef::NONE, &t, a));
    let _ = (tables.peer4(&t, a), tables.peer4(&t, c));
    let at = &tables.tables4();
    let _ = (
        tables.vm4_lasting(at, tables.vm4_line(at, Vni(vni), c), Vni(vni), c),
        tables.vm4_lasting(at, LineNo(a), Vni(vni), c),
    );
    let _ = tables.tenant_from(tables.tenant_line(at, Vni(vni)), Vni(vni));
    let _ = tables.may_send4_from(tables.member4_line(at, Vni(vni), c), Vni(vni), c);
    let _ = (
        tables.tenant_from(tables.tenant_bucket(Vni(vni)), Vni(vni)),
        tables.tenant_ident(&t),
        tables.tenant_record(VpcId(c)),
    );
    let _ = (
        tables.may_send4_from(tables.member4_bucket(Vni(vni), c), Vni(vni), c),
        tables.may_send4_from(LineNo(b), Vni(vni), c),
    );
    let _ = (tables.nc4(NcId(a)), tables.meter_colors(LineNo(b)));
    tables.count_vpc(VpcId(a), b, 5);
    let nc = tables.nc(NcId(a)).map_or(b, |nc| nc.group.0);
    let hop = tables.group_member(LineNo(nc), y);
    let _ = (tables.nexthop(hop), tables.nexthop(LineNo(a)), tables.nexthop_addr(LineNo(b)));
    let _ = (tables.meter(tables.tenant_meter(&t), 1500, x), tables.meter(tables.vm_meter(VmId(a)), 64, y));
    let _ = (tables.punt(Some(&t), x), tables.punt(None, y), tables.tenant_punts(&t), tables.icmp_allowed(&t, x));
    tables.count_tenant(&t, a, 1000);
    let _ = (tables.tenant_count(&t), tables.vm_count(VmId(b)));
    tables.count_vm(VmId(c), 1 << 39);
    let _ = (tables.count_drop(Vni(vni), DropReason::RouteNone), tables.drop_count(Vni(vni), DropReason::VmUnknown));
    let _ = tables.drop_counts().len();
}

#[test]
fn readers_of_random_memory_come_to_an_end() {
    let (_seed, mut rng) = seeded("garbage");
    for round in 0..60 {
        let memory: Arc<dyn Memory> = Arc::new(HeapMemory::new().unwrap());
        memory.grow(1).unwrap();
        let (lines, root) = (Lines::new(&*memory), RootRef::new(&*memory));
        let limit = u64::from(lines.limit());
        // Words that are wholly random lead outside at once; so half of them are small numbers, which lead on.
        let word = |rng: &mut ChaCha8Rng| match round % 3 {
            0 => rng.next_u64(),
            1 => rng.next_u64() % limit << 32 | rng.next_u64() % limit,
            _ => [rng.next_u64(), rng.next_u64() % limit, rng.next_u64() % limit << 32, u64::MAX, 0]
                [rng.random_range(0..5usize)],
        };
        for offset in (0..size_of::<Root>()).step_by(8) {
            root.set(offset, word(&mut rng));
        }
        // The drop table's size bounds the work of listing it; that is what the writer promises.
        let drops = memory::root!(drops);
        root.set(drops, root.get(drops) & 0x3f_ffff_ffff);
        let some: Vec<[u64; 8]> = (0..512).map(|_| std::array::from_fn(|_| word(&mut rng))).collect();
        for line in 1..lines.limit() {
            lines.fill(LineNo(line), &some[line as usize * 7919 % 512]);
        }
        let tables = Tables::new(memory);
        for _ in 0..200 {
            permit(&tables, &mut rng);
        }
    }
}

/// Damages so many words at most, in every sixth round from this one on, and lets readers and another writer look at what is left.
fn damaged_tables_are_refused_or_repaired_but_never_crash_anybody(part: u64) {
    let (seed, _) = seeded("damage");
    let mut rng = ChaCha8Rng::seed_from_u64(seed ^ part << 40);
    let (mut refused, mut taken) = (0, 0);
    for round in (part as u32..150).step_by(6) {
        let memory: Arc<dyn Memory> = Arc::new(HeapMemory::new().unwrap());
        let mut writer = Writer::create(memory.clone(), WriterOptions { drop_lines: 8, ..Default::default() }).unwrap();
        writer.commit(&first()).unwrap();
        let used = (writer.bytes_used() / 64) as u32;
        drop(writer);
        let lines = Lines::new(&*memory);
        for _ in 0..rng.random_range(0..=round) {
            let line = rng.random_range(1..(used * 2).min(lines.limit()));
            let i = rng.random_range(0..8);
            let old = lines.at(LineNo(line)).word(i);
            let new = match rng.random_range(0..4) {
                0 => old ^ 1 << rng.random_range(0..64),
                1 => rng.next_u64(),
                2 => u64::from(rng.random_range(0..lines.limit())) << (32 * rng.random_range(0..2)),
                _ => old.wrapping_add(1),
            };
            lines.at(LineNo(line)).set(i, new);
        }
        let tables = Tables::new(memory.clone());
        permit(&tables, &mut rng);
        match Writer::attach(memory, WriterOptions::default()) {
            Ok(mut writer) => {
                taken += 1;
                writer.settle();
                writer.vnis().iter().for_each(|v| drop(writer.dump(*v)));
            }
            Err(AttachError::Corrupt { .. }) => refused += 1,
            Err(e) => panic!("{e}"),
        }
    }
    println!("{refused} refused, {taken} taken over");
    assert!(taken > 0);
}

macro_rules! damage {
    ($($name:ident: $part:literal;)*) => {
        $(
            #[test]
            fn $name() {
                damaged_tables_are_refused_or_repaired_but_never_crash_anybody($part);
            }
        )*
    };
}

damage! {
    damaged_tables_are_refused_or_repaired_1: 0;
    damaged_tables_are_refused_or_repaired_2: 1;
    damaged_tables_are_refused_or_repaired_3: 2;
    damaged_tables_are_refused_or_repaired_4: 3;
    damaged_tables_are_refused_or_repaired_5: 4;
    damaged_tables_are_refused_or_repaired_6: 5;
}

/// Whether random damage is ever refused is left to chance; this is not.
#[test]
fn two_tables_in_the_same_lines_are_refused() {
    let memory: Arc<dyn Memory> = Arc::new(HeapMemory::new().unwrap());
    let mut writer = Writer::create(memory.clone(), WriterOptions::default()).unwrap();
    writer.commit(&first()).unwrap();
    drop(writer);
    let root = RootRef::new(&*memory);
    root.set(memory::root!(members), root.get(memory::root!(vm4)));
    assert!(matches!(Writer::attach(memory, WriterOptions::default()), Err(AttachError::Corrupt { .. })));
}

#[test]
fn memory_without_tables_or_of_another_layout_is_refused() {
    let memory: Arc<dyn Memory> = Arc::new(HeapMemory::new().unwrap());
    let attach = || Writer::attach(memory.clone(), WriterOptions::default()).err();
    assert!(matches!(attach(), Some(AttachError::NotBuilt)));
    drop(Writer::create(memory.clone(), WriterOptions::default()).unwrap());
    assert!(attach().is_none());
    let tables = Tables::new(memory.clone());
    assert!(tables.ready());
    RootRef::new(&*memory).set(memory::root!(layout_hash), 7);
    assert!(!tables.ready());
    let e = attach().unwrap();
    assert!(matches!(e, AttachError::Layout { found: 7, .. }), "{e}");
    // Building anew in dirty memory.
    let mut writer = Writer::create(memory.clone(), WriterOptions::default()).unwrap();
    writer.commit(&first()).unwrap();
    let mut writer = Writer::create(memory.clone(), WriterOptions::default()).unwrap();
    assert!(writer.vnis().is_empty() && tables.ready() && tables.tenant(vni(0)).is_none());
    writer.commit(&first()).unwrap();
    (0..VPCS).for_each(|i| assert_eq!(observe(&tables, i), Ok(0)));
}
