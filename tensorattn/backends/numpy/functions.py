"""Functions that generated NumPy code calls; each returns new memory unless its docstring says otherwise."""

import math

import numpy as np

from tensorattn.backends.erf import erf
from tensorattn.backends.limits import LOOK
from tensorattn.errors import ShapeError


def lowest(dtype: type) -> float:
    """The identity of max."""
    return np.iinfo(dtype).min if dtype is np.int64 else -np.inf


def highest(dtype: type) -> float:
    """The identity of min."""
    return np.iinfo(dtype).max if dtype is np.int64 else np.inf


def all_finite(*arrays: np.ndarray) -> bool:
    """Whether every entry is finite; a finite sum proves it, so an overflowing sum may say no."""
    return all(math.isfinite(x.sum()) for x in arrays)


SHORT = 1 << 15  # a sum of so many loses no digit to its order
MANY = 1 << 12  # entries that are worth a choice


def total(x: np.ndarray, dims: tuple[int, ...]) -> np.ndarray:
    """Σ along the axes. Along the last ones of an array without gaps einsum takes a third of the time of sum."""
    if x.size >= MANY and x.dtype.kind == "f" and x.flags.c_contiguous:
        first = x.ndim - len(dims)
        length = math.prod(x.shape[first:])
        if first and length <= SHORT and dims == tuple(range(first, x.ndim)):
            return np.einsum("...i->...", x.reshape(*x.shape[:first], length))
    return np.add.reduce(x, axis=dims)


def put(pieces: list[np.ndarray], part: np.ndarray, dim: int, start: int, size: int) -> None:
    """Write a stretch of a result that is `size` long along `dim`; the list holds the whole from the first one on."""
    if not pieces:
        pieces.append(np.empty((*part.shape[:dim], size, *part.shape[dim + 1 :]), part.dtype))
    pieces[0][(slice(None),) * dim + (slice(start, start + part.shape[dim]),)] = part


def joined(pieces: list[np.ndarray], dim: int) -> np.ndarray:
    """The result whose stretches were put; the list gives it away."""
    return pieces.pop()


def holds(test: np.ndarray) -> bool:
    """Whether a truth without axes holds."""
    return bool(test)


def longest(x: np.ndarray, dims: tuple[int, ...], room: int = LOOK) -> float:
    """The greatest Euclidean norm over the axes; at least that, where squares underflow. No array like x is made, so
    that no `room` is needed."""
    if not dims:
        return float(np.maximum(np.max(x, initial=0), -np.min(x, initial=0)))
    x = x if x.dtype.kind == "f" else x.astype(np.float64)
    axes = list(range(x.ndim))
    squares = np.einsum(x, axes, x, axes, [axis for axis in axes if axis not in dims])
    return math.sqrt(np.max(squares, initial=0)) + math.sqrt(np.finfo(x.dtype).tiny)


MANY_ROWS = 32  # for each pair, so that a look at the pairs costs little beside what is done with them
PAIRS = 1 << 18  # looked at together


