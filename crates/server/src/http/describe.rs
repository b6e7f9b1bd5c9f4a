//! `/openapi.json`: the web protocol of this server, written from its declarations (OpenAPI 3.1).

use axum::Json;
use axum::extract::State;
use serde_json::{Map, Value, json};

use tidewater_protocol::ColumnType;
use tidewater_protocol::message::Returns;

use super::Web;
use tidewater_server_config::{ArgumentConfig, ProcedureConfig, ProcedureWork};

pub(super) async fn openapi(State(web): State<Web>) -> Json<Value> {
    let procedures = web.services.calls.procedures();
    let mut configs: Vec<_> = procedures.values().map(|it| &it.config).collect();
    configs.sort_by(|left, right| left.name.cmp(&right.name));
    Json(document(&configs))
}

fn document(procedures: &[&ProcedureConfig]) -> Value {
    let mut paths = fixed_paths();
    for procedure in procedures {
        paths.insert(format!("/v1/call/{}", procedure.name), path_of(procedure));
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Tidewater",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Procedures of this server. A token comes from /v1/sign-in.",
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
        },
        "servers": [{ "url": "/" }],
        "security": [{ "bearer": [] }],
        "paths": paths,
        "components": {
            "securitySchemes": { "bearer": { "type": "http", "scheme": "bearer" } },
            "schemas": { "Problem": problem() },
            "responses": {
                "Problem": {
                    "description": "It came to nothing.",
                    "content": {
                        "application/problem+json": {
                            "schema": { "$ref": "#/components/schemas/Problem" }
                        }
                    }
                }
            },
            "parameters": {
                "To": header("Tidewater-To", "Who of those that provide the procedure is meant: \
                    user:NAME or remote:ID."),
                "Timeout": header("Tidewater-Timeout", "Nobody works at it any longer: 250ms, 5s."),
                "Key": header("Idempotency-Key", "A UUID: the call is done once, however often it \
                    is sent."),
            },
        },
    })
}

fn header(name: &str, description: &str) -> Value {
    json!({
        "name": name,
        "in": "header",
        "required": false,
        "description": description,
        "schema": { "type": "string" },
    })
}

fn problem() -> Value {
    json!({
        "type": "object",
        "required": ["type", "title", "status", "detail", "code", "hint"],
        "properties": {
            "type": { "type": "string" },
            "title": { "type": "string" },
            "status": { "type": "integer" },
            "detail": { "type": "string" },
            "code": { "type": "string", "description": "Stable; for programs." },
            "hint": { "type": "string", "description": "What to do about it." },
            "argument": { "type": "string", "description": "Which argument is to blame." },
            "own_code": { "type": "string", "description": "The procedure's own code." },
        },
    })
}

fn path_of(procedure: &ProcedureConfig) -> Value {
    let properties = procedure.arguments.iter();
    let properties = properties.map(|it| (it.name.clone(), schema(it)));
    let properties: Map<String, Value> = properties.collect();
    let required = procedure.arguments.iter().filter(|it| !it.optional);
    let required: Vec<&str> = required.map(|it| it.name.as_str()).collect();
    let (description, returned) = match &procedure.work {
        ProcedureWork::Sql { returns, .. } => ("Done by the database.", returned(*returns)),
        ProcedureWork::Provided(_) => ("Done by who provides it.", json!({})),
    };
    json!({
        "post": {
            "operationId": format!("call-{}", procedure.name),
            "summary": format!("Calls {}", procedure.name),
            "description": description,
            "parameters": [
                { "$ref": "#/components/parameters/To" },
                { "$ref": "#/components/parameters/Timeout" },
                { "$ref": "#/components/parameters/Key" },
            ],
            "requestBody": {
                "required": !required.is_empty(),
                "content": { "application/json": { "schema": {
                    "type": "object",
                    "properties": properties,
                    "required": required,
                    "additionalProperties": false,
                } } },
            },
            "responses": {
                "200": {
                    "description": "What came of it.",
                    "content": { "application/json": { "schema": returned } },
                },
                "204": { "description": "It is done, and gives nothing back." },
                "default": { "$ref": "#/components/responses/Problem" },
            },
        },
    })
}

fn returned(returns: Returns) -> Value {
    match returns {
        Returns::Nothing | Returns::Value => json!({}),
        Returns::Row => json!({ "type": ["object", "null"] }),
        Returns::Rows => json!({ "type": "array", "items": { "type": "object" } }),
    }
}

fn schema(argument: &ArgumentConfig) -> Value {
    let (kind, format) = match argument.column_type {
        ColumnType::Integer => ("integer", Some("int64")),
        ColumnType::Real => ("number", Some("double")),
        ColumnType::Boolean => ("boolean", None),
        ColumnType::Bytes => ("string", Some("byte")),
        ColumnType::Date => ("string", Some("date")),
        ColumnType::Time => ("string", Some("time")),
        ColumnType::Timestamp | ColumnType::TimestampTz => ("string", Some("date-time")),
        ColumnType::Uuid => ("string", Some("uuid")),
        // Exact digits are text.
        ColumnType::Decimal { .. } | ColumnType::Text | ColumnType::Opaque => ("string", None),
        ColumnType::Json => return json!({}),
    };
    let mut schema = Map::new();
    let kind = match argument.optional {
        true => json!([kind, "null"]),
        false => json!(kind),
    };
    schema.insert("type".into(), kind);
    if let Some(format) = format {
        schema.insert("format".into(), json!(format));
    }
    Value::Object(schema)
}

