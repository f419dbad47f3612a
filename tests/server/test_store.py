"""What lasts, the same in SQLite and PostgreSQL."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from databases import Postgres

from fulgur.errors import FulgurError, UsageError
from fulgur.protocol.response import Response
from fulgur.server.config import Key, ServerConfig
from fulgur.server.store import base, migrate, patient, queries
from fulgur.server.store import owed as owed_file
from fulgur.server.store.base import Answer, Store, StoreAway, Stored
from fulgur.server.store.owed import Owed, _read
from fulgur.server.store.patient import PatientStore
from fulgur.text.parts import Usage
from fulgur.ui.cli import main

DAY = 86_400
EVENTS = [b'{"n":0}', b'{"n":1}']
KINDS = ["sqlite", pytest.param("postgresql", marks=pytest.mark.cluster)]
Place = Callable[[], str]


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A new database, as `server.store` names it."""
    if request.param == "sqlite":
        return str(tmp_path / "store.sqlite")
    server: Postgres = request.getfixturevalue("postgres")
    return server.url()


def config(place: str, days: float = 0.0) -> ServerConfig:
    settings = ServerConfig()
    settings.server.store, settings.server.store_days = place, days
    return settings


@asynccontextmanager
async def opened(place: str, days: float = 0.0) -> AsyncIterator[Store]:
    store = base.make(config(place, days))
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def stored(name: str, parent: str | None = None, created: float | None = None, text: str = "") -> Stored:
    response = Response(id=name, created_at=int(created or time.time()), model="m")
    return Stored(response, [{"role": "user", "content": text or name}], parent)


def answer(name: str, owner: str = "a", attempt: int = 1, output: int = 3, created: float | None = None) -> Answer:
    usage = Usage(input_tokens=10, cached_tokens=4, output_tokens=output)
    when = int(created or time.time())
    return Answer(name, owner, "m", "default", "completed", usage, 0.5, attempt, when)


async def used(store: Store) -> list[tuple[str, int, int, int, int, float]]:
    return [
        (each.owner, each.answers, each.input, each.cached, each.output, each.cost) for each in await store.usage(30)
    ]


async def test_a_response_and_what_it_used_are_there_after_a_restart(place: str) -> None:
    async with opened(place) as store:
        assert await store.end(answer("r1"), stored("r1", text="nul \0 and ümlaut"), EVENTS)
        assert await store.end(answer("x"))
    async with opened(place) as store:
        found = await store.get("a", "r1")
        assert found is not None and found.response.id == "r1"
        assert found.input == [{"role": "user", "content": "nul \0 and ümlaut"}]
        assert await store.events("a", "r1") == EVENTS
        assert await store.get("b", "r1") is None and await store.events("b", "r1") is None, "another key's"
        assert await store.get("a", "x") is None, "counted, not stored"
        assert await used(store) == [("a", 2, 20, 8, 6, 1.0)]
        assert not await store.delete("b", "r1")
        assert await store.delete("a", "r1") and not await store.delete("a", "r1")
        assert await used(store) == [("a", 2, 20, 8, 6, 1.0)], "what was used stays"


async def test_a_chain_is_read_from_its_root(place: str) -> None:
    async with opened(place) as store:
        for number in range(60):
            await store.end(answer(f"r{number}"), stored(f"r{number}", f"r{number - 1}" if number else None))
        await store.end(answer("stray", "b"), stored("stray", "r3"))
        chain = await store.chain("a", "r59")
        assert chain is not None and [each.response.id for each in chain] == [f"r{number}" for number in range(60)]
        assert await store.chain("b", "stray") is None, "what it follows belongs to another key"
        await store.delete("a", "r30")
        assert await store.chain("a", "r59") is None and await store.chain("a", "none") is None


async def test_an_answer_ends_once_and_a_stale_attempt_never_wins(place: str) -> None:
    async with opened(place) as store:
        assert await store.fence("r", 2)
        assert not await store.end(answer("r", attempt=1, output=100), stored("r", text="stale"), [b"stale"])
        assert await store.get("a", "r") is None and await used(store) == []
        assert not await store.fence("r", 1), "a later attempt has begun"
        assert await store.end(answer("r", attempt=2), stored("r"), EVENTS)
        assert await store.end(answer("r", attempt=2), stored("r"), EVENTS), "the same end again"
        assert not await store.end(answer("r", attempt=3, output=100), stored("r", text="late"), [b"late"])
        assert not await store.fence("r", 4), "it has ended"
        assert await store.events("a", "r") == EVENTS and await used(store) == [("a", 1, 10, 4, 3, 0.5)]


