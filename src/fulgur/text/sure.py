"""How much of a completion is worth showing: its beginning, as far as the model is sure of it.

The probability of a line is the product of its tokens' probabilities and falls with each. Where it falls below a limit
the text ends, at the end of a word. Most lines have a beginning that is clear and an end that is not.
"""

from __future__ import annotations

import math
import re

SURE = 0.88  # least probability of what is shown (`fulgur eval model`: see docs/model.md)
LEAST = 3  # characters: less is not worth a look, unless it ends the line


class SureText:
    """Takes the pieces of a completion as they come. `text` is what may be shown once nothing more is taken."""

    def __init__(self, least: float) -> None:
        self._least = math.log(least) if least > 0 else -math.inf
        self._taken = ""  # as far as it is sure
        self._whole_words = ""  # of it
        self._over = False

    def add(self, piece: str, log_probability: float) -> bool:
        """Take the next piece, with the probability of everything so far; False: nothing further can be shown."""
        if self._over or not piece:
            return not self._over
        if not (re.match(r"\w", piece) and re.search(r"\w\Z", self._taken)):
            self._whole_words = self._taken
        self._over = log_probability < self._least
        if not self._over:
            self._taken += piece
        return not self._over

    def text(self, log_probability: float, *, ended: bool) -> str:
        """What to show, once the answer ended by itself or was cut off; the probability is that of all of it."""
        if not self._over and log_probability >= self._least:
            return self._taken
        shown = (self._taken if ended and not self._over else self._whole_words).rstrip()
        return shown if len(shown.strip()) >= LEAST else ""
