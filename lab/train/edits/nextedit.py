"""Next-edit sequences: some of several similar sites are done, and the rest is predicted from the recent edits
alone."""

from __future__ import annotations

import ast
import random
import re
from collections import defaultdict

from fulgur.edit.refactor.source import Edit, Source, Unusable, apply_edits, dotted, parse_region
from fulgur.eval.tasks import EditExample
from fulgur.text.edit_format import Answer, NoEdit, RecentEdit, Rewrite
from lab.train.edits import values
from lab.train.edits.example import OPERATIONS
from lab.train.edits.regions import MAX_CHARS, MAX_LINES, choose_region

DONE = 0.15  # fraction of sequences in which every site is done: nothing is left to edit
SITE_OPS = ("is_none", "not_in", "use_fstring", "optional_union", "modern_super", "augmented_assignment", "use_literal")
BUILT_IN = {"self", "cls", "None", "str", "int", "len", "isinstance", "list", "dict", "super", "print", "bool", "float"}


def next_edits(src: Source, rng: random.Random, wanted: int) -> list[EditExample]:
    """Make up to `wanted` sequences from one file."""
    examples: list[EditExample] = []
    makers = [renamed_names, added_arguments, changed_sites]
    for _ in range(wanted * 3):
        if len(examples) >= wanted:
            break
        try:
            sites, inverse = rng.choice(makers)(src, rng)
            examples.append(sequence(src, sites, inverse, rng))
        except Unusable:
            continue
    return examples


def sequence(src: Source, sites: list[list[Edit]], inverse: bool, rng: random.Random) -> EditExample:
    """Make a sequence with k of n sites done. A site is one line's edits; `inverse`: the edits undo what the developer
    is doing."""
    sites = near(src, sorted(sites), rng)
    everything_done = rng.random() < DONE
    done = len(sites) if everything_done else rng.randrange(1, len(sites))
    first = sites if everything_done else sites[done:]
    start, end = first[0][0].start, first[-1][-1].end
    region = choose_region(src, start, end, rng)
    order = list(range(len(sites)))
    finished = set(order[:done])
    inside = {i for i in order if region[0] <= sites[i][0].start < region[1]}

    def state(part: tuple[int, int], complete: set[int]) -> str:
        chosen = [i for i in order if part[0] <= sites[i][0].start < part[1] and (i in complete) != inverse]
        return apply_edits(src.text[slice(*part)], [edit for i in chosen for edit in sites[i]], part[0])

    before, after = state(region, finished), state(region, finished | inside)
    answer: Answer = NoEdit() if before == after else Rewrite(after)
    parse_region(before)
    parse_region(after)
    recent = tuple(line_edit(src, sites[i], inverse) for i in sorted(finished)[-3:])
    above_start = max(0, region[0] - rng.choice((0, 400, 1200)))
    above_start = src.line_start(src.line_of(above_start)) if above_start else 0
    below_line = min(src.line_of(region[1] - 1) + rng.choice((0, 5, 15)), len(src.lines))
    above = state((above_start, region[0]), finished)
    below = state((region[1], max(region[1], src.line_end(below_line))), finished)
    return EditExample("next_edit", src.path, above, before, below, recent, None, answer, "", False, False)


def near(src: Source, sites: list[list[Edit]], rng: random.Random) -> list[list[Edit]]:
    """A run of sites close enough together for one region."""
    if len(sites) < 2:
        raise Unusable("one site")
    begin = rng.randrange(len(sites) - 1)
    run = [sites[begin]]
    for site in sites[begin + 1 :]:
        lines = src.line_of(site[-1].end) - src.line_of(run[0][0].start)
        if lines > MAX_LINES * 2 // 3 or site[-1].end - run[0][0].start > MAX_CHARS or len(run) >= 6:
            break
        run.append(site)
    if len(run) < 2:
        raise Unusable("sites too far apart")
    return run


def line_edit(src: Source, site: list[Edit], inverse: bool) -> RecentEdit:
    """The lines of a site before and after its edit."""
    first, last = src.line_of(site[0].start), src.line_of(site[-1].end)
    part = src.line_start(first), src.line_end(last)
    human = src.text[slice(*part)]
    changed = apply_edits(human, site, part[0])
    return RecentEdit(changed, human) if inverse else RecentEdit(human, changed)


def by_line(src: Source, edits: list[Edit]) -> list[list[Edit]]:
    lines: dict[int, list[Edit]] = defaultdict(list)
    for edit in sorted(set(edits)):
        lines[src.line_of(edit.start)].append(edit)
    return list(lines.values())


def renamed_names(src: Source, rng: random.Random) -> tuple[list[list[Edit]], bool]:
    """Rename a variable, attribute or function line by line."""
    uses: dict[str, list[Edit]] = defaultdict(list)
    for node in src.of(ast.Name):
        uses[node.id].append(Edit(*src.span(node), ""))
    for attribute in src.of(ast.Attribute):
        end = src.end(attribute)
        uses[attribute.attr].append(Edit(end - len(attribute.attr), end, ""))
    names = [name for name, found in uses.items() if len(found) > 1 and name not in BUILT_IN and len(name) > 2]
    if not names:
        raise Unusable("no repeated names")
    old = rng.choice(names)
    new = values.variation(old, set(uses), rng)
    edits = [Edit(e.start, e.end, new) for e in uses[old] if src.text[e.start : e.end] == old]
    return by_line(src, edits), False


def added_arguments(src: Source, rng: random.Random) -> tuple[list[list[Edit]], bool]:
    """Add the same keyword argument to every call of one function."""
    calls: dict[str, list[ast.Call]] = defaultdict(list)
    for node in src.of(ast.Call):
        name = dotted(node.func)
        if name and src.one_line(node) and (node.args or node.keywords):
            calls[name].append(node)
    repeated = [
        name for name, nodes in calls.items() if len(nodes) > 1 and name not in ("isinstance", "len", "str", "super")
    ]
    if not repeated:
        raise Unusable("no repeated calls")
    nodes = calls[rng.choice(repeated)]
    argument = rng.choice(values.PARAMETERS)
    value = rng.choice(["True", "False", "None", "0", "10", argument, f"self.{argument}", '"auto"'])
    edits = []
    for node in nodes:
        at = src.end(node) - 1
        if re.match(r"[\w)\]\"'}]", src.text[at - 1]) and not (
            len(node.args) == 1 and isinstance(node.args[0], ast.GeneratorExp)
        ):
            edits.append(Edit(at, at, f", {argument}={value}"))
    return by_line(src, edits), False


def changed_sites(src: Source, rng: random.Random) -> tuple[list[list[Edit]], bool]:
    """Repeat one of the small idiom changes."""
    changes = list(OPERATIONS[rng.choice(SITE_OPS)].generate(src, rng))
    if len(changes) < 2 or changes[0].inverse != changes[-1].inverse:
        raise Unusable("too few sites")
    return by_line(src, [edit for change in changes for edit in change.edits]), changes[0].inverse
