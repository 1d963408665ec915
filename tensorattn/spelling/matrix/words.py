"""The words of matrix formulas: functions by the names papers give them, signs, and which names are sizes."""

from __future__ import annotations

import re

from tensorattn.ir import FUNCTIONS, NORMALISERS, REDUCTIONS
from tensorattn.spelling.macros import ALIASES
from tensorattn.spelling.matrix.nodes import Word

ENTRYWISE = frozenset(FUNCTIONS) - {"maximum", "minimum", "where", "uniform"}
OVER_AN_AXIS = (frozenset(NORMALISERS) | {"softmax1"}) - {"entmax"}
WITHOUT_AN_AXIS = frozenset({*REDUCTIONS, "entmax", "top", "argmax", "argmin", "norm", "var", "std"})
JOINING = frozenset({"cat", "concat", "concatenate", "concatenation", "stack", "hstack", "vstack"})
_OTHER_NAMES = {**{name.lower(): said for name, said in ALIASES.items()}, "logistic": "sigmoid", "swish": "silu"}

OPERATORS = {
    "*": "*", "×": "*", "\\times": "*", "·": "·", "⋅": "·", "\\cdot": "·", "\\cdotp": "·", "@": "@", "/": "/",
    "\\div": "/", "⊙": "⊙", "\\odot": "⊙",
}  # fmt: skip
UNCLEAR = {
    ".": "write · or nothing between the factors",
    "•": "write · or nothing between the factors",
    "\\bullet": "write \\cdot or nothing between the factors",
    "∘": "write ⊙ (\\odot) for the product of the entries, a space for the matrix product",
    "\\circ": "write \\odot for the product of the entries, a space for the matrix product",
    "⊗": "write x y^T for the outer product of vectors, index form for others: a_i b_j",
    "\\otimes": "write x y^T for the outer product of vectors, index form for others: a_i b_j",
    "⊕": "write +, or join axes in index form: cat[a = m + j](x_m, z_j)",
    "\\oplus": "write +, or join axes in index form: cat[a = m + j](x_m, z_j)",
    "\\sum": "write the sum as a product, or in index form: sum[j](A_<i j>)",
    "∑": "write the sum as a product, or in index form: sum[j](A_<i j>)",
    "\\prod": "write it in index form: prod[j](A_<i j>)",
}
MANY_FUNCTIONS = {
    "sigma": "σ may be sigmoid(…) or softmax(…): write which",
    "phi": "write the function that φ stands for, e.g. elu(…) or exp(…)",
    "rho": "write the function that ρ stands for, e.g. relu(…)",
}
_SIZES = re.compile(r"d|D|dim|d(k|v|q|h|model|head|in|out)")


def function_of(word: str) -> str | None:
    """The function that papers call so: `Softmax`, `LeakyReLU`."""
    name = _OTHER_NAMES.get(word.lower(), word.lower())
    known = name in ENTRYWISE or name in OVER_AN_AXIS or name in WITHOUT_AN_AXIS or name in JOINING
    return name if known else None


def is_size(word: Word) -> bool:
    """Whether an undeclared name is one that papers give to a size: `d`, `d_k`, `D_{model}`."""
    return bool(_SIZES.fullmatch(word.base))
