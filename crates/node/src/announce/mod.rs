// SPDX-License-Identifier: Apache-2.0
//! What a node announces: kernel routes of an own protocol, which a routing daemon redistributes. `docs/design/announce.md`.

mod keeper;
mod kernel;
mod notice;
mod view;
pub mod watchdog;

pub use view::{AnnouncedRoute, Announcements};

use crate::audit::{Event, Origin};
use crate::error::NodeError;
use crate::service::Node;
use compile::{AnnouncePlan, Compile};
use keeper::{Happened, Keeper, Stance, State, Wanted};
use kernel::{trouble, Kernel, Marks, Port};
use model::{Announcing, OnStop};
use notice::{Beat, Files, Notice};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Time between two looks at ports, routes and configuration.
const LOOK: Duration = Duration::from_millis(250);
/// Events of one look; what is more is told by number.
const EVENTS: usize = 64;

/// What a node announces.
#[derive(Debug, Default)]
pub struct Announcer {
    state: Mutex<Inner>,
    /// Only the end of the daemon enters and removes routes any more.
    ended: AtomicBool,
}

#[derive(Debug, Default)]
struct Inner {
    files: Files,
    /// The configuration that `plan` is of; none: it was not read yet.
    of: Option<(u64, Option<String>)>,
    plan: AnnouncePlan,
    keeper: Keeper,
    kernel: Option<Kernel>,
    /// Since when each prefix is what it is, ms since 1970.
    since: BTreeMap<abi::Prefix, u64>,
    watched: bool,
    /// Why the kernel could not be asked.
    trouble: String,
    /// Tunnel addresses that an interface has, too.
    shadowed: BTreeMap<abi::Prefix, String>,
}

/// Whether the node serves, as far as the region and the configuration go.
fn stance(plan: &AnnouncePlan, admission: Option<(bool, String)>, ports: Option<String>) -> Stance {
    let state = plan.settings.state;
    match (state, ports, admission) {
        (Announcing::Off, ..) => Stance::Leave("spec.announce.state of the Gateway is off".into()),
        (_, Some(why), _) => Stance::Gone(why),
        (Announcing::Drain, ..) => Stance::Leave("spec.announce.state of the Gateway is drain".into()),
        (_, _, Some((false, why))) if why.is_empty() => Stance::Leave("the region has not admitted this node".into()),
        (_, _, Some((false, why))) => Stance::Leave(format!("the region does not admit this node: {why}")),
        _ => Stance::Serve,
    }
}

/// Starts the thread that sees to it. The ports are served.
pub(crate) fn start(node: &Arc<Node>, socket: &Path, stop: &Arc<AtomicBool>) -> Result<JoinHandle<()>, NodeError> {
    let (node, stop) = (node.clone(), stop.clone());
    node.announcer.state.lock().files = Files::next_to(socket);
    let body = move || {
        while !stop.load(Relaxed) && !node.announcer.ended.load(Relaxed) {
            node.announce(None);
            std::thread::sleep(LOOK);
        }
    };
    std::thread::Builder::new()
        .name("tunny-announce".into())
        .spawn(body)
        .map_err(NodeError::system("starting a thread"))
}

/// Removes what a node that does not run any more has left.
pub fn forget(socket: &Path) -> io::Result<()> {
    let files = Files::next_to(socket);
    let Some(notice) = files.notice() else { return Ok(()) };
    let gone = Stance::Gone("the node is uninstalled".into());
    let mut kernel = Kernel::open(notice.marks)?;
    Keeper::default().pass(&mut kernel, (&Wanted::new(), &gone), (Instant::now(), Duration::ZERO))?;
    files.forget_notice();
    Ok(())
}

impl Node {
    /// A look; `stance` instead of the one that follows from the configuration.
    fn announce(&self, forced: Option<&Stance>) {
        if !self.plan_announcements() {
            return;
        }
        // Locks of the node before the announcer's.
        let ports = self.ports_of_announcements();
        let admission = self.managed.as_ref().map(|m| (m.followed().admitted, m.view().why));
        let mut inner = self.announcer.state.lock();
        // What was left is not judged before it is known by which ports it comes.
        if ports.is_none() && inner.files.notice().is_none() {
            return;
        }
        let looked = inner.look(ports, admission, forced);
        let happened = inner.say(looked);
        let told = inner.files.take_withdrawals();
        drop(inner);
        self.note_announced(happened, told);
    }

