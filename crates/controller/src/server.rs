// SPDX-License-Identifier: Apache-2.0
//! Serving the API: connections, TLS, signals.

use crate::authenticate::Peer;
use crate::body::Whole;
use crate::config::Config;
use crate::replica::Replica;
use crate::service::Controller;
use crate::store::embedded::Embedded;
use crate::store::etcd::{Etcd, Fence};
use crate::store::{Store, StoreError};
use axum::extract::Request;
use axum::Router;
use controller_core::credentials::hash;
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{signal, SignalKind};
use tokio_rustls::TlsAcceptor;

/// How long a handshake or the head of a request may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// The store's file in a controller's folder.
pub const STORE: &str = "store.redb";

/// Runs a controller until SIGTERM or SIGINT.
pub fn run(file: &Path) -> Result<(), String> {
    let config = Config::read(file)?;
    let folder = config.folder(file);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|e| e.to_string())?;
    let result = runtime.block_on(async {
        let why = |e: std::io::Error| format!("listening for signals: {e}");
        let (mut term, mut int) =
            (signal(SignalKind::terminate()).map_err(why)?, signal(SignalKind::interrupt()).map_err(why)?);
        let listener = TcpListener::bind(config.listen).await;
        let listener = listener.map_err(|e| format!("listening on {}: {e}", config.listen))?;
        let address = listener.local_addr().map_err(|e| e.to_string())?;
        let (store, replica): (Arc<dyn Store>, _) = match &config.store {
            None => (Arc::new(opened(&folder.join(STORE)).await?), None),
            Some(shared) => {
                let etcd = Etcd::open(&shared.etcd, &folder, Fence::Closed).map_err(|e| e.to_string())?;
                let etcd = Arc::new(etcd);
                (etcd.clone(), Some(Replica::new(etcd, &config.url(address), &folder, &config.region)?))
            }
        };
        let controller = Controller::open(&config, &folder, store, replica)?;
        let tls = controller.pki.server(&config.names)?;
        let sampled = controller.clone();
        tokio::spawn(async move {
            let mut ticks = tokio::time::interval(Duration::from_millis(controller_core::samples::STEP_MS));
            loop {
                ticks.tick().await;
                let controller = sampled.clone();
                let _ = tokio::task::spawn_blocking(move || controller.sample()).await;
            }
        });
        node::daemon::notify("READY=1");
        tracing::info!("region {} at revision {}: listening on {address}", config.region, controller.status().revision);
        controller.exchange_evpn().map_err(|e| format!("starting a thread: {e}"))?;
        tokio::spawn(controller.clone().keep_placing());
        tokio::spawn(controller.clone().keep_deciding());
        let mut result = Ok(());
        tokio::select! {
            why = crate::replica::run(&controller) => result = Err(why),
            () = accept(listener, TlsAcceptor::from(Arc::new(tls)), crate::api::router(controller.clone())) => {}
            _ = term.recv() => {}
            _ = int.recv() => {}
        }
        node::daemon::notify("STOPPING=1");
        tracing::info!("stopping; the nodes go on");
        if let Some(replica) = &controller.replica {
            replica.leave();
        }
        result
    });
    // Streams are open: they end with the process.
    runtime.shutdown_timeout(Duration::from_millis(200));
    result
}

/// Opens the store. One that was just killed may hold it for an instant.
async fn opened(path: &Path) -> Result<Embedded, String> {
    if !path.exists() {
        return Err(format!("{} is not there: `tunny controller init` makes it", path.display()));
    }
    let begun = tokio::time::Instant::now();
    loop {
        match Embedded::open(path) {
            Err(StoreError::Locked(_)) if begun.elapsed() < PATIENCE => {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            result => return result.map_err(|e| e.to_string()),
        }
    }
}

async fn accept(listener: TcpListener, tls: TlsAcceptor, router: Router) {
    loop {
        match listener.accept().await {
            Ok((stream, address)) => drop(tokio::spawn(serve(stream, address, tls.clone(), router.clone()))),
            Err(e) => {
                // Out of file descriptors: what is served goes on, and some of it ends.
                tracing::warn!("no connection can be taken: {e}");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// Serves a connection. What goes wrong on it concerns nobody else.
async fn serve(stream: TcpStream, address: SocketAddr, tls: TlsAcceptor, router: Router) {
    let _ = stream.set_nodelay(true);
    let stream = match tokio::time::timeout(PATIENCE, tls.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(e)) => return tracing::debug!("{address}: {e}"),
        Err(_) => return tracing::debug!("{address}: no handshake within {} s", PATIENCE.as_secs()),
    };
    let certificate = stream.get_ref().1.peer_certificates().and_then(|list| list.first());
    let controller = certificate.is_some_and(crate::pki::is_peer);
    let peer = Peer { address, certificate: certificate.map(|c| hash(c)), controller };
    let service = hyper::service::service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(peer.clone());
        let service = TowerToHyperService::new(router.clone());
        hyper::service::Service::call(&service, request.map(Whole::new))
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(PATIENCE);
    builder.http2().timer(TokioTimer::new()).adaptive_window(true).keep_alive_interval(Some(PATIENCE));
    if let Err(e) = builder.serve_connection(TokioIo::new(stream), service).await {
        tracing::debug!("{address}: {e}");
    }
}
