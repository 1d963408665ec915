"""`uniform`: a hash of integers, in the operators that NumPy and torch share, the same bits in both.

Source: Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators", splitmix64. How we differ: the stream
of a prefix of the keys starts from the hash of that prefix, and 24 bits are kept.
"""

from typing import Any

GAMMA = 0x9E3779B97F4A7C15 - (1 << 64)  # as int64, whose products wrap around
FIRST = 0xBF58476D1CE4E5B9 - (1 << 64)
SECOND = 0x94D049BB133111EB - (1 << 64)


def hashed(seed: Any, *positions: Any) -> Any:
    """24 bits of the keys, arrays of int64 that broadcast; the last key costs most, for its axes join the others."""
    state = _mixed(seed + GAMMA)
    for position in positions:
        state = state ^ ((state >> 31) & ((1 << 33) - 1))  # which leaves the bits that are kept as they are
        state = _mixed(state + (position + 1) * GAMMA)
    return (state >> 40) & 0xFFFFFF


def _mixed(state: Any) -> Any:
    """A bijection of 64 bits; a shift of signed integers fills up with the sign, which is masked away."""
    state = (state ^ ((state >> 30) & ((1 << 34) - 1))) * FIRST
    return (state ^ ((state >> 27) & ((1 << 37) - 1))) * SECOND
