"""What a user hands over becomes checked arrays, or an error that names what is wrong; nothing is changed before."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tensorattn.errors import DTypeError, ShapeError, TensorattnError
from tensorattn.latent.rows import Array, Rows

FIELDS = ("context_keys", "context_values", "query", "target")
ROW = "(context_keys, context_values, query, target)"
LARGEST_SYMBOL = 2**31 - 1


class ValueRefusedError(TensorattnError):
    """A number or an array of a right kind and shape with a value that the place does not take."""


class EmptyError(ShapeError):
    """No observations, or an observation without a position."""


def refused(what: str, facts: Sequence[str] = (), hint: str | None = None) -> ValueRefusedError:
    """The error of a value that the place does not take."""
    return ValueRefusedError("E-VALUE", what, facts=facts, hint=hint)


def array(given: Any, name: str) -> Array:
    """As a NumPy array; a torch tensor is read without its gradient. Raises: ShapeError for ragged lists."""
    if "torch" in sys.modules and isinstance(given, sys.modules["torch"].Tensor):
        given = given.detach().cpu()
        given = (given.float() if given.dtype == sys.modules["torch"].bfloat16 else given).numpy()
    try:
        return np.asarray(given)
    except ValueError:
        raise ShapeError(
            "E-RANK", f"`{name}` has rows of several lengths", hint="give an array with rows of one length"
        ) from None


def symbols(given: Any, name: str, below: int | None = None) -> Array:
    """Ids as int64. Raises: DTypeError for booleans and fractions, ShapeError for negative or too large ones."""
    found = array(given, name)
    if found.size == 0 and found.dtype == np.float64:  # an empty list
        found = found.astype(np.int64)
    if found.dtype.kind not in "iu":
        kind = "booleans" if found.dtype == np.bool_ else f"{found.dtype} values"
        raise DTypeError(
            "E-DTYPE", f"`{name}` holds {kind}, no integers", hint="number the symbols 0, 1, 2, … and give the numbers"
        )
    if found.size and (found.min() < 0 or found.max() > (LARGEST_SYMBOL if below is None else below - 1)):
        _out_of_range(found, name, below)
    return found.astype(np.int64, copy=False)


def _out_of_range(found: Array, name: str, below: int | None) -> None:
    limit = LARGEST_SYMBOL + 1 if below is None else below
    place = tuple(int(i) for i in np.argwhere((found < 0) | (found >= limit))[0])
    at = f" at {list(place)}" if place else ""
    raise ShapeError(
        "E-RANGE",
        f"`{name}`{at} is {found[place]}, which is no symbol",
        facts=[f"symbols are 0 … {limit - 1}"],
        hint="make the model with more symbols, or number the symbols from 0",
    )


def sizes_of(rows: Rows, num_symbols: int, num_targets: int | None) -> Rows:
    """The same rows. Raises: ShapeError where a symbol or a target is none of the model's."""
    limits = {"context_keys": num_symbols, "context_values": num_symbols, "query": num_symbols, "target": num_targets}
    for name, limit in limits.items():
        if limit is not None:
            found = getattr(rows, name)
            if found.size and found.max() >= limit:
                _out_of_range(found, name, limit)
    return rows


def encoded(given: Any, num_symbols: int, num_targets: int | None) -> Rows:
    """Encoded observations: `Rows`, or four arrays (five with a mask). Raises: as `padded`."""
    if isinstance(given, Rows):
        return sizes_of(observations(given), num_symbols, num_targets)
    if not isinstance(given, Sequence) or len(given) not in (4, 5):
        raise ShapeError(
            "E-RANK",
            f"encoded observations are four arrays {ROW}, not {_described(given)}",
            hint="encode observations with `dist_to_encoder().seq_encode(rows)`",
        )
    return sizes_of(padded(*given), num_symbols, num_targets)


