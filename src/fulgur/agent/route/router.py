"""Chooses how a turn is worked, by what the model can do, with a one-line reason."""

from __future__ import annotations

from fulgur.agent.route.models import ModelInfo
from fulgur.config.settings import Settings
from fulgur.protocol.agent import Way


def route(info: ModelInfo, settings: Settings) -> tuple[Way, str]:
    """Return the way and the reason for it."""
    if "tools" in info.abilities:
        return "tools", f"{info.name} works with tools"
    if "edit" in info.abilities and settings.flag("features.edit_path"):
        return "edit", f"{info.name} makes the edits that you name and calls no tools"
    if "chat" in info.abilities:
        return "chat", f"plain answers: {info.name} calls no tools, so it cannot change files"
    return "chat", f"plain answers: {info.name} neither calls tools nor edits"
