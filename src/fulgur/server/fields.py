"""What each door takes, and the one rule for what it does not.

A field of a request is
- honoured: it is in the request's struct (`protocol/request.py`), and does what it says;
- idle: it does not affect the answer (who asks, how long something is kept elsewhere), so it is accepted;
- not offered: it asks for something that this server does not do: a 400 that names it, and says what to do instead.
  A value that asks for nothing (null, false, empty, or the default in the table) is accepted;
- unknown: accepted, so that newer clients work, and named in the answer's header `x-fulgur-ignored` and in the log.

An upstream that speaks the door's own dialect gets the last two unchanged and decides for itself, except for `HERE`:
those concern the conversation, which this server holds.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from fulgur.protocol import request as bodies
from fulgur.protocol.errors import invalid
from fulgur.server.registry import ServedModel

log = logging.getLogger("fulgur.server")

IGNORED = "x-fulgur-ignored"
HERE = ("conversation", "context_management", "truncation", "store")
EMPTY_ASKS = ("web_search_options",)  # for these {} is a request too: it asks for the default
_MOST_LOGGED = 100
_logged: set[str] = set()


@dataclass(frozen=True)
class Door:
    """The fields of one kind of request beside the honoured ones."""

    dialect: str  # its API; an upstream with the same one gets what is not known here
    idle: frozenset[str]
    not_offered: dict[str, str]  # what to do instead
    defaults: dict[str, Any]


_WHO = ("user", "safety_identifier", "metadata", "prompt_cache_retention", "prompt_cache_options")
_NO_HOSTED = "it needs a tool that runs on OpenAI's servers"
_NO_MODERATION = "this server does not moderate"
_USE_PREVIOUS = "continue with 'previous_response_id'"
_USE_COMPACT = "call /v1/responses/compact"
_USE_FORMAT = "send 'response_format' to /v1/chat/completions"

DOORS: dict[type[bodies.Body], Door] = {
    bodies.CreateRequest: Door(
        "responses",
        frozenset({"type", "stream_options", "user", "prompt_cache_retention", "access_programs", "prefill_id"}),
        {
            "conversation": _USE_PREVIOUS,
            "context_management": _USE_COMPACT,
            "truncation": f"nothing is dropped silently; {_USE_COMPACT}",
            "prompt": "send the text of the template as 'input' or 'instructions'",
            "moderation": _NO_MODERATION,
            "image": "images are passed on unchanged",
            "logprobs": "send 'top_logprobs'",
            "n": "send several requests",
            "prediction": "/v1/chat/completions accepts it",
            "response_format": "send 'text.format'",
            "max_tokens": "send 'max_output_tokens'",
            "messages": "send 'input'",
            "multi_agent": "send the agents' requests one by one",
        },
        {"truncation": "disabled", "n": 1},
    ),
    bodies.CompactRequest: Door("responses", frozenset({*_WHO, "prompt_cache_key", "service_tier"}), {}, {}),
    bodies.ChatRequest: Door(
        "chat",
        frozenset(_WHO),
        {
            "functions": "send 'tools'",
            "function_call": "send 'tool_choice'",
            "audio": "ask for text",
            "modalities": "ask for text",
            "web_search_options": _NO_HOSTED,
            "moderation": _NO_MODERATION,
            "store": "use /v1/responses, which keeps what it answers",
            "guided_whitespace_pattern": "JSON is written without optional white space",
            "use_beam_search": "ask for 'n' answers",
            "continue_final_message": "use /v1/responses with a last message of status 'in_progress'",
        },
        {"modalities": ["text"]},
    ),
    bodies.CompletionRequest: Door(
        "completions",
        frozenset({*_WHO, "prompt_cache_key"}),
        {
            "guided_json": _USE_FORMAT,
            "guided_regex": _USE_FORMAT,
            "guided_choice": _USE_FORMAT,
            "guided_grammar": _USE_FORMAT,
            "structured_outputs": _USE_FORMAT,
            "response_format": _USE_FORMAT,
            "use_beam_search": "ask for 'n' answers",
        },
        {},
    ),
}


def settle(body: bodies.Body, entry: ServedModel, door: Door | None = None) -> tuple[dict[str, Any], list[str]]:
    """The fields of the body's rest that go to the upstream unchanged, and the names of those that are ignored."""
    door = door or DOORS[type(body)]
    given = {name: value for name, value in body.rest.items() if name not in door.idle}
    upstream = entry.backend.kind == "upstream" and door.dialect in entry.backend.dialects
    passed: dict[str, Any] = {}
    unknown: list[str] = []
    for name, value in given.items():
        if upstream and name not in HERE:
            passed[name] = value
        elif name not in door.not_offered:
            unknown.append(name)
        elif value not in (None, False, [], door.defaults.get(name)) and (value != {} or name in EMPTY_ASKS):
            raise invalid(f"'{name}' is not offered here: {door.not_offered[name]}.", name, "unsupported_parameter")
    return passed, ignored(unknown)


def ignored(names: Iterable[str]) -> list[str]:
    """The names, made safe for a header; each is logged once."""
    said = [name[:64] if name.isascii() and name.isprintable() else ascii(name)[:64] for name in names][:32]
    for name in said:
        if name not in _logged and len(_logged) < _MOST_LOGGED:
            _logged.add(name)
            log.warning("ignored unknown field '%s'", name)
    return said