fn fixed_paths() -> Map<String, Value> {
    let problem = json!({ "$ref": "#/components/responses/Problem" });
    let json_body = |schema: Value| json!({ "application/json": { "schema": schema } });
    let in_path = |name: &str| {
        json!({
            "name": name,
            "in": "path",
            "required": true,
            "schema": { "type": "string" },
        })
    };
    let in_query = |name: &str, description: &str| {
        json!({
            "name": name,
            "in": "query",
            "required": false,
            "description": description,
            "schema": { "type": "string" },
        })
    };
    let done = json!({ "description": "It is taken." });
    let paths = json!({
        "/v1/sign-in": {
            "post": {
                "operationId": "sign-in",
                "summary": "Exchanges a password, or a token of an identity provider, for a token of this server",
                "security": [],
                "requestBody": {
                    "required": true,
                    "content": json_body(json!({
                        "type": "object",
                        "oneOf": [
                            { "required": ["user", "password"] },
                            { "required": ["token"] },
                        ],
                        "properties": {
                            "user": { "type": "string" },
                            "password": { "type": "string" },
                            "new_password": {
                                "type": "string",
                                "description": "Takes the password's place, if that is right.",
                            },
                            "token": {
                                "type": "string",
                                "description": "A JWT of an identity provider that the server \
                                                trusts. It says who the user is.",
                            },
                        },
                    })),
                },
                "responses": {
                    "200": {
                        "description": "A token.",
                        "content": json_body(json!({
                            "type": "object",
                            "required": ["token", "user", "token_type", "expires_in"],
                            "properties": {
                                "token": { "type": "string" },
                                "user": { "type": "string" },
                                "token_type": { "const": "Bearer" },
                                "expires_in": { "type": "integer", "description": "Seconds." },
                            },
                        })),
                    },
                    "default": problem,
                },
            },
        },
        "/v1/provide/{name}": {
            "get": {
                "operationId": "provide",
                "summary": "Takes the next call of a procedure that the user provides",
                "parameters": [
                    in_path("name"),
                    {
                        "name": "wait",
                        "in": "query",
                        "required": false,
                        "description": "Seconds to wait for a call, at most 25.",
                        "schema": { "type": "integer" },
                    },
                ],
                "responses": {
                    "200": {
                        "description": "A call.",
                        "content": json_body(json!({
                            "type": "object",
                            "required": ["call", "procedure", "arguments", "user", "timeout_ms"],
                            "properties": {
                                "call": { "type": "string" },
                                "procedure": { "type": "string" },
                                "arguments": { "type": "object" },
                                "user": { "type": "string" },
                                "remote_id": { "type": "string", "format": "uuid" },
                                "timeout_ms": { "type": "integer" },
                            },
                        })),
                    },
                    "204": { "description": "None has come. Ask again." },
                    "default": problem,
                },
            },
            "delete": {
                "operationId": "withdraw",
                "summary": "Provides a procedure no longer",
                "parameters": [in_path("name")],
                "responses": { "204": done, "default": problem },
            },
        },
        "/v1/publish/{space}/{subject}": {
            "post": {
                "operationId": "publish",
                "summary": "Publishes an event, whose payload is the body",
                "parameters": [
                    in_path("space"),
                    in_path("subject"),
                    { "$ref": "#/components/parameters/Key" },
                ],
                "requestBody": {
                    "required": false,
                    "content": { "application/octet-stream": {} },
                },
                "responses": {
                    "200": {
                        "description": "It is kept: the space is durable.",
                        "content": json_body(json!({
                            "type": "object",
                            "required": ["position"],
                            "properties": { "position": { "type": "string" } },
                        })),
                    },
                    "204": done,
                    "default": problem,
                },
            },
        },
        "/v1/events/{space}": {
            "get": {
                "operationId": "events",
                "summary": "Sends events as they come, as server-sent events",
                "description": "The id of an event of a durable space is its position. What is \
                    no text comes as base64 in an event named binary. Events named missed, \
                    history, unsubscribed and error tell what else there is.",
                "parameters": [
                    in_path("space"),
                    in_query("subject", "A pattern such as unit.*.position; without it all."),
                    in_query("after", "Of a durable space: behind this position, or first."),
                    in_query("format", "json: the data is an object with subject, and text or \
                        base64."),
                    header("Last-Event-ID", "Goes on behind this event, before after."),
                ],
                "responses": {
                    "200": {
                        "description": "Events.",
                        "content": { "text/event-stream": { "schema": { "type": "string" } } },
                    },
                    "default": problem,
                },
            },
        },
        "/v1/answer/{call}": {
            "post": {
                "operationId": "answer",
                "summary": "Sends back what came of a call",
                "parameters": [in_path("call")],
                "requestBody": { "required": false, "content": json_body(json!({})) },
                "responses": { "204": done, "default": problem },
            },
        },
        "/v1/fail/{call}": {
            "post": {
                "operationId": "fail",
                "summary": "Tells that nothing came of a call",
                "parameters": [in_path("call")],
                "requestBody": {
                    "required": true,
                    "content": json_body(json!({
                        "type": "object",
                        "required": ["message"],
                        "properties": {
                            "message": { "type": "string" },
                            "code": { "type": "string" },
                            "hint": { "type": "string" },
                        },
                    })),
                },
                "responses": { "204": done, "default": problem },
            },
        },
    });
    match paths {
        Value::Object(paths) => paths,
        _ => Map::new(),
    }
}
