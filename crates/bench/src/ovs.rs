// SPDX-License-Identifier: Apache-2.0
//! Open vSwitch with DPDK, from Debian, as a VXLAN gateway: the peer of `peer-ovs`.
//!
//! It runs in directories and a network namespace of its own. Packets come from a pcap file that the net_pcap driver holds in
//! memory and repeats (`infinite_rx=1`); without a `tx_` argument that driver counts and drops what is sent, the cheapest
//! sink it has. Bridge `phys` hands the packets to its local port, whose address ends the tunnel; bridge `int0` holds one flow a
//! (VNI, address): decrement the TTL, rewrite both MAC addresses and the tunnel destination, and out of the same tunnel port.
//! The exact-match cache is off and flows do not expire: with 64k active flows that is its fastest setting here.
use crate::netns::{run, Netns};
use crate::workload::{nc_address, Workload, GATEWAY_MAC, ROUTER_MAC, UPLINK_MAC, VTEP};
use crate::{cpu, Context, Error};
use abi::Mac;
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::net::Ipv4Addr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const VSWITCHD: &str = "/usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk";
const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";
const HUGE_PAGES: &str = "/proc/sys/vm/nr_hugepages";
/// The port of [`Ovs::with_flows`] that drops what is sent to it.
pub const SINK: u16 = 200;
/// MiB of packet memory for Open vSwitch.
const MEMORY: u32 = 1152;
/// The CPU of its forwarding thread; the rest of it runs on CPU 0.
pub const PMD_CPU: usize = 1;

/// What its forwarding thread did in one interval.
#[derive(Clone, Copy, Debug)]
pub struct Interval {
    /// Packets received and forwarded.
    pub packets: u64,
    /// CPU time of the thread, ns.
    pub cpu_ns: u64,
    /// Its own count of cycles a packet.
    pub cycles: f64,
    /// Packets that needed an upcall.
    pub upcalls: u64,
    /// Passes through the datapath a packet: 2 when it ends the tunnel and begins a new one.
    pub passes: f64,
    /// Masks that it tried a lookup.
    pub masks: f64,
}

impl Interval {
    /// CPU time a packet, ns.
    pub fn ns(&self) -> f64 {
        self.cpu_ns as f64 / self.packets.max(1) as f64
    }

    /// Millions of packets a second of CPU time.
    pub fn mpps(&self) -> f64 {
        self.packets as f64 * 1e3 / self.cpu_ns as f64
    }
}

/// A running Open vSwitch; stopped and cleaned up when dropped.
pub struct Ovs {
    dir: tempfile::TempDir,
    netns: Netns,
    database: Option<Child>,
    switch: Option<Child>,
    pages_before: Option<String>,
    /// Seconds that its 1M flows took to install.
    pub load_seconds: f64,
    /// Huge pages or ordinary ones.
    pub memory: &'static str,
    pmd: i32,
}

impl Ovs {
    /// Starts it with these flows and packets, and waits until nothing causes an upcall any more.
    pub fn start(workload: &Workload, pcap: &[u8], context: &Context) -> Result<Ovs, Error> {
        let mut ovs = Ovs::empty(context)?;
        fs::write(ovs.file("in0.pcap"), pcap).map_err(Error::io("writing the pcap file"))?;
        ovs.start_switch(1, false)?;
        ovs.bridges()?;
        (context.progress)(&format!("installing {} flows in Open vSwitch", workload.vms.len()));
        ovs.install(workload)?;
        ovs.attach_port()?;
        (context.progress)("warming Open vSwitch up until it has no upcalls");
        ovs.warm_up(1.99)?;
        Ok(ovs)
    }

    /// The same with one bridge, any flows, and packets that come in by ports of these numbers. Port [`SINK`] takes what is sent and
    /// drops it in its driver.
    pub fn with_flows(flows: &str, ports: &[(u16, Vec<u8>)], context: &Context) -> Result<Ovs, Error> {
        let mut ovs = Ovs::empty(context)?;
        for (n, (_, pcap)) in ports.iter().enumerate() {
            fs::write(ovs.file(&format!("in{n}.pcap")), pcap).map_err(Error::io("writing a pcap file"))?;
        }
        ovs.start_switch(ports.len(), true)?;
        ovs.vsctl(&["add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=netdev", "fail_mode=secure"])?;
        let bridge = ovs.path("br0.mgmt");
        if !cpu::wait_for(Duration::from_secs(10), || Path::new(&bridge).exists()) {
            return Err(Error::Failed { what: "bridge br0".into(), why: ovs.log_tail() });
        }
        let start = Instant::now();
        ovs.replace_flows(flows)?;
        ovs.load_seconds = start.elapsed().as_secs_f64();
        let devices = ports.iter().enumerate().map(|(n, (port, _))| (format!("net_pcap{n}"), *port));
        for (device, port) in devices.chain([("net_null0".to_string(), SINK)]) {
            let (name, device, port) =
                (format!("d{port}"), format!("options:dpdk-devargs={device}"), format!("ofport_request={port}"));
            ovs.vsctl(&["add-port", "br0", &name, "--", "set", "interface", &name, "type=dpdk", &device, &port])?;
        }
        ovs.find_forwarding_thread()?;
        (context.progress)("warming Open vSwitch up until it has no upcalls");
        ovs.warm_up(0.99)?;
        Ok(ovs)
    }

