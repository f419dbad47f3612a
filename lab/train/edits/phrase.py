"""Instructions as developers write them: phrasings from text files, filled with arguments, with some human noise."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from lab.train.edits.paraphrase import CASUAL, SHARE, casual, paraphrase
from lab.train.edits.values import WORDS

TRAINING = "training"  # the file of phrasings used only in training
ALIKE = 0.7  # fraction of common words above which such a phrasing is left out as too similar to a held-out one
HELDOUT_EVERY = 5  # phrasings 4, 9, 14 … of each list are never trained on, unless another list trains the same words
SLOT = re.compile(r"\{(\w+)\}")
# Slots that form one piece of code, such as `{param}: {type} = {value}`, are quoted as one.
SPAN = re.compile(r"@?\{\w+\}(?:(?:: ?| = |=|\.)\{\w+\})*")
PLAIN = {"kind", "word", "jump", "level", "text"}
BARE = {"change_default", "change_value", "change_argument", "add_keyword_argument", "add_parameter", "add_enum_member"}
BARE_SHARE = 0.3
MENTIONS = {"old", "name", "param", "func", "call"}  # existing names, which people sometimes write a little differently


@dataclass(frozen=True)
class Phrasing:
    key: str
    index: int
    text: str
    slots: frozenset[str]
    heldout: bool
    extra: bool = False  # only for training: the evaluation's columns stay what they were


@dataclass(frozen=True)
class Instruction:
    text: str
    phrasing: str
    heldout: bool


def read_lists(file: Path) -> dict[str, list[str]]:
    """Read the lists of one file by key."""
    lists: dict[str, list[str]] = {}
    current: list[str] = []
    for line in file.read_text(encoding="utf-8").splitlines():
        if line.startswith("[") and line.endswith("]"):
            current = lists.setdefault(line.strip("[] "), [])
        elif line.strip() and not line.startswith("# "):
            current.append(line.strip())
    return lists


@cache
def phrasings() -> dict[str, tuple[Phrasing, ...]]:
    """All phrasings by key: `operation` or `operation.variant`."""
    lists: dict[str, list[str]] = {}
    more: dict[str, list[str]] = {}
    for file in sorted((Path(__file__).parent / "phrasings").glob("*.txt")):
        for key, texts in read_lists(file).items():
            (more if file.stem == TRAINING else lists).setdefault(key, []).extend(texts)
    trained = {text for found in lists.values() for i, text in enumerate(found) if (i + 1) % HELDOUT_EVERY}
    found = {
        key: [
            Phrasing(key, i, text, frozenset(SLOT.findall(text)), text not in trained) for i, text in enumerate(texts)
        ]
        for key, texts in lists.items()
    }
    back = [set(words(p.text).split()) for group in found.values() for p in group if p.heldout]
    for key, texts in more.items():
        known = found.setdefault(key, [])
        for text in texts:
            mine = set(words(text).split())
            if text not in {p.text for p in known} and not any(alike(mine, other) for other in back):
                known.append(Phrasing(key, len(known), text, frozenset(SLOT.findall(text)), False, True))
    return {key: tuple(group) for key, group in found.items()}


def alike(one: set[str], two: set[str]) -> bool:
    """Whether two phrasings have nearly the same words; used to keep training away from held-out ones."""
    return len(one & two) >= ALIKE * len(one | two)


def instruction(
    key: str,
    slots: dict[str, str],
    rng: random.Random,
    *,
    heldout: bool,
    needs: str | None = None,
    vary: bool = False,
) -> Instruction | None:
    """Write one instruction for an operation; `heldout` picks from the held-out phrasings, `needs` requires a slot.

    `vary` puts some into other words, for training, but never into those of a held-out phrasing.
    """
    known = frozenset(name for name, value in slots.items() if value)
    choices = [
        p
        for p in phrasings()[key]
        if p.heldout == heldout and p.slots <= known and (not needs or needs in p.slots) and p.extra <= vary
    ]
    if not choices:
        return None
    chosen = rng.choice(choices)
    template = chosen.text
    if vary and rng.random() < SHARE:
        other = paraphrase(template, rng, verb=template.split(" ")[0] in WORDS["verbs"])
        template = template if words(other) in kept_back() else other
    if vary and rng.random() < CASUAL:
        other = casual(template, rng)
        template = template if words(other) in kept_back() else other
    template = typo(template, rng) if rng.random() < (0.08 if vary else 0.04) else template
    style = rng.random()
    if vary:
        slots = {name: bare(key, name, slots, rng) for name in slots}

    def fill(match: re.Match[str]) -> str:
        names = SLOT.findall(match[0])
        code = SLOT.sub(lambda slot: mention(slot[1], slots[slot[1]], rng), match[0])
        if set(names) <= PLAIN:
            return code
        return quoted(code, style if rng.random() < 0.9 else rng.random())

    text = SPAN.sub(fill, template)
    return Instruction(polite(text, chosen.text, rng), f"{key}:{chosen.index}", chosen.heldout)


def bare(key: str, slot: str, slots: dict[str, str], rng: random.Random) -> str:
    """Sometimes drop a string value's quotes, as people say "default utf-8", where it can only be a string."""
    value = slots[slot]
    if slot not in ("value", "new") or key.split(".")[0] not in BARE or not re.fullmatch(r"([\"'])[^\"'\\]+\1", value):
        return value
    inner = value[1:-1]
    sure = slots.get("old", "")[:1] in ("'", '"') or re.fullmatch(r"[A-Za-z]+[-./ ][A-Za-z\d][\w./ -]*", inner)
    return inner if sure and rng.random() < BARE_SHARE else value


