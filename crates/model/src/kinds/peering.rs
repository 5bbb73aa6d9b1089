// SPDX-License-Identifier: Apache-2.0

use super::{Described, Kind, Name};
use crate::broken::stand_ins;
use crate::declare::{fields, Field, Form, Referred, Slot};
use crate::doc::Doc;
use crate::error::Problem;
use crate::forms::*;
use crate::written::Written;

fields! {
    /// Two VPCs that agreed to reach each other. Each side agrees by naming it in `spec.peerings`; routes decide what is reached.
    pub kind Peering {
        /// Name, unique among the documents of its kind.
        name: Name = "metadata.name", OwnName;
        /// The two VPCs. Routes of scope `peer` may lead from either to the other.
        vpcs: [Name; 2] = "spec.vpcs", TwoVpcs;
    }
}

impl Described for Peering {
    const OF_VPCS: bool = true;

    fn name(&self) -> Name {
        self.name.clone()
    }

    fn summary(&self) -> String {
        format!("{} and {}", self.vpcs[0], self.vpcs[1])
    }

    fn vpcs(&self) -> &[Name] {
        &self.vpcs
    }

    fn check(self, _: &mut Doc<'_>) -> Option<Peering> {
        // With another VPC it would be another peering.
        (!self.vpcs.iter().any(stand_ins::is)).then_some(self)
    }
}

struct TwoVpcs;

impl TwoVpcs {
    const ALLOWED: &str = "names of two different Vpcs that both list this Peering in spec.peerings";
    const VPC: NameOf = name_of(Kind::Vpc, "");
}

impl Slot for TwoVpcs {
    type Value = [Name; 2];

    fn rows(&self, path: &str, meaning: &str, out: &mut Vec<Field>) {
        let from = out.len();
        Self::VPC.list(2, Self::ALLOWED).full().rows(path, meaning, out);
        out[from].ty = "list of two names".into();
    }

    fn usual(&self) -> [Name; 2] {
        [stand_ins::name(), stand_ins::name()]
    }

    fn read(&self, doc: &mut Doc<'_>, path: &str) -> [Name; 2] {
        if !doc.must_exist(path) {
            return self.usual();
        }
        let found = doc.list(path, 2, &Self::VPC);
        let count = found.len();
        found.try_into().unwrap_or_else(|_| {
            if !doc.is_wrong(path) {
                doc.wrong(path, Problem::Value(format!("has {count} entries")));
            }
            self.usual()
        })
    }

    fn write(&self, value: &[Name; 2], out: &mut Written, path: &str) {
        out.list(path, &Self::VPC, value);
    }

    fn references(&self, value: &[Name; 2], path: &str, out: Referred<'_>) {
        value.iter().enumerate().for_each(|(i, vpc)| out(Kind::Vpc, vpc, &|| format!("{path}[{i}]")));
    }
}
