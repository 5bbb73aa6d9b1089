// SPDX-License-Identifier: Apache-2.0
//! The way to etcd: its client is asynchronous, the trait of stores is not. One thread of its own serves all connections.

use crate::store::StoreError;
use etcd_client::{Certificate, Client, ConnectOptions, Error, Identity, KvClient, TlsOptions};
use serde::{Deserialize, Serialize};
use std::future::Future;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

/// A request that takes longer than this has failed.
pub(super) const PATIENCE: Duration = Duration::from_secs(4);
/// A connection comes about within this time, or not at all.
const CONNECT: Duration = Duration::from_secs(2);

/// Where etcd is, and as whom it is spoken to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct EtcdConfig {
    /// URLs of its members.
    pub endpoints: Vec<String>,
    /// The CA of their certificates; https:// needs it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca: Option<PathBuf>,
    /// The certificate of a client, with its key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cert: Option<PathBuf>,
    /// Its key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<PathBuf>,
    /// What all keys of this region begin with.
    #[serde(default = "prefix", skip_serializing_if = "is_default")]
    pub prefix: String,
}

fn prefix() -> String {
    "tunny/".into()
}

fn is_default(text: &str) -> bool {
    text == prefix()
}

impl EtcdConfig {
    /// What is wrong with it.
    pub fn check(&self) -> Result<(), String> {
        if self.endpoints.is_empty() {
            return Err("store.etcd.endpoints: there is none".into());
        }
        if let Some(url) = self.endpoints.iter().find(|u| !u.starts_with("http://") && !u.starts_with("https://")) {
            return Err(format!(
                "store.etcd.endpoints: `{}` begins with neither http:// nor https://",
                model::plain(url)
            ));
        }
        if self.cert.is_some() != self.key.is_some() {
            return Err("store.etcd: cert and key are given together or not at all".into());
        }
        let plain = self.endpoints.iter().find(|u| u.starts_with("http://"));
        if let (Some(url), true) = (plain, self.ca.is_some() || self.cert.is_some()) {
            return Err(format!(
                "store.etcd.endpoints: `{}` is not encrypted, and certificates are given: write https://",
                model::plain(url)
            ));
        }
        if plain.is_none() && self.ca.is_none() {
            return Err("store.etcd.ca: it is missing, and https:// needs the CA of the members' certificates".into());
        }
        if self.prefix.is_empty() {
            return Err("store.etcd.prefix: it is empty, so all keys of etcd would be the region's".into());
        }
        Ok(())
    }

    fn options(&self, folder: &Path) -> Result<ConnectOptions, StoreError> {
        let options = ConnectOptions::new()
            .with_connect_timeout(CONNECT)
            .with_keep_alive(CONNECT, CONNECT)
            .with_keep_alive_while_idle(true)
            .with_require_leader(true);
        if self.ca.is_none() && self.cert.is_none() {
            return Ok(options);
        }
        let read = |path: &PathBuf| {
            let path = folder.join(path);
            std::fs::read(&path).map_err(|e| failed("opened", &format!("{}: {e}", path.display())))
        };
        let mut tls = TlsOptions::new();
        if let Some(ca) = &self.ca {
            tls = tls.ca_certificate(Certificate::from_pem(read(ca)?));
        }
        if let (Some(cert), Some(key)) = (&self.cert, &self.key) {
            tls = tls.identity(Identity::from_pem(read(cert)?, read(key)?));
        }
        Ok(options.with_tls(tls))
    }
}

pub(super) fn failed(what: &'static str, why: &dyn std::fmt::Display) -> StoreError {
    StoreError::Medium { what, why: why.to_string() }
}

/// The connection, and the thread that serves it.
pub(super) struct Link {
    client: Client,
    handle: Handle,
    /// The thread ends with this.
    _end: oneshot::Sender<()>,
}

impl Link {
    pub(super) fn open(config: &EtcdConfig, folder: &Path) -> Result<Link, StoreError> {
        let wrong = |e: &dyn std::fmt::Display| failed("opened", &format!("etcd: {e}"));
        let options = config.options(folder)?;
        super::tls::check(config, folder)?;
        let runtime = Builder::new_current_thread().enable_all().build().map_err(|e| wrong(&e))?;
        let (handle, (end, ended)) = (runtime.handle().clone(), oneshot::channel());
        let thread = std::thread::Builder::new().name("etcd".into());
        thread.spawn(move || drop(runtime.block_on(ended))).map_err(|e| wrong(&e))?;
        let endpoints = config.endpoints.clone();
        let connect = async move { Client::connect(endpoints, Some(options)).await };
        let client = wait_on(&handle, connect).map_err(|e| wrong(&e))?;
        Ok(Link { client, handle, _end: end })
    }

    pub(super) fn client(&self) -> Client {
        self.client.clone()
    }

    /// For keys and values. Pages of entries may be large.
    pub(super) fn kv(&self) -> KvClient {
        self.client.kv_client().max_decoding_message_size(1 << 30)
    }

    /// Lets something run beside.
    pub(super) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.handle.spawn(work);
    }

    /// Waits for an answer.
    pub(super) fn wait<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> Result<T, Error> {
        wait_on(&self.handle, work)
    }
}

/// May be called from any thread, one that serves an event loop included: that loop stands still meanwhile.
fn wait_on<T: Send + 'static>(
    handle: &Handle,
    work: impl Future<Output = Result<T, Error>> + Send + 'static,
) -> Result<T, Error> {
    let (done, answer) = std::sync::mpsc::sync_channel(1);
    handle.spawn(async move {
        let late = |_| Err(Error::Internal(format!("it does not answer within {} s", PATIENCE.as_secs())));
        let _ = done.send(tokio::time::timeout(PATIENCE, work).await.unwrap_or_else(late));
    });
    answer.recv().unwrap_or_else(|_| Err(Error::Internal("its thread has ended".into())))
}
