"""Running sums along an axis: from either end, and over windows."""

import math

import numpy as np

BLOCK = 64  # entries that are added up one by one: rounding grows with these and the number of blocks, not with all


def running(x: np.ndarray, dim: int) -> np.ndarray:
    """The sums of the first entries along `dim`, each with its own."""
    size = x.shape[dim]
    if x.dtype.kind != "f" or size <= 2 * BLOCK:
        return np.cumsum(x, axis=dim)
    total = np.empty_like(x)
    source, out = np.moveaxis(x, dim, 0), np.moveaxis(total, dim, 0)
    for start in range(0, size, BLOCK):
        part = out[start : start + BLOCK]
        np.cumsum(source[start : start + BLOCK], axis=0, out=part)
        if start:
            part += out[start - 1]
    return total


CACHED = 1 << 17  # bytes of each of two arrays that are made on the way to sums over windows


def accumulate(
    x: np.ndarray, dim: int, size: int, *windows: tuple[int | None, int | None], kind: str = "sum"
) -> np.ndarray:
    """For each i below `size`, in the place of `dim`, Σ of the entries t where t - i is in one of the windows;
    `kind` `prod`: the product, over windows that have no end on one side.

    A window is the least and the greatest number in it (None: it has no end there). Nothing is subtracted, so that
    nothing cancels.
    """
    length = x.shape[dim]
    total, along, unit = None, running, 0
    if kind == "prod":
        along, unit = np.cumprod, 1
    for low, high in windows:
        if low is None:
            part = shifted(along(x, dim), dim, size, length if high is None else high, unit)
        elif high is None:
            back = along(np.flip(x, dim), dim)
            part = np.flip(shifted(back, dim, size, length - size - low, unit), dim)
        else:
            part = windowed(x, dim, size, low, high)
        total = part if total is None else total * part if kind == "prod" else total + part
    return np.zeros_like(x, shape=(*x.shape[:dim], size, *x.shape[dim + 1 :])) if total is None else total


def windowed(x: np.ndarray, dim: int, size: int, low: int, high: int) -> np.ndarray:
    """For each i below `size`, Σ of the entries t where low ≤ t - i ≤ high.

    The sums over 1, 2, 4, … entries from every place on, each of two before it: those that the binary digits of the
    width name make up a window. Some columns at a time, so that what is made on the way stays in the cache.
    """
    length = x.shape[dim]
    low = min(max(low, -size), length)
    width = max(min(high, length) - low + 1, 1)
    before, after = math.prod(x.shape[:dim]), math.prod(x.shape[dim + 1 :])
    source = x.reshape(before, length, after)
    total = np.zeros_like(source, shape=(before, size, after))
    columns = max(min(CACHED // (x.itemsize * (size + width)), before * after), 1)
    rows = max(columns // max(after, 1), 1)
    buffers = [np.empty_like(x, shape=columns * (size + width)) for _ in range(2)]
    start = max(low, 0)
    count = max(min(low + size + width - 1, length) - start, 0)
    for n in range(0, before, rows):
        for m in range(0, after, columns):
            out = total[n : n + rows, :, m : m + columns]
            shape = (out.shape[0], size + width - 1, out.shape[2])
            sums, spare = (buffer[: math.prod(shape)].reshape(shape) for buffer in buffers)
            sums[:, : start - low] = 0
            sums[:, start - low : start - low + count] = source[n : n + rows, start : start + count, m : m + columns]
            sums[:, start - low + count :] = 0
            _add_windows(out, sums, spare, width)
    return total.reshape(*x.shape[:dim], size, *x.shape[dim + 1 :])


def _add_windows(total: np.ndarray, sums: np.ndarray, spare: np.ndarray, width: int) -> None:
    """Add the sums of `width` entries each; both other arrays are written to."""
    size, done, step = total.shape[1], 0, 1
    while True:
        if width & step:
            total += sums[:, done : done + size]
            done += step
        if done == width:
            return
        count = size + width - 2 * step  # sums over as many entries as a step doubled
        sums, spare = np.add(sums[:, :count], sums[:, step : step + count], out=spare[:, :count]), sums
        step *= 2


def shifted(total: np.ndarray, dim: int, size: int, shift: int, unit: int) -> np.ndarray:
    """The running sum at i + `shift` for each i below `size`: `unit` before the first entry, after the last all."""
    length = total.shape[dim]
    if shift == 0 and size == length:
        return total
    first = np.full_like(total, unit, shape=(*total.shape[:dim], 1, *total.shape[dim + 1 :]))
    places = np.clip(np.arange(size) + (shift + 1), 0, length)
    return np.take(np.concatenate((first, total), axis=dim), places, axis=dim)
