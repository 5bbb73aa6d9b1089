// SPDX-License-Identifier: Apache-2.0
//! Every request that the controller takes: one table, of which are made the routes' permissions, the words of a refusal, and the
//! OpenAPI 3.1 document that it serves.

use crate::api::{ApplyQuery, MoveBody, NoQuery, RebalanceQuery};
use crate::backup;
use crate::listing::ListQuery;
use crate::live::LiveLine;
use crate::placing::{Rebalanced, TenantView};
use crate::reads::{EventsQuery, LevelsQuery};
use crate::search::{Results, SearchQuery, TenantSummary};
use crate::stream::StreamQuery;
use crate::trace::{TraceAnswer, TraceRequest};
use crate::types::{Credential, Description, LevelsView, Made, Me, NewCredential, NodeView, Reason, Status, WatchLine};
use crate::upstream::UpstreamQuery;
use crate::watch::WatchQuery;
use controller_core::assign::ClusterView;
use model::{Access, Kind};
use node::audit::Event;
use node::distribution::{Message, Report, Switched, Upstream};
use node::types::{ApplyReport, ListEnd};
use schemars::generate::SchemaSettings;
use schemars::transform::{RecursiveTransform, Transform};
use schemars::{JsonSchema, SchemaGenerator};
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
    query: Schema,
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

/// The schema of a type: what is read or written is what the document says.
type Schema = fn(&mut SchemaGenerator) -> Value;

fn of<T: JsonSchema>(schemas: &mut SchemaGenerator) -> Value {
    let mut schema = schemas.subschema_for::<T>();
    RecursiveTransform(bounded).transform(&mut schema);
    schema.to_value()
}

fn documents(_: &mut SchemaGenerator) -> Value {
    json!({"$ref": "#/components/schemas/Document"})
}

/// A line of a listing, or its last one.
fn listed(schemas: &mut SchemaGenerator) -> Value {
    let end = json!({"type": "object", "required": ["end"], "properties": {"end": of::<ListEnd>(schemas)}});
    json!({"anyOf": [documents(schemas), end]})
}

/// A change, or why there is none any more.
fn watched(schemas: &mut SchemaGenerator) -> Value {
    let end = json!({"type": "object", "required": ["error"], "properties": {"error": {"type": "string"}}});
    json!({"anyOf": [of::<WatchLine>(schemas), end]})
}

/// The first line of a backup, an entry, the last line.
fn saved(schemas: &mut SchemaGenerator) -> Value {
    json!({"anyOf": [of::<backup::Head>(schemas), of::<backup::Line>(schemas), of::<backup::End>(schemas)]})
}

fn anything(_: &mut SchemaGenerator) -> Value {
    json!({})
}

#[derive(Clone, Copy)]
enum Body {
    None,
    Json(Schema),
    Files,
}

