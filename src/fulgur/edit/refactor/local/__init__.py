"""Refactorings inside one region: exact, or refused. A call names only what the region or the instruction names.

In the whole region: is_none · not_in · use_isinstance · optional_union · use_truthiness · modern_super · drop_keys
use_in · augmented_assignment · use_literal · chain_comparison · raise_from [NAME] · use_fstring · quotes double|single
remove_comments · remove_prints · log_prints LOGGER [LEVEL]
One place, the only one that fits: early_return · remove_else_return · merge_nested_if · swap_branches · use_ternary
expand_ternary · use_dict_get · use_with · use_comprehension · use_enumerate · use_items · use_any_all
return_directly [NAME]
By name: inline NAME · extract_variable NAME EXPRESSION · add_await CALL · set_value NAME VALUE · change_return NEW OLD
wrap_try CALL EXCEPTION pass|continue|return VALUE|raise OTHER|log LOGGER LEVEL · change_exception OLD NEW
narrow_except EXCEPTION · add_item NAME VALUE · add_entry NAME KEY VALUE · add_keyword CALL PARAMETER VALUE
set_keyword CALL PARAMETER VALUE · add_member CLASS NAME VALUE · add_field CLASS name: type = value
One function, with [@NAME] first if there are several: guard_none PARAMETER raise EXCEPTION|return VALUE
raise_if_empty PARAMETER EXCEPTION · add_assert CONDITION · log_entry LOGGER LEVEL · wrap_body EXCEPTION VALUE
make_async · annotate PARAMETER TYPE · annotate_return TYPE · add_type_hints a: int -> str · remove_type_hints
add_decorator DECORATOR · change_default PARAMETER VALUE · new_parameter name: type = default · add_docstring TEXT
remove_docstring
Literally: replace_text OLD NEW · raise_if CONDITION EXCEPTION · change_base CLASS NEW [OLD] · catch_also EXCEPTION
use_generator · remove_pass · flatten_elif [TEST]
One named thing: return_if CONDITION [VALUE] · delete_statement CODE · unwrap_call NAME [ARGUMENT]
set_message TEXT · lambda_to_def [NAME] · add_base CLASS NEW · uncatch EXCEPTION · add_default PARAMETER VALUE
remove_decorator NAME · make_static · accept_type NEW [OLD] · extract_parameter VALUE NAME · remove_return_type
remove_variable NAME · wrap_value FUNCTION EXPRESSION · only_return VALUE · remove_item NAME VALUE
set_entry NAME KEY VALUE · remove_comment one|all WORD… · remove_dead_code · add_comment TEXT [CODE]
assert_to_raise EXCEPTION [CONDITION] · instead_of_pass ACTION… · message_with NAME · log_level NEW [OLD]
In fewer words: return_condition · use_yield_from · use_suppress · membership_in tuple|set · join_strings · raw_strings
remove_parentheses · use_or · direct_attribute · plain_placeholders · unwrap_lambda · drop_u
Arguments and results: wrap_return FUNCTION · first_call PARAMETER METHOD · remove_try [EXCEPTION] · swap_arguments CALL
annotate_variable NAME TYPE · change_operator OLD NEW · set_docstring TEXT · store_parameter NAME ATTRIBUTE
literal_kind NAME tuple|list|set · remove_base CLASS BASE
Lint fixes: merge_isinstance · and_or · while_true · drop_exception_name [NAME] · iterate_file
variable_to_parameter NAME · add_method CLASS __repr__|__eq__|__hash__|__slots__ ATTRIBUTE…
"""

from __future__ import annotations

from fulgur.edit.refactor.errors import RefactorError
from fulgur.edit.refactor.local import (
    comments,
    comprehensions,
    entries,
    exact,
    expressions,
    functions,
    handlers,
    heads,
    idioms,
    literals,
    loops,
    methods,
    named,
    results,
    simplify,
    statements,
    strings,
    values,
    variables,
)
from fulgur.edit.refactor.local.piece import Piece, Refactoring
from fulgur.edit.refactor.meaning import describe
from fulgur.edit.refactor.source import Unusable, apply_edits, parse_region
from fulgur.text.edit_format import Call

