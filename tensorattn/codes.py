"""Every error code: its condition, a call that raises it, and the repaired call. `docs/errors.md` is made from it.

python -m tensorattn.codes > docs/errors.md
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from tensorattn.errors import TensorattnError


@dataclass(frozen=True, slots=True)
class Example:
    """A formula, with the shapes it is checked with, or the options and arrays it is compiled and called with."""

    formula: str
    shapes: Mapping[str, Any] = field(default_factory=dict)
    arrays: Mapping[str, Any] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    wrt: str | None = None  # the input that it is differentiated by
    einsum: bool = False  # whether it is an einsum string
    index: str | None = None  # the barred index of which the posterior is taken

    def run(self) -> object:
        """What the call returns. Raises: the error that it is an example of."""
        import tensorattn

        if self.einsum:
            return tensorattn.from_einsum(self.formula)
        if self.wrt is not None:
            return tensorattn.grad(self.formula, self.wrt)
        if self.index is not None:
            return tensorattn.posterior(self.formula, self.index)
        if self.arrays is not None:
            return tensorattn.compile(self.formula, **self.options)(self.arrays)
        if self.shapes or self.options:
            return tensorattn.check(self.formula, self.shapes, **self.options)
        return tensorattn.parse(self.formula)

    def error(self) -> TensorattnError | None:
        """The error of the call, or None."""
        return _error_of(self.run)

    def __str__(self) -> str:
        """The call as Python code."""
        options = "".join(f", {name}={value!r}" for name, value in self.options.items())
        formula = repr(self.formula) if "\n" not in self.formula else f'"""\n{self.formula}\n"""'
        if self.einsum:
            return f"tensorattn.from_einsum({formula})"
        if self.wrt is not None:
            return f"tensorattn.grad({formula}, {self.wrt!r})"
        if self.index is not None:
            return f"tensorattn.posterior({formula}, {self.index!r})"
        if self.arrays is not None:
            given = ", ".join(f"{name}={value!r}" for name, value in self.arrays.items())
            return f"tensorattn.compile({formula}{options})({given})"
        if self.shapes or self.options:
            given = "".join(f", {name}={value!r}" for name, value in self.shapes.items())
            return f"tensorattn.check({formula}{given}{options})"
        return self.formula


@dataclass(frozen=True, slots=True)
class Call:
    """A call that no formula is given to, as Python code in which `tensorattn` is the package."""

    text: str

    def run(self) -> object:
        """What the call returns. Raises: the error that it is an example of."""
        import tensorattn

        return eval(self.text, {"tensorattn": tensorattn})

    def error(self) -> TensorattnError | None:
        """The error of the call, or None."""
        return _error_of(self.run)

    def __str__(self) -> str:
        """The call as Python code."""
        return self.text


def _error_of(run: Callable[[], object]) -> TensorattnError | None:
    try:
        run()
    except TensorattnError as error:
        return error
    return None


@dataclass(frozen=True, slots=True)
class Condition:
    """When a code is raised, in one line, with an example and its repaired form."""

    when: str
    example: Example | Call
    repaired: Example | Call


def _texts(when: str, example: str, repaired: str) -> Condition:
    return Condition(when, Example(example), Example(repaired))


def _shapes(
    when: str, example: str, shapes: dict[str, Any], repaired: str, repaired_shapes: dict[str, Any]
) -> Condition:
    return Condition(when, Example(example, shapes), Example(repaired, repaired_shapes))


def _call(
    when: str, formula: str, arrays: dict[str, Any], repaired: dict[str, Any], options: dict[str, Any] | None = None
) -> Condition:
    return Condition(when, Example(formula, arrays=arrays, options=options or {}), Example(formula, arrays=repaired))


_VECTOR, _SQUARE = [1.0, 2.0], [[1.0, 2.0], [3.0, 4.0]]

_CODES: dict[str, Condition] = {
    "E-DANGLING": _texts(
        "an index is neither free nor bound, and no product counts it twice",
        "y_i = A_<i j>",
        "y_i = sum[j](A_<i j>)",
    ),
    "E-UNDETERMINED": _texts(
        "an index of the result does not occur on the right",
        "y_<i j> = a_i",
        "y_<i j> = a_i ones_<j>",
    ),
    "E-SCOPE": _texts(
        "an index is summed inside a scope (brackets, argument, binder body, term) and used outside it too",
        "y_<i e> = softmax[j](q_<i d> k_<j d>) v_<j d> W_<d e>",
        "y_<i e> = softmax[j](q_<i d> k_<j d>) v_<j f> W_<f e>",
    ),
    "E-SHADOW": _texts(
        "a binder binds an index that is free or bound around it, or that is used beside it",
        "y_i = sum[j](A_<i j>) x_j",
        "y_i = sum[j](A_<i j> x_j)",
    ),
    "E-NORMIDX": _texts(
        "the body and the predicate of a normaliser, or an argument of `cat`, lack the index it runs over",
        "y_i = softmax[k](A_<i j>) x_j",
        "y_i = softmax[j](A_<i j>) x_j",
    ),
    "E-2BARS": _texts(
        "one tensor carries two bar groups, neither of them an echo",
        "y^mu_n = W^<mu bar(nu) bar(rho)> v^<nu rho>_n",
        "y^mu_n = W^<mu bar(nu rho)> v^<nu rho>_n",
    ),
    "E-ECHO": _texts(
        "a bar is repeated in one term where it is neither the score nor a plain echo of it",
        "y^mu_n = v^<bar(nu)>_n W^<mu bar(nu)>",
        "y^mu_n = v^nu_n W^<mu bar(nu)>",
    ),
    "E-LHSBAR": _texts("a bar stands on the left side", "P^<mu bar(nu)> = W^<mu nu>", "P^<mu nu> = W^<mu bar(nu)>"),
    "E-PRECONTRACT": _texts(
        "an index of a barred tensor is summed in the bar's own product: before or after the softmax?",
        "y^mu_n = k^mu_i q^<bar(nu)>_i v^nu_n",
        "y^mu_n = softmax[nu](k^mu_i q^nu_i) v^nu_n",
    ),
    "E-RUN": _texts("several letters follow `^` or `_` without brackets", "S = M_ij N_ij", "S = M_<i j> N_<i j>"),
    "E-BRACE": _texts(
        "a brace has no partner, or groups of LaTeX and of the plain notation are mixed",
        "y_<i> = M_{ij} x_j",
        "y_{i} = M_{ij} x_j",
    ),
    "E-POWER": _texts("a number or a sum follows `^`", "y_i = K^2_i", "y_i = K_i**2"),
    "E-DIV": _texts(
        "a factor follows a divisor without `*` or brackets", "y_i = a_i / b_i c_i", "y_i = a_i / (b_i c_i)"
    ),
    "E-CALL": _texts(
        "a name that is no function stands before a bracket, a name in brackets touches the factor before, or a "
        "function has a wrong number of arguments",
        "y_i = beta (a_i + b_i)",
        "y_i = beta * (a_i + b_i)",
    ),
    "E-AXIS": _texts("a binder names no axis", "y_i = softmax(A_<i j>) x_j", "y_i = softmax[j](A_<i j>) x_j"),
    "E-MATRIX": _texts(
        "a matrix formula names no axes, or the axes declared for it do not fit",
        "Y = Q K^T",
        "Y_<i j> = Q_<i d> K_<j d>",
    ),
    "E-LABEL": _texts(
        "a label, a word or a digit stands where indices stand",
        r"y_{i} = W^{(q)}_{ij} x_{j}",
        r"y_{i} = \mathrm{Wq}_{ij} x_{j}",
    ),
    "E-VEC": _texts("an arrow hides an index", r"y_{i} = a_{ij} \vec{x}_j", r"y_{ic} = a_{ij} x_{jc}"),
    "E-SYMBOL": _texts("a sign or a macro has no one meaning", r"y_{i} = x_{i} \circ z_{i}", r"y_{i} = x_{i} z_{i}"),
    "E-OVERLINE": _texts(
        "a bar, a tilde or a hat stands over more than one name",
        "y^μ = W^⟨μ ν̅ρ̅⟩ v^⟨ν ρ⟩",
        "y^μ = W^⟨μ bar(ν ρ)⟩ v^⟨ν ρ⟩",
    ),
    "E-SEP": _texts(
        "a group of several slots with arithmetic lacks commas",
        "A_<h i j> = R_<h i-j+3> ones_j",
        "A_<h i j> = R_<h, i-j+3> ones_j",
    ),
    "E-NAME": _texts(
        "a bare name is an index that is neither free nor bound there, or could be an index or a tensor",
        "y_i = q_<i d> k_d / sqrt(d)",
        "y_i = q_<i d> k_d / sqrt(|d|)",
    ),
    "E-RESERVED": _texts("a reserved word names a tensor or an index", "y_i = sum_<i j> x_j", "y_i = total_<i j> x_j"),
    "E-LHSDUP": _texts(
        "a name repeats on the left side, or within a bar, group, binder or `cat`",
        "D_<i i> = a_i",
        "D_<i j> = a_i delta_<i j>",
    ),
    "E-REDEF": _texts(
        "a name is defined twice, or used before its definition",
        "y_i = a_i\ny_i = b_i",
        "y_i = a_i\nz_i = b_i",
    ),
    "E-RECUR": _texts("a statement uses the name it defines", "y_i = y_i + x_i", "z_i = y_i + x_i"),
    "E-DOUBLE": _texts("a tensor has two upper or two lower groups", "y_i = M_i_j x_j", "y_i = M_<i j> x_j"),
    "E-CHAR": _texts("a character means nothing in the notation", "y_i = a_i @ b_i", "y_i = a_i * b_i"),
    "E-LIMIT": _texts(
        "the text, an integer or the nesting of brackets is larger than the notation allows",
        "y_i = 12345678901234567890 x_i",
        "y_i = n x_i",
    ),
    "E-SYNTAX": _texts("the text does not follow the grammar", "y_i = (a_i + b_i", "y_i = (a_i + b_i)"),
    "E-EINSUM": Condition(
        "a text is no einsum string, its operands and their names differ in number, or a program is no einsum",
        Example("ij,jk->i,k", einsum=True),
        Example("ij,jk->ik", einsum=True),
    ),
    "E-LINT": Condition(
        "`strict=True` and the formula reads like a slip",
        Example("y_i = A_<j j> x_i", options={"strict": True}),
        Example("y_i = A_<j k> delta_<j k> x_i", options={"strict": True}),
    ),
    "E-UNDEF": _shapes(
        "a declared name is not in the formula, an input has no shape while others have, or no such statement exists",
        "y_i = B_<i j> x_j",
        {"A": "I J", "x": "J"},
        "y_i = A_<i j> x_j",
        {"A": "I J", "x": "J"},
    ),
    "E-RANK": _shapes(
        "a tensor has more or fewer axes than slots, or not the same number of slots everywhere",
        "y_i = A_<i j k> x_j z_k",
        {"A": "I J", "x": "J", "z": "K"},
        "y_i = A_<i j> x_j",
        {"A": "I J", "x": "J"},
    ),
    "E-EXTENT": _shapes(
        "one index would have two sizes, or a size is open or no size at all",
        "y_i = A_<i j> x_j",
        {"A": (2, 4), "x": (5,)},
        "y_i = A_<i j> x_j",
        {"A": (2, 4), "x": (4,)},
    ),
    "E-SPLIT": _shapes(
        "a merged axis is not divisible by the sizes of its other parts",
        "y_<h d> = x_<(h d)> b_h",
        {"x": (7,), "b": (2,)},
        "y_<h d> = x_<(h d)> b_h",
        {"x": (8,), "b": (2,)},
    ),
    "E-BATCH": _shapes(
        "`...` stands for different axes in two tensors, in a wrong place, or not on the left",
        "y_<... i> = A_<... i j> x_<... j>",
        {"A": (5, 2, 3), "x": (4, 3)},
        "y_<... i> = A_<... i j> x_<... j>",
        {"A": (5, 2, 3), "x": (5, 3)},
    ),
    "E-RANGE": _call(
        "a position lies outside its axis",
        "y_i = x_<t_i>",
        {"x": _VECTOR, "t": [0, 2]},
        {"x": _VECTOR, "t": [0, 1]},
    ),
    "E-DTYPE": _call(
        "a predicate is not boolean, an index tensor holds no integers, or an input is complex",
        "y_i = x_<t_i>",
        {"x": _VECTOR, "t": [0.0, 1.0]},
        {"x": _VECTOR, "t": [0, 1]},
    ),
    "E-INPUT": _call(
        "an input is missing at the call", "y_i = A_<i j> x_j", {"A": _SQUARE}, {"A": _SQUARE, "x": _VECTOR}
    ),
    "E-BACKEND": _call(
        "an input is no array, or the arrays belong to several libraries or devices",
        "y_i = a_i + b_i",
        {"a": _VECTOR, "b": {1, 2}},
        {"a": _VECTOR, "b": _VECTOR},
    ),
    "E-PLAN": _call(
        "there is no plan of the kind asked for",
        "y_i = A_<i bar(j)> x_j",
        {"A": _SQUARE, "x": _VECTOR},
        {"A": _SQUARE, "x": _VECTOR},
        {"plan": "fast"},
    ),
    "E-GRAD": Condition(
        "a gradient that the notation cannot write: a sum over `...`, or the derivative by the exponent of `entmax`",
        Example("y^<... i> = x^<... j> A_<i j>", wrt="A"),
        Example("y^<b i> = x^<b j> A_<i j>", wrt="A"),
    ),
    "E-INDEX": Condition(
        "several bars run over the index of which a posterior is asked",
        Example("a_i = A_<i bar(j)> v_j; y_i = a_i B_<i bar(j)> u_j", index="j"),
        Example("a_i = A_<i bar(j)> v_j; y_i = a_i B_<i bar(j)> u_j", index="a.j"),
    ),
    "E-BUDGET": _call(
        "no plan fits in the memory given",
        "y_i = A_<i bar(j)> x_j",
        {"A": _SQUARE, "x": _VECTOR},
        {"A": _SQUARE, "x": _VECTOR},
        {"memory": 1},
    ),
    "E-VALUE": Condition(
        "a number of the right kind and shape has a value that its place does not take: NaN, a negative weight",
        Call("tensorattn.latent.ChainedAttentionEstimator(2, 8, 8, sigma2=0)"),
        Call("tensorattn.latent.ChainedAttentionEstimator(2, 8, 8, sigma2=0.1)"),
    ),
    "E-EMPTY": Condition(
        "there are no observations, or one has no position to attend to",
        Call("tensorattn.latent.ChainedAttentionDataEncoder().seq_encode([([], [], 0, 1)])"),
        Call("tensorattn.latent.ChainedAttentionDataEncoder().seq_encode([([0, 2], [1, 1], 0, 1)])"),
    ),
}
CODES: Mapping[str, Condition] = MappingProxyType(_CODES)


def page() -> str:
    """The Markdown page of all codes."""
    parts = [_HEAD]
    for code, condition in CODES.items():
        error = condition.example.error()
        parts.append(
            f"## {code}\n\n{condition.when[0].upper()}{condition.when[1:]}.\n\n"
            f"```text\n{condition.example}\n```\n\n```text\n{error}\n```\n\n"
            f"Repaired:\n\n```text\n{condition.repaired}\n```\n"
        )
    return "\n".join(parts)


_HEAD = """# Errors

Every refusal is a `TensorattnError` with a `.code`; its message says what is wrong, where, the facts, and a repair.
Of several errors the first in reading order is raised and the others are listed under `also`.
This page is written by `python -m tensorattn.codes`: for each code its condition, an example, what it prints, and the
repaired form.
"""

if __name__ == "__main__":
    print(page(), end="")
