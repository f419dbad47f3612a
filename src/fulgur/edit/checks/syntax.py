"""Check that a changed file still parses."""

from __future__ import annotations

import json
import tomllib
import warnings


def syntax_problems(name: str, source: str) -> list[str]:
    """The syntax errors of a file; none for unknown kinds of files."""
    suffix = name.rpartition(".")[2].lower()
    try:
        match suffix:
            case "py" | "pyi":
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    if not _known_to_compile(source):
                        compile(source, name, "exec", dont_inherit=True)
            case "json":
                json.loads(source)
            case "toml":
                tomllib.loads(source)
            case _:
                return _tree_problems(suffix, source)
    except SyntaxError as error:
        return [f"line {error.lineno}: {error.msg}"]
    except (ValueError, RecursionError) as error:
        return [str(error)]
    return []


def _known_to_compile(source: str) -> bool:
    """Whether every statement of a module compiles, mostly from the cache; if False, the caller compiles the whole."""
    from fulgur.edit.checks.statements import compiles, declares_global, parts, postponed

    found = parts(source)
    if found is None or any(declares_global(part) for part in found):
        return False
    # Imports from `__future__` must come first, so the parts up to them are compiled as one.
    first = max((at for at, part in enumerate(found, 1) if "__future__" in part), default=0)
    later = postponed(found)
    return all(compiles(part, later) for part in ("".join(found[:first]), *found[first:]))


def _tree_problems(suffix: str, source: str) -> list[str]:
    from fulgur.workspace.grammars import parser_for

    parser = parser_for(suffix)
    if parser is None:
        return []
    tree = parser.parse(source.encode())
    waiting = [tree.root_node]
    problems: list[str] = []
    while waiting and len(problems) < 5:
        node = waiting.pop()
        if node.type == "ERROR" or node.is_missing:
            what = f"{node.type} is missing" if node.is_missing else "does not parse"
            problems.append(f"line {node.start_point[0] + 1}: {what}")
        elif node.has_error:
            waiting += reversed(node.children)
    return problems
