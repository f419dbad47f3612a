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

import tomllib
from pathlib import Path
from typing import Literal

import msgspec

from fulgur.engine.device import check_device
from fulgur.errors import FulgurError, UsageError
from fulgur.workspace import folders


class Listen(msgspec.Struct, forbid_unknown_fields=True):
    """Where the server listens and what it refuses."""

    host: str = "127.0.0.1"
    port: int = 8787
    store: str = ""  # SQLite file; empty: responses.sqlite in Fulgur's home
    store_days: float = 30.0  # older responses are forgotten at the start; 0 keeps them for ever
    store_mb: float = 2048.0  # beyond, the oldest are forgotten; 0: no limit
    origins: list[str] = []  # browser origins that may call, besides this machine's own
    max_body_mb: float = 16.0  # of a body or a frame
    max_in_flight_mb: float = 32.0  # of all bodies and frames that are read or answered; a key may take three quarters
    max_held_mb: float = 32.0  # of the conversations that one key's sockets hold for `store: false`
    max_connections: int = 4096
    max_nesting: int = 100
    connection_minutes: float = 60.0
    share_cache: bool = False  # prefixes that one key has computed are used for, and counted for, the others too


class Price(msgspec.Struct, forbid_unknown_fields=True):
    """Per million tokens."""

    input: float = 0.0
    output: float = 0.0
    cached_input: float | None = None  # left out: as input


class Model(msgspec.Struct, forbid_unknown_fields=True):
    """One model by the name clients use."""

    backend: str
    path: str = ""  # local: the folder or GGUF file; scripted: the script
    upstream_model: str = ""  # upstream: its name there; empty: the same
    context: int = 0  # 0: what the model itself says
    price: Price | None = None
    pool: str = ""
    display_name: str = ""
    instructions: str = ""  # base instructions in the Codex catalog
    bits: int = 0  # local: 0 as stored
    threads: int = 0  # local: 0 all
    kv_tokens: int = 0  # local: 0 as many as fit
    runtime: str = "native"  # local, on the CPU: native or reference
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
    timeout_s: float = 300.0
    prefill: bool = False  # chat: warm its prefix cache with one-token answers (for a server of your own)
    continue_partial: bool = True  # a trailing assistant message is continued (vLLM, SGLang, llama.cpp), not answered


class Pool(msgspec.Struct, forbid_unknown_fields=True):
    """Models that share their limits; 0 means none."""

    concurrent: int = 0
    requests_per_minute: int = 0
    tokens_per_minute: int = 0


class Key(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    sha256: str


class ServerConfig(msgspec.Struct, forbid_unknown_fields=True):
    server: Listen = msgspec.field(default_factory=Listen)
    models: dict[str, Model] = {}
    backends: dict[str, Upstream] = {}
    pools: dict[str, Pool] = {}
    keys: list[Key] = []

    def check(self, source: str) -> None:
        """References that lead nowhere are an error at the start, not at the first request."""
        for name, model in self.models.items():
            if model.backend not in ("local", "scripted") and model.backend not in self.backends:
                known = ", ".join(["local", "scripted", *self.backends])
                raise UsageError(f"{source}: models.{name}.backend is '{model.backend}'; there are: {known}")
            if model.backend == "local" and not model.path:
                raise UsageError(f"{source}: models.{name}.path is missing: the folder or GGUF file of the model")
            try:
                check_device(model.device)
            except FulgurError as error:
                raise UsageError(f"{source}: models.{name}.device: {error.message}", hint=error.hint) from None
            if model.pool and model.pool not in self.pools:
                raise UsageError(
                    f"{source}: models.{name}.pool is '{model.pool}', and there is no [pools.{model.pool}]"
                )
            if model.backend in self.backends and not model.context:
                raise UsageError(
                    f"{source}: models.{name}.context is missing: how many tokens the upstream model holds"
                )


def load(path: Path | None = None) -> ServerConfig:
    """Read the config; without a file the embedded model is served on loopback."""
    file = path or folders.home() / "server.toml"
    if not file.is_file():
        if path is not None:
            raise UsageError(f"There is no config file {path}")
        return ServerConfig()
    try:
        config = msgspec.convert(tomllib.loads(file.read_text()), ServerConfig)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise UsageError(f"{file}: {error}") from None
    config.check(str(file))
    return config
