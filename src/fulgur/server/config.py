"""The server's own settings: `server.toml` in Fulgur's home, or the file named with `fulgur serve --file`.

[server]
host = "127.0.0.1"
port = 8787

[models.qwen-coder]
backend = "local"
path = "~/models/Qwen2.5-Coder-7B-Instruct"
device = "cuda"    # or "cpu"; left out: whichever suits model and machine
context = 32768
price = {input = 0.1, cached_input = 0.02, output = 0.4}   # per million tokens

[backends.vllm]
url = "http://10.0.0.5:8000/v1"
api = "chat"
key_env = "VLLM_KEY"

[models.glm]
backend = "vllm"
upstream_model = "zai-org/GLM-4.6"
context = 131072
pool = "big"

[pools.big]
concurrent = 4
requests_per_minute = 60

[[keys]]
name = "laptop"
sha256 = "…"       # `fulgur serve --new-key laptop` prints a key and this line
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from fulgur.engine.device import bits_of, check_device
from fulgur.errors import FulgurError, UsageError
from fulgur.workspace import folders

OURS = ("local", "cluster", "scripted")  # backends that need no table of their own
Port = Annotated[int, msgspec.Meta(ge=0, le=65_535)]
Count = Annotated[int, msgspec.Meta(ge=0, le=10**12)]
Amount = Annotated[float, msgspec.Meta(ge=0, le=1e12)]
Most = Annotated[float, msgspec.Meta(gt=0, le=1e12)]
_HTTP = re.compile(r"https?://[^/]")
_ORIGIN = re.compile(r"null|[a-z][a-z0-9+.-]*://[^/]+/?")
# Which model settings apply to which backend; those in no list apply to all.
_ENGINE = ("path", "bits", "threads", "kv_tokens", "kv_dtype", "runtime", "device")
_THERE = ("upstream_model", "chat", "tools", "fim", "vision", "reasoning")
_USED = {"local": _ENGINE, "cluster": (*_ENGINE, "replicas"), "scripted": ("path",)}


class Listen(msgspec.Struct, forbid_unknown_fields=True):
    """Where the server listens and what it refuses."""

    host: str = "127.0.0.1"
    port: Port = 8787
    store: str = ""  # SQLite file, or postgresql://…; empty: responses.sqlite in Fulgur's home
    live: str = ""  # redis://…, rediss://… or unix://…: what several fronts share; empty: in memory
    otlp: str = ""  # http://HOST:4318: an OpenTelemetry collector that gets a span for every answer
    store_days: Amount = 30.0  # older responses are forgotten at the start; 0 keeps them for ever
    store_mb: Amount = 2048.0  # beyond, the oldest are forgotten; 0: no limit
    origins: list[str] = []  # browser origins that may call, besides this machine's own
    max_body_mb: Most = 16.0  # of a body or a frame
    max_in_flight_mb: Most = 32.0  # of all bodies and frames that are read or answered; a key may take three quarters
    max_held_mb: Most = 32.0  # of the conversations that one key's sockets hold for `store: false`
    max_connections: Annotated[int, msgspec.Meta(ge=1)] = 4096
    max_nesting: Annotated[int, msgspec.Meta(ge=1)] = 100
    connection_minutes: Most = 60.0
    share_cache: bool = False  # prefixes computed for one key are used, and counted as cached, for the others too


class Price(msgspec.Struct, forbid_unknown_fields=True):
    """Per million tokens."""

    input: Amount = 0.0
    output: Amount = 0.0
    cached_input: Amount | None = None  # left out: as input


class Model(msgspec.Struct, forbid_unknown_fields=True):
    """One model by the name clients use."""

    backend: str
    path: str = ""  # local: the folder or GGUF file; cluster: the same, for its tokenizer; scripted: the script
    replicas: list[str] = []  # cluster: their addresses, in the order of their slots
    upstream_model: str = ""  # upstream: its name there; empty: the same
    context: Count = 0  # 0: what the model itself says
    price: Price | None = None
    pool: str = ""
    display_name: str = ""
    instructions: str = ""  # base instructions in the Codex catalog
    bits: Literal[0, 4, 8, 16] = 0  # local: of a weight; 0 as stored, 16 (bf16) on a GPU only
    threads: Annotated[int, msgspec.Meta(ge=0, le=1024)] = 0  # local: 0 all
    kv_tokens: Count = 0  # local: 0 as many as fit
    kv_dtype: str = "bf16"  # local: bf16, on the CPU int8, on a GPU fp8
    runtime: Literal["native", "reference"] = "native"  # local, on the CPU
    device: str = "auto"  # local: auto, cpu, cuda or cuda:N
    chat: bool = True  # upstream: what it can do
    tools: bool = True
    fim: bool = False
    vision: bool = False
    reasoning: bool = False


class Upstream(msgspec.Struct, forbid_unknown_fields=True):
    """An API that answers for some of the models."""

    url: str
    api: Literal["responses", "chat"] = "chat"
    key_env: str = ""
    timeout_s: Most = 300.0
    prefill: bool = False  # chat: warm its prefix cache with one-token answers (for a server of your own)
    continue_partial: bool = True  # a trailing assistant message is continued (vLLM, SGLang, llama.cpp), not answered


class TierLimits(msgspec.Struct, forbid_unknown_fields=True):
    """A service tier of a pool; 0 means no limit."""

    slots: Count = 0  # at once
    reserved: Count = 0  # slots that no other tier takes
    weight: Most | None = None  # against the other tiers; left out: flex 1, default 4, priority 16, ultrafast 64
    price: Amount | None = None  # times the model's; left out: flex 0.5, default 1, priority 2, ultrafast 6
    requests_per_minute: Count = 0
    tokens_per_minute: Count = 0


class Pool(msgspec.Struct, forbid_unknown_fields=True):
    """Models that share their limits; 0 means none."""

    concurrent: Count = 0
    queue: Count = 1024  # requests that wait; more are refused
    tiers: dict[Literal["flex", "default", "priority", "ultrafast"], TierLimits] = {}
    requests_per_minute: Count = 0
    tokens_per_minute: Count = 0


class Key(msgspec.Struct, forbid_unknown_fields=True):
    """An API key; a limit of 0 means none."""

    name: Annotated[str, msgspec.Meta(min_length=1)]
    sha256: Annotated[str, msgspec.Meta(pattern="^[0-9a-fA-F]{64}$")]
    requests_per_minute: Count = 0
    tokens_per_minute: Count = 0
    tokens_per_day: Count = 0


class Cluster(msgspec.Struct, forbid_unknown_fields=True):
    """Fronts and replicas of one cluster."""

    secret_file: str = ""  # both sides prove that they know it; $FULGUR_CLUSTER_SECRET takes precedence
    certificate: str = ""  # PEM files: with all three, fronts and replicas speak TLS
    certificate_key: str = ""
    authority: str = ""  # the CA that signed all their certificates
    placement: Literal["processes", "ray"] = "processes"  # who starts and restarts replicas
    fronts: Count = 1  # `cluster up`: how many, on server.port and the ports after it
    host: str = "127.0.0.1"  # ray: the address of this machine at which its replicas listen
    least: Annotated[int, msgspec.Meta(ge=1)] = 1  # ray: replicas of each model
    most: Annotated[int, msgspec.Meta(ge=1)] = 1
    waiting_tokens: Annotated[int, msgspec.Meta(ge=1)] = (
        8192  # ray: prompt tokens that wait on a replica before one is added
    )


class ServerConfig(msgspec.Struct, forbid_unknown_fields=True):
    server: Listen = msgspec.field(default_factory=Listen)
    models: dict[str, Model] = {}
    backends: dict[str, Upstream] = {}
    pools: dict[str, Pool] = {}
    keys: list[Key] = []
    cluster: Cluster = msgspec.field(default_factory=Cluster)

    def check(self, source: str) -> None:
        """Fail at the start, not at the first request, on dangling references and settings without effect."""
        self._check_server(source)
        for name, pool in self.pools.items():
            _check_pool(f"{source}: pools.{name}", pool)
        for name, upstream in self.backends.items():
            where = f"{source}: backends.{name}"
            if name in OURS:
                raise UsageError(f"{where}: '{name}' is the name of a built-in backend; choose another")
            if not _HTTP.match(upstream.url):
                raise UsageError(
                    f"{where}.url: '{upstream.url}' is not a valid URL", hint="For example http://127.0.0.1:8080/v1"
                )
        for name, model in self.models.items():
            if model.backend not in OURS and model.backend not in self.backends:
                known = ", ".join([*OURS, *self.backends])
                raise UsageError(f"{source}: models.{name}.backend: '{model.backend}' is not one of: {known}")
            unset = Model(model.backend)
            for field in {*_ENGINE, *_THERE, "replicas"} - {*_USED.get(model.backend, _THERE)}:
                if getattr(model, field) != getattr(unset, field):
                    raise UsageError(
                        f"{source}: models.{name}.{field} has no effect with the backend '{model.backend}'"
                    )
            if model.backend in ("local", "cluster") and not model.path:
                raise UsageError(f"{source}: models.{name}.path is missing: name the model's folder or GGUF file")
            for field, check in (("device", check_device), ("kv_dtype", bits_of)):
                try:
                    check(getattr(model, field))
                except FulgurError as error:
                    raise UsageError(f"{source}: models.{name}.{field}: {error.message}", hint=error.hint) from None
            if model.pool and model.pool not in self.pools:
                raise UsageError(
                    f"{source}: models.{name}.pool: '{model.pool}' is not defined; add [pools.{model.pool}]"
                )
            if model.backend in self.backends and not model.context:
                raise UsageError(
                    f"{source}: models.{name}.context is missing: say how many tokens the upstream model holds"
                )

    def _check_server(self, source: str) -> None:
        server = self.server
        for origin in server.origins:
            if not _ORIGIN.fullmatch(origin):
                raise UsageError(
                    f"{source}: server.origins: '{origin}' is not a valid origin",
                    hint="For example http://localhost:3000",
                )
        if server.otlp and not _HTTP.match(server.otlp):
            raise UsageError(
                f"{source}: server.otlp: '{server.otlp}' is not a valid URL", hint="For example http://127.0.0.1:4318"
            )
        if "://" in server.store and not server.store.startswith(("postgresql://", "postgres://")):
            raise UsageError(
                f"{source}: server.store: '{server.store}' is not supported", hint="Name a file, or postgresql://…"
            )
        if server.max_body_mb > server.max_in_flight_mb * 3 / 4:
            raise UsageError(
                f"{source}: server.max_body_mb is {server.max_body_mb:g}, but one key may have only "
                f"{server.max_in_flight_mb * 3 / 4:g} MB in flight (three quarters of server.max_in_flight_mb)"
            )
        for kind, values in (("name", [key.name for key in self.keys]), ("sha256", [key.sha256 for key in self.keys])):
            value, times = max(Counter(values).items(), key=lambda item: item[1], default=("", 0))
            if times > 1:
                raise UsageError(f"{source}: {times} keys have the {kind} '{value}'")


def _check_pool(where: str, pool: Pool) -> None:
    kept = sum(tier.reserved for tier in pool.tiers.values())
    if kept and kept >= pool.concurrent:
        raise UsageError(
            f"{where}: its tiers reserve {kept} slots, so `concurrent` must be more than {kept}, not {pool.concurrent}"
        )
    for name, tier in pool.tiers.items():
        if tier.slots and not pool.concurrent:
            raise UsageError(f"{where}.tiers.{name}.slots has no effect unless the pool sets `concurrent`")
        if tier.slots and tier.reserved > tier.slots:
            raise UsageError(f"{where}.tiers.{name}: `reserved` ({tier.reserved}) is more than `slots` ({tier.slots})")


def load(path: Path | None = None) -> ServerConfig:
    """Read the config; without a file the embedded model is served on loopback."""
    file = path or folders.home() / "server.toml"
    if not file.is_file():
        if path is not None:
            raise UsageError(f"The config file {path} does not exist")
        return ServerConfig()
    try:
        config = msgspec.convert(tomllib.loads(file.read_bytes().decode("utf-8-sig")), ServerConfig)
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise UsageError(f"{file}: {error}") from None
    config.check(str(file))
    return config
