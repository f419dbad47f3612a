"""`fulgur cluster`: replicas of a model for fronts on this and other machines."""

from __future__ import annotations

import argparse
import asyncio
import signal
from pathlib import Path
from typing import TYPE_CHECKING

from fulgur.errors import UsageError
from fulgur.ui.foreign import log_to_stderr, out

if TYPE_CHECKING:
    from fulgur.cluster.address import Address
    from fulgur.server.config import Model, ServerConfig

_LOOK_S = 3.0  # how long `status` waits for everybody to answer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    what = parser.add_subparsers(dest="what", required=True, metavar="WHAT")
    secret = what.add_parser("secret", help="make the secret that fronts and replicas share")
    secret.add_argument("path", type=Path, metavar="FILE")
    up = what.add_parser("up", help="run the fronts and replicas of a config, and start them again when they die")
    up.add_argument("-f", "--file", type=Path, required=True, help="config file")
    what.add_parser("update", help="restart the replicas that `up` runs with the current config; running answers go on")
    what.add_parser("down", help="stop what `up` runs on this machine, once running answers are finished")
    status = what.add_parser("status", help="whether fronts and replicas answer, and how busy they are")
    _config(status)
    replica = what.add_parser("replica", help="run one engine and listen for fronts")
    _config(replica)
    replica.add_argument(
        "-m", "--model", metavar="NAME", help="a model of the config (default: the only one of the cluster)"
    )
    replica.add_argument("--slot", type=int, default=0, help="its place in the model's list of replicas (default 0)")
    replica.add_argument(
        "--listen", metavar="ADDRESS", help="host:port or unix:/path (default: its address in the list)"
    )
    replica.add_argument(
        "--drain", type=float, default=60.0, metavar="SECONDS", help="time for running answers to finish after SIGTERM"
    )


def _config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-f", "--file", type=Path, help="config file (default: server.toml in Fulgur's home)")


def run(args: argparse.Namespace) -> int:
    if args.what == "secret":
        from fulgur.cluster import secret

        secret.make(args.path)
        out(f"{args.path}: copy it to every front and replica, and name it in cluster.secret_file.")
        return 0
    if args.what == "replica":
        return _replica(args)
    return _whole(args)


def _whole(args: argparse.Namespace) -> int:
    from fulgur.cluster import supervise
    from fulgur.cluster.open import cluster_models
    from fulgur.server import config as settings

    if args.what in ("down", "update"):
        supervise.signal_up(signal.SIGTERM if args.what == "down" else signal.SIGUSR1)
        return 0
    config = settings.load(args.file)
    if not cluster_models(config):
        raise UsageError('The config has no model with backend "cluster".', hint="docs/cluster.md shows one.")
    log_to_stderr()
    if args.what == "status":
        return asyncio.run(_status(config))
    asyncio.run(supervise.up(config, args.file, out))
    return 0


def _replica(args: argparse.Namespace) -> int:
    from fulgur.cluster.address import Address
    from fulgur.server import config as settings

    config = settings.load(args.file)
    name = args.model or _only_model(config)
    model = _model(config, name)
    if args.listen is not None:
        address = Address.parse(args.listen)
    elif 0 <= args.slot < len(model.replicas):
        address = Address.parse(model.replicas[args.slot])
    elif not model.replicas:
        address = Address(config.cluster.host)  # any port: fronts find it in the live state
    else:
        raise UsageError(f"models.{name}.replicas has no slot {args.slot}", hint="Give an address with --listen.")
    log_to_stderr()
    asyncio.run(_serve(config, name, address, args.drain))
    return 0


def _only_model(config: ServerConfig) -> str:
    names = [name for name, model in config.models.items() if model.backend == "cluster"]
    if len(names) != 1:
        have = ", ".join(names) or "none"
        raise UsageError(
            f'Which model? The config\'s with backend "cluster" are: {have}', hint="Choose one with --model NAME."
        )
    return names[0]


def _model(config: ServerConfig, name: str) -> Model:
    model = config.models.get(name)
    if model is None or model.backend != "cluster":
        raise UsageError(f"The config has no model '{name}' with backend \"cluster\".")
    return model


async def _serve(config: ServerConfig, name: str, address: Address, drain: float) -> None:
    from fulgur.cluster.open import open_replica

    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    opened = await open_replica(config, name, address)
    replica = opened.replica
    out(f"A replica of {name} listens on {replica.address} (engine: process {replica.engine.pid})")
    await stop.wait()
    if replica.running:
        out(f"{replica.running} answers are still running; no new ones are accepted")
    await opened.close(drain)


async def _status(config: ServerConfig) -> int:
    """Print one line per replica and front; return 1 if any does not answer."""
    from fulgur.cluster import announce, secret, tls
    from fulgur.cluster.engine import ClusterEngine, members
    from fulgur.cluster.fingerprint import fingerprint
    from fulgur.cluster.open import cluster_models
    from fulgur.server.live import base as live_state
    from fulgur.workspace import folders

    well = True
    for name, model in cluster_models(config).items():
        known = members(model.replicas)
        if not known:
            live = live_state.make(config)
            await live.open()
            known = await announce.members(live, name)
            await live.close()
        known_secret, mark = secret.load(config.cluster.secret_file), fingerprint(folders.expanded(model.path))
        engine = ClusterEngine(known_secret, mark, tls=tls.load(config.cluster))
        engine.set_members(known)
        end = asyncio.get_running_loop().time() + _LOOK_S
        while not all(link.ready for link in engine.links.values()) and asyncio.get_running_loop().time() < end:
            await asyncio.sleep(0.02)
        for number, link in sorted(engine.links.items()):
            said = f"{link.running} answers, {link.queued} prompt tokens wait" if link.ready else link.problem
            said = said.removeprefix(f"{link.address} ")  # the address is printed before it
            out(f"{name} {number} {link.address}: {'draining, ' if link.draining else ''}{said}")
        well = well and bool(known) and all(link.ready for link in engine.links.values())
        await engine.close()
    for number in range(config.cluster.fronts):
        well = await _front(config.server.host, config.server.port + number) and well
    return 0 if well else 1


async def _front(host: str, port: int) -> bool:
    import aiohttp

    try:
        timeout = aiohttp.ClientTimeout(total=_LOOK_S)
        async with aiohttp.ClientSession(timeout=timeout) as http, http.get(f"http://{host}:{port}/healthz") as answer:
            fine = answer.status == 200
    except (aiohttp.ClientError, TimeoutError):
        fine = False
    out(f"front {host}:{port}: {'ok' if fine else 'does not answer'}")
    return fine
