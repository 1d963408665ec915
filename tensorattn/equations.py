"""The equations between sizes: solved for index sizes, else proved, required or refuted, each with both origins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tensorattn.errors import ShapeError
from tensorattn.sizes import Size, verdict
from tensorattn.source import Source, Span


@dataclass(frozen=True, slots=True)
class Known:
    """A size, where it comes from in words, and the place in the formula."""

    size: Size
    origin: str
    span: Span | None = None


@dataclass(frozen=True, slots=True)
class Equation:
    """`left == right`, the size of `subject` (an index or a merged axis).

    `declared`: the user said it, so a relation it makes between two indices is required, not merely implied. `gives`:
    one side is the length of an input or a size that was given, so that both names of an identity are known.
    """

    subject: str
    left: Known
    right: Known
    declared: bool = False
    gives: bool = False

    def __str__(self) -> str:
        return f"{self.left.size} = {self.right.size}"


@dataclass(slots=True)
class Equations:
    """`unknown`: index names without a size yet. `symbols`: what required equations say about the user's symbols."""

    source: Source | None
    unknown: set[str]
    values: dict[str, Known] = field(default_factory=dict)
    symbols: dict[str, Size] = field(default_factory=dict)
    implied: dict[str, Size] = field(default_factory=dict)  # more that they say, used to judge and not to show
    proved: list[Equation] = field(default_factory=list)
    required: list[Equation] = field(default_factory=list)

    def reduced(self, size: Size) -> Size:
        """The size with everything known put in."""
        for _ in range(len(self.values) + len(self.symbols) + 1):
            names = size.symbols
            known = {n: self.values[n].size for n in names if n in self.values} | {
                n: self.symbols[n] for n in names if n in self.symbols
            }
            smaller = size.substitute({n: s for n, s in known.items() if s != Size.of(n)})
            if smaller == size:
                return size
            size = smaller
        return size

    def run(self, equations: list[Equation]) -> list[Equation]:
        """Uses every equation that leaves at most one size unknown, as long as there is one. Returns the others."""
        waiting, progress = equations, True
        while waiting and progress:
            left_over = [e for e in waiting if not self.use(e)]
            progress, waiting = len(left_over) < len(waiting), left_over
        return waiting

    def use(self, equation: Equation) -> bool:
        """Whether the equation could be used now: it is trivial, or has at most one unknown size."""
        a, b = self.reduced(equation.left.size), self.reduced(equation.right.size)
        names = self.unknown & (a.symbols | b.symbols)
        if a == b:
            for name in names if equation.gives else ():
                self._know(name, Known(Size.of(name), equation.right.origin, equation.right.span))
            if equation.declared or equation.left.size != equation.right.size:
                left, right = self._original(equation.left, a), self._original(equation.right, b)
                self.proved.append(Equation(equation.subject, left, right, equation.declared))
            return True
        if len(names) > 1:
            return False
        if names:
            self._solve(equation, names.pop(), a, b)
        else:
            self._judge(equation, a, b)
        return True

    def unite(self, equation: Equation) -> bool:
        """Of an equation between two unknown sizes: one becomes the other. Whether it was one."""
        a, b = self.reduced(equation.left.size), self.reduced(equation.right.size)
        for size, other in ((a, b), (b, a)):
            name = next(iter(size.symbols), "")
            if name in self.unknown and size == Size.of(name) and name not in other.symbols:
                self._define(equation, name, other)
                return True
        return False

    def _know(self, name: str, known: Known) -> None:
        self.unknown.discard(name)
        self.values[name] = known

    def _define(self, equation: Equation, name: str, size: Size) -> None:
        known = equation.left if Size.of(name) == equation.right.size else equation.right
        if equation.declared and size.symbols & (self.unknown | self.values.keys()) - {name}:
            self.required.append(equation)
        self._know(name, Known(size, known.origin, known.span))

    def _solve(self, equation: Equation, name: str, a: Size, b: Size) -> None:
        """The one unknown size, if the equation is linear in it and can be divided."""
        difference = a - b
        terms = [t for t in difference.terms if any(n == name for n, _ in t[0])]
        (monomial, coefficient), rest = terms[0], Size(tuple(t for t in difference.terms if t not in terms))
        factor = Size(((tuple((n, p) for n, p in monomial if n != name), abs(coefficient)),))
        whole = -rest if coefficient > 0 else rest
        linear = len(terms) == 1 and (name, 1) in monomial
        quotient = whole.divide(factor) if linear and factor.constant != 0 else None
        if quotient is not None and (quotient.constant is None or quotient.constant >= 0):
            self._define(equation, name, quotient)
            return
        if linear and factor.constant is not None and whole.constant is not None and whole.constant >= 0:
            raise self._indivisible(equation, whole, factor)
        self._know(name, Known(Size.of(name), equation.right.origin, equation.right.span))
        self._judge(equation, a, b)

    def _judge(self, equation: Equation, a: Size, b: Size) -> None:
        """An equation without unknowns. Raises: ShapeError `E-EXTENT` where it cannot hold."""
        judged = self._verdict(a, b)
        found = Equation(
            equation.subject, self._original(equation.left, a), self._original(equation.right, b), equation.declared
        )
        if judged in ("refuted", "zero"):
            raise self._refuted(found, judged)
        self.required.append(found)
        self._assume(a, b)
        for earlier in self.required:
            a, b = self.reduced(earlier.left.size), self.reduced(earlier.right.size)
            judged = self._verdict(a, b)
            if judged in ("refuted", "zero"):
                both = Equation(earlier.subject, self._original(earlier.left, a), self._original(earlier.right, b))
                raise self._refuted(both, judged, because=None if earlier == found else found)

    def _verdict(self, a: Size, b: Size) -> str:
        """Judged as they are, else with all that the required equations imply."""
        direct = verdict(a, b)
        return direct if direct != "required" else verdict(a.substitute(self.implied), b.substitute(self.implied))

    def _original(self, known: Known, size: Size) -> Known:
        """A side with its size; where the side is an index alone, the origin of that index's size."""
        name = next(iter(known.size.symbols), "")
        if known.size == Size.of(name) and name in self.values:
            return Known(size, self.values[name].origin, self.values[name].span)
        return Known(size, known.origin, known.span)

    def _assume(self, a: Size, b: Size) -> None:
        """A required equation is taken for granted from here on: a lone symbol becomes the other side."""
        for lone, other in ((b, a), (a, b)):
            name = next(iter(lone.symbols), "")
            if lone == Size.of(name) and name not in other.symbols:
                self.symbols = {s: v.substitute({name: other}) for s, v in self.symbols.items()} | {name: other}
                self._imply(name, other)
                return
        difference = a.substitute(self.implied) - b.substitute(self.implied)
        for monomial, coefficient in difference.terms:
            rest = difference - Size(((monomial, coefficient),))
            if [power for _, power in monomial] != [1] or monomial[0][0] in rest.symbols:
                continue
            solution = (-rest if coefficient > 0 else rest).divide(Size((((), abs(coefficient)),)))
            if solution is not None:
                self._imply(monomial[0][0], solution)
                return

    def _imply(self, name: str, size: Size) -> None:
        size = size.substitute(self.implied)
        if name not in size.symbols:
            self.implied = {s: v.substitute({name: size}) for s, v in self.implied.items()} | {name: size}

    def _refuted(self, equation: Equation, judged: str, because: Equation | None = None) -> ShapeError:
        left, right = equation.left, equation.right
        what = f"the size of {equation.subject} would be both {left.size} and {right.size}"
        if judged == "zero":
            what += "; they agree only where the sizes are 0"
        facts = [f"{left.origin}: {left.size}", f"{right.origin}: {right.size}"]
        if because is not None:
            facts.append(f"and {because}: {because.left.origin}, {because.right.origin}")
        hint = f"give both the same size, or use two index names if {equation.subject} stands for two different things"
        return self._error("E-EXTENT", what, (left, right), facts, hint)

    def _indivisible(self, equation: Equation, whole: Size, factor: Size) -> ShapeError:
        facts = [f"{equation.right.origin}: {whole}", f"the other parts: {factor}"]
        what = f"{whole} is not divisible by {factor}, so the axis cannot be read as {equation.subject}"
        return self._error(
            "E-SPLIT", what, (equation.right,), facts, f"give an axis that is a multiple of {factor}, or other sizes"
        )

    def _error(self, code: str, what: str, places: tuple[Known, ...], facts: list[str], hint: str) -> ShapeError:
        spans = list(dict.fromkeys(k.span for k in places if k.span is not None))
        return ShapeError(code, what, source=self.source if spans else None, spans=spans, facts=facts, hint=hint)

    def sizes(self, names: tuple[str, ...]) -> Mapping[str, Size]:
        """The size of each index, as far as it is known; else its own name."""
        return {n: self.reduced(Size.of(n)) for n in names}
