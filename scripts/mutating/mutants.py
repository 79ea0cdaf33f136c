"""The mutants of a file: cosmic-ray's operators at every place where a change means something."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import cosmic_ray.plugins
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.exceptions import CosmicRayTestingException
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators.boolean_replacer import AddNot
from cosmic_ray.operators.exception_replacer import ExceptionReplacer
from cosmic_ray.operators.number_replacer import NumberReplacer
from cosmic_ray.operators.operator import Operator
from parso.python.tree import Name

# cosmic-ray puts each of twelve operators in the place of each other. The one or two nearest are asked here: what is
# farther, a shift in the place of a sum, falls to any test and would only raise the score.
ARITHMETIC = ("Add_Sub", "Sub_Add", "Mul_Div", "Div_Mul", "FloorDiv_Div", "FloorDiv_Mul", "Mod_FloorDiv", "Pow_Mul")
ARITHMETIC += ("LShift_RShift", "RShift_LShift", "BitAnd_BitOr", "BitOr_BitAnd", "BitXor_BitAnd")
COMPARISON = ("Eq_NotEq", "NotEq_Eq", "Lt_LtE", "Lt_GtE", "LtE_Lt", "LtE_Gt", "Gt_GtE", "Gt_LtE", "GtE_Gt", "GtE_Lt")
COMPARISON += ("Is_IsNot", "IsNot_Is")
OTHERS = ("ReplaceUnaryOperator_USub_UAdd", "ReplaceUnaryOperator_Delete_Not", "ReplaceUnaryOperator_Delete_Invert")
OTHERS += ("AddNot", "ReplaceTrueWithFalse", "ReplaceFalseWithTrue", "ReplaceAndWithOr", "ReplaceOrWithAnd")
OTHERS += ("ReplaceBreakWithContinue", "ReplaceContinueWithBreak", "RemoveDecorator")
OTHERS += ("ZeroIterationForLoop",)
NAMES = tuple(
    f"core/{name}"
    for name in (
        *(f"ReplaceBinaryOperator_{pair}" for pair in ARITHMETIC),
        *(f"ReplaceComparisonOperator_{pair}" for pair in COMPARISON),
        *OTHERS,
    )
)
# Below it a number counts something and is put off by one; from it on it is a limit, and one more says nothing.
LIMIT = 10
# Signs that cosmic-ray takes for operators: the lone `*` and `/` of a signature, `**` within a dictionary.
NO_OPERATOR_IN = {"parameters", "typedargslist", "lambdef", "param", "arglist", "dictorsetmaker"}


class HandlerReplacer(ExceptionReplacer):  # type: ignore[misc]
    """An exception that is not handled any more; cosmic-ray's own stumbles over a dotted name."""

    @staticmethod
    def _name_nodes(node: Any) -> Any:
        named = node.children[1]
        inner = named.children[1] if named.type == "atom" else named
        return inner.children[::2] if inner.type == "testlist_comp" else (inner,)

    def mutate(self, node: Any, index: int) -> Any:
        name = self._name_nodes(node)[index]
        other = Name(CosmicRayTestingException.__name__, name.start_pos, prefix=name.get_first_leaf().prefix)
        name.parent.children[name.parent.children.index(name)] = other
        return node


class CountReplacer(NumberReplacer):  # type: ignore[misc]
    """A number below LIMIT, one more and one less."""

    def mutation_positions(self, node: Any) -> Iterator[Any]:
        yield from (place for place in super().mutation_positions(node) if abs(ast.literal_eval(node.value)) < LIMIT)


class LimitReplacer(NumberReplacer):  # type: ignore[misc]
    """A number from LIMIT on, three times as large and a third of it."""

    def mutation_positions(self, node: Any) -> Iterator[Any]:
        yield from (place for place in super().mutation_positions(node) if abs(ast.literal_eval(node.value)) >= LIMIT)

    def mutate(self, node: Any, index: int) -> Any:
        value = ast.literal_eval(node.value)
        third = value / 3 if isinstance(value, float) else value // 3
        node.value = repr((value * 3, third)[index])
        return node


class MembershipReplacer(Operator):  # type: ignore[misc]
    """`in` for `not in`, and the other way round."""

    def mutation_positions(self, node: Any) -> Iterator[Any]:
        if node.type == "comparison":
            yield from ((sign.start_pos, sign.end_pos) for sign in _memberships(node))

    def mutate(self, node: Any, index: int) -> Any:
        sign = _memberships(node)[index]
        node.children[node.children.index(sign)] = get_ast(" in" if _text(sign) != "in" else " not in")
        return node

    @classmethod
    def examples(cls) -> tuple[()]:
        return ()


class OneOfTwo(Operator):  # type: ignore[misc]
    """`max(a, b)` or `min(a, b)`, the one argument and the other: a bound that does not bind."""

    def mutation_positions(self, node: Any) -> Iterator[Any]:
        if _two_arguments(node):
            yield from [(node.start_pos, node.end_pos)] * 2

    def mutate(self, node: Any, index: int) -> Any:
        before, inner = node.children[0].get_first_leaf().prefix, _two_arguments(node)[index]
        return get_ast(f"{before}({inner.get_code().strip()})")

    @classmethod
    def examples(cls) -> tuple[()]:
        return ()


