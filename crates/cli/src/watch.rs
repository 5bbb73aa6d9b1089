// SPDX-License-Identifier: Apache-2.0
//! `tunny watch` and `tunny get -w`: what changes, as it comes. A controller tells each change; a node is asked for its generation, and
//! when that is another one, for its objects.

use crate::output::{self, note, print, Columns, Format};
use crate::Global;
use controller::types::WatchLine;
use model::{Kind, Selector};
use node::client::{escape, Client};
use node::types::Status;
use serde::Serialize;
use serde_json::Value;
use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::process::ExitCode;
use std::time::Duration;

/// How long until a node, or a view, is looked at again.
const PAUSE: Duration = Duration::from_millis(500);

/// Show changes of a node, or with --server of a region, as they come, an object a line, until interrupted.
///
/// A node is looked at twice a second: of an object that changes twice meanwhile the last form is shown.
///
/// Exit status 1: who was asked ended it, or a controller no longer keeps what is asked for; list anew, and watch from there.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Only objects of this kind.
    kind: Option<String>,
    /// Of a region: changes behind this revision, and not only from now on.
    #[arg(long, value_name = "REVISION")]
    after: Option<u64>,
    /// End after so many lines.
    #[arg(long, value_name = "N")]
    count: Option<u64>,
}

/// Runs the command.
pub fn run(args: Args, global: &Global) -> anyhow::Result<ExitCode> {
    let client = global.client()?;
    let mut left = args.count.unwrap_or(u64::MAX);
    let take = |change: WatchLine| -> anyhow::Result<bool> {
        tell(&change, global.output)?;
        left -= 1;
        Ok(left > 0)
    };
    if client.is_remote() {
        of_region(&client, args.kind.as_deref().unwrap_or(""), args.after, take)?;
    } else {
        anyhow::ensure!(
            args.after.is_none(),
            "a node keeps no changes to go back to: --after is for a controller; `tunny history` has what was changed"
        );
        let path = format!("/v1/objects/{}?limit=0", escape(args.kind.as_deref().unwrap_or("all")));
        let mut seen = Seen::default();
        seen.begin(&client)?;
        seen.look(&client, &path, |_| Ok(()))?;
        of_node(&client, &path, seen, take)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Hands on the changes of a region until `take` has enough.
fn of_region(
    client: &Client,
    kind: &str,
    after: Option<u64>,
    mut take: impl FnMut(WatchLine) -> anyhow::Result<bool>,
) -> anyhow::Result<()> {
    let after = after.map_or(String::new(), |n| format!("&after={n}"));
    let path = format!("/v1/watch?kind={}{after}", escape(kind));
    let mut done = None;
    client.follow(&path, Duration::from_secs(60), |line| {
        let taken = match line.is_empty() {
            true => Err(anyhow::anyhow!("the controller has said nothing for a minute")),
            false => read(line).and_then(&mut take),
        };
        match taken {
            Ok(true) => true,
            Ok(false) => {
                done = Some(Ok(()));
                false
            }
            Err(e) => {
                done = Some(Err(e));
                false
            }
        }
    })?;
    done.unwrap_or_else(|| Err(anyhow::anyhow!("the controller ended the watch")))
}

fn read(line: &[u8]) -> anyhow::Result<WatchLine> {
    let value: Value = serde_json::from_slice(line)?;
    match value["error"].as_str() {
        Some(error) => anyhow::bail!("{error}"),
        None => Ok(serde_json::from_value(value)?),
    }
}

/// What was seen of a node's objects: a number for each, which is another one when it has changed.
#[derive(Default)]
struct Seen {
    generation: u64,
    objects: HashMap<String, u64>,
}

impl Seen {
    /// Notes of which generation the next look is, at least.
    fn begin(&mut self, client: &Client) -> anyhow::Result<bool> {
        let generation = client.get::<Status>("/v1/status")?.generation;
        Ok(std::mem::replace(&mut self.generation, generation) != generation)
    }

    /// Lists, and hands on what is new or has changed; what is gone.
    fn look(
        &mut self,
        client: &Client,
        path: &str,
        mut changed: impl FnMut(Value) -> anyhow::Result<()>,
    ) -> anyhow::Result<Vec<String>> {
        let mut now = HashMap::with_capacity(self.objects.len());
        let end = client.lines(path, |line| {
            let object: Value = serde_json::from_slice(line)?;
            let mut hasher = DefaultHasher::new();
            line.hash(&mut hasher);
            let (name, number) = (output::kind_and_name(&object).unwrap_or_default(), hasher.finish());
            let same = self.objects.get(&name) == Some(&number);
            now.insert(name, number);
            if same {
                Ok(())
            } else {
                changed(object)
            }
        })??;
        anyhow::ensure!(end.error.is_empty(), "{}", end.error);
        let before = std::mem::replace(&mut self.objects, now);
        Ok(before.into_keys().filter(|name| !self.objects.contains_key(name)).collect())
    }
}

/// Hands on the changes of a node until `take` has enough.
fn of_node(
    client: &Client,
    path: &str,
    mut seen: Seen,
    mut take: impl FnMut(WatchLine) -> anyhow::Result<bool>,
) -> anyhow::Result<()> {
    loop {
        std::thread::sleep(PAUSE);
        if !seen.begin(client)? {
            continue;
        }
        let (mut changes, revision) = (Vec::new(), seen.generation);
        let change = |action: &str, kind: String, name: String, object| WatchLine {
            revision,
            action: action.into(),
            kind,
            name,
            object,
        };
        let gone = seen.look(client, path, |object| {
            let kind = object["kind"].as_str().unwrap_or("").to_string();
            changes.push(change("put", kind, output::object_name(&object), object));
            Ok(())
        })?;
        changes.extend(gone.into_iter().map(|gone| {
            let (kind, name) = gone.split_once('/').unwrap_or(("", &gone));
            let kind = Kind::from_name(kind).map_or(kind.to_string(), |kind| kind.to_string());
            change("delete", kind, name.into(), Value::Null)
        }));
        for change in changes {
            if !take(change)? {
                return Ok(());
            }
        }
    }
}

fn tell(change: &WatchLine, format: Format) -> anyhow::Result<()> {
    match format {
        Format::Table | Format::Wide => {
            print(&format!("{:<9} {:<6} {} {}\n", change.revision, change.action, change.kind, change.name))
        }
        Format::Json => print(&(model::plain_json(&serde_json::to_string(change)?).into_owned() + "\n")),
        Format::Yaml => print(&format!("---\n{}", output::yaml(&serde_json::to_value(change)?))),
        Format::Name => print(&format!("{}/{}\n", change.kind.to_lowercase(), change.name)),
        Format::Jsonpath(path) => print(&path.render(&serde_json::to_value(change)?)),
    }
}

/// What `tunny get -w` asks for, beside the listing's path.
pub struct Wanted<'a> {
    /// The kind, or `all`.
    pub kind: &'a str,
    /// Only the object of this name.
    pub name: Option<&'a str>,
    /// Only of this VPC.
    pub vpc: Option<&'a str>,
    /// Only with these fields.
    pub fields: Option<&'a str>,
    /// Only with these labels.
    pub labels: Option<&'a str>,
    /// Not what is there, only what changes.
    pub only_changes: bool,
}

impl Wanted<'_> {
    /// Whether an object that a controller tells of is wanted: a node's listing chooses itself.
    fn takes(&self, change: &WatchLine) -> anyhow::Result<bool> {
        let named = self.name.is_none_or(|name| name == change.name);
        if !named || (self.vpc.is_none() && self.fields.is_none() && self.labels.is_none()) {
            return Ok(named);
        }
        let docs = model::parse_text("watch", &change.object.to_string());
        let Some(object) = docs.ok().and_then(|docs| docs.puts.into_iter().next()).map(|item| item.object) else {
            return Ok(false);
        };
        let fields = Selector::parse(self.fields.unwrap_or(""), &[object.kind()]);
        let chosen = fields.and_then(|s| s.labelled(self.labels.unwrap_or(""))).map_err(|e| anyhow::anyhow!(e))?;
        Ok(self.vpc.is_none_or(|vpc| object.vpcs().iter().any(|own| **own == *vpc)) && chosen.takes(&object))
    }
}

