"""Two programs at given sizes and inputs: how inputs are drawn, and whether the values differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import prod
from typing import Literal, assert_never

import numpy as np

from tensorattn.comparing.exact import exact_values
from tensorattn.comparing.residues import Exact, P, Q, Residue
from tensorattn.comparing.sizing import Domain, Variable, bounds, domain
from tensorattn.cost import default_dtypes
from tensorattn.errors import ShapeError
from tensorattn.ir import (
    Add,
    Concatenate,
    Expr,
    Map,
    Normalise,
    Number,
    Product,
    Reduce,
    Statement,
    Tensor,
    children,
    walk,
)
from tensorattn.program import Program
from tensorattn.reference import evaluate, magnitude

TOLERANCE = 1e-9  # relative to the sums of absolute values
MOST_TUPLES = 20_000
Style = Literal["gentle", "positive", "wide", "integers"]
STYLES: tuple[Style, ...] = ("gentle", "positive", "wide", "integers")
Sizes = Mapping[Variable, int]
Inputs = dict[str, np.ndarray]
Degrees = tuple[int, int]  # bounds for a numerator and a denominator


@dataclass(frozen=True, slots=True)
class Pair:
    """Two programs without `...` that have the same inputs, one output of each, and what their sizes must satisfy."""

    first: Program
    second: Program
    output: str
    other: str
    domain: Domain
    dtypes: Mapping[str, str]

    def sizes_of(self, program: int, sizes: Sizes) -> dict[str, int]:
        return {str(v[2]): s for v, s in sizes.items() if v[:2] == ("index", program)}

    def tuples(self, sizes: Sizes) -> int:
        """How many tuples the largest product visits."""
        largest = 1
        for number, program in enumerate((self.first, self.second)):
            known = self.sizes_of(number, sizes)
            for node in (n for s in program.statements for n in walk(s.body)):
                bound = node.summed if isinstance(node, Product) else ()
                bound = node.indices if isinstance(node, (Reduce, Normalise)) else bound
                bound = node.parts if isinstance(node, Concatenate) else bound
                largest = max(largest, prod(known[i.name] for i in node.free | set(bound)))
        return largest

    @property
    def axes(self) -> tuple[str, ...]:
        """The names of the output's axes in the first program."""
        return tuple(" ".join(i.name for i in axis) for axis in self.first.statement(self.output).axes)


def pair(first: Program, second: Program, output: str, other: str, sizes: Mapping[str, int]) -> Pair:
    """The pair of programs without `...`."""
    programs = {0: first, 1: second}
    tied = domain(programs, {0: first.statement(output), 1: second.statement(other)}, sizes)
    kinds = [input_dtypes(p) for p in programs.values()]
    order = ("float64", "int64", "bool")
    dtypes = {name: max((kind[name] for kind in kinds), key=order.index) for name in kinds[0]}
    return Pair(first, second, output, other, tied, dtypes)


def input_dtypes(program: Program) -> dict[str, str]:
    """What each place asks of the inputs, through definitions that only pass a tensor on."""
    found = default_dtypes(program)
    for statement in reversed(program.statements):
        if isinstance(statement.body, Tensor) and statement.body.name in found:
            alone = Program((*program.statements[program.statements.index(statement) + 1 :], _read(statement)))
            asked = default_dtypes(alone).get(statement.name, "float64")
            found[statement.body.name] = (
                asked if found[statement.body.name] == "float64" else found[statement.body.name]
            )
    return found


def _read(statement: Statement) -> Statement:
    return Statement("", statement.axes, Tensor(statement.name, statement.indices))


# Inputs ------------------------------------------------------------------------------------------------------------


def draw(pair: Pair, sizes: Sizes, style: Style, rng: np.random.Generator) -> Inputs:
    """Inputs of these sizes: truths and positions as the programs ask, numbers in the style."""
    limits = bounds(pair.domain, sizes)
    found: Inputs = {}
    for name, dtype in pair.dtypes.items():
        shape = shape_of(name, sizes)
        match dtype:
            case "bool":
                found[name] = np.asarray(rng.random(shape) < 0.6)
            case "int64":
                found[name] = np.asarray(rng.integers(0, limits.get(name, 2), size=shape))
            case _:
                found[name] = np.asarray(_floats(style, shape, rng))
    return found


def shape_of(name: str, sizes: Sizes) -> tuple[int, ...]:
    """The shape of an input."""
    axes = sorted((int(str(v[2])), s) for v, s in sizes.items() if v[:2] == ("axis", name))
    return tuple(s for _, s in axes)


