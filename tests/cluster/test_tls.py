"""Fronts and replicas over TLS: what passes is encrypted, and only the cluster's own are let in."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from cluster_world import SECRET, World, cluster

from fulgur.bench.chat_model import write_chat_model
from fulgur.cluster import link as links
from fulgur.cluster import tls
from fulgur.cluster.engine import ClusterEngine
from fulgur.cluster.tls import Tls
from fulgur.engine.events import Finished
from fulgur.engine.params import GenerateRequest, SamplingParams
from fulgur.errors import UsageError
from fulgur.server.config import Cluster

FILES = Path(__file__).parent / "certificates"  # made with the commands of docs/cluster.md, for a hundred years


def certified(name: str, authority: str = "authority") -> Tls:
    made = tls.load(
        Cluster("", str(FILES / f"{name}.pem"), str(FILES / f"{name}.key"), str(FILES / f"{authority}.pem"))
    )
    assert made is not None
    return made


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_chat_model(tmp_path_factory.mktemp("model") / "random", context=512, d_model=64, n_layers=1)


async def problem(world: World, encrypted: Tls | None) -> str:
    """Why a front does not get to the replica."""
    front = ClusterEngine(SECRET, world.mark, tls=encrypted)
    front.set_members(world.addresses)
    link = front.links[0]
    before = link.problem
    while link.problem == before:
        assert not link.ready
        await asyncio.sleep(0.005)
    await front.close()
    return link.problem


async def test_only_who_has_a_certificate_of_the_cluster_is_let_in(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(model, 0) as world:
        await world.replica(0, tls=certified("node"))
        front = await world.front(tls=certified("node"))
        request = GenerateRequest([30, 31], SamplingParams(max_tokens=5, ignore_eos=True))
        events = [event async for event in front.generate(request)]
        assert isinstance(events[-1], Finished) and events[-1].reason == "length"
        assert "cannot be trusted" in await problem(world, certified("node", authority="stranger"))
        assert "it closed the connection" in await problem(world, certified("stranger"))
        monkeypatch.setattr(links, "SILENCE_S", 0.05)
        assert "only one side uses TLS" in await problem(world, None)


def test_half_a_configuration_is_refused(tmp_path: Path) -> None:
    assert tls.load(Cluster()) is None
    with pytest.raises(UsageError, match="certificate_key is missing"):
        tls.load(Cluster(certificate="a.pem"))
    with pytest.raises(UsageError, match="cannot be used"):
        tls.load(Cluster("", str(tmp_path / "a"), str(tmp_path / "b"), str(tmp_path / "c")))
