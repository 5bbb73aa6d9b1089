// SPDX-License-Identifier: Apache-2.0
//! The local API: HTTP with JSON bodies over a Unix socket. Whoever may open the socket may do everything, so its mode is
//! 0660: root and the group of the process. Metrics are also served over TCP, read-only.

use crate::audit::Origin;
use crate::consent::{Authority, Consent};
use crate::error::NodeError;
use crate::events::{encode, EventFilter};
use crate::listing::ListQuery;
use crate::openapi::paths;
use crate::service::{Mode, Node};
use crate::types::{ErrorBody, OUTDATED};
use axum::body::{Body, Bytes};
use axum::extract::connect_info::{ConnectInfo, Connected};
use axum::extract::{DefaultBodyLimit, Path, Query, State};
use axum::http::{header, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::serve::IncomingStream;
use axum::{Json, Router};
use serde::{Deserialize, Serialize};
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use tokio::net::UnixListener;

/// Longest request: a snapshot of millions of entries.
pub const BODY_MAX: usize = 4 << 30;

type Shared = State<Arc<Node>>;

struct Failure(NodeError);

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let status = match &self.0 {
            NodeError::Config(_) | NodeError::Request(_) | NodeError::Consent(_) | NodeError::NoFastPath { .. } => {
                StatusCode::UNPROCESSABLE_ENTITY
            }
            NodeError::Commit(_) => StatusCode::CONFLICT,
            NodeError::Outdated => StatusCode::PRECONDITION_FAILED,
            NodeError::Absent(_) => StatusCode::NOT_FOUND,
            NodeError::Managed { .. } => StatusCode::FORBIDDEN,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        let code = if matches!(self.0, NodeError::Outdated) { OUTDATED } else { "" };
        (status, Json(ErrorBody { errors: self.0.sentences(), code: code.into() })).into_response()
    }
}

/// Runs what may take long, or lock, outside the event loop.
async fn blocking<T: Serialize + Send + 'static>(
    work: impl FnOnce() -> Result<T, NodeError> + Send + 'static,
) -> Result<Json<T>, Failure> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result.map(Json).map_err(Failure),
        Err(_) => Err(Failure(NodeError::Request(
            "the node failed at this request; please report it, its log says more".into(),
        ))),
    }
}

/// Header of an answer that its limit has cut.
const CUT: &str = "tunny-cut";

/// A list of the latest, oldest first. The header `tunny-cut: true` says that there are older ones.
async fn latest<T: Serialize + Send + 'static>(
    query: LatestQuery,
    list: impl FnOnce(usize) -> Vec<T> + Send + 'static,
) -> Result<Response, Failure> {
    let limit = query.limit;
    // One more than wanted says whether there are older ones.
    let Json(mut list) = blocking(move || Ok(list(if limit == 0 { 0 } else { limit.saturating_add(1) }))).await?;
    let left = if limit == 0 { 0 } else { list.len().saturating_sub(limit) };
    list.drain(..left);
    let cut = (left > 0).then_some((CUT, "true"));
    Ok((axum::response::AppendHeaders(cut), Json(list)).into_response())
}

/// The first of a list. The header `tunny-cut: true` says that there are more.
async fn first<T: Serialize + Send + 'static>(
    limit: u64,
    list: impl FnOnce(u64) -> Result<Vec<T>, NodeError> + Send + 'static,
) -> Result<Response, Failure> {
    let Json(mut list) = blocking(move || list(if limit == 0 { 0 } else { limit.saturating_add(1) })).await?;
    let cut = (limit > 0 && list.len() as u64 > limit).then_some((CUT, "true"));
    if cut.is_some() {
        list.truncate(limit as usize);
    }
    Ok((axum::response::AppendHeaders(cut), Json(list)).into_response())
}

fn thousand() -> u64 {
    1000
}

