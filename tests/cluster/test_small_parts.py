"""The secret, and how many replicas Ray is told to run."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from fulgur.cluster import secret
from fulgur.cluster.ray_serve import scale
from fulgur.errors import FulgurError, UsageError


def test_a_secret_is_made_once_and_read_by_its_owner_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FULGUR_CLUSTER_SECRET", raising=False)
    file = tmp_path / "keys" / "cluster.key"
    secret.make(file)
    assert file.stat().st_mode & 0o777 == 0o600 and len(secret.load(str(file))) == 64
    with pytest.raises(FulgurError, match="already"):
        secret.make(file)
    file.chmod(0o644)
    with pytest.raises(UsageError, match="read by other users"):
        secret.load(str(file))
    monkeypatch.setenv("FULGUR_CLUSTER_SECRET", "short")
    with pytest.raises(UsageError, match="at least 16"):
        secret.load(str(file))
    monkeypatch.setenv("FULGUR_CLUSTER_SECRET", "")
    with pytest.raises(UsageError, match="no secret"):
        secret.load("")


@pytest.mark.parametrize(("queued", "wanted"), [([], 1), ([0, 0], 1), ([900, 0], 1), ([2000, 1500], 4), ([90_000], 6)])
def test_ray_is_told_to_run_one_replica_for_so_many_waiting_tokens(queued: list[float], wanted: int) -> None:
    context = SimpleNamespace(
        aggregated_metrics={"queued": dict(enumerate(queued))},
        config=SimpleNamespace(target_ongoing_requests=1000.0),
        capacity_adjusted_min_replicas=1,
        capacity_adjusted_max_replicas=6,
    )
    assert scale(context) == (wanted, {})
