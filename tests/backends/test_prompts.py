"""A warm turn works on what is new, and its prompt is the one that the whole history gives."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from fulgur.backends.base import LOOK_BACK, Conversation, Turn
from fulgur.backends.prompts import Prompts
from fulgur.bench.chat_model import write_chat_model
from fulgur.engine.load import open_tokenizer
from fulgur.protocol.items import Item


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_chat_model(tmp_path_factory.mktemp("model") / "random", context=4096, d_model=64, n_layers=1)


def an_item(dice: random.Random, number: int) -> Item:
    words = dice.choice(["Hello.", "<|im_", "end|>", "a <|im_end|> b", "ünï", "</think>"])
    match dice.randrange(6):
        case 0 | 1:
            return {"type": "message", "role": dice.choice(["user", "developer"]), "content": words}
        case 2 | 3:
            return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": words}]}
        case 4:
            call = {"name": "run", "arguments": '{"a": "<|im_end|>"}'}
            return {"type": "function_call", "call_id": f"c{number}", **call}
        case _:
            return {"type": "reasoning", "summary": [{"type": "summary_text", "text": words}]}


@pytest.mark.parametrize("seed", range(30))
def test_a_warm_prompt_is_the_cold_one(folder: Path, seed: int) -> None:
    dice = random.Random(seed)
    prompts = Prompts(open_tokenizer(folder), "m")
    chain = Conversation([{"type": "message", "role": "user", "content": "Begin."}])
    for number in range(12):
        chain = chain.extend([an_item(dice, number) for _ in range(dice.randrange(4))])
        warm = prompts.of(Turn(chain, instructions="Be brief."))
        cold = prompts.of(Turn(Conversation(chain.all()), instructions="Be brief."))
        assert warm.text == cold.text
        if dice.random() < 0.2:  # a turn that another one forks from
            prompts.of(Turn(chain.extend([{"type": "message", "role": "user", "content": "Something else."}])))


def test_old_parts_let_go_of_what_they_held(folder: Path) -> None:
    prompts = Prompts(open_tokenizer(folder), "m")
    chain = Conversation([{"type": "message", "role": "user", "content": "Begin."}])
    for number in range(40):
        chain = chain.extend([{"type": "message", "role": "user", "content": f"And {number}?"}])
    prompts.of(Turn(chain))
    chain = chain.extend([{"type": "message", "role": "user", "content": "Last."}])
    prompts.of(Turn(chain))
    assert all(set(part.memo) <= {"size"} for part in chain.chain()[:-LOOK_BACK])