async def test_of_attempts_that_end_at_the_same_time_one_wins(place: str) -> None:
    async with opened(place) as store, opened(place) as other:
        for number in range(20):
            name = f"r{number}"
            ends = [
                each.end(
                    answer(name, attempt=attempt, output=attempt), stored(name, text=str(attempt)), [b"%d" % attempt]
                )
                for attempt, each in ((1, store), (2, other), (3, store))
            ]
            results = await asyncio.gather(*ends)
            assert sum(results) == 1
            assert await store.events("a", name) == [b"%d" % (results.index(True) + 1)]
        [(_, answers, *_)] = await used(store)
        assert answers == 20


async def test_old_usage_becomes_a_sum_and_nothing_is_counted_twice(place: str) -> None:
    async with opened(place) as store:
        for number in range(3):
            await store.end(answer(f"old{number}", created=time.time() - 9 * DAY))
        await store.end(answer("new"))
        assert await store.fence("never ended", 2)
    for _ in range(2):
        async with opened(place) as store:
            while await used(store) != [("a", 4, 40, 16, 12, 2.0)]:  # PostgreSQL does it beside the work
                await asyncio.sleep(0.01)
            assert [(each.owner, each.answers) for each in await store.usage(2)] == [("a", 1)]


async def test_old_responses_are_forgotten(place: str) -> None:
    now = time.time()
    async with opened(place) as store:
        for number in range(4):
            await store.end(answer(f"r{number}"), stored(f"r{number}", created=now - number * DAY))
    async with opened(place, days=1.5) as store:
        while await store.get("a", "r3") is not None:
            await asyncio.sleep(0.01)
        assert [await store.get("a", f"r{number}") is not None for number in range(4)] == [True, True, False, False]


async def test_keys_are_added_and_revoked(place: str) -> None:
    async with opened(place) as store:
        first, second = Key("laptop", "ab", tokens_per_day=5), Key("ci", "cd")
        await store.add_key(first)
        await store.add_key(second)
        with pytest.raises(UsageError, match="'laptop' already exists"):
            await store.add_key(Key("laptop", "ef"))
        assert {key.name: key for key in await store.keys()} == {"laptop": first, "ci": second}
        assert await store.revoke_key("ci") and not await store.revoke_key("ci")
    async with opened(place) as store:
        assert await store.keys() == [first]


async def test_the_same_key_may_be_added_again(place: str) -> None:
    async with opened(place) as store:
        key = Key("laptop", "ab", tokens_per_day=5)
        await store.add_key(key)
        await store.add_key(key)
        assert await store.keys() == [key]


