"""Random well-typed programs with inputs, as text: what `test_random_programs` compares with the reference."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, replace

import numpy as np
from hypothesis import strategies as st

POOL = ("mu", "nu", "rho", "i", "j", "k", "l")  # k and l have one size, for delta
PRIMES = (2, 3, 5, 7)
OTHER_NAMES = ("alpha", "beta", "gamma", "kappa", "tau", "theta", "zeta")
CALLS = ("tanh({})", "exp({})", "sigmoid({})", "relu({})", "gelu({})", "softplus({})", "leaky_relu({}, 0.1)", "elu({})")
CALLS += ("silu({})", "sin({})", "cos({})", "abs({})", "maximum({}, 0.5)", "minimum(0.25, {})", "sqrt(1 + ({})**2)")
CALLS += ("log(2 + ({})**2)", "where({} > 0.1, 2, -1)", "({})**2", "sign({})")
NORMALISERS = [(kind, "") for kind in ("softmax", "softmax", "softmax1", "sparsemax", "l1norm", "l2norm")]
NORMALISERS += [("softmax", "sink"), ("entmax", "; 1.5"), ("l1norm", "; eps=0.01")]


@dataclass(frozen=True)
class Term:
    """`coefficient factors / divisor`."""

    coefficient: str
    factors: tuple[str, ...]
    divisor: str | None

    def __str__(self) -> str:
        body = self.coefficient
        for factor in self.factors:
            bare = re.search(r"(^| )\w+$", body) and "_" not in body.split(" ")[-1]
            body += f" * {factor}" if bare and factor.startswith("(") else f" {factor}"
        body = body.strip()
        return f"{body} / {self.divisor}" if self.divisor else body


@dataclass(frozen=True)
class Line:
    """One statement."""

    left: str
    terms: tuple[Term, ...]
    signs: tuple[str, ...]

    def __str__(self) -> str:
        right = "".join(f" {sign} {term}" for sign, term in zip(self.signs, self.terms, strict=True))
        return f"{self.left} = {right.removeprefix(' + ').strip()}"


@dataclass(frozen=True)
class Example:
    """A program, its inputs and the sizes that no input fixes."""

    lines: tuple[Line, ...]
    inputs: dict[str, np.ndarray]
    sizes: dict[str, int]
    bound: tuple[str, ...]  # index names that stand on no left side

    def _repr_pretty_(self, printer: object, cycle: bool) -> None:
        """What hypothesis prints of a failing case."""
        shapes = {name: (array.shape, str(array.dtype)) for name, array in self.inputs.items()}
        printer.text(f"\n{self.text}\ninputs {shapes}\nsizes {self.sizes}\n")

    @property
    def text(self) -> str:
        return "\n".join(map(str, self.lines))

    @property
    def names(self) -> list[str]:
        return [re.match(r"[A-Za-z0-9]+", line.left).group() for line in self.lines]

    @property
    def renaming(self) -> dict[str, str]:
        return dict(zip(self.bound, OTHER_NAMES, strict=False))

    def renamed(self) -> Example:
        """The same with other names for the indices that are summed or bound everywhere."""
        text = renamed(self.text, self.renaming)
        lines = tuple(Line(left, (Term("", (right,), None),), ("+",)) for left, right in split_lines(text))
        return replace(self, lines=lines, sizes={self.renaming.get(n, n): s for n, s in self.sizes.items()})

    def poisoned(self, rnd: random.Random, poisons: tuple[float, ...] = (np.nan,)) -> Example:
        """The same with NaN, or other numbers, at a few places of the floating inputs."""
        inputs = {name: np.array(array) for name, array in self.inputs.items()}
        for array in rnd.choices([a for a in inputs.values() if a.dtype.kind == "f" and a.size] or [np.zeros(1)], k=2):
            array[tuple(rnd.randrange(n) for n in array.shape)] = rnd.choice(poisons)
        return replace(self, inputs=inputs)

    def reordered(self, rnd: random.Random) -> Example:
        """The same with the factors of every product in another order; a score still stands before its echoes."""
        lines = []
        for line in self.lines:
            terms = [replace(t, factors=shuffled(t.factors, rnd)) for t in line.terms]
            lines.append(replace(line, terms=tuple(terms)))
        return replace(self, lines=tuple(lines))


def shuffled(factors: tuple[str, ...], rnd: random.Random) -> tuple[str, ...]:
    """Another order, in which the barred factors keep theirs."""
    order = rnd.sample(factors, len(factors))
    barred = iter([f for f in factors if "bar(" in f])
    return tuple(next(barred) if "bar(" in f else f for f in order)


def split_lines(text: str) -> list[list[str]]:
    return [line.split(" = ", 1) for line in text.splitlines()]


def renamed(text: str, names: dict[str, str]) -> str:
    """The text with index names replaced; they must not also be names of tensors."""
    return re.sub(r"[A-Za-z][A-Za-z0-9]*", lambda word: names.get(word.group(), word.group()), text)


class Builder:
    """Draws one program; every method returns text that is valid where it is used, and adds the inputs it names."""

    def __init__(self, rnd: random.Random) -> None:
        self.rnd = rnd
        self.rng = np.random.default_rng(rnd.randrange(2**32))
        self.dtype = rnd.choice(["float64", "float64", "float32"])
        self.integers = rnd.random() < 0.15
        self.batch = rnd.choice([(), (), (), (2,), (3, 2), (1,)])
        primes = rnd.sample(PRIMES, 4)
        sizes = [*primes, rnd.choice([1, 2, 3]), rnd.choice([2, 3])]
        if rnd.random() < 0.3:
            sizes[rnd.randrange(6)] = rnd.choice([0, 1])
        self.sizes = dict(zip(POOL, [*sizes, sizes[-1]], strict=True))
        self.inputs: dict[str, np.ndarray] = {}
        self.defined: list[tuple[str, tuple[tuple[str, ...], ...], bool]] = []
        self.plain: set[str] = set()  # indices whose size an input fixes
        self.batched = False
        self.free: list[str] = []

    def chance(self, probability: float) -> bool:
        return self.rnd.random() < probability

    def some(self, names: list[str], at_least: int, at_most: int) -> list[str]:
        return self.rnd.sample(names, self.rnd.randint(min(at_least, len(names)), min(at_most, len(names))))

    # Tensors --------------------------------------------------------------------------------------------------------

    def data(self, shape: tuple[int, ...], kind: str) -> np.ndarray:
        match kind:
            case "bool":
                return self.rng.random(shape) < 0.6
            case "positive":
                return (self.rng.random(shape) + 0.5).astype(self.dtype)
            case "real" if self.integers and self.chance(0.6):
                return self.rng.integers(-2, 3, size=shape)
            case "real":
                return self.rng.uniform(-1.5, 1.5, size=shape).astype(self.dtype)
            case _:
                return self.rng.integers(0, int(kind), size=shape)  # positions below it

    def tensor(self, slots: list[str], shape: list[int], kind: str = "real", upper: int | None = None) -> str:
        """A new input, read through slots that are already written."""
        name = f"T{len(self.inputs)}"
        batch = bool(self.batch) and kind in ("real", "positive", "bool") and self.chance(0.4)
        self.batched |= batch
        self.inputs[name] = np.asarray(self.data((*(self.batch if batch else ()), *shape), kind))
        return self.read(name, slots, batch, upper)

    def read(self, name: str, slots: list[str], batch: bool, upper: int | None = None) -> str:
        """The slots shared between an upper and a lower group, in either order on the page."""
        upper = self.rnd.randint(0, len(slots)) if upper is None else upper
        groups = [("^", slots[:upper]), ("_", slots[upper:])]
        if batch:
            first = 0 if slots[:upper] or not slots else 1
            groups[first] = (groups[first][0], ["...", *groups[first][1]])
        written = [mark + self.group(g) for mark, g in groups if g]
        swap = len(written) == 2 and self.chance(0.3)
        return name + "".join(reversed(written) if swap else written)

    def group(self, slots: list[str]) -> str:
        if len(slots) == 1 and re.fullmatch(r"[a-z]|mu|nu|rho", slots[0]) and self.chance(0.7):
            return slots[0]
        commas = any(re.search(r"[-+|]", re.sub(r"bar\(.*\)", "", slot)) for slot in slots) or self.chance(0.2)
        return "<" + (", " if commas else " ").join(slots) + ">"

    def over(self, indices: list[str], kind: str = "real") -> str:
        """A new input with these indices as plain slots, in some order."""
        order = self.rnd.sample(indices, len(indices))
        self.plain.update(order)
        return self.tensor(order, [self.sizes[i] for i in order], kind)

    # Factors --------------------------------------------------------------------------------------------------------

    def unit(self, indices: list[str]) -> str:
        """A factor in which exactly these indices are open, with no normaliser."""
        makers = [self.over] * 8 + [self.call, self.bracket, self.definition, self.definition]
        if indices:
            makers += [self.gathered, self.fixed, self.broadcast, self.position, self.joined]
        if len(indices) > 1:
            makers += [self.shifted, self.merged]
        if {"k", "l"} <= set(indices):
            makers += [self.delta] * 3
        return self.rnd.choice(makers)(indices)

    def call(self, indices: list[str]) -> str:
        return self.rnd.choice(CALLS).format(self.over(indices))

    def bracket(self, indices: list[str]) -> str:
        part = self.some(indices, 0, len(indices))
        return f"({self.over(indices)} {self.rnd.choice('+-')} {self.over(part)})"

    def definition(self, indices: list[str]) -> str:
        """An earlier statement, times an input over the indices it lacks."""
        fitting = [d for d in self.defined if {i for axis in d[1] for i in axis} <= set(indices)]
        if not fitting:
            return self.over(indices)
        name, axes, batch = self.rnd.choice(fitting)
        self.batched |= batch
        text = self.read(name, [a[0] if len(a) == 1 else f"({' '.join(a)})" for a in axes], batch)
        rest = [i for i in indices if not any(i in axis for axis in axes)]
        return f"({text} {self.over(rest)})" if rest else text

    def gathered(self, indices: list[str]) -> str:
        inner = self.some(indices, 1, 2)
        rest = [i for i in indices if i not in inner]
        self.plain.update(indices)
        place = self.tensor(inner, [self.sizes[i] for i in inner], "4", upper=self.rnd.choice([0, len(inner)]))
        return self.tensor([place, *rest], [4, *(self.sizes[i] for i in rest)])

    def fixed(self, indices: list[str]) -> str:
        self.plain.update(indices)
        at = self.rnd.randrange(3)
        return self.tensor([str(at), *indices], [3, *(self.sizes[i] for i in indices)])

    def broadcast(self, indices: list[str]) -> str:
        return f"ones_<{' '.join(indices)}>"

    def position(self, indices: list[str]) -> str:
        """A position where the index is free, else one that a binder names."""
        name = self.rnd.choice(indices)
        if name in self.free:
            return f"({self.over(indices)} + 0.1 * {name})"
        self.plain.update(indices)
        sign = self.rnd.choice(["<", "<=", "==", "!="])
        read = self.tensor(["sigma", *indices], [4, *(self.sizes[i] for i in indices)])
        return f"sum[sigma : sigma {sign} 2]({read} * (1 + sigma))"

    def joined(self, indices: list[str]) -> str:
        """A disjoint union of two inputs along one of the indices."""
        whole, *rest = self.rnd.sample(indices, len(indices))
        first = self.rnd.randint(0, self.sizes[whole])
        parts = [(f"u{len(self.inputs)}", first), (f"w{len(self.inputs)}", self.sizes[whole] - first)]
        self.plain.update(indices)  # the parts fix the whole
        sizes = [self.sizes[i] for i in rest]
        arguments = [self.tensor([name, *rest], [size, *sizes]) for name, size in parts]
        return f"cat[{whole} = {parts[0][0]} + {parts[1][0]}]({', '.join(arguments)})"

    def shifted(self, indices: list[str]) -> str:
        a, b, *rest = self.rnd.sample(indices, len(indices))
        self.plain.update(rest)
        length = max(self.sizes[a] + self.sizes[b] - 1, 0)
        read = self.tensor([f"{a} - {b} + |{b}| - 1", *rest], [length, *(self.sizes[i] for i in rest)])
        elsewhere = [i for i in (a, b) if i not in self.free]  # a name in affine slots alone is a scalar
        return f"{read} ones_<{' '.join(elsewhere)}>" if elsewhere else read

    def merged(self, indices: list[str]) -> str:
        a, b, *rest = self.rnd.sample(indices, len(indices))
        self.plain.update(rest)
        return self.tensor([f"({a} {b})", *rest], [self.sizes[a] * self.sizes[b], *(self.sizes[i] for i in rest)])

    def delta(self, indices: list[str]) -> str:
        rest = [i for i in indices if i not in ("k", "l")]
        return f"(delta_<k l> {self.over(rest)})" if rest else "delta_<k l>"

    # Predicates, normalisers, reductions ----------------------------------------------------------------------------

    def predicate(self, group: list[str], beside: list[str]) -> str:
        a = self.rnd.choice(group)
        b = self.rnd.choice(beside or group)
        more = [a, *self.some(beside, 0, 1)]
        forms = [
            lambda: f"{a} <= {b}",
            lambda: f"{a} < {b} + 1",
            lambda: f"abs({a} - {b}) <= 1",
            lambda: f"0 <= {b} - {a} < 3",
            lambda: f"{a} != 0",
            lambda: self.over(more, "bool"),
            lambda: f"not {self.over([a], 'bool')}",
            lambda: f"{self.over(more)} > -0.3",
            lambda: f"top[{' '.join(group)}; 2]({self.over([*group, *more[1:]])})",
        ]
        left = self.rnd.choice(forms)()
        return f"{left} {self.rnd.choice(['and', 'or'])} {self.rnd.choice(forms)()}" if self.chance(0.25) else left

    def condition(self, group: list[str], beside: list[str]) -> str:
        return f" : {self.predicate(group, beside)}" if self.chance(0.5) else ""

    def normaliser(self, indices: list[str], inner: str | None) -> str:
        """An explicit normaliser over one or two of the indices; `inner` may be contracted in its score."""
        group = self.some(indices, 1, 2)
        beside = [i for i in indices if i not in group]
        score = self.over(indices)
        if inner is not None and self.chance(0.5):
            score = f"{self.over([*group, inner])} {self.over([*beside, inner])} / sqrt(|{inner}|) + {score}"
        kind, option = self.rnd.choice(NORMALISERS)
        if option == "sink":
            option = f"; sink={self.over(self.some(beside, 0, 1))}"
        score = f"exp({score})" if kind == "l1norm" else score
        return f"{kind}[{' '.join(group)}{self.condition(group, beside)}{option}]({score})"

    def reduction(self, indices: list[str], inner: str) -> str:
        kind = self.rnd.choice(["sum", "mean", "prod", "max", "min", "lse"])
        where = ""
        if kind in ("sum", "mean", "prod"):
            where = self.condition([inner], indices)
        elif not self.sizes[inner]:
            kind = "sum"  # ±∞ of an empty row makes NaN of a zero beside it
        return f"{kind}[{inner}{where}]({self.over([*indices, inner])})"

    # Terms, statements ----------------------------------------------------------------------------------------------

    def spread(self, free: list[str], summed: list[str], count: int, once: list[str]) -> list[list[str]]:
        """Index lists of `count` factors: free ones in at least one, summed ones in at least two (`once`: in one)."""
        sets: list[list[str]] = [[] for _ in range(count)]
        for index in (*free, *summed):
            least = 2 if index in summed and index not in once else 1
            for chosen in self.some(list(range(count)), least, least + (self.rnd.random() < 0.3)):
                sets[chosen].append(index)
        return sets

    def term(self, free: list[str]) -> Term:
        others = [i for i in POOL if i not in self.free]
        summed = self.some(others, 0, 2)
        inner = next(i for i in others if i not in summed)
        factors = self.barred(free, summed) if self.chance(0.4) else self.product(free, summed, inner)
        divisor = self.over(self.some(free, 0, 1), "positive") if self.chance(0.15) else None
        return Term(self.rnd.choice(["", "", "", "2", "0.5"]), tuple(factors), divisor)

    def product(self, free: list[str], summed: list[str], inner: str) -> list[str]:
        factors = []
        for indices in self.spread(free, summed, self.rnd.randint(2 if summed else 1, 3), []):
            if indices and self.chance(0.2):
                factors.append(self.normaliser(indices, inner))
            elif self.chance(0.1):
                factors.append(self.reduction(indices, inner))
            else:
                factors.append(self.unit(indices))
        return factors

    def barred(self, free: list[str], summed: list[str]) -> list[str]:
        """A tensor with a bar, and the values it weighs, echoes among them."""
        group = self.some([*free, *summed], 1, 2)
        if not group:
            return [self.over([])]
        plain = [i for i in free if i not in group and self.chance(0.7)]
        condition = self.condition(group, plain)
        self.plain.update([*group, *plain])
        at = self.rnd.randint(0, len(plain))
        slots = [*plain[:at], f"bar({' '.join(group)}{condition})", *plain[at:]]
        shape = [self.sizes[i] for i in (*plain[:at], *group, *plain[at:])]
        factors = [self.tensor(slots, shape)]
        rest = [i for i in free if i not in plain and i not in group]
        if summed or rest:
            for indices in self.spread(rest, summed, self.rnd.randint(2, 3) if summed else 1, group):
                after = [i for i in indices if i not in group]
                if set(group) <= set(indices) and self.chance(0.5):
                    self.plain.update(indices)
                    sizes = [self.sizes[i] for i in (*group, *after)]
                    factors.append(self.tensor([f"bar({' '.join(group)})", *after], sizes))
                else:
                    factors.append(self.unit(indices))
        return factors

    def line(self, number: int) -> Line:
        free = self.free = self.some(list(POOL), 0, 3)
        self.batched = False
        terms = [self.term(free)]
        while self.chance(0.3) and len(terms) < 3:
            terms.append(self.term(self.some(free, 0, 3) if self.chance(0.3) else free))
        name = f"Y{number}"
        axes: list[tuple[str, ...]] = [(i,) for i in self.rnd.sample(free, len(free))]
        if len(axes) > 1 and self.chance(0.2):
            axes[:2] = [(*axes[0], *axes[1])]
        slots = [a[0] if len(a) == 1 else f"({' '.join(a)})" for a in axes]
        left = self.read(name, slots, self.batched)
        self.defined.append((name, tuple(axes), self.batched))
        signs = tuple(self.rnd.choice("+-") for _ in terms)
        return Line(left, tuple(terms), signs)

    def example(self) -> Example:
        lines = tuple(self.line(n) for n in range(self.rnd.randint(1, 3)))
        text = "\n".join(map(str, lines))
        words = set(re.findall(r"[A-Za-z]\w*", re.sub("[_^]", " ", text)))
        left = {w for line in lines for w in re.findall(r"[A-Za-z]\w*", re.sub("[_^]", " ", line.left))}
        sizes = {n: s for n, s in self.sizes.items() if n in words and n not in self.plain}
        bound = tuple(n for n in POOL if n in words and n not in left)
        return Example(lines, self.inputs, sizes, bound)


@st.composite
def examples(draw: st.DrawFn) -> Example:
    """A random program with its inputs, from a seed: long programs are as likely as short ones."""
    return Builder(draw(st.randoms(use_true_random=True))).example()
