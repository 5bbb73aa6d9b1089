// SPDX-License-Identifier: Apache-2.0
//! Metrics over TCP. Strangers may reach this port, so nobody holds it: a connection is one request, its head must be there within
//! seconds, its answer must be taken within half a minute, and there are so many at once, of one address fewer, so that a
//! stranger does not keep the scraper out. When all places are taken, a connection that has asked for nothing yet makes room. Two
//! answers are made at a time.

use crate::service::Node;
use axum::extract::{Query, State};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::Router;
use hyper::service::Service;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use parking_lot::{Mutex, MutexGuard};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, Semaphore};

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

/// The open connections.
#[derive(Default)]
struct Door(Mutex<Open>);

#[derive(Default)]
struct Open {
    /// Numbers are given in order of arrival.
    next: u64,
    by_number: BTreeMap<u64, Guest>,
}

struct Guest {
    from: IpAddr,
    /// No request yet.
    idle: bool,
    leave: Arc<Notify>,
}

/// The place of a connection, which is free again when it ends.
struct Place {
    door: Arc<Door>,
    number: u64,
    /// Told when another connection needs the place.
    leave: Arc<Notify>,
}

impl Door {
    fn open(&self) -> MutexGuard<'_, Open> {
        self.0.lock()
    }

    /// A place for a connection. If all are taken, the oldest idle connection of the address with most idle ones loses its own.
    fn take(self: &Arc<Door>, peer: IpAddr) -> Option<Place> {
        let from = site(peer);
        let mut open = self.open();
        let of = |guests: &BTreeMap<u64, Guest>, from: IpAddr| guests.values().filter(|g| g.from == from).count();
        if of(&open.by_number, from) >= OF_ONE {
            return None;
        }
        if open.by_number.len() >= CONNECTIONS {
            let idle = |from: IpAddr| open.by_number.values().filter(|g| g.idle && g.from == from).count();
            let waiting = open.by_number.iter().filter(|(_, g)| g.idle);
            let (oldest, _) = waiting.max_by_key(|(number, g)| (idle(g.from), Reverse(**number)))?;
            let oldest = *oldest;
            open.by_number.remove(&oldest)?.leave.notify_one();
        }
        let (number, leave) = (open.next, Arc::new(Notify::new()));
        open.next += 1;
        open.by_number.insert(number, Guest { from, idle: true, leave: leave.clone() });
        Some(Place { door: self.clone(), number, leave })
    }
}

/// Whoever has one IPv6 address has a /64 of them.
fn site(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V6(a) => IpAddr::V6((u128::from(a) & (u128::MAX << 64)).into()),
        v4 => v4,
    }
}

impl Place {
    /// The head of a request is there.
    fn busy(&self) {
        if let Some(guest) = self.door.open().by_number.get_mut(&self.number) {
            guest.idle = false;
        }
    }

    fn is_idle(&self) -> bool {
        self.door.open().by_number.get(&self.number).is_none_or(|g| g.idle)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.door.open().by_number.remove(&self.number);
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
    let Ok(_turn) = shared.answers.acquire().await else {
        return axum::http::StatusCode::SERVICE_UNAVAILABLE.into_response();
    };
    crate::api::metrics(State(shared.node.clone()), query, headers).await
}

/// Serves the metrics alone.
pub async fn serve(node: Arc<Node>, listener: TcpListener) {
    let shared = Shared { node, answers: Arc::new(Semaphore::new(ANSWERS)) };
    let app = Router::new().route("/metrics", get(metrics)).with_state(shared);
    let door = Arc::<Door>::default();
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
        match door.take(peer.ip()) {
            Some(place) => drop(tokio::spawn(serve_one(app.clone(), stream, place))),
            None => say(&stream, "503 Service Unavailable", &busy()),
        }
    }
}

async fn serve_one(app: Router, stream: TcpStream, place: Place) {
    let (place, app) = (Arc::new(place), TowerToHyperService::new(app));
    let arrived = place.clone();
    let service = hyper::service::service_fn(move |request| {
        arrived.busy();
        app.call(request)
    });
    let mut connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .max_buf_size(HEAD_BYTES)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    let answered = std::future::poll_fn(|cx| connection.poll_without_shutdown(cx));
    let (status, why) = tokio::select! {
        // An error of the reader's making has been answered, or needs no answer, unless the head never came.
        done = answered => match done {
            Err(e) if e.is_timeout() => ("408 Request Timeout", format!("no request within {} s\n", HEAD.as_secs())),
            _ => return,
        },
        () = place.leave.notified() => ("503 Service Unavailable", busy()),
        () = tokio::time::sleep(WHOLE) => return,
    };
    if place.is_idle() {
        say(connection.into_parts().io.inner(), status, &why);
    }
}

fn busy() -> String {
    format!("{CONNECTIONS} connections are open, or {OF_ONE} from this address: close some, or try again\n")
}

/// An answer made by hand, to a connection that closes with it.
fn say(stream: &TcpStream, status: &str, why: &str) {
    let head = format!("HTTP/1.1 {status}\r\nconnection: close\r\ncontent-type: text/plain");
    // What does not fit at once is not worth waiting for.
    let _ = stream.try_write(format!("{head}\r\ncontent-length: {}\r\n\r\n{why}", why.len()).as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::Future;

    fn many(door: &Arc<Door>, hosts: std::ops::Range<u8>) -> Vec<Place> {
        hosts
            .flat_map(|host| (0..OF_ONE).map(move |_| host))
            .map(|host| door.take([192, 0, 2, host].into()).unwrap())
            .collect()
    }

    fn told(place: &Place) -> bool {
        let told = std::pin::pin!(place.leave.notified());
        told.poll(&mut std::task::Context::from_waker(std::task::Waker::noop())).is_ready()
    }

    #[test]
    fn one_address_and_one_ipv6_network_have_eight_places() {
        let door = Arc::<Door>::default();
        let eight = many(&door, 1..2);
        assert!(door.take([192, 0, 2, 1].into()).is_none());
        assert!(door.take("::ffff:192.0.2.1".parse().unwrap()).is_none(), "the same address");
        let v6: Vec<_> = (0..9).map(|n| door.take(format!("2001:db8::{n}").parse().unwrap())).collect();
        assert_eq!(v6.iter().filter(|place| place.is_some()).count(), 8);
        assert!(door.take("2001:db8:0:1::1".parse().unwrap()).is_some(), "another network");
        drop(eight);
        assert!(door.take([192, 0, 2, 1].into()).is_some(), "places become free");
    }

    #[test]
    fn idle_connections_make_room_and_busy_ones_do_not() {
        let door = Arc::<Door>::default();
        let strangers = many(&door, 1..9);
        assert_eq!(strangers.len(), CONNECTIONS);
        strangers[0].busy();
        let scraper = door.take([198, 51, 100, 1].into()).expect("a place");
        // Seven are idle of the first address and eight of every other: the oldest of those goes.
        assert_eq!(strangers.iter().map(told).collect::<Vec<_>>(), (0..64).map(|n| n == 8).collect::<Vec<_>>());
        strangers.iter().chain([&scraper]).for_each(Place::busy);
        let another = door.take([198, 51, 100, 2].into()).is_some();
        assert!(!another, "nobody is idle");
        assert_eq!(door.open().by_number.len(), CONNECTIONS);
        drop((strangers, scraper));
        assert!(door.open().by_number.is_empty());
    }
}
