"""Program → exact values: the definitions of the language over fractions, or over the ring of `residues`.

Inputs are arrays of objects (fractions or residues), of booleans and of integers. There is no NaN here, so a predicate
only leaves terms out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from itertools import combinations
from math import prod
from typing import Any, assert_never

import numpy as np

from tensorattn.comparing.residues import Exact, InexactError, Residue, apply, power
from tensorattn.comparing.terms import exact
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
    Slot,
    Split,
    Tensor,
    Top,
)
from tensorattn.program import Program
from tensorattn.reference.named import EVERYWHERE, Named, align, union

MOST_TUPLES = 20_000
ORDERS = {"less_equal": "__le__", "greater_equal": "__ge__", "less": "__lt__", "greater": "__gt__", "equal": "__eq__"}


@dataclass(frozen=True, slots=True)
class Scope:
    """Sizes, tensors, and the key of the random functions (None: fractions only)."""

    sizes: Mapping[str, int]
    tensors: Mapping[str, np.ndarray]
    key: bytes | None

    def shape(self, indices: Iterable[Index]) -> tuple[int, ...]:
        return tuple(self.sizes[i.name] for i in indices)

    def full(self, named: Named, order: Sequence[Index]) -> np.ndarray:
        """The array over exactly these indices."""
        if prod(self.shape(order)) > MOST_TUPLES:
            raise InexactError
        return np.broadcast_to(align(named, order), self.shape(order))


def exact_values(
    program: Program, inputs: Mapping[str, np.ndarray], sizes: Mapping[str, int], key: bytes | None
) -> dict[str, np.ndarray]:
    """Every statement's value. Raises: InexactError where a function has no exact value, or sizes are too large."""
    tensors = dict(inputs)
    for statement in program.statements:
        scope = Scope(sizes, tensors, key)
        found = scope.full(value(statement.body, scope), statement.indices)
        tensors[statement.name] = found.reshape([prod(scope.shape(axis)) for axis in statement.axes])
    return tensors


def value(node: Expr, scope: Scope) -> Named:
    """The array of an expression over its free indices."""
    match node:
        case Number(value=number):
            return Named((), _objects(exact(number)))
        case Extent(name=name):
            return Named((), _objects(scope.sizes[name]))
        case Position(index=index):
            return Named((index,), np.arange(scope.sizes[index.name]).astype(object))
        case Tensor(name=name, slots=slots):
            return _read(scope.tensors[name], slots, scope)
        case Constant(kind=kind, indices=indices):
            return Named(indices, _constant(kind, scope.shape(indices)))
        case Product(factors=factors, summed=summed):
            return _sum([_numbers(value(f, scope)) for f in factors], summed, scope)
        case Add(terms=terms):
            parts = [_numbers(value(t, scope)) for t in terms]
            order = union(parts)
            return Named(order, np.asarray(reduce(np.add, (align(p, order) for p in parts)), dtype=object))
        case Map(function=function, arguments=arguments):
            return _map(function, [value(a, scope) for a in arguments], scope)
        case Reduce():
            return _reduce(node, scope)
        case Normalise():
            return _normalise(node, scope)
        case Top():
            raise InexactError
        case Concatenate():
            return _concatenate(node, scope)
        case _:
            assert_never(node)


def _objects(number: Exact) -> np.ndarray:
    array = np.empty((), dtype=object)
    array[()] = number
    return array


def _numbers(named: Named) -> Named:
    """A boolean used as a number is 0 or 1."""
    if named.array.dtype == object:
        return named
    return Named(named.indices, named.array.astype(np.int64).astype(object))


def _read(array: np.ndarray, slots: Sequence[Slot], scope: Scope) -> Named:
    places = [_place(slot, scope) for slot in slots]
    order = union(places)
    if 0 in array.shape:
        return Named(order, np.zeros(scope.shape(order), dtype=array.dtype))
    within = [np.clip(scope.full(p, order), 0, n - 1) for p, n in zip(places, array.shape, strict=True)]
    return Named(order, np.asarray(array[tuple(within)]) if within else array)


def _place(slot: Slot, scope: Scope) -> Named:
    match slot:
        case Index(name=name):
            return Named((slot,), np.arange(scope.sizes[name]))
        case Split(indices=indices):
            shape = scope.shape(indices)
            return Named(indices, np.arange(prod(shape)).reshape(shape))
        case Affine(terms=terms, constant=constant):
            atoms = [(c, value(atom, scope)) for c, atom in terms]
            order = union([atom for _, atom in atoms])
            total = sum((c * align(a, order).astype(np.int64) for c, a in atoms), start=np.int64(constant))
            return Named(order, np.asarray(total))


def _constant(kind: str, shape: tuple[int, ...]) -> np.ndarray:
    array = np.zeros(shape, dtype=object)
    for place in np.ndindex(shape):
        match kind:
            case "ones":
                array[place] = 1
            case "delta":
                array[place] = int(len(set(place)) == 1)
            case "eps":
                array[place] = prod((b > a) - (b < a) for a, b in combinations(place, 2))
    return array


def _sum(factors: Sequence[Named], summed: Sequence[Index], scope: Scope) -> Named:
    order = union(factors, summed)
    if prod(scope.shape(order)) > MOST_TUPLES:
        raise InexactError
    total = _objects(1)
    for factor in factors:
        total = np.multiply(total, align(factor, order))
    whole = np.broadcast_to(total, scope.shape(order))
    kept = tuple(i for i in order if i not in summed)
    return Named(kept, np.asarray(np.sum(whole, axis=tuple(order.index(i) for i in summed)), dtype=object))


