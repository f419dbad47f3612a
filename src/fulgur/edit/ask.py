"""What a model is asked: a region to be rewritten, as the server's input item `edit`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fulgur.edit.region import Region
from fulgur.text.edit_format import RecentEdit


def edit_item(name: str, region: Region, instruction: str | None, recent: Sequence[RecentEdit] = ()) -> dict[str, Any]:
    """Without an instruction: the edit that follows from the recent ones."""
    item: dict[str, Any] = {
        "type": "edit",
        "path": name,
        "above": region.above,
        "region": region.text,
        "below": region.below,
    }
    if instruction is not None:
        item["instruction"] = instruction
    if recent:
        item["recent"] = [{"before": edit.before, "after": edit.after} for edit in recent]
    return item
