"""Program -> arrays, one definition a construct: every expression becomes an array over its free indices."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import assert_never

import numpy as np

from tensorattn.errors import BindingError, DTypeError, ShapeError
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
    Statement,
    Tensor,
    Top,
)
from tensorattn.program import Program
from tensorattn.reference.factors import count_data, divides, is_nothing
from tensorattn.reference.measuring import expanded, sizes_of
from tensorattn.reference.named import EVERYWHERE, NOWHERE, Named, align, both, either, some, union
from tensorattn.reference.rows import elementwise, reduce_row, weigh_row


@dataclass(frozen=True, slots=True)
class Stored:
    """An input or an evaluated statement: its array, where its predicates (if any) admit it, and its magnitude."""

    array: np.ndarray
    admitted: np.ndarray | None
    magnitude: np.ndarray


@dataclass(frozen=True, slots=True)
class Scope:
    """What an expression sees: sizes by index name, tensors, the tuples that enclosing predicates admit."""

    sizes: Mapping[str, int]
    tensors: Mapping[str, Stored]
    admitted: Named
    absolute: bool = False  # values, or magnitudes: the same sums with no cancellation

    def size(self, indices: Iterable[Index]) -> tuple[int, ...]:
        return tuple(self.sizes[i.name] for i in indices)

    def count(self, indices: Iterable[Index]) -> int:
        return math.prod(self.size(indices))

    def within(self, *masks: Named) -> Scope:
        """The scope below further predicates."""
        return replace(self, admitted=both(self.admitted, *masks))

    def over(self, indices: Sequence[Index]) -> Scope:
        """The scope below a binder of `indices`: an outer predicate on them does not reach inside."""
        return replace(self, admitted=some(self.admitted, indices))

    @property
    def exact(self) -> Scope:
        return replace(self, absolute=False)


def evaluate(
    program: Program,
    inputs: Mapping[str, object],
    sizes: Mapping[str, int] | None = None,
    outputs: Sequence[str] | None = None,
) -> dict[str, np.ndarray]:
    """The values of a program's statements, by name: `outputs`, default the last one.

    Raises: BindingError (E-INPUT), ShapeError (E-RANK E-BATCH E-EXTENT E-SPLIT E-RANGE), DTypeError (E-DTYPE).
    """
    stored = _run(program, inputs, sizes or {})
    return {name: stored[name].array for name in outputs or (program.statements[-1].name,)}


def magnitude(
    program: Program,
    inputs: Mapping[str, object],
    sizes: Mapping[str, int] | None = None,
    outputs: Sequence[str] | None = None,
) -> dict[str, np.ndarray]:
    """The scale against which a rounding error is small: products and sums of absolute values, scores as they are."""
    stored = _run(program, inputs, sizes or {})
    return {name: stored[name].magnitude for name in outputs or (program.statements[-1].name,)}


def _run(program: Program, inputs: Mapping[str, object], given: Mapping[str, int]) -> dict[str, Stored]:
    arrays = {}
    for name in program.inputs:
        if name not in inputs:
            raise BindingError("E-INPUT", f"the input `{name}` is missing")
        arrays[name] = _input(name, inputs[name])
    statements = expanded(program, {name: array.ndim for name, array in arrays.items()})
    sizes = sizes_of(statements, {name: array.shape for name, array in arrays.items()}, given)
    tensors = {name: Stored(a, None, np.abs(a)) for name, a in arrays.items()}
    for statement in statements:
        scope = Scope(sizes, dict(tensors), EVERYWHERE)
        with np.errstate(all="ignore"):
            kept = admitted(statement.body, scope)
            tensors[statement.name] = Stored(
                _laid_out(statement, value(statement.body, scope), scope),
                None if kept is None else _laid_out(statement, kept, scope),
                _laid_out(statement, value(statement.body, replace(scope, absolute=True)), scope),
            )
    return tensors


def _input(name: str, given: object) -> np.ndarray:
    array = np.asarray(given)
    if array.dtype.kind == "b":
        return array
    if array.dtype.kind in "iu":
        return array.astype(np.int64)
    if array.dtype.kind == "f":
        return array.astype(np.float64)
    raise DTypeError("E-DTYPE", f"`{name}` has dtype {array.dtype}", facts=["real numbers, integers and booleans only"])


def _laid_out(statement: Statement, result: Named, scope: Scope) -> np.ndarray:
    """The result in the statement's axis order, merged groups as one axis, the first index slow."""
    full = np.broadcast_to(align(result, statement.indices), scope.size(statement.indices))
    return full.reshape([scope.count(axis) for axis in statement.axes]).copy()


