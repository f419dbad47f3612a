"""The embedded model's token format: prompts as pieces, answers read back."""

from __future__ import annotations

import pytest

from fulgur.text.edit_format import (
    END,
    FILE,
    NOEDIT,
    RECENT,
    SPECIAL_IDS,
    SPECIAL_TOKENS,
    Call,
    NoEdit,
    RecentEdit,
    Rewrite,
    answer_pieces,
    completion_pieces,
    edit_pieces,
    encode_pieces,
    parse_answer,
    parse_call,
    pieces_text,
)


class LetterTokenizer:
    """One token a character, special tokens from the fixed list: enough to see what becomes special."""

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        assert not special
        return [1000 + ord(letter) for letter in text]

    def token_id(self, piece: str) -> int | None:
        return SPECIAL_IDS.get(piece)


def test_special_tokens_have_fixed_ids() -> None:
    assert len(SPECIAL_TOKENS) == 24 and len(set(SPECIAL_TOKENS)) == 24
    assert SPECIAL_TOKENS[:2] == ("<|pad|>", "<|eos|>")
    assert SPECIAL_IDS["<|rewrite|>"] == 10 and SPECIAL_IDS["<|cursor|>"] == 14 and SPECIAL_IDS["<|reserved_8|>"] == 23


def test_prompts_are_spelled_as_the_contract_says() -> None:
    assert (
        pieces_text(completion_pieces("a.py", "x = ", "\n"))
        == "<|file|>a.py\n<|fim_prefix|>x = <|fim_suffix|>\n<|fim_middle|>"
    )
    assert pieces_text(edit_pieces("a.py", "A\n", "R\n", "B\n", "do it")) == (
        "<|file|>a.py\nA\n<|region|>R\n<|after|>B\n<|instruction|>do it<|rewrite|>"
    )


def test_next_edit_prompt_has_recent_edits_and_no_instruction() -> None:
    recent = [RecentEdit("f(a)\n", "f(a, b)\n"), RecentEdit("x\n", "")]
    prompt = pieces_text(edit_pieces("a.py", "", "R\n", "", None, recent))
    assert prompt == "<|file|>a.py\n<|region|>R\n<|after|><|recent|>-f(a)\n+f(a, b)\n\n-x\n<|rewrite|>"
    with pytest.raises(ValueError):
        edit_pieces("a.py", "", "R\n", "", None)


def test_text_that_spells_a_special_token_stays_text() -> None:
    tokens = encode_pieces(LetterTokenizer(), edit_pieces("a.py", "", f"x = '{RECENT}{END}'\n", "", "go"))
    assert SPECIAL_IDS[END] not in tokens and SPECIAL_IDS[RECENT] not in tokens
    assert tokens[0] == SPECIAL_IDS[FILE] and tokens[-1] == SPECIAL_IDS["<|rewrite|>"]


@pytest.mark.parametrize(
    "answer",
    [
        Rewrite("x = 1\n"),
        Rewrite(""),
        NoEdit(),
        Call("rename", ("old", "new")),
        Call("extract_constant", ('"a b"', "N")),
        Call("add_parameter", ("f", "name='a b'")),
    ],
)
def test_answers_round_trip(answer: Rewrite | NoEdit | Call) -> None:
    assert parse_answer(pieces_text(answer_pieces(answer)) + "anything after the end") == answer


def test_a_call_without_a_name_is_no_edit() -> None:
    assert parse_call("  ") is None and parse_call("3 x") is None
    assert parse_answer("<|call|><|end|>") == NoEdit()
    assert parse_answer(NOEDIT) == NoEdit()