    /// Takes over what the configuration wants now, unless that is being changed. Whether there is anything to look after: if nothing was ever
    /// wanted, nobody's kernel is touched.
    fn plan_announcements(&self) -> bool {
        let old = self.announcer.state.lock().of.clone();
        let new = self.core.try_lock().and_then(|core| {
            let of = Some((core.model.generation(), core.model.own_name().map(String::from)));
            (of != old).then(|| (of, core.model.announce()))
        });
        let mut inner = self.announcer.state.lock();
        if let Some((of, plan)) = new {
            (inner.of, inner.plan) = (of, plan);
        }
        let wanted = inner.announces() || inner.kernel.is_some() || inner.files.notice().is_some();
        inner.of.is_some() && wanted
    }

    /// Uplinks as they are served; none: the node is being changed.
    fn ports_of_announcements(&self) -> Option<(Vec<Port>, bool)> {
        let plane = self.plane.try_lock()?;
        // Of engine tc the kernel's list of interfaces does not tell whether its program is there.
        let port = |u: crate::types::Uplink| Port { fast: !["user", "tc"].contains(&u.mode.as_str()), name: u.name };
        let served = plane.uplinks().into_iter().filter(|u| u.mode != "none");
        Some((served.map(port).collect(), plane.xdp.as_ref().is_some_and(xdp::XdpEngine::outlives)))
    }

    fn note_announced(&self, happened: Vec<Happened>, told: Vec<notice::Withdrawal>) {
        let generation = self.core.try_lock().map_or(0, |core| core.generation());
        let what = |state: &str| if state == State::Announced.name() { "announce" } else { "withdraw" };
        let event = |from: &str, state: &str, note: String| Event {
            note,
            ..Event::new(what(state), state, generation, &Origin::node(from))
        };
        let mut events: Vec<Event> = Vec::new();
        for told in told {
            let mut e = event("watchdog", &told.state, format!("{}: {}", told.prefix, told.reason));
            (e.time_ms, e.time) = (told.time_ms, crate::audit::utc(told.time_ms / 1000));
            events.push(e);
        }
        let own = happened.iter().map(|h| event("routes", h.state.name(), format!("{}: {}", h.prefix, h.reason)));
        events.extend(own);
        if let Some(more) = events.len().checked_sub(EVENTS).filter(|more| *more > 0) {
            let (state, from) = (events[EVENTS].outcome.clone(), events[EVENTS].origin.from.clone());
            events.truncate(EVENTS);
            events.push(event(&from, &state, format!("and {more} more prefixes: `tunny get routes --announced`")));
        }
        self.audit.note_all(events);
    }

    /// The daemon was told to stop: what it announces is marked, and goes after the grace time; or stays, if that is wanted and bounded.
    /// `outlives`: the fast path goes on.
    pub(crate) fn end_announcements(&self, outlives: bool) {
        self.announcer.ended.store(true, Relaxed);
        let (settings, held, there) = {
            let inner = self.announcer.state.lock();
            let settings = inner.plan.settings;
            let held = settings.on_stop == OnStop::Hold && settings.hold > 0 && outlives && inner.files.watched();
            (settings, held, inner.keeper.has_routes())
        };
        if !there {
            self.announcer.state.lock().files.forget_notice();
            return;
        }
        if held {
            tracing::info!("what is announced stays for {} s; the watchdog ends it then", settings.hold);
            return;
        }
        if settings.on_stop == OnStop::Hold {
            tracing::warn!("what is announced goes, for without a fast path that goes on, or without a watchdog, nothing would end it");
        }
        let why = "the daemon was told to stop".to_string();
        self.announce(Some(&Stance::Leave(why.clone())));
        let end = Instant::now() + Duration::from_secs(settings.grace.into());
        while Instant::now() < end {
            std::thread::sleep(LOOK.min(end.saturating_duration_since(Instant::now())));
            // The watchdog is to hear that this process lives.
            self.announce(Some(&Stance::Leave(why.clone())));
        }
        self.announce(Some(&Stance::Gone(why)));
        self.announcer.state.lock().files.forget_notice();
    }
}

