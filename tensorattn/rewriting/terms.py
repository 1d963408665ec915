"""A term of a sum as sign and product: what rules on sums of products look at."""

from __future__ import annotations

from dataclasses import dataclass

from tensorattn.ir import Expr, Index, Map, Normalise, Number, Product, walk


@dataclass(frozen=True, slots=True)
class Term:
    """`sign · Σ_summed Π factors`."""

    sign: int
    factors: tuple[Expr, ...]
    summed: tuple[Index, ...] = ()

    @property
    def indices(self) -> frozenset[Index]:
        """All indices of the product, the summed ones too."""
        return frozenset(self.summed).union(*(f.free for f in self.factors))

    @property
    def expression(self) -> Expr:
        product = self.factors[0] if len(self.factors) == 1 and not self.summed else Product(self.factors, self.summed)
        return product if self.sign > 0 else Map("negate", (product,))


def term_of(node: Expr) -> Term:
    """A node as one term."""
    match node:
        case Map(function="negate", arguments=(inner,)):
            found = term_of(inner)
            return Term(-found.sign, found.factors, found.summed)
        case Product(factors=factors, summed=summed):
            return Term(1, factors, summed)
    return Term(1, (node,))


def product_of(factors: tuple[Expr, ...], summed: tuple[Index, ...] = ()) -> Expr:
    """The factors as one expression."""
    if not summed and len(factors) < 2:
        return factors[0] if factors else Number(1)
    return Product(factors, summed)


def weighs(node: Expr) -> bool:
    """Whether an expression holds weights whose indices are open in it, to be summed outside."""
    return any(isinstance(part, Normalise) and not node.free.isdisjoint(part.indices) for part in walk(node))