#[derive(Clone, Copy)]
enum Answer {
    Json(Schema),
    /// Lines, each a value.
    Lines(Schema),
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

const fn get(path: &'static str, access: &'static [Access], answer: Schema, summary: &'static str) -> Request {
    let answer = Answer::Json(answer);
    Request { method: "GET", path, summary, access, query: of::<NoQuery>, led: Led::No, body: Body::None, answer }
}

const fn post(path: &'static str, access: &'static [Access], answer: Schema, summary: &'static str) -> Request {
    Request { method: "POST", led: Led::Must, ..get(path, access, answer, summary) }
}

const fn lines(path: &'static str, access: &'static [Access], line: Schema, summary: &'static str) -> Request {
    Request { answer: Answer::Lines(line), ..get(path, access, line, summary) }
}

/// Every request.
pub const REQUESTS: &[Request] = &[
    get("/v1/status", LOOKERS, of::<Status>, "Region, revision, objects by kind, nodes by how they stand."),
    Request {
        query: of::<ListQuery>,
        ..lines("/v1/objects/{kind}", PEOPLE, listed, "Objects as they were when the listing began; the header `tunny-revision` says of which revision.")
    },
    Request {
        query: of::<ApplyQuery>,
        body: Body::Files,
        ..post("/v1/apply", CHANGERS, of::<ApplyReport>, "The plan of a change of many objects, and unless `dry_run` the change itself, whole or not at all. With `base`, a revision, nothing is changed if an object that the documents name was changed since.")
    },
    Request {
        query: of::<WatchQuery>,
        ..lines("/v1/watch", PEOPLE, watched, "Changes behind a revision, a line an object, without an end. 410: the revision is no longer kept.")
    },
    Request { led: Led::Must, ..get("/v1/describe/{kind}/{name}", PEOPLE, of::<Description>, "An object, when it changed last, and on which nodes it is installed.") },
    Request { led: Led::Best, ..get("/v1/nodes", LOOKERS, of::<Vec<NodeView>>, "How every node stands: intent, installed, verified.") },
    post("/v1/nodes/{name}/resync", OPERATORS, of::<NodeView>, "A node is sent everything anew: what was changed there by hand goes."),
    Request { led: Led::Best, ..get("/v1/tenants", LOOKERS, of::<Vec<TenantView>>, "Where every Tenant is served, and how far it is on its way.") },
    Request { led: Led::Best, ..get("/v1/clusters", LOOKERS, of::<Vec<ClusterView>>, "How full every cluster is.") },
    Request {
        body: Body::Json(of::<MoveBody>),
        ..post("/v1/tenants/{name}/move", OPERATORS, of::<Vec<TenantView>>, "A Tenant, and those that it is peered with, moves to another cluster.")
    },
    post("/v1/tenants/{name}/abort", OPERATORS, of::<Vec<TenantView>>, "A move goes back."),
    Request {
        query: of::<RebalanceQuery>,
        ..post("/v1/rebalance", OPERATORS, of::<Rebalanced>, "The moves that make water levels even, or bring cold tenants to clusters without a fast path; those of the first wave begin.")
    },
    Request {
        led: Led::Must,
        query: of::<UpstreamQuery>,
        ..lines("/v1/upstream", HOSTS, of::<Upstream>, "What a host follows: the addresses that serve its VNIs.")
    },
    Request {
        body: Body::Json(of::<Switched>),
        ..post("/v1/upstream", HOSTS, of::<Switched>, "A host sends as a revision has it.")
    },
    Request {
        led: Led::Best,
        query: of::<EventsQuery>,
        ..get("/v1/events", LOOKERS, of::<Vec<Event>>, "Who changed what, or tried to, the oldest first.")
    },
    get("/v1/me", EVERYBODY, of::<Me>, "Who asks: Role, access, Tenant; and of which region this is."),
    Request {
        query: of::<SearchQuery>,
        ..get("/v1/search", PEOPLE, of::<Results>, "Tenants, VPCs, VMs, NCs, nodes and clusters by a part of a name, a VNI, an address or a prefix.")
    },
    Request { led: Led::Best, ..get("/v1/tenants/{name}", PEOPLE, of::<TenantSummary>, "What a Tenant has: its VPCs, how many VMs and routes.") },
    Request {
        led: Led::No,
        body: Body::Json(of::<TraceRequest>),
        ..post("/v1/trace", PEOPLE, of::<TraceAnswer>, "Which way a packet would take, stage by stage, by the region's intent.")
    },
    get("/v1/reasons", PEOPLE, of::<Vec<Reason>>, "Why packets are dropped: each reason with its stage, what it means and what to do."),
    Request { led: Led::Best, query: of::<LevelsQuery>, ..get("/v1/levels", LOOKERS, of::<LevelsView>, "Water levels of clusters over the last hour, or day.") },
    Request { led: Led::Best, ..lines("/v1/live", LOOKERS, of::<LiveLine>, "How nodes stand, events and water levels as they come, without an end.") },
    Request { answer: Answer::Text, ..get("/metrics", LOOKERS, anything, "The region for Prometheus.") },
    get("/v1/credentials", OPERATORS, of::<Vec<Credential>>, "Tokens and certificates that count, without what they open with."),
    Request {
        body: Body::Json(of::<NewCredential>),
        ..post("/v1/credentials", OPERATORS, of::<Made>, "A new token or certificate for a Role. Its secret is in this answer and nowhere else.")
    },
    Request { method: "DELETE", led: Led::Must, ..get("/v1/credentials/{id}", OPERATORS, of::<Credential>, "A credential opens nothing any more.") },
    Request {
        led: Led::Must,
        query: of::<StreamQuery>,
        ..lines("/v1/stream", NODES, of::<Message>, "What a node follows (docs/design/controller.md); behind `snapshot` and `change` stand documents.")
    },
    Request {
        body: Body::Json(of::<Report>),
        answer: Answer::Nothing,
        ..post("/v1/report", NODES, anything, "How a node stands.")
    },
    lines("/v1/backup", OPERATORS, saved, "All that the store holds, as of one revision, for `tunny controller restore`. Secrets are in it as hashes alone."),
    get("/v1/openapi.json", EVERYBODY, anything, "This document."),
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
    // A structure that is read may leave out what has a default, one that is written has it: bodies are spelled out where they are used.
    let settings = || SchemaSettings::draft2020_12().with_transform(RecursiveTransform(bounded));
    let read = &mut settings().with(|s| s.inline_subschemas = true).into_generator();
    let written = settings().with(|s| s.definitions_path = "/components/schemas".into());
    let written = &mut written.for_serialize().into_generator();
    let mut paths: Map<String, Value> = Map::new();
    for r in REQUESTS {
        let entry = paths.entry(r.path).or_insert_with(|| json!({}));
        entry[r.method.to_lowercase()] = operation(r, read, written);
    }
    let mut schemas = written.take_definitions(true);
    schemas.insert("Document".into(), model::json_schema());
    schemas.insert("Problem".into(), problem());
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
            "schemas": schemas,
        },
    })
}

