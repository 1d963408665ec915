r"""What the macros of LaTeX say: values only."""

from __future__ import annotations

from tensorattn.ir import FUNCTIONS
from tensorattn.scanning import BINDERS
from tensorattn.spelling.letters import OPERATORS

SIGNS = {
    **OPERATORS,
    **{sign: sign for sign in "+-*/<>,:"},
    r"\cdot": "*", r"\times": "*", r"\ast": "*", r"\colon": ":", r"\lt": "<", r"\gt": ">",
    r"\le": "<=", r"\leq": "<=", r"\leqslant": "<=", r"\ge": ">=", r"\geq": ">=", r"\geqslant": ">=",
    r"\ne": "!=", r"\neq": "!=",
    r"\land": "and", r"\wedge": "and", r"\lor": "or", r"\vee": "or", r"\lnot": "not", r"\neg": "not",
    r"\ldots": "...", r"\dots": "...", r"\cdots": "...", r"\dotsc": "...",
}  # fmt: skip
COMPARED = {"<=", ">=", "<", ">", "!=", "=="}
OPENING = {
    "(": ")", "[": "]", r"\{": "}", r"\lbrace": "}", r"\lbrack": "]", r"\lparen": ")",
}  # fmt: skip
CLOSING = {
    ")": ")", "]": "]", r"\}": "}", r"\rbrace": "}", r"\rbrack": "]", r"\rparen": ")",
}  # fmt: skip
LINES = frozenset({"|", r"\vert", r"\lvert", r"\rvert", r"\mid"})
PRIME_MACROS = frozenset({r"\prime"})
MARKS = {
    r"\bar": "bar", r"\overline": "bar", r"\tilde": "tilde", r"\widetilde": "tilde", r"\hat": "hat",
    r"\widehat": "hat",
}  # fmt: skip
WORDS = frozenset(
    r"\mathrm \text \operatorname \mathit \mathsf \mathtt \textrm \textit \textbf \textsf \textnormal \mbox".split()
)
TEXTS = frozenset(r"\text \textrm \textit \textnormal \mbox".split())
PROSE = frozenset("if for else otherwise with all".split())
BOLD = frozenset(r"\mathop \mathbf \boldsymbol \bm \pmb \mathnormal".split())
STYLED = frozenset(r"\mathcal \mathscr \mathfrak \mathbb \cal \mathds".split())
ARROWS = frozenset(r"\vec \overrightarrow \overleftarrow \overleftrightarrow".split())
FRACTIONS = frozenset(r"\frac \dfrac \tfrac \cfrac".split())
TRANSPOSES = frozenset(r"T \top \intercal \mathsf{T} \mathrm{T} \text{T} \textsf{T} \mathsf\mathrm{T}".split())
ALIASES = {
    "ReLU": "relu", "GELU": "gelu", "SiLU": "silu", "ELU": "elu", "LeakyReLU": "leaky_relu", "ln": "log",
    "Softmax": "softmax", "SoftMax": "softmax", "logsumexp": "lse",
}  # fmt: skip
KNOWN = {**{word: word for word in (*FUNCTIONS, *BINDERS, "and", "or", "not")}, **ALIASES}
KNOWN_MACROS = frozenset(f"\\{word}" for word in KNOWN) - {r"\top", r"\and", r"\or", r"\not"}

REPAIRS = {
    r"\circ": r"it may mean an entrywise product, a sum or a composition: write x_{i} z_{i} or x_{i} + z_{i}",
    r"\odot": r"the entrywise product needs no sign where axes have names: write the factors side by side, x_{i} z_{i}",
    r"\otimes": r"write the factors side by side, each with indices of its own: a_{i} b_{j}",
    r"\oplus": r"write +, or join two axes with \mathrm{cat}_{a=m+j}\left(x_{m}, z_{j}\right)",
    r"\bullet": r"write \cdot, or the factors side by side",
    r"\star": r"write \cdot for a product; in a name spell it out, \mathrm{xstar}",
    r"\dagger": r"write the indices in the other order",
    r"\|": r"write a norm with its index: \sqrt{x_{d} x_{d}}",
    r"\Vert": r"write a norm with its index: \sqrt{x_{d} x_{d}}",
    r"\langle": r"write an inner product with its index: q_{d} k_{d}",
    r"\rangle": r"write an inner product with its index: q_{d} k_{d}",
    r"\infty": r"leave entries out with a predicate: \mathrm{softmax}_{j:j\le i}",
    r"\in": r"write a predicate: \sum_{j:\mathrm{adj}_{ij}} x_{j}",
    r"\forall": r"leave it out: an index of the left side runs over all its positions",
    r"\underbrace": r"write what stands over the brace alone",
    r"\overbrace": r"write what stands under the brace alone",
    r"\div": r"write / or \frac{a}{b}",
    r"\over": r"write \frac{a}{b}",
    r"\pm": r"write two statements, one with + and one with -",
    r"\partial": r"derivatives are made by tensorattn.grad",
    r"\nabla": r"derivatives are made by tensorattn.grad",
    r"\int": r"write a sum over an index: \sum_{j}",
    r"\lfloor": r"positions are integers: write the predicate that is meant",
    r"\gets": r"a definition is written with =",
    r"\leftarrow": r"a definition is written with =",
    r"\to": r"a definition is written with =",
    r"\equiv": r"a definition is written with =",
    r"\coloneqq": r"a definition is written with =",
    r"\approx": r"a definition is written with =",
    r"\sim": r"a definition is written with =",
    r"\propto": r"write the normaliser: \mathrm{softmax}_{j}\left(x_{j}\right), or \mathrm{l1norm}_{j}",
    r"\rm": r"write \mathrm{seq}",
    r"\it": r"write \mathrm{seq}",
    r"\cal": r"write the plain letter if that is meant",
    r"\not": r"write \ne, or \lnot before a condition",
    r"\mapsto": r"a definition is written with =",
}
