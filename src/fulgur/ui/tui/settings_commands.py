"""Slash commands about the model that answers and what it may do."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from fulgur.config.hooks import find_hooks
from fulgur.config.keys import POLICIES, SANDBOXES
from fulgur.config.skills import find_skills
from fulgur.errors import UsageError
from fulgur.ui.tui.blocks import count, table, wrapped
from fulgur.ui.tui.theme import BLANK, paint
from fulgur.workspace.folders import embedded_models, embedded_name

if TYPE_CHECKING:
    from fulgur.agent.agent import Agent
    from fulgur.protocol.session import ModelOffer
    from fulgur.ui.tui.app import Tui


async def model(tui: Tui, agent: Agent, argument: str) -> None:
    if argument:
        await agent.set_model(argument)
        tui.asks_for(agent)
        status = agent.status()
        tui.say(f"the next turn is for {status.model}; {status.way_reason}")
        return
    _list_offers(tui, await agent.offers(), agent.status().model)


async def another_model(tui: Tui, argument: str) -> None:
    """Handle `/model` when the configured model cannot be reached, so that there is no agent."""
    from fulgur.agent.route.offers import offers

    if not argument:
        _list_offers(tui, await offers(tui.settings, None), "")
        return
    provider, name = tui.settings.split_model(argument)
    if provider is None and name in {embedded_name(folder) for folder in embedded_models()}:
        provider = "local"  # the chosen provider does not answer, so the name is not one of its models
    tui.settings = tui.settings.with_changes(model=name, provider=provider)
    tui.open()


def _list_offers(tui: Tui, found: list[ModelOffer], asked: str) -> None:
    from fulgur.agent.route.offers import EDITS_ONLY

    tui.offers = found
    wide = max((len(offer.name) for offer in tui.offers), default=0)
    tui.show(
        [
            paint([("accent" if offer.name == asked else "", f"  {offer.name:<{wide}}"), ("dim", f"  {about(offer)}")])
            for offer in tui.offers
        ]
    )
    tui.say("/model NAME chooses one for this session, `model` in the config for all")
    if all(offer.note.endswith(EDITS_ONLY) for offer in found):
        tui.say(
            "none of these chats; others are listed while Ollama, LM Studio, llama.cpp, vLLM or SGLang runs here, or "
            "when a key such as OPENAI_API_KEY is set (`fulgur models fit` names open models this machine can run)"
        )


def about(offer: ModelOffer) -> str:
    """Describe a model in one row."""
    parts = [f"{count(offer.context)} context"] if offer.context else []
    if offer.tokens_per_second:
        parts.append(f"{offer.tokens_per_second:,.0f} tok/s here")
    if {"input", "output"} <= offer.price.keys():
        parts.append(f"${offer.price['input']:g} in, ${offer.price['output']:g} out a million")
    return " · ".join([*parts, *([offer.note] if offer.note else [])])


async def status(tui: Tui, agent: Agent, argument: str) -> None:
    status = agent.status()
    answers = status.answering_model or f"{status.model} (asked for; no answer yet)"
    context = f"{status.context_used:,} of {status.context_limit:,} tokens" if status.context_limit else "not known yet"
    pairs = [
        ("model", answers),
        ("provider", f"{status.provider} at {status.base_url}" if status.base_url else status.provider),
        ("how", status.way_reason),
        ("abilities", ", ".join(status.abilities) or "none"),
        ("fast tier", "on" if status.fast else "off"),
        ("context", context),
        ("cost", f"${status.cost:.4f}" if status.cost is not None else "price not known"),
        ("sandbox", status.sandbox),
        ("approvals", status.approval_policy),
        ("remembered", ", ".join(f"`{prefix}`" for prefix in status.remembered) or "none"),
        ("rules", ", ".join(status.rules) or "no AGENTS.md"),
        ("workspace", status.workspace),
        ("session", f"{status.session_id}, {status.turns} turns, {status.session_path}"),
    ]
    if status.model and status.answering_model and status.answering_model != status.model:
        pairs.insert(1, ("asked for", status.model))
    rows = table(pairs, tui.screen.width)
    chosen = [(key, f"{value}   ({source})") for key, value, source in status.config if source != "default"]
    if chosen:
        rows += [BLANK, paint([("dim", "  config: key, value, source; `fulgur config show` has the defaults too")])]
        rows += table(chosen, tui.screen.width)
    for warning in status.warnings:
        rows += wrapped(warning, tui.screen.width, first=[("warn", "  ! ")], indent=4, meaning="warn")
    tui.show(rows)


async def fast(tui: Tui, agent: Agent, argument: str) -> None:
    if argument not in ("on", "off", ""):
        raise UsageError(f"/fast {argument}?", hint="/fast on, or /fast off")
    on = argument == "on" if argument else not agent.status().fast
    agent.set_fast(on)
    tui.say(f"fast tier {'on' if on else 'off'} from the next turn on")


async def profile(tui: Tui, agent: Agent, argument: str) -> None:
    if not argument:
        names = ", ".join(tui.settings.profiles) or "none; add [profiles.NAME] to the config"
        tui.say(f"profile: {agent.settings.profile or 'none'}; there are: {names}")
        return
    await agent.set_profile(argument)
    tui.asks_for(agent)
    tui.say(f"profile {argument}: the next turn is for {agent.status().model}")


async def permissions(tui: Tui, agent: Agent, argument: str) -> None:
    if argument in SANDBOXES:
        await agent.set_options([f"sandbox_mode={argument}"])
    elif argument in POLICIES:
        await agent.set_options([f"approval_policy={argument}"])
    elif argument:
        raise UsageError(f"/permissions {argument}?", hint=f"One of: {', '.join((*SANDBOXES, *POLICIES))}")
    status = agent.status()
    pairs = [
        ("sandbox", status.sandbox),
        ("approvals", status.approval_policy),
        ("remembered", ", ".join(f"`{prefix}`" for prefix in status.remembered) or "none"),
    ]
    tui.show(table(pairs, tui.screen.width))
    if not argument:
        tui.say(f"/permissions MODE changes one; the sandbox: {', '.join(SANDBOXES)}; approvals: {', '.join(POLICIES)}")


async def hooks(tui: Tui, agent: Agent, argument: str) -> None:
    found = await asyncio.to_thread(find_hooks, agent.settings)
    if not found:
        tui.say("no hook is configured; add [hooks.NAME] with `on` and `command` to the config")
        _say_untrusted(tui, agent)
        return
    tui.show(table([(hook.name, f"{hook.event}  {hook.command}  ({hook.source})") for hook in found], tui.screen.width))
    _say_untrusted(tui, agent)


async def skills(tui: Tui, agent: Agent, argument: str) -> None:
    found, wrong = await asyncio.to_thread(find_skills, agent.settings)
    if not found and not wrong:
        tui.say(f"no skills; {agent.settings.home / 'skills'}/NAME/SKILL.md defines one")
        _say_untrusted(tui, agent)
        return
    tui.show(table([(skill.name, f"{skill.description}  ({skill.folder})") for skill in found], tui.screen.width))
    for problem in wrong:
        tui.complain(problem, "", warning=True)
    _say_untrusted(tui, agent)


def _say_untrusted(tui: Tui, agent: Agent) -> None:
    if not agent.settings.trusted:
        tui.say("the project's own hooks and skills are ignored: it is not trusted (`fulgur config trust` trusts it)")


async def mcp(tui: Tui, agent: Agent, argument: str) -> None:
    servers = agent.settings.mcp_servers
    if not servers:
        tui.say("no MCP server is configured; add [mcp_servers.NAME] to the config")
        return
    tools = agent.status().mcp_tools
    pairs = [
        (server.name, ", ".join(name for name in tools if name.startswith(f"{server.name}__")) or "did not start")
        for server in servers
    ]
    tui.show(table(pairs, tui.screen.width))
