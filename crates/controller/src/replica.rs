// SPDX-License-Identifier: Apache-2.0
//! One of several controllers over one store. Each follows the store; one of them leads (`controller_core::leader`), and takes changes and the nodes'
//! streams. The others answer what they know, say how old it is, and hand the rest on to the leader as the one that they were asked by.
//!
//! Whoever comes to lead first finishes what the one before left pending, then follows until it knows all of it, and only then may write
//! (`Fence::Term`). The fence changes under the lock of the region, so that nothing is planned in one term and written in another.

use crate::authenticate::FOR;
use crate::keys;
use crate::openapi::Led;
use crate::paths::Served;
use crate::pki::Pki;
use crate::refusal::Refusal;
use crate::service::{self, Caller, Controller};
use crate::store::etcd::{Etcd, Lease};
use crate::store::{Change, StoreError, Watch};
use axum::body::Body;
use axum::extract::Request;
use axum::http::header;
use axum::response::Response;
use controller_core::credentials::Sort;
use controller_core::leader::{Fence, Leadership, Office};
use controller_core::region::{Places, Wish};
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use model::{Documents, Kind};
use node::distribution::AGE;
use parking_lot::Mutex;
use rustls::pki_types::ServerName;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio_rustls::TlsConnector;

/// Seconds of a lease: after so long without a sign of the leader another one leads.
const LEASE_S: u64 = 5;
/// How often it is renewed.
const RENEW: Duration = Duration::from_secs(1);
/// How long a follower waits for a change before it looks at the rest.
const LOOK: Duration = Duration::from_millis(100);
/// How long a request waits for a leader that is just coming to lead, and a connection to it may take.
const PATIENCE: Duration = Duration::from_secs(3);

/// A controller's part among several.
pub struct Replica {
    etcd: Arc<Etcd>,
    url: String,
    begun: Instant,
    leadership: Mutex<(Leadership, Lease)>,
    /// The same as it was last: nobody waits for etcd to know it.
    known: Mutex<Leadership>,
    /// When all that the store had was known here.
    fresh: Mutex<Instant>,
    tls: TlsConnector,
    /// The connection to whoever leads, for what is answered soon.
    leader: tokio::sync::Mutex<Option<(String, SendRequest<Body>)>>,
}

/// Follows, and stands for leader, until that cannot go on: why.
pub(crate) async fn run(controller: &Arc<Controller>) -> String {
    match start(controller) {
        Ok(Some(why)) => why.await.unwrap_or_else(|_| "it failed at following the store".into()),
        Ok(None) => std::future::pending().await,
        Err(e) => e.to_string(),
    }
}

fn start(controller: &Arc<Controller>) -> std::io::Result<Option<oneshot::Receiver<String>>> {
    let (failed, why) = oneshot::channel();
    if controller.replica.is_none() {
        return Ok(None);
    }
    let (leads, follows) = (controller.clone(), controller.clone());
    let thread = |name: &str| std::thread::Builder::new().name(name.into());
    thread("lead").spawn(move || leads.keep_leading())?;
    let follow = move || {
        let Err(why) = follows.keep_following();
        let _ = failed.send(why);
    };
    thread("follow").spawn(follow)?;
    Ok(Some(why))
}

impl Replica {
    /// Of a controller that others reach at a URL.
    pub(crate) fn new(etcd: Arc<Etcd>, url: &str, folder: &Path, region: &str) -> Result<Replica, String> {
        let tls = TlsConnector::from(Arc::new(Pki::load(folder, region)?.peer()?));
        let (begun, lease) = (Instant::now(), etcd.lease());
        Ok(Replica {
            etcd,
            url: url.into(),
            begun,
            leadership: Mutex::new((Leadership::new(url, LEASE_S), lease)),
            known: Mutex::new(Leadership::new(url, LEASE_S)),
            fresh: Mutex::new(begun),
            tls,
            leader: tokio::sync::Mutex::new(None),
        })
    }

    fn now_ms(&self) -> u64 {
        self.begun.elapsed().as_millis() as u64
    }

    fn office(&self) -> Office {
        self.known.lock().office(self.now_ms())
    }

    /// Whether somebody else leads.
    pub fn follows(&self) -> bool {
        matches!(self.office(), Office::Follows(_))
    }

