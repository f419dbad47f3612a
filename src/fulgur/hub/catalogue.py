"""A dozen open coder models: where they are, under which licence, and what a token costs to read.

Sizes are computed from the shapes, rounded; `pull` asks the hub for the exact ones. `read_gb` is what one token reads
of the weights as they are stored (on a GPU), `read_gb_4` after quantising to 4 bits with an 8-bit head (on a CPU).
"""

from __future__ import annotations

from dataclasses import dataclass

from fulgur.errors import UsageError


@dataclass(frozen=True, slots=True)
class Entry:
    """One model of the catalogue; sizes in GB of 10^9 bytes, parameters in 10^9."""

    name: str
    repo: str
    family: str
    parameters: float
    disk_gb: float
    read_gb: float
    read_gb_4: float
    kv_bytes: int  # per token, in bf16
    context: int
    licence: str
    experts: bool
    state_mb: int  # recurrent state of a sequence

    @property
    def memory_gb_4(self) -> float:
        """The memory of the weights in 4 bits: groups of 64 with an fp16 scale, and a margin for the wider head."""
        return self.parameters * 0.55


# Parameters in 10^9; disk, read and read4 in GB; kv in bytes a token; state in MB a sequence.
_TABLE = """
name                 repository                                    family       params  disk  read  read4  kv      context  experts  state  licence
qwen2.5-coder-1.5b   Qwen/Qwen2.5-Coder-1.5B-Instruct              qwen2        1.5     3.1   3.1   0.93   28672   32768    no       0      Apache-2.0
qwen2.5-coder-7b     Qwen/Qwen2.5-Coder-7B-Instruct                qwen2        7.6     15.2  14.1  4      57344   32768    no       0      Apache-2.0
qwen2.5-coder-14b    Qwen/Qwen2.5-Coder-14B-Instruct               qwen2        14.8    29.5  28    7.8    196608  32768    no       0      Apache-2.0
qwen2.5-coder-32b    Qwen/Qwen2.5-Coder-32B-Instruct               qwen2        32.8    65.5  64    17.4   262144  32768    no       0      Apache-2.0
qwen3-4b             Qwen/Qwen3-4B-Instruct-2507                   qwen3        4       8     8     2.3    147456  262144   no       0      Apache-2.0
qwen3-8b             Qwen/Qwen3-8B                                 qwen3        8.2     16.4  15.1  4.3    147456  40960    no       0      Apache-2.0
qwen3-coder-30b-a3b  Qwen/Qwen3-Coder-30B-A3B-Instruct-FP8         qwen3_moe    30.5    31.2  3.05  1.79   98304   262144   yes      0      Apache-2.0
qwen3.6-35b-a3b      Qwen/Qwen3.6-35B-A3B-FP8                      qwen3_5_moe  35      37.5  3.09  1.98   20480   262144   yes      64     Apache-2.0
qwen3.6-27b          Qwen/Qwen3.6-27B-FP8                          qwen3_5      27      31    25.9  14.6   65536   262144   no       154    Apache-2.0
qwen3-coder-next     Qwen/Qwen3-Coder-Next-FP8                     qwen3_next   80      82    3.76  2.27   24576   262144   yes      77     Apache-2.0
gpt-oss-20b          openai/gpt-oss-20b                            gpt_oss      20.9    13.8  3.71  1.92   24576   131072   yes      0      Apache-2.0
gpt-oss-120b         openai/gpt-oss-120b                           gpt_oss      116.8   65.2  5     2.75   36864   131072   yes      0      Apache-2.0
devstral-small-2     mistralai/Devstral-Small-2-24B-Instruct-2512  ministral3   24      25.8  22.9  12.5   163840  262144   no       0      Apache-2.0
ministral-3-8b       mistralai/Ministral-3-8B-Instruct-2512        ministral3   8.9     10.4  8     4.5    139264  262144   no       0      Apache-2.0
"""  # noqa: E501


def _entry(line: str) -> Entry:
    name, repo, family, parameters, disk, read, read4, kv, context, experts, state, licence = line.split()
    sizes = (float(parameters), float(disk), float(read), float(read4))
    return Entry(name, repo, family, *sizes, int(kv), int(context), licence, experts == "yes", int(state))


CATALOGUE = [_entry(line) for line in _TABLE.strip().splitlines()[1:]]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to fetch: a repository, which of its files, and the name it gets here."""

    name: str
    repo: str
    files: str = ""  # part of a file name, for a repository of GGUF files in several sizes


def find(text: str) -> Wanted:
    """A name of the catalogue, `OWNER/REPOSITORY`, or `OWNER/REPOSITORY:PART` (`…-GGUF:Q4_K_M`)."""
    for entry in CATALOGUE:
        if entry.name == text.lower():
            return Wanted(entry.name, entry.repo)
    repo, _, files = text.partition(":")
    owner, slash, model = repo.partition("/")
    if slash and owner and model and "/" not in model:
        name = model.lower() + (f"-{files.lower()}" if files else "")
        return Wanted(name, repo, files)
    from difflib import get_close_matches

    near = get_close_matches(text.lower(), [entry.name for entry in CATALOGUE], 3, 0.3)
    raise UsageError(
        f"there is no model {text!r} in the catalogue",
        hint=f"{'Nearest: ' + ', '.join(near) + '. ' if near else ''}Any repository can be named: OWNER/REPOSITORY.",
    )
