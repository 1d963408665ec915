"""Products and sums of values: which axes become one, and what does not fit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NoReturn

from tensorattn import tree as t
from tensorattn.errors import NotationError
from tensorattn.source import Source, Span
from tensorattn.spelling.matrix.axes import Axes
from tensorattn.spelling.matrix.values import Value


@dataclass(slots=True)
class Algebra:
    """Joins values; every complaint is `E-MATRIX` with the axes of what does not fit."""

    source: Source
    axes: Axes

    # complaints -------------------------------------------------------------------------------------------------------

    def text(self, value: Value) -> str:
        return " ".join(self.source.text[value.span.start : value.span.end].split())

    def shape(self, value: Value) -> str:
        """`mu i`, `a column nu`, `a scalar`."""
        names = [self.axes.name_of(a) or "?" for a in value.axes]
        kind = "" if value.is_matrix else "a scalar " if value.is_scalar else "a row " if value.rows is None else ""
        kind = "a column " if value.columns is None and value.rows is not None and not value.flexible else kind
        batch = "... " if value.batch else ""
        return f"{kind}{batch}{' '.join(names)}".strip()

    def refuse(self, what: str, values: Sequence[Value], hint: str) -> NoReturn:
        shown = dict.fromkeys(f"{self.text(v)}: {self.shape(v)}" for v in values)
        raise NotationError(
            "E-MATRIX", what, source=self.source, spans=[v.span for v in values], facts=list(shown), hint=hint
        )

    # products ---------------------------------------------------------------------------------------------------------

    def product(self, left: Value, right: Value, operator: str) -> Value:
        """`A B`: the last axis of A is the first of B, and is summed; a scalar multiplies."""
        if left.is_scalar or right.is_scalar:
            return self._joined(left, right, left.rows if right.is_scalar else right.rows, _columns(left, right))
        if operator == "*":
            a, b = self.text(left), self.text(right)
            what = f"`*` between `{a}` and `{b}` has two readings: the matrix product and the product of the entries"
            self.refuse(what, [left, right], f"write {a} {b} for the matrix product, {a} ⊙ {b} (\\odot) for the other")
        inner = left.is_vector and right.is_vector and operator == "·"
        if inner and (left.columns is None) == (right.columns is None):
            return self._inner(left, right)
        if left.flexible and right.is_matrix:
            left = left.as_row()
        if left.columns is None and right.rows is None:  # x y^T
            return self._joined(left, right, left.rows, right.columns)
        if left.columns is None or right.rows is None:
            self._no_product(left, right)
        self.contractible(left, right, left.columns, right.rows)
        self.axes.unify(left.columns, right.rows)
        return self._joined(left, right, left.rows, right.columns, left.columns)

    def _inner(self, left: Value, right: Value) -> Value:
        one = left.rows if left.rows is not None else left.columns
        other = right.rows if right.rows is not None else right.columns
        assert one is not None
        assert other is not None
        self.contractible(left, right, one, other)
        self.axes.unify(one, other)
        return self._joined(left, right, None, None, one)

    def contractible(self, left: Value, right: Value, one: int, other: int) -> None:
        """Refuses a contraction of axes that were declared with two names."""
        if self.axes.fits(one, other):
            return
        a, b = self.text(left), self.text(right)
        i, j = self.axes.name_of(one), self.axes.name_of(other)
        hint = f"if {i} and {j} are one axis, declare one name for both"
        for first, second, shown in ((left, right.transposed(right.span), f"{a} {b}^T"),
                                     (left.transposed(left.span), right, f"{a}^T {b}")):  # fmt: skip
            if first.columns is not None and second.rows is not None and self.axes.fits(first.columns, second.rows):
                hint = f"write {shown}; {hint}"
                break
        self.refuse(f"the product `{a} {b}` sums the axis {i} of one factor and {j} of the other", [left, right], hint)

    def _no_product(self, left: Value, right: Value) -> NoReturn:
        a, b = self.text(left), self.text(right)
        if left.is_vector and right.is_vector:
            what = f"the product of the vectors `{a}` and `{b}` has several readings"
            hint = f"write {a}^T {b} (a number), {a} {b}^T (a matrix) or {a} ⊙ {b} (\\odot, a vector)"
            self.refuse(what, [left, right], hint)
        vector, name = (left, a) if left.is_vector else (right, b)
        side = "left" if vector is left else "right"
        kind = "column" if vector.columns is None else "row"
        hint = "a row stands on the left of a matrix, a column on its right: transpose it, or change the order"
        self.refuse(f"`{name}` is a {kind} and stands on the {side} of a matrix", [left, right], hint)

    def _joined(
        self, left: Value, right: Value, rows: int | None, columns: int | None, summed: int | None = None
    ) -> Value:
        """The product as a tree; a sum that the factors would make too early is written out."""
        lead, batch = self._lead([left, right])
        (a, first), (b, second) = left.factors(), right.factors()
        span = left.span | right.span
        repeated, doubled = left.repeated | right.repeated, left.doubled | right.doubled
        tree: t.Tree = t.ProductNode((*a, *b), (*first, "*", *second[1:]), span)
        contracted = (*left.contracted, *right.contracted, *(() if summed is None else (summed,)))
        both = {self.axes.find(x) for x in left.axes} & {self.axes.find(x) for x in right.axes}
        doubled = doubled | both
        if summed is not None and self._early(summed, repeated):
            name = t.Name(str(summed), span)
            tree = t.Binding("sum", (name,), None, (), tree, span)
            repeated, doubled = repeated | doubled, frozenset()
        flexible = (left.flexible and right.is_scalar) or (right.flexible and left.is_scalar)
        implied = rows is None and columns is not None and (left.implied or right.implied)
        summing = summed is not None or left.summing or right.summing
        return Value(
            tree, span, rows, columns, lead, batch, flexible, implied, contracted, summing, repeated, doubled
        )  # fmt: skip

    def _early(self, axis: int, repeated: Iterable[int]) -> bool:
        return self.axes.find(axis) in {self.axes.find(r) for r in repeated}

    def divided(self, left: Value, right: Value) -> Value:
        """`A / s`: by a scalar."""
        if not right.is_scalar:
            what = f"`{self.text(right)}` is no scalar, so dividing by it has no one meaning"
            self.refuse(what, [right], "divide by a scalar; entries are divided in index form: A_<i j> / B_<i j>")
        units, operators = left.factors()
        span = left.span | right.span
        lead, batch = self._lead([left, right])
        divisor = right.unit()
        tree = t.ProductNode((*units, divisor), (*operators, "/"), span)
        return replace(
            left, tree=tree, span=span, lead=lead, batch=batch, contracted=(*left.contracted, *right.contracted),
            summing=left.summing or right.summing,
            repeated=left.repeated | right.early,
        )  # fmt: skip

    # entry by entry ---------------------------------------------------------------------------------------------------

    def entrywise(self, left: Value, right: Value) -> Value:
        """`A ⊙ B`."""
        rows, columns, flexible = self._aligned([left, right], "⊙")
        joined = self._joined(left, right, rows, columns)
        return replace(joined, flexible=flexible)

    def added(self, values: Sequence[Value], signs: Sequence[int], span: Span) -> Value:
        """`A + B - c`: of one shape, or a scalar, or a vector along one axis of a matrix."""
        rows, columns, flexible = self._aligned(values, "+")
        lead, batch = self._lead(values)
        terms = tuple((sign, v.unit() if isinstance(v.tree, t.SumNode) else v.tree)
                      for sign, v in zip(signs, values, strict=True))  # fmt: skip
        contracted = tuple(c for v in values for c in v.contracted)
        repeated = frozenset().union(*(v.early for v in values))
        implied = rows is None and any(v.implied for v in values)
        summing = any(v.summing for v in values)
        return Value(
            t.SumNode(terms, span), span, rows, columns, lead, batch, flexible, implied, contracted, summing, repeated
        )

    def _aligned(self, values: Sequence[Value], operator: str) -> tuple[int | None, int | None, bool]:
        """The rows and columns of values joined entry by entry; their axes become one."""
        whole = next((v for v in values if v.is_matrix), None)
        vectors = [v for v in values if v.is_vector]
        if whole is None:
            return self._aligned_vectors(vectors, operator)
        for value in values:
            if value is whole or value.is_scalar:
                continue
            for own, other in self._places(whole, value, operator):
                if not self.axes.fits(own, other):
                    self._no_sum(whole, value, operator)
                self.axes.unify(own, other)
        return whole.rows, whole.columns, False

    def _places(self, whole: Value, value: Value, operator: str) -> list[tuple[int, int]]:
        """Which axes of a matrix the axes of another value are."""
        assert whole.rows is not None
        assert whole.columns is not None
        if value.rows is not None and value.columns is not None:
            return [(whole.rows, value.rows), (whole.columns, value.columns)]
        if not value.flexible:
            axis = value.rows if value.rows is not None else value.columns
            assert axis is not None
            return [(whole.rows if value.rows is not None else whole.columns, axis)]
        assert value.rows is not None
        fitting = [axis for axis in (whole.rows, whole.columns) if self.axes.fits(axis, value.rows)]
        if self.axes.name_of(value.rows) is None:  # axes are being invented
            fitting = fitting[-1:]
        if len(fitting) > 1:
            a, b = self.text(whole), self.text(value)
            what = f"the vector `{b}` fits the rows and the columns of `{a}`"
            hint = f"write u {b}^T or {b} u^T with a vector u of ones, or declare the axes of `{a}` with two names"
            self.refuse(what, [whole, value], hint)
        if not fitting:
            self._no_sum(whole, value, operator)
        return [(fitting[0], value.rows)]

    def _aligned_vectors(self, vectors: Sequence[Value], operator: str) -> tuple[int | None, int | None, bool]:
        if not vectors:
            return None, None, False
        strict = [v for v in vectors if not v.flexible]
        first = strict[0] if strict else vectors[0]
        axis = first.rows if first.rows is not None else first.columns
        assert axis is not None
        for value in vectors:
            own = value.rows if value.rows is not None else value.columns
            assert own is not None
            turned = (value.rows is None) != (first.rows is None) and not (value.flexible and first.implied)
            if turned or not self.axes.fits(axis, own):
                self._no_sum(first, value, operator)
            self.axes.unify(axis, own)
        return first.rows, first.columns, not strict

    def _no_sum(self, one: Value, other: Value, operator: str) -> NoReturn:
        a, b = self.text(one), self.text(other)
        hint = "entries are joined where both have the same axes in the same order; transpose one, or declare one name"
        self.refuse(f"the axes of `{a}` and `{b}`, joined by {operator}, are not the same", [one, other], hint)

    def _lead(self, values: Sequence[Value]) -> tuple[tuple[int, ...], bool]:
        """Leading axes of one kind are one axis."""
        lead: list[int] = []
        for axis in (a for v in values for a in v.lead):
            same = next((a for a in lead if self.axes.kind_of(a) == self.axes.kind_of(axis)), None)
            if same is None:
                lead.append(axis)
            else:
                self.axes.unify(same, axis)
        return tuple(lead), any(v.batch for v in values)


def _columns(left: Value, right: Value) -> int | None:
    return left.columns if right.is_scalar else right.columns
