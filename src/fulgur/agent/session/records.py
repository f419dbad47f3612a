"""The records of a session file: what each type holds, one record per line with a checksum at its end.

A line reads `{"type": …, …, "crc": "…"}`. The checksum covers everything before it, so damage of any kind is detected.
Files of earlier versions have no checksums; their records are checked only by shape.
"""

from __future__ import annotations

import re
import zlib
from typing import Any, Literal

import msgspec

from fulgur.protocol.agent import PlanStep, UsageReported

Record = dict[str, Any]

_SEAL = re.compile(rb',"crc":"([0-9a-f]{8})"\}$')


class DamagedRecord(ValueError):
    """A line that differs from what was written."""


class _Item(msgspec.Struct):
    type: str
    role: str = ""
    content: str | list[dict[str, Any]] | None = None
    call_id: str = ""
    name: str = ""
    arguments: str = ""
    output: str | list[dict[str, Any]] = ""


class _Session(msgspec.Struct):
    id: str
    workspace: str
    model: str
    time: float
    forked_from: str = ""


class _Turn(msgspec.Struct):
    turn: int
    text: str


class _Items(msgspec.Struct):
    items: list[_Item]
    kind: str = ""


class _Text(msgspec.Struct):
    text: str


class _Change(msgspec.Struct):
    path: str
    diff: str


class _Snapshot(msgspec.Struct):
    when: Literal["before", "after"]
    manifest: str


class _End(msgspec.Struct):
    how: str
    message: str


class _Undo(msgspec.Struct):
    turn: int
    paths: list[str]


class _Judged(msgspec.Struct):
    path: str
    base: str | None


class _Usage(msgspec.Struct):
    usage: UsageReported


class _Model(msgspec.Struct):
    model: str


class _Options(msgspec.Struct):
    overrides: list[str]


class _Member(msgspec.Struct):
    member: str
    model: str
    models: list[str]
    session_id: str
    how: str


class _Plan(msgspec.Struct):
    steps: list[PlanStep]


class _Nothing(msgspec.Struct):
    pass


_SHAPES: dict[str, type[msgspec.Struct]] = {
    "session": _Session,
    "turn": _Turn,
    "items": _Items,
    "partial": _Text,
    "change": _Change,
    "snapshot": _Snapshot,
    "compaction": _Items,
    "end": _End,
    "plan": _Plan,
    "let_go": _Nothing,
    "queued": _Text,
    "taken": _Nothing,
    "withdrawn": _Text,
    "undo": _Undo,
    "judged": _Judged,
    "usage": _Usage,
    "model": _Model,
    "answered": _Model,
    "options": _Options,
    "member": _Member,
}


def encode_record(record: Record) -> bytes:
    """Encode one line, with its newline."""
    body = msgspec.json.encode(record)
    return b'%s,"crc":"%08x"}\n' % (body[:-1], zlib.crc32(body))


def decode_record(line: bytes, *, sealed: bool) -> Record:
    """Decode a line without its newline; `sealed` lines must have a checksum. DamagedRecord says what is wrong."""
    seal = _SEAL.search(line)
    if seal is None and sealed:
        raise DamagedRecord("its checksum is missing")
    if seal is not None:
        line = line[: seal.start()] + b"}"
        if zlib.crc32(line) != int(seal.group(1), 16):
            raise DamagedRecord("its checksum does not match")
    try:
        record = msgspec.json.decode(line)
        kind = record.get("type") if isinstance(record, dict) else None
        if kind not in _SHAPES:
            raise DamagedRecord(f"unknown record kind {kind!r}; it may come from a later version")
        msgspec.convert(record, _SHAPES[kind])
        msgspec.convert(record.get("time"), float)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DamagedRecord(str(error)) from None
    assert isinstance(record, dict)
    return record


def is_sealed(first_line: bytes) -> bool:
    """Whether all lines of a file have checksums, judged by its first one."""
    return b'"crc"' in first_line or b'"sealed":true' in first_line


def is_cut(line: bytes) -> bool:
    """Whether a last line without a newline was merely cut short, as a kill leaves it, and not damaged."""
    return not re.search(rb',"crc":"[0-9a-f]{8}"\}.', line, re.DOTALL)
