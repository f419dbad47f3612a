"""A chat model with random weights and a long context: real in everything but sense. For measurements and tests."""

from __future__ import annotations

import json
from pathlib import Path

import fulgur
from fulgur.model.config import ModelConfig
from fulgur.model.random import random_model, write_hf_folder

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>")

TEMPLATE = """\
{%- if tools %}<|im_start|>system
{% if messages[0].role == 'system' %}{{ messages[0].content }}

{% endif %}# Tools
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}For a call write <tool_call>{"name": …, "arguments": …}</tool_call><|im_end|>
{% elif messages[0].role == 'system' %}<|im_start|>system
{{ messages[0].content }}<|im_end|>
{% endif %}
{%- for message in messages %}
{%- if message.role == 'tool' %}<|im_start|>user
<tool_response>
{{ message.content }}
</tool_response><|im_end|>
{% elif message.role != 'system' or not loop.first %}<|im_start|>{{ message.role }}
{{ message.content }}
{%- for call in message.tool_calls or [] %}
<tool_call>
{{ {"name": call.function.name, "arguments": call.function.arguments} | tojson }}
</tool_call>
{%- endfor %}<|im_end|>
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def write_chat_model(
    folder: Path, *, context: int = 65_536, d_model: int = 128, n_layers: int = 2, vocab: int = 2048, seed: int = 0
) -> Path:
    """Write a model folder: random weights, a byte-level vocabulary made from this package's own source, ChatML."""
    size = _write_tokenizer(folder, vocab)
    config = ModelConfig(
        family="qwen2",
        vocab_size=size,
        d_model=d_model,
        n_layers=n_layers,
        n_heads=d_model // 32,
        n_kv_heads=max(1, d_model // 64),
        head_dim=32,
        d_ffn=d_model * 2,
        norm_eps=1e-6,
        rope_theta=1_000_000.0,
        rope_scaling=None,
        max_context=context,
        tied=True,
        eos_ids=(2,),
    )
    write_hf_folder(folder, config, random_model(config, seed))
    return folder


def _write_tokenizer(folder: Path, vocab: int) -> int:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

    folder.mkdir(parents=True, exist_ok=True)
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=[AddedToken(text, special=not text.endswith("tool_call>")) for text in SPECIAL],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    sources = sorted((Path(fulgur.__file__).parent / "protocol").glob("*.py"))
    backend.train_from_iterator([source.read_text(encoding="utf-8") for source in sources], trainer)
    backend.save(str(folder / "tokenizer.json"))
    settings = {"eos_token": "<|im_end|>", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return int(backend.get_vocab_size())
