// SPDX-License-Identifier: Apache-2.0
//! What is asked for ahead is what is read then.

use super::model::halves;
use super::world::*;
use crate::*;
use abi::*;
use memory::testing::prefetched;
use memory::{root, Lines, RootRef};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

fn place<T>(of: &T) -> usize {
    std::ptr::from_ref(of) as usize
}

/// The bucket of a hash in a table with so many lines a bucket.
fn bucket(w: &Writer, table: usize, hash: u64, lines: u32) -> LineNo {
    let word = RootRef::new(&**w.memory()).get(table);
    LineNo(word as u32) + bucket_of(hash, (word >> 32) as u32) * lines
}

#[test]
fn readers_ask_for_the_lines_that_they_read() {
    let memory: Arc<dyn Memory> = Arc::new(HeapMemory::new().unwrap());
    let mut w = Writer::create(memory, WriterOptions::default()).unwrap();
    let t = w.tables();
    // Without tables nothing of them is asked for but line 0.
    let none = place(Lines::new(&**w.memory()).at(LineNo(0)));
    w.commit(&first()).unwrap();
    let six: Vec<IpAddr> = (1..9u128).map(|n| IpAddr::V6(Ipv6Addr::from_bits(0xfd00 << 112 | n))).collect();
    w.commit(&Commit { nc_add: six.clone(), ..Default::default() }).unwrap();
    w.settle();
    let (lines, salt) = (Lines::new(&**w.memory()), RootRef::new(&**w.memory()).get(root!(salt)));
    let line = |n: LineNo| place(lines.at(n));
    let at = t.tables4();
    for n in 0..VPCS {
        let vni = vni(n);
        let tenant = bucket(&w, root!(tenants), hash1(u64::from(vni) << TENANT_VNI_SHIFT, salt), 2);
        assert_eq!(prefetched(|| t.prefetch_tenant(vni)), [line(tenant)]);
        assert_eq!((prefetched(|| _ = t.tenant_bucket(vni)), t.tenant_bucket(vni)), (vec![line(tenant)], tenant));
        assert_eq!((prefetched(|| _ = t.tenant_line(&at, vni)), t.tenant_line(&at, vni)), (vec![line(tenant)], tenant));
        let src = 0xc0a8_0001 + n;
        let member = bucket(&w, root!(members), hash1(u64::from(vni) << 40 | u64::from(src) << 8 | MEMBER_V4, salt), 1);
        assert_eq!(prefetched(|| t.prefetch_member4(vni, src)), [line(member)]);
        assert_eq!(
            (prefetched(|| _ = t.member4_bucket(vni, src)), t.member4_bucket(vni, src)),
            (vec![line(member)], member)
        );
        assert_eq!(
            (prefetched(|| _ = t.member4_line(&at, vni, src)), t.member4_line(&at, vni, src)),
            (vec![line(member)], member)
        );
        let member = bucket(&w, root!(members), hash1(u64::from(vni) << 40 | u64::from(n) << 8 | MEMBER_V6, salt), 1);
        assert_eq!(prefetched(|| t.prefetch_member6(vni, NcId(n))), [line(member)]);
        let addr = 0x0a01_0000 + n;
        let vm = bucket(&w, root!(vm4), hash1(u64::from(vni) << 40 | u64::from(addr) << 8, salt), 1);
        assert_eq!(prefetched(|| t.prefetch_vm4(vni, addr)), [line(vm)]);
        assert_eq!(prefetched(|| _ = t.vm4_bucket(vni, addr)), [line(vm)]);
        assert_eq!((prefetched(|| _ = t.vm4_line(&at, vni, addr)), t.vm4_line(&at, vni, addr)), (vec![line(vm)], vm));
        let addr = halves((0x2001_0db8u128 << 96) + u128::from(n));
        let vm = bucket(&w, root!(vm6), hash3(u64::from(vni), addr.0, addr.1, salt), 2);
        assert_eq!(prefetched(|| t.prefetch_vm6(vni, addr)), [line(vm), line(vm + 1)]);
        let nc = bucket(&w, root!(nc6), hash3(0, addr.0, addr.1, salt), 2);
        assert_eq!(prefetched(|| t.prefetch_nc6(addr)), [line(nc), line(nc + 1)]);
        assert!(prefetched(|| t.prefetch_vm_meter(VmId(n))).is_empty(), "no VM has a meter");
        assert_eq!(prefetched(|| t.prefetch_line(LineNo(77 + n))), [line(LineNo(77 + n))]);
    }
    let bytes = [0u8; 200];
    assert_eq!(prefetched(|| t.prefetch_bytes(&bytes, 70)), [place(&bytes) + 70]);
    assert_eq!(
        (prefetched(|| prefetch(Some(&bytes))), prefetched(|| prefetch::<u8>(None))),
        (vec![place(&bytes)], vec![])
    );
    assert_eq!(prefetched(|| t.prefetch_line(LineNo(0))), [none]);
}

/// Of what a commit lists the beginning is asked for, line by line, and no more than 24 lines.
#[test]
fn the_beginning_of_a_list_is_asked_for() {
    let list = vec![0u64; 1000];
    let lines = |n: usize| -> Vec<usize> { (0..n).map(|i| list.as_ptr() as usize + 64 * i).collect() };
    for (n, want) in [(0, 0), (1, 1), (8, 1), (9, 2), (191, 24), (192, 24), (193, 24), (1000, 24)] {
        assert_eq!(prefetched(|| memory::prefetch_slice(&list[..n])), lines(want), "{n} words");
    }
}
