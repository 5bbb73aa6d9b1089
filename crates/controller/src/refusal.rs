// SPDX-License-Identifier: Apache-2.0
//! Why a request is refused, as a problem document (RFC 9457). Beside its own members it has `errors`, one sentence each, and `code`, as
//! the errors of a node's API, so that whoever reads those reads these.

use crate::store::StoreError;
use axum::http::{header, StatusCode};
use axum::response::{IntoResponse, Response};
use node::error::NodeError;
use node::types::OUTDATED;
use serde_json::json;

/// Why a request is refused.
#[derive(Clone, Debug)]
pub enum Refusal {
    /// It cannot be read.
    Unreadable(String),
    /// Nobody knows who asks.
    Unknown(String),
    /// Who asks may not.
    Forbidden(String),
    /// What is named does not exist.
    Absent(String),
    /// It is of another kind of request than this path takes.
    Method(String),
    /// It took too long.
    Slow(String),
    /// Something changed meanwhile.
    Outdated(Vec<String>),
    /// What is asked for is no longer kept.
    Compacted(String),
    /// It is too large.
    Large(String),
    /// What it says is wrong.
    Wrong(Vec<String>),
    /// The store does not take it.
    Store(StoreError),
    /// Another controller of the region must do this, and cannot be reached; or nobody leads now.
    NotLed {
        /// Why.
        why: String,
        /// Who leads.
        leader: Option<String>,
    },
    /// The controller is at fault.
    Failed,
}

impl Refusal {
    /// The status of HTTP.
    pub fn status(&self) -> StatusCode {
        match self {
            Refusal::Unreadable(_) => StatusCode::BAD_REQUEST,
            Refusal::Unknown(_) => StatusCode::UNAUTHORIZED,
            Refusal::Forbidden(_) => StatusCode::FORBIDDEN,
            Refusal::Absent(_) => StatusCode::NOT_FOUND,
            Refusal::Method(_) => StatusCode::METHOD_NOT_ALLOWED,
            Refusal::Slow(_) => StatusCode::REQUEST_TIMEOUT,
            Refusal::Outdated(_) => StatusCode::CONFLICT,
            Refusal::Compacted(_) => StatusCode::GONE,
            Refusal::Large(_) => StatusCode::PAYLOAD_TOO_LARGE,
            Refusal::Wrong(_) => StatusCode::UNPROCESSABLE_ENTITY,
            Refusal::Store(_) | Refusal::NotLed { .. } => StatusCode::SERVICE_UNAVAILABLE,
            Refusal::Failed => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// One sentence an error.
    pub fn sentences(&self) -> Vec<String> {
        match self {
            Refusal::Unreadable(why)
            | Refusal::Unknown(why)
            | Refusal::Forbidden(why)
            | Refusal::Absent(why)
            | Refusal::Method(why)
            | Refusal::Slow(why)
            | Refusal::Compacted(why)
            | Refusal::Large(why) => vec![why.clone()],
            Refusal::Outdated(list) | Refusal::Wrong(list) => list.clone(),
            Refusal::NotLed { why, .. } => vec![why.clone()],
            Refusal::Store(e @ StoreError::Unknown(_)) => vec![e.to_string()],
            Refusal::Store(e) => vec![format!("nothing was changed: {e}")],
            Refusal::Failed => {
                vec!["the controller failed at this request; please report it, its log says more".into()]
            }
        }
    }

    fn title(&self) -> &'static str {
        match self {
            Refusal::Unreadable(_) => "The request cannot be read",
            Refusal::Unknown(_) => "No valid credential",
            Refusal::Forbidden(_) => "Not allowed for this role",
            Refusal::Absent(_) => "There is no such thing",
            Refusal::Method(_) => "Not done in this way",
            Refusal::Slow(_) => "The request took too long",
            Refusal::Outdated(_) => "Changed meanwhile",
            Refusal::Compacted(_) => "No longer kept",
            Refusal::Large(_) => "Too large",
            Refusal::Wrong(_) => "What is asked for is wrong",
            Refusal::Store(_) => "The store does not answer",
            Refusal::NotLed { .. } => "Nobody leads here now",
            Refusal::Failed => "The controller failed",
        }
    }

    fn code(&self) -> &'static str {
        match self {
            Refusal::Outdated(_) => OUTDATED,
            Refusal::Compacted(_) => "compacted",
            _ => "",
        }
    }

    /// As an error of a node, for the audit log.
    pub fn as_error(&self) -> NodeError {
        NodeError::Config(self.sentences())
    }
}

impl From<StoreError> for Refusal {
    fn from(e: StoreError) -> Refusal {
        match e {
            StoreError::Compacted(_) => Refusal::Compacted(e.to_string()),
            e => Refusal::Store(e),
        }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let (status, errors, code) = (self.status(), self.sentences(), self.code());
        let mut problem = json!({
            "type": "about:blank",
            "title": self.title(),
            "status": status.as_u16(),
            "detail": errors.first(),
            "errors": errors,
        });
        if !code.is_empty() {
            problem["code"] = code.into();
        }
        if let Refusal::NotLed { leader: Some(leader), .. } = &self {
            problem["leader"] = leader.as_str().into();
        }
        let kind = [(header::CONTENT_TYPE, "application/problem+json")];
        let mut response = (status, kind, problem.to_string()).into_response();
        if let Refusal::Unknown(_) = self {
            let challenge = header::HeaderValue::from_static("Bearer");
            response.headers_mut().insert(header::WWW_AUTHENTICATE, challenge);
        }
        response
    }
}
