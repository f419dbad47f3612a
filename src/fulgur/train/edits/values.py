"""Realistic arguments for instructions: names, types, values, messages."""

from __future__ import annotations

import ast
import keyword
import random
import re

PARAMETERS = """timeout retries verbose limit offset encoding name path debug strict default max_size user_id session config
options headers callback logger dry_run force key value prefix suffix index depth batch_size page token cache mode seed
max_length min_value quiet recursive context request client data items label color width height size count start end step
tags metadata user owner url host port username password database table column query schema version locale language
threshold delay interval max_retries chunk_size buffer_size num_workers raise_on_error ignore_errors parent flags scale
axis dtype device backend engine fmt separator indent sort reverse inclusive allow_none overwrite backup output filename
directory extension template kwargs extra reason message status code level priority weight score""".split()
LOCALS = """result value item data items total count entry record row output name key text line node element response payload
message content buffer parts chunk window current previous remaining matched found values mapping lookup settings target
source destination parsed filtered selected candidates pairs index position offset length size start stop error status
user account order product customer event task job query rows columns header body token tokens word words path file
handle stream lines number amount price score best worst left right first last child parent root""".split()
FUNCTIONS = """load_data parse_config build_index fetch_user process_items compute_total validate_input read_file write_output
handle_request create_session update_record delete_entry find_matches to_dict from_dict get_value set_value merge_results
format_message check_permissions send_request run_task resolve_path normalize_name collect_metrics apply_filters is_valid
load_settings init_state flush_cache open_connection close_connection render_template dispatch_event make_client""".split()
CLASSES = """Client Session Handler Manager Parser Builder Config Settings Record Node Event Task Worker Cache Store Service
Repository Router Request Response Query Index Token Account Order Report Engine Runner Loader Writer Reader""".split()
TYPE_LIST = [
    "Any",
    "object",
    "str | None",
    "int | None",
    "float | None",
    "bool | None",
    "list[str] | None",
    "Path | None",
]
TYPE_LIST += ["dict[str, Any] | None", "Sequence[str] | None", "bytes | None", "Callable | None", "list[int] | None"]
EXCEPTIONS = """ValueError TypeError KeyError RuntimeError OSError IndexError AttributeError LookupError FileNotFoundError
PermissionError NotImplementedError TimeoutError ConnectionError ArithmeticError ZeroDivisionError UnicodeDecodeError
AssertionError StopIteration Exception""".split()
CAUGHT = """ValueError TypeError KeyError OSError Exception IndexError AttributeError RuntimeError FileNotFoundError
TimeoutError ConnectionError (ValueError,_TypeError) (KeyError,_IndexError) json.JSONDecodeError
UnicodeDecodeError PermissionError""".split()
DECORATORS = """staticmethod classmethod property functools.lru_cache functools.cache cached_property abstractmethod
contextmanager functools.wraps(func) override final pytest.fixture pytest.mark.slow pytest.mark.asyncio
lru_cache(maxsize=None) lru_cache(maxsize=128) retry login_required timed deprecated torch.no_grad() app.command()
jit njit typing.no_type_check profile cache atexit.register""".split()
LOGGERS = ["logger", "logger", "logger", "log", "LOG", "_logger", "logging", "self.logger", "self.log"]
LEVELS = ["debug", "info", "warning", "error", "debug", "info"]
STRINGS = """utf-8 ascii latin-1 default none auto json csv text main unknown INFO DEBUG GET POST /tmp localhost 0.0.0.0 name
id value status error ok done pending active en en_US UTC w r rb gzip strict ignore replace left right asc desc all any
prod dev test v1 v2 cpu cuda float32 int64 sum mean""".split()


def exception(rng: random.Random, *, but: str = "") -> str:
    return rng.choice([name for name in EXCEPTIONS if name != but])


def caught(rng: random.Random) -> str:
    return rng.choice(CAUGHT).replace("_", " ")


def annotation(default: str, rng: random.Random) -> str:
    """A type that a default value of this text has."""
    if default in ("True", "False"):
        return "bool"
    if default == "None":
        return rng.choice([kind for kind in TYPE_LIST if kind.endswith("None") or kind in ("Any", "object")])
    if default[0] in "\"'":
        return "str"
    return "float" if "." in default else "int"


