// SPDX-License-Identifier: Apache-2.0
//! Following a controller: the node calls, the answer has no end, and each change in it is brought into force before the next one is
//! read, so that a node that cannot keep up holds the controller back and not its own memory. What went wrong is tried again,
//! less and less often. Nothing here stands between a packet and its way.

use crate::distribution::{read_block, Message, Report, ALIVE_S, BLOCK_MAX, PROTOCOL};
use crate::managed::Managed;
use crate::paths::Paths;
use crate::service::Node;
use crate::tls::Remote;
use crate::types::ErrorBody;
use crate::usage::{Meter, PERIOD};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http2::SendRequest;
use hyper::{Request, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use model::{Documents, Kind};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;

/// Pauses between two attempts, at least and at most.
const PAUSES: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(20));
/// Without a word for so long the controller is taken for dead.
const SILENCE: Duration = Duration::from_secs(3 * ALIVE_S);

/// Follows for ever.
pub(crate) async fn follow(node: Arc<Node>, managed: Arc<Managed>, remote: Remote) {
    let mut pause = PAUSES.0;
    loop {
        let begun = tokio::time::Instant::now();
        let why = match session(&node, &managed, &remote).await {
            Ok(()) => "it has ended the stream".into(),
            Err(why) => why,
        };
        if managed.connection(false, &why) {
            tracing::warn!("the controller at {} is not there; the configuration stays as it is: {why}", remote.url());
        }
        if begun.elapsed() > PAUSES.1 {
            pause = PAUSES.0;
        }
        // Not all nodes come back at the same instant.
        let part = crate::daemon::salt() % 1000;
        tokio::time::sleep(pause * (500 + part as u32) / 1000).await;
        pause = (pause * 2).min(PAUSES.1);
    }
}

/// One connection: ends when it breaks, or when the node asks for everything anew.
async fn session(node: &Arc<Node>, managed: &Arc<Managed>, remote: &Remote) -> Result<(), String> {
    let stream = remote.connect("h2").await?;
    let (mut sender, connection) = hyper::client::conn::http2::Builder::new(TokioExecutor::new())
        .handshake(TokioIo::new(stream))
        .await
        .map_err(|e| e.to_string())?;
    let connection = tokio::spawn(connection);
    let followed = managed.followed();
    let from = if managed.report().errors.is_empty() || followed.drift { followed.revision } else { 0 };
    let path = format!(
        "/v1/stream?protocol={PROTOCOL}&from={from}&drift={}&region={}&cluster={}",
        followed.drift,
        crate::client::escape(&followed.region),
        crate::client::escape(&followed.cluster)
    );
    let response = send(&mut sender, remote, "GET", &path, Vec::new()).await?;
    let mut reader = Reader { body: response, rest: Vec::new() };
    let result = follow_stream(node, managed, remote, &mut sender, &mut reader).await;
    connection.abort();
    result
}

async fn send(
    sender: &mut SendRequest<Full<Bytes>>,
    remote: &Remote,
    method: &str,
    path: &str,
    body: Vec<u8>,
) -> Result<Incoming, String> {
    let mut request = Request::builder().method(method).uri(format!("{}{path}", remote.url()));
    if let Some(authorization) = remote.authorization() {
        request = request.header("authorization", authorization);
    }
    let request = request.header("content-type", "application/json").body(Full::new(Bytes::from(body)));
    let request = request.map_err(|e| e.to_string())?;
    let response = tokio::time::timeout(SILENCE, sender.send_request(request)).await.map_err(|_| silent())?;
    let response = response.map_err(|e| e.to_string())?;
    match response.status() {
        StatusCode::OK | StatusCode::NO_CONTENT => Ok(response.into_body()),
        status => {
            let text = response.into_body().collect().await.map_err(|e| e.to_string())?.to_bytes();
            let errors = serde_json::from_slice::<ErrorBody>(&text).map(|b| b.errors.join("; "));
            Err(errors.unwrap_or_else(|_| format!("it answers {status}")))
        }
    }
}

fn silent() -> String {
    format!("it has said nothing for {} s", SILENCE.as_secs())
}

/// The lines of the stream, and blocks behind them.
struct Reader {
    body: Incoming,
    rest: Vec<u8>,
}