/// Shows objects, and then each that changes, until interrupted. That one is gone is said on standard error.
pub fn objects(
    client: &Client,
    path: &str,
    wanted: &Wanted<'_>,
    format: Format,
    layout: crate::listing::Layout,
) -> anyhow::Result<ExitCode> {
    let (mut seen, mut first, mut columns) = (Seen::default(), Vec::new(), Columns::default());
    // What changes while it is listed is seen twice rather than not at all.
    let revision = match client.is_remote() {
        true => Some(client.get::<controller::types::Status>("/v1/status")?.revision),
        false => seen.begin(client).map(|_| None)?,
    };
    seen.look(client, path, |object| {
        first.extend((!wanted.only_changes).then_some(object));
        Ok(())
    })?;
    if !first.is_empty() {
        each(&first, format, &mut columns, layout)?;
    }
    drop(first);
    let take = |change: WatchLine| -> anyhow::Result<bool> {
        match change.action.as_str() {
            "delete" => note(format_args!("{}/{} is gone", change.kind.to_lowercase(), change.name)),
            _ => each(&[change.object], format, &mut columns, layout)?,
        }
        Ok(true)
    };
    match revision {
        None => of_node(client, path, seen, take)?,
        Some(revision) => {
            let (kind, mut take) = (if wanted.kind == "all" { "" } else { wanted.kind }, take);
            of_region(client, kind, Some(revision), |change| match wanted.takes(&change)? {
                true => take(change),
                false => Ok(true),
            })?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Objects one behind the other, as they come.
fn each(list: &[Value], format: Format, columns: &mut Columns, layout: crate::listing::Layout) -> anyhow::Result<()> {
    if format.is_table() {
        return print(&layout(list, columns));
    }
    for value in list {
        match format {
            Format::Json => print(&(model::plain_json(&value.to_string()).into_owned() + "\n"))?,
            Format::Yaml if value.get("apiVersion").is_some() => print(&model::yaml_document(value))?,
            Format::Yaml => print(&format!("---\n{}", output::yaml(value)))?,
            format => output::show(format, value, |_| String::new())?,
        }
    }
    Ok(())
}

/// Shows a view, and then each of its lines or entries that is another, until interrupted.
pub fn view<T: Serialize>(
    format: Format,
    mut only_changes: bool,
    mut fetch: impl FnMut() -> anyhow::Result<Vec<T>>,
    text: impl Fn(&[T]) -> String,
) -> anyhow::Result<ExitCode> {
    let mut before: HashSet<String> = HashSet::new();
    loop {
        let list = fetch()?;
        let values = list.iter().map(serde_json::to_value).collect::<Result<Vec<_>, _>>()?;
        let pieces: Vec<(String, Option<&Value>)> = match format.is_table() {
            true => text(&list).lines().map(|line| (line.to_string(), None)).collect(),
            false => values.iter().map(|value| (value.to_string(), Some(value))).collect(),
        };
        for (piece, value) in pieces.iter().filter(|(piece, _)| !only_changes && !before.contains(piece)) {
            match value {
                None => print(&format!("{piece}\n"))?,
                Some(value) => each(&[(*value).clone()], format, &mut Columns::default(), |_, _| String::new())?,
            }
        }
        only_changes = false;
        before = pieces.into_iter().map(|(piece, _)| piece).collect();
        std::thread::sleep(PAUSE);
    }
}
