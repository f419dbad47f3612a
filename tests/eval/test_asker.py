"""The model in this process, as evaluation asks it."""

from __future__ import annotations

import shutil

import pytest

from fulgur.errors import FulgurError
from fulgur.eval.asker import Asker
from fulgur.model.random import random_model, tiny_config, write_hf_folder
from fulgur.text.code_prompt import CodePrompt, completion_request, edit_request
from fulgur.text.edit_format import encode_pieces
from fulgur.workspace.folders import TOKENIZER, embedded_models


@pytest.fixture(scope="module")
def random(tmp_path_factory: pytest.TempPathFactory) -> Asker:
    folder = tmp_path_factory.mktemp("model")
    config = tiny_config("fulgur", vocab_size=8192, max_context=1024)
    write_hf_folder(folder, config, random_model(config, 1))
    shutil.copy(TOKENIZER, folder)
    return Asker(folder)


def completion(asker: Asker, prefix: str, suffix: str, *, one_line: bool = False) -> CodePrompt:
    first = asker.suffix_first
    return completion_request(
        asker.count, asker.context, "a.py", prefix, suffix, 12, one_line=one_line, suffix_first=first
    )


def test_several_prompts_at_once_answer_as_one_by_one(random: Asker) -> None:
    prompts = [completion(random, f"x{i} = ", "\n") for i in range(4)]
    together = [answer.text for answer in random.ask(prompts)]
    assert together == [random.ask([prompt])[0].text for prompt in prompts]


def test_a_region_larger_than_the_context_is_refused(random: Asker) -> None:
    with pytest.raises(FulgurError, match="too large"):
        edit_request(random.count, random.context, "a.py", "", "value = 1\n" * 300, "", "x")
    around = "above\n" * 2000, "value = 1\n", "below\n" * 2000
    prompt = edit_request(random.count, random.context, "a.py", *around, "x")
    assert len(encode_pieces(random.tokenizer, prompt.pieces)) + prompt.max_tokens <= random.context


@pytest.mark.skipif(not embedded_models(), reason="this checkout has no embedded model")
def test_a_cursor_inside_a_word_or_at_column_0_is_healed() -> None:
    asker = Asker(embedded_models()[0])
    above = "import os\n\n\ndef home() -> str:\n"
    cursors = {"    retu": "rn os", "    return os.pat": "h.", "": "    "}
    prompts = [completion(asker, above + typed, "\n", one_line=True) for typed in cursors]
    assert [prompt.begins for prompt in prompts] == ["\n    retu", ".pat", "\n"]
    for reply, begins in zip(asker.ask(prompts), cursors.values(), strict=True):
        assert reply.text.startswith(begins) and "\n" not in reply.text
        assert reply.log_probability < 0.0 and "".join(piece for piece, _ in reply.pieces) == reply.text
        assert reply.sure(0.0) == reply.text and reply.text.startswith(reply.sure(0.5))
