"""The models by name: the backend of each, and what it can do."""

from __future__ import annotations

import asyncio
import time

from fulgur.backends.base import Backend
from fulgur.errors import FulgurError
from fulgur.hub import here
from fulgur.protocol.errors import ApiError
from fulgur.server.config import Model, Pool, ServerConfig
from fulgur.server.pools import PoolState
from fulgur.workspace import folders

ADD_A_MODEL = "Add a model under [models.NAME] in server.toml (docs/server.md shows how), for example a local folder."


class ServedModel:
    """One model by its name: its backend, started once, and its pool."""

    def __init__(self, name: str, model: Model, backend: Backend, pool: PoolState | None) -> None:
        self.name = name
        self.model = model
        self.backend = backend
        self.pool = pool or PoolState(name, Pool())
        self.created = int(time.time())
        self._starting: asyncio.Task[None] | None = None

    async def ready(self) -> Backend:
        """The backend, started; a 503 that says why when it cannot."""
        if self._starting is None or (self._starting.done() and self._starting.exception() is not None):
            self._starting = asyncio.create_task(self.backend.start())
        try:
            if not self._starting.done():
                await asyncio.shield(self._starting)
            self._starting.result()
        except FulgurError as error:
            raise ApiError(503, "model_not_started", f"The model '{self.name}' cannot be started: {error}") from None
        return self.backend

    async def close(self) -> None:
        if self._starting is not None:
            await asyncio.gather(self._starting, return_exceptions=True)
            await self.backend.close()


class Registry:
    """All models, in the order of the config; those that `fulgur models pull` fetches later come at the end."""

    def __init__(self, entries: list[ServedModel]) -> None:
        self.entries = {entry.name: entry for entry in entries}

    def look_again(self) -> None:
        """Find models that were fetched since the start. What is served stays as it is."""
        for name, model in fetched().items():
            if name not in self.entries:
                self.entries[name] = ServedModel(name, model, make_backend(name, model, ServerConfig()), None)

    def get(self, name: str) -> ServedModel:
        """The model with exactly this name; never another in its place."""
        if name not in self.entries:
            self.look_again()
        entry = self.entries.get(name)
        if entry is None:
            have = ", ".join(f"'{known}'" for known in self.entries) or "none"
            raise ApiError(
                404,
                "model_not_found",
                f"There is no model '{name}' here. Available: {have}. {ADD_A_MODEL}",
                param="model",
            )
        return entry

    async def describe(self) -> None:
        """Find out what each model can do. A model that fails here reports its error when it is used."""
        self.look_again()
        await asyncio.gather(*(entry.backend.describe() for entry in self.entries.values()), return_exceptions=True)

    async def close(self) -> None:
        await asyncio.gather(*(entry.close() for entry in self.entries.values()), return_exceptions=True)


def build(config: ServerConfig) -> Registry:
    """The registry a config describes; without any model, the embedded one."""
    models = dict(config.models) or embedded()
    pools = {name: PoolState(name, limits) for name, limits in config.pools.items()}
    return Registry(
        [
            ServedModel(name, model, make_backend(name, model, config), pools.get(model.pool))
            for name, model in models.items()
        ]
    )


def embedded() -> dict[str, Model]:
    """The models that ship with the package, the larger first."""
    shipped = folders.embedded_models()
    return {folders.embedded_name(folder): Model(backend="local", path=str(folder)) for folder in shipped}


def fetched() -> dict[str, Model]:
    """The models that `fulgur models pull` has put into Fulgur's home."""
    return {model.name: Model(backend="local", path=str(model.weights)) for model in here.fetched()}


def make_backend(name: str, model: Model, config: ServerConfig) -> Backend:
    if model.backend == "scripted":
        from fulgur.backends.scripted import Script, ScriptedBackend, load_script

        script = load_script(folders.expanded(model.path)) if model.path else Script()
        return ScriptedBackend(name, script, context=model.context or 200_000)
    if model.backend == "local":
        from fulgur.backends.local import LocalBackend

        return LocalBackend(name, model)
    if model.backend == "cluster":
        from fulgur.backends.cluster import ClusterBackend

        return ClusterBackend(name, model, config.cluster)
    from fulgur.backends.upstream import UpstreamBackend

    return UpstreamBackend(name, model, config.backends[model.backend])


def require(entry: ServedModel, ability: str, wish: str) -> None:
    """Raise a 400 when the model lacks an ability; it says what the model can do, and how to add one that can."""
    capabilities = entry.backend.capabilities
    if getattr(capabilities, ability):
        return
    can = [
        text
        for name, text in (
            ("chat", "chat"),
            ("tools", "call tools"),
            ("fim", "fill in code (POST /v1/completions with `suffix`)"),
            ("edit", "rewrite a region of code (`fulgur edit`)"),
        )
        if getattr(capabilities, name)
    ]
    raise ApiError(
        400,
        "model_not_capable",
        f"The model '{entry.name}' cannot {wish}. It can {' and '.join(can) or 'complete text'}, "
        f"with a context of {capabilities.context} tokens. {ADD_A_MODEL}",
        param="model",
    )