impl Reader {
    /// Whole lines that have come, a megabyte or so at most, up to and with one that says that a block follows; empty at the end of the stream.
    async fn lines(&mut self) -> Result<Vec<u8>, String> {
        loop {
            if let Some(end) = end_of_lines(&self.rest) {
                let after = self.rest.split_off(end);
                return Ok(std::mem::replace(&mut self.rest, after));
            }
            if !self.more().await? {
                return Ok(Vec::new());
            }
        }
    }

    /// The bytes of a block.
    async fn block(&mut self, bytes: u64) -> Result<Vec<u8>, String> {
        if bytes > BLOCK_MAX {
            return Err(format!("a block of {bytes} bytes is announced, and {BLOCK_MAX} are taken"));
        }
        while (self.rest.len() as u64) < bytes {
            if !self.more().await? {
                return Err("it has ended the stream in the middle of a block".into());
            }
        }
        let after = self.rest.split_off(bytes as usize);
        Ok(std::mem::replace(&mut self.rest, after))
    }

    /// Takes in what comes; false at the end of the stream.
    async fn more(&mut self) -> Result<bool, String> {
        let frame = tokio::time::timeout(SILENCE, self.body.frame()).await;
        let Some(frame) = frame.map_err(|_| silent())? else {
            return Ok(false);
        };
        let frame = frame.map_err(|e| e.to_string())?;
        self.rest.extend_from_slice(frame.data_ref().map_or(&[], |d| &d[..]));
        Ok(true)
    }
}

/// What a line that says that a block follows begins with.
const BLOCK: &[u8] = b"{\"block\"";

/// Where the whole lines of some text end, behind the first that says that a block follows.
fn end_of_lines(text: &[u8]) -> Option<usize> {
    if !text.starts_with(BLOCK) && memchr::memmem::find(text, b"\n{\"block\"").is_none() {
        return memchr::memrchr(b'\n', text).map(|end| end + 1);
    }
    let mut end = 0;
    for n in memchr::memchr_iter(b'\n', text) {
        let block = text[end..].starts_with(BLOCK);
        end = n + 1;
        if block {
            break;
        }
    }
    (end > 0).then_some(end)
}

/// What is being received.
enum Receiving {
    Nothing,
    Snapshot(u64),
    Change(u64, u64),
}

/// Documents on their way in.
#[derive(Default)]
struct Parcel {
    docs: Documents,
    objects: u64,
}

impl Parcel {
    /// Takes the objects of a block.
    fn take(&mut self, bytes: &[u8], packed: Option<u64>) -> Result<(), String> {
        let docs =
            read_block(bytes, packed).map_err(|e| format!("it sends what this node does not understand: {e}"))?;
        self.objects += docs.puts.len() as u64;
        self.docs.puts.extend(docs.puts);
        Ok(())
    }
}

async fn follow_stream(
    node: &Arc<Node>,
    managed: &Arc<Managed>,
    remote: &Remote,
    sender: &mut SendRequest<Full<Bytes>>,
    reader: &mut Reader,
) -> Result<(), String> {
    let (mut receiving, mut parcel) = (Receiving::Nothing, Parcel::default());
    // Why the whole configuration was refused: it is not asked for again before something has changed.
    let mut refused = None;
    let mut out = Reports { node: node.clone(), meter: Arc::default() };
    let mut beat = tokio::time::interval(PERIOD);
    loop {
        let lines = tokio::select! {
            lines = reader.lines() => lines?,
            () = managed.news() => {
                out.send(sender, remote, managed).await?;
                continue;
            }
            _ = beat.tick() => {
                out.send(sender, remote, managed).await?;
                continue;
            }
        };
        if lines.is_empty() {
            return Ok(());
        }
        for line in lines.split(|b| *b == b'\n').filter(|line| !line.is_empty()) {
            let message =
                serde_json::from_slice(line).map_err(|e| format!("it says what this node does not understand: {e}"))?;
            match message {
                Message::Hello { region, node: name, cluster } => {
                    welcome(managed, remote, &region, &name, &cluster);
                    node.called(&name);
                    out.send(sender, remote, managed).await?;
                }
                Message::Snapshot { revision } => receiving = Receiving::Snapshot(revision),
                // It is the last one of these lines.
                Message::Block { bytes, packed } => parcel.take(&reader.block(bytes).await?, packed)?,
                Message::Change { revision, puts, deletes } => {
                    if let Some(why) = refused.take() {
                        return Err(why);
                    }
                    for (kind, name) in deletes {
                        let kind = Kind::from_name(&kind)
                            .ok_or_else(|| format!("it deletes a `{kind}`, which this node does not know"))?;
                        parcel.docs.delete(kind, &name);
                    }
                    receiving = Receiving::Change(revision, puts);
                }
                Message::End { objects } if objects != parcel.objects => {
                    return Err(format!("a snapshot of {objects} objects has {}", parcel.objects));
                }
                Message::End { .. } => {
                    let Receiving::Snapshot(revision) = receiving else {
                        return Err("a snapshot ends that none has begun".into());
                    };
                    receiving = Receiving::Nothing;
                    refused = install(node, std::mem::take(&mut parcel), true, revision).await.err();
                    out.send(sender, remote, managed).await?;
                }
                Message::Admission { admitted, why } => managed.admission(admitted, &why),
                Message::Paths(paths) => decide(node, paths).await?,
                Message::Learned(learned) => node.routing.told(&learned),
                Message::Alive {} => out.send(sender, remote, managed).await?,
            }
            if let Receiving::Change(revision, puts) = receiving {
                if parcel.objects == puts {
                    receiving = Receiving::Nothing;
                    let done = install(node, std::mem::take(&mut parcel), false, revision).await;
                    out.send(sender, remote, managed).await?;
                    done?;
                }
            }
        }
    }
}

