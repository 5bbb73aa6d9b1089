// SPDX-License-Identifier: Apache-2.0
//! Public addresses, the way out and POLICY words: set, read, replaced, found again by the next writer.

use super::world::*;
use crate::*;
use abi::*;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

fn public(addr: IpAddr, len: u8, accepts: bool) -> PublicPrefix {
    PublicPrefix { prefix: Prefix::new_assert(addr, len), accepts }
}

fn v4(a: u32) -> IpAddr {
    IpAddr::V4(Ipv4Addr::from_bits(a))
}

#[test]
fn public_addresses_are_found_replaced_and_survive_the_writer() {
    let memory: Arc<dyn Memory> = Arc::new(HeapMemory::new().unwrap());
    let mut w = Writer::create(memory.clone(), WriterOptions::default()).unwrap();
    w.commit(&first()).unwrap();
    let t = w.tables();
    assert_eq!((t.public_roots(), t.public4(0xcb007101), t.internet_group(false)), (0, None, LineNo(0)));
    let v6 = Ipv6Addr::from_bits(0x2001_0db8_0077 << 80);
    let mut all: Vec<PublicPrefix> = (0..40).map(|i| public(v4(0xcb007100 + 4 * i), 31, i % 2 == 0)).collect();
    all.push(public(IpAddr::V6(v6), 48, true));
    all.push(public(v4(0xc6336400), 24, false));
    all.push(public(v4(0xc6336409), 32, true));
    w.set_public(&all).unwrap();
    assert_eq!(t.public4(0xcb007101), Some(Public::Accepts));
    assert_eq!((t.public4(0xcb007102), t.public4(0xcb007105)), (None, Some(Public::Refuses)));
    assert_eq!((t.public4(0xc6336408), t.public4(0xc6336409)), (Some(Public::Refuses), Some(Public::Accepts)));
    assert_eq!(t.public6((0x2001_0db8_0077_0001, 9)), Some(Public::Accepts));
    assert_eq!(t.public6((0x2001_0db8_0078_0001, 9)), None);
    // A hundred replacements take no more memory than one.
    for _ in 0..3 {
        w.set_public(&all).unwrap();
    }
    let used = w.bytes_used();
    for _ in 0..100 {
        w.set_public(&all).unwrap();
    }
    assert_eq!(w.bytes_used(), used);
    drop(w);
    let mut w = Writer::attach(memory, WriterOptions::default()).unwrap();
    assert_eq!(w.bytes_used(), used);
    assert_eq!(t.public4(0xc6336409), Some(Public::Accepts));
    w.set_public(&[]).unwrap();
    assert_eq!((t.public_roots(), t.public4(0xc6336409)), (0, None));
    assert!(w.bytes_used() < used);
}

#[test]
fn the_way_to_the_internet_keeps_its_group() {
    let memory: Arc<dyn Memory> = Arc::new(HeapMemory::new().unwrap());
    let mut w = Writer::create(memory.clone(), WriterOptions::default()).unwrap();
    let hop = NexthopSpec { addr: v4(0x0a000001), ifindex: IfIndex(3), dmac: Some(2), smac: 4, mtu: 1500 };
    let hop = w.set_nexthop(&hop).unwrap();
    let group = w.set_group(None, &[hop]).unwrap();
    w.set_internet(Some(group), None);
    assert!(!w.remove_group(group));
    drop(w);
    let mut w = Writer::attach(memory, WriterOptions::default()).unwrap();
    let t = w.tables();
    assert_eq!(t.nexthop(t.group_member(t.internet_group(false), 77)).mtu, 1500);
    assert_eq!(w.groups(), [(group, vec![hop])]);
    w.set_internet(None, Some(group));
    assert_eq!((t.internet_group(false), t.internet_group(true)), (LineNo(0), group.0));
    w.set_internet(None, None);
    assert!(w.remove_group(group));
}

