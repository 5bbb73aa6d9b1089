// SPDX-License-Identifier: Apache-2.0
//! The OpenAPI document of the local API: one table of what may be asked, from which also come the words of a refusal.

use crate::sessions::SessionView;
use crate::types::{ListEnd, VmCounters};
use model::Kind;
use schemars::generate::SchemaSettings;
use schemars::JsonSchema;
use serde_json::{json, Map, Value};

/// A request.
struct Request {
    method: &'static str,
    path: &'static str,
    summary: &'static str,
    /// Names of its query, each with its type.
    query: &'static [(&'static str, &'static str)],
    answer: Answer,
    body: Body,
}

enum Answer {
    /// One JSON value.
    Json,
    /// JSON objects, one a line, and an end line.
    Lines(fn() -> Value),
    /// JSON objects, one a line as they come.
    Following(fn() -> Value),
    /// A stream of events until the client closes it.
    Stream,
    /// Text of Prometheus.
    Metrics,
}

enum Body {
    None,
    /// A JSON object that selects.
    Json,
    /// Files with documents.
    Files,
}

const LISTING: &[(&str, &str)] = &[("vpc", "string"), ("name", "string"), ("limit", "integer"), ("continue", "string")];
const OBJECTS: &[(&str, &str)] = &[
    ("vpc", "string"),
    ("name", "string"),
    ("fields", "string"),
    ("labels", "string"),
    ("limit", "integer"),
    ("continue", "string"),
    ("tables", "boolean"),
];
const LATEST: &[(&str, &str)] = &[("limit", "integer")];
const APPLY: &[(&str, &str)] = &[
    ("dry_run", "boolean"),
    ("replace", "boolean"),
    ("delete", "boolean"),
    ("names", "boolean"),
    ("allow_empty", "boolean"),
    ("deletes", "integer"),
    ("base", "string"),
    ("break_glass", "boolean"),
];
const ROLLBACK: &[(&str, &str)] = &[
    ("generation", "integer"),
    ("dry_run", "boolean"),
    ("deletes", "integer"),
    ("base", "string"),
    ("break_glass", "boolean"),
];

const fn get(path: &'static str, query: &'static [(&'static str, &'static str)], summary: &'static str) -> Request {
    Request { method: "get", path, summary, query, answer: Answer::Json, body: Body::None }
}

const fn post(path: &'static str, query: &'static [(&'static str, &'static str)], summary: &'static str) -> Request {
    Request { method: "post", path, summary, query, answer: Answer::Json, body: Body::Json }
}

/// An object as it is configured, or, without `apiVersion`, as the tables hold it.
fn object() -> Value {
    let held = json!({
        "type": "object",
        "required": ["kind", "metadata", "spec"],
        "properties": {
            "kind": {"enum": Kind::ALL.map(Kind::name)},
            "metadata": {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}},
            "spec": {"type": "object"},
        },
        "additionalProperties": false,
    });
    json!({"anyOf": [{"$ref": "#/components/schemas/Document"}, held]})
}

/// The schema of what is written.
fn schema_of<T: JsonSchema>() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|s| s.inline_subschemas = true).for_serialize();
    let mut schema = settings.into_generator().into_root_schema_for::<T>();
    schema.remove("$schema");
    schema.to_value()
}

