"""The schema as numbered SQL files: `0002_answers.sql`, or with the dialect in the name where the two differ."""

from __future__ import annotations

import re
from importlib import resources

import msgspec

from fulgur.errors import FulgurError

SQLITE, POSTGRESQL = "sqlite", "postgresql"
VERSIONS = "CREATE TABLE IF NOT EXISTS schema_versions (version INTEGER PRIMARY KEY, applied BIGINT NOT NULL)"
_NAME = re.compile(r"(\d{4})_(\w+)(?:\.(sqlite|postgresql))?\.sql")


class Migration(msgspec.Struct, frozen=True):
    version: int
    name: str
    sql: str


def migrations(dialect: str) -> list[Migration]:
    """All migrations for a dialect, in their order."""
    found = []
    for file in resources.files("fulgur.server.store").joinpath("migrations").iterdir():
        named = _NAME.fullmatch(file.name)
        if named is not None and named[3] in (None, dialect):
            found.append(Migration(int(named[1]), named[2], file.read_text()))
    return sorted(found, key=lambda each: each.version)


def pending(dialect: str, applied: list[int], where: str) -> list[Migration]:
    """The migrations a database still lacks; refuses a database that a newer Fulgur made."""
    known = migrations(dialect)
    newest = max(applied, default=0)
    if newest > known[-1].version:
        raise FulgurError(
            f"The store {where} has schema version {newest}; this version of Fulgur knows up to {known[-1].version}.",
            hint="Update Fulgur, or name another store in server.store.",
        )
    return [each for each in known if each.version > newest]


def statements(sql: str) -> list[str]:
    """The single statements of a migration, so that they run inside a transaction. No migration has a semicolon inside
    a statement."""
    bare = re.sub(r"--[^\n]*", "", sql)
    return [each.strip() for each in bare.split(";") if each.strip()]
