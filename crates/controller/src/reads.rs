// SPDX-License-Identifier: Apache-2.0
//! Requests of those who look: the dashboard's, and a scraper's.

use crate::api::{answer, blocking, lines, NoQuery, Shared};
use crate::refusal::Refusal;
use crate::search::SearchQuery;
use crate::service::Caller;
use crate::trace::TraceRequest;
use crate::types::{LevelsView, Me, Reason};
use axum::body::{Body, Bytes};
use axum::extract::{Extension, Path, Query, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use axum::Json;
use controller_core::placement::{Levels, RESOURCES};
use futures_util::stream::unfold;
use schemars::JsonSchema;
use serde::Deserialize;
use std::convert::Infallible;

/// Seconds on either side of a time, if nothing else is wanted for.
const WITHIN_S: u64 = 300;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EventsQuery {
    /// So many, the latest ones; 0: all that are kept.
    #[serde(default)]
    limit: usize,
    /// Those of about this time, in milliseconds since 1970.
    around: Option<u64>,
    /// Seconds before and after it.
    within: Option<u64>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LevelsQuery {
    /// Of the last day, and not of the last hour.
    #[serde(default)]
    day: bool,
}

pub async fn events(State(controller): Shared, Query(query): Query<EventsQuery>) -> Result<Response, Refusal> {
    let work = move || {
        let Some(around) = query.around else { return Ok(controller.audit.events(query.limit)) };
        let within = query.within.unwrap_or(WITHIN_S).saturating_mul(1000);
        let mut events = controller.audit.events(0);
        events.retain(|e| e.time_ms.abs_diff(around) <= within);
        if query.limit > 0 {
            events.drain(..events.len().saturating_sub(query.limit));
        }
        Ok(events)
    };
    Ok(answer(work).await?.into_response())
}

pub async fn me(State(controller): Shared, Extension(caller): Extension<Caller>, _: Query<NoQuery>) -> Json<Me> {
    let who = caller.principal;
    Json(Me {
        region: controller.name().into(),
        version: env!("CARGO_PKG_VERSION").into(),
        role: who.role.to_string(),
        access: who.access.name().into(),
        tenant: who.tenant.as_deref().unwrap_or("").into(),
        node: who.node.as_deref().unwrap_or("").into(),
    })
}

pub async fn search(
    State(controller): Shared,
    Extension(caller): Extension<Caller>,
    Query(query): Query<SearchQuery>,
) -> Result<Response, Refusal> {
    let work = move || Ok(crate::search::search(&controller.core(), &caller.principal, &query));
    Ok(answer(work).await?.into_response())
}

pub async fn tenant(
    State(controller): Shared,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
    _: Query<NoQuery>,
) -> Result<Response, Refusal> {
    let work = move || crate::search::tenant(&controller.core(), &caller.principal, &name);
    Ok(answer(work).await?.into_response())
}

pub async fn trace(
    State(controller): Shared,
    Extension(caller): Extension<Caller>,
    _: Query<NoQuery>,
    body: Body,
) -> Result<Response, Refusal> {
    let wanted: TraceRequest = crate::body::json(body).await?;
    let work = move || {
        let plan = crate::trace::plan(&controller.core(), &caller.principal, &wanted)?;
        plan.run()
    };
    Ok(answer(work).await?.into_response())
}

pub async fn reasons(_: Query<NoQuery>) -> Json<Vec<Reason>> {
    let reason = |r: &abi::DropReason| Reason {
        name: r.name().into(),
        stage: r.stage().name().into(),
        meaning: r.meaning().into(),
        advice: r.advice().into(),
    };
    Json(abi::DropReason::ALL.iter().map(reason).collect())
}

pub async fn levels(State(controller): Shared, Query(query): Query<LevelsQuery>) -> Result<Response, Refusal> {
    let work = move || {
        let limits = Levels::default();
        let highest = |of: [u16; RESOURCES]| f64::from(of.into_iter().max().unwrap_or(0)) / 1000.0;
        let (closed, full) = (highest(limits.close), highest(limits.full));
        Ok(LevelsView { closed, full, samples: controller.samples(query.day) })
    };
    Ok(answer(work).await?.into_response())
}

pub async fn live(State(controller): Shared, Extension(caller): Extension<Caller>, _: Query<NoQuery>) -> Response {
    let stream = unfold(crate::live::begin(&controller, &caller), |live| async move {
        let (text, live) = live.next().await?;
        Some((Ok::<_, Infallible>(Bytes::from(text)), live))
    });
    lines(Body::from_stream(stream), None)
}

pub async fn metrics(State(controller): Shared, _: Query<NoQuery>) -> Result<Response, Refusal> {
    let text = blocking(move || controller.metrics.render(&controller)).await?;
    Ok(([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response())
}