def _memberships(node: Any) -> list[Any]:
    return [child for child in node.children[1::2] if _text(child) in ("in", "not in")]


def _two_arguments(node: Any) -> list[Any]:
    """The arguments when the node is a call of `max` or `min` with two plain ones, else none."""
    if (
        node.type not in ("power", "atom_expr")
        or len(node.children) != 2
        or _text(node.children[0]) not in ("max", "min")
    ):
        return []
    inside = node.children[1].children[1] if len(node.children[1].children) == 3 else None
    arguments = inside.children[::2] if inside is not None and inside.type == "arglist" else []
    return arguments if len(arguments) == 2 and all(one.type != "argument" for one in arguments) else []


def _text(node: Any) -> str:
    return " ".join(str(node.get_code()).split())


@dataclass(frozen=True)
class Mutant:
    """One change of one file; `lines` are those of the statement that it changes."""

    path: str
    operator: str
    line: int
    lines: tuple[int, ...]
    before: str
    after: str

    @property
    def diff(self) -> str:
        """As a patch, with the statement around it."""
        before, after = (text.splitlines(keepends=True) for text in (self.before, self.after))
        return "".join(difflib.unified_diff(before, after, f"a/{self.path}", f"b/{self.path}", n=2))


@dataclass(frozen=True)
class Place:
    """Where one operator can change one file, not yet done: making a mutant costs more than finding it."""

    path: str
    operator: Operator
    occurrence: int
    line: int

    def mutant(self, source: str) -> Mutant | None:
        """The change done; None when it is no program, or the same one."""
        after = mutate_code(source, self.operator, self.occurrence)
        tree = ast.parse(source)
        try:
            compile(after, self.path, "exec")
        except SyntaxError:
            return None
        if ast.dump(ast.parse(after)) == ast.dump(tree):
            return None
        return Mutant(self.path, type(self.operator).__name__, self.line, _statement(tree, self.line), source, after)


def places_of(path: str, source: str) -> Iterator[Place]:
    """All of a file, in an order that depends on its text only."""
    parsed = list(ast_nodes(get_ast(source)))
    left_out = _left_out(ast.parse(source), source)
    plugins = [cosmic_ray.plugins.get_operator(name)() for name in NAMES]
    for operator in (*plugins, HandlerReplacer(), CountReplacer(), LimitReplacer(), MembershipReplacer(), OneOfTwo()):
        found = ((node, begin) for node in parsed for begin, _ in operator.mutation_positions(node))
        for occurrence, (node, begin) in enumerate(found):
            if node.type == "operator" and node.parent.type in NO_OPERATOR_IN:
                continue
            if isinstance(operator, AddNot) and _negated_elsewhere(node):
                continue
            if not any(first <= begin < last for first, last in left_out):
                yield Place(path, operator, occurrence, begin[0])


def _negated_elsewhere(node: Any) -> bool:
    """A comparison, or what has a `not` already: other operators turn it round."""
    return node.children[2 if node.type == "test" else 1].type in ("comparison", "not_test")


def _left_out(tree: ast.Module, source: str) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """The places of which no test can or should notice a change."""
    found = [part for node in ast.walk(tree) for part in _left_out_of(node)]
    lines = source.splitlines()

    def place(line: int, offset: int) -> tuple[int, int]:
        return line, len(lines[line - 1].encode()[:offset].decode())  # ast counts bytes

    return [
        (place(node.lineno, node.col_offset), place(node.end_lineno, node.end_col_offset))  # type: ignore[attr-defined]
        for node in found
    ]


def _left_out_of(node: ast.AST) -> Iterator[ast.AST]:
    """Annotations, protocols and what stands under TYPE_CHECKING, which only the type checker reads; arguments of
    decorators (`frozen=True`: nobody writes); `strict=` of zip (an assertion); formatted text of an exception."""
    match node:
        case ast.arg(annotation=ast.AST() as annotation) | ast.AnnAssign(annotation=annotation):
            yield annotation
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            yield node
        case ast.keyword(arg="strict"):
            yield node.value
        case ast.Raise():
            yield from (inner for inner in ast.walk(node) if isinstance(inner, ast.JoinedStr))
        case ast.ClassDef() if any(isinstance(base, ast.Name) and base.id == "Protocol" for base in node.bases):
            yield node
        case ast.FunctionDef(returns=ast.AST() as returns) | ast.AsyncFunctionDef(returns=ast.AST() as returns):
            yield returns
    for decorator in getattr(node, "decorator_list", []):
        if isinstance(decorator, ast.Call):
            yield from decorator.args
            yield from (keyword.value for keyword in decorator.keywords)


def _statement(tree: ast.Module, line: int) -> tuple[int, ...]:
    """The lines of the innermost statement at `line`; of one with a body, those of its head."""
    innermost: tuple[int, int] = (line, line)
    for node in ast.walk(tree):  # from the outside in
        if isinstance(node, ast.stmt | ast.excepthandler) and node.lineno <= line <= (node.end_lineno or node.lineno):
            body = getattr(node, "body", None)
            innermost = (node.lineno, max(node.lineno, body[0].lineno - 1) if body else node.end_lineno or node.lineno)
    return tuple(range(innermost[0], innermost[1] + 1))
