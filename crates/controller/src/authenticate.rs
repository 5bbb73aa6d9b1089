// SPDX-License-Identifier: Apache-2.0
//! Who asks: by a token, or by the certificate of the connection. A credential that is not known, has ended or was revoked, and one whose
//! Role is gone, opens nothing.

use crate::refusal::Refusal;
use crate::service::{now_ms, Caller, Controller};
use axum::http::{header, HeaderMap};
use controller_core::access::Principal;
use controller_core::credentials::{hash, Sort};
use std::net::SocketAddr;

/// What is known of a connection.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Where it comes from.
    pub address: SocketAddr,
    /// The hash of its certificate, which is of the region's CA.
    pub certificate: Option<String>,
    /// It is another controller of the region, which says for whom it speaks.
    pub controller: bool,
}

/// For whom a controller speaks: the hash of the credential, its sort, and where the request came from.
pub const FOR: &str = "tunny-for";

/// The credential of a request.
pub fn credential(peer: &Peer, headers: &HeaderMap) -> Result<(String, Sort), Refusal> {
    let unknown = |why: &str| {
        Refusal::Unknown(format!("{why}: give a token (`Authorization: Bearer …`) or a client certificate that `tunny credential create` made"))
    };
    if peer.controller {
        let words = headers.get(FOR).and_then(|v| v.to_str().ok()).map(|v| v.split(' ').collect::<Vec<_>>());
        return match words.as_deref() {
            Some([hash, "token", _]) => Ok((hash.to_string(), Sort::Token)),
            Some([hash, "certificate", _]) => Ok((hash.to_string(), Sort::Certificate)),
            _ => Err(unknown("a controller does not say for whom it speaks")),
        };
    }
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
    let core = controller.core();
    let found = core.credentials.get(hash).filter(|c| c.holds(*sort, now_ms()));
    let found =
        found.ok_or_else(|| Refusal::Unknown("this credential is not known here, has ended or was revoked".into()))?;
    let principal = Principal::of(core.region.model(), &found.role);
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
pub fn caller(
    controller: &Controller,
    peer: &Peer,
    headers: &HeaderMap,
    credential: (String, Sort),
) -> Result<Caller, Refusal> {
    let principal = principal(controller, &credential)?;
    let said = headers.get(FOR).filter(|_| peer.controller).and_then(|v| v.to_str().ok()?.split(' ').nth(2));
    let from = said.map_or_else(|| peer.address.to_string(), String::from);
    Ok(Caller { principal, credential, from })
}
