"""Opens a replica from the config: its engine, its socket, and its place in the table when fronts have to find it."""

from __future__ import annotations

from fulgur.cluster import secret, tls
from fulgur.cluster.address import Address
from fulgur.cluster.announce import Announcer
from fulgur.cluster.fingerprint import fingerprint
from fulgur.cluster.replica import Replica
from fulgur.engine.process import EngineClient
from fulgur.errors import UsageError
from fulgur.server.config import Model, ServerConfig
from fulgur.server.live import base as live_state
from fulgur.workspace import folders


class OpenReplica:
    """Made by `open_replica`; `close` lets running answers finish, for at most `drain` seconds."""

    def __init__(self, replica: Replica, live: live_state.Live, announcer: Announcer | None) -> None:
        self.replica = replica
        self._live = live
        self._announcer = announcer

    async def close(self, drain: float = 60.0) -> None:
        await self.replica.drain(drain)
        if self._announcer is not None:
            await self._announcer.close()
            await self._live.close()
        await self.replica.close()


async def open_replica(config: ServerConfig, name: str, address: Address) -> OpenReplica:
    """Open a replica; that of a model without a list of replicas is announced in the live state."""
    model = config.models[name]
    known, path = secret.load(config.cluster.secret_file), folders.expanded(model.path)
    encrypted = tls.load(config.cluster)
    live = live_state.make(config)
    if not model.replicas:
        if not live.shared:
            raise UsageError(
                f"models.{name} lists no replicas, so fronts look for them in Redis, but server.live names none"
            )
        await live.open()
    engine = await EngineClient.start(
        path,
        bits=model.bits or None,
        threads=model.threads or None,
        kv_tokens=model.kv_tokens or model.context or None,
        runtime=model.runtime,
        device=model.device,
        kv_dtype=model.kv_dtype,
    )
    replica = Replica(engine, known, fingerprint(path))
    try:
        listens = await replica.listen(address, encrypted)
    except OSError as error:
        await replica.close()
        raise UsageError(f"Cannot listen on {address}: {error.strerror or error}") from None
    return OpenReplica(replica, live, None if model.replicas else Announcer(live, name, listens.from_outside()))


def cluster_models(config: ServerConfig) -> dict[str, Model]:
    return {name: model for name, model in config.models.items() if model.backend == "cluster"}