def _map(function: str, parts: Sequence[Named], scope: Scope) -> Named:
    order = union(parts)
    if function in ("and", "or", "not"):
        truths = [align(p, order).astype(bool) for p in parts]
        combine = {"and": np.logical_and, "or": np.logical_or}
        return Named(order, ~truths[0] if function == "not" else combine[function].reduce(np.broadcast_arrays(*truths)))
    if function == "where":
        chosen = [align(parts[0], order), *(align(_numbers(p), order) for p in parts[1:])]
        return Named(order, np.where(*chosen))
    arrays = [align(_numbers(p), order) for p in parts]

    def one(*values: Exact) -> Exact:
        if function in BOOLEAN:
            return _compare(function, values)
        return apply(function, values, scope.key)

    result = np.frompyfunc(one, len(arrays), 1)(*arrays)
    return Named(order, np.asarray(result, dtype=bool if function in BOOLEAN else object))


def _compare(function: str, values: Sequence[Exact]) -> bool:
    numbers = [Fraction(v) for v in values if not isinstance(v, Residue)]
    if len(numbers) < len(values):
        raise InexactError
    a, b = numbers
    return a != b if function == "not_equal" else bool(getattr(a, ORDERS[function])(b))


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows of a binder: values and admitted places, over the free indices and one axis for all the bound ones."""

    free: tuple[Index, ...]
    values: np.ndarray
    keep: np.ndarray


def _rows(indices: tuple[Index, ...], body: Named, where: Named, scope: Scope, more: Sequence[Named] = ()) -> _Rows:
    free = tuple(i for i in union([body, where, *more]) if i not in indices)
    shape = (*scope.shape(free), prod(scope.shape(indices)))
    values = scope.full(_numbers(body), (*free, *indices)).reshape(shape)
    return _Rows(free, values, scope.full(where, (*free, *indices)).reshape(shape).astype(bool))


def _where(where: Expr | None, scope: Scope) -> Named:
    return EVERYWHERE if where is None else value(where, scope)


def _reduce(node: Reduce, scope: Scope) -> Named:
    rows = _rows(node.indices, value(node.body, scope), _where(node.where, scope), scope)
    result = np.empty(rows.values.shape[:-1], dtype=object)
    for row in np.ndindex(result.shape):
        result[row] = _reduced(node.kind, list(rows.values[row][rows.keep[row]]), scope.key)
    return Named(rows.free, result)


def _reduced(kind: str, row: list[Exact], key: bytes | None) -> Exact:
    match kind:
        case "sum":
            return _total(row)
        case "mean":
            return _total(row) * Fraction(1, len(row)) if row else 0
        case "prod":
            return prod(row)
    if not row:
        raise InexactError
    numbers = [x for x in row if not isinstance(x, Residue)]
    if len(numbers) == len(row) and kind in ("max", "min"):
        return (max if kind == "max" else min)(numbers)
    if kind == "lse":
        return apply("log", (_total([apply("exp", (x,), key) for x in row]),), key)
    distinct = {Residue.of(x).p: x for x in row}
    centre = _total(list(distinct.values())) * Fraction(1, len(distinct))
    spread = sorted((Residue.of(x + -centre) for x in distinct.values()), key=lambda r: r.p)
    return centre + apply(kind + " of a row", tuple(spread), key)


def _total(row: Sequence[Exact]) -> Exact:
    return sum(row, start=0)


def _normalise(node: Normalise, scope: Scope) -> Named:
    options = {name: value(option, scope) for name, option in node.options}
    score = value(node.score, scope)
    rows = _rows(node.indices, score, _where(node.where, scope), scope, tuple(options.values()))
    weights = np.zeros(rows.values.shape, dtype=object)
    for row in np.ndindex(weights.shape[:-1]):
        chosen: dict[str, Any] = {name: scope.full(_numbers(o), rows.free)[row] for name, o in options.items()}
        kept = rows.keep[row]
        weights[row][kept] = _weights(node.kind, list(rows.values[row][kept]), chosen, scope.key)
    order = (*rows.free, *node.indices)
    return Named(order, weights.reshape(scope.shape(order)))


def _weights(kind: str, row: list[Exact], options: Mapping[str, Exact], key: bytes | None) -> list[Exact]:
    """The weights of the admitted scores of one row."""
    if not row:
        return []
    match kind:
        case "softmax":
            row = [apply("exp", (x,), key) for x in row]
            total = _total(row)
            if "sink" in options:
                total = total + apply("exp", (options["sink"],), key)
        case "l1norm":
            total = _total(row) + options.get("eps", 0)
        case "l2norm":
            total = apply("sqrt", (_total([x * x for x in row]),), key)
        case _:
            return _other_weights(kind, row, options, key)
    if not isinstance(total, Residue) and total == 0:
        return [0] * len(row)
    return [x * power(total, -1) for x in row]


def _other_weights(kind: str, row: list[Exact], options: Mapping[str, Exact], key: bytes | None) -> list[Exact]:
    """Sparse weights as a random function that a shift of the scores or another order leaves as it is."""
    centre = _total(row) * Fraction(1, len(row))
    moved = [Residue.of(x + -centre) for x in row]
    spread = sorted(moved, key=lambda r: r.p)
    more = tuple(value for _, value in sorted(options.items()))
    return [apply(f"{kind} of a row", (x, *spread, *more), key) for x in moved]


def _concatenate(node: Concatenate, scope: Scope) -> Named:
    parts = [_numbers(value(a, scope)) for a in node.arguments]
    free = tuple(i for i in union(parts) if i not in node.parts)
    pieces = [scope.full(p, (*free, own)) for p, own in zip(parts, node.parts, strict=True)]
    return Named((*free, node.index), np.concatenate(pieces, axis=-1))
