"""What each refactoring call means in plain words: shown to the user, and compared with the instruction."""

from __future__ import annotations

import re

from fulgur.text.edit_format import Call

# name -> (what it does, words that an instruction may use for it); {0}, {1} are arguments, {0:} all from that one on
MEANINGS: dict[str, tuple[str, str]] = {
    "rename": ("rename {0} to {1}", "rename renaming renamed name names named call called better"),
    "rename_parameter": (
        "rename the parameter {1} of {0} to {2}, also in calls that pass it by name",
        "rename renaming renamed name named call called better",
    ),
    "add_parameter": (
        "add the parameter {1:} to {0}",
        "add new parameter param argument arg kwarg optional default and pass callers calls",
    ),
    "remove_parameter": ("remove the parameter {1} from {0}", "unused parameter param argument arg"),
    "use_keywords": (
        "pass the arguments of {0} by name",
        "keyword keywords pass arguments args name explicit calling",
    ),
    "extract_constant": (
        "extract {0} into the constant {1}",
        "extract constant module level magic number pull move",
    ),
    "extract_function": (
        "extract these lines into the function {0}",
        "extract function method helper pull out move lines own separate into called named",
    ),
    "move_symbol": ("move {0} to {1}, with its imports", "move module file put into"),
    "inline_function": ("replace every call of {0} with what it returns", "inline function everywhere calls"),
    "delete_symbol": ("delete {0}", "function method class"),
    "add_import": ("add `{0:}`", "add import missing from module"),
    "remove_import": ("remove the import of {0}", "unused import imports"),
    "remove_unused_imports": ("remove the unused imports", "unused import imports clean cleanup up"),
    "sort_imports": ("sort the imports", "sort sorted order import imports isort alphabetically organize organise"),
    "is_none": ("compare with None using `is`", "compare comparison comparing None is identity == != E711 equality"),
    "not_in": ("write `not in` and `is not`", "not in is E713 E714"),
    "use_isinstance": (
        "use isinstance instead of comparing types",
        "isinstance type types compare comparing comparison",
    ),
    "optional_union": (
        "write `X | None` instead of Optional",
        "Optional union None | X pep 604 type hints hint syntax",
    ),
    "use_truthiness": (
        "test for emptiness without len()",
        "truthiness len empty emptiness length compare comparing zero 0",
    ),
    "modern_super": (
        "call super() without arguments",
        "super modern modernize modernise arguments args py3 python 3 call",
    ),
    "drop_keys": ("iterate without .keys()", "keys .keys() iterate iterating"),
    "use_in": (
        "replace the comparisons with one `in`",
        "in membership tuple comparisons compare or equality chain single",
    ),
    "augmented_assignment": (
        "use augmented assignments, such as `+=`",
        "augmented assignment += -= shorthand in-place compound",
    ),
    "use_literal": (
        "use literals such as [] and {{}}",
        "literal literals dict list tuple constructor call [] {} brackets",
    ),
    "chain_comparison": ("chain the comparisons", "chain chained comparison comparisons range single one"),
    "raise_from": (
        "chain the exceptions with `from`",
        "raise from chain chaining exception exceptions cause error original e",
    ),
    "use_fstring": (
        "use f-strings",
        "f-string f-strings fstring fstrings f string strings format .format formatting % percent "
        "concatenation message interpolation convert",
    ),
    "quotes": ("use {0} quotes", "quote quotes quoted string strings double single"),
    "remove_comments": ("remove the comments", "comment comments"),
    "remove_prints": ("remove the prints", "print prints debug debugging statements calls"),
    "log_prints": (
        "log with {0:} instead of printing",
        "print prints log logger logging info debug warning error statements replace",
    ),
    "early_return": ("return early", "early return guard clause nesting flatten invert indent exit"),
    "remove_else_return": (
        "remove the else after a branch that exits",
        "else elif return returns raise raises continue break redundant unnecessary needless useless "
        "superfluous branch after need flatten unindent",
    ),
    "merge_nested_if": (
        "merge the nested ifs",
        "merge nested if ifs combine join collapse conditions and one single two both these",
    ),
    "swap_branches": ("swap the branches of the if", "swap invert flip reverse branches condition if else negate"),
    "use_ternary": (
        "use a conditional expression",
        "ternary conditional expression one-liner line single inline if else assign return collapse",
    ),
    "expand_ternary": (
        "write the conditional expression as if/else",
        "ternary conditional expression expand if else unfold",
    ),
    "use_dict_get": ("look the key up with .get()", "dict.get get .get() lookup look key default dict"),
    "use_with": ("open the file in a with statement", "with statement context manager close open file block"),
    "use_comprehension": ("use a comprehension", "comprehension list dict set loop append turn convert"),
    "use_enumerate": ("use enumerate", "enumerate index counter range len loop"),
    "use_items": ("iterate over .items()", "items .items() key keys value values iterate loop dict lookup"),
    "use_any_all": ("use any() or all()", "any all loop any() all() builtin"),
    "return_directly": (
        "return the value directly",
        "return directly directly variable temp temporary pointless useless unnecessary needed extra "
        "intermediate assign assignment right away",
    ),
    "inline": ("replace {0} with its value", "inline variable temp local once"),
    "extract_variable": (
        "extract {1:} into the variable {0}",
        "extract variable local pull name introduce assign store",
    ),
    "add_await": ("await {0}", "await missing async call coroutine"),
    "wrap_try": (
        "catch {1} where {0} is called: {2:}",
        "wrap try except catch ignore swallow suppress handle log return raise error errors exception if when "
        "fails raises pass call",
    ),
    "set_value": (
        "set {0} to {1:}",
        "set change update bump increase decrease raise lower value constant version to",
    ),
    "change_return": ("return {0} instead of {1:}", "return returns value change exit code result"),
    "change_exception": ("raise {1} instead of {0}", "raise raises exception error type change throw"),
    "narrow_except": ("catch {0:} only", "catch except only narrow bare exception broad specific everything replace"),
    "add_item": ("add {1:} to {0}", "add append list tuple set item element entry value include"),
    "add_entry": ("add {1}: {2:} to {0}", "add entry key value dict mapping map item"),
    "add_keyword": ("pass {1}={2:} to {0}", "pass add keyword argument arg call set with"),
    "set_keyword": ("pass {1}={2:} to {0}", "pass change set keyword argument arg call"),
    "add_member": ("add {1} = {2:} to {0}", "add member enum value new entry"),
    "add_field": ("add the field {1:} to {0}", "add field attribute dataclass new"),
    "guard_none": ("{1} {2:} when {0} is None", "raise return throw none guard check if when is early error"),
    "raise_if_empty": ("raise {1} when {0} is empty", "raise throw empty guard check if when is not error blank"),
    "raise_if": ("raise {1} when {0}", "raise throw guard check if when is negative zero error"),
    "add_assert": ("assert {0:}", "assert assertion add check that sanity"),
    "log_entry": (
        "log the call with {0}.{1}",
        "log entry called call calls debug info warning logging start beginning at level when add logger line",
    ),
    "wrap_body": (
        "return {1:} when the body raises {0}",
        "wrap body try except catch return whole everything function if when fails raises default fallback",
    ),
    "make_async": (
        "make the function async, with everything that calls it",
        "async coroutine asynchronous def make function method and await callers calls turn convert into",
    ),
    "annotate": ("annotate {0} as {1:}", "annotate annotation type hint typed parameter argument param arg"),
    "annotate_return": (
        "annotate the return value as {0:}",
        "annotate annotation type hint hints return returns returning missing nothing result value add",
    ),
    "add_type_hints": (
        "add the type hints {0:}",
        "add type hint hints annotation annotations annotate typing missing types signature returns return "
        "takes",
    ),
    "remove_type_hints": ("remove the type hints", "type hint hints annotation annotations typing types"),
    "add_decorator": (
        "decorate with @{0:}",
        "decorate decorator decorated with add use make cache cached static class method property",
    ),
    "change_default": (
        "change the default of {0} to {1:}",
        "default defaults value change set parameter argument param make by",
    ),
    "new_parameter": (
        "add the parameter {0:}",
        "add new parameter param argument arg kwarg optional keyword default with defaulting option",
    ),
    "add_docstring": (
        "add the docstring \"{0:}\"",
        "add docstring docs doc document documentation describe write missing short one-line saying",
    ),
    "remove_docstring": ("remove the docstring", "docstring doc docs documentation"),
    "replace_text": ("replace `{0}` with `{1}`", "replace typo fix change"),
    "change_base": ("derive {0} from {1}", "base derive inherit subclass class"),
    "catch_also": ("catch {0} too", "catch also too well handle"),
    "use_generator": ("pass a generator instead of a list", "generator list comprehension expression"),
    "remove_pass": ("remove the pass", "pass statement"),
    "flatten_elif": ("write if instead of elif", "elif if plain"),
    "return_if": ("return {1:} when {0}", "return early when if unless"),
    "delete_statement": ("delete the statement `{0}`", "line statement"),
    "unwrap_call": ("remove the {0}() call around its argument", "around call wrapper needed"),
    "set_message": ("change the error message to \"{0}\"", "error message exception text change"),
    "lambda_to_def": ("write the lambda as a function", "lambda def function"),
    "add_base": ("derive {0} from {1} too", "base derive inherit subclass class also too"),
    "uncatch": ("no longer catch {0}", "catch catching except stop"),
    "add_default": ("give {0} the default {1:}", "default optional"),
    "import_to_top": ("import {0} at the top of the file", "import top module level"),
    "remove_decorator": ("remove the decorator @{0}", "decorator"),
    "make_static": ("make it a static method, without self", "static staticmethod method"),
    "accept_type": ("accept {0} too", "accept support allow also too type"),
    "extract_parameter": ("make {0} a parameter named {1}", "parameter argument configurable"),
    "remove_return_type": ("remove the return type", "return type annotation hint"),
    "remove_variable": ("remove the unused variable {0}", "unused variable"),
    "wrap_value": ("pass {1} to {0}()", "wrap call"),
    "only_return": ("return {0} and nothing else", "return just"),
    "remove_item": ("remove {1:} from {0}", "remove item entry key from"),
    "set_entry": ("set {1} in {0} to {2:}", "set change entry key value"),
    "remove_comment": ("remove the comment with “{1:}”", "comment comments"),
    "remove_dead_code": ("remove the commented-out code", "comment commented out code dead"),
    "add_comment": ("add the comment \"{0}\"", "comment add"),
    "assert_to_raise": ("raise {0} instead of asserting", "assert raise"),
    "instead_of_pass": ("{0:} instead of pass in the except", "pass except swallow ignore"),
    "message_with": ("put the value of {0} into the error message", "message error include show"),
    "log_level": ("log at the level {0}", "log level"),
    "return_condition": ("return the condition itself", "return condition boolean"),
    "use_yield_from": ("use yield from", "yield from loop"),
    "use_suppress": ("use contextlib.suppress", "suppress contextlib try except pass"),
    "membership_in": ("test membership in a {0}", "tuple set list membership"),
    "join_strings": ("join the parts of the strings", "join string parts"),
    "raw_strings": ("use raw strings for the patterns", "raw string regex pattern"),
    "remove_parentheses": ("remove the parentheses", "parentheses parens brackets"),
    "use_or": ("use `or` for the default", "or default"),
    "direct_attribute": ("use the attribute directly", "attribute setattr getattr"),
    "wrap_return": ("return the value passed through {0}()", "wrap return"),
    "first_call": ("call {1}() on {0} first", "first strip lower"),
    "remove_try": ("remove the try around it", "try except catch"),
    "swap_arguments": ("swap the arguments of {0}", "swap arguments"),
    "annotate_variable": ("annotate the variable {0} as {1:}", "annotate variable type"),
    "plain_placeholders": ("remove str() from the f-strings", "str f-string"),
    "unwrap_lambda": ("pass the function itself instead of a lambda", "lambda pointless"),
    "drop_u": ("drop the u prefix of the strings", "u prefix string"),
    "change_operator": ("write {1} instead of {0}", "comparison operator"),
    "set_docstring": ("change the docstring to \"{0:}\"", "docstring"),
    "store_parameter": ("store {0} as self.{1}", "store attribute"),
    "literal_kind": ("make {0} a {1}", "tuple list set"),
    "remove_base": ("no longer derive {0} from {1}", "base inherit"),
    "merge_isinstance": ("merge the isinstance calls into one", "isinstance tuple one single merge"),
    "and_or": ("write `and` … `or` as a conditional expression", "ternary conditional expression and or"),
    "while_true": ("write `while True`", "while True 1"),
    "drop_exception_name": ("drop the unused name of the exception", "as unused exception"),
    "iterate_file": ("iterate over the file itself", "iterate readlines file"),
    "variable_to_parameter": ("make the variable {0} a parameter", "parameter argument"),
    "add_method": ("add {1} to {0}, using {2:}", "add method repr eq hash slots"),
    "split_imports": ("write one import per line", "split imports line"),
    "keyword_only": ("make {1:} keyword-only in {0}, and pass it by name in calls", "keyword only keyword-only"),
}  # fmt: skip


