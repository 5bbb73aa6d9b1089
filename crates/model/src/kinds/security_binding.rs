// SPDX-License-Identifier: Apache-2.0

use super::{check_vm_name, Described, Kind, Name};
use crate::broken::stand_ins;
use crate::declare::fields;
use crate::doc::{check_name, Doc};
use crate::error::Problem;
use crate::forms::*;
use crate::prefix::Prefix;
use crate::schema::REQUIRED;

fields! {
    /// VMs, servers and prefixes of a VPC, and their security groups. As soon as a VPC has one, its inner sources are checked: a VM may send from its own addresses alone.
    pub kind SecurityBinding {
        /// Name, unique among the documents of its kind.
        name: Name = "metadata.name", OwnName;
        /// The VPC whose members these are.
        vpc: Name = "spec.vpc", name_of(Kind::Vpc, "name of a Vpc").required(stand_ins::name);
        /// VMs, with all their addresses. At least one of vms, servers and prefixes is needed.
        vms: Vec<Name> = "spec.vms", any_name("", check_vm_name).list(65_536, "Vms of the Vpc");
        /// Servers, with all their addresses.
        servers: Vec<Name> = "spec.servers", any_name("", check_name).list(65_536, "Servers of the Vpc");
        /// Addresses, whoever has them. A VM of its own counts before a prefix, a longer prefix before a shorter. They may send though they are no Vm's.
        prefixes: Vec<Prefix> = "spec.prefixes", members().list(65_536, "addresses or prefixes, without bits behind the length");
        /// Their groups. Of the rules of several groups the same decides as of one.
        groups: Vec<Name> = "spec.groups", any_name("", check_name).list(filter::GROUPS_OF_MEMBER, "up to 16 SecurityGroups").meaning(REQUIRED);
    }
}

impl Described for SecurityBinding {
    const OF_VPCS: bool = true;

    fn name(&self) -> Name {
        self.name.clone()
    }

    fn summary(&self) -> String {
        let members =
            format!("{} VMs, {} servers, {} prefixes", self.vms.len(), self.servers.len(), self.prefixes.len());
        format!("{} in {}: {members}", self.groups.join(", "), self.vpc)
    }

    fn vpcs(&self) -> &[Name] {
        std::slice::from_ref(&self.vpc)
    }

    fn check(self, doc: &mut Doc<'_>) -> Option<SecurityBinding> {
        let needed: [&[&str]; 2] = [&["spec.vms", "spec.servers", "spec.prefixes"], &["spec.groups"]];
        for paths in needed {
            if paths.iter().all(|path| doc.node(path).is_none()) {
                doc.wrong(paths[0], Problem::Missing);
            }
        }
        Some(self)
    }
}
