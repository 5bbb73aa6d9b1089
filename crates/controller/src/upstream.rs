// SPDX-License-Identifier: Apache-2.0
//! What hosts are told: the tunnel address that serves each of their VNIs. A line whenever anybody's place has changed; the host answers when its
//! devices are so, and a move waits for that.

use crate::authenticate::Grant;
use crate::refusal::Refusal;
use crate::service::{Caller, Controller};
use node::distribution::ALIVE_S;
use schemars::JsonSchema;
use serde::Deserialize;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch::Receiver;

/// VNIs that a host may ask for.
const VNIS_MAX: usize = 4096;

/// Whose addresses.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct UpstreamQuery {
    /// VNIs, with commas between.
    pub vnis: String,
}

/// A stream to a host.
pub struct Telling {
    controller: Arc<Controller>,
    grant: Grant,
    vnis: Vec<u32>,
    /// The revision by which tenants were placed, and how nodes stood.
    told: Option<(u64, u64)>,
    news: Receiver<u64>,
}

/// Begins a stream.
pub fn begin(controller: &Arc<Controller>, caller: &Caller, query: &UpstreamQuery) -> Result<Telling, Refusal> {
    let words = query.vnis.split(',').filter(|w| !w.is_empty());
    let vnis: Result<Vec<u32>, _> = words.map(str::parse).collect();
    let wrong = |why: String| Refusal::Wrong(vec![why]);
    let vnis = vnis.map_err(|_| wrong("vnis: numbers with commas between".into()))?;
    if vnis.len() > VNIS_MAX {
        return Err(wrong(format!("vnis: at most {VNIS_MAX}")));
    }
    let grant = Grant::of(controller, caller);
    Ok(Telling { controller: controller.clone(), grant, vnis, told: None, news: controller.wakes.region() })
}

impl Telling {
    /// The next line. `None`: the host must call again, or not at all.
    pub async fn next(mut self) -> Option<(Vec<u8>, Telling)> {
        loop {
            self.news.mark_unchanged();
            let (line, telling) = tokio::task::spawn_blocking(move || (self.line(false), self)).await.ok()?;
            self = telling;
            match line? {
                Some(line) => return Some((line, self)),
                None => match tokio::time::timeout(Duration::from_secs(ALIVE_S), self.news.changed()).await {
                    Ok(Ok(())) => {}
                    Ok(Err(_)) => return None,
                    // The same once more is a sign of life.
                    Err(_) => {
                        let (line, telling) =
                            tokio::task::spawn_blocking(move || (self.line(true), self)).await.ok()?;
                        return Some((line??, telling));
                    }
                },
            }
        }
    }

    /// What is to be said: nothing at all if the credential opens no more, and nothing new.
    fn line(&mut self, again: bool) -> Option<Option<Vec<u8>>> {
        let known = if again { self.grant.opens(&self.controller) } else { self.grant.holds(&self.controller) };
        if !known {
            return None;
        }
        let core = self.controller.core();
        let (revision, admissions) = (core.region.placed_at(), core.fleet.admissions());
        if self.told == Some((revision, admissions)) && !again {
            return Some(None);
        }
        self.told = Some((revision, admissions));
        let upstream = core.known().upstream(self.vnis.iter().copied());
        Some(Some((serde_json::to_string(&upstream).unwrap_or_default() + "\n").into_bytes()))
    }
}
