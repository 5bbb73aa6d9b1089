// SPDX-License-Identifier: Apache-2.0
//! The agent of a node's state table on another host (`spec.filter.agent`): a process of its own in a namespace of its own, over TCP. It is killed,
//! stopped and started again, and so is the node. Without root it says so and passes.

mod region;

use lab::shell::Namespace;
use region::connections::{talk, GROUPS};
use region::{region, wait, Region};
use serde_json::{json, Value};
use std::os::unix::fs::PermissionsExt;
use std::process::Child;
use std::time::{Duration, Instant};

const AGENT: &str = "198.51.100.2:4790";
const CONNECTIONS: usize = 40;
/// The agent's host, and its process while it runs.
struct AgentHost {
    namespace: Namespace,
    dir: std::path::PathBuf,
    process: Option<Child>,
}

impl AgentHost {
    fn new(region: &Region) -> AgentHost {
        let (namespace, gw) =
            (Namespace(format!("{}-agent", region.names.namespace("gw").0)), region.names.namespace("gw"));
        let ip = |args: &str| {
            let done = std::process::Command::new("ip").args(args.split(' ')).output().unwrap();
            assert!(done.status.success(), "ip {args}: {}", String::from_utf8_lossy(&done.stderr));
        };
        ip(&format!("netns add {}", namespace.0));
        ip(&format!("-n {} link add toagent type veth peer name tonode netns {}", gw.0, namespace.0));
        for (of, port, address) in [(&gw, "toagent", "198.51.100.1/30"), (&namespace, "tonode", "198.51.100.2/30")] {
            ip(&format!("-n {} addr add {address} dev {port}", of.0));
            ip(&format!("-n {} link set {port} up", of.0));
        }
        let host = AgentHost { namespace, dir: region.names.dir().join("agent"), process: None };
        std::fs::create_dir_all(&host.dir).unwrap();
        std::fs::write(host.key(), "0123456789abcdef0123456789abcdef\n").unwrap();
        std::fs::set_permissions(host.key(), std::fs::Permissions::from_mode(0o600)).unwrap();
        host
    }

    fn key(&self) -> std::path::PathBuf {
        self.dir.join("key")
    }

    fn records(&self) -> std::path::PathBuf {
        self.dir.join("records")
    }

    fn state(&self) -> std::path::PathBuf {
        self.dir.join("state")
    }

    /// Ends it in order.
    fn end(&mut self) {
        self.signal(nix::sys::signal::Signal::SIGTERM);
        assert!(self.process.take().unwrap().wait().unwrap().success());
    }

    /// What a restart of its machine leaves.
    fn forget_records(&self) {
        assert!(self.process.is_none());
        std::fs::remove_dir_all(self.records()).unwrap();
    }

    /// What is kept of its nodes.
    fn kept(&self) -> Vec<std::path::PathBuf> {
        let files = std::fs::read_dir(self.state()).unwrap();
        files.map(|f| f.unwrap().path()).filter(|path| !path.ends_with("lock")).collect()
    }

    fn start(&mut self) {
        let folders = [self.key(), self.records(), self.state()];
        let [key, records, state] = folders.each_ref().map(|path| path.to_str().unwrap());
        let tunny = env!("CARGO_BIN_EXE_tunny");
        let argv = [tunny, "agent", "--listen", AGENT, "--key", key, "--records", records, "--state", state];
        self.process = Some(self.namespace.spawn(&argv, &self.dir.join("log")).unwrap());
    }

    fn signal(&self, signal: nix::sys::signal::Signal) {
        let pid = nix::unistd::Pid::from_raw(self.process.as_ref().unwrap().id() as i32);
        nix::sys::signal::kill(pid, signal).unwrap();
        if signal == nix::sys::signal::Signal::SIGSTOP {
            // A thread after the other comes to a stand.
            let stands = |task: std::fs::DirEntry| {
                let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
                stat.rsplit(") ").next().is_none_or(|rest| rest.starts_with('T'))
            };
            wait("the agent to stop", || {
                std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().all(|task| stands(task.unwrap())).then_some(())
            });
        }
    }

    fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }
}