    /// Who leads.
    pub fn leader(&self) -> Option<String> {
        match self.office() {
            Office::Leads(_) => Some(self.url.clone()),
            Office::Follows(url) => Some(url),
            Office::Alone => None,
        }
    }

    /// Whether this one leads and may write.
    pub fn writes(&self) -> bool {
        matches!((self.office(), self.etcd.fence()), (Office::Leads(_), Fence::Term(_)))
    }

    /// How old what is known here may be.
    pub fn age_ms(&self) -> u64 {
        self.fresh.lock().elapsed().as_millis() as u64
    }

    /// Lets nothing be written before it is known what the store has.
    pub fn doubt(&self) {
        self.etcd.set_fence(Fence::Closed);
    }

    /// Lets another one lead at once.
    pub fn leave(&self) {
        self.etcd.set_fence(Fence::Closed);
        let (leadership, lease) = &mut *self.leadership.lock();
        leadership.leave(lease);
        *self.known.lock() = leadership.clone();
    }

    /// Who answers a request: this one, or the one at that URL.
    pub async fn answers(&self, led: Led, forwarded: bool) -> Result<Option<String>, Refusal> {
        let begun = tokio::time::Instant::now();
        loop {
            match (led, self.office()) {
                (Led::No, _) | (Led::Best, Office::Leads(_) | Office::Alone) => return Ok(None),
                (Led::Must, Office::Leads(_)) if matches!(self.etcd.fence(), Fence::Term(_)) => return Ok(None),
                (_, Office::Follows(leader)) if !forwarded => return Ok(Some(leader)),
                (_, office) if begun.elapsed() > PATIENCE => return Err(self.not_led(office)),
                _ => tokio::time::sleep(LOOK / 2).await,
            }
        }
    }

    fn not_led(&self, office: Office) -> Refusal {
        let age = self.age_ms() / 1000;
        let (why, leader) = match office {
            Office::Follows(url) => (format!("nothing was changed: the controller at {url} leads: ask it"), Some(url)),
            Office::Leads(_) => {
                ("nothing was changed: this controller is about to lead, and not done with what was left to it; try again in a while".into(), None)
            }
            Office::Alone => {
                (format!("nothing was changed: no controller leads now, since etcd does not answer or one was just lost (heard of it {age} s ago); try again in a while"), None)
            }
        };
        Refusal::NotLed { why, leader }
    }

    /// Says of an answer how old it is, unless the one that leads gives it.
    pub fn dated(&self, mut response: Response) -> Response {
        if !matches!(self.office(), Office::Leads(_)) {
            response.headers_mut().insert(AGE, self.age_ms().into());
        }
        response
    }

    /// Hands a request on to the leader.
    pub async fn forward(&self, leader: &str, caller: &Caller, request: Request) -> Result<Response, Refusal> {
        let lost = |why: String| {
            Refusal::NotLed {
            why: format!("the controller at {leader}, which leads, cannot be reached: {why}; whether something was changed is not known if it went away amid this request"),
            leader: Some(leader.into()),
        }
        };
        let (mut parts, body) = request.into_parts();
        let path = parts.uri.path_and_query().map_or("/", |p| p.as_str());
        // One that has no end has a connection of its own.
        let long = ["/v1/stream", "/v1/upstream", "/v1/live"].iter().any(|endless| path.starts_with(endless));
        let mut sender = if long { self.connect(leader).await } else { self.shared(leader).await }.map_err(lost)?;
        parts.uri = format!("{leader}{path}").parse().map_err(|_| Refusal::Failed)?;
        for name in [header::AUTHORIZATION, header::HOST, header::CONNECTION, header::TRANSFER_ENCODING] {
            parts.headers.remove(name);
        }
        let (hash, sort) = &caller.credential;
        let sort = if *sort == Sort::Token { "token" } else { "certificate" };
        let on_behalf = format!("{hash} {sort} {}", caller.from).parse().map_err(|_| Refusal::Failed)?;
        parts.headers.insert(FOR, on_behalf);
        let mut clean =
            Request::builder().method(parts.method).uri(parts.uri).body(body).map_err(|_| Refusal::Failed)?;
        *clean.headers_mut() = parts.headers;
        let mut answer = std::pin::pin!(sender.send_request(clean));
        loop {
            match tokio::time::timeout(LOOK, &mut answer).await {
                Ok(Ok(response)) => return Ok(response.map(Body::new)),
                Ok(Err(e)) => return Err(lost(e.to_string())),
                // One that stands still is not waited for longer than it leads.
                Err(_) if self.leader().as_deref() != Some(leader) => return Err(lost("it leads no more".into())),
                Err(_) => {}
            }
        }
    }