    /// Gives bridge br0 other flows.
    pub fn replace_flows(&self, flows: &str) -> Result<(), Error> {
        let (file, socket) = (self.path("flows.txt"), format!("unix:{}", self.path("br0.mgmt")));
        fs::write(&file, flows).map_err(Error::io("writing the flow file"))?;
        run("ovs-ofctl", &["-O", "OpenFlow15", "del-flows", &socket])?;
        if flows.to_lowercase().contains("tun_metadata0") {
            // As the makers of such flows do.
            let map = "{class=0x102,type=0x80,len=4}->tun_metadata0";
            run("ovs-ofctl", &["-O", "OpenFlow15", "add-tlv-map", &socket, map])?;
        }
        run("ovs-ofctl", &["--timeout=120", "-O", "OpenFlow15", "add-flows", &socket, &file])?;
        Ok(())
    }

    /// Lets it install megaflows as ever, or an entry without wildcards for each packet header: then all its entries are under one mask, do the
    /// same, and are found by one probe. Waits until no packet causes an upcall.
    pub fn wildcards(&self, on: bool) -> Result<(), Error> {
        self.yield_cpu(false);
        self.appctl(&[if on { "upcall/enable-megaflows" } else { "upcall/disable-megaflows" }])?;
        self.appctl(&["revalidator/purge"])?;
        self.warm_up(0.99)
    }

    /// Switches its signature cache, which stands in front of the megaflow lookup, on or off.
    pub fn signature_cache(&self, on: bool) -> Result<(), Error> {
        self.yield_cpu(false);
        self.vsctl(&["set", "Open_vSwitch", ".", &format!("other_config:smc-enable={on}")])?;
        // Its thread takes the setting over a little later.
        std::thread::sleep(Duration::from_millis(500));
        self.warm_up(0.99)
    }

    /// Megaflows in its datapath.
    pub fn megaflows(&self) -> Result<usize, Error> {
        Ok(self.appctl(&["dpctl/dump-flows", "-m"])?.lines().filter(|l| l.contains("recirc_id")).count())
    }

    fn empty(context: &Context) -> Result<Ovs, Error> {
        for file in [VSWITCHD, SCHEMA] {
            if !Path::new(file).exists() {
                return Err(Error::Missing { what: format!("Open vSwitch with DPDK ({file})") });
            }
        }
        let mut ovs = Ovs {
            dir: tempfile::Builder::new().prefix("tunny-ovs").tempdir().map_err(Error::io("creating a directory"))?,
            netns: Netns::create("ovs")?,
            database: None,
            switch: None,
            pages_before: None,
            load_seconds: 0.0,
            memory: "--no-huge",
            pmd: 0,
        };
        (context.progress)("starting Open vSwitch");
        ovs.reserve_huge_pages();
        ovs.start_database()?;
        Ok(ovs)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn path(&self, name: &str) -> String {
        self.file(name).display().to_string()
    }

    /// Its settings, for the report.
    pub fn settings(&self) -> String {
        format!(
            "Open vSwitch {} user-space datapath, net_pcap infinite_rx, one PMD thread on CPU {PMD_CPU}, {}, EMC off, SMC off where nothing else is said, VXLAN port key=flow remote_ip=flow",
            self.appctl(&["version"]).unwrap_or_default().lines().next().unwrap_or("").rsplit(' ').next().unwrap_or(""),
            self.memory
        )
    }

    fn reserve_huge_pages(&mut self) {
        let Ok(before) = fs::read_to_string(HUGE_PAGES) else { return };
        let wanted = MEMORY / 2 + 32;
        let _ = fs::write(HUGE_PAGES, (before.trim().parse().unwrap_or(0) + wanted).to_string());
        let got: u32 = fs::read_to_string(HUGE_PAGES).ok().and_then(|n| n.trim().parse().ok()).unwrap_or(0);
        if got >= wanted {
            self.memory = "2 MiB huge pages";
        }
        self.pages_before = Some(before);
    }

    /// A command in its namespace and directories.
    fn command(&self, program: &str) -> Command {
        let mut command = self.netns.command(program);
        for variable in ["OVS_RUNDIR", "OVS_DBDIR", "OVS_LOGDIR", "OVS_SYSCONFDIR"] {
            command.env(variable, self.dir.path());
        }
        command.stdin(Stdio::null());
        // SAFETY: between fork and exec only one system call is made, which is safe there.
        unsafe {
            command.pre_exec(|| match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) {
                0 => Ok(()), // it dies with the bench, however that ends
                _ => Err(std::io::Error::last_os_error()),
            })
        };
        command
    }

