// SPDX-License-Identifier: Apache-2.0
//! Who asks: by a token, or by the certificate of the connection. A credential that is not known, has ended or was revoked, and one whose
//! Role is gone, opens nothing.

use crate::core::access::Principal;
use crate::core::credentials::{hash, Sort};
use crate::refusal::Refusal;
use crate::service::{now_ms, Caller, Controller};
use axum::http::{header, HeaderMap};
use std::net::SocketAddr;

/// What is known of a connection.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Where it comes from.
    pub address: SocketAddr,
    /// The hash of its certificate, which is of the region's CA.
    pub certificate: Option<String>,
}

/// The credential of a request.
pub fn credential(peer: &Peer, headers: &HeaderMap) -> Result<(String, Sort), Refusal> {
    let unknown = |why: &str| {
        Refusal::Unknown(format!("{why}: give a token (`Authorization: Bearer …`) or a client certificate that `tunny credential create` made"))
    };
    match (headers.get(header::AUTHORIZATION), &peer.certificate) {
        (Some(value), _) => {
            let token = value.to_str().ok().and_then(|v| v.strip_prefix("Bearer "));
            let token = token.ok_or_else(|| unknown("the authorization is no token"))?;
            Ok((hash(token.trim().as_bytes()), Sort::Token))
        }
        (None, Some(certificate)) => Ok((certificate.clone(), Sort::Certificate)),
        (None, None) => Err(unknown("the request has no credential")),
    }
}

/// Who a credential is, now.
pub fn principal(controller: &Controller, (hash, sort): &(String, Sort)) -> Result<Principal, Refusal> {
    let found = crate::credentials::find(&*controller.store, hash, *sort, now_ms())?;
    let found =
        found.ok_or_else(|| Refusal::Unknown("this credential is not known here, has ended or was revoked".into()))?;
    let principal = Principal::of(controller.core().region.model(), &found.role);
    principal.ok_or_else(|| Refusal::Unknown(format!("Role `{}`, which this credential is for, is gone", found.role)))
}

/// A caller of an answer without an end: whether its credential still opens that.
pub struct Grant {
    caller: Caller,
    doubts: u64,
}

impl Grant {
    /// Of a caller who may ask now.
    pub fn of(controller: &Controller, caller: &Caller) -> Grant {
        Grant { caller: caller.clone(), doubts: controller.doubts() }
    }

    /// Who it is.
    pub fn principal(&self) -> &Principal {
        &self.caller.principal
    }

    /// Whether it still does. The store is asked only if a credential or a Role has changed since the last time.
    pub fn holds(&mut self, controller: &Controller) -> bool {
        let doubts = controller.doubts();
        doubts == std::mem::replace(&mut self.doubts, doubts) || self.opens(controller)
    }

    /// Whether it still does, by the store: it may have ended by itself.
    pub fn opens(&self, controller: &Controller) -> bool {
        principal(controller, &self.caller.credential).is_ok_and(|now| now == self.caller.principal)
    }
}

/// Who asks.
pub fn caller(controller: &Controller, peer: &Peer, credential: (String, Sort)) -> Result<Caller, Refusal> {
    let principal = principal(controller, &credential)?;
    Ok(Caller { principal, credential, from: peer.address.to_string() })
}
