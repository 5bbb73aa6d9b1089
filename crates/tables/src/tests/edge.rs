// SPDX-License-Identifier: Apache-2.0
//! Edge ports and circuits: set, read, replaced, found again by the next writer; a circuit is known at its own port alone.

use super::world::*;
use crate::*;
use abi::{IfIndex, Vni, CIRCUITS_MAX, VM_PORTS_MAX};
use std::sync::Arc;

fn port(number: u8, ifindex: u32, tags: u8) -> EdgePortSpec {
    EdgePortSpec { number, ifindex: IfIndex(ifindex), mtu: 1500, tags, tpids: [0x88a8, 0x8100], tun: false, at: None }
}

fn circuit(port: u8, customer: u16, overlay: u16, (vni, line): (u32, u8)) -> CircuitSpec {
    CircuitSpec {
        port,
        customer,
        overlay,
        vni: Vni(vni),
        line,
        ce: 0x0200_0000_ce00 | u64::from(line),
        sender: 0,
        class: 0,
        gateway: 0,
    }
}

/// A circuit without a routing daemon, whose frames may come from any MAC address.
fn vpc(vni: Vni) -> CircuitFound {
    CircuitFound::Vpc(CircuitVpc { vni, gateway: 0, sender: 0 })
}

fn find(t: &Tables, ifindex: u32, tags: [u16; 2]) -> CircuitFound {
    t.circuit_by_tags(&Circuit { port: t.edge_port(IfIndex(ifindex)).unwrap(), tags, class: 0 })
}

#[test]
fn circuits_are_known_at_their_port_and_survive_the_writer() {
    use CircuitFound::*;
    let memory: Arc<dyn Memory> = Arc::new(HeapMemory::new().unwrap());
    let mut w = Writer::create(memory.clone(), WriterOptions::default()).unwrap();
    w.commit(&first()).unwrap();
    let t = w.tables();
    assert!(!t.is_edge() && t.edge_port(IfIndex(3)).is_none() && t.circuit_by_line(Vni(7), 0).is_none());
    let ports = [port(0, 3, 2), port(15, 4, 1), port(1, 5, 2)];
    let circuits = [
        circuit(0, 100, 7, (7, 0)),
        circuit(0, 100, 8, (8, 0)),
        circuit(15, 50, 0, (7, 1)),
        circuit(1, 100, 7, (9, 255)),
    ];
    w.set_edge(&ports, &circuits).unwrap();
    assert!(t.is_edge() && t.edge_port(IfIndex(6)).is_none() && t.edge_port(IfIndex(0)).is_none());
    let p = t.edge_port(IfIndex(4)).unwrap();
    assert_eq!((p.number, p.tags, p.mtu, p.tpids, p.ifindex), (15, 1, 1500, [0x88a8, 0x8100], IfIndex(4)));
    assert_eq!(
        [[100, 7], [100, 8], [100, 9], [101, 7]].map(|tags| find(&t, 3, tags)),
        [vpc(Vni(7)), vpc(Vni(8)), NoOverlay, NoCustomer]
    );
    assert_eq!(
        [find(&t, 3, [100, 0xfff]), find(&t, 4, [50, 0]), find(&t, 4, [100, 7])],
        [NoOverlay, vpc(Vni(7)), NoCustomer]
    );
    assert_eq!(
        [find(&t, 5, [100, 7]), find(&t, 5, [100, 8])],
        [vpc(Vni(9)), NoOverlay],
        "the same tags on another port"
    );
    let line = |t: &Tables, vni, line| t.circuit_by_line(Vni(vni), line).map(|(c, ce)| (c.port.ifindex.0, c.tags, ce));
    assert_eq!(line(&t, 7, 0), Some((3, [100, 7], 0x0200_0000_ce00)));
    assert_eq!(line(&t, 7, 1), Some((4, [50, 0], 0x0200_0000_ce01)));
    assert_eq!(line(&t, 9, 255), Some((5, [100, 7], 0x0200_0000_ceff)));
    assert_eq!([line(&t, 7, 2), line(&t, 6, 0), line(&t, 0, 7)], [None; 3]);
    // While it changes a port is one of the edge's still.
    let (root, word) = (::memory::RootRef::new(&*memory), ::memory::root!(edge_ports));
    root.set(word, root.get(word) | abi::EDGE_PORT_CHANGES);
    assert!(t.edge_port(IfIndex(3)).is_some_and(|p| p.changes) && !t.edge_port(IfIndex(4)).unwrap().changes);
    // Without its port a line leads nowhere; its VPC is still known elsewhere.
    w.set_edge(&ports[1..], &circuits).unwrap();
    assert_eq!((t.edge_port(IfIndex(3)), line(&t, 7, 0), line(&t, 7, 1).is_some()), (None, None, true));
    // Replaced over and over: memory is given back.
    let used = |w: &Writer| w.usage().into_iter().map(|l| l.used).collect::<Vec<_>>();
    w.set_edge(&ports, &circuits).unwrap();
    w.settle();
    let before = used(&w);
    for _ in 0..100 {
        w.set_edge(&ports, &circuits[..1]).unwrap();
        w.set_edge(&ports, &circuits).unwrap();
        w.settle();
    }
    assert_eq!(used(&w), before);
    drop(w);
    let mut w = Writer::attach(memory, WriterOptions::default()).unwrap();
    let t = w.tables();
    assert_eq!((find(&t, 5, [100, 7]), line(&t, 7, 1).is_some()), (vpc(Vni(9)), true));
    w.set_edge(&[], &[]).unwrap();
    assert!(!t.is_edge() && t.edge_port(IfIndex(3)).is_none());
}

