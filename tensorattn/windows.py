"""Sets of whole numbers as windows: what the difference of two positions is compared with."""

from __future__ import annotations

from math import inf

Window = tuple[int | None, int | None]  # the least and the greatest number in it; None: it has no end there
Windows = tuple[Window, ...]  # in rising order, with numbers between them


def turned(windows: Windows) -> Windows:
    """The negatives of the numbers."""
    return tuple(tuple(None if end is None else -end for end in window[::-1]) for window in reversed(windows))  # type: ignore[misc]


def complement(windows: Windows) -> Windows:
    """The other numbers."""
    found: list[Window] = []
    start: int | None = None  # of the gap before the next window
    for low, high in windows:
        if low is not None:
            found.append((start, low - 1))
        if high is None:
            return tuple(found)
        start = high + 1
    return (*found, (start, None))


def common(some: Windows, others: Windows) -> Windows:
    """The numbers in both."""
    found: list[Window] = []
    for one in some:
        for other in others:
            low = max((w[0] for w in (one, other) if w[0] is not None), default=None)
            high = min((w[1] for w in (one, other) if w[1] is not None), default=None)
            if (-inf if low is None else low) <= (inf if high is None else high):
                found.append((low, high))
    return tuple(found)


def additions(windows: Windows) -> int:
    """How many additions an entry takes in running sums over the windows.

    With one end it is one. With two the sums over 1, 2, 4, 8, … entries are made, each of two before it, and those that
    the binary digits of its length name are added. The sums over several windows are added.
    """
    return sum(map(_additions, windows)) + max(len(windows) - 1, 0)


def _additions(window: Window) -> int:
    low, high = window
    if low is None or high is None:
        return 1
    width = high - low + 1
    return max(width.bit_length() + width.bit_count() - 2, 1)