MANY = 99
# name -> (least arguments, most arguments, implementation)
LOCAL: dict[str, tuple[int, int, Refactoring]] = {
    **{
        function.__name__: (0, 0, function)
        for function in (
            expressions.is_none, expressions.not_in, expressions.use_isinstance, expressions.optional_union,
            expressions.use_truthiness, expressions.modern_super, expressions.drop_keys, expressions.use_in,
            expressions.augmented_assignment, expressions.use_literal, expressions.chain_comparison,
            expressions.remove_comments, strings.use_fstring, statements.remove_prints,
            statements.early_return, statements.remove_else_return, statements.merge_nested_if,
            statements.swap_branches, statements.use_ternary, statements.expand_ternary, statements.use_dict_get,
            statements.use_with, comprehensions.use_comprehension, loops.use_enumerate, loops.use_items,
            loops.use_any_all,
        )
    },
    "raise_from": (0, 1, expressions.raise_from),
    "return_directly": (0, 1, statements.return_directly),
    "quotes": (1, 1, expressions.quotes),
    "log_prints": (1, 2, statements.log_prints),
    "inline": (1, 1, variables.inline),
    "extract_variable": (2, MANY, variables.extract_variable),
    "add_await": (1, 1, variables.add_await),
    "wrap_try": (3, MANY, variables.wrap_try),
    "set_value": (2, MANY, variables.set_value),
    "change_return": (2, MANY, variables.change_return),
    "change_exception": (2, 2, variables.change_exception),
    "narrow_except": (1, MANY, variables.narrow_except),
    "add_item": (2, MANY, literals.add_item),
    "add_entry": (3, MANY, literals.add_entry),
    "add_keyword": (3, MANY, literals.add_keyword),
    "set_keyword": (3, MANY, literals.set_keyword),
    "add_member": (3, MANY, literals.add_member),
    "add_field": (2, MANY, literals.add_field),
    "guard_none": (3, MANY, functions.guard_none),
    "raise_if_empty": (2, 3, functions.raise_if_empty),
    "add_assert": (1, MANY, functions.add_assert),
    "log_entry": (2, 3, functions.log_entry),
    "wrap_body": (2, MANY, functions.wrap_body),
    "make_async": (0, 1, functions.make_async),
    "annotate": (2, MANY, functions.annotate),
    "annotate_return": (1, MANY, functions.annotate_return),
    "add_type_hints": (1, MANY, functions.add_type_hints),
    "remove_type_hints": (0, 1, functions.remove_type_hints),
    "add_decorator": (1, MANY, functions.add_decorator),
    "change_default": (2, MANY, functions.change_default),
    "new_parameter": (1, MANY, functions.new_parameter),
    "add_docstring": (1, MANY, functions.add_docstring),
    "remove_docstring": (0, 1, functions.remove_docstring),
    "replace_text": (2, 2, exact.replace_text),
    "raise_if": (2, 3, exact.raise_if),
    "change_base": (2, 3, exact.change_base),
    "catch_also": (1, 1, exact.catch_also),
    "use_generator": (0, 0, exact.use_generator),
    "remove_pass": (0, 0, exact.remove_pass),
    "flatten_elif": (0, 1, exact.flatten_elif),
    "return_if": (1, 3, named.return_if),
    "delete_statement": (1, 1, named.delete_statement),
    "unwrap_call": (1, 2, named.unwrap_call),
    "set_message": (1, 1, named.set_message),
    "lambda_to_def": (0, 1, named.lambda_to_def),
    "add_base": (2, 2, named.add_base),
    "uncatch": (1, 1, named.uncatch),
    "add_default": (2, 3, named.add_default),
    "remove_decorator": (1, 1, heads.remove_decorator),
    "make_static": (0, 1, heads.make_static),
    "accept_type": (1, 2, heads.accept_type),
    "extract_parameter": (2, 2, heads.extract_parameter),
    "remove_return_type": (0, 1, heads.remove_return_type),
    "remove_variable": (1, 1, values.remove_variable),
    "wrap_value": (2, 2, values.wrap_value),
    "only_return": (1, 2, values.only_return),
    "remove_item": (2, MANY, entries.remove_item),
    "set_entry": (3, MANY, entries.set_entry),
    "remove_comment": (2, MANY, comments.remove_comment),
    "remove_dead_code": (0, 0, comments.remove_dead_code),
    "add_comment": (1, 2, comments.add_comment),
    "assert_to_raise": (1, 2, handlers.assert_to_raise),
    "instead_of_pass": (1, MANY, handlers.instead_of_pass),
    "message_with": (1, 1, handlers.message_with),
    "log_level": (1, 2, handlers.log_level),
    "return_condition": (0, 0, simplify.return_condition),
    "use_yield_from": (0, 0, simplify.use_yield_from),
    "use_suppress": (0, 0, simplify.use_suppress),
    "membership_in": (1, 1, simplify.membership_in),
    "join_strings": (0, 0, simplify.join_strings),
    "raw_strings": (0, 0, simplify.raw_strings),
    "remove_parentheses": (0, 0, simplify.remove_parentheses),
    "use_or": (0, 0, simplify.use_or),
    "direct_attribute": (0, 0, simplify.direct_attribute),
    "plain_placeholders": (0, 0, simplify.plain_placeholders),
    "unwrap_lambda": (0, 0, simplify.unwrap_lambda),
    "drop_u": (0, 0, simplify.drop_u),
    "change_operator": (2, 2, expressions.change_operator),
    "set_docstring": (1, MANY, functions.set_docstring),
    "store_parameter": (2, 3, heads.store_parameter),
    "literal_kind": (2, 2, literals.literal_kind),
    "remove_base": (2, 2, named.remove_base),
    "wrap_return": (1, 2, results.wrap_return),
    "first_call": (2, 3, results.first_call),
    "remove_try": (0, 1, results.remove_try),
    "swap_arguments": (1, 1, results.swap_arguments),
    "annotate_variable": (2, MANY, results.annotate_variable),
    "merge_isinstance": (0, 0, idioms.merge_isinstance),
    "and_or": (0, 0, idioms.and_or),
    "while_true": (0, 0, idioms.while_true),
    "drop_exception_name": (0, 1, idioms.drop_exception_name),
    "iterate_file": (0, 0, idioms.iterate_file),
    "variable_to_parameter": (1, 2, idioms.variable_to_parameter),
    "add_method": (2, MANY, methods.add_method),
}  # fmt: skip


def apply_local(region: str, call: Call, below: str = "", above: str = "") -> str:
    """The region after the refactoring; RefactorError when it cannot be done exactly or there is nothing to do."""
    least, most, refactor = LOCAL[call.name]
    if not least <= len(call.args) <= most:
        raise RefactorError(f"“{describe(call)}” has the wrong number of arguments")
    try:
        piece = Piece(region, below, above)
        edits = refactor(piece, call.args)
        changed = apply_edits(piece.text, edits)[len(piece.shift) :]
    except Unusable as error:
        raise RefactorError(f"“{describe(call)}” cannot be done: {error}") from None
    except (ValueError, IndexError, RecursionError):
        raise RefactorError(f"“{describe(call)}” cannot be done here") from None
    if changed == region:
        raise RefactorError(f"“{describe(call)}” changes nothing here")
    try:
        parse_region(changed)
    except Unusable:
        raise RefactorError(f"the result of “{describe(call)}” would not be valid Python") from None
    return changed


__all__ = ["LOCAL", "apply_local"]
