"""What editors send, as far as we read it (ACP v1). Unknown fields are ignored, so newer clients work too."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

import msgspec

from fulgur.protocol import rpc
from fulgur.ui.acp.images import Images

VERSION = 1
_MOST_TEXT = 4 << 20


class Params(msgspec.Struct, rename="camel", kw_only=True):
    """The base class: field names are camelCase, as in the JSON."""


class FileSystem(Params):
    read_text_file: bool = False
    write_text_file: bool = False


class ClientCapabilities(Params):
    fs: FileSystem | None = None


class Initialize(Params):
    protocol_version: int
    client_capabilities: ClientCapabilities | None = None


class Variable(Params):
    name: str
    value: str


class McpServer(Params):
    name: str
    command: str | None = None
    args: list[str] = []
    env: list[Variable] = []
    url: str | None = None


class NewSession(Params):
    cwd: str
    mcp_servers: list[McpServer] = []


class OldSession(Params):
    """Parameters of load, resume and fork."""

    session_id: str
    cwd: str
    mcp_servers: list[McpServer] = []


class Session(Params):
    """Parameters of close, delete and cancel."""

    session_id: str


class ListSessions(Params):
    cwd: str | None = None
    cursor: str | None = None


class Prompt(Params):
    session_id: str
    prompt: list[dict[str, Any]]
    idle_behavior: str = ""
    meta: dict[str, Any] | None = msgspec.field(default=None, name="_meta")


class SetOption(Params):
    session_id: str
    config_id: str
    value: str | bool


class SetMode(Params):
    session_id: str
    mode_id: str


def prompt_text(blocks: list[dict[str, Any]], images: Images) -> str:
    """Flatten a prompt for the agent: text, file names, and embedded files."""
    parts: list[str] = []
    for block in blocks:
        match block.get("type"):
            case "text":
                parts.append(str(block.get("text", "")))
            case "resource_link":
                parts.append(f" @{_path(str(block.get('uri', '')))} ")
            case "resource":
                resource = block.get("resource")
                if not isinstance(resource, dict) or not isinstance(resource.get("text"), str):
                    raise rpc.RpcError(rpc.INVALID_PARAMS, "only text resources can be embedded in a prompt")
                parts.append(f"\n{_path(str(resource.get('uri', '')))}:\n```\n{resource['text']}\n```\n")
            case "image":
                parts.append(images.named(block))
            case kind:
                raise rpc.RpcError(rpc.INVALID_PARAMS, f"a prompt cannot contain {kind!r} (see promptCapabilities)")
    text = "".join(parts).strip()
    if not text or len(text) > _MOST_TEXT:
        raise rpc.RpcError(rpc.INVALID_PARAMS, "the prompt is empty" if not text else "the prompt is too long")
    return text


def _path(uri: str) -> str:
    """Turn a file URI into a path; leave any other URI as it is."""
    return unquote(uri.removeprefix("file://")) if uri.startswith("file://") else uri


def mcp_overrides(servers: list[McpServer]) -> list[str]:
    """The MCP servers that an editor passes, as config keys of the session."""
    given = []
    for server in servers:
        name = "".join(char if char.isalnum() or char in "-_" else "_" for char in server.name) or "editor"
        if server.command is not None:
            given.append(f"mcp_servers.{name}.command={_toml(server.command)}")
            given.append(f"mcp_servers.{name}.args={_toml(server.args)}")
            if server.env:
                table = ", ".join(f"{_toml(each.name)} = {_toml(each.value)}" for each in server.env)
                given.append(f"mcp_servers.{name}.env={{{table}}}")
        elif server.url is not None:
            given.append(f"mcp_servers.{name}.url={_toml(server.url)}")
    return given


def _toml(value: str | list[str]) -> str:
    """Encode as JSON: strings and lists of strings are valid TOML."""
    return msgspec.json.encode(value).decode()
