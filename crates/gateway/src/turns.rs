// SPDX-License-Identifier: Apache-2.0
//! In which classes of the shaper a packet waits for its turn: first in that of the VM that sends it, then in that of the line or VM that gets it.
//! Stages note what they meet; who sends the frame hands it to the shaper. docs/design/shaping.md

use abi::{POLICY_SHAPED, VM_FLAG_SHAPED};
use tables::VmEntry;
use wire::{be, ethernet};

use crate::packet::{Addr, Packet};
use crate::record::Recorder;
use crate::work::Work;
use crate::Frame;

/// The classes in which a packet waits, one after the other; 0: none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Classes {
    /// It waits in this one.
    pub first: u16,
    /// And then in this one.
    pub then: u16,
}

impl Classes {
    /// It does not wait.
    pub const NONE: Classes = Classes { first: 0, then: 0 };

    /// Of who sends, and of who gets it.
    pub fn new(from: u16, to: u16) -> Classes {
        match from {
            0 => Classes { first: to, then: 0 },
            _ => Classes { first: from, then: to },
        }
    }

    /// It waits.
    #[inline(always)]
    pub fn wait(self) -> bool {
        self.first != 0
    }
}

impl Packet {
    /// The classes in which it waits when it leaves.
    #[inline(always)]
    pub fn classes(&self) -> Classes {
        match self.leaves {
            Some((circuit, _)) => Classes::new(self.sends, circuit.class),
            None => Classes::new(self.sends, self.gets),
        }
    }
}

/// Asks whether the VM that sends a packet is shaped, or mirrored, and returns its entry. The packet may have come by a VM port or from an NC, which
/// names no VM: then its address does.
#[cold]
pub(crate) fn sender<R: Recorder>(w: &Work<'_, R>, p: &mut Packet, f: &Frame<'_>) -> Option<VmEntry> {
    if w.tables.policy(&p.tenant) & POLICY_SHAPED == 0 {
        return None;
    }
    let ip = p.inner_frame(f).get(ethernet::HEADER_LEN..).unwrap_or(&[]);
    let (vni, generation) = (p.vni, p.tenant.generation());
    let vm = match (p.v6(), ip.len()) {
        (true, 24..) => w.tables.vm6(vni, (be::u64(ip, 8), be::u64(ip, 16)), generation),
        (false, 16..) => w.tables.vm4(vni, Addr::v4(be::u32(ip, 12)).as_v4(), generation),
        _ => None,
    };
    let vm = vm.filter(|vm| vm.flags & VM_FLAG_SHAPED != 0)?;
    (p.back, p.sends) = w.tables.vm_classes(vni, vm.mac).unwrap_or_default();
    Some(vm)
}

/// The destination is a VM that is shaped.
#[cold]
pub(crate) fn receiver<R: Recorder>(w: &Work<'_, R>, p: &mut Packet) {
    p.gets = w.tables.vm_classes(p.dst_vpc().vni, p.vm.mac).map_or(0, |(to, _)| to);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_sends_comes_first() {
        assert_eq!(Classes::new(3, 4), Classes { first: 3, then: 4 });
        assert_eq!(Classes::new(0, 4), Classes { first: 4, then: 0 });
        assert_eq!(Classes::new(3, 0), Classes { first: 3, then: 0 });
        assert_eq!((Classes::new(0, 0), Classes::NONE.wait()), (Classes::NONE, false));
    }
}
