"""Every config key there is: its name, its type, its default and what it does. A key that is not here is an error."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Literal

from fulgur.errors import UsageError

Kind = Literal["string", "integer", "number", "boolean", "strings", "table"]
Path = tuple[str, ...]
Value = str | int | float | bool | list[str] | dict[str, str] | None


@dataclass(frozen=True)
class Key:
    """One key; `*` in its name stands for a name the user chooses.

    `needs` is the ability of the model without which the key has no effect.
    """

    name: str
    kind: Kind
    help: str
    default: Value = None
    choices: tuple[str, ...] = ()
    needs: str = ""

    @property
    def path(self) -> Path:
        """The name split at its dots."""
        return tuple(self.name.split("."))


SANDBOXES = ("read-only", "workspace-write", "danger-full-access")
POLICIES = ("untrusted", "on-failure", "on-request", "never")
HOOK_EVENTS = ("session_start", "before_tool", "after_tool", "after_edit", "turn_end")
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh")

KEYS: tuple[Key, ...] = (
    Key("model", "string", "the model that answers; empty: the first one the provider offers", ""),
    Key("model_provider", "string", "which of model_providers to use; `local` starts a server itself", "local"),
    Key("model_providers.*.name", "string", "its name in /status"),
    Key("model_providers.*.base_url", "string", "http(s)://host:port/v1 of the API"),
    Key("model_providers.*.env_key", "string", "the environment variable that holds the API key"),
    Key("model_providers.*.wire_api", "string", "the protocol of the API", "responses", choices=("responses", "chat")),
    Key("model_providers.*.images", "boolean", "its models accept images; default: what the server reports"),
    Key("model_providers.*.request_max_retries", "integer", "how often a failed request is retried, up to 6", 3),
    Key("model_reasoning_effort", "string", "how much the model reasons", choices=EFFORTS, needs="reasoning"),
    Key(
        "model_reasoning_summary",
        "string",
        "summaries of the reasoning",
        choices=("auto", "concise", "detailed", "none"),
        needs="reasoning",
    ),
    Key("model_verbosity", "string", "how long answers are", choices=("low", "medium", "high"), needs="verbosity"),
    Key("model_context_window", "integer", "tokens the model can hold; default: what the server reports"),
    Key("model_auto_compact_token_limit", "integer", "compact above this many tokens; default: 80% of the window"),
    Key("model_max_output_tokens", "integer", "most tokens of a single answer"),
    Key("model_prices.*.input", "number", "price of a million input tokens of this model"),
    Key("model_prices.*.cached_input", "number", "price of a million input tokens that were in the cache"),
    Key("model_prices.*.output", "number", "price of a million output tokens"),
    Key(
        "service_tier",
        "string",
        "the service tier of requests; `fast` means `priority`",
        choices=("auto", "default", "fast", "flex", "priority"),
    ),
    Key("router.fast", "string", 'the fast model of model = "auto", such as "ollama:qwen3"'),
    Key("router.deep", "string", 'the deep model of model = "auto"'),
    Key(
        "router.default",
        "string",
        "which of the two answers a prompt that no rule fits",
        "deep",
        choices=("fast", "deep"),
    ),
    Key("router.rules.*.use", "string", "the model for prompts that fit the rule", choices=("fast", "deep", "off")),
    Key("router.rules.*.words", "strings", "it fits if one of these regular expressions matches the prompt"),
    Key("router.rules.*.files", "integer", "it fits if the prompt names at least this many files"),
    Key(
        "router.rules.*.context_percent",
        "integer",
        "it fits if the fast model's context is at least this full (percent)",
    ),
    Key("router.rules.*.question", "boolean", "it fits if the prompt is a question"),
    Key("router.rules.*.why", "string", "the reason shown when it decides"),
    Key("router.escalate.guards", "integer", "failed checks of the fast model before the deep one takes over", 2),
    Key("router.escalate.edits", "integer", "edits of one file in a turn before the deep model takes over", 3),
    Key("router.escalate.repeats", "integer", "equal calls with equal results before the deep model takes over", 3),
    Key(
        "router.escalate.context_percent",
        "integer",
        "how full (percent) its context may get before the deep model takes over",
        85,
    ),
    Key("developer_instructions", "string", "added to the agent's own instructions"),
    Key(
        "approval_policy",
        "string",
        "when you are asked for approval",
        "on-request",
        choices=POLICIES,
    ),
    Key(
        "sandbox_mode",
        "string",
        "what commands may touch",
        "workspace-write",
        choices=SANDBOXES,
    ),
    Key("sandbox_workspace_write.writable_roots", "strings", "folders beside the workspace that may be written", []),
    Key("sandbox_workspace_write.network_access", "boolean", "whether commands may use the network", False),
    Key("sandbox_hide_secrets", "boolean", "commands and tools cannot read the usual places of keys (~/.ssh …)", True),
    Key("sandbox_hidden", "strings", "more files and folders that commands and tools cannot read", []),
    Key("shell_environment_policy.inherit", "string", "which variables commands see", "all", ("all", "core", "none")),
    Key("shell_environment_policy.exclude", "strings", "variables left out (patterns such as `*_TOKEN`)", []),
    Key(
        "shell_environment_policy.ignore_default_excludes",
        "boolean",
        "pass on variables that look like keys, tokens and passwords, too",
        False,
    ),
    Key("shell_environment_policy.set", "table", "variables set for commands", {}),
    Key("project_doc_max_bytes", "integer", "how many bytes of the AGENTS.md files are read", 32768),
    Key("project_doc_fallback_filenames", "strings", "files read where there is no AGENTS.md", []),
    Key("tui.vim", "boolean", "vi keys in the input", False),
    Key(
        "tui.notify",
        "string",
        "how the terminal signals the end of a long turn, or a question",
        "osc9",
        choices=("osc9", "osc777", "bell", "off"),
    ),
    Key("hide_agent_reasoning", "boolean", "do not show reasoning", False),
    Key("mcp_servers.*.command", "string", "the program of an MCP server", needs="tools"),
    Key("mcp_servers.*.args", "strings", "the arguments of that program", needs="tools"),
    Key("mcp_servers.*.env", "table", "the environment of that program", needs="tools"),
    Key("mcp_servers.*.url", "string", "the address of an MCP server over HTTP", needs="tools"),
    Key("mcp_servers.*.enabled", "boolean", "whether the MCP server is used", True, needs="tools"),
    Key("mcp_servers.*.startup_timeout_sec", "number", "seconds the MCP server may take to start", 10.0, needs="tools"),
    Key("mcp_servers.*.tool_timeout_sec", "number", "seconds one call may take", 60.0, needs="tools"),
    Key("hooks.*.on", "string", "when the hook runs", choices=HOOK_EVENTS),
    Key("hooks.*.command", "string", "what the hook runs: bash, in the sandbox, in the workspace"),
    Key("hooks.*.tools", "strings", "only for these tools (patterns such as `github__*`); default: all"),
    Key("hooks.*.files", "strings", "only for these files (patterns such as `*.py`); default: all"),
    Key("hooks.*.timeout_sec", "number", "seconds the hook may take", 30.0),
    Key("hooks.*.enabled", "boolean", "whether the hook runs", True),
    Key("features.edit_path", "boolean", "models made for edits rewrite a region instead of calling tools", True),
    Key("features.parallel_tools", "boolean", "the model may call several tools at once", True, needs="tools"),
    Key("features.guards", "boolean", "edits are checked before they count as done", True),
    Key("features.quick_tests", "boolean", "the tests that touch a changed file are run (under 30 s)", True),
    Key("features.undo", "boolean", "the workspace is snapshotted so that /undo covers shell commands too", True),
    Key("features.discovery", "boolean", "look for model servers on this machine, for /model", True),
    Key("undo_days", "integer", "days that /undo data is kept after a session's last use", 30),
    Key("undo_megabytes", "integer", "most megabytes of /undo data; the oldest sessions lose theirs first", 2048),
    Key("worktree.folder", "string", "where worktrees of sessions are created; default: ~/.fulgur-worktrees"),
    Key("worktree.copy", "strings", "untracked files and folders that are copied into a new worktree", []),
    Key("worktree.setup", "string", "a command run in the sandbox in every new worktree, such as `npm ci`"),
    Key("profile", "string", "the profile used when none is named"),
)

# What a profile may not hold: keys that name things for all profiles.
_NOT_IN_PROFILES = ("profile", "model_providers", "mcp_servers", "model_prices", "router", "hooks")

PROFILE_KEYS = tuple(
    Key(f"profiles.*.{key.name}", key.kind, key.help, None, key.choices, key.needs)
    for key in KEYS
    if key.path[0] not in _NOT_IN_PROFILES
)
ALL_KEYS = KEYS + PROFILE_KEYS


def show(path: Path) -> str:
    """`a."b.c".d` for people."""
    return ".".join(part if part.replace("_", "").replace("-", "").isalnum() else f'"{part}"' for part in path)


def matches(key: Key, path: Path) -> bool:
    """Whether `path` is an instance of the key."""
    pattern = key.path
    return len(pattern) == len(path) and all(p in ("*", part) for p, part in zip(pattern, path, strict=True))


def find(path: Path) -> Key | None:
    """The key a path is an instance of."""
    return next((key for key in ALL_KEYS if matches(key, path)), None)


def is_prefix(path: Path) -> bool:
    """Whether keys lie beneath this path."""
    for key in ALL_KEYS:
        pattern = key.path
        if len(path) < len(pattern) and all(p in ("*", part) for p, part in zip(pattern, path, strict=False)):
            return True
    return False


def nearest(path: Path) -> str | None:
    """The name most like a misspelt one: the user's own names stay where the pattern has `*`."""
    candidates = set()
    for key in ALL_KEYS:
        pattern = key.path
        filled = [path[i] if p == "*" and i < len(path) else p for i, p in enumerate(pattern)]
        candidates.add(".".join(filled))
        candidates.add(".".join(filled[: len(path)]))
    close = difflib.get_close_matches(".".join(path), sorted(candidates), n=1, cutoff=0.6)
    return close[0] if close else None


