// SPDX-License-Identifier: Apache-2.0
//! How large each VPC is, kept by the changes: what placement counts a tenant as, without reading what is in it.

use super::placement::Amounts;
use model::{Kind, Model, Name, Object, Pair};
use std::collections::HashMap;

/// VMs and routes by VPC.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sizes(HashMap<Name, (u64, u64)>);

impl Sizes {
    /// Of a model.
    pub fn of(model: &Model) -> Sizes {
        let mut sizes = Sizes::default();
        for kind in [Kind::Vm, Kind::Route] {
            model.objects(kind).for_each(|o| sizes.count(&o, true));
        }
        sizes
    }

    /// Follows a change.
    pub fn follow(&mut self, pairs: &[Pair]) {
        for (before, after) in pairs {
            before.iter().for_each(|o| self.count(o, false));
            after.iter().for_each(|o| self.count(o, true));
        }
    }

    fn count(&mut self, object: &Object, comes: bool) {
        if !matches!(object.kind(), Kind::Vm | Kind::Route) {
            return;
        }
        for vpc in object.vpcs() {
            let (vms, routes) = self.0.entry(vpc.clone()).or_default();
            let n = if object.kind() == Kind::Vm { &mut *vms } else { &mut *routes };
            *n = if comes { *n + 1 } else { n.saturating_sub(1) };
            if (*vms, *routes) == (0, 0) {
                self.0.remove(vpc);
            }
        }
    }

    /// What VPCs need of tables.
    pub fn amounts<'n>(&self, vpcs: impl IntoIterator<Item = &'n Name>) -> Amounts {
        let of = |vpc| {
            let (vms, routes) = self.0.get(vpc).copied().unwrap_or_default();
            Amounts([1, routes, vms, 0, 0, 0])
        };
        vpcs.into_iter().map(of).sum()
    }
}
