// SPDX-License-Identifier: Apache-2.0
//! A blocking client of the node's API, for commands and tests.

use crate::tls::Remote;
use crate::types::{ErrorBody, ListEnd, LIST_END};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::{Method, Request, Response};
use serde::de::DeserializeOwned;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::io::{AsyncRead, AsyncWrite};

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The socket is there, and may not be opened.
    #[error("no permission to open {}: {}", path.display(), access(group))]
    NotPermitted {
        /// The socket.
        path: PathBuf,
        /// The group that may open it.
        group: String,
    },
    /// Nobody listens.
    #[error("no node listens on {}: {source}; is `tunny node` running, and is this its --instance (or --socket)?", path.display())]
    NotRunning {
        /// The socket.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// No controller answers.
    #[error("the controller at {url} cannot be reached: {why}")]
    NotReached {
        /// Where it should be.
        url: String,
        /// What went wrong.
        why: String,
    },
    /// The node refused.
    #[error("{}", .0.errors.join("\n"))]
    Refused(ErrorBody),
    /// The connection broke.
    #[error("the node hung up in the middle of its answer: {0}; look at its log")]
    Broken(String),
    /// The answer is not what this version expects.
    #[error("the node answers what this `tunny` does not understand ({0}); are both of one version?")]
    Version(String),
}

/// Who may open the socket, and how to be one of them. The group of root is none to join: it may do more than that.
fn access(group: &str) -> String {
    match group {
        "root" => "it is for root alone: run this with sudo, or give the node's service a group of its own (`Group=` in its unit) and join that".into(),
        _ => format!("it is for root and the group {group}: run this with sudo, or join the group (`usermod -aG {group} USER`, then log in again)"),
    }
}

/// Where requests go.
#[derive(Debug)]
enum Place {
    Socket(PathBuf),
    Remote(Box<Remote>),
}

/// A client of one node, or of a controller.
#[derive(Debug)]
pub struct Client {
    place: Place,
    runtime: tokio::runtime::Runtime,
    age_ms: AtomicU64,
}

impl Client {
    /// A client for the node that listens on `socket`. Connects with the first request.
    pub fn new(socket: &Path) -> std::io::Result<Self> {
        Self::of(Place::Socket(socket.to_path_buf()))
    }

    /// A client for a controller. Connects with the first request.
    pub fn remote(remote: Remote) -> std::io::Result<Self> {
        Self::of(Place::Remote(Box::new(remote)))
    }