_TYPES: dict[str, str] = {
    "string": "a quoted string",
    "integer": "a whole number of 0 or more",
    "number": "a number",
    "boolean": "true or false",
    "strings": "a list of strings",
    "table": "a table of strings",
}


def check(key: Key, path: Path, value: object, source: str) -> Value:
    """The value if it has the key's type, else a UsageError that names key, source and what is wanted."""
    ok: bool
    match key.kind:
        case "string":
            ok = isinstance(value, str)
        case "boolean":
            ok = isinstance(value, bool)
        case "integer":
            ok = isinstance(value, int) and not isinstance(value, bool) and value >= 0  # all of them count something
        case "number":
            ok = isinstance(value, int | float) and not isinstance(value, bool)
        case "strings":
            ok = isinstance(value, list) and all(isinstance(v, str) for v in value)
        case "table":
            ok = isinstance(value, dict) and all(isinstance(v, str) for v in value.values())
    if not ok:
        raise UsageError(f"{show(path)} = {value!r} ({source}): expected {_TYPES[key.kind]}")
    if key.choices and value not in key.choices:
        close = difflib.get_close_matches(str(value), key.choices, n=1)
        wanted = f"did you mean {close[0]!r}? " if close else ""
        raise UsageError(
            f"{show(path)} = {value!r} ({source}) is not a valid value",
            hint=f"{wanted}One of: {', '.join(key.choices)}",
        )
    return value  # type: ignore[return-value]