def other_value(node: ast.Constant, rng: random.Random) -> str:
    """Another literal of the same kind, as code."""
    value = node.value
    if value is None:
        return rng.choice(["0", "False", "True", "1", '""', "10"])
    if isinstance(value, bool):
        return str(not value)
    if isinstance(value, int):
        near = [
            0,
            1,
            2,
            3,
            5,
            8,
            10,
            16,
            20,
            25,
            30,
            32,
            50,
            60,
            64,
            100,
            120,
            128,
            200,
            256,
            300,
            500,
            512,
            1000,
            1024,
        ]
        near += [3600, 4096, 5000, 8080, 10000, value + 1, value * 2, value - 1 if value > 0 else value + 2]
        return str(rng.choice([number for number in near if number != value]))
    if isinstance(value, float):
        near_f = [0.0, 0.1, 0.25, 0.5, 1.0, 1.5, 2.0, 5.0, 10.0, 30.0, 0.01, 0.001, 1e-3, 0.9, 0.95, 0.99, value * 2]
        return repr(rng.choice([number for number in near_f if number != value]))
    if isinstance(value, str):
        return '"' + rng.choice([text for text in STRINGS if text != value]) + '"'
    return "None"


def literal_for(name: str, rng: random.Random) -> str:
    """A plausible default for a parameter of this name."""
    if re.search(
        r"verbose|debug|strict|force|quiet|dry|recursive|reverse|allow|ignore|raise|overwrite|backup|inclus", name
    ):
        return rng.choice(["False", "False", "True"])
    if re.search(r"size|limit|count|num|retries|depth|offset|index|width|height|port|length|page|seed|step", name):
        return rng.choice(["0", "1", "3", "5", "10", "32", "64", "100", "128", "1000", "None"])
    if re.search(r"timeout|delay|interval|threshold|scale|weight|score", name):
        return rng.choice(["1.0", "30", "10.0", "0.5", "5", "60", "None"])
    if re.search(
        r"name|path|encoding|prefix|suffix|label|mode|host|url|locale|fmt|separator|status|message|language", name
    ):
        return rng.choice(['""', '"utf-8"', "None", '"default"', "None", '"auto"', '","'])
    return rng.choice(["None", "None", "None", "0", "True", "False"])


def fresh(taken: set[str], pool: list[str], rng: random.Random) -> str:
    """A name from the pool that is not taken and is no keyword."""
    for _ in range(20):
        name = rng.choice(pool)
        if name not in taken and not keyword.iskeyword(name):
            return name
    return f"{rng.choice(pool)}_{rng.choice(['new', 'alt', 'extra'])}"


def variation(name: str, taken: set[str], rng: random.Random) -> str:
    """A new name for an old one: another word, an affix, or another case, as people rename."""
    private = name.startswith("_") and not name.startswith("__")
    bare = name.lstrip("_")
    for _ in range(12):
        kind = rng.random()
        if bare.isupper():
            new = rng.choice(
                [f"DEFAULT_{bare}", f"MAX_{bare}", f"{bare}_VALUE", f"{bare}_COUNT", f"_{bare}", f"BASE_{bare}"]
            )
        elif bare[:1].isupper():
            new = rng.choice(
                [f"Base{bare}", f"{bare}Impl", f"{bare}Base", f"_{bare}", f"Abstract{bare}", rng.choice(CLASSES)]
            )
        elif kind < 0.35:
            new = rng.choice(LOCALS)
        elif kind < 0.5 and "_" in bare:
            words = bare.split("_")
            new = rng.choice(
                [words[0], words[-1], "_".join(reversed(words)), words[0] + "".join(map(str.title, words[1:]))]
            )
        elif kind < 0.75:
            prefix = rng.choice(
                ["new", "old", "raw", "current", "max", "num", "is", "my", "all", "base", "input", "default"]
            )
            new = f"{prefix}_{bare}"
        else:
            new = f"{bare}_{rng.choice(['list', 'name', 'id', 'value', 'count', 'dict', 'map', 'path', 'obj', 'str', 'data', 'info'])}"
        if private and rng.random() < 0.7:
            new = f"_{new.lstrip('_')}"
        if new not in taken and new != name and new.isidentifier() and not keyword.iskeyword(new):
            return new
    return f"{name}_2"