#[test]
fn as_many_circuits_as_may_be_are_all_found() {
    let mut w = Writer::create(Arc::new(HeapMemory::new().unwrap()), WriterOptions::default()).unwrap();
    let of =
        |i: u32| circuit((i % 16) as u8, 1 + (i / 16 % 64) as u16, 1 + (i / 1024) as u16, (1 + i / 4, (i % 4) as u8));
    let all: Vec<CircuitSpec> = (0..CIRCUITS_MAX + 5).map(of).collect();
    let ports: Vec<EdgePortSpec> = (0..16).map(|n| port(n, 10 + u32::from(n), 2)).collect();
    w.set_edge(&ports, &all).unwrap();
    let t = w.tables();
    for (i, c) in all.iter().enumerate() {
        let found = (find(&t, 10 + u32::from(c.port), [c.customer, c.overlay]), t.circuit_by_line(c.vni, c.line));
        if i >= CIRCUITS_MAX as usize {
            assert_eq!(found, (CircuitFound::NoOverlay, None), "beyond the limit");
            continue;
        }
        let (circuit, ce) = found.1.unwrap();
        assert_eq!(
            (found.0, circuit.port.number, circuit.tags, ce),
            (vpc(c.vni), c.port, [c.customer, c.overlay], c.ce)
        );
    }
    // With every word of its memory in use, too, it is a table of a few MiB.
    assert!(w.usage().iter().all(|l| l.used <= l.limit));
}

/// Of two with the same key the first one counts.
#[test]
fn a_key_is_entered_once() {
    let mut w = Writer::create(Arc::new(HeapMemory::new().unwrap()), WriterOptions::default()).unwrap();
    w.set_edge(&[port(0, 3, 2)], &[circuit(0, 1, 1, (7, 0)), circuit(0, 1, 1, (8, 0)), circuit(0, 1, 2, (7, 0))])
        .unwrap();
    let t = w.tables();
    assert_eq!((find(&t, 3, [1, 1]), find(&t, 3, [1, 2])), (vpc(Vni(7)), vpc(Vni(7))));
    assert_eq!(t.circuit_by_line(Vni(7), 0).unwrap().0.tags, [1, 1]);
}

/// Ports towards VMs are found by interface, and by VPC and MAC address, beside circuits; all 256 at once, and none that has gone.
#[test]
fn vm_ports_are_found_both_ways() {
    let memory: Arc<dyn Memory> = Arc::new(HeapMemory::new().unwrap());
    let mut w = Writer::create(memory, WriterOptions::default()).unwrap();
    w.commit(&first()).unwrap();
    let t = w.tables();
    let spec = |n: u32| VmPortSpec {
        ifindex: IfIndex(100 + n),
        mtu: 1500,
        vni: Vni(n % 3),
        mac: 0x0200_0000_0000 + u64::from(n / 3),
    };
    let all: Vec<VmPortSpec> = (0..VM_PORTS_MAX).map(spec).collect();
    assert!(!t.has_vm_ports() && t.vm_port(IfIndex(100)).is_none());
    w.set_ports(&[port(0, 3, 2)], &[circuit(0, 1, 1, (7, 0))], &all, &[]).unwrap();
    for p in &all {
        let found = t.vm_port(p.ifindex).unwrap();
        assert_eq!((found.ifindex, found.mtu, found.vni, found.mac), (p.ifindex, p.mtu, p.vni, p.mac));
        assert_eq!(t.vm_port_of(p.vni, p.mac), Some(found));
    }
    assert!(t.has_vm_ports() && t.circuit_by_line(Vni(7), 0).is_some() && t.edge_port(IfIndex(100)).is_none());
    // The same MAC address in another VPC, and an interface that is none.
    assert_eq!((t.vm_port_of(Vni(3), all[0].mac), t.vm_port(IfIndex(99)), t.vm_port(IfIndex(3))), (None, None, None));
    w.set_ports(&[], &[], &all[1..], &[]).unwrap();
    assert_eq!((t.vm_port(all[0].ifindex), t.vm_port_of(all[0].vni, all[0].mac)), (None, None));
    assert!(t.vm_port(all[1].ifindex).is_some() && t.is_edge());
    // An index that the table has no room for is left out.
    let far = VmPortSpec { ifindex: IfIndex(1 << 30), ..all[0] };
    w.set_ports(&[], &[], &[far], &[]).unwrap();
    assert!(!t.has_vm_ports() && t.vm_port(far.ifindex).is_none());
}
