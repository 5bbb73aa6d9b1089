// SPDX-License-Identifier: Apache-2.0
//! A node that is an OpenFlow switch: a flow file drives frames between ports of this machine. It has no part of the gateway: no tables, no state,
//! no configuration. `docs/design/openflow-node.md`

mod ports;
mod view;

pub use view::{FlowView, OpenFlowView, PortView};

use crate::claim::Claim;
use crate::counters::monotonic_ns;
use crate::daemon::notify;
use crate::error::NodeError;
use crate::types::ErrorBody;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use parking_lot::Mutex;
use pipeline::text::{self, ImportOptions};
use pipeline::{Pipeline, Switch};
use ports::Ports;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;
use tokio::signal::unix::{signal, SignalKind};

/// How such a node is run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Files of flows and groups.
    pub files: Vec<PathBuf>,
    /// Interfaces and their numbers as ports.
    pub ports: Vec<(String, u16)>,
    /// API socket.
    pub socket: PathBuf,
}

/// What thread and API share.
struct Core {
    switch: Switch,
    ports: Vec<PortView>,
    /// What is not as the files say.
    notes: Vec<String>,
    reloads: u64,
    /// Why the last reload changed nothing.
    refused: Option<Vec<String>>,
}

struct Shared {
    options: Options,
    core: Mutex<Core>,
    stop: AtomicBool,
}

/// Reads the files: the program, and what of it is not done as written.
fn read(options: &Options) -> Result<(Pipeline, Vec<String>), NodeError> {
    let mut texts = Vec::new();
    for file in &options.files {
        let text = std::fs::read_to_string(file).map_err(NodeError::file("reading", file))?;
        texts.push((file.display().to_string(), text));
    }
    let texts: Vec<(&str, &str)> = texts.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
    let wanted = ImportOptions { ports: options.ports.clone(), ..ImportOptions::default() };
    let program = text::import_all(&texts, &wanted)
        .map_err(|errors| NodeError::Config(errors.to_string().lines().map(String::from).collect()))?
        .pipeline;
    let notes = notes(&program, options);
    Ok((program, notes))
}

fn notes(program: &Pipeline, options: &Options) -> Vec<String> {
    let mut notes = Vec::new();
    let has = |number: &u16| options.ports.iter().any(|(_, n)| n == number);
    // Those below are numbers of ports, those above say what is to be done.
    let reserved = |number: &u16| (0xfff8..=0xffff).contains(number) && *number != pipeline::LOCAL;
    let lacks: Vec<String> = program
        .output_ports()
        .iter()
        .filter(|number| **number != 0 && !has(number) && !reserved(number))
        .map(|number| match program.names().port(*number) {
            Some(name) => format!("\"{name}\""),
            None if *number == pipeline::LOCAL => "LOCAL".into(),
            None => number.to_string(),
        })
        .collect();
    if !lacks.is_empty() {
        notes.push(format!(
            "flows send to ports that this switch does not have, and that counts as no_port: {}",
            lacks.join(", ")
        ));
    }
    let list =
        |numbers: &std::collections::BTreeSet<u32>| numbers.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
    let (meters, groups) = (program.meters(), program.missing_groups());
    if !meters.is_empty() {
        notes.push(format!("meters have no rates here, and limit nothing: {}", list(&meters)));
    }
    if !groups.is_empty() {
        notes.push(format!("flows name groups that do not exist; actions behind them are not run: {}", list(&groups)));
    }
    notes
}

impl Shared {
    /// Takes the files anew. With an error in one of them nothing changes.
    fn reload(&self) -> Result<(), NodeError> {
        // Packets go on meanwhile: the lock is taken for the exchange alone.
        let read = read(&self.options);
        let mut core = self.core.lock();
        match read {
            Ok((program, notes)) => {
                notes.iter().for_each(|note| tracing::warn!("{note}"));
                tracing::info!("loaded {} flows", program.len());
                core.switch.load(program, monotonic_ns());
                core.notes = notes;
                core.reloads += 1;
                core.refused = None;
                Ok(())
            }
            Err(e) => {
                tracing::error!("nothing is reloaded: {e}");
                core.refused = Some(e.sentences());
                Err(e)
            }
        }
    }

    fn view(&self) -> OpenFlowView {
        let core = self.core.lock();
        view::view(&core, &self.options)
    }