    async fn shared(&self, leader: &str) -> Result<SendRequest<Body>, String> {
        let mut held = self.leader.lock().await;
        if let Some((url, sender)) = &mut *held {
            if url == leader && sender.ready().await.is_ok() {
                return Ok(sender.clone());
            }
        }
        let sender = self.connect(leader).await?;
        *held = Some((leader.into(), sender.clone()));
        Ok(sender)
    }

    async fn connect(&self, leader: &str) -> Result<SendRequest<Body>, String> {
        let place = leader.strip_prefix("https://").unwrap_or(leader);
        let host = place.rsplit_once(':').map_or(place, |(host, _)| host).trim_matches(['[', ']']);
        let name = ServerName::try_from(host.to_string()).map_err(|e| e.to_string())?;
        let work = async {
            let stream = TcpStream::connect(place).await.map_err(|e| e.to_string())?;
            let _ = stream.set_nodelay(true);
            let stream = self.tls.connect(name, stream).await.map_err(|e| e.to_string())?;
            let mut builder = Builder::new(TokioExecutor::new());
            builder.timer(TokioTimer::new()).keep_alive_interval(PATIENCE).keep_alive_timeout(PATIENCE);
            let made = builder.handshake(TokioIo::new(stream)).await;
            let (sender, connection) = made.map_err(|e| e.to_string())?;
            // What goes wrong on it those say who wait for an answer.
            tokio::spawn(async move { drop(connection.await) });
            Ok(sender)
        };
        let late = |_| Err(format!("it does not answer within {} s", PATIENCE.as_secs()));
        tokio::time::timeout(PATIENCE, work).await.unwrap_or_else(late)
    }
}

impl Controller {
    fn keep_leading(&self) {
        let Some(replica) = &self.replica else { return };
        let mut said = Office::Alone;
        loop {
            let begun = Instant::now();
            let stepped = {
                // The requests are short, or fail soon.
                let (leadership, lease) = &mut *replica.leadership.lock();
                let stepped = leadership.step(replica.now_ms(), lease);
                *replica.known.lock() = leadership.clone();
                stepped
            };
            let office = replica.office();
            if replica.etcd.fence().within(&office) == Fence::Closed {
                replica.etcd.set_fence(Fence::Closed);
            }
            if office != said {
                match &office {
                    Office::Leads(_) => tracing::info!("this controller leads"),
                    Office::Follows(url) => tracing::info!("the controller at {url} leads"),
                    Office::Alone => tracing::warn!(
                        "nobody leads as far as this controller knows: {}",
                        stepped.err().unwrap_or_default()
                    ),
                }
                said = office;
                self.wakes.all();
            }
            std::thread::sleep(RENEW.saturating_sub(begun.elapsed()));
        }
    }

    /// Follows the store until that cannot go on.
    fn keep_following(&self) -> Result<std::convert::Infallible, String> {
        let Some(replica) = &self.replica else { return Err(String::new()) };
        let mut watch: Option<Box<dyn Watch>> = None;
        loop {
            let at = self.core().region.revision();
            let next = match &mut watch {
                Some(watch) => watch.next(LOOK),
                none => self.store.watch(at).map(|new| {
                    *none = Some(new);
                    None
                }),
            };
            match next {
                Ok(Some(change)) => self.followed(&change)?,
                Ok(None) => self.catch_up(replica),
                // What was large may be its own: then it goes on behind that.
                Err(StoreError::Compacted(_)) if watch.take().is_some() => {}
                Err(StoreError::Compacted(_)) => self.reload()?,
                Err(_) => {
                    watch = None;
                    std::thread::sleep(LOOK);
                }
            }
        }
    }