@pytest.mark.cluster
async def test_work_whose_acknowledgement_is_lost_is_repeated_with_the_same_result(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection dies after the commit, before the answer to it."""
    asyncpg = pytest.importorskip("asyncpg")
    lost: list[str] = []
    original = asyncpg.Connection.execute

    async def execute(self: object, sql: str, *values: object, **options: object) -> str:
        result: str = await original(self, sql, *values, **options)
        if sql not in lost and sql in (queries.ADD_KEY, queries.REVOKE_KEY, queries.DELETE, queries.FENCE):
            lost.append(sql)
            raise asyncpg.ConnectionDoesNotExistError("connection was closed in the middle of operation")
        return result

    async with opened(postgres.url()) as store:
        await store.end(answer("r"), stored("r"), EVENTS)
        monkeypatch.setattr(asyncpg.Connection, "execute", execute)
        await store.add_key(Key("laptop", "ab"))
        assert [key.name for key in await store.keys()] == ["laptop"]
        with pytest.raises(UsageError, match="'laptop' already exists"):
            await store.add_key(Key("laptop", "cd"))
        assert await store.revoke_key("laptop") and await store.keys() == []
        assert await store.delete("a", "r") and await store.get("a", "r") is None
        assert await store.fence("x", 2)
        assert len(lost) == 4, "each was repeated"
        lost.clear()
        assert not await store.revoke_key("laptop") and not await store.delete("a", "r"), "never there, repeated or not"


# --- migrations ---


def admin(*words: str) -> int:
    return main(["admin", *words])


def test_migrations_are_shown_and_applied(
    place: str, home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "server.toml").write_text(f'[server]\nstore = "{place}"\n')
    assert admin("migrate") == 0
    assert "pending" in capsys.readouterr().out
    assert admin("migrate", "up") == 0
    shown = capsys.readouterr().out
    assert "applied now" in shown and "pending" not in shown
    assert admin("migrate", "up") == 0
    assert "applied now" not in capsys.readouterr().out
    assert admin("keys", "add", "laptop", "--tokens-per-day", "7") == 0
    key = capsys.readouterr().out.split()[0]
    assert key.startswith("fg-")
    assert admin("keys") == 0
    shown = capsys.readouterr().out
    assert "laptop" in shown and "7" in shown and key not in shown
    assert admin("keys", "add", "laptop") == 2 and admin("keys", "add") == 2
    assert admin("keys", "revoke", "laptop") == 0 and admin("keys", "revoke", "laptop") == 2
    assert admin("keys", "add", "desk", "--tokens-per-day", "-5") == 2, "and not a key without a limit"
    assert admin("usage", "--days", "0") == 2
    capsys.readouterr()
    assert admin("usage") == 0
    assert "No usage yet" in capsys.readouterr().out


async def test_a_newer_schema_is_refused(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    newer = [*migrate.migrations(migrate.SQLITE)[:1], migrate.Migration(9000, "later", "CREATE TABLE later (x BIGINT)")]
    async with opened(place):
        pass
    with monkeypatch.context() as patched:
        patched.setattr(migrate, "migrations", lambda _: newer)
        store = base.make(config(place))
        assert [each.version for each in await store.migrate()] == [9000]
        await store.close()
    for refused in (lambda store: store.open(), lambda store: store.migrate()):
        store = base.make(config(place))
        with pytest.raises(FulgurError, match="schema version 9000"):
            await refused(store)
        await store.close()


async def test_a_migration_that_fails_leaves_the_database_as_it_was(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(place) as store:
        await store.end(answer("r"), stored("r"), EVENTS)
    broken = migrate.Migration(9000, "broken", "CREATE TABLE half (x BIGINT); SELECT nonsense FROM nowhere")
    with monkeypatch.context() as patched:
        known = migrate.migrations
        patched.setattr(migrate, "migrations", lambda dialect: [*known(dialect), broken])
        store = base.make(config(place))
        with pytest.raises(FulgurError):
            await store.migrate()
        await store.close()
    async with opened(place) as store:
        assert await store.events("a", "r") == EVENTS and 9000 not in await store.applied()


SHIPPED = """
CREATE TABLE IF NOT EXISTS responses (
    id TEXT PRIMARY KEY, owner TEXT NOT NULL, created INTEGER NOT NULL, parent TEXT,
    response BLOB NOT NULL, input BLOB NOT NULL, events BLOB NOT NULL) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS by_created ON responses (created);
CREATE TABLE IF NOT EXISTS usage (
    day INTEGER NOT NULL, owner TEXT NOT NULL, model TEXT NOT NULL, tier TEXT NOT NULL,
    answers INTEGER NOT NULL, input INTEGER NOT NULL, cached INTEGER NOT NULL, output INTEGER NOT NULL,
    cost REAL NOT NULL, PRIMARY KEY (day, owner, model, tier)) WITHOUT ROWID;
"""


async def test_a_database_from_before_migrations_loses_nothing(tmp_path: Path) -> None:
    """The schema as it was shipped, with rows as it wrote them."""
    import msgspec

    from fulgur.server.store.rows import packed

    path = tmp_path / "responses.sqlite"
    database = sqlite3.connect(path)
    database.execute("PRAGMA journal_mode=WAL")
    database.executescript(SHIPPED)
    for number in range(5):
        row = packed("a", stored(f"r{number}", f"r{number - 1}" if number else None), EVENTS)
        database.execute("INSERT INTO responses VALUES (?, ?, ?, ?, ?, ?, ?)", row)
    database.execute("INSERT INTO usage VALUES (?, 'a', 'm', 'default', 7, 70, 28, 21, 3.5)", (base.today(),))
    database.commit()
    database.close()
    async with opened(str(path)) as store:
        chain = await store.chain("a", "r4")
        assert chain is not None and [each.response.id for each in chain] == [f"r{number}" for number in range(5)]
        assert msgspec.to_builtins(chain[0].input) == [{"role": "user", "content": "r0"}]
        assert await store.events("a", "r4") == EVENTS
        await store.end(answer("new"))
        assert await used(store) == [("a", 8, 80, 32, 24, 4.0)], "what was counted before, and what is counted now"


# --- a store that is away ---


class Away:
    """A store whose ends fail while `reason` is set."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.reason: Exception | None = None
        self.before: Callable[[], Awaitable[object]] | None = None  # an end takes so long

    def __getattr__(self, name: str) -> object:
        return getattr(self.store, name)

    async def end(self, *given: object) -> bool:
        if self.before is not None:
            await self.before()
        if self.reason is not None:
            raise self.reason
        return await self.store.end(*given)  # type: ignore[arg-type]


async def test_what_cannot_be_written_is_kept_read_and_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patient, "RETRY_S", 0.01)
    monkeypatch.setattr(patient, "PATIENCE_S", 0.05)
    inner = Away(base.make(config(str(tmp_path / "s"))))
    store = PatientStore(inner)  # type: ignore[arg-type]
    await store.open()
    inner.reason = StoreAway("away")
    assert await store.end(answer("counted")), "nobody waits for usage"
    for number in range(3):
        with pytest.raises(StoreAway):
            await store.end(answer(f"r{number}"), stored(f"r{number}", f"r{number - 1}" if number else None), EVENTS)
    chain = await store.chain("a", "r2")
    assert chain is not None and len(chain) == 3 and await store.events("a", "r2") == EVENTS
    assert await store.get("b", "r2") is None
    assert await used(store) == []
    monkeypatch.setattr(patient, "PATIENCE_S", 30.0)
    waiting = asyncio.create_task(store.end(answer("held"), stored("held"), EVENTS))
    await asyncio.sleep(0.02)
    inner.reason = None
    assert await waiting, "its end waited for the store"
    assert await used(store) == [("a", 5, 50, 20, 15, 2.5)]
    await store.close()
    async with opened(str(tmp_path / "s")) as reopened:
        assert await reopened.get("a", "held") is not None and await reopened.get("a", "r1") is not None


