"""Predicates: which tuples a product admits, and what keeps the excluded ones from doing harm (docs/design.md §8)."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan
from typing import TYPE_CHECKING

from tensorattn.comparisons import comparison
from tensorattn.ir import Add, Affine, Expr, Index, Map, Normalise, Product, Reduce, Tensor
from tensorattn.kernel import IfFinite
from tensorattn.lowering import running, scattering, slots
from tensorattn.parts import Literal, Operand, Register
from tensorattn.rewriting.scatters import scatters

if TYPE_CHECKING:
    from tensorattn.lowering.expressions import Lowering


def mask_of(state: Lowering, factor: Expr) -> Register | None:
    """The predicate a factor brings to its product: of a normaliser, through products, sums and definitions."""
    match factor:
        case Normalise(where=where) if where is not None:
            return state.array(where)
        case Reduce(kind="sum" | "mean", indices=indices, where=where) if where is not None:
            if (placed := scatters(factor)) is not None:
                return scattering.some(state, factor, placed)
            found = running.some(state.builder, comparison(where), indices)
            return _some(state, [state.array(where)], frozenset(indices)) if found is None else found
        case Product(factors=factors, summed=summed):
            found = brought(state, factors)
            return _some(state, [m for m in dict.fromkeys(found) if m is not None], frozenset(summed))
        case Add(terms=terms):
            return _any(state, [mask_of(state, term) for term in terms])
        case Map(function="negate", arguments=(inner,)):
            return mask_of(state, inner)
        case Tensor(name=name) if (mask := state.masks.get(name)) is not None:
            return slots.read_defined(state, factor, mask, partial=True)
    return None


def brought(state: Lowering, factors: tuple[Expr, ...], own: Register | None = None) -> list[Register | None]:
    """The predicates that factors bring to a product, `own` being one of the product itself.

    One that is read at computed positions is read where the others admit it: they keep the positions in range.
    """
    found = at_hand(state, factors, own)
    with state.under(state.builder.all_of(found)):
        return found + [mask_of(state, f) for f in factors if is_looked_up(f)]


def at_hand(state: Lowering, factors: tuple[Expr, ...], own: Register | None = None) -> list[Register | None]:
    """Those of the predicates that are not read at computed positions."""
    return [own, *(mask_of(state, f) for f in factors if not is_looked_up(f))]


def is_looked_up(factor: Expr) -> bool:
    """Whether a factor, and so the predicate that it may bring, is read at computed positions."""
    match factor:
        case Tensor(slots=slots):
            return any(isinstance(s, Affine) for s in slots)
        case Product(factors=parts) | Add(terms=parts) | Map(function="negate", arguments=parts):
            return any(map(is_looked_up, parts))
    return False


def _any(state: Lowering, masks: list[Register | None]) -> Register | None:
    """Whether a term admits the tuple; None where some term has no predicate."""
    joined = masks[0]
    for mask in masks[1:]:
        if joined is None or mask is None:
            return None
        if mask is not joined:
            joined = state.builder.apply("or", joined, mask, dtype="bool")
    return joined


def _some(state: Lowering, masks: list[Register], summed: frozenset[Index]) -> Register | None:
    """Whether all masks hold somewhere along the summed indices; None where there is no mask.

    Several masks that share such an index are contracted pair by pair, so that no array over all indices is made.
    """
    b = state.builder
    if not masks:
        return None
    joined = masks[0]
    for n, mask in enumerate(masks[1:], 2):
        later = frozenset().union(*(m.axes for m in masks[n:]))
        kept = ({*joined.axes, *mask.axes} - summed) | later
        if kept >= {*joined.axes, *mask.axes}:
            joined = b.apply("and", joined, mask, dtype="bool")
        else:
            count = b.contract(b.array(joined, "float32"), b.array(mask, "float32"), kept)
            joined = b.apply("greater", count, Literal(0), dtype="bool")
    return b.fold("any", joined, frozenset(joined.axes) - summed)


def harmless(state: Lowering, operand: Operand) -> Operand:
    """The operand with 1 in the places that the enclosing predicate excludes, if it has all the predicate's indices."""
    mask = state.admitted
    if mask is None or isinstance(operand, Literal) or not set(mask.axes) <= set(operand.axes):
        return operand
    return state.builder.apply("select", mask, operand, Literal(1), dtype=operand.dtype)


# Functions whose derivative at NaN or ±∞ is no finite number; there they are one of LIMITS.
WILD = frozenset("exp log tanh sigmoid elu gelu silu softplus sqrt abs sin cos power reciprocal divide".split())
POLES = frozenset("exp log sqrt power reciprocal divide".split())  # not finite at some finite arguments
LIMITS = (0.0, 1.0, -1.0, inf, -inf)


def apply(state: Lowering, function: str, operands: list[Operand], dtype: str, *, exposed: bool) -> Register:
    """A function of operands; `exposed` to a predicate, one that carries no gradient where they are not finite."""
    b = state.builder
    floats = [o for o in operands if isinstance(o, Register) and o.dtype.startswith("float") and o.axes]
    if not (exposed and function in WILD and floats):
        return b.apply(function, *operands, dtype=dtype)
    first = [b.apply(function, *operands, dtype=dtype)] if function in POLES else []  # its value tells of a pole
    tested = [*floats, *first]
    with b.nested() as fast:
        plain = first[0] if first else b.apply(function, *operands, dtype=dtype)
    with b.nested() as safe:
        finite = b.all_of(b.apply("isfinite", o, dtype="bool") for o in tested)
        assert finite is not None
        clean = [b.apply("select", finite, o, Literal(1.0), dtype=dtype) if o in floats else o for o in operands]
        tame = b.apply(function, *clean, dtype=dtype)
        value = first[0] if first else b.apply(function, *operands, dtype=dtype)
        limit = limits(state, value, LIMITS)
        kept = b.apply("select", finite, tame, limit, dtype=dtype)
    out = b.register(plain.axes, dtype)
    return b.emit(IfFinite(out, tuple(tested), b.finish(fast, plain, out), b.finish(safe, kept, out)))


def reduce(
    state: Lowering, operands: list[Register], make: Callable[[list[Register]], Register], rows: frozenset[Index]
) -> Register:
    """A reduction or normaliser of operands that a predicate may exclude: no gradient where a row is not finite.

    `make` writes it for given operands; `rows` are the indices that it does not run over.
    """
    b = state.builder
    floats = [o for o in operands if o.dtype.startswith("float")]
    if not floats:
        return make(operands)
    with b.nested() as fast:
        plain = make(operands)
    with b.nested() as safe:
        value = make(operands)
        finite = b.fold("all", b.apply("isfinite", value, dtype="bool"), rows)
        clean = [b.apply("select", finite, o, Literal(1.0), dtype=o.dtype) if o in floats else o for o in operands]
        kept = b.apply("select", finite, make(clean), limits(state, value, LIMITS), dtype=value.dtype)
    out = b.register(plain.axes, plain.dtype)
    return b.emit(IfFinite(out, tuple(floats), b.finish(fast, plain, out), b.finish(safe, kept, out)))


def limits(state: Lowering, value: Register, known: tuple[float, ...]) -> Operand:
    """The value where it is one of these, else NaN; no gradient passes through it."""
    b, found = state.builder, Literal(nan)
    for limit in known:
        equal = b.apply("equal", value, Literal(limit), dtype="bool")
        found = b.apply("select", equal, Literal(limit), found, dtype=value.dtype)
    return found
