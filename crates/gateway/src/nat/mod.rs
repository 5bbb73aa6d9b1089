// SPDX-License-Identifier: Apache-2.0
//! The ways to the Internet and back: translation, ICMP errors.
//!
//! The order of checks is that of `docs/design/packet-nat.md` and `packet-nat-in.md`; what a session is, of `docs/design/sessions.md`.
//! [`outward`] and [`inward`] decide; [`translate`] and [`related`] change bytes; [`send`] is the way out without a tunnel (a
//! packet inwards takes the stages locate to emit like any other).

pub(crate) mod answer;
pub(crate) mod inward;
pub(crate) mod outward;
pub(crate) mod related;
pub(crate) mod send;
pub(crate) mod translate;

use abi::{Stage, Vni};
use conntrack::nat::{Binding, Flow, PublicEndpoint, Translator};
use conntrack::{InnerKey, OuterKey, SessionRef};
use parking_lot::RwLock;
use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;

use crate::connections::SessionView;
use crate::packet::Packet;
use crate::record::{Event, Recorder};
use crate::work::Work;

/// What translates, and to where nobody is translated.
pub struct Nat {
    pub(crate) translator: Arc<Translator>,
    tunnel_ends: RwLock<Arc<HashSet<IpAddr>>>,
}

impl Nat {
    pub(crate) fn new(translator: Arc<Translator>) -> Nat {
        Nat { translator, tunnel_ends: RwLock::default() }
    }

    /// The translator.
    pub fn translator(&self) -> &Arc<Translator> {
        &self.translator
    }

    /// The tunnel addresses of all NCs, which no VM may reach by way of the Internet: a VTEP believes whatever comes to it in a tunnel.
    pub fn tunnel_ends(&self) -> Arc<HashSet<IpAddr>> {
        self.tunnel_ends.read().clone()
    }

    /// Brings other tunnel addresses into force. Sessions to new ones end with the next sweep.
    pub fn set_tunnel_ends(&self, ends: Arc<HashSet<IpAddr>>) {
        *self.tunnel_ends.write() = ends;
    }
}

/// What a session stands for, in the translator's words.
pub(crate) fn binding(inner: &InnerKey, outer: &OuterKey) -> Binding {
    let flow = Flow {
        vni: inner.vni(),
        proto: inner.proto(),
        vm_addr: inner.vm(),
        vm_port: inner.vm_port(),
        remote: inner.remote(),
        remote_port: inner.remote_port(),
    };
    Binding { flow, public: PublicEndpoint { addr: outer.public(), port: outer.public_port() } }
}

/// The inner key of a packet or of what it quotes.
pub(crate) fn inner_key(vni: Vni, proto: u8, vm: IpAddr, remote: IpAddr, (near, far): (u16, u16)) -> Option<InnerKey> {
    match (vm, remote) {
        (IpAddr::V4(vm), IpAddr::V4(remote)) => {
            Some(InnerKey::v4(vni, proto, vm.to_bits(), near, remote.to_bits(), far))
        }
        (IpAddr::V6(vm), IpAddr::V6(remote)) => {
            Some(InnerKey::v6(vni, proto, vm.to_bits(), near, remote.to_bits(), far))
        }
        _ => None,
    }
}

/// The outer key of a packet or of what it quotes.
pub(crate) fn outer_key(proto: u8, public: IpAddr, remote: IpAddr, (near, far): (u16, u16)) -> Option<OuterKey> {
    match (public, remote) {
        (IpAddr::V4(public), IpAddr::V4(remote)) => {
            Some(OuterKey::v4(proto, public.to_bits(), near, remote.to_bits(), far))
        }
        (IpAddr::V6(public), IpAddr::V6(remote)) => {
            Some(OuterKey::v6(proto, public.to_bits(), near, remote.to_bits(), far))
        }
        _ => None,
    }
}

/// Tells the recorder of the session at hand.
#[cold]
pub(crate) fn note<R: Recorder>(w: &mut Work<'_, R>, p: &Packet, sight: SessionView<'_>, session: SessionRef) {
    let found = sight.found(session);
    let state = sight.guard.record(session).state().name();
    let (inner, outer) = (format!("{:?}", found.inner), format!("{:?}", found.outer));
    w.note(p, Stage::Nat, Event::Session { inner, outer, state, inward: p.inward });
}