def _floats(style: Style, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    match style:
        case "gentle":
            return rng.uniform(-1.5, 1.5, size=shape)
        case "positive":
            return rng.uniform(0.5, 1.5, size=shape)
        case "wide":
            return rng.normal(size=shape) * 4
        case "integers":
            return rng.integers(-3, 4, size=shape).astype(np.float64)
        case _:
            assert_never(style)


def residues(inputs: Inputs, rng: np.random.Generator) -> Inputs:
    """The same truths and positions, with uniform residues for the numbers."""
    return {name: _residues(array.shape, rng) if array.dtype.kind == "f" else array for name, array in inputs.items()}


def _residues(shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    array = np.empty(shape, dtype=object)
    for place in np.ndindex(shape):
        array[place] = Residue(int.from_bytes(rng.bytes(24), "big") % P, int.from_bytes(rng.bytes(24), "big") % Q)
    return array


def fractions(inputs: Inputs) -> Inputs:
    """The same inputs with the numbers as fractions."""
    return {
        n: np.frompyfunc(Fraction, 1, 1)(a) * np.ones(a.shape, dtype=object) if a.dtype.kind == "f" else a
        for n, a in inputs.items()
    }


# Differences -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a comparison saw: how many entries could be compared, and the first that differ."""

    compared: int
    entry: tuple[int, ...] | None = None
    first: object = None
    second: object = None

    @property
    def differs(self) -> bool:
        return self.entry is not None


def compare_floats(pair: Pair, sizes: Sizes, inputs: Inputs) -> Outcome | None:
    """Both programs by the reference; entries not finite in one are passed over. None: a program refuses."""
    known = [pair.sizes_of(n, sizes) for n in (0, 1)]
    try:
        a = evaluate(pair.first, inputs, known[0], [pair.output])[pair.output].astype(np.float64)
        b = evaluate(pair.second, inputs, known[1], [pair.other])[pair.other].astype(np.float64)
        scale = magnitude(pair.first, inputs, known[0], [pair.output])[pair.output].astype(np.float64)
        scale = np.maximum(scale, magnitude(pair.second, inputs, known[1], [pair.other])[pair.other])
    except ShapeError:  # a position outside its axis, for these sizes or positions
        return None
    finite = np.isfinite(a) & np.isfinite(b)
    with np.errstate(all="ignore"):
        wrong = finite & ~(np.abs(a - b) <= TOLERANCE * np.maximum(scale, np.maximum(np.abs(a), np.abs(b))))
    return _outcome(finite, wrong, a, b)


def compare_exactly(pair: Pair, sizes: Sizes, inputs: Inputs, key: bytes | None) -> Outcome:
    """Both programs over fractions or residues. Raises: InexactError."""
    a = exact_values(pair.first, inputs, pair.sizes_of(0, sizes), key)[pair.output]
    b = exact_values(pair.second, inputs, pair.sizes_of(1, sizes), key)[pair.other]
    unlike = np.frompyfunc(lambda x, y: not _same(x, y), 2, 1)
    wrong = np.asarray(unlike(a, b), dtype=bool)
    return _outcome(np.ones(wrong.shape, dtype=bool), wrong, a, b)


def _same(a: Exact, b: Exact) -> bool:
    if isinstance(a, Residue) or isinstance(b, Residue):
        return Residue.of(a).p == Residue.of(b).p
    return a == b


def _outcome(compared: np.ndarray, wrong: np.ndarray, a: np.ndarray, b: np.ndarray) -> Outcome:
    count = int(np.sum(compared))
    if not np.any(wrong):
        return Outcome(count)
    entry = tuple(int(n) for n in np.argwhere(wrong)[0])
    return Outcome(count, entry, _plain(a[entry]), _plain(b[entry]))


def _plain(number: object) -> object:
    return float(number) if isinstance(number, np.floating) else number


def degree(program: Program, output: str, sizes: Mapping[str, int]) -> tuple[int, int] | None:
    """Bounds on the degrees of numerator and denominator of an entry; None: it is no rational function."""
    known: dict[str, tuple[int, int] | None] = {}
    for statement in program.statements:
        known[statement.name] = _degree(statement.body, known, sizes)
    return known[output]


def _degree(node: Expr, known: Mapping[str, Degrees | None], sizes: Mapping[str, int]) -> Degrees | None:
    if isinstance(node, Tensor):
        return known.get(node.name, (1, 0))
    if isinstance(node, Normalise) or not children(node):
        return None if isinstance(node, Normalise) else (0, 0)
    if isinstance(node, Reduce) and node.kind not in ("sum", "mean", "prod"):
        return None
    if isinstance(node, Map) and node.function not in ("negate", "reciprocal", "power"):
        return None
    body = (node.body,) if isinstance(node, Reduce) else node.arguments[:1] if isinstance(node, Map) else children(node)
    found = [_degree(c, known, sizes) for c in body]
    parts = [p for p in found if p is not None]
    if len(parts) < len(found):
        return None
    top, low = [n for n, _ in parts], [d for _, d in parts]
    match node:
        case Map(function="reciprocal"):
            return low[0], top[0]
        case Map(function="power", arguments=(_, Number(value=int(n)))) if n >= 0:
            return n * top[0], n * low[0]
        case Map(function="power"):
            return None
        case Product(summed=indices):
            return _summed(sum(top), sum(low), prod(sizes[i.name] for i in indices))
        case Reduce(kind="prod", indices=indices):
            n = prod(sizes[i.name] for i in indices)
            return n * top[0], n * low[0]
        case Reduce(indices=indices):
            return _summed(top[0], low[0], prod(sizes[i.name] for i in indices))
        case Add():
            return max(t + sum(low) - d for t, d in parts), sum(low)
        case Concatenate():
            return max(top), max(low)
    return top[0], low[0]


def _summed(top: int, low: int, terms: int) -> tuple[int, int]:
    """The degrees of a sum of so many fractions."""
    return top + max(terms - 1, 0) * low, max(terms, 1) * low
