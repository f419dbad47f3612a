"""Merges files and flags into one flat set of keys, each with the layer it came from."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

from fulgur.config import keys
from fulgur.config.keys import Value
from fulgur.errors import UsageError

Flat = dict[keys.Path, Value]


@dataclass(frozen=True)
class Layer:
    """One source of keys; later layers win."""

    source: str
    values: Flat


def read_toml(path: Path) -> dict[str, object]:
    """The file's tables; a mistake in it is a UsageError with the line."""
    if not path.is_file():
        raise UsageError(f"{path} is not a file")
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path} is not valid TOML: {error}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not UTF-8 text") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None


def flatten(table: dict[str, object], source: str) -> Flat:
    """Nested tables as flat paths, each checked against the schema."""
    flat: Flat = {}
    _collect(table, (), source, flat)
    return flat


def _collect(table: dict[str, object], above: keys.Path, source: str, flat: Flat) -> None:
    for name, value in table.items():
        path = (*above, name)
        key = keys.find(path)
        if key is not None:
            flat[path] = keys.check(key, path, value, source)
        elif isinstance(value, dict) and keys.is_prefix(path):
            _collect(value, path, source, flat)
        else:
            raise unknown(path, source)


def unknown(path: keys.Path, source: str) -> UsageError:
    """The error for a key that does not exist, with the nearest one that does."""
    close = keys.nearest(path)
    hint = f"Did you mean {close}?" if close else "`fulgur config show --all` lists every key."
    return UsageError(f"unknown key {keys.show(path)} ({source})", hint=hint)


def from_file(path: Path, source: str) -> Layer:
    """The layer of one TOML file."""
    return Layer(source, flatten(read_toml(path), source))


def from_flags(pairs: list[str]) -> Layer:
    """The layer of `-c key=value` flags; a value that is not TOML is taken as text."""
    flat: Flat = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name.strip():
            raise UsageError(f"-c {pair}: expected key=value", hint="For example: -c sandbox_mode=read-only")
        path = _dotted(name.strip())
        key = keys.find(path)
        if key is None:
            raise unknown(path, "-c")
        flat[path] = keys.check(key, path, _parse(text.strip(), key.kind), "-c")
    return Layer("-c", flat)


def _dotted(name: str) -> keys.Path:
    try:
        node: object = tomllib.loads(f"{name} = 0")
    except tomllib.TOMLDecodeError:
        raise UsageError(f"-c {name}: not a key name") from None
    path: list[str] = []
    while isinstance(node, dict):
        part, node = next(iter(node.items()))
        path.append(part)
    return tuple(path)


def _parse(text: str, kind: str) -> object:
    try:
        value: object = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
    # `-c model=7` means the text "7".
    return text if kind == "string" and not isinstance(value, str) else value


def profile_layer(layers: list[Layer], name: str, asked_by: str) -> Layer:
    """The keys of `profiles.NAME` over all layers, as a layer of their own."""
    values: Flat = {}
    known: set[str] = set()
    for layer in layers:
        for path, value in layer.values.items():
            if path[0] == "profiles":
                known.add(path[1])
                if path[1] == name:
                    values[path[2:]] = value
    if name not in known:
        have = f"Known profiles: {', '.join(sorted(known))}" if known else "No [profiles.NAME] table is configured."
        raise UsageError(f"no profile named {name!r} ({asked_by})", hint=have)
    return Layer(f"profile {name}", values)


def merge(layers: list[Layer]) -> tuple[Flat, dict[keys.Path, str]]:
    """The effective keys, and for each the source of its value."""
    values: Flat = {}
    sources: dict[keys.Path, str] = {}
    for layer in layers:
        for path, value in layer.values.items():
            if path[0] != "profiles":
                values[path] = value
                sources[path] = layer.source
    return values, sources


def defaults() -> Layer:
    """The keys that have a value by themselves."""
    return Layer("default", {k.path: k.default for k in keys.KEYS if "*" not in k.path and k.default is not None})