def padded(context_keys: Any, context_values: Any, query: Any, target: Any, keep: Any = None) -> Rows:
    """Rows of arrays of one context length, with a mask of the positions that count.

    Raises: ShapeError `E-RANK`, `E-EXTENT`, `E-RANGE`, EmptyError `E-EMPTY`, DTypeError `E-DTYPE`.
    """
    mask = None if keep is None else truths(keep, "mask")
    given = (context_keys, context_values, query, target)
    found = {name: array(a, name) for name, a in zip(FIELDS, given, strict=True)}
    if mask is not None and mask.shape == found["context_keys"].shape == found["context_values"].shape:
        for name in FIELDS[:2]:  # what a mask leaves out may be any number
            if found[name].dtype.kind in "iu":
                found[name] = np.where(mask, found[name], 0)
    found = {name: symbols(a, name) for name, a in found.items()}
    _ranks(found)
    shape = found["context_keys"].shape
    if mask is None:
        mask = np.ones(shape, dtype=bool)
    if found["context_values"].shape != shape or mask.shape != shape or {len(a) for a in found.values()} != {shape[0]}:
        raise ShapeError(
            "E-EXTENT",
            "the parts of the observations have different sizes",
            facts=[*(f"{name}: {a.shape}" for name, a in found.items()), f"mask: {mask.shape}"],
            hint="give keys, values and mask of shape (n, N), queries and targets of shape (n,)",
        )
    _not_empty(mask)
    return Rows(found["context_keys"], found["context_values"], found["query"], found["target"], mask)


def _ranks(found: Mapping[str, Array]) -> None:
    wrong = [name for name, a in found.items() if a.ndim != (2 if name.startswith("context") else 1)]
    if wrong:
        raise ShapeError(
            "E-RANK",
            f"{' and '.join(f'`{name}`' for name in wrong)} has no right number of axes",
            facts=[f"{name}: {a.shape}" for name, a in found.items()],
            hint="give keys and values of shape (n, N), queries and targets of shape (n,)",
        )


def _not_empty(keep: Array) -> None:
    if keep.shape[0] == 0:
        raise EmptyError("E-EMPTY", "there are no observations", hint="give one observation or more")
    without = ~keep.any(axis=1)
    if without.any():
        raise EmptyError(
            "E-EMPTY",
            f"observation {int(np.argmax(without))} has no position that counts",
            facts=["attention chooses one of the positions, so there must be one"],
            hint="leave the observation out, or give it a key and a value",
        )


def contexts(context_keys: Any, context_values: Any, query: Any, mask: Any) -> tuple[Rows, bool]:
    """Rows without targets of contexts (N,) or (n, N) and queries () or (n,), broadcast; whether they are one alone.

    Raises: as `padded`.
    """
    found = [array(a, name) for a, name in zip((context_keys, context_values, query), FIELDS[:3], strict=True)]
    found.append(np.ones(found[0].shape, dtype=bool) if mask is None else truths(mask, "mask"))
    facts = [f"{name}: {a.shape}" for name, a in zip((*FIELDS[:3], "mask"), found, strict=True)]
    hint = "give contexts and masks (N,) or (n, N) and queries () or (n,)"
    if any(a.ndim > most for a, most in zip(found, (2, 2, 1, 2), strict=True)):
        raise ShapeError("E-RANK", "a context or query has too many axes", facts=facts, hint=hint)
    if not all(a.ndim for a in (found[0], found[1], found[3])):
        raise ShapeError("E-RANK", "a context has no axis of positions", facts=facts, hint=hint)
    single = all(a.ndim < most for a, most in zip(found, (2, 2, 1, 2), strict=True))
    keys, values, asked, keep = found
    try:
        if len({a.shape[-1:] for a in (keys, values, keep)}) > 1:  # a position has a key and a value of its own
            raise ValueError
        keys, values, keep = np.broadcast_arrays(*(np.atleast_2d(a) for a in (keys, values, keep)))
        count = np.broadcast_shapes((len(keys),), asked.shape)
    except ValueError:
        raise ShapeError("E-EXTENT", "contexts and queries do not go together", facts=facts, hint=hint) from None
    keys, values, keep = (np.broadcast_to(a, (*count, keys.shape[1])).copy() for a in (keys, values, keep))
    return padded(keys, values, np.broadcast_to(asked, count).copy(), np.zeros(count, dtype=np.int64), keep), single


