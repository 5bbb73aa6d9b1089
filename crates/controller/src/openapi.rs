// SPDX-License-Identifier: Apache-2.0
//! Every request that the controller takes: one table, of which are made the routes' permissions, the words of a refusal, and the
//! OpenAPI 3.1 document that it serves.

use model::Access;
use serde_json::{json, Map, Value};

/// A request.
pub struct Request {
    /// Method, in capitals.
    pub method: &'static str,
    /// Path, with names of what varies.
    pub path: &'static str,
    /// What it is for.
    pub summary: &'static str,
    /// Who may: by Role.
    pub access: &'static [Access],
    /// Names of its query, each with its type.
    pub query: &'static [(&'static str, &'static str)],
    /// Who answers, of several controllers.
    pub led: Led,
    body: Body,
    answer: Answer,
}

/// Who answers a request, of several controllers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Led {
    /// Any one, by what it knows.
    No,
    /// The one that leads, as long as one does.
    Best,
    /// The one that leads, or nobody.
    Must,
}

#[derive(Clone, Copy)]
enum Body {
    None,
    Json(&'static [(&'static str, &'static str)]),
    Files,
}

#[derive(Clone, Copy)]
enum Answer {
    Json,
    Lines,
    Text,
    Nothing,
}

use Access::{Host, Node, Operator, ReadOnly, Tenant};

const PEOPLE: &[Access] = &[Operator, ReadOnly, Tenant];
const LOOKERS: &[Access] = &[Operator, ReadOnly];
const OPERATORS: &[Access] = &[Operator];
const NODES: &[Access] = &[Node];
const HOSTS: &[Access] = &[Host];
const EVERYBODY: &[Access] = &[Operator, ReadOnly, Tenant, Node, Host];
const CHANGERS: &[Access] = &[Operator, Tenant];

const OBJECTS: &[(&str, &str)] =
    &[("name", "string"), ("vpc", "string"), ("fields", "string"), ("limit", "integer"), ("continue", "string")];
const APPLY: &[(&str, &str)] = &[
    ("dry_run", "boolean"),
    ("replace", "boolean"),
    ("delete", "boolean"),
    ("names", "boolean"),
    ("allow_empty", "boolean"),
    ("deletes", "integer"),
    ("base", "integer"),
];
const STREAM: &[(&str, &str)] =
    &[("protocol", "integer"), ("from", "integer"), ("drift", "boolean"), ("region", "string"), ("cluster", "string")];

const fn get(path: &'static str, access: &'static [Access], summary: &'static str) -> Request {
    Request { method: "GET", path, summary, access, query: &[], led: Led::No, body: Body::None, answer: Answer::Json }
}

const fn post(path: &'static str, access: &'static [Access], summary: &'static str) -> Request {
    Request { method: "POST", led: Led::Must, ..get(path, access, summary) }
}

/// Every request.
pub const REQUESTS: &[Request] = &[
    get("/v1/status", LOOKERS, "Region, revision, objects by kind, nodes by how they stand."),
    Request {
        query: OBJECTS,
        answer: Answer::Lines,
        ..get("/v1/objects/{kind}", PEOPLE, "Objects as they were when the listing began; the header `tunny-revision` says of which revision.")
    },
    Request {
        query: APPLY,
        body: Body::Files,
        ..post("/v1/apply", CHANGERS, "The plan of a change of many objects, and unless `dry_run` the change itself, whole or not at all. With `base`, a revision, nothing is changed if an object that the documents name was changed since.")
    },
    Request {
        query: &[("after", "integer"), ("kind", "string")],
        answer: Answer::Lines,
        ..get("/v1/watch", PEOPLE, "Changes behind a revision, a line an object, without an end. 410: the revision is no longer kept.")
    },
    Request { led: Led::Must, ..get("/v1/describe/{kind}/{name}", PEOPLE, "An object, when it changed last, and on which nodes it is installed.") },
    Request { led: Led::Best, ..get("/v1/nodes", LOOKERS, "How every node stands: intent, installed, verified.") },
    post("/v1/nodes/{name}/resync", OPERATORS, "A node is sent everything anew: what was changed there by hand goes."),
    Request { led: Led::Best, ..get("/v1/tenants", LOOKERS, "Where every Tenant is served, and how far it is on its way.") },
    Request { led: Led::Best, ..get("/v1/clusters", LOOKERS, "How full every cluster is.") },
    Request {
        body: Body::Json(&[("cluster", "string")]),
        ..post("/v1/tenants/{name}/move", OPERATORS, "A Tenant, and those that it is peered with, moves to another cluster.")
    },
    post("/v1/tenants/{name}/abort", OPERATORS, "A move goes back."),
    Request {
        query: &[("within", "integer"), ("dry_run", "boolean")],
        ..post("/v1/rebalance", OPERATORS, "The moves that make water levels even; those of the first wave begin.")
    },
    Request { led: Led::Must, query: &[("vnis", "string")], answer: Answer::Lines, ..get("/v1/upstream", HOSTS, "What a host follows: the addresses that serve its VNIs.") },
    Request {
        body: Body::Json(&[("revision", "integer")]),
        ..post("/v1/upstream", HOSTS, "A host sends as a revision has it.")
    },
    Request {
        led: Led::Best,
        query: &[("limit", "integer"), ("around", "integer"), ("within", "integer")],
        ..get("/v1/events", LOOKERS, "Who changed what, or tried to, the oldest first. `around`, milliseconds since 1970: those `within` so many seconds of then.")
    },
    get("/v1/me", EVERYBODY, "Who asks: Role, access, Tenant; and of which region this is."),
    Request {
        query: &[("q", "string"), ("limit", "integer")],
        ..get("/v1/search", PEOPLE, "Tenants, VPCs, VMs, NCs, nodes and clusters by a part of a name, a VNI, an address or a prefix.")
    },
    Request { led: Led::Best, ..get("/v1/tenants/{name}", PEOPLE, "What a Tenant has: its VPCs, how many VMs and routes.") },
    Request {
        body: Body::Json(&[("from", "string"), ("to", "string"), ("protocol", "string"), ("port", "integer")]),
        ..post("/v1/trace", PEOPLE, "Which way a packet would take, stage by stage, by the region's intent.")
    },
    get("/v1/reasons", PEOPLE, "Why packets are dropped: each reason with its stage, what it means and what to do."),
    Request { led: Led::Best, query: &[("day", "boolean")], ..get("/v1/levels", LOOKERS, "Water levels of clusters over the last hour, or day.") },
    Request { led: Led::Best, answer: Answer::Lines, ..get("/v1/live", LOOKERS, "How nodes stand, events and water levels as they come, without an end.") },
    Request { answer: Answer::Text, ..get("/metrics", LOOKERS, "The region for Prometheus.") },
    get("/v1/credentials", OPERATORS, "Tokens and certificates that count, without what they open with."),
    Request {
        body: Body::Json(&[("role", "string"), ("sort", "string"), ("days", "integer")]),
        ..post("/v1/credentials", OPERATORS, "A new token or certificate for a Role. Its secret is in this answer and nowhere else.")
    },
    Request { method: "DELETE", led: Led::Must, ..get("/v1/credentials/{id}", OPERATORS, "A credential opens nothing any more.") },
    Request { led: Led::Must, query: STREAM, answer: Answer::Lines, ..get("/v1/stream", NODES, "What a node follows (docs/design/controller.md).") },
    Request {
        body: Body::Json(&[("installed", "integer"), ("verified", "integer"), ("faults", "array"), ("errors", "array"), ("drift", "boolean"), ("version", "string"), ("usage", "object"), ("probes", "object"), ("admitted", "boolean"), ("addresses", "array")]),
        answer: Answer::Nothing,
        ..post("/v1/report", NODES, "How a node stands.")
    },
    Request { answer: Answer::Lines, ..get("/v1/backup", OPERATORS, "All that the store holds, as of one revision, for `tunny controller restore`. Secrets are in it as hashes alone.") },
    get("/v1/openapi.json", EVERYBODY, "This document."),
];

/// The request of a method and a path as the table has it.
pub fn request(method: &str, path: &str) -> Option<&'static Request> {
    REQUESTS.iter().find(|r| r.method == method && r.path == path)
}