    fn start_database(&mut self) -> Result<(), Error> {
        let (file, socket) = (self.path("conf.db"), self.path("db.sock"));
        run("ovsdb-tool", &["create", &file, SCHEMA])?;
        let child = self
            .command("ovsdb-server")
            .args([&file, &format!("--remote=punix:{socket}"), &format!("--log-file={}", self.path("db.log"))])
            .args(["--no-chdir", "-vconsole:off"])
            .spawn()
            .map_err(Error::io("starting ovsdb-server"))?;
        self.database = Some(child);
        if !cpu::wait_for(Duration::from_secs(5), || Path::new(&socket).exists()) {
            return Err(Error::Failed { what: "ovsdb-server".into(), why: "no socket after 5 s".into() });
        }
        self.vsctl(&["init"])?;
        Ok(())
    }

    fn vsctl(&self, arguments: &[&str]) -> Result<String, Error> {
        let database = format!("--db=unix:{}", self.path("db.sock"));
        let mut all = vec![database.as_str(), "--no-wait", "--timeout=20"];
        all.extend(arguments);
        run("ovs-vsctl", &all)
    }

    fn appctl(&self, arguments: &[&str]) -> Result<String, Error> {
        let target = self.path("ctl");
        let mut all = vec!["-t", target.as_str(), "-T", "20"];
        all.extend(arguments);
        run("ovs-appctl", &all)
    }

    /// Starts it with so many ports that repeat pcap files, and perhaps one that drops what is sent to it.
    fn start_switch(&mut self, ports: usize, sink: bool) -> Result<(), Error> {
        let drivers = fs::read_dir("/usr/lib/x86_64-linux-gnu/dpdk")
            .into_iter()
            .flatten()
            .flatten()
            .map(|e| e.path())
            .find(|p| {
                p.join("librte_net_pcap.so").exists()
                    || p.file_name().is_some_and(|n| n.to_string_lossy().starts_with("pmds"))
            })
            .ok_or_else(|| Error::Missing { what: "the DPDK drivers (librte-net-pcap23)".into() })?;
        let memory = if self.memory == "--no-huge" { format!("--no-huge -m {MEMORY}") } else { "--in-memory".into() };
        let mut devices = String::new();
        for n in 0..ports {
            let _ = write!(devices, "--vdev net_pcap{n},rx_pcap={},infinite_rx=1 ", self.path(&format!("in{n}.pcap")));
        }
        if sink {
            devices.push_str("--vdev net_null0,no-rx=1 ");
        }
        let extra =
            format!("other_config:dpdk-extra=\"--no-pci --no-telemetry {memory} {devices}-d {}\"", drivers.display());
        let mut settings =
            vec!["set", "Open_vSwitch", ".", "other_config:dpdk-init=true", "other_config:dpdk-lcore-mask=0x1"];
        let mask = format!("other_config:pmd-cpu-mask={:#x}", 1u32 << PMD_CPU);
        let sockets = format!("other_config:dpdk-socket-mem={MEMORY}");
        settings.extend([mask.as_str(), extra.as_str()]);
        settings.extend([
            "other_config:emc-insert-inv-prob=0",
            "other_config:max-idle=3600000",
            "other_config:flow-limit=200000",
        ]);
        if self.memory != "--no-huge" {
            settings.push(&sockets);
        }
        self.vsctl(&settings)?;
        let log = fs::File::create(self.file("switch.out")).map_err(Error::io("creating a log"))?;
        let child = self
            .command(VSWITCHD)
            .arg(format!("unix:{}", self.path("db.sock")))
            .args([format!("--log-file={}", self.path("switch.log")), format!("--unixctl={}", self.path("ctl"))])
            .arg("-vconsole:off")
            .stdout(log.try_clone().map_err(Error::io("creating a log"))?)
            .stderr(log)
            .spawn()
            .map_err(Error::io("starting ovs-vswitchd"))?;
        self.switch = Some(child);
        if !cpu::wait_for(Duration::from_secs(20), || self.appctl(&["version"]).is_ok()) {
            return Err(Error::Failed { what: "ovs-vswitchd".into(), why: self.log_tail() });
        }
        Ok(())
    }

