"""The drafters: what they guess, and how they find their way back."""

from __future__ import annotations

import random

import pytest

from fulgur.engine.speculate.ngram import NgramDrafter
from fulgur.engine.speculate.source import PRIOR, SourceDrafter


def replay(source: list[int], output: list[int], width: int = 8) -> tuple[int, int]:
    """Write `output` with drafts from `source` verified `width` at a time; (steps, tokens drafted)."""
    tokens: list[int] = [900, 901]
    drafter = SourceDrafter(source, tokens)
    steps = drafted = done = 0
    while done < len(output):
        drafter.follow()
        draft = drafter.draft(width) if drafter.run >= 0 else []
        assert len(draft) <= width
        drafted += len(draft)
        taken = 1
        for guess, token in zip(draft, output[done:], strict=False):
            if guess != token:
                break
            taken += 1
        tokens += output[done : done + taken]
        done += taken
        steps += 1
    return steps, drafted


def code(seed: int, length: int) -> list[int]:
    """Tokens with the repetitiveness of code: few common ones, many names."""
    rng = random.Random(seed)
    return [rng.choice((1, 2, 3, 4)) if rng.random() < 0.4 else rng.randrange(10, 200) for _ in range(length)]


def test_a_copy_is_drafted_whole() -> None:
    source = code(1, 160)
    steps, _ = replay(source, source)
    assert steps == 18  # 9 tokens a step: 8 drafted, and the one after them


@pytest.mark.parametrize("seed", range(10))
def test_it_finds_back_after_an_insertion(seed: int) -> None:
    source = code(seed, 200)
    new = [500 + i for i in range(12)]
    steps, _ = replay(source, source[:90] + new + source[90:])
    assert steps <= 12 + 200 // 9 + 6


@pytest.mark.parametrize("seed", range(10))
def test_it_finds_back_after_a_deletion(seed: int) -> None:
    source = code(seed, 200)
    steps, _ = replay(source, source[:90] + source[120:])
    assert steps <= 170 // 9 + 7


@pytest.mark.parametrize("seed", range(10))
def test_it_finds_back_far_away(seed: int) -> None:
    """A block moved to the front, further than the window reaches."""
    source = code(seed, 400)
    steps, _ = replay(source, source[300:] + source[:300])
    assert steps <= 400 // 9 + 14


@pytest.mark.parametrize(("old", "new"), [([7], [8]), ([7, 7], [8, 9, 8]), ([5, 6, 7], [9]), ([7], [8, 9, 9, 8])])
def test_a_rename_is_learnt_and_proposed(old: list[int], new: list[int]) -> None:
    rng = random.Random(3)
    source: list[int] = []
    output: list[int] = []
    for _ in range(20):
        between = [rng.randrange(20, 200) for _ in range(9)]
        source += between + old
        output += between + new
    steps, _ = replay(source, output, width=16)
    perfect = len(output) / 17
    assert steps <= perfect + 8
    tokens: list[int] = [900]
    drafter = SourceDrafter(source, tokens)
    tokens += output[: 9 + len(new) + 5]
    drafter.follow()
    assert drafter.draft(4 + len(new) + 2) == output[len(tokens) - 1 :][: 4 + len(new) + 2]


def test_a_rename_that_was_wrong_is_given_up() -> None:
    source = [1, 2, 50, 3, 4, 5, 50, 6, 7, 8, 50, 9, 10, 11, 50, 12]
    output = [1, 2, 60, 3, 4, 5, 50, 6, 7, 8, 50, 9, 10, 11]
    tokens: list[int] = []
    drafter = SourceDrafter(source, tokens)
    tokens += output
    drafter.follow()
    assert drafter.draft(2) == [50, 12]


def test_text_unlike_the_source_makes_it_silent() -> None:
    tokens: list[int] = [1]
    drafter = SourceDrafter(code(1, 100), tokens)
    for token in range(1000, 1010):
        tokens.append(token)
        drafter.follow()
    assert drafter.run == -1 and drafter.draft(8) == []
    assert drafter.acceptance.chance(0) < PRIOR[0]


def test_restart_follows_from_the_beginning() -> None:
    source = code(2, 50)
    tokens: list[int] = []
    drafter = SourceDrafter(source, tokens)
    tokens += source[:30]
    drafter.follow()
    assert drafter.draft(3) == source[30:33]
    tokens += [700, 701]
    drafter.restart()
    assert drafter.draft(3) == source[:3]


def naive_guess(tokens: list[int]) -> int | None:
    """The token after the last earlier occurrence of the last three, or else of the last one."""
    for length in (3, 1):
        for end in range(len(tokens) - 1, length - 1, -1):
            if tokens[end - length : end] == tokens[-length:]:
                return tokens[end]
    return None


@pytest.mark.parametrize("seed", range(20))
def test_the_ngram_drafter_speaks_when_there_is_a_match(seed: int) -> None:
    rng = random.Random(seed)
    tokens = [rng.randrange(12) for _ in range(rng.randrange(0, 40))]
    drafter = NgramDrafter(tokens)
    for _ in range(100):
        tokens += [rng.randrange(12) for _ in range(rng.randrange(1, 4))]
        drafter.follow()
        assert (drafter.run >= 0) == (naive_guess(tokens) is not None)
        draft = drafter.draft(6)
        assert len(draft) == (6 if drafter.run >= 0 else 0)
        if (
            draft
        ):  # the guess continues an earlier occurrence of as many tokens as it says agree, and goes on from there
            agree = drafter.run + 1
            joined = tokens + draft
            places = [i for i in range(agree, len(tokens)) if tokens[i - agree : i] == tokens[-agree:]]
            assert any(joined[i : i + 6] == draft for i in places)


def test_a_longer_match_is_preferred_to_a_later_one() -> None:
    tokens = [1, 2, 3, 70, 9, 3, 80, 1, 2, 3]
    drafter = NgramDrafter(tokens)
    drafter.follow()
    assert drafter.run == 2 and drafter.draft(1) == [70]


def test_following_late_is_following() -> None:
    """It may be asked rarely: what it guesses then is what it would guess had it always been asked."""
    rng = random.Random(5)
    for _ in range(50):
        text = [rng.randrange(30) for _ in range(60)]
        tokens: list[int] = []
        late = NgramDrafter(tokens)
        tokens += text + text[20:40]
        late.follow()
        assert late.draft(8) == text[40:48] and late.run >= 15


def test_a_loop_is_drafted_beyond_its_end() -> None:
    tokens = [9, 1, 2, 3, 1, 2, 3, 1, 2, 3]
    drafter = NgramDrafter(tokens)
    drafter.follow()
    assert drafter.draft(7) == [1, 2, 3, 1, 2, 3, 1]
