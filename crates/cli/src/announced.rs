// SPDX-License-Identifier: Apache-2.0
//! `tunny get routes --announced`: what a node announces, beside what FRR really tells its neighbours.

use crate::get::View;
use crate::output::table;
use node::announce::AnnouncedRoute;
use node::client::Client;
use serde::Serialize;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// Where FRR is asked.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Frr {
    /// With --announced: ask the FRR of this machine, by vtysh, what it advertises to whom; DIR is the folder of its sockets, if that is not the usual one.
    #[arg(long, value_name = "DIR", num_args = 0..=1, default_missing_value = "")]
    frr: Option<PathBuf>,
}

impl Frr {
    /// Whether it is to be asked.
    pub fn wanted(&self) -> bool {
        self.frr.is_some()
    }
}

/// A route of the node, and what FRR says of it.
#[derive(Debug, Serialize)]
struct Row {
    #[serde(flatten)]
    route: AnnouncedRoute,
    /// Neighbours to which FRR advertises it; none: it was not asked, or `frrTrouble` says why nobody knows.
    #[serde(skip_serializing_if = "Option::is_none")]
    advertised: Option<Vec<String>>,
    /// Why FRR could not be asked.
    #[serde(rename = "frrTrouble", skip_serializing_if = "Option::is_none")]
    trouble: Option<String>,
}

/// Neighbours by the prefixes that they are told.
type Advertised = BTreeMap<String, BTreeSet<String>>;

/// Runs the command.
pub fn run(client: &Client, frr: &Frr, view: &View) -> anyhow::Result<ExitCode> {
    let fetch = || {
        let routes: Vec<AnnouncedRoute> = client.get("/v1/announced")?;
        let told = frr.frr.as_deref().map(|dir| [4, 6].map(|family| advertised(dir, family)));
        Ok(routes.into_iter().map(|route| row(route, told.as_ref())).collect::<Vec<_>>())
    };
    view.list(fetch, text)
}

fn row(route: AnnouncedRoute, told: Option<&[Result<Advertised, String>; 2]>) -> Row {
    let of_family = told.map(|[v4, v6]| if route.prefix.contains(':') { v6 } else { v4 });
    match of_family {
        None => Row { route, advertised: None, trouble: None },
        Some(Err(why)) => Row { route, advertised: None, trouble: Some(why.clone()) },
        Some(Ok(told)) => {
            let to = told.get(&route.prefix).into_iter().flatten().cloned().collect();
            Row { route, advertised: Some(to), trouble: None }
        }
    }
}

/// What FRR advertises of a family, by neighbour.
fn advertised(dir: &Path, family: u8) -> Result<Advertised, String> {
    let bgp = format!("show bgp ipv{family} unicast");
    let summary = question(dir, &format!("{bgp} summary json"))?;
    let mut told = Advertised::new();
    for (peer, _) in summary["peers"].as_object().into_iter().flatten() {
        let routes = question(dir, &format!("{bgp} neighbors {peer} advertised-routes json"))?;
        for (prefix, _) in routes["advertisedRoutes"].as_object().into_iter().flatten() {
            told.entry(prefix.clone()).or_default().insert(peer.clone());
        }
    }
    Ok(told)
}

fn question(dir: &Path, what: &str) -> Result<Value, String> {
    let mut command = Command::new("vtysh");
    if !dir.as_os_str().is_empty() {
        command.arg("--vty_socket").arg(dir);
    }
    let out = command.args(["-d", "bgpd", "-c", what]).output().map_err(|e| format!("vtysh cannot be run: {e}"))?;
    let text = String::from_utf8_lossy(&out.stdout);
    let first =
        |text: &str| text.lines().find(|l| !l.trim().is_empty()).unwrap_or("it says nothing").trim().to_string();
    if !out.status.success() {
        let said = first(&String::from_utf8_lossy(&out.stderr));
        return Err(format!("FRR does not answer: {}", model::plain(&said)));
    }
    // Without a BGP of that family it says nothing at all.
    match text.trim() {
        "" => Ok(Value::Null),
        text => serde_json::from_str(text).map_err(|_| format!("FRR answers no JSON: {}", model::plain(&first(text)))),
    }
}

fn text(rows: &[Row]) -> String {
    let wanted = rows.iter().any(|r| r.advertised.is_some() || r.trouble.is_some());
    let mut columns = vec!["prefix", "of", "state", "metric", "since", "reason"];
    if wanted {
        columns.insert(3, "by FRR to");
    }
    let mut out = table(
        &columns,
        rows.iter().map(|r| {
            let metric = if r.route.metric == 0 { String::new() } else { r.route.metric.to_string() };
            let mut cells = vec![
                r.route.prefix.clone(),
                r.route.why.join(", "),
                r.route.state.clone(),
                metric,
                r.route.since.clone(),
                r.route.reason.clone(),
            ];
            if wanted {
                let to = match &r.advertised {
                    Some(to) if to.is_empty() => "nobody".into(),
                    Some(to) => to.join(", "),
                    None => "not known".into(),
                };
                cells.insert(3, to);
            }
            cells
        }),
    );
    let troubles: BTreeSet<&String> = rows.iter().filter_map(|r| r.trouble.as_ref()).collect();
    troubles.iter().for_each(|why| out += &format!("{why}\n"));
    if let Some(row) =
        rows.iter().find(|r| r.route.state == "announced" && r.advertised.as_ref().is_some_and(Vec::is_empty))
    {
        out += &format!(
            "{} is announced and FRR tells nobody: `redistribute kernel` is missing, or a session is not up, or its own table has a better route (vtysh -c 'show ip route {0}')\n",
            row.route.prefix
        );
    }
    out
}