def describe(call: Call) -> str:
    """What a call does, in words for the user."""
    template, args, where = MEANINGS[call.name][0], call.args, ""
    if args and args[0].startswith("@") and call.name != "add_decorator":
        where, args = f", in {args[0][1:]}", args[1:]

    def argument(match: re.Match[str]) -> str:
        first = int(match[1])
        return " ".join(args[first:]) if match[2] else args[first] if first < len(args) else ""

    if call.name == "change_base" and len(args) > 1 and not args[1]:
        return f"remove the base of {args[0]}"
    if call.name == "replace_text" and len(args) == 2 and not args[1]:
        return f"remove `{args[0]}`"
    if call.name == "raise_from" and args == ("None",):
        return "raise it `from None`"
    if call.name == "add_method" and len(args) > 2:
        unhashed = " (without a __hash__, its objects become unhashable)" if args[1] == "__eq__" else ""
        return f"add {args[1]} to {args[0]}, using {', '.join(args[2:])}{unhashed}"
    if call.name == "return_if" and len(args) == 1:
        return f"return when {args[0]}"
    if call.name == "make_async" and call.args:
        return f"make {call.args[0].lstrip('@')} async, with everything that calls it"
    text = re.sub(r"\{(\d)(:?)\}", argument, template)
    return text.replace("{{", "{").replace("}}", "}") + where
