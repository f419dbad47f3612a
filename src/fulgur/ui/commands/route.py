"""`fulgur route PROMPT`: which model `model = "auto"` would choose, and by which rule. No model is called."""

from __future__ import annotations

import argparse
import json

from fulgur.ui.flags import add_config_flags, settings_from
from fulgur.ui.foreign import out, out_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of route."""
    parser.add_argument("prompt", help="the prompt you would send")
    add_config_flags(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object")


def run(args: argparse.Namespace) -> int:
    """Print the decision and the rules in the order they are tried."""
    from fulgur.agent.route.rules import Task, decide, rules

    settings = settings_from(args)
    task = Task(args.prompt)
    decision = decide(task, settings)
    tried = [(rule, rule.fits(task)) for rule in rules(settings)]
    if args.json:
        listed = [{"name": rule.name, "use": rule.use, "why": rule.why, "fits": by} for rule, by in tried]
        fields = {"side": decision.side, "model": decision.model, "why": decision.why, "rule": decision.rule}
        out_json(json.dumps({**fields, "by": decision.by, "rules": listed}))
        return 0
    out(f"{decision}  [rule {decision.rule}]")
    wide = max(len(rule.name) for rule, _ in tried)
    for rule, by in tried:
        mark = "→" if rule.name == decision.rule else "·" if by else " "
        out(f"  {mark} {rule.name:<{wide}}  {rule.use}  {rule.why}{f' ({by})' if by else ''}")
    out(f"  {'→' if decision.rule == 'default' else ' '} {'default':<{wide}}  {settings.text('router.default')}")
    return 0