/// Numbers end where their types do.
fn bounded(schema: &mut schemars::Schema) {
    let most = match schema.get("format").and_then(Value::as_str) {
        Some("uint32") => u64::from(u32::MAX),
        Some("uint64" | "uint") => u64::MAX,
        _ => return,
    };
    schema.ensure_object().entry("maximum").or_insert(most.into());
}

fn problem() -> Value {
    json!({
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
    })
}

/// The names of a query, each with what it may be.
fn query(r: &Request, read: &mut SchemaGenerator) -> Vec<Value> {
    let Value::Object(properties) = (r.query)(read)["properties"].take() else { return Vec::new() };
    let parameter = |(name, mut schema): (String, Value)| {
        let about = schema.as_object_mut().and_then(|s| s.remove("description")).unwrap_or_default();
        // What is absent stays so: nobody writes null into a query.
        if let Some(Value::Array(types)) = schema.get("type") {
            schema["type"] = types[0].clone();
        }
        json!({"name": name, "in": "query", "description": about, "schema": schema})
    };
    properties.into_iter().map(parameter).collect()
}

fn in_path(name: &str) -> Value {
    let schema = match name {
        "kind" => json!({"type": "string", "enum": Kind::ALL.map(|k| k.name())}),
        _ => json!({"type": "string", "minLength": 1}),
    };
    json!({"name": name, "in": "path", "required": true, "schema": schema})
}

fn operation(r: &Request, read: &mut SchemaGenerator, written: &mut SchemaGenerator) -> Value {
    let names = r.path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    let mut parameters: Vec<Value> = names.map(in_path).collect();
    parameters.extend(query(r, read));
    let mut content = |what, form: &str, schema: Schema| json!({"200": {"description": what, "content": {form: {"schema": schema(written)}}}});
    let mut responses = match r.answer {
        Answer::Json(schema) => content("It is so.", "application/json", schema),
        Answer::Lines(line) => content("Lines of JSON; this is one.", "application/x-ndjson", line),
        Answer::Text => content("Text.", "text/plain", |_| json!({"type": "string"})),
        Answer::Nothing => json!({"204": {"description": "It is noted."}}),
    };
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
        Body::Json(schema) => {
            operation["requestBody"] =
                json!({"required": true, "content": {"application/json": {"schema": schema(read)}}});
        }
        Body::Files => {
            let document = json!({"schema": documents(read)});
            operation["requestBody"] = json!({"required": true, "content": {
                "application/yaml": document, "application/x-ndjson": document,
                "multipart/form-data": {"schema": {"type": "object", "properties": {"file": {"type": "string"}}}},
            }});
        }
    }
    operation
}