impl Drop for AgentHost {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the agent's last words:\n{}", std::fs::read_to_string(self.dir.join("log")).unwrap_or_default());
        }
        self.kill();
        let _ = std::process::Command::new("ip").args(["netns", "del", &self.namespace.0]).status();
    }
}

fn is_up(region: &Region) -> Option<()> {
    region.states().agent.filter(|agent| agent.up).map(drop)
}

#[test]
fn connections_go_on_whatever_becomes_of_the_agent_or_the_node() {
    let Some(mut region) = region("g") else { return };
    let mut agent = AgentHost::new(&region);
    agent.start();
    region.apply(GROUPS);
    let key = agent.key();
    let filter = |states: &str| json!({"states": states, "connections": 4000, "agent": AGENT, "agentKey": key});
    region.filter(filter("compact"));
    wait("the agent", || is_up(&region));
    let log = agent.dir.join("sessions.log");
    region.log_to(log.to_str().unwrap());
    region.serve();
    let second = Duration::from_secs(1);
    let mut open = region.connected(CONNECTIONS);
    talk(&mut open, 1, "at first");
    assert_eq!((region.states().connections as usize, region.listed()), (CONNECTIONS, CONNECTIONS));
    let text = region.tunny(&["get", "states"]);
    println!("{text}");
    assert!(text.contains(AGENT), "{text}");
    assert!(region.connect(1, 81, second).is_empty(), "no rule allows it");
    assert!(region.drops("filter_ingress") > 0);
    assert_eq!(region.drops("filter_agent_gone"), 0);

    // Killed: data goes on, nothing begins; and when it is back nothing that it answered is lost.
    agent.kill();
    talk(&mut open, 2, "without the agent");
    assert!(region.connect(2, 80, second).is_empty());
    assert!(region.drops("filter_agent_gone") > 0);
    let of_vpc: Value = region.client().get("/v1/counters").unwrap();
    assert!(
        of_vpc["tenants"].to_string().contains("filter_agent_gone") || of_vpc.to_string().contains("filter_agent_gone"),
        "{of_vpc}"
    );
    agent.start();
    wait("the agent again", || is_up(&region));
    talk(&mut open, 3, "with the agent again");
    assert_eq!(region.listed(), CONNECTIONS);
    open.extend(region.connected(2));
    assert_eq!((open.len(), region.listed()), (CONNECTIONS + 2, CONNECTIONS + 2));

    // Stopped: it is noticed within seconds, and nobody waits for ever.
    agent.signal(nix::sys::signal::Signal::SIGSTOP);
    let begun = Instant::now();
    assert!(region.connect(1, 80, second).is_empty());
    talk(&mut open, 4, "beside an agent that stands still");
    wait("a silent agent to be taken for gone", || region.states().agent.filter(|a| !a.up && a.trouble.is_some()));
    println!("an agent that stands still was taken for gone after {:?}", begun.elapsed());
    agent.signal(nix::sys::signal::Signal::SIGCONT);
    wait("the agent that goes on", || is_up(&region));
    talk(&mut open, 5, "behind that");

    // The node is killed; and the table changes its kind and its agent.
    region.filter_at_start(&filter("compact"));
    region.node().unwrap().process.kill();
    talk(&mut open, 6, "while the node is dead");
    region.start_node().unwrap();
    wait("the agent, by the next node", || is_up(&region));
    talk(&mut open, 7, "with the next node");
    assert_eq!(region.listed(), CONNECTIONS + 2);
    for (i, states) in [filter("digest"), json!({"states": "digest"}), filter("digest"), json!({}), filter("compact")]
        .into_iter()
        .enumerate()
    {
        region.filter(states.clone());
        if states.get("agent").is_some() {
            wait("the agent behind a change", || is_up(&region));
        }
        talk(&mut open, 10 + i as u8, &format!("behind the change to {states}"));
        if states.get("states").is_some() {
            assert_eq!(region.listed(), CONNECTIONS + 2, "{states}");
        }
    }
    region.log_to(log.to_str().unwrap());

    // Rules that do not allow them any more end them; the log tells.
    drop(open.split_off(CONNECTIONS));
    region.apply(&GROUPS.replace("tcp/80", "tcp/443"));
    wait("the sweep", || (region.listed() == 0).then_some(()));
    let ends = wait("the log", || {
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        let ends: Vec<Value> =
            text.lines().filter_map(|l| serde_json::from_str(l).ok()).filter(|r: &Value| r["event"] == "end").collect();
        (ends.iter().filter(|r| r["reason"] == "removed").count() >= CONNECTIONS).then_some(ends)
    });
    let removed = ends.iter().find(|r| r["reason"] == "removed").unwrap();
    assert!(
        removed["endMs"].as_u64() > Some(0) && removed.get("packets").is_none() && removed["verdict"] == "allow",
        "{removed}"
    );
    let counters = region.node().unwrap().counters().unwrap();
    assert!(counters.balanced, "{counters:?}");
}

