"""Replicas as Ray Serve deployments: Ray places, restarts and scales them; tokens do not pass through it.

Each replica listens on its own socket and announces its address in the live state (`announce.py`), so fronts go on
while the head is down. Ray's own proxy is off. It scales by the prompt tokens that wait, which only the replicas know.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from fulgur.cluster.address import Address
from fulgur.cluster.open import cluster_models, open_replica
from fulgur.errors import FulgurError
from fulgur.server import config as settings
from fulgur.server.config import ServerConfig

_log = logging.getLogger(__name__)
T = TypeVar("T")
_APP = "fulgur-{}"
_DRAIN_S = 60.0


class EngineReplica:
    """The actor. Ray asks for its health and its queue; requests come over its own socket.

    It has an event loop of its own: Ray's is uvloop and serves Ray.
    """

    def __init__(self, file: str, model: str) -> None:
        self._loop = asyncio.SelectorEventLoop()
        threading.Thread(target=self._loop.run_forever, name="replica", daemon=True).start()
        config = settings.load(Path(file))
        self._open = self._run(open_replica(config, model, Address(config.cluster.host)))

    def __call__(self) -> dict[str, Any]:
        replica = self._open.replica
        return {"address": str(replica.address), "running": replica.running, "queued": replica.queued}

    def record_autoscaling_stats(self) -> dict[str, float]:
        return {"queued": float(self._open.replica.queued)}

    def check_health(self) -> None:
        if self._open.replica.engine.pid is None:
            raise RuntimeError("the engine is not running")

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError):  # it did not even open
            self._run(self._open.close(_DRAIN_S))

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


def scale(context: Any) -> tuple[int, dict[str, Any]]:
    """How many replicas Ray should run: enough to keep the waiting tokens per replica at the target."""
    waiting = sum((context.aggregated_metrics or {}).get("queued", {}).values())
    wanted = -(-int(waiting) // max(1, int(context.config.target_ongoing_requests)))
    return min(max(wanted, context.capacity_adjusted_min_replicas), context.capacity_adjusted_max_replicas), {}


def up(config: ServerConfig, file: str) -> None:
    """Deploy one application per model. Called again, it replaces the replicas; the old ones drain first."""
    ray, serve = _ray()
    if not ray.is_initialized():
        ray.init(address=os.environ.get("RAY_ADDRESS"), include_dashboard=False, log_to_driver=False)
    serve.start(proxy_location="Disabled")
    for name in cluster_models(config):
        options: dict[str, Any] = {"num_replicas": config.cluster.least}
        if config.cluster.most > config.cluster.least:
            options = {
                "autoscaling_config": {
                    "min_replicas": config.cluster.least,
                    "max_replicas": config.cluster.most,
                    "target_ongoing_requests": config.cluster.waiting_tokens,
                    "policy": {"policy_function": scale},
                }
            }
        deployment = serve.deployment(
            name=name,
            graceful_shutdown_timeout_s=_DRAIN_S + 5,
            health_check_period_s=2.0,
            ray_actor_options={"num_cpus": 0},
            **options,
        )(EngineReplica)
        serve.run(deployment.bind(file, name), name=_APP.format(name), route_prefix=None, blocking=False)


def main(file: str) -> int:
    """Deploy, again with every line of the input, and shut everything down at its end (`supervise.py`)."""
    try:
        up(settings.load(Path(file)), file)
    except FulgurError as error:
        _log.error("%s", error)
        return error.exit_code
    for _ in sys.stdin:
        try:
            up(settings.load(Path(file)), file)
        except FulgurError as error:  # a config that cannot be read changes nothing
            _log.error("%s", error)
    ray, serve = _ray()
    serve.shutdown()
    ray.shutdown()
    return 0


def _ray() -> tuple[Any, Any]:
    try:
        import ray
        from ray import serve
    except ImportError:
        hint = "In Fulgur's checkout: pip install -e '.[ray]'"
        raise FulgurError('cluster.placement is "ray", but Ray is not installed.', hint=hint) from None
    return ray, serve


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