#[test]
fn each_setting_of_a_policy_raises_its_epoch() {
    let memory: Arc<dyn Memory> = Arc::new(HeapMemory::new().unwrap());
    let mut w = Writer::create(memory, WriterOptions::default()).unwrap();
    w.commit(&first()).unwrap();
    let (t, vni) = (w.tables(), w.vnis()[0]);
    let tenant = t.tenant(vni).unwrap();
    assert_eq!(t.policy(&tenant), 0);
    assert!(w.set_policy(vni, POLICY_NAT) && !w.set_policy(Vni(0xfff_fff), POLICY_NAT));
    assert_eq!(t.policy(&tenant), POLICY_NAT | 1 << POLICY_EPOCH_SHIFT);
    assert!(w.set_policy(vni, POLICY_NAT | POLICY_SOFTWARE));
    assert_eq!(w.policy(vni), Some(POLICY_NAT | POLICY_SOFTWARE | 2 << POLICY_EPOCH_SHIFT));
    assert!((0..0xffff).all(|_| w.set_policy(vni, 0)));
    assert_eq!(w.policy(vni), Some(1 << POLICY_EPOCH_SHIFT));
}

/// Where a VPC is served and what its packets need are two settings of one word: each leaves the other as it is, and only needs are judged anew.
#[test]
fn a_path_and_a_policy_leave_each_other() {
    let memory: Arc<dyn Memory> = Arc::new(HeapMemory::new().unwrap());
    let mut w = Writer::create(memory, WriterOptions::default()).unwrap();
    w.commit(&first()).unwrap();
    let (t, vni) = (w.tables(), w.vnis()[0]);
    let read = |w: &Writer| (w.path(vni).unwrap(), t.policy(&t.tenant(vni).unwrap()));
    let one = POLICY_PATHS & POLICY_PATHS.wrapping_neg();
    let epoch = |n: u64| n << POLICY_EPOCH_SHIFT;
    assert!(w.set_path(vni, POLICY_PATHS) && !w.set_path(Vni(0xfff_fff), POLICY_PATHS));
    assert_eq!(read(&w), (POLICY_PATHS, POLICY_PATHS));
    // What is no path bit is no business of a path's, and the other way round.
    assert!(w.set_policy(vni, POLICY_NAT));
    assert_eq!(read(&w), (POLICY_PATHS, POLICY_PATHS | POLICY_NAT | epoch(1)));
    assert!(w.set_path(vni, one | POLICY_FILTER));
    assert_eq!(read(&w), (one, one | POLICY_NAT | epoch(1)));
    assert!(w.set_policy(vni, POLICY_FILTER | POLICY_PATHS));
    assert_eq!(read(&w), (one, one | POLICY_FILTER | epoch(2)));
    assert!(w.set_path(vni, 0));
    assert_eq!(read(&w), (0, POLICY_FILTER | epoch(2)));
}

#[test]
fn vpcs_with_security_groups_are_counted_until_they_go() {
    let memory: Arc<dyn Memory> = Arc::new(HeapMemory::new().unwrap());
    let mut w = Writer::create(memory, WriterOptions::default()).unwrap();
    w.commit(&first()).unwrap();
    let vnis = w.vnis();
    assert!(vnis[..3].iter().all(|vni| w.set_policy(*vni, POLICY_FILTER)));
    // A gateway MAC whose halves both change has two entries of the VPC for a moment.
    let settings = TenantSettings { gateway_mac: 0x0a99_8877_6655, ..TenantSettings::default() };
    let change = TenantChange { vni: vnis[0], settings: Some(settings), ..TenantChange::default() };
    w.commit(&Commit { tenants: vec![change], ..Commit::default() }).unwrap();
    assert_eq!(w.told_filtered(), 3);
    assert!(w.set_policy(vnis[1], 0));
    assert_eq!(w.told_filtered(), 2);
    let all = vnis.iter().map(|vni| TenantChange { vni: *vni, delete: true, ..TenantChange::default() });
    w.commit(&Commit { tenants: all.collect(), ..Commit::default() }).unwrap();
    assert_eq!(w.told_filtered(), 0);
}