/// Every request.
const REQUESTS: &[Request] = &[
    get("/v1/status", &[], "Engine, uplinks, warnings, steps of the start, commit times."),
    get("/v1/counters", &[], "What happened to packets, by engine, reason and VPC."),
    get("/v1/levels", &[], "Water levels of the tables."),
    get("/v1/neighbours", &[], "Nexthops."),
    get("/v1/underlay", &[], "The netlink watcher."),
    get("/v1/states", &[], "The state table and its agent."),
    get("/v1/shaping", &[], "Lines and VMs that are shaped, and what waits."),
    get("/v1/mirrors", &[], "What is mirrored, and what was not."),
    get("/v1/migration", &[], "What has migrated to the software path."),
    Request {
        answer: Answer::Lines(schema_of::<VmCounters>),
        ..get("/v1/vm-counters", LISTING, "Packets and bytes delivered to VMs.")
    },
    Request {
        answer: Answer::Lines(object),
        ..get(
            "/v1/objects/{kind}",
            OBJECTS,
            "Objects as configured when the listing began, or as the tables hold them.",
        )
    },
    get("/v1/announced", &[], "What the node announces by a routing daemon, what it does not, and why."),
    get("/v1/lines", &[], "Circuits with routing daemons."),
    get("/v1/evpn", &[], "What VPCs exchange by EVPN, and what of it is refused."),
    get(
        "/v1/learned",
        &[("vpc", "string")],
        "Routes that sites have announced, and VMs and routes learned by EVPN, that are in force.",
    ),
    get("/v1/events", LATEST, "Who changed what, or tried to, the oldest first."),
    get("/v1/history", LATEST, "The generations of the configuration."),
    get("/v1/top", &[("ms", "integer")], "What happens in the next milliseconds."),
    get("/v1/openapi.json", &[], "This document."),
    Request { answer: Answer::Metrics, ..get("/metrics", &[("vms", "string")], "Prometheus metrics.") },
    Request {
        body: Body::Files,
        ..post("/v1/apply", APPLY, "The plan of a change, and unless `dry_run` the change itself.")
    },
    Request {
        body: Body::None,
        ..post("/v1/rollback", ROLLBACK, "The configuration of a generation, as a change of its own.")
    },
    post("/v1/trace", &[], "The path of one packet with every table entry that it met."),
    Request {
        answer: Answer::Following(schema_of::<crate::live::Followed>),
        ..post("/v1/trace/live", &[], "What each packet of a flow meets, as they come.")
    },
    Request { answer: Answer::Stream, ..post("/v1/capture", &[], "Packets and events as they happen.") },
    Request {
        answer: Answer::Lines(schema_of::<SessionView>),
        ..post("/v1/sessions", &[], "Sessions that the body selects.")
    },
    post("/v1/ports", &[], "Pools, and who holds which ports."),
    post("/v1/rules", &[], "The rules of security groups and what each decided."),
];

/// What may be asked for, for those who asked for something else.
pub(crate) fn paths() -> String {
    let of = |method: &str| {
        let paths = REQUESTS.iter().filter(|r| r.method == method).map(|r| r.path.replace("{kind}", "KIND"));
        format!("{} {}", method.to_uppercase(), paths.collect::<Vec<_>>().join(", "))
    };
    format!("{}; {}", of("get"), of("post"))
}

/// The document.
pub fn document() -> Value {
    let mut paths: Map<String, Value> = Map::new();
    for r in REQUESTS {
        let entry = paths.entry(r.path).or_insert_with(|| json!({}));
        entry[r.method] = operation(r);
    }
    let error = json!({
        "type": "object",
        "required": ["errors"],
        "properties": {
            "errors": {"type": "array", "items": {"type": "string"}, "description": "One sentence each."},
            "code": {"type": "string", "description": "Only where a program must tell a case from others."},
        },
    });
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Tunny: the local API of a node",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "HTTP over the node's Unix socket. Whoever may open the socket may do everything.",
        },
        "servers": [{"url": "http://localhost", "description": "curl --unix-socket /run/tunny/INSTANCE.sock"}],
        "paths": paths,
        "components": {"schemas": {"Error": error, "Document": model::json_schema()}},
    })
}

