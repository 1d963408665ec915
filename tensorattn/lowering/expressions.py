"""Expressions → instructions: one short method per node; products, slots and masks have files of their own."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from itertools import pairwise
from math import inf
from typing import assert_never

from tensorattn import dtypes
from tensorattn.dtypes import Typing
from tensorattn.ir import (
    AT,
    COMPARISONS,
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
    Statement,
    Tensor,
    Top,
    walk,
)
from tensorattn.kernel import Fill, Fold, Join, Largest, LogSumExp, Normalised
from tensorattn.lowering import contractions, distances, factoring, masks, scattering, segments, slots
from tensorattn.lowering.building import Builder
from tensorattn.lowering.exposure import exposed, has_predicate, unguarded
from tensorattn.lowering.sharing import Shared
from tensorattn.ordering import reading_order
from tensorattn.parts import Literal, Operand, Register, Root
from tensorattn.plan import Order, Plan
from tensorattn.rewriting.scatters import scatters
from tensorattn.rewriting.segments import segments as segments_of
from tensorattn.sizes import Size

SINGULAR = ("log", "sqrt", "power", "reciprocal")  # functions whose derivative is infinite somewhere they are not


class Lowering:
    """The state of one lowering: what is defined, what is known, and the predicate that encloses the current node."""

    def __init__(self, plan: Plan, typing: Typing, builder: Builder, given: Mapping[str, str]) -> None:
        self.plan, self.typing, self.builder, self.given = plan, typing, builder, given
        self.sizes = dict(plan.nominal)
        self.orders: dict[Expr, Order] = {order.contraction.node: order for order in plan.searched}
        self.factored = {found.node: found for _, found in plan.factored}
        self.statements = {s.name: s for s in plan.program.statements}
        self.values: dict[str, Register] = {}
        self.masks: dict[str, Register | None] = {}
        self.admitted: Register | None = None
        self.guarded = has_predicate(plan.program)
        self.exposed = exposed(plan.program) if self.guarded else frozenset()
        self.unguarded = unguarded(plan.program) if self.guarded else frozenset()
        self._known: dict[tuple[Expr, Register | None], Operand] = {}
        self.shared = Shared(plan)
        self.scores = distances.scores(plan.program)
        self._sensitive: dict[Expr, bool] = {}
        self.loads: dict[object, Register] = {}
        self._name = ""

    def define(self, statement: Statement) -> None:
        """Lower a statement; its register has the statement's indices as axes, in any order if none is merged."""
        self._known.clear()
        self.shared.enter(statement)
        self._name = statement.name
        self.builder.prefer((*statement.indices, *reading_order(statement.body)))
        dtype = dtypes.work(self.typing.names[statement.name])
        value = self.builder.broadcast(self.builder.array(self.lower(statement.body), dtype), statement.indices)
        if any(len(axis) != 1 for axis in statement.axes):
            value = self.builder.arrange(value, statement.indices)
        self.values[statement.name] = value
        self.masks[statement.name] = masks.mask_of(self, statement.body) if self.guarded else None

    @property
    def masked(self) -> frozenset[str]:
        """The statements that bring a predicate to the products they are read in."""
        return frozenset(name for name, mask in self.masks.items() if mask is not None)

    def result(self, statement: Statement) -> Register:
        """A statement's value with its axes in the order of the statement."""
        return self.builder.arrange(self.values[statement.name], statement.indices)

    @contextmanager
    def under(self, mask: Register | None) -> Generator[None]:
        """Inside, only the tuples that the mask admits count."""
        outer = self.admitted
        self.admitted = self.builder.all_of((outer, mask))
        try:
            yield
        finally:
            self.admitted = outer

    @contextmanager
    def binding(self, indices: Iterable[Index]) -> Generator[None]:
        """Inside, these indices run over all of their positions: a predicate outside on them does not reach there."""
        outer = self.admitted
        if outer is not None:
            self.admitted = self.builder.fold("any", outer, frozenset(outer.axes).difference(indices))
        try:
            yield
        finally:
            self.admitted = outer

    @contextmanager
    def forgetting(self) -> Generator[None]:
        """What is made inside, on one side of a branch, is not known outside."""
        known = self._known, self.shared.table, self.loads
        self._known, self.shared.table, self.loads = (dict(table) for table in known)  # type: ignore[assignment]
        try:
            yield
        finally:
            self._known, self.shared.table, self.loads = known

    def lower(self, node: Expr) -> Operand:
        """The value of a node; a register of the work dtype of its logical dtype. Equal nodes are lowered once."""
        mask = self.admitted if self._is_sensitive(node) else None
        found = self._known.get((node, mask))
        if found is None:
            place = (mask, node in self.exposed)
            found = self._known[node, mask] = self.shared.lower(node, place, self.builder, self._lower)
        return found

    def know(self, node: Expr, value: Operand) -> None:
        """From here on, the node has this value."""
        self._known[node, self.admitted if self._is_sensitive(node) else None] = value

    def _is_sensitive(self, node: Expr) -> bool:
        """Whether the enclosing predicate changes how the node is computed."""
        found = self._sensitive.get(node)
        if found is None:
            found = any(
                (isinstance(n, Map) and n.function in (*SINGULAR, AT))
                or (isinstance(n, Tensor) and any(isinstance(s, Affine) for s in n.slots))
                for n in walk(node)
            )
            self._sensitive[node] = found
        return found

    def array(self, node: Expr, dtype: str | None = None) -> Register:
        """The value of a node as a register, of this work dtype if one is given."""
        return self.builder.array(self.lower(node), dtype or dtypes.work(self.typing.of(node)))

    def _lower(self, node: Expr) -> Operand:
        match node:
            case Number(value=value):
                return Literal(value)
            case Extent(name=name):
                return Literal(Size.of(name))
            case Position(index=index):
                return self.builder.iota(index)
            case Tensor():
                return slots.read(self, node)
            case Constant():
                return self._constant(node)
            case Product():
                ratio = self.factored.get(node)
                return factoring.attempt(self, ratio) if ratio else contractions.contract(self, self.orders[node])
            case Add():
                return self._add(node)
            case Map():
                return self._map(node)
            case Reduce():
                return self._reduce(node)
            case Normalise():
                return self._normalise(node)
            case Top():
                return self._top(node)
            case Concatenate():
                return self._join(node)
            case _:
                assert_never(node)

    def _constant(self, node: Constant) -> Register:
        b, indices = self.builder, tuple(dict.fromkeys(node.indices))
        if node.kind == "ones" or len(indices) == 1:
            repeated = node.kind == "eps"
            return b.emit(Fill(b.register(b.order(indices), "int64"), 0 if repeated else 1))
        if node.kind == "delta":
            return b.array(self.equal_positions(indices), "int64")
        iotas = [b.iota(index) for index in node.indices]
        value: Register | None = None  # the sign of a permutation is the product of the signs of its differences
        for n, p in enumerate(iotas):
            for q in iotas[n + 1 :]:
                sign = b.apply("sign", b.apply("subtract", q, p, dtype="int64"), dtype="int64")
                value = sign if value is None else b.apply("multiply", value, sign, dtype="int64")
        assert value is not None
        return value

    def equal_positions(self, indices: tuple[Index, ...]) -> Register:
        """Whether the indices are at one position: a Kronecker delta as a truth."""
        b, iotas = self.builder, [self.builder.iota(index) for index in indices]
        equal = b.all_of(b.apply("equal", p, q, dtype="bool") for p, q in pairwise(iotas))
        assert equal is not None
        return equal

    def _add(self, node: Add) -> Operand:
        """Each term over its own indices, the smaller supports first."""
        b, dtype = self.builder, dtypes.work(self.typing.of(node))
        signed = [_sign(term) for term in node.terms]
        parts = [(sign, b.cast(self.lower(term), dtype)) for sign, term in signed]
        literals = [(s, o.value) for s, o in parts if isinstance(o, Literal) and not isinstance(o.value, Root)]
        arrays = [(s, b.array(o, dtype)) for s, o in parts if isinstance(o, Register) or isinstance(o.value, Root)]
        arrays.sort(key=lambda part: len(part[1].axes))
        constant = _literal_sum(literals)
        if not arrays:
            return Literal(constant) if constant is not None else self._literals(literals, dtype)
        if constant is None:
            arrays.insert(0, (1, self._literals(literals, dtype)))
            constant = 0
        positive = next((n for n, (s, _) in enumerate(arrays) if s > 0), None)
        if positive is None:
            total, rest = b.apply("negate", arrays[0][1], dtype=dtype), arrays[1:]
        else:
            total, rest = arrays[positive][1], [*arrays[:positive], *arrays[positive + 1 :]]
        if constant != 0:
            total = b.apply("add", total, Literal(constant), dtype=dtype)
        for sign, part in rest:
            total = b.apply("add" if sign > 0 else "subtract", total, part, dtype=dtype)
        return total

    def _literals(self, literals: list[tuple[int, int | float | Size]], dtype: str) -> Register:
        """A sum of sizes and floats as an array without axes."""
        total = self.builder.array(Literal(0), dtype)
        for sign, value in literals:
            total = self.builder.apply("add" if sign > 0 else "subtract", total, Literal(value), dtype=dtype)
        return total

    def _map(self, node: Map) -> Operand:
        b, function = self.builder, node.function
        if function == "negate" and isinstance(node.arguments[0], Number):
            return Literal(-node.arguments[0].value)
        if function in ("and", "or", "not"):
            return b.apply(function, *(self.array(a) for a in node.arguments), dtype="bool")
        dtype = dtypes.work(self.typing.of(node))
        if function == "where":
            condition, yes, no = node.arguments
            values = (b.cast(self.lower(part), dtype) for part in (yes, no))
            return b.apply("select", self.array(condition), *values, dtype=dtype)
        if function == "uniform":
            return b.apply(function, *(self.array(a, "int64") for a in node.arguments), dtype=dtype)
        operands = [self.lower(a) for a in node.arguments]
        if function in COMPARISONS.values():
            common = dtypes.work(dtypes.number(dtypes.join(map(self.typing.of, node.arguments))))
            return b.apply(function, *(b.cast(o, common) for o in operands), dtype="bool")
        if function == "sqrt" and isinstance(operands[0], Literal) and _is_natural(operands[0].value):
            return Literal(Root(operands[0].value))  # type: ignore[arg-type]
        operands = [b.cast(o, dtype) for o in operands]
        if function in SINGULAR:
            operands = [masks.harmless(self, o) for o in operands]
        if not any(isinstance(n, Tensor) for n in walk(node)):
            return b.apply(function, *operands, dtype=dtype)
        return masks.apply(self, function, operands, dtype, exposed=node in self.exposed)

    def _reduce(self, node: Reduce) -> Operand:
        dtype = dtypes.work(self.typing.of(node))
        if (found := segments_of(node)) is not None:
            return segments.lower(self, node, found)
        if (placed := scatters(node)) is not None:
            return scattering.lower(self, node, placed)
        if node.kind == "sum":
            return contractions.contract(self, self.orders[node])
        if node.kind == "mean":
            return contractions.mean(self, node, self.orders[node])
        where = None if node.where is None else self.array(node.where)
        with self.under(where):
            body = self.array(node.body, dtype)

        def make(operands: list[Register]) -> Register:
            return self._folded(node, operands[0], where)

        return masks.reduce(self, [body], make, node.free) if node in self.exposed else make([body])

    def _folded(self, node: Reduce, body: Register, where: Register | None) -> Register:
        """A reduction other than a sum or mean of a body that is lowered."""
        b, everything = self.builder, node.free | set(node.indices)
        out = b.register(b.order(node.free), body.dtype)
        if node.kind == "lse":
            return b.emit(LogSumExp(out, b.broadcast(body, everything), where))
        if where is not None:
            empty = {"max": -inf, "min": inf, "prod": 1}[node.kind]
            body = b.apply("select", where, body, Literal(empty), dtype=body.dtype)
        return b.emit(Fold(out, node.kind, b.broadcast(body, everything)))

    def _normalise(self, node: Normalise) -> Register:
        b, dtype = self.builder, dtypes.work(self.typing.of(node))
        with self.binding(node.indices):
            where = None if node.where is None else self.array(node.where)
            options = tuple((name, b.cast(self.lower(option), dtype)) for name, option in node.options)
            if node in self.unguarded:
                score, where = b.broadcast(self._filled(node, where), node.free), None
            else:
                with self.under(where):
                    score = b.broadcast(self.array(node.score, dtype), node.free)
        arrays = [(name, option) for name, option in options if isinstance(option, Register)]

        def make(operands: list[Register]) -> Register:
            given = dict(options) | {name: o for (name, _), o in zip(arrays, operands[1:], strict=True)}
            out = b.register(operands[0].axes, dtype)
            named = tuple(given.items())
            return b.emit(
                Normalised(out, node.kind, node.indices, operands[0], where, named, node.origin or self._name)
            )

        operands = [score, *(option for _, option in arrays)]
        if node not in self.exposed:
            return make(operands)
        return masks.reduce(self, operands, make, node.free - set(node.indices))

    def _filled(self, node: Normalise, where: Register | None) -> Register:
        """The score, −∞ where excluded: its part of positions is small and made so, and no entry of it is tested."""
        assert isinstance(node.score, Add)
        assert where is not None
        b, dtype = self.builder, dtypes.work(self.typing.of(node))
        score, often = (self.array(term, dtype) for term in node.score.terms)
        return b.apply("add", score, b.apply("select", where, often, Literal(-inf), dtype=dtype), dtype=dtype)

    def _top(self, node: Top) -> Register:
        b = self.builder
        with self.binding(node.indices):
            where = None if node.where is None else self.array(node.where)
            with self.under(where):
                body = b.broadcast(self.array(node.body), node.free)
            count = self.lower(node.count)
        return b.emit(Largest(b.register(body.axes, "bool"), node.indices, count, body, where))

    def _join(self, node: Concatenate) -> Register:
        b, dtype = self.builder, dtypes.work(self.typing.of(node))
        sources = []
        for part, argument in zip(node.parts, node.arguments, strict=True):
            sources.append(b.broadcast(self.array(argument, dtype), (part,)))
        out = b.register(b.order(node.free), dtype)
        return b.emit(Join(out, node.index, tuple(sources), node.parts))


def _is_natural(value: object) -> bool:
    """Whether a literal is a size that is never negative."""
    return isinstance(value, Size) and all(coefficient >= 0 for _, coefficient in value.terms)


def _sign(term: Expr) -> tuple[int, Expr]:
    match term:
        case Map(function="negate", arguments=(inner,)):
            return -1, inner
    return 1, term


def _literal_sum(literals: list[tuple[int, int | float | Size]]) -> int | float | Size | None:
    """The sum as one literal, or None where sizes meet floats."""
    if any(isinstance(v, Size) for _, v in literals):
        if any(isinstance(v, float) for _, v in literals):
            return None
        total = Size()
        for sign, value in literals:
            total = total + Size.of(value) * sign  # type: ignore[arg-type]
        return total if total.constant is None else total.constant
    return sum(sign * value for sign, value in literals)