    fn of(place: Place) -> std::io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        Ok(Self { place, runtime, age_ms: AtomicU64::new(0) })
    }

    /// How old what was answered last may be, in milliseconds: a controller that follows another one says so.
    pub fn age_ms(&self) -> u64 {
        self.age_ms.load(Ordering::Relaxed)
    }

    /// Whether it speaks to a controller.
    pub fn is_remote(&self) -> bool {
        matches!(self.place, Place::Remote(_))
    }

    /// Asks for something.
    pub fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.json(Method::GET, path, Vec::new())
    }

    /// Sends something and returns the answer.
    pub fn post<T: DeserializeOwned>(&self, path: &str, body: Vec<u8>) -> Result<T, ClientError> {
        self.json(Method::POST, path, body)
    }

    /// Takes something away and returns the answer.
    pub fn delete<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.json(Method::DELETE, path, Vec::new())
    }

    /// Hands on an answer that has no end line by line, until it ends all the same or `take` returns false. `take` is also called with
    /// an empty line whenever nothing came for `idle`.
    pub fn follow(
        &self,
        path: &str,
        idle: std::time::Duration,
        mut take: impl FnMut(&[u8]) -> bool,
    ) -> Result<(), ClientError> {
        let mut rest: Vec<u8> = Vec::new();
        self.pieces(Method::GET, path, Vec::new(), idle, |piece| {
            if piece.is_empty() {
                return take(&[]);
            }
            rest.extend_from_slice(piece);
            let whole = rest.iter().rposition(|b| *b == b'\n').map_or(0, |at| at + 1);
            let lines: Vec<u8> = rest.drain(..whole).collect();
            lines.split(|b| *b == b'\n').filter(|line| !line.is_empty()).all(&mut take)
        })
    }

    /// The answer as it is.
    pub fn text(&self, path: &str) -> Result<String, ClientError> {
        self.runtime.block_on(async {
            let body = self.answer(Method::GET, path, Vec::new()).await?;
            String::from_utf8(body.to_vec()).map_err(|e| ClientError::Version(e.to_string()))
        })
    }

    /// Hands on a listing line by line, until `take` fails; how it ended.
    pub fn lines<E>(
        &self,
        path: &str,
        take: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<Result<ListEnd, E>, ClientError> {
        self.lines_of(Method::GET, path, Vec::new(), take)
    }

    /// The same of a listing that the body chooses.
    pub fn post_lines<E>(
        &self,
        path: &str,
        body: Vec<u8>,
        take: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<Result<ListEnd, E>, ClientError> {
        self.lines_of(Method::POST, path, body, take)
    }

    fn lines_of<E>(
        &self,
        method: Method,
        path: &str,
        body: Vec<u8>,
        mut take: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<Result<ListEnd, E>, ClientError> {
        /// The last line.
        #[derive(serde::Deserialize)]
        struct End {
            end: ListEnd,
        }
        let (mut rest, mut end, mut failed) = (Vec::new(), None, None);
        let hour = std::time::Duration::from_secs(3600);
        self.pieces(method, path, body, hour, |piece| {
            rest.extend_from_slice(piece);
            let mut begin = 0;
            while let Some(n) = rest[begin..].iter().position(|b| *b == b'\n') {
                let line = &rest[begin..begin + n];
                begin += n + 1;
                if line.starts_with(LIST_END) {
                    end = serde_json::from_slice::<End>(line).ok();
                } else if let Err(e) = take(line) {
                    failed = Some(e);
                    return false;
                }
            }
            rest.drain(..begin);
            true
        })?;
        match (failed, end) {
            (Some(e), _) => Ok(Err(e)),
            (None, Some(End { end })) => Ok(Ok(end)),
            (None, None) => Err(ClientError::Broken("the listing has no end".into())),
        }
    }

    /// A whole listing that is known to be short.
    pub fn list<T: DeserializeOwned>(&self, path: &str) -> Result<Vec<T>, ClientError> {
        let mut list = Vec::new();
        let end = self.lines(path, |line| {
            list.push(serde_json::from_slice(line).map_err(|e| ClientError::Version(e.to_string()))?);
            Ok::<(), ClientError>(())
        })??;
        if end.error.is_empty() {
            Ok(list)
        } else {
            Err(ClientError::Broken(end.error))
        }
    }

    /// Sends something and hands on the answer piece by piece, until it ends or `take` returns false. `take` is also called
    /// with an empty piece whenever nothing came for `idle`.
    pub fn stream(
        &self,
        path: &str,
        body: Vec<u8>,
        idle: std::time::Duration,
        take: impl FnMut(&[u8]) -> bool,
    ) -> Result<(), ClientError> {
        self.pieces(Method::POST, path, body, idle, take)
    }

    /// Hands on the answer piece by piece, until it ends or `take` returns false.
    pub fn get_pieces(&self, path: &str, mut take: impl FnMut(&[u8]) -> bool) -> Result<(), ClientError> {
        let idle = std::time::Duration::from_secs(60);
        self.pieces(Method::GET, path, Vec::new(), idle, |piece| !piece.is_empty() && take(piece))
    }

    fn pieces(
        &self,
        method: Method,
        path: &str,
        body: Vec<u8>,
        idle: std::time::Duration,
        mut take: impl FnMut(&[u8]) -> bool,
    ) -> Result<(), ClientError> {
        self.runtime.block_on(async {
            let mut incoming = self.request(method, path, body).await?.into_body();
            loop {
                match tokio::time::timeout(idle, incoming.frame()).await {
                    Err(_) => {
                        if !take(&[]) {
                            return Ok(());
                        }
                    }
                    Ok(None) => return Ok(()),
                    Ok(Some(Err(e))) => return Err(ClientError::Broken(e.to_string())),
                    Ok(Some(Ok(frame))) => {
                        if frame.data_ref().is_some_and(|data| !take(data)) {
                            return Ok(());
                        }
                    }
                }
            }
        })
    }

    fn json<T: DeserializeOwned>(&self, method: Method, path: &str, body: Vec<u8>) -> Result<T, ClientError> {
        self.runtime.block_on(async {
            let answer = self.answer(method, path, body).await?;
            serde_json::from_slice(&answer).map_err(|e| ClientError::Version(e.to_string()))
        })
    }

    async fn answer(&self, method: Method, path: &str, body: Vec<u8>) -> Result<Bytes, ClientError> {
        let response = self.request(method, path, body).await?;
        let collected = response.into_body().collect().await.map_err(|e| ClientError::Broken(e.to_string()))?;
        Ok(collected.to_bytes())
    }

    async fn request(&self, method: Method, path: &str, body: Vec<u8>) -> Result<Response<Incoming>, ClientError> {
        match &self.place {
            Place::Socket(socket) => {
                let stream = tokio::net::UnixStream::connect(socket).await.map_err(|e| not_connected(socket, e))?;
                self.request_over(stream, None, method, path, body).await
            }
            Place::Remote(remote) => {
                let not_reached = |why| ClientError::NotReached { url: remote.url().into(), why };
                let stream = remote.connect("http/1.1").await.map_err(not_reached)?;
                self.request_over(stream, remote.authorization(), method, path, body).await
            }
        }
    }

    async fn request_over<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
        &self,
        stream: S,
        authorization: Option<String>,
        method: Method,
        path: &str,
        body: Vec<u8>,
    ) -> Result<Response<Incoming>, ClientError> {
        let broken = |e: hyper::Error| ClientError::Broken(sentence(&e));
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(hyper_util::rt::TokioIo::new(stream)).await.map_err(broken)?;
        tokio::spawn(async move {
            // An error of the connection shows up at the request.
            let _ = connection.await;
        });
        let mut request = Request::builder();
        if let Some(authorization) = authorization {
            request = request.header("authorization", authorization);
        }
        let request = request
            .method(method)
            .uri(path)
            .header("host", "tunny")
            .header("content-type", crate::body::content_type(&body))
            .body(Full::new(Bytes::from(body)))
            .map_err(|e| ClientError::Version(e.to_string()))?;
        let response = sender.send_request(request).await.map_err(broken)?;
        let age = response.headers().get(crate::distribution::AGE).and_then(|v| v.to_str().ok()?.parse().ok());
        self.age_ms.store(age.unwrap_or(0), Ordering::Relaxed);
        if response.status().is_success() {
            return Ok(response);
        }
        let status = response.status();
        let text = response.into_body().collect().await.map_err(|e| ClientError::Broken(e.to_string()))?.to_bytes();
        Err(match serde_json::from_slice::<ErrorBody>(&text) {
            Ok(body) => ClientError::Refused(body),
            Err(_) => ClientError::Version(format!("{status}: {}", String::from_utf8_lossy(&text))),
        })
    }
}

/// An error with its cause: of a refused certificate only that says what was wrong.
fn sentence(e: &hyper::Error) -> String {
    match std::error::Error::source(e) {
        Some(cause) => format!("{e}: {cause}"),
        None => e.to_string(),
    }
}

fn not_connected(socket: &Path, source: std::io::Error) -> ClientError {
    use std::os::unix::fs::MetadataExt;
    let path = socket.to_path_buf();
    if source.kind() != std::io::ErrorKind::PermissionDenied {
        return ClientError::NotRunning { path, source };
    }
    // Of a folder that may not be entered, the folder's group.
    let owner =
        [Some(socket), socket.parent()].into_iter().flatten().find_map(|p| std::fs::metadata(p).ok()).map(|m| m.gid());
    let group = owner.and_then(|gid| nix::unistd::Group::from_gid(nix::unistd::Gid::from_raw(gid)).ok().flatten());
    ClientError::NotPermitted { path, group: group.map_or("tunny".into(), |g| g.name) }
}

/// Percent-encodes one segment or value of a request path.
pub fn escape(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            out.push(byte as char);
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}
