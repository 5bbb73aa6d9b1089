// SPDX-License-Identifier: Apache-2.0

use super::{check_vm_name, Described, Engine, Name};
use crate::broken::stand_ins;
use crate::declare::fields;
use crate::forms::*;

const INTERFACE: &str =
    "an interface name of 1 to 15 characters, of no other VmPort, no EdgePort, no uplink and no wire";
const VM: &str = "name of a Vm of no other VmPort, whose Nc has this node's tunnel address";

fields! {
    /// A port of this node towards a VM that runs on it (`spec.vms: here` of the Gateway). MAC address, addresses, VPC and security groups are those of the Vm.
    pub kind VmPort {
        /// Name, unique among the documents of its kind.
        name: Name = "metadata.name", OwnName;
        /// The interface: the host's end of a veth pair, or a TAP. It needs no address; all that comes by it is the VM's.
        interface: String = "spec.interface", interface_name(INTERFACE).required(|| stand_ins::name().to_string());
        /// How it is served. `tc` keeps what a VM sends as one large segment whole, on its way to another port of the kernel.
        engine: Option<Engine> = "spec.engine", choice(&Engine::ALL).optional().meaning("as spec.engine of the Gateway");
        /// The VM behind it. What it sends comes from its MAC address and its addresses, or is dropped (`vm_port_mac`, `vm_port_source`).
        vm: Name = "spec.vm", any_name(VM, check_vm_name).required(stand_ins::name);
    }
}

impl Described for VmPort {
    fn name(&self) -> Name {
        self.name.clone()
    }

    fn summary(&self) -> String {
        format!("{} for {}", self.interface, self.vm)
    }
}
