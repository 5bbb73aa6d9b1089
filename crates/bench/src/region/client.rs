// SPDX-License-Identifier: Apache-2.0
//! A client of the controller whose requests share one connection (HTTP/2, mTLS), as those of a program that makes many changes do.

use crate::Error;
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper::{Method, Request};
use hyper_util::rt::{TokioExecutor, TokioIo};
use node::tls::Remote;
use serde::de::DeserializeOwned;

/// A connection.
#[derive(Clone)]
pub struct Link {
    sender: SendRequest<Full<Bytes>>,
    url: String,
}

impl Link {
    /// Connects. Must be called inside a runtime, in which the connection lives.
    pub async fn open(remote: &Remote) -> Result<Link, Error> {
        let failed = Error::failed("connecting to the controller");
        let stream = remote.connect("h2").await.map_err(failed)?;
        let made = Builder::new(TokioExecutor::new()).handshake(TokioIo::new(stream)).await;
        let (sender, connection) = made.map_err(Error::failed("connecting to the controller"))?;
        // What goes wrong on it those say who wait for an answer.
        tokio::spawn(async move { drop(connection.await) });
        Ok(Link { sender, url: remote.url().into() })
    }

    /// Asks for something; the body of the answer as it comes.
    pub async fn send(&self, method: Method, path: &str, body: impl Into<Bytes>) -> Result<Incoming, Error> {
        let what = format!("{method} {path}");
        let request = Request::builder().method(method).uri(format!("{}{path}", self.url));
        let request = request.header("content-type", "application/json").body(Full::new(body.into()));
        let request = request.map_err(Error::failed(&what))?;
        let response = self.sender.clone().send_request(request).await.map_err(Error::failed(&what))?;
        if response.status().is_success() {
            return Ok(response.into_body());
        }
        let status = response.status();
        let text = response.into_body().collect().await.map_err(Error::failed(&what))?.to_bytes();
        Err(Error::Failed { what, why: format!("{status}: {}", String::from_utf8_lossy(&text)) })
    }

    /// The same, and the whole answer is one JSON value.
    pub async fn json<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: impl Into<Bytes>,
    ) -> Result<T, Error> {
        let body = self.send(method, path, body).await?;
        let text = body.collect().await.map_err(Error::failed(path))?.to_bytes();
        serde_json::from_slice(&text).map_err(Error::failed(path))
    }
}