impl Inner {
    fn look(
        &mut self,
        ports: Option<(Vec<Port>, bool)>,
        admission: Option<(bool, String)>,
        forced: Option<&Stance>,
    ) -> io::Result<Vec<Happened>> {
        let old = self.files.notice();
        let settings = self.plan.settings;
        let marks = Marks { table: settings.table, protocol: settings.protocol };
        let (ports, outlives) = match ports {
            Some((mut ports, outlives)) => {
                // Ports towards customers bring nothing of what is announced.
                ports.retain(|p| self.plan.uplinks.contains(&p.name));
                let outlives = outlives && ports.iter().all(|p| p.fast);
                (ports, outlives)
            }
            None => old.as_ref().map(|s| (s.ports.clone(), s.outlives)).unwrap_or_default(),
        };
        let stance = match forced {
            Some(stance) => stance.clone(),
            None => stance(&self.plan, admission, trouble(&ports)?),
        };
        let kernel = Kernel::of(&mut self.kernel, marks)?;
        let grace = Duration::from_secs(settings.grace.into());
        let happened = self.keeper.pass(kernel, (&self.plan.prefixes, &stance), (Instant::now(), grace))?;
        // Those of other marks go when the new ones are there.
        if let Some(old) = old.as_ref().filter(|old| old.marks != marks) {
            let gone = Stance::Gone("spec.announce of the Gateway says other marks".into());
            let none = Wanted::new();
            Keeper::default().pass(&mut Kernel::open(old.marks)?, (&none, &gone), (Instant::now(), Duration::ZERO))?;
        }
        let (grace, hold) = (settings.grace, settings.hold);
        match settings.state == Announcing::Off && !self.keeper.has_routes() {
            true => self.files.forget_notice(),
            false => self.files.set_notice(&Notice { beat: Beat::now(), marks, grace, hold, ports, outlives })?,
        }
        self.watched = self.files.watched();
        self.shadowed = self.shadows();
        let now = crate::audit::now_ms();
        let Inner { since, keeper, .. } = self;
        since.extend(happened.iter().map(|h| (h.prefix, now)));
        since.retain(|prefix, _| keeper.known.contains_key(prefix));
        Ok(happened)
    }

    fn say(&mut self, looked: io::Result<Vec<Happened>>) -> Vec<Happened> {
        let (happened, now) = match looked {
            Ok(happened) => (happened, String::new()),
            Err(e) => (Vec::new(), e.to_string()),
        };
        if !now.is_empty() && now != self.trouble {
            tracing::error!("what is announced cannot be looked after, and it is tried again: {now}");
        }
        self.trouble = now;
        happened
    }

    /// Announced addresses that an interface has: zebra prefers its connected route, and does not redistribute the kernel's.
    fn shadows(&self) -> BTreeMap<abi::Prefix, String> {
        let own = nix::ifaddrs::getifaddrs().into_iter().flatten().filter_map(|i| {
            let address = i.address?;
            let v4 = address.as_sockaddr_in().map(|a| std::net::IpAddr::V4(a.ip()));
            let address = v4.or_else(|| address.as_sockaddr_in6().map(|a| std::net::IpAddr::V6(a.ip())))?;
            Some((abi::Prefix::from(address), i.interface_name))
        });
        own.filter(|(prefix, _)| self.plan.prefixes.contains_key(prefix)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::Announce;

    #[test]
    fn a_node_announces_what_it_serves_and_only_then() {
        let plan =
            |state| AnnouncePlan { settings: Announce { state, ..Announce::default() }, ..AnnouncePlan::default() };
        let (on, down) = (plan(Announcing::On), Some("no port is up".to_string()));
        assert_eq!(stance(&on, None, None), Stance::Serve);
        assert_eq!(stance(&on, Some((true, String::new())), None), Stance::Serve);
        let out = Some((false, "a probe fails".to_string()));
        assert!(matches!(stance(&on, out.clone(), None), Stance::Leave(why) if why.ends_with("a probe fails")));
        assert!(
            matches!(stance(&on, Some((false, String::new())), None), Stance::Leave(why) if why.contains("not admitted"))
        );
        // What is lost is not announced for the sake of a grace time.
        assert_eq!(stance(&on, out, down.clone()), Stance::Gone("no port is up".into()));
        assert_eq!(stance(&plan(Announcing::Drain), None, down.clone()), Stance::Gone("no port is up".into()));
        assert!(
            matches!(stance(&plan(Announcing::Drain), None, None), Stance::Leave(why) if why.ends_with("is drain"))
        );
        assert!(matches!(stance(&plan(Announcing::Off), None, None), Stance::Leave(why) if why.ends_with("is off")));
    }
}
