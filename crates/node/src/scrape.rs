// SPDX-License-Identifier: Apache-2.0
//! Metrics over TCP. Strangers may reach this port, so nobody holds it: a connection is one request, its head must be there within
//! seconds, its answer must be taken within half a minute, and there are so many at once, of one address fewer, so that a
//! stranger does not keep the scraper out. Two answers are made at a time.

use crate::service::Node;
use axum::extract::{Query, State};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::Router;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

/// Time for the head of a request.
const HEAD: Duration = Duration::from_secs(5);
/// Time for all of a connection.
const WHOLE: Duration = Duration::from_secs(30);
/// Connections at a time.
const CONNECTIONS: usize = 64;
/// Those of one address.
const OF_ONE: usize = 8;
/// Answers that are made at a time.
const ANSWERS: usize = 2;
/// Bytes of a head at most.
const HEAD_BYTES: usize = 16 << 10;

/// Connections by address.
type Open = Arc<Mutex<HashMap<IpAddr, usize>>>;

/// The place of a connection, which is free again when it ends.
struct Place(Open, IpAddr);

impl Place {
    fn take(open: &Open, peer: IpAddr) -> Option<Place> {
        let mut list = open.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if list.values().sum::<usize>() >= CONNECTIONS || list.get(&peer).is_some_and(|n| *n >= OF_ONE) {
            return None;
        }
        *list.entry(peer).or_default() += 1;
        Some(Place(open.clone(), peer))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut list = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(n) = list.get_mut(&self.1) {
            *n -= 1;
            if *n == 0 {
                list.remove(&self.1);
            }
        }
    }
}

#[derive(Clone)]
struct Shared {
    node: Arc<Node>,
    answers: Arc<Semaphore>,
}

async fn metrics(
    State(shared): State<Shared>,
    query: Query<crate::api::MetricsQuery>,
    headers: axum::http::HeaderMap,
) -> Response {
    let Ok(_turn) = shared.answers.acquire().await else { return axum::http::StatusCode::SERVICE_UNAVAILABLE.into_response() };
    crate::api::metrics(State(shared.node.clone()), query, headers).await
}

/// Serves the metrics alone.
pub async fn serve(node: Arc<Node>, listener: TcpListener) {
    let shared = Shared { node, answers: Arc::new(Semaphore::new(ANSWERS)) };
    let app = Router::new().route("/metrics", get(metrics)).with_state(shared);
    let open = Open::default();
    loop {
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(e) => {
                // For want of descriptors, as likely as not: that passes.
                tracing::warn!("metrics: a connection cannot be taken: {e}");
                tokio::time::sleep(Duration::from_secs(1)).await;
                continue;
            }
        };
        match Place::take(&open, peer.ip()) {
            Some(place) => drop(tokio::spawn(serve_one(app.clone(), stream, place))),
            None => refuse(&stream),
        }
    }
}

async fn serve_one(app: Router, stream: TcpStream, place: Place) {
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .max_buf_size(HEAD_BYTES)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(app));
    // Who hangs up or is too slow gets no answer, and needs no word about it.
    let _ = tokio::time::timeout(WHOLE, connection).await;
    drop(place);
}

fn refuse(stream: &TcpStream) {
    let why = format!("{CONNECTIONS} connections are open, or {OF_ONE} from this address: close some, or try again\n");
    let head = "HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\ncontent-type: text/plain";
    // What does not fit at once is not worth waiting for.
    let _ = stream.try_write(format!("{head}\r\ncontent-length: {}\r\n\r\n{why}", why.len()).as_bytes());
}
