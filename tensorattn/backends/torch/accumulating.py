"""Running sums along an axis: from either end, and over windows."""

import torch

from tensorattn.backends.torch.functions import is_followed

LONG = 1 << 12  # windows that a trace pads an axis to even where the axis is shorter


def accumulate(
    x: torch.Tensor, dim: int, size: int, *windows: tuple[int | None, int | None], kind: str = "sum"
) -> torch.Tensor:
    """For each i below `size`, in the place of `dim`, Σ of the entries t where t - i is in one of the windows;
    `kind` `prod`: the product, over windows that have no end on one side.

    A window is the least and the greatest number in it (None: it has no end there). Nothing is subtracted, so that
    nothing cancels. (torch adds up float32 in float64.)
    """
    length = x.shape[dim]
    total, along, unit = None, torch.cumsum, 0
    if kind == "prod":
        along, unit = torch.cumprod, 1
    for low, high in windows:
        if low is None:
            part = shifted(along(x, dim), dim, size, length if high is None else high, unit)
        elif high is None:
            back = along(torch.flip(x, (dim,)), dim)
            part = torch.flip(shifted(back, dim, size, length - size - low, unit), (dim,))
        else:
            part = windowed(x, dim, size, low, high)
        total = part if total is None else total * part if kind == "prod" else total + part
    return x.new_zeros((*x.shape[:dim], size, *x.shape[dim + 1 :])) if total is None else total


def windowed(x: torch.Tensor, dim: int, size: int, low: int, high: int) -> torch.Tensor:
    """For each i below `size`, Σ of the entries t where low ≤ t - i ≤ high.

    The sums over 1, 2, 4, … entries from every place on, each of two before it: those that the binary digits of the
    width name make up a window.
    """
    length = x.shape[dim]
    if not is_followed() or high - low > LONG:  # a trace for all sizes would depend on these
        low = min(max(low, -size), length)
        high = max(min(high, length), low)
    width = high - low + 1
    places = torch.clamp(torch.arange(size + width - 1, device=x.device) + (low + 1), 0, length + 1)
    zero = x.new_zeros((*x.shape[:dim], 1, *x.shape[dim + 1 :]))
    sums = torch.index_select(torch.cat((zero, x, zero), dim=dim), dim, places)
    total, done, step = None, 0, 1
    while True:
        if width & step:
            part = sums.narrow(dim, done, size)
            total = part if total is None else total + part
            done += step
        if done == width:
            return total  # type: ignore[return-value]  # no width is 0
        count = size + width - 2 * step  # sums over as many entries as a step doubled
        sums = sums.narrow(dim, 0, count) + sums.narrow(dim, step, count)
        step *= 2


def shifted(total: torch.Tensor, dim: int, size: int, shift: int, unit: int) -> torch.Tensor:
    """The running sum at i + `shift` for each i below `size`: `unit` before the first entry, after the last all."""
    length = total.shape[dim]
    if shift == 0 and size == length:
        return total
    first = total.new_full((*total.shape[:dim], 1, *total.shape[dim + 1 :]), unit)
    places = torch.clamp(torch.arange(size, device=total.device) + (shift + 1), 0, length)
    return torch.index_select(torch.cat((first, total), dim=dim), dim, places)
