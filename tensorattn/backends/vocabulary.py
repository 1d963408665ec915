"""What a back end says differently: templates of source text, and the modules of its helper functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tensorattn.lowering.buffers import INTO


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Templates for `str.format`; `x` is an atom of source text, `dims` a tuple of positions as text.

    `functions` maps the functions of `Apply` to templates over `{0}, {1}, …`; `folds` the kinds of `Fold`.
    `helpers` are modules whose top-level names the templates use; an earlier one never uses a later one.
    `array_only`: functions that take no bare numbers. `exp2`: what `weigh` takes for base 2.
    `into` names the functions of `Apply`, and matrix products, that take `out=`; `room` makes memory of `size` entries
    for it, `over` is an array `x` that is written over, and `owned` says of the `inputs` whether either may be done
    (None: always).
    `looks` says whether values may be looked at to choose a faster way (None: always).
    `load_known` reads an array that has its dtype already, and
    `scalar_output` gives a result without axes, which a library may have made a number.
    """

    name: str
    namespace: str
    exp2: str
    imports: tuple[str, ...]
    decorator: str | None
    load: str
    load_known: str
    load_scalar: str
    permute: str
    packed: str
    unsqueeze: str
    cast: str
    full: str
    iota: str
    concatenate: str
    output: str
    scalar_output: str
    copied_output: str
    integer_matmul: str
    batch_matmul: str
    device: str | None
    functions: Mapping[str, str]
    folds: Mapping[str, str]
    helpers: tuple[str, ...]
    array_only: frozenset[str] = frozenset()
    room: str = ""
    over: str = "{x}"
    owned: str | None = None
    looks: str | None = None
    into: Mapping[str, str] = field(default_factory=dict)

    def dtype(self, name: str) -> str:
        """A dtype as source text."""
        return f"{self.namespace}.{name}"


def common_functions(namespace: str) -> dict[str, str]:
    """The functions that every array library spells alike."""
    named = "exp exp2 log tanh sqrt abs sin cos isfinite"
    return {
        **{name: f"{namespace}.{name}({{0}})" for name in named.split()},
        "negate": "-{0}",
        "reciprocal": "1 / {0}",
        "power": "{0} ** {1}",
        "subtract": "{0} - {1}",
        "divide": "{0} / {1}",
        "less_equal": "{0} <= {1}",
        "greater_equal": "{0} >= {1}",
        "equal": "{0} == {1}",
        "not_equal": "{0} != {1}",
        "less": "{0} < {1}",
        "greater": "{0} > {1}",
        "not": "~{0}",
        "where": f"{namespace}.where({{0}}, {{1}}, {{2}})",
        "select": f"{namespace}.where({{0}}, {{1}}, {{2}})",
        "maximum": f"{namespace}.maximum({{0}}, {{1}})",
        "minimum": f"{namespace}.minimum({{0}}, {{1}})",
        "relu": "relu({0})",
        "leaky_relu": "leaky_relu({0}, {1})",
        "elu": "elu({0})",
        "gelu": "gelu({0})",
        "silu": "silu({0})",
        "sigmoid": "sigmoid({0})",
        "softplus": "softplus({0})",
        "sign": "sign({0})",
        "in_twos": "in_twos({0})",
    }


def common_into(namespace: str) -> dict[str, str]:
    """The functions that take `out=`, and matrix products, as every array library spells them alike."""
    others = {"negate": "negative", "and": "logical_and", "or": "logical_or", "not": "logical_not"}
    products = dict.fromkeys(("matmul", "batch_matmul"), f"{namespace}.matmul")
    return products | {name: "select" if name == "select" else f"{namespace}.{others.get(name, name)}" for name in INTO}
