// SPDX-License-Identifier: Apache-2.0
//! What the mirrors of a configuration become.

use abi::Vni;
use model::{Mirror, MirrorDirection, Model, Name};
use std::net::IpAddr;
use tables::RateLimit;

/// A mirror.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MirrorPlan {
    /// Its name.
    pub name: Name,
    /// Its VMs: VPC and MAC address.
    pub sources: Vec<(Vni, u64)>,
    /// What they send is copied.
    pub egress: bool,
    /// What they get is copied.
    pub ingress: bool,
    /// What of it; none: all.
    pub patterns: Vec<filter::Pattern>,
    /// Who gets copies.
    pub target: MirrorTarget,
    /// VNI of the copies.
    pub vni: Vni,
    /// Bytes of a frame that are copied at most; 0: all that fit.
    pub bytes: u16,
    /// Copies a second.
    pub limit: RateLimit,
}

/// Who gets copies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MirrorTarget {
    /// An address of the underlay.
    Address(IpAddr),
    /// A VM.
    Vm {
        /// Its name.
        name: Name,
        /// Its VPC.
        vni: Vni,
        /// Its address.
        address: IpAddr,
        /// The gateway's, from which copies come.
        from: IpAddr,
    },
}

/// The mirrors of the configuration as it is.
pub(crate) fn plan(model: &Model) -> Vec<MirrorPlan> {
    model.by_name().mirrors.values().filter_map(|m| mirror(model, m)).collect()
}

fn mirror(model: &Model, m: &Mirror) -> Option<MirrorPlan> {
    let target = match (&m.to_vm, m.to_address) {
        (Some(name), _) => {
            let (vni, address, from) = model.mirror_target(name)?;
            MirrorTarget::Vm { name: name.clone(), vni, address, from }
        }
        (None, address) => MirrorTarget::Address(address?),
    };
    Some(MirrorPlan {
        name: m.name.clone(),
        sources: model.sources_of(m).into_iter().map(|(vni, mac)| (vni, mac.0)).collect(),
        egress: m.direction != MirrorDirection::Ingress,
        ingress: m.direction != MirrorDirection::Egress,
        patterns: m.filter.clone(),
        target,
        vni: m.vni,
        bytes: m.bytes.unwrap_or(0),
        limit: crate::commit::limit(m.limit),
    })
}
