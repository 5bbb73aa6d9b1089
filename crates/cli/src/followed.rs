// SPDX-License-Identifier: Apache-2.0
//! Packets of a flow as a node tells them: for `tunny trace --live` and `tunny capture --vm`.

use anyhow::Context;
use node::client::Client;
use node::live::{Followed, Request};
use std::time::Duration;

/// Hands on each packet, until the node has told all that were asked for.
pub fn each(
    client: &Client,
    request: &Request,
    mut take: impl FnMut(&Followed) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let (mut buffer, mut failed) = (Vec::new(), None);
    client.stream("/v1/trace/live", serde_json::to_vec(request)?, Duration::from_secs(1), |piece| {
        buffer.extend_from_slice(piece);
        while let Some(end) = buffer.iter().position(|b| *b == b'\n') {
            let line: Vec<u8> = buffer.drain(..=end).collect();
            let packet = serde_json::from_slice(&line).context("the node tells what this program does not know");
            if let Err(e) = packet.and_then(|packet| take(&packet)) {
                failed = Some(e);
                return false;
            }
        }
        true
    })?;
    failed.map_or(Ok(()), Err)
}
