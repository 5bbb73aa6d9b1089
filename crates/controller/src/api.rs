// SPDX-License-Identifier: Apache-2.0
//! The controller's HTTPS API. Every request is looked up in the table of [`crate::openapi`], which says who may ask for it; only then is
//! its body read.

use crate::authenticate::{caller, credential, Peer};
use crate::body::{self, CHANGE_MAX, TENANT_MAX};
use crate::listing::ListQuery;
use crate::openapi::{document, paths, request};
use crate::reads;
use crate::refusal::Refusal;
use crate::service::{Caller, Controller};
use crate::stream::StreamQuery;
use crate::types::{Made, NewCredential};
use crate::upstream::UpstreamQuery;
use crate::watch::WatchQuery;
use axum::body::{Body, Bytes};
use axum::extract::{Extension, MatchedPath, Path, Query, Request, State};
use axum::http::{header, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use axum::{Json, Router};
use futures_util::stream::unfold;
use model::{Access, Kind};
use node::audit::{Event, Origin};
use node::consent::{Authority, Consent};
use node::distribution::{Report, Switched};
use node::listing::Text;
use node::service::Mode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Instant;

pub type Shared = State<Arc<Controller>>;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ApplyQuery {
    /// The plan alone.
    #[serde(default)]
    dry_run: bool,
    /// With `replace`: nothing may be left.
    #[serde(default)]
    allow_empty: bool,
    /// How many objects go; asked for where many do.
    deletes: Option<u64>,
    /// The revision that was looked at.
    base: Option<String>,
    /// The documents name what goes.
    #[serde(default)]
    delete: bool,
    /// The body is a list of kinds and names, in JSON, of what goes.
    #[serde(default)]
    names: bool,
    /// What the documents do not name goes.
    #[serde(default)]
    replace: bool,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RebalanceQuery {
    /// Thousandths above the mean that a cluster may hold; 50 if absent.
    within: Option<u16>,
    /// Instead, the moves that bring tenants with little traffic to clusters whose nodes have no fast path.
    #[serde(default)]
    cold: bool,
    /// The plan alone.
    #[serde(default)]
    dry_run: bool,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct MoveBody {
    /// The cluster.
    cluster: String,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NoQuery {}

/// Runs what may take long, or lock, outside the event loop.
pub async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Refusal> + Send + 'static,
) -> Result<T, Refusal> {
    tokio::task::spawn_blocking(work).await.unwrap_or(Err(Refusal::Failed))
}

pub async fn answer<T: Serialize + Send + 'static>(
    work: impl FnOnce() -> Result<T, Refusal> + Send + 'static,
) -> Result<Json<T>, Refusal> {
    blocking(work).await.map(Json)
}

/// All routes.
pub fn router(controller: Arc<Controller>) -> Router {
    let checked = axum::middleware::from_fn_with_state(controller.clone(), permitted);
    Router::new()
        .route("/v1/status", get(|State(c): Shared, _: Query<NoQuery>| answer(move || Ok(c.status()))))
        .route("/v1/objects/{kind}", get(objects))
        .route("/v1/apply", post(apply))
        .route("/v1/watch", get(watch))
        .route("/v1/describe/{kind}/{name}", get(describe))
        .route("/v1/nodes", get(|State(c): Shared, _: Query<NoQuery>| answer(move || Ok(c.core().nodes()))))
        .route("/v1/nodes/{name}/resync", post(resync))
        .route("/v1/tenants", get(|State(c): Shared, _: Query<NoQuery>| answer(move || Ok(c.tenants()))))
        .route("/v1/clusters", get(|State(c): Shared, _: Query<NoQuery>| answer(move || Ok(c.clusters()))))
        .route("/v1/tenants/{name}/move", post(move_tenant))
        .route("/v1/tenants/{name}/abort", post(abort_move))
        .route("/v1/rebalance", post(rebalance))
        .route("/v1/upstream", get(upstream).post(switched))
        .route("/v1/events", get(reads::events))
        .route("/v1/credentials", get(credentials).post(new_credential))
        .route("/v1/credentials/{id}", delete(revoke))
        .route("/v1/stream", get(stream))
        .route("/v1/report", post(report))
        .route("/v1/backup", get(backup))
        .route("/v1/me", get(reads::me))
        .route("/v1/search", get(reads::search))
        .route("/v1/tenants/{name}", get(reads::tenant))
        .route("/v1/trace", post(reads::trace))
        .route("/v1/reasons", get(reads::reasons))
        .route("/v1/levels", get(reads::levels))
        .route("/v1/live", get(reads::live))
        .route("/metrics", get(reads::metrics))
        .route("/v1/openapi.json", get(|_: Query<NoQuery>| async { Json(document()) }))
        .route_layer(checked)
        .route("/", get(crate::web::page))
        .route("/ui/{file}", get(crate::web::part))
        .fallback(|| async { Refusal::Absent(format!("there is nothing here; there are {}", paths())) })
        .method_not_allowed_fallback(|| async {
            Refusal::Method(format!("this method means nothing here; there are {}", paths()))
        })
        .layer(axum::middleware::map_response(as_problem))
        .with_state(controller)
}

/// Lets through who may ask for this, as the table says. Who may not is noted.
async fn permitted(State(controller): Shared, mut request_: Request, next: Next) -> Response {
    let what = (request_.extensions().get::<MatchedPath>(), request_.extensions().get::<Peer>());
    let (Some(path), Some(peer)) = what else { return Refusal::Failed.into_response() };
    let Some(row) = request(request_.method().as_str(), path.as_str()) else {
        return Refusal::Method(format!("this method means nothing here; there are {}", paths())).into_response();
    };
    let (peer, headers, judge) = (peer.clone(), request_.headers().clone(), controller.clone());
    let forwarded = peer.controller;
    let begun = Instant::now();
    let known = blocking(move || {
        let from = peer.address.to_string();
        let known = credential(&peer, &headers).and_then(|credential| caller(&judge, &peer, &headers, credential));
        let (who, refusal) = match known {
            Ok(caller) if row.access.contains(&caller.principal.access) => return Ok(caller),
            Ok(caller) => {
                let access = caller.principal.access.name();
                let why = format!(
                    "{} {} is not for Role `{}`, whose access is {access}",
                    row.method, row.path, caller.principal.role
                );
                (caller.origin(), Refusal::Forbidden(why))
            }
            Err(refusal) => (Origin { user: "somebody unknown".into(), from, ..Origin::default() }, refusal),
        };
        let mut event = Event::new(&format!("{} {}", row.method, row.path), "refused", 0, &who);
        event.note = refusal.sentences().join("; ");
        judge.audit.note(event);
        Err(refusal)
    });
    let response = match known.await {
        Ok(caller) => {
            let answers = match &controller.replica {
                None => Ok(None),
                Some(replica) => {
                    replica.answers(row.led, forwarded).await.map(|leader| leader.map(|url| (replica, url)))
                }
            };
            match answers {
                Ok(None) => {
                    request_.extensions_mut().insert(caller);
                    let answer = next.run(request_).await;
                    match &controller.replica {
                        None => answer,
                        Some(replica) => replica.dated(answer),
                    }
                }
                Ok(Some((replica, leader))) => replica.forward(&leader, &caller, request_).await.into_response(),
                Err(refusal) => refusal.into_response(),
            }
        }
        Err(refusal) => refusal.into_response(),
    };
    controller.metrics.answered(row.method, row.path, response.status(), begun.elapsed());
    response
}

/// Refusals of the HTTP library (a query that cannot be read) are text: here they become problem documents like all others.
async fn as_problem(response: Response) -> Response {
    let text = response.headers().get(header::CONTENT_TYPE).is_some_and(|t| t.as_bytes().starts_with(b"text/plain"));
    if !text || !response.status().is_client_error() {
        return response;
    }
    let why = axum::body::to_bytes(response.into_body(), 4096).await.unwrap_or_default();
    Refusal::Unreadable(format!("the request cannot be read: {}", String::from_utf8_lossy(&why))).into_response()
}

pub fn lines(body: Body, revision: Option<u64>) -> Response {
    let mut response = ([(header::CONTENT_TYPE, "application/x-ndjson")], body).into_response();
    if let Some(revision) = revision {
        response.headers_mut().insert("tunny-revision", revision.into());
    }
    response
}

async fn objects(
    State(controller): Shared,
    Extension(caller): Extension<Caller>,
    Path(kind): Path<String>,
    Query(query): Query<ListQuery>,
) -> Result<Response, Refusal> {
    let begin = move || crate::listing::list(&controller, &caller.principal, &kind, &query);
    let (pieces, revision): (Text, u64) = blocking(begin).await?;
    let stream = unfold(pieces, |mut pieces| async move {
        let (piece, pieces) = tokio::task::spawn_blocking(move || {
            // Pieces of which nothing is wanted are passed over here.
            let piece = pieces.by_ref().find(|piece| !piece.is_empty());
            (piece, pieces)
        })
        .await
        .ok()?;
        Some((Ok::<_, Infallible>(Bytes::from(piece?)), pieces))
    });
    Ok(lines(Body::from_stream(stream), Some(revision)))
}

async fn apply(
    State(controller): Shared,
    Extension(caller): Extension<Caller>,
    Query(query): Query<ApplyQuery>,
    body: Body,
) -> Result<Response, Refusal> {
    let operator = caller.principal.access == Access::Operator;
    let body = body::read(body, if operator { CHANGE_MAX } else { TENANT_MAX }).await?;
    let mode = match (query.names, query.delete, query.replace) {
        (true, ..) => Mode::DeleteNames,
        (_, true, _) => Mode::Delete,
        (_, _, true) => Mode::Replace,
        _ => Mode::Merge,
    };
    let ApplyQuery { dry_run, allow_empty, deletes, base, .. } = query;
    let consent = Consent { dry_run, allow_empty, deletes, base, authority: Authority::Local };
    Ok(answer(move || controller.apply(&caller, &body, mode, &consent)).await?.into_response())
}

async fn watch(
    State(controller): Shared,
    Extension(caller): Extension<Caller>,
    Query(query): Query<WatchQuery>,
) -> Result<Response, Refusal> {
    let watching = blocking(move || crate::watch::begin(&controller, &caller, &query)).await?;
    let stream = unfold(watching, |watching| async move {
        let (text, watching) = watching.next().await?;
        Some((Ok::<_, Infallible>(Bytes::from(text)), watching))
    });
    Ok(lines(Body::from_stream(stream), None))
}

async fn stream(
    State(controller): Shared,
    Extension(caller): Extension<Caller>,
    Query(query): Query<StreamQuery>,
) -> Result<Response, Refusal> {
    let begun = blocking(move || {
        let begun = crate::stream::begin(&controller, &caller, &query);
        let mut event =
            Event::new("node", if begun.is_ok() { "connected" } else { "refused" }, query.from, &caller.origin());
        event.note = begun.as_ref().err().map_or(String::new(), |e| e.sentences().join("; "));
        controller.audit.note(event);
        begun
    });
    let stream = unfold(begun.await?, |stream| async move {
        let (text, stream) = stream.next().await?;
        Some((Ok::<_, Infallible>(Bytes::from(text)), stream))
    });
    Ok(lines(Body::from_stream(stream), None))
}

async fn report(
    State(controller): Shared,
    Extension(caller): Extension<Caller>,
    _: Query<NoQuery>,
    body: Body,
) -> Result<StatusCode, Refusal> {
    let report: Report = body::json(body).await?;
    blocking(move || controller.reported(&caller, report)).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn backup(State(controller): Shared, _: Query<NoQuery>) -> Result<Response, Refusal> {
    let begun = blocking(move || crate::backup::begin(&controller)).await?;
    let stream = unfold(begun, |mut backup| async move {
        let (piece, backup) = tokio::task::spawn_blocking(move || (backup.next(), backup)).await.ok()?;
        Some((Ok::<_, Infallible>(Bytes::from(piece?)), backup))
    });
    Ok(lines(Body::from_stream(stream), None))
}

async fn describe(
    State(controller): Shared,
    Extension(caller): Extension<Caller>,
    Path((kind, name)): Path<(String, String)>,
    _: Query<NoQuery>,
) -> Result<Response, Refusal> {
    Ok(answer(move || controller.describe(&caller.principal, &kind, &name)).await?.into_response())
}

async fn resync(
    State(controller): Shared,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
    _: Query<NoQuery>,
) -> Result<Response, Refusal> {
    Ok(answer(move || controller.resync(&caller, &name)).await?.into_response())
}

async fn move_tenant(
    State(controller): Shared,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
    _: Query<NoQuery>,
    body: Body,
) -> Result<Response, Refusal> {
    let to: MoveBody = body::json(body).await?;
    Ok(answer(move || controller.move_tenant(&caller, &name, &to.cluster)).await?.into_response())
}

async fn abort_move(
    State(controller): Shared,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
    _: Query<NoQuery>,
) -> Result<Response, Refusal> {
    Ok(answer(move || controller.abort_move(&caller, &name)).await?.into_response())
}

async fn rebalance(
    State(controller): Shared,
    Extension(caller): Extension<Caller>,
    Query(query): Query<RebalanceQuery>,
) -> Result<Response, Refusal> {
    let RebalanceQuery { within, cold, dry_run } = query;
    Ok(answer(move || controller.rebalance(&caller, within.unwrap_or(50), cold, dry_run)).await?.into_response())
}

async fn upstream(
    State(controller): Shared,
    Extension(caller): Extension<Caller>,
    Query(query): Query<UpstreamQuery>,
) -> Result<Response, Refusal> {
    let telling = blocking(move || crate::upstream::begin(&controller, &caller, &query)).await?;
    let stream = unfold(telling, |telling| async move {
        let (line, telling) = telling.next().await?;
        Some((Ok::<_, Infallible>(Bytes::from(line)), telling))
    });
    Ok(lines(Body::from_stream(stream), None))
}

async fn switched(
    State(controller): Shared,
    Extension(caller): Extension<Caller>,
    _: Query<NoQuery>,
    body: Body,
) -> Result<Response, Refusal> {
    let said: Switched = body::json(body).await?;
    let work = move || {
        if controller.core().hosts.switched(&caller.principal.role, said.revision) {
            controller.wakes.said();
        }
        Ok(said)
    };
    Ok(answer(work).await?.into_response())
}

async fn credentials(State(controller): Shared, _: Query<NoQuery>) -> Result<Response, Refusal> {
    Ok(answer(move || crate::credentials::list(&*controller.store)).await?.into_response())
}

async fn new_credential(
    State(controller): Shared,
    Extension(caller): Extension<Caller>,
    _: Query<NoQuery>,
    body: Body,
) -> Result<Response, Refusal> {
    let wanted: NewCredential = body::json(body).await?;
    let work = move || {
        let core = controller.core();
        if core.region.model().get(Kind::Role, &wanted.role).is_none() {
            return Err(crate::service::absent(Kind::Role, &wanted.role));
        }
        drop(core);
        // A Role that is deleted at this instant leaves a credential that opens nothing.
        let made = crate::credentials::create(&controller, &wanted)?;
        note_credential(&controller, &caller, "made", &made);
        Ok(made)
    };
    Ok(answer(work).await?.into_response())
}

fn note_credential(controller: &Controller, caller: &Caller, outcome: &str, made: &Made) {
    let what = format!("credential {} for Role {}", made.credential.id, made.credential.role);
    let revision = controller.core().region.revision();
    controller.audit.note(Event::new(&what, outcome, revision, &caller.origin()));
}

async fn revoke(
    State(controller): Shared,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    _: Query<NoQuery>,
) -> Result<Response, Refusal> {
    let work = move || {
        let (credential, hash, revision) = crate::credentials::revoke(&*controller.store, &id)?;
        let mut core = controller.core();
        core.region.passed(revision);
        core.credentials.remove(&hash);
        drop(core);
        let made = Made { credential, token: String::new(), certificate: String::new(), key: String::new() };
        controller.doubt();
        note_credential(&controller, &caller, "revoked", &made);
        Ok(made.credential)
    };
    Ok(answer(work).await?.into_response())
}
