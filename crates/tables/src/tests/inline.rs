// SPDX-License-Identifier: Apache-2.0
//! Inline pairs: set, read, replaced, found again by the next writer; a server's address is known behind its own pair alone.

use super::world::*;
use crate::*;
use abi::{IfIndex, Vni};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

fn pair(server: u32, network: u32, servers: &[(IpAddr, u8, Vni)]) -> InlineSpec {
    let servers = servers.iter().map(|(addr, len, vni)| (Prefix::new_assert(*addr, *len), *vni)).collect();
    InlineSpec {
        server: InlinePort { ifindex: IfIndex(server), mtu: 1500 },
        network: InlinePort { ifindex: IfIndex(network), mtu: 9000 },
        servers,
    }
}

#[test]
fn servers_are_known_behind_their_pair_and_survive_the_writer() {
    let memory: Arc<dyn Memory> = Arc::new(HeapMemory::new().unwrap());
    let mut w = Writer::create(memory.clone(), WriterOptions::default()).unwrap();
    w.commit(&first()).unwrap();
    let v4 = |a: [u8; 4]| IpAddr::V4(Ipv4Addr::from(a));
    let host6 = Ipv6Addr::from_bits(0x2001_0db8_0009 << 80 | 5);
    let halves = |a: Ipv6Addr| ((a.to_bits() >> 64) as u64, a.to_bits() as u64);
    let one = pair(3, 4, &[(v4([10, 9, 0, 5]), 32, Vni(7)), (host6.into(), 128, Vni(7))]);
    let two = pair(5, 6, &[(v4([10, 9, 0, 0]), 16, Vni(8)), (v4([10, 9, 0, 5]), 32, Vni(9))]);
    w.set_inline(&[one.clone(), two.clone()]).unwrap();
    let t = w.tables();
    assert_eq!(t.inline_end(IfIndex(7)), None);
    let (a, b) = (t.inline_end(IfIndex(3)).unwrap(), t.inline_end(IfIndex(4)).unwrap());
    assert_eq!((a.servers_side, a.other, a.mtu, a.vni), (true, IfIndex(4), 9000, Vni(7)));
    assert_eq!((b.servers_side, b.other, b.mtu, b.vni), (false, IfIndex(3), 1500, Vni(7)));
    assert_eq!(
        (t.server4(&a, 0x0a09_0005), t.server4(&b, 0x0a09_0005), t.server4(&a, 0x0a09_0006)),
        (Some(Vni(7)), Some(Vni(7)), None)
    );
    assert_eq!((t.server6(&a, halves(host6)), t.server6(&a, (1, 2))), (Some(Vni(7)), None));
    let c = t.inline_end(IfIndex(5)).unwrap();
    assert_eq!((c.vni, t.server4(&c, 0x0a09_0005), t.server4(&c, 0x0a09_0006)), (Vni(0), Some(Vni(9)), Some(Vni(8))));
    assert_eq!(t.server6(&c, halves(host6)), None);
    // Replaced over and over: memory is given back.
    let used = |w: &Writer| w.usage().into_iter().map(|l| l.used).collect::<Vec<_>>();
    let before = used(&w);
    for _ in 0..100 {
        w.set_inline(&[two.clone(), one.clone()]).unwrap();
        w.set_inline(&[one.clone(), two.clone()]).unwrap();
    }
    assert_eq!(used(&w), before);
    drop(w);
    let mut w = Writer::attach(memory, WriterOptions::default()).unwrap();
    let t = w.tables();
    assert_eq!(t.server4(&t.inline_end(IfIndex(6)).unwrap(), 0x0a09_0005), Some(Vni(9)));
    w.set_inline(&[]).unwrap();
    assert_eq!(t.inline_end(IfIndex(3)), None);
}