/// What may be asked for, for those who asked for something else.
pub fn paths() -> String {
    REQUESTS.iter().map(|r| format!("{} {}", r.method, r.path)).collect::<Vec<_>>().join(", ")
}

/// The document.
pub fn document() -> Value {
    let mut paths: Map<String, Value> = Map::new();
    for r in REQUESTS {
        let entry = paths.entry(r.path).or_insert_with(|| json!({}));
        entry[r.method.to_lowercase()] = operation(r);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Tunny: the API of a controller",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "The intent of a region, and how its nodes stand. `x-access` says which Roles may ask for what.",
        },
        "paths": paths,
        "security": [{"token": []}, {"certificate": []}],
        "components": {
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "certificate": {"type": "mutualTLS"},
            },
            "schemas": {
                "Document": model::json_schema(),
                "Problem": {
                    "type": "object",
                    "description": "A problem document (RFC 9457).",
                    "required": ["type", "title", "status", "errors"],
                    "properties": {
                        "type": {"type": "string"},
                        "title": {"type": "string"},
                        "status": {"type": "integer"},
                        "detail": {"type": ["string", "null"]},
                        "errors": {"type": "array", "items": {"type": "string"}, "description": "One sentence each."},
                        "code": {"type": "string", "description": "Only where a program must tell a case from others."},
                    },
                },
            },
        },
    })
}