    fn flows(&self) -> Vec<FlowView> {
        // Frames do not wait for the text that is made of it.
        let (flows, names) = {
            let core = self.core.lock();
            let flows = core.switch.flows().into_iter().map(|flow| (flow.rule.clone(), flow.count)).collect();
            (flows, core.switch.pipeline().names().clone())
        };
        view::flows(flows, &names)
    }
}

/// Runs until SIGTERM or SIGINT. SIGHUP reads the files again.
pub fn run(options: &Options) -> Result<(), NodeError> {
    let _claim = Claim::new(&options.socket, None, false)?;
    let (program, notes) = read(options)?;
    let ports = Ports::open(&options.ports)?;
    notes.iter().for_each(|note| tracing::warn!("{note}"));
    tracing::info!("loaded {} flows", program.len());
    let numbers = options.ports.iter().map(|(_, number)| *number);
    let core = Core {
        switch: Switch::new(program, numbers, monotonic_ns()),
        ports: ports.views(),
        notes,
        reloads: 0,
        refused: None,
    };
    let shared = Arc::new(Shared { options: options.clone(), core: Mutex::new(core), stop: AtomicBool::new(false) });
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(NodeError::system("starting the event loop"))?;
    let thread = std::thread::Builder::new()
        .name("openflow".into())
        .spawn({
            let shared = shared.clone();
            move || ports.serve(&shared.core, &shared.stop)
        })
        .map_err(NodeError::system("starting a thread"))?;
    let result = runtime.block_on(serve(shared.clone()));
    runtime.shutdown_timeout(Duration::from_millis(100));
    shared.stop.store(true, Ordering::Relaxed);
    let _ = thread.join();
    let _ = std::fs::remove_file(&options.socket);
    result
}

async fn serve(shared: Arc<Shared>) -> Result<(), NodeError> {
    let listen = |kind| signal(kind).map_err(NodeError::system("listening for signals"));
    let (mut term, mut int) = (listen(SignalKind::terminate())?, listen(SignalKind::interrupt())?);
    let mut hup = listen(SignalKind::hangup())?;
    let listener = crate::api::bind(&shared.options.socket)?;
    let reloading = shared.clone();
    tokio::spawn(async move {
        while hup.recv().await.is_some() {
            let shared = reloading.clone();
            // What went wrong has been said.
            let _ = tokio::task::spawn_blocking(move || shared.reload()).await;
        }
    });
    notify("READY=1");
    tracing::info!("listening on {}", shared.options.socket.display());
    tokio::select! {
        result = async { axum::serve(listener, router(shared.clone())).await } => result.map_err(NodeError::system("serving the API")),
        _ = term.recv() => Ok(()),
        _ = int.recv() => Ok(()),
    }
    .inspect(|()| {
        notify("STOPPING=1");
        tracing::info!("stopping; this switch forwards nothing until it is started again");
    })
}

fn router(shared: Arc<Shared>) -> Router {
    Router::new()
        .route("/v1/openflow", get(|State(s): State<Arc<Shared>>| async move { Json(s.view()) }))
        .route("/v1/openflow/flows", get(|State(s): State<Arc<Shared>>| async move { Json(s.flows()) }))
        .route("/v1/openflow/reload", post(reload))
        .fallback(unknown)
        .with_state(shared)
}

async fn reload(State(shared): State<Arc<Shared>>) -> Response {
    match tokio::task::spawn_blocking(move || shared.reload().map(|()| shared.view())).await {
        Ok(Ok(view)) => Json(view).into_response(),
        Ok(Err(e)) => refusal(StatusCode::UNPROCESSABLE_ENTITY, e.sentences()),
        Err(_) => refusal(StatusCode::INTERNAL_SERVER_ERROR, vec!["the reload failed; please report it".into()]),
    }
}

async fn unknown(uri: axum::http::Uri) -> Response {
    let error = format!(
        "there is nothing at {}: this node is an OpenFlow switch, which has /v1/openflow, /v1/openflow/flows, /v1/openflow/reload \
         (`tunny get openflow`, `tunny get flows`)",
        uri.path()
    );
    refusal(StatusCode::NOT_FOUND, vec![error])
}

fn refusal(status: StatusCode, errors: Vec<String>) -> Response {
    (status, Json(ErrorBody { errors, ..ErrorBody::default() })).into_response()
}