/// What was learned is wanted of this VPC alone.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LearnedQuery {
    #[serde(default)]
    vpc: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TopQuery {
    #[serde(default = "thousand")]
    ms: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ApplyQuery {
    #[serde(default)]
    dry_run: bool,
    /// Nothing may replace everything.
    #[serde(default)]
    allow_empty: bool,
    /// Objects that the change deletes.
    deletes: Option<u64>,
    /// The configuration that the plan was made for.
    base: Option<String>,
    /// The documents name what goes.
    #[serde(default)]
    delete: bool,
    /// The body is a list of (kind, name) of what goes.
    #[serde(default)]
    names: bool,
    /// The documents are everything: what they do not name goes.
    #[serde(default)]
    replace: bool,
    /// Also on a node that takes its configuration from a controller.
    #[serde(default)]
    break_glass: bool,
}

/// The latest of what is noted.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LatestQuery {
    /// So many; 0: all.
    #[serde(default)]
    limit: usize,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RollbackQuery {
    /// The generation to go back to.
    generation: u64,
    #[serde(default)]
    dry_run: bool,
    /// Objects that the change deletes.
    deletes: Option<u64>,
    /// The configuration that the plan was made for.
    base: Option<String>,
    /// Also on a node that takes its configuration from a controller.
    #[serde(default)]
    break_glass: bool,
}

/// By what right somebody changes this node, and what that is called.
fn right(what: &str, break_glass: bool) -> (String, Authority) {
    match break_glass {
        true => (format!("{what}, --break-glass"), Authority::BreakGlass),
        false => (what.into(), Authority::Local),
    }
}

/// Who is at the other end of the socket, as the kernel says.
#[derive(Clone, Debug)]
pub struct Peer {
    cred: Option<(u32, Option<i32>)>,
    socket: String,
}

impl Connected<IncomingStream<'_, UnixListener>> for Peer {
    fn connect_info(stream: IncomingStream<'_, UnixListener>) -> Peer {
        let socket = stream.io().local_addr().ok().and_then(|a| a.as_pathname().map(|p| p.display().to_string()));
        let cred = stream.io().peer_cred().ok().map(|c| (c.uid(), c.pid()));
        Peer { cred, socket: socket.unwrap_or_default() }
    }
}

