"""Finds llama.cpp's fastest settings for decoding and for prompts; each is tried in a separate process."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path

from fulgur.bench.peer import Settings
from fulgur.bench.worker import Worker, WorkerDied


@dataclass
class PeerChoice:
    """`best`: seconds and settings, by what they are best at; `died`: the settings with which it does not run."""

    path: Path
    context: int  # tokens of its cache
    best: dict[str, tuple[float, Settings]] = field(default_factory=dict)
    died: list[str] = field(default_factory=list)

    def attempt(self, settings: Settings, length: int, repeat: int) -> None:
        """Time a prompt of `length` tokens and eight tokens after it with these settings; decode is the best of
        `repeat`."""
        worker = None
        try:
            worker = self.start(settings, self.path)
            decode = min(worker.call("decode", context=length, count=8, repeat=repeat))
            prefill = min(worker.call("prefill", count=length, repeat=2))
        except WorkerDied as error:
            self.died.append(f"{settings} ({error})")
            return
        finally:
            if worker is not None:
                worker.close()
        for kind, seconds in (("decode", decode), ("prefill", prefill)):
            if kind not in self.best or seconds < self.best[kind][0]:
                self.best[kind] = (seconds, settings)

    def start(self, settings: Settings, path: Path) -> Worker:
        return Worker("fulgur.bench.peer", path=str(path), context=self.context, **asdict(settings))

    def notes(self, label: str) -> list[str]:
        notes = [f"{label}: llama.cpp died with: {'; '.join(self.died)}"] if self.died else []
        if not self.best:
            notes.append(f"{label}: llama.cpp ran with no setting, so there is no comparison")
        return notes + [f"{label}: llama.cpp's fastest {kind}: {settings}" for kind, (_, settings) in self.best.items()]
