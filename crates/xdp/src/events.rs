// SPDX-License-Identifier: Apache-2.0
//! The event ring: dropped, punted and sampled packets that the program copied because somebody asked for it.

use crate::{XdpEngine, XdpError};
use abi::Event;
use libbpf_rs::{MapCore, RingBuffer, RingBufferBuilder};
use std::time::Duration;

/// Reads the event ring of one engine. There should be one reader at a time: an event goes to whoever takes it first.
pub struct EventRing {
    ring: RingBuffer<'static>,
}

impl XdpEngine {
    /// A reader of the event ring that hands each event to `take`.
    pub fn events(&self, mut take: impl FnMut(&Event) + Send + 'static) -> Result<EventRing, XdpError> {
        let maps: Vec<_> = self.object.maps().collect();
        let map = maps.iter().find(|m| m.name() == "tunny_events");
        let map = map.ok_or(XdpError::Missing { kind: "map", name: "tunny_events" })?;
        let callback = move |bytes: &[u8]| {
            if bytes.len() >= size_of::<Event>() {
                // SAFETY: Event is repr(C) of integers without padding, so any bytes are one, and there are enough.
                take(&unsafe { bytes.as_ptr().cast::<Event>().read_unaligned() });
            }
            0
        };
        let refused =
            |e: libbpf_rs::Error| XdpError::call("Opening the event ring")(std::io::Error::other(e.to_string()));
        let mut builder = RingBufferBuilder::new();
        builder.add(map, callback).map_err(refused)?;
        Ok(EventRing { ring: builder.build().map_err(refused)? })
    }
}

impl EventRing {
    /// Takes what has come, waiting up to `timeout` for the first.
    pub fn poll(&self, timeout: Duration) {
        // A signal ends the wait early; the caller polls again anyway.
        let _ = self.ring.poll_raw(timeout);
    }
}
