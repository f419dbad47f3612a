"""`python -m lab.train run --hybrid`: the hybrid alone, from archives to pieces and the fractions of right guesses."""

from __future__ import annotations

from lab.train.run import Pipeline, python

MORE_PASSES = 2  # over every part, cut differently, once all parts are there
EDIT_SECONDS = 110  # for the edits of one part


class HybridPipeline(Pipeline):
    def go(self) -> bool:
        """Run one stage on the GPU; rows are made in parallel for as long as it trains."""
        for name in ("finished", "failed"):
            (self.folder / name).unlink(missing_ok=True)
        rows = self.scheduler.start(self.rows)
        trained = self.hybrid()
        interrupted = self.scheduler.stopping
        self.scheduler.stop()
        rows.result()
        self.scheduler.stopping = interrupted
        if interrupted:
            self.scheduler.say("stopped; the same command resumes from here")
            return False
        pieces = python("export", "pieces", "--run", self.folder, "--stage", "hybrid", "--precision", "bf16")
        exported = self.scheduler.attempt("export", [*pieces, "--out", "out"])
        self.scheduler.attempt("acceptance", python("acceptance", "--run", ".", "--out", "out/acceptance.json"))
        self.pack_logs()
        self.scheduler.say("finished")
        (self.folder / "finished").touch()
        return trained and exported

    def hybrid(self) -> bool:
        options: list[object] = ["--shape", self.args.shape]
        if self.args.init:
            options += ["--init", self.folder / "init"]
        return self.stage("hybrid", self.ends.distil, *options)

    def rows(self) -> bool:
        done = self.rows_as_they_arrive()
        for number in range(self.args.parts, self.args.parts * (1 + MORE_PASSES)):
            for kind in ("code", "fim"):
                if self.scheduler.stopping:
                    return done
                self.make(kind, f"rows-{kind}-{number}", "--parts", self.args.parts, "--first-pass", number, nice=10)
        return done

    def make_part_of_edits(self, number: int, one: list[object]) -> bool:
        options = [*one, "--minutes", EDIT_SECONDS / 60]
        return self.make("edits", f"rows-edits-{number}", *options, nice=5, seconds=EDIT_SECONDS + 60)
