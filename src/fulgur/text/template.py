"""Chat templates: messages to the prompt text a model was trained on.

Templates are untrusted jinja2, so they run in a sandbox that cannot change what it is given. Settings, filters and
globals are those of transformers, so that a template renders the same here as there.
"""

from __future__ import annotations

import functools
import json
import traceback
from datetime import datetime
from typing import TYPE_CHECKING, Any, NoReturn

from fulgur.errors import FulgurError

if TYPE_CHECKING:
    from jinja2 import Template
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    from fulgur.text.tokenizer import Tokenizer

_REASONING_KEYS = ("reasoning_content", "thinking", "reasoning")


class ChatTemplate:
    """One template. `variables` are added to every rendering (`bos_token`, `eos_token`, …)."""

    def __init__(self, source: str, variables: dict[str, str] | None = None, *, name: str = "chat template") -> None:
        self.source = source
        self.name = name
        self._variables = dict(variables or {})
        self._template = self._compile(source)

    @classmethod
    def of(cls, tokenizer: Tokenizer, *, tools: bool = False) -> ChatTemplate:
        """A model's own template; the one named `tool_use`, where there is one, if tools are given."""
        name = "tool_use" if tools and "tool_use" in tokenizer.chat_templates else "default"
        if name not in tokenizer.chat_templates:
            others = ", ".join(sorted(tokenizer.chat_templates))
            raise FulgurError(
                "The model has no chat template." + (f" Its templates are: {others}." if others else ""),
                hint="Use a chat or instruct model, or put a chat_template.jinja into its folder.",
            )
        return cls(tokenizer.chat_templates[name], tokenizer.special_names, name=f"chat template {name!r}")

    def render(
        self,
        messages: list[dict[str, Any]],
        *,
        tools: list[dict[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        prepared: bool = False,
        **extra: Any,
    ) -> str:
        """The prompt for these messages. `extra` are the template's own variables, such as `enable_thinking`.

        Arguments of tool calls may be JSON text, as clients send them; templates want objects and get them, unless
        the messages are `prepared` already.
        """
        from jinja2 import TemplateError

        values = {
            **self._variables,
            "messages": messages if prepared else [self.prepared(message) for message in messages],
            "tools": tools or None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
            **extra,
        }
        try:
            return self._template.render(values)
        except _Refused as refusal:
            self._fail(refusal, f"refuses these messages: {refusal}", MessagesRefused)
        except TemplateError as error:
            self._fail(error, f"failed: {error}")
        except Exception as error:  # whatever the template's code ran into
            self._fail(error, f"failed: {type(error).__name__}: {error}")

    def _compile(self, source: str) -> Template:
        from jinja2 import TemplateSyntaxError

        try:
            return _environment().from_string(source)
        except TemplateSyntaxError as error:
            where = f"line {error.lineno}: {error.message}\n  {_line(source, error.lineno)}"
            raise FulgurError(
                f"The {self.name} has a mistake in {where}",
                hint="Fix chat_template.jinja (or `chat_template` in tokenizer_config.json).",
            ) from None

    @staticmethod
    def prepared(message: dict[str, Any]) -> dict[str, Any]:
        """A copy with tool-call arguments as objects and the reasoning under each name that templates read."""
        prepared = dict(message)
        if isinstance(calls := prepared.get("tool_calls"), list):
            prepared["tool_calls"] = [_with_object_arguments(call) for call in calls]
        reasoning = next((message[key] for key in _REASONING_KEYS if message.get(key) is not None), None)
        if reasoning is not None:
            prepared.setdefault("thinking", reasoning)
            prepared["reasoning_content"] = reasoning
        return prepared

    def _fail(self, error: Exception, what: str, kind: type[FulgurError] = FulgurError) -> NoReturn:
        """Raise with the line of the template that was running; jinja2 rewrites the traceback to say it."""
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == "<template>"]
        line = frames[-1].lineno if frames else None
        where = f" (line {line})\n  {_line(self.source, line)}" if line else ""
        raise kind(f"The {self.name} {what}{where}") from None


class MessagesRefused(FulgurError):
    """The model's template does not take these messages: their sender can change them."""


class _Refused(Exception):
    """The template called `raise_exception`."""


def _refuse(message: str) -> NoReturn:
    raise _Refused(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """jinja2's own filter escapes HTML, which no model was trained on."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


@functools.cache
def _environment() -> ImmutableSandboxedEnvironment:
    from jinja2 import nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """`{% generation %}` marks the answer for training; here its body is simply rendered."""

        tags = {"generation"}  # noqa: RUF012  (jinja2's interface)

        def parse(self, parser: Parser) -> nodes.Node:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            # A scope of its own, as in transformers: what is set inside does not leak out.
            return nodes.Scope(body, lineno=line)

    class Environment(ImmutableSandboxedEnvironment):
        """Looks names up in a dict directly; the general way raises an exception for each of them."""

        def getattr(self, obj: Any, attribute: str) -> Any:
            if type(obj) is dict and attribute in obj and not hasattr(dict, attribute):
                return obj[attribute]
            return super().getattr(obj, attribute)

    environment = Environment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = _strftime_now
    # The type itself would give a template `dict.fromkeys` and the like.
    environment.globals["dict"] = lambda *pairs, **items: dict(*pairs, **items)
    return environment


def _line(source: str, number: int | None) -> str:
    lines = source.splitlines()
    return lines[number - 1].strip()[:160] if number and number <= len(lines) else ""


def _with_object_arguments(call: dict[str, Any]) -> dict[str, Any]:
    if isinstance(function := call.get("function"), dict):
        return {**call, "function": _with_object_arguments(function)}
    arguments = call.get("arguments")
    if not isinstance(arguments, str):
        return call
    try:
        parsed = json.loads(arguments)
    except ValueError:
        return call
    return {**call, "arguments": parsed} if isinstance(parsed, dict) else call