impl Peer {
    fn origin(&self) -> Origin {
        match self.cred {
            Some((uid, pid)) => Origin::peer(uid, pid, &self.socket),
            None => Origin { from: format!("socket {}", self.socket), ..Origin::default() },
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct MetricsQuery {
    #[serde(default)]
    vms: String,
}

/// All routes.
pub fn router(node: Arc<Node>) -> Router {
    let without_query = Router::new()
        .route("/v1/status", get(|State(n): Shared| blocking(move || Ok(n.status()))))
        .route("/v1/counters", get(|State(n): Shared| blocking(move || Ok(n.counters()))))
        .route("/v1/levels", get(|State(n): Shared| blocking(move || Ok(n.levels()))))
        .route("/v1/neighbours", get(|State(n): Shared| blocking(move || Ok(n.neighbours()))))
        .route("/v1/underlay", get(|State(n): Shared| blocking(move || Ok(n.underlay()))))
        .route("/v1/announced", get(|State(n): Shared| blocking(move || Ok(n.announced()))))
        .route("/v1/lines", get(|State(n): Shared| blocking(move || Ok(n.lines()))))
        .route(
            "/v1/trace",
            post(|State(n): Shared, Json(request): Json<crate::trace::Request>| blocking(move || n.trace(&request))),
        )
        .route("/v1/trace/live", post(follow))
        .route("/v1/capture", post(capture))
        .route("/v1/sessions", post(sessions))
        .route("/v1/mirrors", get(|State(n): Shared| blocking(move || Ok(n.mirrors()))))
        .route("/v1/shaping", get(|State(n): Shared| blocking(move || Ok(n.shaping()))))
        .route("/v1/migration", get(|State(n): Shared| blocking(move || Ok(n.migration()))))
        .route("/v1/states", get(|State(n): Shared| blocking(move || Ok(n.states()))))
        .route(
            "/v1/rules",
            post(|State(n): Shared, Json(q): Json<crate::rules::RuleQuery>| {
                first(q.limit, move |limit| n.rules(&crate::rules::RuleQuery { limit, ..q }))
            }),
        )
        .route(
            "/v1/ports",
            post(|State(n): Shared, Json(q): Json<crate::sessions::SessionQuery>| blocking(move || n.ports(&q))),
        )
        .route("/v1/openapi.json", get(|| async { Json(crate::openapi::document()) }))
        .route_layer(axum::middleware::from_fn(no_query));
    Router::new()
        .route(
            "/v1/vm-counters",
            get(|State(n): Shared, Query(q): Query<ListQuery>| listing(move || n.vm_counters(&q))),
        )
        .route(
            "/v1/objects/{kind}",
            get(|State(n): Shared, Path(kind): Path<String>, Query(q): Query<ListQuery>| {
                listing(move || n.objects(&kind, &q))
            }),
        )
        .route(
            "/v1/events",
            get(|State(n): Shared, Query(q): Query<LatestQuery>| latest(q, move |limit| n.events(limit))),
        )
        .route(
            "/v1/history",
            get(|State(n): Shared, Query(q): Query<LatestQuery>| latest(q, move |limit| n.history(limit))),
        )
        .route(
            "/v1/rollback",
            post(|State(n): Shared, ConnectInfo(peer): ConnectInfo<Peer>, Query(q): Query<RollbackQuery>| {
                blocking(move || {
                    let RollbackQuery { generation, dry_run, deletes, base, break_glass } = q;
                    let (what, authority) = right(&format!("rollback to {generation}"), break_glass);
                    let consent = Consent { dry_run, allow_empty: true, deletes, base, authority };
                    n.audited((&what, &peer.origin()), &consent, || n.rollback(generation, &consent))
                })
            }),
        )
        .route("/v1/evpn", get(|State(n): Shared| blocking(move || Ok(n.evpn()))))
        .route(
            "/v1/learned",
            get(|State(n): Shared, Query(q): Query<LearnedQuery>| blocking(move || n.learned(&q.vpc))),
        )
        .route("/v1/top", get(|State(n): Shared, Query(q): Query<TopQuery>| blocking(move || n.top(q.ms))))
        .route(
            "/v1/apply",
            post(|State(n): Shared, ConnectInfo(peer): ConnectInfo<Peer>, Query(q): Query<ApplyQuery>, body: Bytes| {
                blocking(move || {
                    let mode = match (q.names, q.delete, q.replace) {
                        (true, ..) => Mode::DeleteNames,
                        (_, true, _) => Mode::Delete,
                        (_, _, true) => Mode::Replace,
                        _ => Mode::Merge,
                    };
                    let what = match mode {
                        Mode::Merge => "apply",
                        Mode::Replace => "replace",
                        Mode::Delete | Mode::DeleteNames => "delete",
                    };
                    let ApplyQuery { dry_run, allow_empty, deletes, base, break_glass, .. } = q;
                    let (what, authority) = right(what, break_glass);
                    let consent = Consent { dry_run, allow_empty, deletes, base, authority };
                    n.audited((&what, &peer.origin()), &consent, || n.apply(&body, mode, &consent))
                })
            }),
        )
        .route("/metrics", get(metrics))
        .merge(without_query)
        .fallback(unknown)
        .method_not_allowed_fallback(wrong_method)
        .layer(DefaultBodyLimit::max(BODY_MAX))
        .layer(axum::middleware::map_response(in_json))
        .with_state(node)
}

async fn unknown(uri: axum::http::Uri) -> Response {
    let error = format!("there is nothing at {}; there are {}", uri.path(), paths());
    (StatusCode::NOT_FOUND, Json(ErrorBody { errors: vec![error], ..Default::default() })).into_response()
}

async fn wrong_method(method: axum::http::Method, uri: axum::http::Uri) -> Response {
    let error = format!("{method} means nothing at {}; there are {}", uri.path(), paths());
    (StatusCode::METHOD_NOT_ALLOWED, Json(ErrorBody { errors: vec![error], ..Default::default() })).into_response()
}

/// Refuses options where there are none: one that is ignored answers another question than was asked.
async fn no_query(request: axum::extract::Request, next: axum::middleware::Next) -> Response {
    match request.uri().query().filter(|q| !q.is_empty()) {
        None => next.run(request).await,
        Some(query) => {
            let error =
                format!("{} takes no options in its address, and has `{}`", request.uri().path(), model::plain(query));
            (StatusCode::BAD_REQUEST, Json(ErrorBody { errors: vec![error], ..Default::default() })).into_response()
        }
    }
}

/// Refusals of the HTTP library (a query or body that cannot be read) are text: here they become errors like all others.
async fn in_json(response: Response) -> Response {
    let text = response.headers().get(header::CONTENT_TYPE).is_some_and(|t| t.as_bytes().starts_with(b"text/plain"));
    if !text || !response.status().is_client_error() {
        return response;
    }
    let status = response.status();
    let why = axum::body::to_bytes(response.into_body(), 4096).await.unwrap_or_default();
    let error = format!("the request cannot be read: {}", String::from_utf8_lossy(&why));
    (status, Json(ErrorBody { errors: vec![error], ..Default::default() })).into_response()
}

pub(crate) async fn metrics(
    State(node): Shared,
    Query(query): Query<MetricsQuery>,
    headers: axum::http::HeaderMap,
) -> Response {
    let accepts = headers.get(header::ACCEPT).and_then(|a| a.to_str().ok()).unwrap_or_default();
    let modern = accepts.contains("application/openmetrics-text");
    let text = tokio::task::spawn_blocking(move || node.metrics(&query.vms)).await;
    match text {
        Ok(Ok(text)) if modern => {
            let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            ([(header::CONTENT_TYPE, kind)], text).into_response()
        }
        Ok(Ok(text)) => {
            let kind = "text/plain; version=0.0.4; charset=utf-8";
            ([(header::CONTENT_TYPE, kind)], crate::metrics::older_format(&text)).into_response()
        }
        Ok(Err(e)) => Failure(e).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

/// Streams sessions, one JSON object a line, and the end.
async fn sessions(State(node): Shared, Json(query): Json<crate::sessions::SessionQuery>) -> Response {
    listing(move || node.sessions(&query)).await
}

/// Streams a listing piece by piece: the next one is made when the reader has taken the one before.
async fn listing(begin: impl FnOnce() -> Result<crate::listing::Text, NodeError> + Send + 'static) -> Response {
    let pieces = match tokio::task::spawn_blocking(begin).await {
        Ok(Ok(pieces)) => pieces,
        Ok(Err(e)) => return Failure(e).into_response(),
        Err(_) => return StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    };
    let stream = futures_util::stream::unfold(pieces, |mut pieces| async move {
        let (piece, pieces) = tokio::task::spawn_blocking(move || {
            // Pieces of which nothing is wanted are passed over here.
            let piece = pieces.by_ref().find(|piece| !piece.is_empty());
            (piece, pieces)
        })
        .await
        .ok()?;
        Some((Ok::<_, std::convert::Infallible>(Bytes::from(piece?)), pieces))
    });
    ([(header::CONTENT_TYPE, "application/x-ndjson")], Body::from_stream(stream)).into_response()
}

/// Streams what packets of a flow meet, until there are as many as wanted, the time is over or the client hangs up.
async fn follow(
    State(node): Shared,
    ConnectInfo(peer): ConnectInfo<Peer>,
    Json(request): Json<crate::live::Request>,
) -> Response {
    let (begin, origin) = (node.clone(), peer.origin());
    let following = match tokio::task::spawn_blocking(move || begin.follow_flow(&request, origin)).await {
        Ok(Ok(following)) => following,
        Ok(Err(e)) => return Failure(e).into_response(),
        Err(_) => return StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    };
    /// Serves the VPC as before when the response is dropped, however that comes about.
    struct Leave(Arc<Node>, Option<crate::live::Following>);
    impl Drop for Leave {
        fn drop(&mut self) {
            let (node, following) = (self.0.clone(), self.1.take());
            // That takes locks.
            std::thread::spawn(move || following.iter().for_each(|f| node.follow_no_more(f)));
        }
    }
    let leave = Leave(node, Some(following));
    let stream = futures_util::stream::unfold(leave, |mut leave| async move {
        let following = leave.1.as_mut()?;
        let until = tokio::time::Instant::from_std(following.until);
        let packet = tokio::time::timeout_at(until, following.packets.recv()).await.ok().flatten()?;
        let mut line = serde_json::to_vec(&packet).unwrap_or_default();
        line.push(b'\n');
        Some((Ok::<_, std::convert::Infallible>(Bytes::from(line)), leave))
    });
    ([(header::CONTENT_TYPE, "application/x-ndjson")], Body::from_stream(stream)).into_response()
}

/// Streams captured packets until the client hangs up.
async fn capture(State(node): Shared, Json(filter): Json<EventFilter>) -> Response {
    let (judge, wanted) = (node.clone(), filter.clone());
    match tokio::task::spawn_blocking(move || judge.check_capture(&wanted)).await {
        Ok(Ok(())) => {}
        Ok(Err(e)) => return Failure(e).into_response(),
        Err(_) => return StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
    let subscription = node.hub().subscribe(filter);
    node.update_capture();
    /// Unsubscribes when the response is dropped, however that comes about.
    struct Leave(Arc<Node>, u64);
    impl Drop for Leave {
        fn drop(&mut self) {
            self.0.hub().unsubscribe(self.1);
            let node = self.0.clone();
            // Changing the options takes the writer's lock.
            std::thread::spawn(move || node.update_capture());
        }
    }
    let leave = Leave(node, subscription.id);
    let stream = futures_util::stream::unfold((subscription, leave), |(mut subscription, leave)| async move {
        let first = subscription.events.recv().await?;
        let mut bytes = Vec::with_capacity(1024);
        encode(&first, &mut bytes);
        while let Ok(next) = subscription.events.try_recv() {
            encode(&next, &mut bytes);
            if bytes.len() > 1 << 16 {
                break;
            }
        }
        Some((Ok::<_, std::convert::Infallible>(Bytes::from(bytes)), (subscription, leave)))
    });
    Body::from_stream(stream).into_response()
}

/// Serves the API until the listener fails.
pub async fn serve(node: Arc<Node>, listener: UnixListener) -> Result<(), NodeError> {
    let app = router(node).into_make_service_with_connect_info::<Peer>();
    axum::serve(listener, app).await.map_err(NodeError::system("serving the API"))
}

/// Listens on a Unix socket. One that a dead process left is replaced.
pub fn bind(socket: &std::path::Path) -> Result<tokio::net::UnixListener, NodeError> {
    if let Some(folder) = socket.parent() {
        std::fs::create_dir_all(folder).map_err(NodeError::file("making the folder of the API socket", folder))?;
    }
    // The state's lock says that no other node of this instance lives, so the file is a dead one's.
    if let Err(e) = std::fs::remove_file(socket) {
        if e.kind() != std::io::ErrorKind::NotFound {
            return Err(NodeError::file("replacing the API socket", socket)(e));
        }
    }
    let listener = tokio::net::UnixListener::bind(socket).map_err(NodeError::file("listening on", socket))?;
    let mode = std::fs::Permissions::from_mode(0o660);
    std::fs::set_permissions(socket, mode).map_err(NodeError::file("setting the mode of", socket))?;
    Ok(listener)
}
