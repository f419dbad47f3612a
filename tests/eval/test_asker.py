"""The model in this process, as evaluation asks it."""

from __future__ import annotations

import shutil
from dataclasses import replace

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
    return completion_request(asker.count, asker.context, "a.py", prefix, suffix, 12, one_line=one_line)


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
def test_a_sign_before_the_cursor_is_given_back_to_the_model() -> None:
    asker = Asker(embedded_models()[0])
    prompt = completion(asker, "import os\nhome = os.path.", "\n", one_line=True)
    assert prompt.begins == "." and prompt.plain is not None and "import os\nhome = os.path" in prompt.pieces
    [reply] = asker.ask([prompt])
    assert reply.text and "\n" not in reply.text and not reply.text.startswith(".")
    assert completion(asker, "x = value\n    ", "", one_line=True).plain is None
    assert completion(asker, "x = val", "", one_line=True).plain is None
    assert completion(asker, "x = f(", "").plain is None
    # An answer that does not go on with the sign is asked for again, with the sign in the prompt.
    other = replace(prompt, begins="\0")
    assert asker.ask([other])[0].text == asker.ask([prompt.plain])[0].text