/// Notes whose node this is. Of another region or cluster nothing that was received counts.
fn welcome(managed: &Managed, remote: &Remote, region: &str, name: &str, cluster: &str) {
    let mut other = false;
    managed.note(|f| {
        if f.region != region || f.cluster != cluster {
            (f.revision, f.admitted) = (0, false);
            other = true;
        }
        (f.region, f.cluster, f.node) = (region.into(), cluster.into(), name.into());
    });
    if other {
        managed.nothing_verified();
    }
    if managed.connection(true, "") {
        tracing::info!("following the controller at {} as node {name} of cluster {cluster}", remote.url());
    }
}

/// Brings into force what has come. A change that does not fit what is here ends the stream: the next one begins with everything.
async fn install(node: &Arc<Node>, parcel: Parcel, whole: bool, revision: u64) -> Result<(), String> {
    let node = node.clone();
    let work = move || node.install(&parcel.docs, whole, revision);
    let done = tokio::task::spawn_blocking(work).await.map_err(|_| "the node failed at a change".to_string())?;
    done.map_err(|e| format!("revision {revision} cannot be brought into force: {e}"))
}

/// Serves VPCs where the controller decides.
async fn decide(node: &Arc<Node>, paths: Paths) -> Result<(), String> {
    let node = node.clone();
    let work = move || node.decide_paths(paths);
    tokio::task::spawn_blocking(work).await.map_err(|_| "the node failed to serve VPCs where it should".into())
}

/// Tells the controller how far this node is, and how it does.
struct Reports {
    node: Arc<Node>,
    meter: Arc<Mutex<Meter>>,
}

impl Reports {
    async fn send(
        &mut self,
        sender: &mut SendRequest<Full<Bytes>>,
        remote: &Remote,
        managed: &Managed,
    ) -> Result<(), String> {
        let (node, meter) = (self.node.clone(), self.meter.clone());
        // Before sessions are counted: of what is in force by then none begin any more where they shall not.
        let report = managed.report();
        let read = move || (meter.lock().read(&node), node.handovers(), node.unused_shares());
        let read = tokio::task::spawn_blocking(read).await;
        let ((usage, addresses), handovers, [left, idle]) = read.map_err(|_| "the node failed to read its counters")?;
        let report = Report { usage, addresses, handovers, left, idle, ..report };
        let report = serde_json::to_vec(&report).unwrap_or_default();
        send(sender, remote, "POST", "/v1/report", report).await.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::end_of_lines;

    #[test]
    fn lines_end_behind_one_that_says_that_a_block_follows() {
        for (text, end) in [
            ("", None),
            ("{\"apiVersion\"", None),
            ("a\nb\nc", Some(4)),
            ("{\"block\":{\"bytes\":3}}", None),
            ("{\"block\":{\"bytes\":3}}\na\nb", Some(22)),
            ("a\n{\"block\":{\"bytes\":3}}\nxyz{\"end\"}\n", Some(24)),
            ("a\n{\"block\":{\"by", Some(2)),
        ] {
            assert_eq!(end_of_lines(text.as_bytes()), end, "{text}");
        }
    }
}
