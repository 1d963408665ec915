"""Random matrix formulas in plain text and in LaTeX, with the value that NumPy gives them."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np


def softmax(x, axis=-1):
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


@dataclass
class Made:
    """A formula in plain text and in LaTeX with its value; `bare`: whether it can stand in a product as it is."""

    plain: str
    latex: str
    value: np.ndarray
    bare: bool = True

    def wrapped(self, opening="(", closing=")"):
        if self.bare:
            return self.plain, self.latex
        return f"{opening}{self.plain}{closing}", f"\\left{opening}{self.latex}\\right{closing}"


@dataclass
class Maker:
    """Random formulas of a given shape; their inputs are made on the way."""

    dice: random.Random
    rng: np.random.Generator
    axes: dict = field(default_factory=dict)
    inputs: dict = field(default_factory=dict)
    sizes: dict = field(default_factory=lambda: {"a": 2, "b": 3, "c": 5, "d": 1, "e": 4})

    def leaf(self, *names):
        known = [n for n, of in self.axes.items() if of == " ".join(names)]
        if known and self.dice.random() < 0.5:
            name = self.dice.choice(known)
        else:
            letters = "ABCGHKLMPQ" if len(names) == 2 else "uvwxyz" if names else "pqrst"
            name = f"{self.dice.choice(letters)}{len(self.axes)}"
            self.axes[name] = " ".join(names)
            self.inputs[name] = self.rng.normal(size=[self.sizes[n] for n in names])
        return Made(f"{name[0]}_{name[1:]}", f"{name[0]}_{{{name[1:]}}}", self.inputs[name])

    def other(self, *taken):
        return self.dice.choice([n for n in self.sizes if n not in taken])

    def matrix(self, r, c, depth):
        """A matrix of axes r and c."""
        kinds = ["leaf"] if depth == 0 else ["leaf", "transpose", "product", "product", "sum", "entries", "scaled"]
        kinds += [] if depth == 0 else ["softmax", "tanh", "bias", "outer", "over", "softmax"]
        match self.dice.choice(kinds):
            case "leaf":
                return self.leaf(r, c)
            case "transpose":
                plain, latex = (m := self.matrix(c, r, depth - 1)).wrapped()
                tops = self.dice.choice([("^T", "^T"), ("ᵀ", "^\\top"), (".T", "^{\\top}")])
                if plain.endswith((tops[0], ".T", "ᵀ", "^T")):
                    plain, latex = f"({plain})", f"({latex})"
                return Made(plain + tops[0], latex + tops[1], m.value.T)
            case "product":
                k = self.other()
                m, n = self.matrix(r, k, depth - 1), self.matrix(k, c, depth - 1)
                op = self.dice.choice([(" ", " "), (" @ ", " \\cdot ")])
                return self.joined(m, n, op, m.value @ n.value, True)
            case kind:
                return self.of_entries(kind, r, c, depth)

    def of_entries(self, kind, r, c, depth):
        match kind:
            case "sum":
                m, n = self.matrix(r, c, depth - 1), self.matrix(r, c, depth - 1)
                return Made(f"{m.plain} - {n.wrapped()[0]}", f"{m.latex} - {n.wrapped()[1]}", m.value - n.value, False)
            case "entries":
                m, n = self.matrix(r, c, depth - 1), self.matrix(r, c, depth - 1)
                a, b = f"({m.plain})", f"({n.plain})"
                return Made(f"{a} ⊙ {b}", f"({m.latex}) \\odot ({n.latex})", m.value * n.value, False)
            case "scaled":
                s, m = self.scalar(depth - 1), self.matrix(r, c, depth - 1)
                return self.joined(s, m, (" ", " "), s.value * m.value, True)
            case "softmax":
                m = self.matrix(r, c, depth - 1)
                latex = f"\\text{{softmax}}\\left({m.latex}\\right)"
                return Made(f"softmax({m.plain})", latex, softmax(m.value))
            case "tanh":
                m = self.matrix(r, c, depth - 1)
                return Made(f"tanh({m.plain})", f"\\tanh({m.latex})", np.tanh(m.value))
            case "bias" if r != c:
                m, b = self.matrix(r, c, depth - 1), self.leaf(c)
                return Made(f"{m.plain} + {b.plain}", f"{m.latex} + {b.latex}", m.value + b.value, False)
            case "over":
                m, k = self.matrix(r, c, depth - 1), self.dice.choice(list(self.sizes))
                plain, latex = m.wrapped()
                root = np.sqrt(self.sizes[k])
                self.need(k)
                return Made(f"({plain} / sqrt(|{k}|))", f"\\frac{{{latex}}}{{\\sqrt{{|{k}|}}}}", m.value / root)
            case _:
                x, y = self.vector(r, depth - 1), self.vector(c, depth - 1)
                (a, b), (c_, d) = x.wrapped(), y.wrapped()
                return Made(f"({a}) ({c_})^T", f"({b}) ({d})^\\top", np.outer(x.value, y.value), False)

    def need(self, k):
        """A size is that of a declared axis."""
        self.axes.setdefault(f"N{k}", k)
        self.inputs.setdefault(f"N{k}", self.rng.normal(size=self.sizes[k]))

    def joined(self, m, n, op, value, product):
        (a, b), (c, d) = m.wrapped(), n.wrapped()
        return Made(f"({a}{op[0]}{c})", f"({b}{op[1]}{d})", value)

    def vector(self, r, depth):
        if depth <= 0 or self.dice.random() < 0.3:
            return self.leaf(r)
        match self.dice.choice(["apply", "sum", "softmax", "entries"]):
            case "apply":
                k = self.other()
                m, x = self.matrix(r, k, depth - 1), self.vector(k, depth - 1)
                return self.joined(m, x, (" ", " "), m.value @ x.value, True)
            case "sum":
                x, y = self.vector(r, depth - 1), self.vector(r, depth - 1)
                return Made(f"{x.plain} + {y.plain}", f"{x.latex} + {y.latex}", x.value + y.value, False)
            case "softmax":
                x = self.vector(r, depth - 1)
                return Made(f"Softmax[{x.plain}]", f"\\mathrm{{Softmax}}[{x.latex}]", softmax(x.value))
            case _:
                x, y = self.vector(r, depth - 1), self.vector(r, depth - 1)
                plain = f"({x.plain}) ⊙ ({y.plain})"
                return Made(plain, f"({x.latex}) \\odot ({y.latex})", x.value * y.value, False)

    def scalar(self, depth):
        match self.dice.choice(["leaf", "number", "inner"]):
            case "leaf":
                return self.leaf()
            case "number":
                return Made("0.5", "0.5", np.float64(0.5))
            case _:
                k = self.other()
                x, y = self.vector(k, depth - 1), self.vector(k, depth - 1)
                return Made(f"(({x.plain})^T ({y.plain}))", f"(({x.latex})^T ({y.latex}))", x.value @ y.value)
