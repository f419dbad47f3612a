"""Code with names that nobody has seen before: what cannot be recalled must be copied letter by letter."""

from __future__ import annotations

import builtins
import keyword
import random
import re
from collections import Counter

SHARE = 0.45  # fraction of the files that examples are made from
MOST = 8  # names to change in one file
ONSETS = (*"bcdfghjklmnprstvwz", "br", "ch", "cl", "dr", "fl", "gr", "pl", "qu", "sh", "sk", "st", "th", "tr")
CORES = ["a", "e", "i", "o", "u", "ai", "ea", "ee", "oo", "ou"]
ENDS = ["", "", "", "n", "r", "s", "t", "l", "m", "ck", "nd", "x"]
FIXED = frozenset(keyword.kwlist) | frozenset(dir(builtins)) | {"self", "cls", "logger", "logging", "typing"}


def word(rng: random.Random) -> str:
    """A pronounceable word of one to three syllables."""
    return "".join(rng.choice(ONSETS) + rng.choice(CORES) + rng.choice(ENDS) for _ in range(rng.choice((1, 2, 2, 3))))


def new_name(rng: random.Random, like: str = "") -> str:
    """A name of one or two words, at least one of them new; in upper or camel case if the example is."""
    parts = [word(rng)]
    if rng.random() < 0.5:
        parts.append(rng.choice(["count", "list", "name", "map", "id", "value", "key", word(rng)]))
        rng.shuffle(parts)
    bare = like.lstrip("_")
    if bare.isupper():
        name = "_".join(parts).upper()
    elif bare[:1].isupper():
        name = "".join(part.title() for part in parts)
    else:
        name = "_".join(parts)
    return "_" * (like.startswith("_") and not like.startswith("__")) + name


def misspelt(name: str, rng: random.Random) -> str:
    """One letter is doubled, dropped, swapped with the next or replaced."""
    at = rng.randrange(1, len(name) - 1)
    kind = rng.randrange(4)
    if kind == 0:
        return name[:at] + name[at] + name[at:]
    if kind == 1:
        return name[:at] + name[at + 1 :]
    if kind == 2:
        return name[:at] + name[at + 1] + name[at] + name[at + 2 :]
    return name[:at] + rng.choice("abcdefghijklmnopqrstuvwxyz") + name[at + 1 :]


def strange_names(text: str, rng: random.Random) -> str:
    """Change some of the repeated names everywhere in the text, including strings and comments."""
    counted = Counter(re.findall(r"\b[A-Za-z_]\w{3,}\b", text))
    repeated = [name for name, count in counted.items() if count > 1 and name not in FIXED and "__" not in name]
    chosen = rng.sample(repeated, min(len(repeated), rng.randint(2, MOST)))
    changed: dict[str, str] = {}
    for name in chosen:
        other = misspelt(name, rng) if rng.random() < 0.5 else new_name(rng, name)
        if other.isidentifier() and other not in counted and other not in FIXED:
            changed[name] = other
    if not changed:
        return text
    pattern = re.compile(r"\b(?:" + "|".join(map(re.escape, changed)) + r")\b")
    return pattern.sub(lambda match: changed[match[0]], text)