    fn log_tail(&self) -> String {
        let text = fs::read_to_string(self.file("switch.log")).unwrap_or_default();
        let lines: Vec<&str> = text.lines().rev().take(8).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join("\n")
    }

    fn bridges(&self) -> Result<(), Error> {
        let mac = format!("other-config:hwaddr=\"{}\"", Mac(UPLINK_MAC));
        self.vsctl(&[
            "add-br",
            "phys",
            "--",
            "set",
            "bridge",
            "phys",
            "datapath_type=netdev",
            "fail_mode=secure",
            &mac,
        ])?;
        self.vsctl(&["add-br", "int0", "--", "set", "bridge", "int0", "datapath_type=netdev", "fail_mode=secure"])?;
        self.vsctl(&[
            "add-port",
            "int0",
            "vx0",
            "--",
            "set",
            "interface",
            "vx0",
            "type=vxlan",
            "options:key=flow",
            "options:remote_ip=flow",
            "ofport_request=5",
        ])?;
        if !cpu::wait_for(Duration::from_secs(10), || self.netns.ip("link show dev phys").is_ok()) {
            return Err(Error::Failed { what: "bridge phys".into(), why: self.log_tail() });
        }
        self.netns.ip(&format!("addr add {}/24 dev phys", Ipv4Addr::from(VTEP)))?;
        self.netns.ip("link set phys up")?;
        let router = Ipv4Addr::from(VTEP | 0xff).octets();
        let router = format!("{}.{}.{}.254", router[0], router[1], router[2]);
        self.netns.ip(&format!("route add {}/16 via {router}", Ipv4Addr::from(nc_address(0) & 0xffff_0000)))?;
        self.appctl(&["tnl/neigh/set", "phys", &router, &Mac(ROUTER_MAC).to_string()])?;
        let ends_here = format!("ipv4(dst={}", Ipv4Addr::from(VTEP));
        let listening = || self.appctl(&["tnl/ports/show", "-v"]).is_ok_and(|t| t.contains(&ends_here));
        match cpu::wait_for(Duration::from_secs(10), listening) {
            true => Ok(()),
            false => Err(Error::Failed { what: "the tunnel port of Open vSwitch".into(), why: self.log_tail() }),
        }
    }

    fn install(&mut self, workload: &Workload) -> Result<(), Error> {
        let file = self.file("flows.txt");
        let mut out = std::io::BufWriter::new(fs::File::create(&file).map_err(Error::io("creating the flow file"))?);
        let mut line = String::new();
        for vm in &workload.vms {
            line.clear();
            let _ = writeln!(
                line,
                "priority=10,tun_id={},ip,nw_dst={},actions=dec_ttl,set_field:{}->eth_src,set_field:{}->eth_dst,set_field:{}->tun_dst,output:in_port",
                vm.vni,
                Ipv4Addr::from(vm.address),
                Mac(GATEWAY_MAC),
                Mac(vm.mac),
                Ipv4Addr::from(nc_address(vm.nc))
            );
            out.write_all(line.as_bytes()).map_err(Error::io("writing the flow file"))?;
        }
        out.flush().map_err(Error::io("writing the flow file"))?;
        drop(out);
        let start = Instant::now();
        let socket = format!("unix:{}", self.path("int0.mgmt"));
        run(
            "ovs-ofctl",
            &["--timeout=120", "--bundle", "-O", "OpenFlow14", "add-flows", &socket, &file.display().to_string()],
        )?;
        self.load_seconds = start.elapsed().as_secs_f64();
        let _ = fs::remove_file(file);
        Ok(())
    }

    fn attach_port(&mut self) -> Result<(), Error> {
        let socket = format!("unix:{}", self.path("phys.mgmt"));
        run("ovs-ofctl", &["add-flow", &socket, "in_port=1,actions=LOCAL"])?;
        run("ovs-ofctl", &["add-flow", &socket, "in_port=LOCAL,actions=1"])?;
        self.vsctl(&[
            "add-port",
            "phys",
            "dpdk0",
            "--",
            "set",
            "interface",
            "dpdk0",
            "type=dpdk",
            "options:dpdk-devargs=net_pcap0",
            "ofport_request=1",
        ])?;
        self.find_forwarding_thread()
    }