    /// All that is known to be in the store is known here. If this controller has come to lead, it may write when that is so of all there is.
    fn catch_up(&self, replica: &Replica) {
        let (revision, heard) = replica.etcd.heard();
        if self.core().region.revision() >= revision {
            *replica.fresh.lock() = heard;
        }
        let Office::Leads(term) = replica.office() else { return };
        if replica.etcd.fence() == Fence::Term(term) {
            return;
        }
        {
            let _core = self.core();
            replica.etcd.set_fence(Fence::Settling(term));
        }
        match replica.etcd.settle() {
            Ok(revision) => {
                let mut core = self.core();
                // Else the next round: the changes come.
                if core.region.revision() >= revision && replica.office() == Office::Leads(term) {
                    core.fleet.begin_term();
                    replica.etcd.set_fence(Fence::Term(term));
                    tracing::info!("this controller takes changes, at revision {revision}");
                }
            }
            Err(e) => tracing::warn!("this controller leads and cannot yet: {e}"),
        }
    }

    /// What another controller has written is known here too.
    fn followed(&self, change: &Change) -> Result<(), String> {
        let mut guard = self.core();
        let core = &mut *guard;
        if change.revision <= core.region.revision() {
            // Its own.
            return Ok(());
        }
        let (mut docs, mut text, mut doubts) = (Documents::new(), String::new(), false);
        let mut places = Places::new();
        for event in &change.events {
            if let Some((kind, name)) = keys::object_of(&event.key) {
                doubts |= kind == Kind::Role;
                match &event.value {
                    Some(value) => text = text + &String::from_utf8_lossy(value) + "\n",
                    None => docs.delete(kind, name),
                }
            } else if let Some(hash) = keys::credential_of(&event.key) {
                doubts = true;
                match event.value.as_ref().and_then(|value| serde_json::from_slice(value).ok()) {
                    Some(record) => drop(core.credentials.insert(hash.into(), record)),
                    None => drop(core.credentials.remove(hash)),
                }
            } else if let Some(tenant) = keys::placed_of(&event.key) {
                let placement = match &event.value {
                    Some(value) => {
                        Some(serde_json::from_slice(value).map_err(|e| format!("the place of {tenant}: {e}"))?)
                    }
                    None => None,
                };
                places.push((tenant.into(), placement));
            } else if let Some(cluster) = keys::fast_of(&event.key) {
                let fast = event.value.as_ref().and_then(|value| crate::paths::listed(value));
                core.served.take(cluster, fast, service::now_ms());
            }
        }
        if text.is_empty() && docs.deletes.is_empty() {
            core.region.passed(change.revision);
        } else {
            core.take(docs, &text, change.revision, false)?;
        }
        if !places.is_empty() {
            core.region.place(places, change.revision);
        }
        drop(guard);
        if doubts {
            self.doubt();
        }
        self.wakes.all();
        Ok(())
    }

    /// Everything anew: what changed meanwhile is not known in order.
    fn reload(&self) -> Result<(), String> {
        let snapshot = self.store.snapshot().map_err(|e| e.to_string())?;
        let (docs, revision) = service::load(&*snapshot)?;
        let (latest, credentials) = (service::latest(&*snapshot)?, service::credentials(&*snapshot)?);
        let placed = service::placed(&*snapshot)?;
        let fast = crate::paths::load(&*snapshot)?;
        let mut guard = self.core();
        guard.take(docs, "", revision, true)?;
        guard.region.place_anew(placed, revision);
        guard.region.forget_feeds(&latest);
        guard.credentials = credentials;
        guard.served = Served::of(fast, &guard.region, service::now_ms());
        drop(guard);
        tracing::info!("all was read anew, at revision {revision}");
        self.doubt();
        Ok(())
    }
}

impl service::Core {
    /// Makes what the store has what is configured: some documents, or all.
    fn take(&mut self, mut docs: Documents, text: &str, revision: u64, whole: bool) -> Result<(), String> {
        let not = |what: &str| {
            format!("the store has at revision {revision} what this controller does not understand: {what}")
        };
        let mut errors = Vec::new();
        if !text.is_empty() {
            docs.read_text("store.ndjson", text, &mut errors);
        }
        if let Some(e) = errors.first() {
            return Err(not(&e.to_string()));
        }
        let wish = if whole { Wish::All(&docs) } else { Wish::Some(&docs) };
        self.region.take(&wish, revision).map_err(|unfit| not(&format!("{unfit:?}")))?;
        let model = self.region.model();
        self.fleet.forget(|node| model.by_name().nodes.contains_key(node));
        Ok(())
    }
}
