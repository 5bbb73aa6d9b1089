// SPDX-License-Identifier: Apache-2.0
//! `tunny watchdog`: withdraws what a node announces when its packets would be lost, and when its daemon has been dead for too long. It is
//! a process of its own, and enters nothing.

use super::keeper::{Happened, Keeper, Stance, Wanted};
use super::kernel::{trouble, Kernel, Routes, LINKS};
use super::notice::{Files, Notice, Withdrawal};
use crate::error::NodeError;
use crate::routing::netlink::Netlink;
use nix::poll::{poll, PollFd, PollFlags};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Time between two looks, ms; news of links come at once.
const LOOK: u16 = 200;

/// What is to become of routes of which this is known; none: the daemon sees to them.
fn judge(notice: &Notice, trouble: Option<String>) -> Option<Stance> {
    if let Some(why) = trouble {
        return Some(Stance::Gone(why));
    }
    if notice.beat.lives() {
        return None;
    }
    if !notice.outlives {
        return Some(Stance::Gone("the daemon is dead, and nothing forwards without it".into()));
    }
    let hold = Duration::from_secs(notice.hold.into());
    let why = || format!("the daemon has not been heard for the {} s of spec.announce.hold", hold.as_secs());
    (notice.beat.age() >= hold).then(|| Stance::Leave(why()))
}

/// What the watchdog knows between two looks.
#[derive(Debug, Default)]
struct Watchdog {
    files: Files,
    kernel: Option<Kernel>,
    keeper: Keeper,
    trouble: String,
}

impl Watchdog {
    /// A look at the daemon, the ports and the routes.
    fn look(&mut self, now: Instant) -> std::io::Result<()> {
        let Some(notice) = self.files.notice() else {
            self.keeper = Keeper::default();
            return Ok(());
        };
        let Some(stance) = judge(&notice, trouble(&notice.ports)?) else {
            self.keeper = Keeper::default();
            return Ok(());
        };
        let kernel = Kernel::of(&mut self.kernel, notice.marks)?;
        let there: Wanted = kernel.list()?.into_keys().map(|prefix| (prefix, Vec::new())).collect();
        let grace = Duration::from_secs(notice.grace.into());
        let happened = self.keeper.pass(kernel, (&there, &stance), (now, grace))?;
        self.tell(happened)
    }

    fn tell(&self, happened: Vec<Happened>) -> std::io::Result<()> {
        let time_ms = crate::audit::now_ms();
        let withdrawals: Vec<Withdrawal> = happened
            .into_iter()
            .map(|h| {
                let (prefix, state) = (h.prefix.to_string(), h.state.name().to_string());
                tracing::warn!("{prefix} is {state}: {}", h.reason);
                Withdrawal { time_ms, prefix, state, reason: h.reason }
            })
            .collect();
        if !withdrawals.is_empty() {
            self.files.leave(&withdrawals)?;
        }
        Ok(())
    }

    fn say(&mut self, result: std::io::Result<()>) {
        let now = result.err().map_or(String::new(), |e| e.to_string());
        if !now.is_empty() && now != self.trouble {
            tracing::error!("the routes cannot be looked after, and it is tried again: {now}");
        }
        self.trouble = now;
    }
}

/// Watches over the node of this API socket, in the network namespace of the calling thread, until SIGTERM or SIGINT.
pub fn run(socket: &Path) -> Result<(), NodeError> {
    let files = Files::next_to(socket);
    if let Some(folder) = socket.parent() {
        std::fs::create_dir_all(folder).map_err(NodeError::file("making the folder of the API socket", folder))?;
    }
    if files.watched() {
        return Err(NodeError::Request(format!("a watchdog of {} runs already", socket.display())));
    }
    let mut news = Netlink::open(LINKS).map_err(NodeError::system("listening for news of links"))?;
    let stop = std::sync::Arc::new(AtomicBool::new(false));
    let (ended, mine) = (stop.clone(), files.clone());
    let looking = std::thread::Builder::new().name("tunny-watchdog".into()).spawn(move || {
        let mut watchdog = Watchdog { files: mine, ..Watchdog::default() };
        while !ended.load(Relaxed) {
            let beat = watchdog.files.watch();
            let looked = watchdog.look(Instant::now());
            watchdog.say(beat.and(looked));
            let _ = poll(&mut [PollFd::new(news.as_fd(), PollFlags::POLLIN)], LOOK);
            news.news();
        }
    });
    let looking = looking.map_err(NodeError::system("starting a thread"))?;
    tracing::info!("watching over what the node at {} announces", socket.display());
    let told = crate::daemon::until_told();
    stop.store(true, Relaxed);
    let _ = looking.join();
    files.unwatch();
    told
}

#[cfg(test)]
mod tests {
    use super::super::notice::Beat;
    use super::*;

    #[test]
    fn a_dead_daemon_is_held_and_one_whose_packets_are_lost_is_not() {
        let alive = Notice { beat: Beat::now(), hold: 60, outlives: true, ..Notice::default() };
        assert_eq!(judge(&alive, None), None);
        let no_program = Some("no program".to_string());
        assert_eq!(judge(&alive, no_program.clone()), Some(Stance::Gone("no program".into())));
        let dead = Notice { beat: Beat::default(), ..alive.clone() };
        // The first beat of all is as old as the machine.
        let hold = |hold| judge(&Notice { hold, ..dead.clone() }, None);
        assert_eq!(hold(u32::MAX), None);
        assert!(matches!(hold(0), Some(Stance::Leave(why)) if why.contains("spec.announce.hold")));
        let alone = Notice { outlives: false, hold: u32::MAX, ..dead.clone() };
        assert!(matches!(judge(&alone, None), Some(Stance::Gone(why)) if why.contains("dead")));
        assert!(matches!(judge(&dead, no_program), Some(Stance::Gone(_))));
    }
}
