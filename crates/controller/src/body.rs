// SPDX-License-Identifier: Apache-2.0
//! Reading a request's body: as far as a limit, and as long as something comes.

use crate::refusal::Refusal;
use axum::body::Body;
use http_body_util::BodyExt;
use std::time::Duration;

/// Longest body of an operator's change: documents of millions of objects.
pub const CHANGE_MAX: usize = 2 << 30;
/// Longest body of a tenant's change.
pub const TENANT_MAX: usize = 32 << 20;
/// Longest body of anything else.
pub const SMALL_MAX: usize = 64 << 10;
/// Nothing may come for so long.
const IDLE: Duration = Duration::from_secs(20);

/// The whole body.
pub async fn read(mut body: Body, most: usize) -> Result<Vec<u8>, Refusal> {
    let mut bytes = Vec::new();
    loop {
        let frame = tokio::time::timeout(IDLE, body.frame()).await;
        let slow = |_| Refusal::Slow(format!("nothing came for {} s in the middle of the request", IDLE.as_secs()));
        let Some(frame) = frame.map_err(slow)? else { return Ok(bytes) };
        let frame = frame.map_err(|e| Refusal::Unreadable(format!("the request broke off: {e}")))?;
        let data = frame.data_ref().map_or(&[][..], |d| &d[..]);
        if bytes.len() + data.len() > most {
            return Err(Refusal::Large(format!("the request has more than {most} bytes: split it")));
        }
        bytes.extend_from_slice(data);
    }
}

/// A body that is one JSON value.
pub async fn json<T: serde::de::DeserializeOwned>(body: Body) -> Result<T, Refusal> {
    let bytes = read(body, SMALL_MAX).await?;
    serde_json::from_slice(&bytes)
        .map_err(|e| Refusal::Wrong(vec![format!("the request does not say what it should: {e}")]))
}