#[test]
fn an_agent_with_another_key_is_refused_by_both() {
    let Some(region) = region("h") else { return };
    let mut agent = AgentHost::new(&region);
    agent.start();
    region.apply(GROUPS);
    let other = agent.dir.join("other");
    std::fs::write(&other, "another key, which is long enough, too").unwrap();
    std::fs::set_permissions(&other, std::fs::Permissions::from_mode(0o600)).unwrap();
    region.filter(json!({"states": "digest", "agent": AGENT, "agentKey": other}));
    let view = wait("why it is not there", || region.states().agent.filter(|a| a.trouble.is_some()));
    assert!(!view.up && view.trouble.unwrap().contains("key"));
    // It serves those that have it, all the while.
    region.filter(json!({"states": "digest", "agent": AGENT, "agentKey": agent.key()}));
    wait("the agent", || is_up(&region));
    std::fs::set_permissions(&other, std::fs::Permissions::from_mode(0o644)).unwrap();
    region.filter(json!({"states": "digest", "agent": AGENT, "agentKey": other}));
    let open = wait("a key that others can read", || region.states().agent.and_then(|a| a.trouble));
    assert!(open.contains("chmod 600"), "{open}");
}

#[test]
fn connections_go_on_behind_an_orderly_restart_of_the_agents_machine() {
    let Some(region) = region("j") else { return };
    let mut agent = AgentHost::new(&region);
    agent.start();
    region.apply(GROUPS);
    region.filter(json!({"states": "digest", "connections": 4000, "agent": AGENT, "agentKey": agent.key()}));
    wait("the agent", || is_up(&region));
    region.serve();
    let mut open = region.connected(CONNECTIONS);
    assert!(agent.kept().is_empty(), "nothing is kept while it runs");

    // Ended in order, and the machine restarts: nothing is lost, and what was kept is used once.
    agent.end();
    assert_eq!(agent.kept().len(), 1);
    agent.forget_records();
    talk(&mut open, 1, "without the agent");
    agent.start();
    wait("the agent behind the restart", || is_up(&region));
    talk(&mut open, 2, "behind the restart");
    assert_eq!(region.listed(), CONNECTIONS);
    assert!(agent.kept().is_empty());
    open.extend(region.connected(2));

    // Ended in order and started with its records: they count, not what was kept.
    agent.end();
    agent.start();
    wait("the agent with its records", || is_up(&region));
    talk(&mut open, 3, "with its records");
    assert_eq!((region.listed(), agent.kept().len()), (CONNECTIONS + 2, 0));

    // Killed, and the machine restarts: nothing is kept, so nothing old comes back.
    agent.kill();
    agent.forget_records();
    agent.start();
    wait("the agent behind a crash", || is_up(&region));
    wait("the table to be empty", || (region.listed() == 0).then_some(()));
    let mut open = region.connected(3);

    // What was kept is damaged: it changes nothing, and is said.
    agent.end();
    let [file] = agent.kept().try_into().unwrap();
    let mut bytes = std::fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&file, bytes).unwrap();
    agent.forget_records();
    talk(&mut open, 4, "without the agent again");
    agent.start();
    wait("the agent with a damaged file", || is_up(&region));
    wait("the table to be empty again", || (region.listed() == 0).then_some(()));
    assert!(agent.kept().is_empty());
    let log = std::fs::read_to_string(agent.dir.join("log")).unwrap();
    assert!(log.contains("was changed, or written with another key"), "{log}");
    assert_eq!(region.connected(2).len(), 2);
}
