"""Dtypes: the logical dtype of every expression, found from the dtypes of the inputs (docs/design.md §6).

`bool < int64 < weak < float16, bfloat16 < float32 < float64`; *weak* is a float that no floating tensor made.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import assert_never

from tensorattn.errors import DTypeError
from tensorattn.ir import (
    BOOLEAN,
    Add,
    Affine,
    Concatenate,
    Constant,
    Expr,
    Extent,
    Index,
    Map,
    Normalise,
    Number,
    Position,
    Product,
    Reduce,
    Tensor,
    Top,
    walk,
)
from tensorattn.program import Program
from tensorattn.source import Source, Span

BOOL, INTEGER, WEAK = "bool", "int64", "weak"
HALVES = ("float16", "bfloat16")
FLOATS = (*HALVES, "float32", "float64")
_ORDER = (BOOL, INTEGER, WEAK, *FLOATS)
_PYTHON = {"int": INTEGER, "float": WEAK}
_EXACT = frozenset({"negate"})  # the functions that keep integers


def is_float(dtype: str) -> bool:
    """Whether a logical dtype is a float, weak ones included."""
    return dtype not in (BOOL, INTEGER)


def join(dtypes: Iterable[str]) -> str:
    """The widest of logical dtypes; float16 with bfloat16 is float32."""
    found = set(dtypes)
    if {*HALVES} <= found:
        found.add("float32")
    return max(found, key=_ORDER.index, default=INTEGER)


def number(dtype: str) -> str:
    """The dtype of a value used as a number: a truth is the integer 0 or 1."""
    return INTEGER if dtype == BOOL else dtype


def floating(dtype: str) -> str:
    """The dtype after a function that leaves the integers."""
    return dtype if is_float(dtype) else WEAK


def work(dtype: str) -> str:
    """The dtype a logical dtype is computed in."""
    return {WEAK: "float64", "float16": "float32", "bfloat16": "float32"}.get(dtype, dtype)


def visible(dtype: str) -> str:
    """The dtype of a result as the user sees it."""
    return "float64" if dtype == WEAK else dtype


def logical(name: str, dtype: str) -> str:
    """The logical dtype of an input, from the name of its dtype.

    Raises: DTypeError (`E-DTYPE`) for complex numbers and everything that is no number.
    """
    if dtype in _ORDER and dtype != WEAK:
        return dtype
    if dtype in _PYTHON:
        return _PYTHON[dtype]
    if dtype.startswith(("int", "uint")):
        return INTEGER
    hint = f"pass the real and imaginary parts of `{name}` as two inputs" if dtype.startswith("complex") else None
    what = f"input `{name}` has dtype {dtype}, which no formula takes"
    hint = hint or "give it as bool, an integer, float16, bfloat16, float32 or float64"
    raise DTypeError("E-DTYPE", what, hint=hint)


@dataclass(slots=True)
class Typing:
    """The logical dtypes of one program: of its inputs and statements by name, of any expression by `of`."""

    names: dict[str, str]
    _known: dict[Expr, str] = field(default_factory=dict)

    def of(self, node: Expr) -> str:
        """The logical dtype of an expression; truths are `bool`."""
        found = self._known.get(node)
        if found is None:
            found = self._known[node] = self._find(node)
        return found

    def _find(self, node: Expr) -> str:
        match node:
            case Number(value=value):
                return INTEGER if isinstance(value, int) else WEAK
            case Extent() | Position() | Constant():
                return INTEGER
            case Tensor(name=name):
                return self.names[name]
            case Product(factors=parts) | Add(terms=parts):
                return number(join(map(self.of, parts)))
            case Map(function="where", arguments=(_, *parts)):
                return floating(join(map(self.of, parts)))
            case Map(function=function, arguments=parts):
                if function in BOOLEAN:
                    return BOOL
                dtype = number(join(map(self.of, parts)))
                return dtype if function in _EXACT else floating(dtype)
            case Reduce(kind=kind, body=body):
                dtype = number(self.of(body))
                return dtype if kind == "sum" else floating(dtype)
            case Normalise(score=score, options=options):
                return floating(join((self.of(score), *(self.of(option) for _, option in options))))
            case Top():
                return BOOL
            case Concatenate(arguments=parts):
                return join(map(self.of, parts))
            case _:
                assert_never(node)


def infer(program: Program, input_dtypes: Mapping[str, str]) -> Typing:
    """The logical dtypes of a program.

    Raises: DTypeError (`E-DTYPE`) for complex inputs, a predicate that is no truth, an index tensor or an integer in
    a slot that is no integer.
    """
    typing = Typing({name: logical(name, input_dtypes[name]) for name in program.inputs})
    for statement in program.statements:
        for node in walk(statement.body):
            _check(node, typing, program.source)
        typing.names[statement.name] = typing.of(statement.body)
    return typing


def _check(node: Expr, typing: Typing, source: Source | None) -> None:
    for predicate in predicates(node):
        _check_predicate(predicate, typing, source)
    if isinstance(node, Top) and typing.of(node.count) != INTEGER:
        what = f"the count of `top` must be an integer, but its dtype is {visible(typing.of(node.count))}"
        raise DTypeError("E-DTYPE", what, source=source, spans=_spans(node.count), hint="give it as an integer")
    if isinstance(node, Map) and node.function == "uniform":
        for key in node.arguments:
            _check_key(key, typing, source)
    if isinstance(node, Tensor):
        for slot in node.slots:
            if isinstance(slot, Affine):
                for _, atom in slot.terms:
                    _check_integer(atom, node, typing, source)


def predicates(node: Expr) -> tuple[Expr, ...]:
    """The direct sub-expressions of a node that must be truths."""
    match node:
        case Reduce(where=where) | Normalise(where=where) | Top(where=where):
            return () if where is None else (where,)
        case Map(function="and" | "or" | "not", arguments=arguments):
            return arguments
        case Map(function="where", arguments=(condition, *_)):
            return (condition,)
    return ()


def _check_predicate(node: Expr, typing: Typing, source: Source | None) -> None:
    dtype = typing.of(node)
    if dtype == BOOL:
        return
    spans = _spans(node)
    if isinstance(node, Tensor):
        what = f"`{node.name}` is a predicate here, but its dtype is {visible(dtype)}"
        hint = f"give `{node.name}` as booleans, or compare it: `{_written(node)} != 0`"
    else:
        what = f"a predicate must be a truth, but this expression is a number ({visible(dtype)})"
        hint = "compare it: `... != 0`"
    raise DTypeError("E-DTYPE", what, source=source, spans=spans, hint=hint)


def _written(node: Tensor) -> str:
    names = [slot.name for slot in node.slots if isinstance(slot, Index)]
    if not node.slots:
        return node.name
    return f"{node.name}_<{' '.join(names)}>" if len(names) == len(node.slots) else f"{node.name}_<…>"


def _check_integer(atom: Expr, table: Tensor, typing: Typing, source: Source | None) -> None:
    if not isinstance(atom, Tensor) or typing.of(atom) == INTEGER:
        return
    dtype = visible(typing.of(atom))
    role = "an index tensor" if atom.slots else "an integer scalar"
    what = f"`{atom.name}` is {role} in a slot of `{table.name}`, but its dtype is {dtype}"
    raise DTypeError("E-DTYPE", what, source=source, spans=_spans(atom), hint=f"give `{atom.name}` as integers")


def _check_key(key: Expr, typing: Typing, source: Source | None) -> None:
    if not is_float(typing.of(key)):
        return
    named = f"`{_written(key)}`" if isinstance(key, Tensor) else "an argument"
    what = f"`uniform` takes integers, a seed and positions, but {named} is {visible(typing.of(key))}"
    raise DTypeError("E-DTYPE", what, source=source, spans=_spans(key), hint="give it as an integer")


def _spans(node: Expr) -> tuple[Span, ...]:
    if node.span is not None:
        return (node.span,)
    found = [child.span for child in walk(node) if child.span is not None]
    return (found[0],) if found else ()
