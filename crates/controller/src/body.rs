// SPDX-License-Identifier: Apache-2.0
//! Reading a request's body: as far as a limit, and as long as something comes.

use crate::refusal::Refusal;
use axum::body::{Body, Bytes};
use http_body_util::BodyExt;
use hyper::body::{Frame, Incoming, SizeHint};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

/// Longest body of an operator's change: documents of millions of objects.
pub const CHANGE_MAX: usize = 2 << 30;
/// Longest body of a tenant's change.
pub const TENANT_MAX: usize = 32 << 20;
/// Longest body of anything else.
pub const SMALL_MAX: usize = 64 << 10;
/// Nothing may come for so long.
const IDLE: Duration = Duration::from_secs(20);

/// Bytes of a refused request that are read nevertheless, and for how long.
const REST_MAX: usize = 8 << 20;
const REST: Duration = Duration::from_secs(2);

/// A body of which the rest is read, as far as a limit, when nobody wants it: a connection that is closed while the other end still
/// writes is reset, and the other end does not see the answer.
pub struct Whole(Option<Incoming>);

impl Whole {
    /// As it comes in.
    pub fn new(body: Incoming) -> Whole {
        Whole(Some(body))
    }
}

impl hyper::body::Body for Whole {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        self.get_mut().0.as_mut().map_or(Poll::Ready(None), |body| Pin::new(body).poll_frame(cx))
    }

    fn is_end_stream(&self) -> bool {
        self.0.as_ref().is_none_or(Incoming::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.0.as_ref().map_or_else(SizeHint::default, Incoming::size_hint)
    }
}

impl Drop for Whole {
    fn drop(&mut self) {
        let Some(mut body) = self.0.take().filter(|body| !hyper::body::Body::is_end_stream(body)) else { return };
        let rest = async move {
            let mut left = REST_MAX;
            while let Some(Ok(frame)) = body.frame().await {
                let Some(less) = left.checked_sub(frame.data_ref().map_or(0, Bytes::len)) else { return };
                left = less;
            }
        };
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(tokio::time::timeout(REST, rest));
        }
    }
}

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