def words(template: str) -> str:
    return " ".join(re.findall(r"[\w{}]+", template.lower()))


@cache
def kept_back() -> frozenset[str]:
    """The held-out phrasings, ignoring punctuation and case."""
    return frozenset(words(p.text) for found in phrasings().values() for p in found if p.heldout)


def mention(slot: str, value: str, rng: random.Random) -> str:
    """Sometimes write an existing name in another case or with spaces for underscores."""
    if slot not in MENTIONS or rng.random() > 0.03 or not value.isidentifier():
        return value
    if "_" in value.strip("_") and rng.random() < 0.6:
        return value.strip("_").replace("_", " ")
    return value.lower()


def quoted(value: str, style: float) -> str:
    """Write a code argument plain, in backticks or in quotes."""
    if style < 0.48:
        return value
    if style < 0.86 or '"' in value or "'" in value:
        return f"`{value}`"
    return f"'{value}'" if style < 0.94 else f'"{value}"'


def polite(text: str, template: str, rng: random.Random) -> str:
    roll = rng.random()
    plain = template.split(" ")[0] in WORDS["verbs"] and not template.endswith(("?", "pls", "please"))
    if plain and roll < 0.05:
        text = f"{rng.choice(['please', 'pls', 'plz'])} {text}"
    elif plain and roll < 0.09:
        text = f"{rng.choice(['can you', 'could you'])} {text}?"
    elif plain and roll < 0.12:
        text = f"{text} {rng.choice(['please', 'pls', 'thanks', 'for me'])}"
    if rng.random() < 0.35 and template[0].isalpha():
        text = text[0].upper() + text[1:]
    if rng.random() < 0.2 and text[-1] not in ".?!":
        text += "."
    return text


def typo(template: str, rng: random.Random) -> str:
    """Swap two letters of one plain word."""
    words = template.split(" ")
    plain = [i for i, word in enumerate(words) if word.isalpha() and len(word) > 4]
    if plain:
        index = rng.choice(plain)
        at = rng.randrange(1, len(words[index]) - 2)
        word = words[index]
        words[index] = word[:at] + word[at + 1] + word[at] + word[at + 2 :]
    return " ".join(words)
