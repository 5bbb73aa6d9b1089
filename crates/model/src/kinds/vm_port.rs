// SPDX-License-Identifier: Apache-2.0

use super::{check_vm_name, Described, Engine, Name};
use crate::broken::stand_ins;
use crate::declare::fields;
use crate::forms::*;
use std::fmt;

const INTERFACE: &str =
    "an interface name of 1 to 15 characters, of no other VmPort, no EdgePort, no uplink and no wire";
const VM: &str = "name of a Vm of no other VmPort, whose Nc has this node's tunnel address";

const USER_DATA: &str = "text of at most 16384 bytes";

/// Whether a VM is answered at the metadata address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MetadataService {
    /// It is.
    #[default]
    On,
    /// It is, if it has a token, for which it must have asked.
    Token,
    /// It is not.
    Off,
}

impl MetadataService {
    /// Every choice with its text.
    pub const ALL: [(&'static str, MetadataService); 3] =
        [("on", MetadataService::On), ("token", MetadataService::Token), ("off", MetadataService::Off)];
}

/// User data of a VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserData(pub String);

impl UserData {
    /// Bytes at most, as elsewhere.
    const MAX: usize = 16_384;

    fn parse(s: &str) -> Result<UserData, String> {
        match s.len() {
            0..=Self::MAX => Ok(UserData(s.into())),
            n => Err(format!("it has {n} bytes")),
        }
    }
}

impl fmt::Display for UserData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

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
        /// Whether the VM is answered at the metadata address, 169.254.169.254 port 80. `token`: it must ask for a token first, so that a program of the VM that fetches addresses for others cannot be made to.
        metadata: MetadataService = "spec.metadata", choice(&MetadataService::ALL).or(MetadataService::On);
        /// What it is told there as user data: a script, or what cloud-init reads.
        user_data: Option<UserData> = "spec.userData", text("string", USER_DATA, UserData::parse).optional();
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
