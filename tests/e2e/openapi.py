"""The HTTP side as an OpenAPI document: loose on purpose, so that wrong values are tried as well."""

from __future__ import annotations

from typing import Any

ANY: dict[str, Any] = {}
TEXT = {"type": "string"}
ITEM = {
    "anyOf": [
        {"type": "object", "properties": {"role": TEXT, "content": ANY}, "required": ["role", "content"]},
        {
            "type": "object",
            "properties": {"type": {"enum": ["function_call", "reasoning", "compaction", "x"]}, "id": ANY},
        },
        ANY,
    ]
}
MODEL = {"enum": ["scripted", "scripted", "other", "", None, 5]}
INPUT = {"anyOf": [TEXT, {"type": "array", "items": ITEM, "maxItems": 4}, ANY]}
TOOLS = {"anyOf": [{"type": "array", "items": {"type": "object", "properties": {"type": TEXT, "name": ANY}}}, ANY]}


def body(**properties: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": {"model": MODEL, **properties}, "required": ["model"]}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def operation(*parameters: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"parameters": list(parameters), "responses": {"default": {"description": "any"}}, **more}


ID = {"name": "id", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}


def query(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "in": "query", "schema": schema}


CREATE = body(
    input=INPUT,
    instructions=ANY,
    previous_response_id=ANY,
    tools=TOOLS,
    tool_choice=ANY,
    temperature={"anyOf": [{"type": "number"}, ANY]},
    max_output_tokens={"anyOf": [{"type": "integer"}, ANY]},
    text={"anyOf": [{"type": "object", "properties": {"format": ANY}}, ANY]},
    stream={"anyOf": [{"type": "boolean"}, ANY]},
    store={"anyOf": [{"type": "boolean"}, ANY]},
    metadata=ANY,
    generate=ANY,
)
SCHEMA: dict[str, Any] = {
    "openapi": "3.0.3",
    "info": {"title": "Fulgur", "version": "1"},
    "paths": {
        "/responses": {"post": operation(**CREATE), "get": operation()},
        "/responses/input_tokens": {"post": operation(**CREATE)},
        "/responses/compact": {"post": operation(**body(input=INPUT, instructions=ANY))},
        "/responses/{id}": {
            "get": operation(ID, query("stream", TEXT), query("starting_after", ANY)),
            "delete": operation(ID),
        },
        "/responses/{id}/cancel": {"post": operation(ID)},
        "/responses/{id}/input_items": {
            "get": operation(ID, query("limit", ANY), query("order", TEXT), query("after", TEXT))
        },
        "/models": {"get": operation()},
        "/models/{id}": {"get": operation(ID)},
        "/chat/completions": {
            "post": operation(
                **body(
                    messages={
                        "anyOf": [
                            {
                                "type": "array",
                                "maxItems": 4,
                                "items": {
                                    "type": "object",
                                    "properties": {
                                        "role": {"enum": ["user", "assistant", "system", "tool", "x"]},
                                        "content": {"anyOf": [TEXT, ANY]},
                                        "tool_calls": ANY,
                                        "tool_call_id": ANY,
                                    },
                                    "required": ["role"],
                                },
                            },
                            ANY,
                        ]
                    },
                    tools=TOOLS,
                    tool_choice=ANY,
                    response_format=ANY,
                    prediction=ANY,
                    stream={"anyOf": [{"type": "boolean"}, ANY]},
                    n=ANY,
                    stop=ANY,
                )
            )
        },
        "/completions": {
            "post": operation(
                **body(
                    prompt={"anyOf": [TEXT, {"type": "array", "items": {"type": "integer"}}, ANY]},
                    suffix={"anyOf": [TEXT, ANY]},
                    max_tokens={"anyOf": [{"type": "integer"}, ANY]},
                    stream=ANY,
                    echo=ANY,
                    logprobs=ANY,
                )
            )
        },
    },
}
