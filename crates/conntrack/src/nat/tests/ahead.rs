// SPDX-License-Identifier: Apache-2.0
//! What is asked for ahead of a new connection is what it reads then.

use super::*;
use memory::testing::prefetched;

#[test]
fn a_vms_ports_are_asked_for_where_they_lie() {
    let t = Translator::new(77);
    t.configure(&spec(vec![pool(0, 8)], vec![snat(Vni(7)), snat(Vni(8))]));
    let mut candidates = 0;
    for n in 1..60 {
        let f = Flow { proto: [1, 6, 17][usize::from(n) % 3], ..flow(Vni(7 + u32::from(n) % 2), n, 1000) };
        for p in 0..u16::from(n) {
            t.outbound(&Flow { vm_port: 1000 + p, ..f }, 0).unwrap();
        }
        let vm_addr = u32::from(vm(n));
        let word = u64::from(f.vni) << 32 | u64::from(vm_addr);
        let protocol = Protocol::from_number(f.proto).unwrap();
        let note = prefetched(|| t.prefetch_vm(f.vni, vm_addr));
        assert_eq!(note.len(), 1);
        let all = prefetched(|| t.prefetch(f.vni, f.proto, vm_addr, 1000));
        let mut part = t.part(word);
        let entry = part.vms.address_for_tests(word).unwrap();
        let have = part.vms.get_mut(word).unwrap();
        let at = std::ptr::from_ref::<Vm>(have) as usize;
        for line in (0..size_of::<Vm>()).step_by(64) {
            assert!(all.contains(&(at + line)), "the VM {n}");
        }
        let (mapping, [block, ports]) = have.places_for_tests(protocol, 1000);
        for place in [block, block + 64, ports, ports + 64] {
            assert!(all.contains(&place), "block and ports of {n}");
        }
        candidates += usize::from(all.contains(&entry)) + usize::from(all.contains(&mapping));
    }
    assert!(candidates > 80, "{candidates} of 118 entries lie where they are asked for");
    // A protocol without ports has none.
    assert!(prefetched(|| t.prefetch(Vni(7), 47, u32::from(vm(1)), 1)).is_empty());
}