fn operation(r: &Request) -> Value {
    let query = r.query.iter().map(|(name, of)| json!({"name": name, "in": "query", "schema": {"type": of}}));
    let mut parameters: Vec<Value> = query.collect();
    if r.path.contains("{kind}") {
        parameters.push(json!({"name": "kind", "in": "path", "required": true, "schema": {"type": "string"}}));
    }
    let (form, what) = match r.answer {
        Answer::Json => ("application/json", "The answer."),
        Answer::Lines(_) => ("application/x-ndjson", "JSON objects, one a line; the last is `end` with how it ended."),
        Answer::Following(_) => {
            ("application/x-ndjson", "JSON objects, one a line, until there are as many as wanted.")
        }
        Answer::Stream => ("application/octet-stream", "Events until the client closes the connection."),
        Answer::Metrics => ("text/plain", "The exposition format of Prometheus, or OpenMetrics if that is accepted."),
    };
    let refused = json!({"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}});
    let answers = [
        ("422", "The request is wrong."),
        ("409", "The tables refuse: a limit, no memory."),
        ("412", "The plan was made for another configuration."),
        ("404", "There is no such object."),
        ("500", "The node failed."),
    ];
    let mut responses = json!({"200": {"description": what, "content": {form: {}}}});
    if let Answer::Lines(line) = r.answer {
        let end = json!({"type": "object", "required": ["end"], "properties": {"end": schema_of::<ListEnd>()}});
        responses["200"]["content"][form]["schema"] = json!({"anyOf": [line(), end]});
    }
    if let Answer::Following(line) = r.answer {
        responses["200"]["content"][form]["schema"] = line();
    }
    for (status, why) in answers {
        responses[status] = refused.clone();
        responses[status]["description"] = why.into();
    }
    let mut operation = json!({"summary": r.summary, "parameters": parameters, "responses": responses});
    match r.body {
        Body::None => {}
        Body::Json => {
            operation["requestBody"] = json!({"content": {"application/json": {"schema": {"type": "object"}}}});
        }
        Body::Files => operation["requestBody"] = files(),
    }
    operation
}

/// One file as it is, or several as parts; with `names=true` a list of what goes.
fn files() -> Value {
    let document = json!({"$ref": "#/components/schemas/Document"});
    let parts = json!({"type": "object", "additionalProperties": {"type": "string", "format": "binary"}});
    let pair = json!({"type": "array", "items": {"type": "string"}, "minItems": 2, "maxItems": 2});
    json!({
        "required": true,
        "description": "YAML, NDJSON or a binary snapshot, known by its first bytes; several files as parts.",
        "content": {
            "application/yaml": {"schema": document},
            "application/x-ndjson": {"schema": document},
            "application/octet-stream": {},
            "multipart/form-data": {"schema": parts},
            "application/json": {"schema": {"type": "array", "items": pair}},
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// The routes as the code has them: each path with the method that follows it.
    fn routes() -> BTreeSet<(String, String)> {
        let code = include_str!("api.rs");
        let routes = code.split(".route(").skip(1).map(|route| {
            let path = route.split('"').nth(1).unwrap().to_string();
            let method = ["get", "post"].into_iter().min_by_key(|m| route.find(&format!("{m}(")).unwrap_or(usize::MAX));
            (path, method.unwrap().to_string())
        });
        routes.collect()
    }

    #[test]
    fn the_document_has_the_routes_of_the_code_and_no_others() {
        let document = document();
        let mut told = BTreeSet::new();
        for (path, of) in document["paths"].as_object().unwrap() {
            told.extend(of.as_object().unwrap().keys().map(|method| (path.clone(), method.clone())));
        }
        assert_eq!(told, routes());
        assert!(told.len() >= 20);
    }

    #[test]
    fn queries_are_those_that_the_code_reads() {
        let code = concat!(include_str!("api.rs"), include_str!("listing.rs"));
        let fields = |structure: &str| -> BTreeSet<String> {
            let of = code.split_once(&format!("struct {structure} {{")).unwrap().1.split_once("\n}").unwrap().0;
            let lines: Vec<&str> = of.lines().map(str::trim).collect();
            let mut renamed = None;
            let mut names = BTreeSet::new();
            for line in lines {
                if let Some(name) = line.split_once("rename = \"").and_then(|(_, rest)| rest.split_once('"')) {
                    renamed = Some(name.0.to_string());
                }
                let field = line.trim_start_matches("pub ").split_once(": ").filter(|_| !line.starts_with(['/', '#']));
                names.extend(field.map(|(name, _)| renamed.take().unwrap_or_else(|| name.to_string())));
            }
            names
        };
        let names = |of: &[(&str, &str)]| of.iter().map(|(n, _)| n.to_string()).collect::<BTreeSet<_>>();
        for (structure, query) in
            [("ApplyQuery", APPLY), ("RollbackQuery", ROLLBACK), ("LatestQuery", LATEST), ("ListQuery", OBJECTS)]
        {
            assert_eq!(fields(structure), names(query), "{structure}");
        }
    }
}