def longest_pair(a: np.ndarray, b: np.ndarray, rows: int, room: int | None = None) -> float:
    """The greatest norm of a product of two vectors along the last axis, one of a and one of b at the same first place.

    Infinite where it is not worth a look or takes more than `room` entries, where a square may be lost, and where an
    entry is no finite number.
    """
    if rows < MANY_ROWS or not (a.size and b.size) or (room is not None and a.size + b.size > room):
        return math.inf
    a, b = a * a, (b * b).mT
    if not (a.max() < 1e18 and b.max() < 1e18):
        return math.inf
    step = max((room or PAIRS) // (b.shape[0] * b.shape[2]), 1)
    return 1.001 * math.sqrt(max(float((a[:, n : n + step] @ b).max()) for n in range(0, a.shape[1], step)))


def longest_image(x: np.ndarray, rows: tuple[int, ...], columns: tuple[int, ...], room: int = LOOK) -> float:
    """At least the greatest factor by which matrices, one at each place along the other axes, lengthen a vector.

    (Σ σ⁸)^⅛ of their singular values σ, a Schatten norm, in three products; of large ones (Σ σ²)^½. NaN or infinite
    where an entry is.
    """
    lengths = [math.prod(x.shape[dim] for dim in dims) for dims in (rows, columns)]
    most = longest(x, ())
    if not 0 < most < math.inf:
        return most
    digits = 1.01 + max(lengths) * float(np.finfo(x.dtype).eps)  # of products of few digits, and of long sums
    if math.prod(lengths) > room:
        return digits * longest(x, tuple(sorted((*rows, *columns))), room)
    others = sorted({*range(x.ndim)} - {*rows, *columns}, key=lambda dim: -x.shape[dim])
    x = x.transpose(*others, *rows, *columns) if others else x.transpose(*rows, *columns)[None]
    step, found = max(room // math.prod(x.shape[1:]), 1), []
    for n in range(0, x.shape[0], step):
        part = x[n : n + step].reshape(-1, *lengths) / most  # no power overflows, and none of the greatest underflows
        part = part if lengths[0] >= lengths[1] else part.mT
        square = part.mT @ part
        square = square @ square
        found.append(np.sum(square * square, axis=(1, 2)).max())
    return digits * most * float(np.max(found)) ** 0.125


def fit(room: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The first entries of a flat array in this shape (a view)."""
    return room[: math.prod(shape)].reshape(shape)


def select(p: np.ndarray, a: np.ndarray, b: np.ndarray | float, out: np.ndarray | None = None) -> np.ndarray:
    """a where p, else b; `out` is written if given."""
    if out is None:
        return np.where(p, a, b)
    if out is not a:
        np.copyto(out, a)
    if isinstance(b, np.ndarray):
        np.copyto(out, b, where=~p)
        return out
    first, last = outside(p)
    if first < last:
        part = out[..., first:last] if p.ndim and p.shape[-1] > 1 else out
        p = p[..., first:last] if p.ndim else p
        _in_bits(p, part, b) if out.dtype.name in BITS else np.copyto(part, b, where=~p)
    return out


def outside(p: np.ndarray) -> tuple[int, int]:
    """The stretch of the last axis without which p holds everywhere; (0, 0) if it does anyway."""
    if not p.size:
        return 0, 0
    places = np.flatnonzero(~p.reshape(-1, p.shape[-1] if p.ndim else 1).all(0))
    return (int(places[0]), int(places[-1]) + 1) if len(places) else (0, 0)


BITS = {"float32": "int32", "float64": "int64"}


def _in_bits(p: np.ndarray, out: np.ndarray, b: float) -> np.ndarray:
    """`out` with b where not p, by masks of its bits, a stretch of p at a time: copyto is no vector code and ten
    times slower."""
    kind = BITS[out.dtype.name]
    bits, other = out.view(kind), np.array(b, out.dtype).view(kind)
    while p.ndim and len(p) == 1:
        p = p[0]
    if not p.ndim:
        out[...] = b
        return out
    along = (slice(None),) * (out.ndim - p.ndim)
    step = max(SHORT * len(p) // p.size, 1)
    for start in range(0, len(p), step):
        stretch = slice(start, start + step)
        part, mask = bits[(*along, stretch)], np.negative(p[stretch].astype(kind))
        np.bitwise_and(part, mask, out=part)
        if other != 0:
            np.bitwise_or(part, np.bitwise_and(~mask, other), out=part)
    return out


def relu(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0)


def leaky_relu(x: np.ndarray, slope: np.ndarray | float) -> np.ndarray:
    return np.where(x > 0, x, slope * x)


def elu(x: np.ndarray) -> np.ndarray:
    return np.where(x > 0, x, np.expm1(np.minimum(x, 0)))


def sigmoid(x: np.ndarray) -> np.ndarray:
    small = np.exp(-np.abs(x))  # never overflows
    return np.where(x >= 0, 1, small) / (1 + small)


def silu(x: np.ndarray) -> np.ndarray:
    return x * sigmoid(x)


def softplus(x: np.ndarray) -> np.ndarray:
    return np.logaddexp(x, 0)


def gelu(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + erf(x * math.sqrt(0.5)))


def sign(x: np.ndarray) -> np.ndarray:
    return np.sign(x)


def in_twos(x: np.ndarray) -> np.ndarray:
    """x / ln 2, finite where x is."""
    most = np.finfo(x.dtype).max
    return np.where(np.isinf(x), x, np.clip(x / x.dtype.type(math.log(2)), -most, most))


def rows(x: np.ndarray, dims: tuple[int, ...]) -> np.ndarray:
    """The axes `dims`, in their order, flattened into one last axis (a view where possible)."""
    moved = np.moveaxis(x, dims, range(-len(dims), 0))
    return moved.reshape(*moved.shape[: -len(dims)], math.prod(moved.shape[-len(dims) :]))


def unrows(flat: np.ndarray, dims: tuple[int, ...], shape: tuple[int, ...]) -> np.ndarray:
    """The inverse of `rows` for an array of this shape (a view)."""
    others = [n for n in range(len(shape)) if n not in dims]
    parted = flat.reshape([shape[n] for n in (*others, *dims)])
    return np.moveaxis(parted, range(-len(dims), 0), dims)


def log_sum_exp(x: np.ndarray, dims: tuple[int, ...], where: np.ndarray | None = None) -> np.ndarray:
    """log Σ exp over the admitted entries; −∞ where there are none."""
    admitted = x if where is None else np.where(where, x, -np.inf)
    greatest = np.max(admitted, axis=dims, keepdims=True, initial=-np.inf)
    shift = np.where(np.isfinite(greatest), greatest, 0)
    return np.log(np.sum(np.exp(admitted - shift), axis=dims)) + np.squeeze(shift, axis=dims)


def largest(
    x: np.ndarray, dims: tuple[int, ...], count: np.ndarray | int, where: np.ndarray | None = None
) -> np.ndarray:
    """True at the `count` largest admitted entries; ties go to the lower position, NaN comes last."""
    flat = rows(x, dims)
    order = np.argsort(-flat if x.dtype.kind == "f" else ~flat, axis=-1, kind="stable")
    admitted = None if where is None else rows(np.broadcast_to(where, x.shape), dims)
    if admitted is not None:
        excluded = ~np.take_along_axis(admitted, order, axis=-1)
        order = np.take_along_axis(order, np.argsort(excluded, axis=-1, kind="stable"), axis=-1)
    rank = np.empty_like(order)
    np.put_along_axis(rank, order, np.broadcast_to(np.arange(flat.shape[-1]), flat.shape), axis=-1)
    chosen = rank < (rows(count, dims) if isinstance(count, np.ndarray) and count.ndim else count)
    return unrows(chosen if admitted is None else chosen & admitted, dims, x.shape)


def check_range(positions: np.ndarray, size: int, what: str, where: np.ndarray | None = None) -> np.ndarray:
    """The positions, 0 where not admitted; the same array if all are. Raises: ShapeError."""
    outside = (positions < 0) | (positions >= size)
    if where is not None:
        outside = outside & where
    if np.any(outside):
        value = int(np.broadcast_to(positions, np.shape(outside))[outside].flat[0])
        allowed = f"0..{size - 1}" if size else "none: the size is 0"
        raise ShapeError(
            "E-RANGE",
            f"{what}: position {value} is out of range",
            facts=(f"allowed: {allowed}",),
            hint="exclude the tuple with a predicate, or mend the positions; they never wrap",
        )
    return positions if where is None else np.where(where, positions, 0)


def segment_sum(source: np.ndarray, segments: np.ndarray, dim: int, size: int) -> np.ndarray:
    """Σ of the entries of each segment along `dim`; `segments` has the rank of the source. Floats in float64."""
    shape = (*source.shape[:dim], size, *source.shape[dim + 1 :])
    if not math.prod(shape):
        return np.zeros(shape, source.dtype)
    places: list[np.ndarray] = list(np.indices(source.shape, sparse=True))
    places[dim] = segments
    if source.dtype.kind != "f":
        total = np.zeros(shape, source.dtype)
        np.add.at(total, tuple(places), source)
        return total
    steps = [math.prod(shape[n + 1 :]) for n in range(len(shape))]
    flat = sum((place * step for place, step in zip(places, steps, strict=True)), np.zeros(source.shape, np.int64))
    total = np.bincount(flat.ravel(), source.ravel(), minlength=math.prod(shape))
    return total.reshape(shape).astype(source.dtype, copy=False)


def occupied(x: np.ndarray, kept: int) -> np.ndarray:
    """x, along the dimensions after the first `kept` with one entry 0 where there is none: for excluded positions."""
    if 0 not in x.shape[kept:]:
        return x
    return np.zeros((*x.shape[:kept], *(max(size, 1) for size in x.shape[kept:])), x.dtype)


def scatter(source: np.ndarray, kept: int, places: tuple[np.ndarray, ...], shape: tuple[int, ...]) -> np.ndarray:
    """The entries added up where they belong: the first `kept` dimensions as they are, the others at the places."""
    total = np.zeros(shape, source.dtype)
    if total.size:  # else every position is an excluded one
        np.add.at(total, (*[slice(None)] * kept, *places), source)  # type: ignore[arg-type]  # slices, too
    return total


def add_at(total: np.ndarray, part: np.ndarray, places: tuple[tuple[int, int, int], ...], own: bool) -> np.ndarray:
    """The total with a part added to a stretch of it: for each place a dimension, where it starts and stops."""
    total = total if own else total.copy()
    found = [slice(None)] * total.ndim
    for dim, start, stop in places:
        found[dim] = slice(start, stop)
    total[tuple(found)] += part
    return total


ROWS_ENTRIES = 1 << 16  # of a product that is made a block of rows at a time: 256 KB of float32


def add_product(
    a: np.ndarray, b: np.ndarray, added: np.ndarray, signs: tuple[int, int], out: np.ndarray | None = None
) -> np.ndarray:
    """signs[0] a b + signs[1] added, of matrices, one sign of which is 1; `out`, which `added` may lie in, is written
    if given."""
    add = np.add if signs[0] == signs[1] else np.subtract
    first = signs[1] > 0  # whether `added` comes first
    if out is None or not np.may_share_memory(out, added):
        product: np.ndarray = np.matmul(a, b, out=out)
        return add(*((added, product) if first else (product, added)), out=product)
    step = max(ROWS_ENTRIES * out.shape[-2] // max(out.size, 1), 1)
    for start in range(0, out.shape[-2], step):
        rows = ..., slice(start, start + step), slice(None)
        part, beside = np.matmul(a[rows], b), added[rows] if added.shape[-2] > 1 else added
        add(*((beside, part) if first else (part, beside)), out=out[rows])
    return out


def add_products(a: np.ndarray, b: np.ndarray, added: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """added + Σ a b over the places of the first dimension, of matrices; `out`, if given, is `added`."""
    total = added.copy() if out is None else out
    for left, right in zip(a, b, strict=True):
        total += left @ right
    return total


def add_sum(total: np.ndarray, x: np.ndarray, dims: tuple[int, ...], own: bool) -> np.ndarray:
    """The total with the sum of x along the axes added."""
    return np.add(total, np.sum(x, axis=dims), out=total if own else None)
