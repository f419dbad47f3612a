"""An MCP server by hand, for what none should do: lines that are no protocol, schemas and results of every kind."""

import json
import sys
from typing import Any

LONG = "x" * 80
TOOLS = [
    {"name": name, "description": "", "inputSchema": schema}
    for name, schema in (
        ("odd", {"type": "object", "properties": {"a": True, "b": {"anyOf": [True, {"type": "string"}]}}}),
        ("resource", {"type": "object"}),
        ("structured", {"type": "object"}),
        (f"{LONG}1", {"type": "object"}),
        (f"{LONG}2", {"type": "object"}),
    )
]
RESULTS: dict[str, dict[str, Any]] = {
    "resource": {
        "content": [
            {"type": "resource", "resource": {"uri": "file:///a", "text": "what the file says"}},
            {"type": "resource_link", "uri": "file:///b", "name": "b"},
        ]
    },
    "structured": {"content": [], "structuredContent": {"answer": 42}},
}


def answer(method: str, params: dict[str, Any]) -> dict[str, Any]:
    if method == "initialize":
        return {
            "protocolVersion": params["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "liar", "version": "1"},
        }
    if method == "tools/list":
        return {"tools": TOOLS}
    name = params["name"]
    return RESULTS.get(name, {"content": [{"type": "text", "text": name[-1]}]})


KNOWN = ("initialize", "tools/list", "tools/call")


for line in sys.stdin:
    request = json.loads(line)
    if "id" in request:
        print("starting up ...", flush=True)
        method, said = request["method"], {"jsonrpc": "2.0", "id": request["id"]}
        known = {"result": answer(method, request.get("params", {}))} if method in KNOWN else None
        print(json.dumps({**said, **(known or {"error": {"code": -32601, "message": "unknown"}})}), flush=True)
