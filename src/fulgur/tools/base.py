"""What a tool is: a name, a schema for the model, and a function to run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import msgspec

from fulgur.errors import FulgurError
from fulgur.protocol.agent import Location, PlanStep, ToolKind
from fulgur.workspace.files import Change, FileDiff

A = TypeVar("A", bound=msgspec.Struct)
Report = Callable[[str], None]


class Arguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The base class of every tool's arguments; the JSON schema is derived from the fields."""


@dataclass(frozen=True)
class ToolResult:
    """What the model reads, and what changed."""

    ok: bool
    output: str
    diffs: list[FileDiff] = field(default_factory=list)
    plan: tuple[PlanStep, ...] = ()
    """The model's new plan, when the call was about that."""


class BadCall(FulgurError):
    """The model's call cannot be understood; the message says how to fix it and goes back to the model."""


@dataclass(frozen=True)
class Tool(Generic[A]):
    """One tool. `mutates`: it can change files, so take a snapshot first. `parallel`: it may run in parallel with
    others."""

    name: str
    description: str
    arguments: type[A]
    run: Callable[[A, Report], Awaitable[ToolResult]]
    title: Callable[[A], str]
    mutates: bool = False
    parallel: bool = True
    plan: Callable[[A], list[Change]] | None = None
    """What a call would change in files, without changing it."""
    kind: ToolKind = "other"
    places: Callable[[A], list[Location]] = lambda arguments: []
    """The files a call names."""
    asks: Callable[[A], str] = lambda arguments: ""
    """Why a call is asked about by those who want to be asked, where no diff and no command shows what it does."""
    schema: dict[str, Any] | None = None
    """The schema of a tool from elsewhere (MCP); ours is made from `arguments`."""

    def parse(self, text: str) -> A:
        """Decode the arguments of a call; BadCall says what is wrong with them."""
        try:
            if self.schema is not None:
                return msgspec.json.decode(text or "{}", type=dict)  # type: ignore[return-value]
            return msgspec.json.decode(text or "{}", type=self.arguments)
        except msgspec.ValidationError as error:
            raise BadCall(f"{self.name}: {error}", hint=f"Its arguments: {self.signature()}") from None
        except msgspec.DecodeError as error:
            raise BadCall(f"{self.name}: the arguments are not valid JSON ({error})", hint=self.signature()) from None

    def signature(self) -> str:
        """Format the arguments as `{"path": string, "limit"?: integer}` for an error message."""
        schema = self.parameters()
        required = schema.get("required", [])
        properties = schema.get("properties", {})
        parts = [f'"{name}"{"" if name in required else "?"}: {_kind(value)}' for name, value in properties.items()]
        return "{" + ", ".join(parts) + "}"

    def parameters(self) -> dict[str, Any]:
        """The JSON schema of the arguments."""
        if self.schema is not None:
            return self.schema
        (schema,), definitions = msgspec.json.schema_components([self.arguments])
        result = dict(definitions.pop(schema["$ref"].rpartition("/")[2]))
        if definitions:
            result["$defs"] = definitions  # the types of the arguments' fields, under the names that the schema uses
        result.pop("title", None)
        result.pop("description", None)
        return result

    def spec(self) -> dict[str, Any]:
        """Describe the tool for a Responses create."""
        return {
            "type": "function",
            "name": self.name,
            "description": self.description,
            "parameters": self.parameters(),
            "strict": False,
        }


def _kind(schema: Any) -> str:
    """The type that a schema names; `any` if it names none, or is just `true`."""
    if not isinstance(schema, dict):
        return "any"
    kinds = schema.get("type") or [_kind(option) for option in schema.get("anyOf", [])]
    return (kinds if isinstance(kinds, str) else "/".join(map(str, kinds))) or "any"
