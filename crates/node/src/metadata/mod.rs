// SPDX-License-Identifier: Apache-2.0
//! The metadata address (169.254.169.254): what a VM of this node asks about itself by HTTP, as cloud-init does. Workers leave its packets here, one
//! thread answers them; no packet of another VM waits for that. `docs/design/metadata.md`

mod answer;
mod stack;

use abi::{IfIndex, Mac, Vni};
use compile::MetadataPlan;
use gateway::Lease;
use parking_lot::Mutex;
use stack::Stack;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Frames of one VM that wait at most. A window of all its connections is less.
const WAITING_MAX: usize = 64;
/// Frames of all VMs that wait at most.
const QUEUE_MAX: usize = 4_096;
/// The longest frame that is taken: a VM's MTU is no more.
const FRAME_MAX: usize = 9_216;
/// A VM that is quiet for so long has its memory taken away.
const QUIET: Duration = Duration::from_secs(60);
/// Frames that are taken before answers are sent.
const TURN: usize = 256;

/// A VM of this node that is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guest {
    /// Its VPC.
    pub vni: Vni,
    /// Its MAC address.
    pub mac: Mac,
    /// That of its gateway, from which answers come.
    pub gateway_mac: Mac,
    /// What DHCP tells it.
    pub lease: Lease<u32>,
    /// What it is told here.
    pub told: Arc<MetadataPlan>,
}

/// A guest, and how many of its frames wait.
#[derive(Debug)]
struct Known {
    guest: Arc<Guest>,
    waiting: Arc<AtomicUsize>,
}

/// Where workers leave frames.
#[derive(Debug, Default)]
pub struct Metadata {
    guests: Arc<Mutex<HashMap<IfIndex, Known>>>,
    queue: Mutex<Option<SyncSender<(IfIndex, Vec<u8>)>>>,
    lost: AtomicU64,
}

impl Metadata {
    /// These are the guests from now on, each by its port. The thread that answers them begins with the first.
    pub fn set(&self, guests: Vec<(IfIndex, Guest)>) {
        let mut known = self.guests.lock();
        known.retain(|ifindex, _| guests.iter().any(|(i, _)| i == ifindex));
        for (ifindex, guest) in guests {
            match known.get_mut(&ifindex) {
                Some(k) if *k.guest == guest => {}
                Some(k) if k.guest.mac == guest.mac && k.guest.vni == guest.vni => k.guest = Arc::new(guest),
                _ => {
                    known.insert(ifindex, Known { guest: Arc::new(guest), waiting: Arc::default() });
                }
            }
        }
        let wanted = !known.is_empty();
        drop(known);
        let mut queue = self.queue.lock();
        if wanted && queue.is_none() {
            let (sender, receiver) = std::sync::mpsc::sync_channel(QUEUE_MAX);
            let guests = self.guests.clone();
            let thread = std::thread::Builder::new().name("metadata".into());
            match thread.spawn(move || serve(&guests, &receiver)) {
                Ok(_) => *queue = Some(sender),
                Err(e) => tracing::warn!("VMs are not answered at the metadata address: {e}"),
            }
        }
    }

    /// Takes the frame of a VM, by the interface of its port. What finds too many waiting is lost, and the VM sends it again.
    pub fn take(&self, ifindex: IfIndex, frame: &[u8]) {
        let waiting = self.guests.lock().get(&ifindex).map(|k| k.waiting.clone());
        let taken = waiting.is_some_and(|waiting| {
            frame.len() <= FRAME_MAX && waiting.load(Ordering::Relaxed) < WAITING_MAX && {
                waiting.fetch_add(1, Ordering::Relaxed);
                let sent = self.queue.lock().as_ref().is_some_and(|q| q.try_send((ifindex, frame.to_vec())).is_ok());
                if !sent {
                    waiting.fetch_sub(1, Ordering::Relaxed);
                }
                sent
            }
        });
        if !taken {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Frames that were passed to the metadata address and lost on the way.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }
}

/// Answers until nobody can ask any more.
fn serve(guests: &Mutex<HashMap<IfIndex, Known>>, queue: &Receiver<(IfIndex, Vec<u8>)>) {
    let begin = Instant::now();
    let mut stacks: HashMap<IfIndex, Stack> = HashMap::new();
    loop {
        let wait = stacks.values_mut().map(|s| s.due(begin.elapsed())).min().unwrap_or(QUIET);
        let mut next = match queue.recv_timeout(wait) {
            Ok(frame) => Some(frame),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        let mut left = TURN;
        while let Some((ifindex, frame)) = next {
            let known = guests.lock().get(&ifindex).map(|k| (k.guest.clone(), k.waiting.clone()));
            if let Some((guest, waiting)) = known {
                waiting.fetch_sub(1, Ordering::Relaxed);
                if !stacks.get(&ifindex).is_some_and(|s| s.is_of(&guest)) {
                    stacks.insert(ifindex, Stack::new(ifindex, &guest, begin.elapsed()));
                }
                if let Some(stack) = stacks.get_mut(&ifindex) {
                    stack.tell(guest);
                    stack.receive(frame);
                }
            }
            left -= 1;
            next = if left > 0 { queue.try_recv().ok() } else { None };
        }
        let now = begin.elapsed();
        stacks.retain(|ifindex, stack| {
            stack.go_on(now);
            stack.quiet_for(now) < QUIET && guests.lock().contains_key(ifindex)
        });
    }
}

#[cfg(test)]
mod tests;
