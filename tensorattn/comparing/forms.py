"""Program → normal form: a text that two programs share only if they are one function of finite real numbers.

Definitions are inlined, sums of products expanded and collected, bound indices numbered in an order that depends on
structure alone, sizes named by the axes they stand on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from itertools import groupby, permutations

from tensorattn.comparing.terms import Expander, Term, TooLargeError, difference, scaled, simplified
from tensorattn.ir import (
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
    highest_number,
    rebuild,
    substitute,
)
from tensorattn.program import Program
from tensorattn.rewriting import CANONICAL, rewrite

MOST_STEPS = 20_000
MOST_ORDERS = 120
Labels = Mapping[Index, str]
Make = Callable[[Labels], tuple[Fraction, str]]
Colour = Callable[[Index, Labels], str]
FLIPPED = {"greater": "less", "greater_equal": "less_equal"}


def normal_form(program: Program, output: str, size: Callable[[str], str]) -> str:
    """The normal form of one output of a program without `...`; `size` names the size of an index name.

    Raises: TooLargeError.
    """
    former = _Former(program, size)
    statement = rewrite(former.inlined, CANONICAL).program.statement(output)
    labels = {index: f"out{place}" for place, index in enumerate(statement.indices)}
    axes = [[size(i.name) for i in axis] for axis in statement.axes]
    return f"{axes} {former.of(simplified(statement.body), labels)}"


class _Former:
    def __init__(self, program: Program, size: Callable[[str], str]) -> None:
        self.size, self.steps = size, 0
        self.known: dict[tuple[Expr, tuple[tuple[Index, str], ...]], str] = {}
        highest = max(highest_number(s.body) for s in program.statements)
        self.expander = Expander(highest + 1)
        self.opaque: dict[str, Statement] = {}
        ready: dict[str, Statement] = {}
        for statement in program.statements:
            ready[statement.name] = Statement(statement.name, statement.axes, self.inline(statement.body, ready))
        self.inlined = Program(tuple(ready.values()))

    # Definitions ---------------------------------------------------------------------------------------------------

    def inline(self, node: Expr, ready: Mapping[str, Statement]) -> Expr:
        """The expression with every definition in place that is read through as many different indices."""
        node = rebuild(node, lambda child: self.inline(child, ready))
        if not isinstance(node, Tensor) or node.name not in ready:
            return node
        statement = ready[node.name]
        new: dict[Index, Index] = {}
        for slot, axis in zip(node.slots, statement.axes, strict=True):
            read = slot.indices if isinstance(slot, Split) else (slot,)
            alike = len(read) == len(axis) and all(
                isinstance(a, Index) and self.size(a.name) == self.size(b.name) for a, b in zip(read, axis, strict=True)
            )
            if not alike:
                self.opaque[node.name] = statement
                return node
            new |= dict(zip(axis, read, strict=True))  # type: ignore[arg-type]
        if len(set(new.values())) < len(new):
            self.opaque[node.name] = statement
            return node
        numbers: dict[Index, Index] = {}

        def place(index: Index) -> Index:
            if index in new:
                return new[index]
            if index not in numbers:
                numbers.update(self.expander.fresh([index]))
            return numbers[index]

        return substitute(statement.body, place)

    def definition(self, statement: Statement) -> str:
        """A definition that stays one, by its own normal form."""
        labels = {index: f"own{place}" for place, index in enumerate(statement.indices)}
        axes = [[self.size(i.name) for i in axis] for axis in statement.axes]
        return f"({axes} {self.of(simplified(statement.body), labels)})"

    # Keys ----------------------------------------------------------------------------------------------------------

    def of(self, node: Expr, labels: Labels) -> str:
        """The key of an expression whose open indices bear these labels."""
        known = node, tuple(sorted((i, labels[i]) for i in node.free))
        if known not in self.known:
            self.known[known] = self.sum(self.expander.terms(node), labels)
        return self.known[known]

    def sum(self, terms: Sequence[Term], labels: Labels) -> str:
        total = self.collected(terms, labels)
        return " + ".join(f"{c}·{key}" for key, c in sorted(total.items())) or "0"

    def collected(self, terms: Sequence[Term], labels: Labels) -> dict[str, Fraction]:
        """Coefficients by the key of what they multiply; what cancels is gone."""
        total: dict[str, Fraction] = {}
        for term in terms:
            scale, key = self.term(term, labels)
            total[key] = total.get(key, Fraction(0)) + term.coefficient * scale
        return {key: c for key, c in total.items() if c}

    def term(self, term: Term, labels: Labels) -> tuple[Fraction, str]:
        """A number and the key of what it multiplies."""

        def make(inner: Labels) -> tuple[Fraction, str]:
            scale, keys = Fraction(1), []
            for factor, exponent in term.factors:
                number, key = self.factor(factor, exponent, inner)
                scale *= number
                keys.append(key)
            return scale, "(" + " ".join(sorted(keys)) + ")"

        def colour(index: Index, inner: Labels) -> str:
            uses = [(self.factor(f, e, inner)[1]) for f, e in term.factors if index in f.free]
            return str(sorted(uses))

        return self.bound(term.summed, {i: labels[i] for i in term.free}, make, colour)

    def factor(self, factor: Expr, exponent: Fraction, labels: Labels) -> tuple[Fraction, str]:
        self.steps += 1
        if self.steps > MOST_STEPS:
            raise TooLargeError
        terms = self.expander.terms(factor)
        if len(terms) == 1 and terms[0].coefficient == 1 and terms[0].factors == ((factor, Fraction(1)),):
            return Fraction(1), f"{self.atom(factor, labels)}^{exponent}"
        total = self.collected(terms, labels)
        lead = min(sorted(total.items()), default=("", Fraction(1)))[1] if exponent.denominator == 1 else Fraction(1)
        inside = " + ".join(f"{c / lead}·{key}" for key, c in sorted(total.items()))
        return lead ** int(exponent) if lead != 1 else Fraction(1), f"[{inside}]^{exponent}"

    def bound(self, indices: Sequence[Index], labels: Labels, make: Make, colour: Colour) -> tuple[Fraction, str]:
        """`make` for bound indices in the order that their sizes and colours give, the least result among ties."""
        if not indices:
            return make(labels)
        level = max((int(x[1:].partition(":")[0]) + 1 for x in labels.values() if x[0] == "b"), default=0)
        colours = {i: f"?{self.size(i.name)}" for i in indices}
        for _ in range(3 if len(indices) > 1 else 0):
            inner = {**labels, **colours}
            seen = {i: (colours[i], colour(i, {**inner, i: "!" + colours[i]})) for i in indices}
            ranks = {c: n for n, c in enumerate(sorted(set(seen.values())))}
            colours = {i: f"?{ranks[seen[i]]:03}{self.size(i.name)}" for i in indices}
        order = sorted(indices, key=lambda i: colours[i])
        ties = [list(group) for _, group in groupby(order, key=lambda i: colours[i])]
        results = []
        for arrangement in _arrangements(ties):
            own = {i: f"b{level + n}:{self.size(i.name)}" for n, i in enumerate(arrangement)}
            results.append(make({**labels, **own}))
        return min(results, key=lambda r: r[1])

    def atom(self, node: Expr, labels: Labels) -> str:
        match node:
            case Extent(name=name):
                return self.size(name)
            case Position(index=index):
                return f"@{labels[index]}"
            case Tensor(name=name, slots=slots):
                head = self.definition(self.opaque[name]) if name in self.opaque else name
                return f"{head}<{', '.join(self.slot(s, labels) for s in slots)}>"
            case Constant(kind=kind, indices=indices):
                names = [labels[i] for i in indices]
                return f"{kind}<{' '.join(sorted(set(names)) if kind == 'delta' else names)}>"
            case Map(function=function, arguments=arguments):
                return self.map(function, arguments, labels)
            case Reduce(kind=kind, indices=indices, body=body, where=where):
                return self.binder(kind, indices, (body, *([] if where is None else [where])), labels)
            case Normalise():
                return self.normaliser(node, labels)
            case Top(indices=indices, count=number, body=body, where=where):
                parts = [self.of(p, labels) for p in (number, body, *([] if where is None else [where]))]
                return f"top[{sorted(labels[i] for i in indices)}]({parts})"
            case Concatenate(index=index, parts=parts, arguments=arguments):
                pieces = [self.binder("part", (p,), (a,), labels) for p, a in zip(parts, arguments, strict=True)]
                return f"cat[{labels[index]}]({', '.join(pieces)})"
        return self.sum(self.expander.terms(node), labels)

    def slot(self, slot: Slot, labels: Labels) -> str:
        match slot:
            case Index():
                return labels[slot]
            case Split(indices=indices):
                return f"({' '.join(f'{labels[i]}:{self.size(i.name)}' for i in indices)})"
            case Affine(terms=terms, constant=constant):
                parts = [Product((Number(c), atom)) for c, atom in terms]
                whole = [t for part in (*parts, Number(constant)) for t in self.expander.terms(part)]
                return f"at {self.sum(whole, labels)}"

    def map(self, function: str, arguments: Sequence[Expr], labels: Labels) -> str:
        if function in FLIPPED:
            function, arguments = FLIPPED[function], arguments[::-1]
        if function in ("less", "less_equal", "equal", "not_equal"):
            return self.comparison(function, arguments, labels)
        keys = [self.of(a, labels) for a in arguments]
        if function in ("and", "or", "maximum", "minimum"):
            keys = sorted(set(keys))
        return f"{function}({', '.join(keys)})"

    def comparison(self, function: str, arguments: Sequence[Expr], labels: Labels) -> str:
        """`a < b` as `a − b + 1 <= 0` for positions and sizes, as `a − b < 0` for others."""
        left, right = (self.expander.terms(a) for a in arguments)
        terms = difference(left, right)
        whole = all(t.coefficient.denominator == 1 and not t.summed for t in terms) and all(
            isinstance(f, (Position, Extent)) and e.denominator == 1 and e > 0 for t in terms for f, e in t.factors
        )
        if function == "less" and whole:
            function, terms = "less_equal", (*terms, Term(Fraction(1)))
        if function in ("equal", "not_equal"):
            lead = next((c for _, c in sorted(self.collected(terms, labels).items())), Fraction(1))
            terms = scaled(terms, 1 / lead)
        return f"{function}({self.sum(terms, labels)})"

    def binder(self, kind: str, indices: Sequence[Index], parts: Sequence[Expr], labels: Labels) -> str:
        new = self.expander.fresh(indices)
        parts = [substitute(p, lambda i: new.get(i, i)) for p in parts]

        def make(inner: Labels) -> tuple[Fraction, str]:
            return Fraction(1), f"({', '.join(self.of(p, inner) for p in parts)})"

        def colour(index: Index, inner: Labels) -> str:
            return make(inner)[1]

        bound = tuple(new.values())
        outer = {i: labels[i] for p in parts for i in p.free if i not in bound}
        sizes = sorted(self.size(i.name) for i in indices)
        return f"{kind}{sizes}{self.bound(bound, outer, make, colour)[1]}"

    def normaliser(self, node: Normalise, labels: Labels) -> str:
        """A softmax without a sink is the same when a term that lacks its indices is added to the score."""
        score = self.expander.terms(node.score)
        if node.kind == "softmax" and not node.options:
            score = tuple(t for t in score if t.free & set(node.indices))
        names = sorted(labels[i] for i in node.indices)
        where = "" if node.where is None else f" : {self.of(node.where, labels)}"
        options = "".join(f"; {name}={self.of(o, labels)}" for name, o in sorted(node.options))
        return f"{node.kind}[{' '.join(names)}{where}{options}]({self.sum(score, labels)})"


def _arrangements(ties: Sequence[Sequence[Index]]) -> list[list[Index]]:
    found: list[list[Index]] = [[]]
    for tie in ties:
        orders = list(permutations(tie)) if len(tie) < 6 else []
        if not orders or len(found) * len(orders) > MOST_ORDERS:
            raise TooLargeError
        found = [[*start, *order] for start in found for order in orders]
    return found
