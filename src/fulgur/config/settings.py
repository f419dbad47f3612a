"""The settings of one run: every key typed, each with the source it came from."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, cast

from fulgur.config import keys, layers
from fulgur.config.keys import Value
from fulgur.config.known import KNOWN
from fulgur.config.records import ProjectRecords
from fulgur.errors import UsageError
from fulgur.workspace import folders

SandboxMode = Literal["read-only", "workspace-write", "danger-full-access"]
ApprovalPolicy = Literal["untrusted", "on-failure", "on-request", "never"]


_ADDRESS = "For example http://127.0.0.1:8080/v1"


@dataclass(frozen=True)
class Provider:
    """Where a model is reached. `base_url` None: the local server, started when none runs."""

    id: str
    name: str
    base_url: str | None
    env_key: str | None = None
    wire_api: str = "responses"
    retries: int = 3
    images: bool | None = None
    """Whether its models take images; None: as the server says."""

    def api_key(self) -> str | None:
        """The key from the environment; a UsageError when it is wanted and not set."""
        if self.env_key is None:
            return None
        key = os.environ.get(self.env_key)
        if not key:
            raise UsageError(
                f"{self.env_key} is not set, and provider {self.id} needs it", hint=f"export {self.env_key}=…"
            )
        return key


@dataclass(frozen=True)
class McpServer:
    """One MCP server: a program (`command`, `args`, `env`) or an address (`url`)."""

    name: str
    command: str | None
    args: tuple[str, ...]
    env: dict[str, str]
    url: str | None
    startup_seconds: float
    tool_seconds: float


@dataclass(frozen=True)
class Settings:
    """The result of merging the config layers; `load_settings` makes it."""

    workspace: Path
    """The folder worked in."""
    project: Path
    """The nearest folder above with `.git` or `.fulgur`, else the workspace: trust and approvals belong to it."""
    home: Path
    trusted: bool | None
    values: layers.Flat
    sources: dict[keys.Path, str]
    profile: str | None = None
    warnings: tuple[str, ...] = ()
    profiles: tuple[str, ...] = ()
    request: dict[str, object] = field(default_factory=dict, repr=False)
    """The arguments `load_settings` was called with, so that a profile or a model can be switched later."""
    stamps: tuple[object, ...] = field(default=(), repr=False)
    """Of the files that were read, to see when one has changed."""
    follows_files: bool = True
    """Whether a change of the files counts in mid-session."""
    place: str = ""
    """What the model is told of the workspace instead of its path: copies of it are all the same to the model."""

    def get(self, name: str) -> Value:
        """The value of a dotted key."""
        return self.values.get(tuple(name.split(".")))

    def text(self, name: str) -> str | None:
        """A string key, None when it is not set or empty."""
        return cast("str | None", self.get(name)) or None

    def flag(self, name: str) -> bool:
        """A boolean key."""
        return bool(self.get(name))

    def integer(self, name: str) -> int | None:
        """An integer key."""
        return cast("int | None", self.get(name))

    def strings(self, name: str) -> tuple[str, ...]:
        """A list key."""
        return tuple(cast("list[str]", self.get(name) or []))

    @property
    def model(self) -> str | None:
        """The model asked for, None for the first the provider offers."""
        return self.text("model")

    @property
    def sandbox_mode(self) -> SandboxMode:
        """What commands may touch."""
        return cast(SandboxMode, self.get("sandbox_mode"))

    @property
    def approval_policy(self) -> ApprovalPolicy:
        """When a person is asked."""
        return cast(ApprovalPolicy, self.get("approval_policy"))

    @property
    def records(self) -> ProjectRecords:
        """Trust and remembered approvals."""
        return ProjectRecords(self.home)

    @property
    def provider(self) -> Provider:
        """The chosen provider."""
        name = cast(str, self.get("model_provider"))
        fields = self.under("model_providers", name)
        if name == "local" and "base_url" not in fields:
            return Provider("local", "local server", None)
        if name in KNOWN:
            usual = KNOWN[name]
            known = {"name": usual.name, "base_url": usual.base_url, "wire_api": usual.wire_api}
            fields = {**known, **({"env_key": usual.env_key} if usual.env_key else {}), **fields}
            if usual.images:
                fields.setdefault("images", True)
        if not fields:
            have = sorted({*self.own_providers, *KNOWN, "local"})
            source = self.sources[("model_provider",)]
            raise UsageError(f"no [model_providers.{name}] ({source})", hint=f"Known providers: {', '.join(have)}")
        if "base_url" not in fields:
            raise UsageError(f"model_providers.{name}.base_url is missing", hint=_ADDRESS)
        if not re.match(r"https?://[^/]", address := str(fields["base_url"])):
            raise UsageError(f"model_providers.{name}.base_url = {address!r} is not a valid address", hint=_ADDRESS)
        return Provider(
            name,
            cast(str, fields.get("name", name)),
            cast(str, fields["base_url"]),
            cast("str | None", fields.get("env_key")) or None,
            cast(str, fields.get("wire_api", "responses")),
            cast(int, fields.get("request_max_retries", 3)),
            cast("bool | None", fields.get("images")),
        )

    @property
    def own_providers(self) -> list[str]:
        """The providers that the config names."""
        return list(dict.fromkeys(path[1] for path in self.values if path[0] == "model_providers"))

    def split_model(self, name: str) -> tuple[str | None, str]:
        """`ollama:qwen3:30b` is the model `qwen3:30b` of `ollama`; without a provider it is the chosen one's."""
        provider, colon, model = name.partition(":")
        if colon and provider in {*self.own_providers, *KNOWN, "local"}:
            return provider, model
        return None, name

    def choosing(self, name: str) -> Settings:
        """These settings for another model (`provider:model`), with nothing read again."""
        provider, model = self.split_model(name)
        values, sources = {**self.values, ("model",): model}, {**self.sources, ("model",): name}
        if provider is not None:
            values["model_provider",] = provider
            sources["model_provider",] = name
        return replace(self, values=values, sources=sources)

    def inside(self, workspace: Path, changes: Mapping[str, Value]) -> Settings:
        """These settings for a copy of the workspace, with `changes` applied; config files that change later do not
        count."""
        values = {path: value for path, value in self.values.items() if path[0] != "mcp_servers"}
        values.update({tuple(name.split(".")): value for name, value in changes.items()})
        sources = {**self.sources, **{tuple(name.split(".")): "subagent" for name in changes}}
        place = "" if workspace == self.workspace else "the current folder"
        project = self.project if workspace == self.workspace else workspace
        return replace(
            self,
            workspace=workspace,
            project=project,
            values=values,
            sources=sources,
            follows_files=False,
            place=place,
            warnings=(),
        )

    @property
    def router_rules(self) -> list[str]:
        """The names of the rules in the config."""
        return list(dict.fromkeys(path[2] for path in self.values if path[:2] == ("router", "rules")))

    def router_rule(self, name: str) -> dict[str, Value]:
        """The keys of one of them."""
        return self.under("router", "rules", name)

    @property
    def mcp_servers(self) -> list[McpServer]:
        """The enabled MCP servers."""
        servers = []
        for name in self.names_under("mcp_servers"):
            fields = self.under("mcp_servers", name)
            if fields.get("enabled") is False:
                continue
            command, url = cast("str | None", fields.get("command")), cast("str | None", fields.get("url"))
            if (command is None) == (url is None):
                raise UsageError(f"mcp_servers.{name}: give either `command` or `url`")
            servers.append(
                McpServer(
                    name,
                    command,
                    tuple(cast("list[str]", fields.get("args", []))),
                    cast("dict[str, str]", fields.get("env", {})),
                    url,
                    float(cast(float, fields.get("startup_timeout_sec", 10.0))),
                    float(cast(float, fields.get("tool_timeout_sec", 60.0))),
                )
            )
        return servers

    def prices(self, model: str) -> dict[str, float]:
        """`input`, `cached_input` and `output` prices per million tokens, as far as configured."""
        return {name: float(cast(float, price)) for name, price in self.under("model_prices", model).items()}

    def effective(self) -> list[tuple[str, Value, str]]:
        """Every effective key with its value and its source, in the schema's order."""
        order = {key.name: i for i, key in enumerate(keys.KEYS)}

        def rank(path: keys.Path) -> tuple[int, keys.Path]:
            key = keys.find(path)
            return (order[key.name] if key else len(order), path)

        return [(keys.show(path), self.values[path], self.sources[path]) for path in sorted(self.values, key=rank)]

    def with_changes(
        self,
        *,
        profile: str | None = None,
        model: str | None = None,
        provider: str | None = None,
        overrides: list[str] | None = None,
    ) -> Settings:
        """The same layers with another profile, model or provider chosen, or more `-c` overrides."""
        request = dict(self.request)
        overrides = [*cast("list[str]", request.get("overrides") or []), *(overrides or [])]
        if profile is not None:
            request["profile"] = profile
        if model:
            request["model"] = model
        elif model is not None:  # whatever the provider offers first
            request["model"] = None
            overrides.append("model=")
        if provider is not None:
            overrides.append(f"model_provider={provider}")
        request["overrides"] = overrides
        return load_settings(self.workspace, **request)  # type: ignore[arg-type]

    def reloaded(self) -> Settings:
        """The same request over the files as they are now; itself when they have not changed."""
        if not self.follows_files or _stamps(self.home, self.project) == self.stamps:
            return self
        return load_settings(self.workspace, **self.request)  # type: ignore[arg-type]

    def differs_from(self, other: Settings) -> list[str]:
        """The keys whose values differ."""
        paths = {*self.values, *other.values}
        return sorted(keys.show(path) for path in paths if self.values.get(path) != other.values.get(path))

    def names_under(self, table: str) -> list[str]:
        """The names that the config gives to tables of this kind, such as `hooks`."""
        return sorted({path[1] for path in self.values if path[0] == table})

    def under(self, *prefix: str) -> dict[str, Value]:
        """The keys of one of them."""
        return {path[-1]: value for path, value in self.values.items() if path[: len(prefix)] == prefix}


