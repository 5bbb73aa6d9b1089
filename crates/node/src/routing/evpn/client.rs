// SPDX-License-Identifier: Apache-2.0
//! Calls of the daemon beside the node.

use super::api::*;
use std::net::SocketAddr;
use std::time::Duration;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status, Streaming};
use tonic_prost::ProstCodec;

/// How long the daemon may take to take a connection.
const PATIENCE: Duration = Duration::from_secs(5);
/// The longest message that is taken: one destination with all its paths.
const LONGEST: usize = 16 << 20;

/// A connection.
#[derive(Clone, Debug)]
pub struct Daemon {
    grpc: Grpc<Channel>,
}

macro_rules! call {
    ($self:ident . $how:ident ( $name:literal, $request:expr )) => {{
        $self.grpc.ready().await.map_err(|e| Status::unavailable(e.to_string()))?;
        let path = PathAndQuery::from_static(concat!("/apipb.GobgpApi/", $name));
        $self.grpc.$how(Request::new($request), path, ProstCodec::default()).await?.into_inner()
    }};
}

impl Daemon {
    /// Connects.
    pub async fn connect(at: SocketAddr) -> Result<Daemon, tonic::transport::Error> {
        // No pings of HTTP/2: servers in Go end a connection that asks more often than every five minutes.
        let endpoint = Endpoint::from_shared(format!("http://{at}"))?.connect_timeout(PATIENCE);
        let grpc = Grpc::new(endpoint.connect().await?).max_decoding_message_size(LONGEST);
        Ok(Daemon { grpc })
    }

    /// News of best paths.
    pub async fn watch(&mut self) -> Result<Streaming<WatchEventResponse>, Status> {
        let table = WatchTable { filters: vec![WatchFilter { kind: 0, init: false }] };
        Ok(call!(self.server_streaming("WatchEvent", WatchEventRequest { table: Some(table) })))
    }

    /// All EVPN paths.
    pub async fn list(&mut self) -> Result<Streaming<ListPathResponse>, Status> {
        Ok(call!(self.server_streaming("ListPath", ListPathRequest { family: Some(EVPN) })))
    }

    /// Has it announce a path.
    async fn add_one(&mut self, path: Path) -> Result<(), Status> {
        let AddPathResponse { .. } = call!(self.unary("AddPath", AddPathRequest { path: Some(path) }));
        Ok(())
    }

    /// Has it announce paths; what it has against those that it does not take.
    pub async fn add(&mut self, paths: Vec<Path>) -> Result<Vec<String>, Status> {
        let mut refused = Vec::new();
        for path in paths {
            let told = match self.add_one(path.clone()).await {
                // Somebody else claims the MAC address with a higher sequence number: GoBGP gives the next one itself, to a path without.
                Err(e) if e.code() == Code::Unknown => self.add_one(super::announce::unnumbered(path)).await,
                told => told,
            };
            match told {
                Err(e) if e.code() == Code::Unknown => refused.push(e.message().to_string()),
                told => told?,
            }
        }
        Ok(refused)
    }

    /// Has it withdraw a path.
    pub async fn delete(&mut self, path: Path) -> Result<(), Status> {
        let request = DeletePathRequest { family: Some(EVPN), path: Some(path) };
        let Empty {} = call!(self.unary("DeletePath", request));
        Ok(())
    }
}
