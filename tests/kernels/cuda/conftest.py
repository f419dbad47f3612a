import os
from pathlib import Path

import pytest

# Some hypervisors hide the AMX tile sizes: oneDNN then dies on an illegal instruction. Read before torch is imported.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # tiny tensors: a second thread only waits


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the emulated sources are built: the same model and driver are built once, for all workers."""
    base = tmp_path_factory.getbasetemp()
    shared = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "emulated"
    shared.mkdir(exist_ok=True)
    return shared