fn operation(r: &Request) -> Value {
    let in_path = r.path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    let mut parameters: Vec<Value> = in_path
        .map(|name| json!({"name": name, "in": "path", "required": true, "schema": {"type": "string"}}))
        .collect();
    parameters.extend(r.query.iter().map(|(name, ty)| json!({"name": name, "in": "query", "schema": {"type": ty}})));
    let ok = match r.answer {
        Answer::Json => json!({"200": {"description": "It is so.", "content": {"application/json": {"schema": {}}}}}),
        Answer::Lines => {
            json!({"200": {"description": "Lines of JSON.", "content": {"application/x-ndjson": {"schema": {}}}}})
        }
        Answer::Text => {
            json!({"200": {"description": "Text.", "content": {"text/plain": {"schema": {"type": "string"}}}}})
        }
        Answer::Nothing => json!({"204": {"description": "It is noted."}}),
    };
    let mut responses = ok;
    responses["default"] = json!({
        "description": "Refused.",
        "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
    });
    let access: Vec<&str> = r.access.iter().map(|a| a.name()).collect();
    let mut operation = json!({
        "summary": r.summary,
        "parameters": parameters,
        "responses": responses,
        "x-access": access,
    });
    match r.body {
        Body::None => {}
        Body::Json(fields) => {
            let properties: Map<String, Value> =
                fields.iter().map(|(name, ty)| (name.to_string(), json!({"type": ty}))).collect();
            let schema = json!({"type": "object", "properties": properties});
            operation["requestBody"] = json!({"required": true, "content": {"application/json": {"schema": schema}}});
        }
        Body::Files => {
            let document = json!({"schema": {"$ref": "#/components/schemas/Document"}});
            operation["requestBody"] = json!({"required": true, "content": {
                "application/yaml": document, "application/x-ndjson": document,
                "multipart/form-data": {"schema": {"type": "object", "properties": {"file": {"type": "string"}}}},
            }});
        }
    }
    operation
}
