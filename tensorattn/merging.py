"""Partial results of attention over disjoint sets of keys → the result over all of them.

A part is `(y, L)`: y the sum of values under the part's own softmax, L the log of the sum of its exponentials (`lse`).
With p over the parts, `y = Σ_p softmax_p(L) y_p` and `L = lse_p(L)`; a part without keys has L = −∞ and y = 0.

Source: Dao et al. 2022, "FlashAttention", §3.1; Shyam et al. 2024, "Tree attention".
"""

from __future__ import annotations

from math import prod
from typing import Any

from tensorattn.compiling import Compiled, compile
from tensorattn.errors import BindingError, ShapeError


def merge(*parts: tuple[Any, Any]) -> tuple[Any, Any]:
    """The result and the log-sum-exp over the keys of all parts; NumPy or torch, differentiable.

    >>> import numpy as np
    >>> y, L = merge((np.array([1.0]), np.array(0.0)), (np.array([3.0]), np.array(0.0)))
    >>> float(y[0]), round(float(L), 4)
    (2.0, 0.6931)

    The axes of L are the leading axes of y; what follows in y are the axes of a value. What comes out is a part again.

    Raises: BindingError `E-INPUT`; ShapeError `E-RANK E-EXTENT`; BackendError; DTypeError.
    """
    if not parts:
        raise BindingError("E-INPUT", "there is nothing to merge", hint="merge((y1, L1), (y2, L2))")
    for number, part in enumerate(parts):
        _check(number, part, parts[0])
    shape, rank = tuple(parts[0][0].shape), len(parts[0][1].shape)
    rows = (*shape[:rank], prod(shape[rank:]))
    given = {f"x{n}": y.reshape(rows) for n, (y, _) in enumerate(parts)} | {
        f"L{n}": L for n, (_, L) in enumerate(parts)
    }
    found = getattr(_FORMULAS, _prepared(len(parts)))(given)
    return found["y"].reshape(shape), found["M"]


class _Formulas:
    """The formulas by the number of parts, as attributes, which a tracer reads as they are now."""


_FORMULAS = _Formulas()


def _prepared(count: int) -> str:
    """The attribute that holds the formula for this many parts; a tracer takes the answer for a constant."""
    name = f"of{count}"
    if not hasattr(_FORMULAS, name):
        setattr(_FORMULAS, name, _compiled(count))
    return name


_prepared._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _compiled(count: int) -> Compiled:
    scores, values = f"L{count - 1}_<...>", f"x{count - 1}_<... c>"
    for n in reversed(range(count - 1)):
        scores = f"where(p == {n}, L{n}_<...>, {scores})"
        values = f"where(p == {n}, x{n}_<... c>, {values})"
    text = f"""
        L_<... p>   = {scores} * ones_p
        x_<... p c> = {values} * ones_p
        y_<... c>   = softmax[p](L_<... p>) x_<... p c>
        M_<...>     = lse[p](L_<... p>)
    """
    return compile(text, outputs=["y", "M"], sizes={"p": count})


def _check(number: int, part: Any, first: Any) -> None:
    """Raises: BindingError, ShapeError."""
    if not isinstance(part, (tuple, list)) or len(part) != 2 or not all(hasattr(a, "shape") for a in part):
        what = f"part {number} is no pair of arrays (result, log-sum-exp)"
        raise BindingError("E-INPUT", what, hint="merge((y1, L1), (y2, L2))")
    y, L = (tuple(array.shape) for array in part)
    if y[: len(L)] != L:
        facts = [f"the result has shape {y}, the log-sum-exp {L}"]
        what = f"the log-sum-exp of part {number} does not have the leading axes of its result"
        raise ShapeError("E-EXTENT", what, facts=facts, hint="move the axes of the values last")
    for name, own, other in (("result", y, first[0]), ("log-sum-exp", L, first[1])):
        if own != tuple(other.shape):
            facts = [f"part 0: {tuple(other.shape)}", f"part {number}: {own}"]
            code = "E-RANK" if len(own) != len(other.shape) else "E-EXTENT"
            raise ShapeError(
                code, f"the {name}s of the parts have several shapes", facts=facts, hint="one shape for all"
            )
