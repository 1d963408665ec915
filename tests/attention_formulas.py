"""Random formulas that are attention with one key axis, of any arity: what `test_flattened` compares with others."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

SIZES = (0, 1, 2, 3, 5, 7)
BARRED = ("nu", "rho", "tau")
PREDICATES = ("nu <= mu", "mu >= nu", "nu < mu", "nu != mu", "mu - 1 <= nu", "nu <= mu and nu != 1", "nu > 2")
PAIRED = ("rho <= nu", "rho <= nu and nu <= mu", "nu != rho")


@dataclass(frozen=True)
class Formula:
    """A formula, its inputs, and whether it is a softmax with a predicate."""

    text: str
    inputs: dict[str, np.ndarray]
    masked: bool

    def _repr_pretty_(self, printer: object, cycle: bool) -> None:
        """What hypothesis prints of a failing case."""
        shapes = {name: (array.shape, str(array.dtype)) for name, array in self.inputs.items()}
        printer.text(f"\n{self.text}\ninputs {shapes}\n")

    def poisoned(self, rnd: random.Random, poisons: tuple[float, ...]) -> Formula:
        """The same with other numbers at a few places of the inputs."""
        inputs = {name: np.array(array) for name, array in self.inputs.items()}
        for array in rnd.choices([a for a in inputs.values() if a.size and a.ndim], k=2):
            array[tuple(rnd.randrange(n) for n in array.shape)] = rnd.choice(poisons)
        return Formula(self.text, inputs, self.masked)


def formulas(least: int = 0) -> st.SearchStrategy[Formula]:
    """Formulas with sizes of at least `least`."""
    return st.integers(0, 2**32).map(lambda seed: drawn(random.Random(seed), least))


def drawn(rnd: random.Random, least: int) -> Formula:
    """A formula and its inputs."""
    barred = BARRED[: rnd.choice((1, 2, 2, 3))]
    heads = rnd.choice(("", "", "h ", "b h "))
    axes: dict[str, str] = {}

    def tensor(name: str, upper: str, lower: str = "") -> str:
        upper, lower = " ".join(upper.split()), " ".join(lower.split())
        axes[name] = f"{upper} {lower}".strip()
        return f"{name}^<{upper}>" + (f"_<{lower}>" if lower else "")

    score = _score(rnd, barred, heads, tensor)
    for n in range(rnd.choice((0, 0, 1, 2))):
        score += rnd.choice((" + ", " - ")) + _bias(rnd, f"b{n}", barred, heads, tensor)
    where = rnd.choice(("", "", *PREDICATES)) if len(barred) == 1 else rnd.choice(("", "", PREDICATES[0], *PAIRED))
    sink = rnd.choice(("", "", "", "s", "1.5", "h"))
    if sink == "h":
        sink = tensor("s", "h") if "h" in heads else ""
    elif sink == "s":
        axes["s"] = ""
    options = (f" : {where}" if where else "") + (f"; sink={sink}" if sink else "")
    value = _value(rnd, barred, rnd.choice(("", heads)), tensor)
    n = "_n" if "n" in " ".join(axes[name] for name in axes if name[0] in "vP").split() else ""
    text = f"y^<{heads}mu>{n} = softmax[{' '.join(barred)}{options}]({score}) {value}"
    sizes = {i: rnd.choice([s for s in SIZES if s >= least]) for i in "mu nu rho tau i j p n b h c e".split()}
    dtype = rnd.choice((np.float64, np.float32))
    rng = np.random.default_rng(rnd.randrange(2**32))
    inputs = {}
    for name, names in axes.items():
        shape = tuple(sizes[i] for i in names.split())
        array = rng.normal(size=shape[::-1]).astype(dtype).T  # odd strides
        inputs[name] = array if rnd.random() < 0.5 else array.copy("C")
    return Formula(text, inputs, bool(where))


def _score(rnd: random.Random, barred: tuple[str, ...], heads: str, tensor: object) -> str:
    """A product of a query and of keys, with numbers beside it."""
    shared = rnd.choice(("", heads))
    kind = rnd.choice(("bond", "bond", "tensor", "joint", "projected"))
    query = tensor("q", f"{heads}mu", "i")
    if kind == "tensor":
        factors = [query, *(tensor(f"k{n}", f"{shared}{b}", "jec"[n]) for n, b in enumerate(barred))]
        factors.append(tensor("M", "", " ".join(["i", *"jec"[: len(barred)]])).replace("^<>", ""))
    elif kind == "joint":
        factors = [query, tensor("k", f"{shared}{' '.join(barred)}", "i")]
    elif kind == "projected":
        factors = [query, tensor("A", "i j"), *(tensor(f"k{n}", f"{shared}{b}", "j") for n, b in enumerate(barred))]
    else:
        factors = [query, *(tensor(f"k{n}", f"{shared}{b}", "i") for n, b in enumerate(barred))]
    product = " ".join(rnd.sample(factors, len(factors)))
    return rnd.choice(("", "", "0.5 ", "-")) + product + rnd.choice(("", " / sqrt(|i|)", " / 3", " / |i|"))


def _bias(rnd: random.Random, name: str, barred: tuple[str, ...], heads: str, tensor: object) -> str:
    chosen = [i for i in ("mu", *barred) if rnd.random() < 0.6] or [barred[0]]
    return rnd.choice(("", "tanh", "2 *")) + "(" + tensor(name, rnd.choice(("", heads)) + " ".join(chosen)) + ")"


def _value(rnd: random.Random, barred: tuple[str, ...], shared: str, tensor: object) -> str:
    """One array over the group, a product of several, or one over a part of the group."""
    match rnd.choice(("joint", "product", "product", "part", "projected", "scalar")):
        case "joint":
            return tensor("v", shared + " ".join(barred), "n")
        case "part":
            others = (tensor(f"u{n}", b) for n, b in enumerate(barred[:-1]))
            return " ".join((tensor("v", shared + barred[-1], "n"), *others)) + " / 2"
        case "projected":
            return tensor("v", shared + " ".join(barred), "p") + " " + tensor("P", "p", "n") + " * 3"
        case "scalar":
            return tensor("v", shared + " ".join(barred))
    return " ".join(tensor(f"v{n}", shared + b, "n") for n, b in enumerate(barred))