def truths(given: Any, name: str) -> Array:
    """A mask. Raises: DTypeError for what is not boolean."""
    found = array(given, name)
    if found.dtype != np.bool_:
        raise DTypeError("E-DTYPE", f"`{name}` holds {found.dtype}, no booleans", hint=f"write `{name} != 0`")
    return found


def observations(given: Any) -> Rows:
    """Rows of a sequence of observations with contexts of any lengths, each with a mask as fifth entry or without one.

    Raises: ShapeError, EmptyError, DTypeError, as `padded`.
    """
    if isinstance(given, Rows):
        return padded(given.context_keys, given.context_values, given.query, given.target, given.keep)
    if not isinstance(given, Iterable):
        raise ShapeError("E-RANK", f"observations are {_described(given)}", hint=f"give a list of {ROW}")
    items = list(given)
    if not items:
        raise EmptyError("E-EMPTY", "there are no observations", hint="give one observation or more")
    parts = [_observation(item, number) for number, item in enumerate(items)]
    longest = max(len(part[0]) for part in parts)
    keys, values = np.zeros((2, len(parts), longest), dtype=np.int64)
    keep = np.zeros(keys.shape, dtype=bool)
    for row, (own_keys, own_values, _, _, own_keep) in enumerate(parts):
        size = len(own_keys)
        keys[row, :size], values[row, :size], keep[row, :size] = own_keys, own_values, own_keep
    _not_empty(keep)
    return Rows(keys, values, np.array([p[2] for p in parts]), np.array([p[3] for p in parts]), keep)


def _observation(item: Any, number: int) -> tuple[Array, Array, int, int, Array]:
    if not isinstance(item, Sequence) or len(item) not in (4, 5):
        raise ShapeError(
            "E-RANK",
            f"observation {number} is {_described(item)}, not {ROW}",
            hint="give each observation as a tuple of four, or of five with a mask of its positions",
        )
    where = f" of observation {number}"
    keep = None if len(item) == 4 else truths(item[4], "mask" + where)
    keys, values = (array(a, n + where) for a, n in zip(item[:2], FIELDS[:2], strict=True))
    if (
        keep is not None
        and keep.shape == keys.shape == values.shape
        and {keys.dtype.kind, values.dtype.kind} <= {*"iu"}
    ):
        keys, values = np.where(keep, keys, 0), np.where(keep, values, 0)
    keys, values = symbols(keys, "context_keys" + where), symbols(values, "context_values" + where)
    keep = np.ones(keys.shape, dtype=bool) if keep is None else keep
    if keys.ndim != 1 or not keys.shape == values.shape == keep.shape:
        raise ShapeError(
            "E-EXTENT",
            f"keys, values and mask{where} are not of one length",
            facts=[f"context_keys: {keys.shape}", f"context_values: {values.shape}", f"mask: {keep.shape}"],
            hint="give every position one key and one value",
        )
    query, target = (_one(a, n + where) for a, n in zip(item[2:4], FIELDS[2:], strict=True))
    return keys, values, query, target, keep


def _one(given: Any, name: str) -> int:
    found = symbols(given, name)
    if found.ndim:
        raise ShapeError("E-RANK", f"`{name}` has shape {found.shape}", hint="give one number")
    return int(found)


def _described(given: Any) -> str:
    size = f" of length {len(given)}" if hasattr(given, "__len__") else ""
    return f"{type(given).__name__}{size}"


