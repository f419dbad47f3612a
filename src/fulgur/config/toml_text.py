"""TOML text for the values a config holds (the standard library only reads TOML)."""

from __future__ import annotations

import json
import re

_BARE = re.compile(r"[A-Za-z0-9_-]+\Z")


def dump(table: dict[str, object]) -> str:
    """The table as TOML: plain keys first, then its tables."""
    lines: list[str] = []
    _write(table, (), lines)
    return "\n".join(lines).strip() + "\n"


def _write(table: dict[str, object], path: tuple[str, ...], lines: list[str]) -> None:
    plain = {name: value for name, value in table.items() if not isinstance(value, dict)}
    if path and (plain or not table):
        lines.append(f"\n[{'.'.join(_name(part) for part in path)}]")
    for name, value in plain.items():
        lines.append(f"{_name(name)} = {value_text(value)}")
    for name, value in table.items():
        if isinstance(value, dict):
            _write(value, (*path, name), lines)


def _name(name: str) -> str:
    return name if _BARE.match(name) else value_text(name)


def value_text(value: object) -> str:
    """One value as TOML writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(value_text(item) for item in value)}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_name(str(k))} = {value_text(v)}' for k, v in value.items())}}}"
    # A JSON string is a TOML basic string, except for DEL, which TOML wants escaped.
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
