"""Numbers of a finite ring, and other functions as homomorphisms or as random ones: what identities are tested in.

A residue is a pair: modulo the prime P, and modulo the prime Q, which divides P − 1. `exp(x)` is `G^(x mod Q) mod P`,
G of order Q, so that `exp(a + b) = exp(a) exp(b)`; it has no second part. `sqrt(x)` is `x^((p + 1) / 4)`: the root of
every square, small primes included. All other functions are independent random ones (a keyed hash), so that an identity
which holds for them holds for every function.

Source: the pair of fields is that of Wu et al. 2024, "Mirage: a multi-level superoptimizer for tensor programs", §5.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from hashlib import blake2b

from tensorattn.reference.rows import hashed

Q = 2305843009213682039  # prime, just below 2^61, 7 modulo 8; 2, 3, 5, 7, 11 and 13 are squares modulo both
P = 3002 * Q + 1
G = 5435572463930721053585  # of order Q modulo P
BITS = 61


class InexactError(Exception):
    """The expression has no exact value here: an order of residues, a division by zero, a root of a rational."""


@dataclass(frozen=True, slots=True, eq=False)
class Residue:
    """The number modulo P, and modulo Q where it is known."""

    p: int
    q: int | None

    @staticmethod
    def of(value: Exact) -> Residue:
        if isinstance(value, Residue):
            return value
        fraction = Fraction(value)
        return Residue(
            fraction.numerator * pow(fraction.denominator, -1, P) % P,
            fraction.numerator * pow(fraction.denominator, -1, Q) % Q,
        )

    def __add__(self, other: Exact) -> Residue:
        b = Residue.of(other)
        return Residue((self.p + b.p) % P, None if self.q is None or b.q is None else (self.q + b.q) % Q)

    def __mul__(self, other: Exact) -> Residue:
        b = Residue.of(other)
        return Residue(self.p * b.p % P, None if self.q is None or b.q is None else self.q * b.q % Q)

    __radd__, __rmul__ = __add__, __mul__

    def __neg__(self) -> Residue:
        return Residue(-self.p % P, None if self.q is None else -self.q % Q)

    def __pow__(self, exponent: int) -> Residue:
        if exponent < 0 and (self.p == 0 or self.q == 0):
            raise InexactError
        return Residue(pow(self.p, exponent, P), None if self.q is None else pow(self.q, exponent, Q))


Exact = Residue | Fraction | int


def apply(function: str, arguments: tuple[Exact, ...], key: bytes | None) -> Exact:
    """A function of exact numbers. `key`: of the random functions; None: rational numbers only.

    Raises: InexactError.
    """
    x = arguments[0]
    numbers = [a for a in arguments if not isinstance(a, Residue)]
    rational = len(numbers) == len(arguments)
    match function:
        case "negate":
            return -x
        case "reciprocal":
            return power(x, -1)
        case "power" if isinstance(arguments[1], (int, Fraction)) and Fraction(arguments[1]).denominator == 1:
            return power(x, int(arguments[1]))
        case "power" if key is not None and arguments[1] == Fraction(1, 2):
            return root(x)
        case "exp" if rational and x == 0:
            return 1
        case "abs" if rational:
            return abs(numbers[0])
        case "maximum" | "minimum" if rational:
            return (max if function == "maximum" else min)(numbers)
        case "sign" if rational:
            return (numbers[0] > 0) - (numbers[0] < 0)
        case "uniform" if rational and all(Fraction(a).denominator == 1 for a in numbers):
            return Fraction(hashed(*map(int, numbers)), 2**24)
        case "relu" if rational:
            return max(numbers[0], 0)
    if key is None:
        raise InexactError
    if function == "sqrt":
        return root(x)
    if function == "exp" and (exponent := Residue.of(x).q) is not None:
        return Residue(pow(G, exponent, P), None)
    if function in ("maximum", "minimum"):
        arguments = tuple(sorted(arguments, key=lambda a: Residue.of(a).p))
    return random(function, arguments, key)


def power(base: Exact, exponent: int) -> Exact:
    """An integer power."""
    if isinstance(base, Residue):
        return base**exponent
    if base == 0 and exponent < 0:
        raise InexactError
    return Fraction(base) ** exponent


def root(value: Exact) -> Residue:
    """A square root; of a number that is no square, one of its negative."""
    x = Residue.of(value)
    return Residue(pow(x.p, (P + 1) // 4, P), None if x.q is None else pow(x.q, (Q + 1) // 4, Q))


def random(function: str, arguments: tuple[Exact, ...], key: bytes) -> Residue:
    """The value of a random function, the same whenever the arguments are."""
    text = repr((function, [Residue.of(a).p for a in arguments])).encode()
    digest = blake2b(text, key=key, digest_size=48).digest()
    return Residue(int.from_bytes(digest[:24], "big") % P, int.from_bytes(digest[24:], "big") % Q)