# Predicates: where a factor removes tuples from the product it stands in --------------------------------------------


def admitted(node: Expr, scope: Scope) -> Named | None:
    """The tuples that the predicates of a factor leave in its product, through products, sums and definitions.

    None where there is no predicate.
    """
    match node:
        case Normalise(where=where) if where is not None:
            return _truth(where, scope)
        case Reduce(kind="sum" | "mean", where=where, indices=indices) if where is not None:
            return some(_truth(where, scope), indices)
        case Reduce(kind="sum", indices=indices, body=body):  # `sum[j](A_j B_j)` is the product `A_j B_j`
            mask = admitted(body, scope)
            return None if mask is None else some(mask, indices)
        case Product(factors=factors, summed=summed):
            masks = [mask for f in factors if (mask := admitted(f, scope)) is not None]
            return some(both(*masks), summed) if masks else None
        case Add(terms=terms):  # what every term excludes
            found = [admitted(term, scope) for term in terms]
            return None if None in found else either(*(mask for mask in found if mask is not None))
        case Map(function="negate", arguments=(inner,)):
            return admitted(inner, scope)
        case Tensor(name=name, slots=slots):
            mask = scope.tensors[name].admitted
            unchecked = replace(scope, admitted=NOWHERE)  # the value's own reading checks the positions
            return None if mask is None else _read(slots, name, mask, unchecked)
        case _:
            return None


def _truth(where: Expr, scope: Scope) -> Named:
    mask = value(where, scope.exact)
    if mask.array.dtype != np.bool_:
        raise DTypeError("E-DTYPE", "a predicate must be boolean", facts=[f"it has dtype {mask.array.dtype}"])
    return mask


# Expressions --------------------------------------------------------------------------------------------------------


def value(node: Expr, scope: Scope) -> Named:
    """The array of an expression over its free indices; what an enclosing predicate excludes may hold anything."""
    match node:
        case Number(value=number):
            return Named((), np.asarray(abs(number) if scope.absolute else number))
        case Extent(name=name):
            return Named((), np.asarray(scope.sizes[name], np.float64))
        case Position(index=index):
            return Named((index,), np.arange(scope.sizes[index.name], dtype=np.float64))
        case Tensor(name=name, slots=slots):
            stored = scope.tensors[name]
            return _read(slots, name, stored.magnitude if scope.absolute else stored.array, scope)
        case Constant(kind=kind, indices=indices):
            return Named(indices, _constant(kind, indices, scope))
        case Product():
            return _product(node, scope)
        case Add(terms=terms):
            parts = [value(t, scope) for t in terms]
            order = union(parts)
            return Named(order, np.asarray(sum((align(p, order) for p in parts), start=np.int64(0))))
        case Map():
            return _map(node, scope)
        case Reduce():
            return _reduce(node, scope)
        case Normalise():
            return _normalise(node, scope)
        case Top():
            return _top(node, scope)
        case Concatenate():
            return _concatenate(node, scope)
        case _:
            assert_never(node)


def _constant(kind: str, indices: Sequence[Index], scope: Scope) -> np.ndarray:
    array = np.zeros(scope.size(indices), dtype=np.int64)
    for place in np.ndindex(array.shape):
        match kind:
            case "ones":
                array[place] = 1
            case "delta":
                array[place] = len(set(place)) == 1
            case "eps":
                array[place] = math.prod(np.sign(b - a) for a, b in itertools.combinations(place, 2))
            case _:
                raise TypeError(kind)
    return np.abs(array) if scope.absolute else array