def find_project(workspace: Path, home: Path) -> Path:
    """The nearest folder above with `.git` or `.fulgur` (Fulgur's home is not a project), else the workspace itself."""
    for folder in (workspace, *workspace.parents):
        git, own = folder / ".git", folder / ".fulgur"
        # An empty `.git` or `.fulgur` only reserves the name, see `sandbox.bubblewrap`.
        if git.is_file() or (git / "HEAD").exists() or ((own / "config.toml").exists() and own != home):
            return folder
    return workspace


def load_settings(
    workspace: Path | None = None,
    *,
    profile: str | None = None,
    model: str | None = None,
    overrides: list[str] | None = None,
) -> Settings:
    """Merge defaults, the user's file, the trusted project's, the profile and the flags; UsageError if one is wrong."""
    home = folders.home()
    folder = Path(workspace or Path.cwd()).resolve()
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder")
    project = find_project(folder, home)
    stamps = _stamps(home, project)  # taken first, so that a file that changes while it is read is read again
    trusted = ProjectRecords(home).trusted(project)
    stack = [layers.defaults()]
    warnings: list[str] = []
    user_file, project_file = home / "config.toml", project / ".fulgur" / "config.toml"
    if user_file.exists():
        stack.append(layers.from_file(user_file, str(user_file)))
    if project_file.exists() and project_file != user_file:
        if trusted:
            stack.append(layers.from_file(project_file, str(project_file)))
        else:
            warnings.append(
                f"{project_file} is ignored because this project is not trusted (`fulgur config trust` trusts it)"
            )
    flags = layers.from_flags(overrides or [])
    if model is not None:
        flags.values[("model",)] = model
    named = profile or cast("str | None", layers.merge([*stack, flags])[0].get(("profile",)))
    if named:
        stack.append(layers.profile_layer(stack, named, "--profile" if profile else "key `profile`"))
    values, sources = layers.merge([*stack, flags])
    if model is not None:
        sources[("model",)] = "-m"
    profiles = sorted({path[1] for layer in stack for path in layer.values if path[0] == "profiles"})
    request: dict[str, object] = {"profile": profile, "model": model, "overrides": overrides}
    settings = Settings(
        folder, project, home, trusted, values, sources, named, tuple(warnings), tuple(profiles), request, stamps
    )
    provider, name = settings.split_model(settings.model or "")
    if provider is not None:  # `-m ollama:qwen3`, as /model lists it
        values["model",], values["model_provider",] = name, provider
        sources["model_provider",] = sources["model",]
    return settings


def _stamps(home: Path, project: Path) -> tuple[object, ...]:
    """A value that changes when a config file, or the trust in the project, does."""
    found: list[object] = []
    for file in (home / "config.toml", project / ".fulgur" / "config.toml", home / "projects.json"):
        try:
            info = file.stat()
            found.append((info.st_mtime_ns, info.st_size, info.st_ino))
        except OSError:
            found.append(None)
    return tuple(found)