    fn find_forwarding_thread(&mut self) -> Result<(), Error> {
        let process = self.switch.as_ref().map_or(0, |c| c.id() as i32);
        let found = cpu::wait_for(Duration::from_secs(10), || match cpu::threads_named(process, "pmd-c").first() {
            Some(thread) => {
                self.pmd = *thread;
                true
            }
            None => false,
        });
        if !found {
            return Err(Error::Failed { what: "the forwarding thread of Open vSwitch".into(), why: self.log_tail() });
        }
        Ok(())
    }

    /// Waits until no packet causes an upcall. A packet must pass through the datapath at least so often.
    pub fn warm_up(&self, passes: f64) -> Result<(), Error> {
        // Its flow limit grows by 1000 a revalidation: let it revalidate often until all flows are there.
        self.vsctl(&["set", "Open_vSwitch", ".", "other_config:max-revalidator=100"])?;
        for _ in 0..60 {
            let interval = self.measure(Duration::from_millis(700))?;
            if interval.packets > 0 && interval.upcalls == 0 {
                // Else it would be fast because it does something else.
                self.vsctl(&["remove", "Open_vSwitch", ".", "other_config", "max-revalidator"])?;
                return match interval.passes > passes {
                    true => Ok(()),
                    false => Err(Error::Failed {
                        what: "Open vSwitch".into(),
                        why: "its packets do not take the way that they should".into(),
                    }),
                };
            }
        }
        Err(Error::Failed { what: "warming up Open vSwitch".into(), why: "it still has upcalls after 40 s".into() })
    }

    /// Lets it forward for a while and says what it did.
    pub fn measure(&self, duration: Duration) -> Result<Interval, Error> {
        // Its thread clears its counters some time after it was told to.
        let before = self.packets()?;
        self.appctl(&["dpif-netdev/pmd-stats-clear"])?;
        if before > 0.0 && !cpu::wait_for(Duration::from_secs(5), || self.packets().is_ok_and(|now| now < before)) {
            return Err(Error::Failed { what: "Open vSwitch".into(), why: "it does not clear its counters".into() });
        }
        let process = self.switch.as_ref().map_or(0, |c| c.id() as i32);
        let before = self.packets()?;
        let time_before = cpu::run_time(process, self.pmd).map_err(Error::io("reading schedstat"))?;
        std::thread::sleep(duration);
        let time = cpu::run_time(process, self.pmd).map_err(Error::io("reading schedstat"))? - time_before;
        let text = self.appctl(&["dpif-netdev/pmd-stats-show"])?;
        let value = |key: &str| {
            text.lines()
                .find(|l| l.trim_start().starts_with(key))
                .and_then(|l| l.split(':').nth(1))
                .and_then(|v| v.split_whitespace().next()?.parse::<f64>().ok())
        };
        let misses = value("miss with success upcall").unwrap_or(0.0) + value("miss with failed upcall").unwrap_or(0.0);
        let after = value("packets received").unwrap_or(0.0);
        if after <= before {
            return Err(Error::Failed { what: "Open vSwitch".into(), why: "it receives nothing".into() });
        }
        Ok(Interval {
            packets: (after - before) as u64,
            cpu_ns: time,
            cycles: value("avg cycles per packet").unwrap_or(0.0),
            upcalls: misses as u64,
            passes: value("avg. datapath passes per packet").unwrap_or(0.0),
            masks: value("avg. subtable lookups per megaflow hit").unwrap_or(0.0),
        })
    }

    fn packets(&self) -> Result<f64, Error> {
        let text = self.appctl(&["dpif-netdev/pmd-stats-show"])?;
        let line = text.lines().find(|l| l.contains("packets received"));
        Ok(line.and_then(|l| l.split(':').nth(1)?.trim().parse().ok()).unwrap_or(0.0))
    }

    /// Lets its forwarding thread run only when nobody else wants its CPU (while the other side is measured), or normally.
    /// Stopping it instead would make Open vSwitch believe that it is overloaded, and it would throw flows away.
    pub fn yield_cpu(&self, idle: bool) {
        let policy = if idle { libc::SCHED_IDLE } else { libc::SCHED_OTHER };
        let parameters = libc::sched_param { sched_priority: 0 };
        // SAFETY: plain system call with a valid structure, on a thread of our own child.
        unsafe { libc::sched_setscheduler(self.pmd, policy, &parameters) };
    }
}

impl Drop for Ovs {
    fn drop(&mut self) {
        for child in [&mut self.switch, &mut self.database].into_iter().flatten() {
            let _ = child.kill();
            let _ = child.wait();
        }
        if let Some(before) = &self.pages_before {
            let _ = fs::write(HUGE_PAGES, before.trim());
        }
    }
}