def _product(node: Product, scope: Scope) -> Named:
    """`Σ_summed Π factors` over the admitted tuples; beside a predicate an admitted ±∞ or NaN makes its result NaN."""
    masks = [mask for f in node.factors if (mask := admitted(f, scope.exact)) is not None]
    factors = [value(f, scope.within(*masks)) for f in node.factors]
    if any(is_nothing(f, scope.sizes) for f in node.factors):  # what divides it stands inside, and divides nothing
        inside = [divides(f) for f in node.factors]
        factors = [Named(v.indices, np.ones(v.array.shape)) if i else v for v, i in zip(factors, inside, strict=True)]
    deltas = [value(f, scope) for f in node.factors if isinstance(f, Constant) and f.kind == "delta"]
    kept = both(*masks, *(Named(d.indices, d.array == 1) for d in deltas))  # a delta substitutes: it multiplies nothing
    order = union([*factors, kept], node.summed)
    shape = scope.size(order)
    axes = tuple(order.index(i) for i in node.summed)
    product, spoilt = np.ones(shape, dtype=np.int64), np.zeros(shape, dtype=bool)
    for factor in factors:
        product = product * align(factor, order)
        spoilt = spoilt | ~np.isfinite(align(factor, order))
    mask = np.broadcast_to(align(kept, order), shape)
    total = np.sum(np.where(mask, product, 0), axis=axes)
    reached = np.any(spoilt & mask, axis=axes)
    if masks and np.any(reached):
        total = np.where(reached, np.nan, total)
    return Named(tuple(i for i in order if i not in node.summed), total)


def _map(node: Map, scope: Scope) -> Named:
    parts = [value(a, scope.exact) for a in node.arguments]
    order = union(parts)
    result = elementwise(node.function, [align(p, order) for p in parts])
    if not scope.absolute or node.function in BOOLEAN:
        return Named(order, result)
    scales = [align(value(a, scope), order) for a in node.arguments]
    match node.function:
        case "uniform":
            return Named(order, result)
        case "negate":
            return Named(order, scales[0])
        case "where":
            return Named(order, np.where(align(parts[0], order), scales[1], scales[2]))
        case _:
            total = sum(scales)
            return Named(order, np.abs(result) * (1 + total) + total)


def _reduce(node: Reduce, scope: Scope) -> Named:
    where = EVERYWHERE if node.where is None else _truth(node.where, scope)
    body = value(node.body, scope.within(where))
    if node.kind in ("sum", "mean") and node.where is not None and count_data(node.body) > 1:
        body = Named(body.indices, np.where(np.isfinite(body.array), body.array, np.nan))
    free = tuple(i for i in union([body, where]) if i not in node.indices)
    order = free + node.indices
    shape = scope.size(order)
    values = np.broadcast_to(align(body, order), shape).reshape(*scope.size(free), scope.count(node.indices))
    keep = np.broadcast_to(align(where, order), shape).reshape(values.shape)
    exact = node.kind in ("sum",) and values.dtype.kind in "bi"
    result = np.zeros(scope.size(free), dtype=np.int64 if exact else np.float64)
    kind = "max" if scope.absolute and node.kind in ("min", "lse") else node.kind
    for row in np.ndindex(result.shape):
        result[row] = reduce_row(kind, values[row][keep[row]])
    if scope.absolute and node.kind in ("max", "min", "lse"):
        exact_value = _reduce(node, scope.exact)
        result = np.maximum(result, np.abs(align(exact_value, free)))
    return Named(free, result)


def _normalise(node: Normalise, scope: Scope) -> Named:
    outer = scope.exact.over(node.indices)
    where = EVERYWHERE if node.where is None else _truth(node.where, outer)
    score = value(node.score, outer.within(where))
    options = {name: value(option, outer) for name, option in node.options}
    free = tuple(i for i in union([score, where, *options.values()]) if i not in node.indices)
    order = free + node.indices
    shape, rows = scope.size(order), scope.size(free)
    scores = np.broadcast_to(align(score, order), shape).reshape(*rows, scope.count(node.indices))
    keep = np.broadcast_to(align(where, order), shape).reshape(scores.shape)
    weights = np.zeros(scores.shape)
    for row in np.ndindex(rows):
        chosen = {name: float(np.broadcast_to(align(o, free), rows)[row]) for name, o in options.items()}
        weights[row][keep[row]] = weigh_row(node.kind, scores[row][keep[row]].astype(np.float64), **chosen)
    weights = weights.reshape(shape)
    return Named(order, np.abs(weights) if scope.absolute else weights)


