// SPDX-License-Identifier: Apache-2.0
//! Where tenants are: `tunny get tenants`, `get clusters`, `tunny move`, `tunny rebalance`.

use crate::output::{fitting, show, table};
use crate::Global;
use controller::placing::{Rebalanced, TenantView};
use controller_core::assign::ClusterView;
use node::client::{escape, Client};
use std::process::ExitCode;

/// All tenants, or one.
pub fn tenants(client: &Client, name: Option<&str>) -> anyhow::Result<Vec<TenantView>> {
    let mut list: Vec<TenantView> = client.get("/v1/tenants")?;
    list.retain(|t| name.is_none_or(|name| t.name == name));
    anyhow::ensure!(name.is_none() || !list.is_empty(), "there is no Tenant named `{}`", name.unwrap_or_default());
    Ok(list)
}

/// All clusters, or one.
pub fn clusters(client: &Client, name: Option<&str>) -> anyhow::Result<Vec<ClusterView>> {
    let mut list: Vec<ClusterView> = client.get("/v1/clusters")?;
    list.retain(|c| name.is_none_or(|name| c.name == name));
    anyhow::ensure!(name.is_none() || !list.is_empty(), "there is no Cluster named `{}`", name.unwrap_or_default());
    Ok(list)
}

/// Tenants as a table.
pub fn tenants_text(list: &[TenantView]) -> String {
    let row = |t: &TenantView| {
        let (vpcs, routes, vms) = (t.vpcs.to_string(), t.routes.to_string(), t.vms.to_string());
        let path = if t.why.is_empty() { t.path.clone() } else { format!("{} ({})", t.path, t.why) };
        vec![t.name.clone(), t.cluster.clone(), vpcs, routes, vms, t.state.clone(), path]
    };
    fitting(&["tenant", "cluster", "vpcs", "routes", "vms", "state", "path"], list.iter().map(row).collect())
}

/// Clusters as a table, a line a resource that has a limit.
pub fn clusters_text(list: &[ClusterView]) -> String {
    let rows = list.iter().flat_map(|c| {
        let head = |first: bool| match first {
            true => [
                c.name.clone(),
                c.nodes.to_string(),
                c.tenants.to_string(),
                if c.closed { "closed" } else { "open" }.to_string(),
            ],
            false => [const { String::new() }; 4],
        };
        let reserved = |resource: &str| c.reserved.get(resource).map_or_else(String::new, u64::to_string);
        let levels = c.levels.iter().enumerate().map(move |(at, (resource, (load, capacity, level)))| {
            let level = [
                resource.clone(),
                load.to_string(),
                reserved(resource),
                capacity.to_string(),
                format!("{:.2} %", level * 100.0),
            ];
            [&head(at == 0)[..], &level].concat()
        });
        let none = c.levels.is_empty().then(|| [&head(true)[..], &[const { String::new() }; 5]].concat());
        levels.chain(none)
    });
    table(&["cluster", "nodes", "tenants", "new tenants", "resource", "load", "reserved", "capacity", "level"], rows)
}

/// Move a tenant to another cluster, with those that it is peered with; no packet is lost.
///
/// The new cluster gets the tenant's objects and finds them in its tables, then hosts turn to it, then the old cluster forgets them: `tunny get tenants` shows how
/// far that is and whom it waits for. A Tenant with spec.cluster stays where that says.
#[derive(Debug, clap::Args)]
pub struct MoveArgs {
    /// The tenant.
    #[arg(value_name = "TENANT")]
    tenant: String,
    /// Where to.
    #[arg(value_name = "CLUSTER", required_unless_present = "abort")]
    cluster: Option<String>,
    /// Go back, wherever the move is.
    #[arg(long, conflicts_with = "cluster")]
    abort: bool,
}

/// Runs `tunny move`.
pub fn run(args: MoveArgs, global: &Global) -> anyhow::Result<ExitCode> {
    let client = global.region_client()?;
    let path = format!("/v1/tenants/{}", escape(&args.tenant));
    let views: Vec<TenantView> = match &args.cluster {
        Some(cluster) => {
            let body = serde_json::to_vec(&serde_json::json!({ "cluster": cluster }))?;
            client.post(&format!("{path}/move"), body)?
        }
        None => client.post(&format!("{path}/abort"), Vec::new())?,
    };
    show(global.output, &views, |views| tenants_text(views))?;
    Ok(ExitCode::SUCCESS)
}

/// Make the clusters' water levels even with few moves.
///
/// Moves of the first wave begin at once; say it again when these are done. Tenants with spec.cluster, and those on their way, stay.
#[derive(Debug, clap::Args)]
pub struct RebalanceArgs {
    /// Levels may be above the mean by so many thousandths of it.
    #[arg(long, value_name = "N", default_value_t = 50)]
    within: u16,
    /// Instead, move tenants with little traffic to clusters whose nodes have no fast path.
    #[arg(long)]
    cold: bool,
    /// Show the moves, and begin none.
    #[arg(long)]
    dry_run: bool,
}

/// Runs `tunny rebalance`.
pub fn rebalance(args: RebalanceArgs, global: &Global) -> anyhow::Result<ExitCode> {
    let path = format!("/v1/rebalance?within={}&cold={}&dry_run={}", args.within, args.cold, args.dry_run);
    let done: Rebalanced = global.region_client()?.post(&path, Vec::new())?;
    show(global.output, &done, rebalanced_text)?;
    Ok(ExitCode::SUCCESS)
}

fn rebalanced_text(done: &Rebalanced) -> String {
    let proposal = done.proposal.as_ref().map_or(String::new(), |p| format!("{p}\n"));
    if done.moves.is_empty() {
        return format!("nothing is to be moved\n{proposal}");
    }
    let rows = done.moves.iter().map(|m| {
        let tenants = m.tenants.join(",");
        let (from, to) = (m.from.clone(), m.to.clone());
        vec![m.wave.to_string(), tenants, from, to, m.entries.to_string()]
    });
    let begun = if done.begun { "those of wave 0 have begun\n" } else { "none has begun\n" };
    table(&["wave", "tenants", "from", "to", "entries"], rows) + begun + &proposal
}