async def test_what_still_waits_is_written_when_the_server_stops(tmp_path: Path) -> None:
    inner = Away(base.make(config(str(tmp_path / "s"))))
    store = PatientStore(inner)  # type: ignore[arg-type]
    await store.open()
    for number, reason in enumerate((FulgurError("full"), RuntimeError("a driver's mistake"))):
        inner.reason = reason
        with pytest.raises(type(reason)):
            await store.end(answer(f"r{number}"), stored(f"r{number}"), EVENTS)
        assert await store.end(answer(f"counted{number}"))
    inner.reason = None
    await store.close()
    async with opened(str(tmp_path / "s")) as reopened:
        assert await reopened.events("a", "r1") == EVENTS and await used(reopened) == [("a", 4, 40, 16, 12, 2.0)]


async def test_what_a_killed_server_owed_is_counted_at_once(tmp_path: Path) -> None:
    Owed(tmp_path / "owed").add(answer("left"))
    store = PatientStore(base.make(config(str(tmp_path / "s"))), tmp_path / "owed", near=True)
    await store.open()
    assert await used(store) == [("a", 1, 10, 4, 3, 0.5)]
    await store.close()


async def test_nobody_waits_until_what_was_used_is_in_the_embedded_store(tmp_path: Path) -> None:
    place, owed = str(tmp_path / "s"), tmp_path / "owed"
    inner, slow = Away(base.make(config(place))), asyncio.Event()
    store = PatientStore(inner, owed, near=True)  # type: ignore[arg-type]
    await store.open()
    inner.before = slow.wait
    assert await store.end(answer("first")) and await store.end(answer("second"))
    asking = asyncio.create_task(used(store))
    await asyncio.sleep(0)
    assert not asking.done(), "who asks hears of all that was told"
    # A process that is killed now leaves a file behind.
    [file] = owed.iterdir()
    assert [*_read(file.open("rb"), file)] == ["first", "second"]
    slow.set()
    assert await asking == [("a", 2, 20, 8, 6, 1.0)]
    assert file.read_bytes() == b"", "nothing is owed"
    slow.clear()
    assert await store.end(answer("last"))
    asyncio.get_running_loop().call_soon(slow.set)
    await store.close()
    assert list(owed.iterdir()) == []
    async with opened(place) as reopened:
        assert await used(reopened) == [("a", 3, 30, 12, 9, 1.5)]


def test_the_file_of_what_is_owed_does_not_grow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owed_file, "MOST_BYTES", 2000)
    owed = Owed(tmp_path)
    owed.add(answer("stays"))
    for number in range(200):
        owed.add(answer(f"a{number}"))
        owed.paid(f"a{number}")
        [file] = tmp_path.iterdir()
        assert file.stat().st_size < 3000 and "stays" in _read(file.open("rb"), file)
    owed.paid("stays")
    owed.close()
    assert list(tmp_path.iterdir()) == []


async def test_usage_outlives_a_server_that_is_killed_while_the_database_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patient, "RETRY_S", 0.001)
    place, owed = str(tmp_path / "s"), tmp_path / "owed"
    inner = Away(base.make(config(place)))
    store = PatientStore(inner, owed)  # type: ignore[arg-type]
    await store.open()
    await store.end(answer("before"))
    assert not owed.exists(), "nothing is owed"
    inner.reason = StoreAway("away")
    for number in range(3):
        assert await store.end(answer(f"a{number}"))
    assert store._retrying is not None and store._owed is not None and store._owed._file is not None
    other = PatientStore(base.make(config(place)), owed)
    await other.open()
    assert not other._waiting, "its server lives"
    await other.close()
    # What is left of kill -9: the file, perhaps with half a line, and no lock.
    store._retrying.cancel()
    store._owed._file.write(b'{"owed":{"id":"ha')
    store._owed._file.close()
    again = PatientStore(base.make(config(place)), owed)
    await again.open()
    while again._waiting:
        await asyncio.sleep(0.001)
    assert await used(again) == [("a", 4, 40, 16, 12, 2.0)]
    await again.close()
    assert list(owed.iterdir()) == [], "nothing is owed"
    await inner.store.close()