def _top(node: Top, scope: Scope) -> Named:
    """True at the `count` largest admitted entries of each row: ties to the lower position, NaN last."""
    outer = scope.exact.over(node.indices)
    where = EVERYWHERE if node.where is None else _truth(node.where, outer)
    body, count = value(node.body, outer.within(where)), value(node.count, outer)
    free = tuple(i for i in union([body, where, count]) if i not in node.indices)
    order = free + node.indices
    shape, rows = scope.size(order), scope.size(free)
    values = np.broadcast_to(align(body, order), shape).reshape(*rows, scope.count(node.indices))
    keep = np.broadcast_to(align(where, order), shape).reshape(values.shape)
    chosen = np.zeros(values.shape, dtype=bool)
    for row in np.ndindex(rows):
        places = [p for p in range(values.shape[-1]) if keep[row][p]]
        places.sort(key=lambda p: (bool(np.isnan(values[row][p])), -values[row][p], p))
        chosen[row][places[: max(int(np.broadcast_to(align(count, free), rows)[row]), 0)]] = True
    return Named(order, chosen.reshape(shape))


def _concatenate(node: Concatenate, scope: Scope) -> Named:
    parts, start = [], 0
    for part, argument in zip(node.parts, node.arguments, strict=True):
        stop = start + scope.sizes[part.name]
        inner = scope
        if node.index in scope.admitted.indices:
            axis = scope.admitted.indices.index(node.index)
            mask = np.take(scope.admitted.array, range(start, stop), axis=axis)
            renamed = tuple(part if i == node.index else i for i in scope.admitted.indices)
            inner = replace(scope, admitted=Named(renamed, mask))
        parts.append(value(argument, inner))
        start = stop
    free = tuple(i for i in union(parts) if i not in node.parts)
    pieces = []
    for part, piece in zip(node.parts, parts, strict=True):
        pieces.append(np.broadcast_to(align(piece, (*free, part)), scope.size((*free, part))))
    return Named((*free, node.index), np.concatenate(pieces, axis=-1))


# Reading a tensor through its slots ---------------------------------------------------------------------------------


def _read(slots: Sequence[Slot], name: str, array: np.ndarray, scope: Scope) -> Named:
    places = [_place(slot, scope.exact) for slot in slots]
    order = union(places)
    for axis, (slot, place) in enumerate(zip(slots, places, strict=True)):
        if isinstance(slot, Affine):
            _check_range(name, axis, place, array.shape[axis], scope)
    shape = scope.size(order)
    if 0 in array.shape:  # nothing to read: every tuple, if there is any, is excluded
        return Named(order, np.zeros(shape, dtype=array.dtype))
    within = [np.clip(align(p, order), 0, n - 1) for p, n in zip(places, array.shape, strict=True)]
    return Named(order, np.broadcast_to(array[tuple(within)], shape))


def _place(slot: Slot, scope: Scope) -> Named:
    """The position along one axis, over the slot's indices."""
    match slot:
        case Index(name=name):
            return Named((slot,), np.arange(scope.sizes[name]))
        case Split(indices=indices):
            shape = scope.size(indices)
            return Named(indices, np.arange(math.prod(shape)).reshape(shape))
        case Affine(terms=terms, constant=constant):
            atoms = [(c, value(a, scope)) for c, a in terms]
            for (_, atom), (_, node) in zip(atoms, terms, strict=True):
                if isinstance(node, Tensor) and atom.array.dtype.kind != "i":
                    raise DTypeError("E-DTYPE", f"the index tensor `{node.name}` has dtype {atom.array.dtype}")
            order = union([a for _, a in atoms])
            place = sum((c * align(a, order).astype(np.int64) for c, a in atoms), np.int64(constant))
            return Named(order, np.asarray(place))
        case _:
            assert_never(slot)


def _check_range(name: str, axis: int, place: Named, length: int, scope: Scope) -> None:
    wrong = Named(place.indices, (place.array < 0) | (place.array >= length))
    if np.any(both(wrong, scope.admitted).array):
        raise ShapeError("E-RANGE", f"axis {axis} of `{name}` is read outside 0…{length - 1}")