def weights(given: Any, count: int) -> Array:
    """Weights (n,) in float64; None is 1 each. Raises: ShapeError, DTypeError, ValueRefusedError."""
    if given is None:
        return np.ones(count)
    found = numbers(given, "weights", (count,))
    if (found < 0).any():
        raise refused("`weights` holds negative numbers", hint="give weights of 0 or more")
    return found


def numbers(given: Any, name: str, shape: tuple[int | None, ...]) -> Array:
    """Finite real numbers of this shape in float64. Raises: DTypeError, ShapeError, ValueRefusedError."""
    found = array(given, name)
    if found.dtype.kind not in "iuf":
        raise DTypeError("E-DTYPE", f"`{name}` holds {found.dtype} values, no real numbers", hint="give real numbers")
    if found.ndim != len(shape) or any(s is not None and s != n for s, n in zip(shape, found.shape, strict=True)):
        wanted = ", ".join("any" if s is None else str(s) for s in shape)
        raise ShapeError("E-EXTENT", f"`{name}` has shape {found.shape}, not ({wanted})", hint=f"give ({wanted})")
    found = found.astype(np.float64)
    if not np.isfinite(found).all():
        raise refused(f"`{name}` holds NaN or an infinity", hint="give finite numbers")
    return found


def number(given: Any, name: str, *, above: float | None = None, least: float | None = None) -> float:
    """One finite number. Raises: DTypeError, ShapeError, ValueRefusedError."""
    found = float(numbers(given, name, ()))
    if above is not None and found <= above:
        raise refused(f"`{name}` is {found:g}", hint=f"give a number above {above:g}")
    if least is not None and found < least:
        raise refused(f"`{name}` is {found:g}", hint=f"give {least:g} or more")
    return found


def size(given: Any, name: str, least: int = 1) -> int:
    """A whole number of at least `least`. Raises: DTypeError, ShapeError, ValueRefusedError."""
    found = array(given, name)
    if found.dtype.kind not in "iu" or found.ndim:
        raise DTypeError("E-DTYPE", f"`{name}` is {given!r}, no whole number", hint=f"give {least} or more")
    if found < least:
        raise refused(f"`{name}` is {int(found)}", hint=f"give {least} or more")
    return int(found)


def emission(given: Any, num_symbols: int) -> Array:
    """(S, T) with rows that sum to 1. Raises: DTypeError, ShapeError, ValueRefusedError."""
    found = numbers(given, "emission", (num_symbols, None))
    if found.shape[1] == 0:
        raise EmptyError("E-EMPTY", "`emission` has no targets", hint="give a column for each target")
    sums = found.sum(axis=1)
    size = getattr(given, "dtype", found.dtype).itemsize
    tolerance = {2: 1e-2, 4: 1e-4}.get(size, 1e-8)
    if (found < 0).any() or (abs(sums - 1) > tolerance).any():
        raise refused(
            "the rows of `emission` are no probabilities",
            facts=[f"least entry {found.min():g}, sums of rows {sums.min():.10g} … {sums.max():.10g}"],
            hint="divide each row by its sum",
        )
    return found if size >= 8 else found / sums[:, None]  # what was rounded to few digits


def made(given: Any, kind: type, name: str) -> None:
    """Raises: DTypeError where an argument is of another class."""
    if not isinstance(given, kind):
        raise DTypeError(
            "E-DTYPE", f"`{name}` is {_described(given)}, no {kind.__name__}", hint=f"give a {kind.__name__}"
        )


def generator(given: Any) -> np.random.Generator:
    """The source of random numbers that a seed stands for. Raises: ValueRefusedError."""
    try:
        return np.random.default_rng(given)
    except (TypeError, ValueError) as error:
        raise refused(f"{given!r} is no seed: {error}", hint="give 0, 1, 2, … or a `numpy.random.Generator`") from None


def source(given: Any) -> np.random.Generator | np.random.RandomState:
    """A source of random numbers as it is, or that of a seed. Raises: ValueRefusedError."""
    return given if isinstance(given, np.random.RandomState) else generator(given)
