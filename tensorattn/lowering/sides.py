"""One side of a product, built from its factors: the cheapest pairwise order, in new registers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tensorattn.ir import Index
from tensorattn.kernel import Apply, Arrange, Contract, Fold, Instruction, View
from tensorattn.lowering.multilinear import Factor, Scale
from tensorattn.ordering import Network, search
from tensorattn.parts import Operand, Register


class Sides:
    """Instructions that build sides; `steps` grows. Registers are named after the weights they serve."""

    def __init__(self, stem: str, dtype: str, sizes: Mapping[str, int]) -> None:
        self.stem, self.dtype, self.sizes = stem, dtype, sizes
        self.steps: list[Instruction] = []

    def register(self, word: str, axes: Iterable[Index], dtype: str | None = None) -> Register:
        return Register(f"{word}{len(self.steps)}_{self.stem}", tuple(axes), dtype or self.dtype)

    def emit(self, instruction: Instruction) -> Register:
        self.steps.append(instruction)
        return instruction.out  # type: ignore[union-attr]

    def built(self, word: str, factors: list[Factor], axes: tuple[Index, ...]) -> Register:
        """The product of the factors, summed over what `axes` lack; an axis that no factor has is broadcast."""
        named = [self.named(word, factor) for factor in factors]
        result = frozenset(axes) & frozenset().union(*(f.axes for f in named))
        network = self._network(named, result)
        for place, indices in enumerate(network.factors):
            if len(indices) < len(named[place].axes):
                kept = tuple(i for i in named[place].axes if i in indices)
                named[place] = self.emit(Fold(self.register(word, kept), "sum", named[place]))
        pairs = search(network)[0].pairs
        for (left, right), out in zip(pairs, network.outcomes(pairs)[len(named) :], strict=True):
            a, b = named[left], named[right]
            last = len(named) + 1 == len(factors) + len(pairs)
            kept = tuple(i for i in (axes if last else network.ranked(out)) if i in out)
            made = self.register(word, kept)
            whole = len(kept) == len({*a.axes, *b.axes})
            named.append(self.emit(Apply(made, "multiply", (a, b)) if whole else Contract(made, a, b)))
        return self.arranged(word, named[-1], axes)

    def price(self, factors: list[Factor], result: Iterable[Index]) -> int:
        """What building a side costs, in multiply-adds."""
        network = self._network(factors, frozenset(result))
        return network.price(search(network)[0].pairs)

    def _network(self, factors: list[Factor] | list[Register], result: frozenset[Index]) -> Network:
        """The factors without the indices that one alone has, for these are summed first."""
        sets = []
        for place, factor in enumerate(factors):
            others = frozenset().union(*(f.axes for n, f in enumerate(factors) if n != place))
            sets.append(frozenset(factor.axes) & (result | others))
        rank = {index: n for n, index in enumerate(dict.fromkeys(i for f in factors for i in f.axes))}
        return Network(tuple(sets), result, {i.name: self.sizes.get(i.name, 1) for i in rank}, rank)

    def named(self, word: str, factor: Factor) -> Register:
        """The factor's register under the factor's index names."""
        if factor.axes == factor.register.axes:
            return factor.register
        out = self.register(word, factor.axes, factor.register.dtype)
        return self.emit(View(out, factor.register, tuple((i,) for i in factor.axes)))

    def arranged(self, word: str, register: Register, axes: tuple[Index, ...]) -> Register:
        return register if register.axes == axes else self.emit(Arrange(self.register(word, axes), register))

    def scaled(self, word: str, register: Register, scales: Iterable[Scale]) -> Register:
        """The register multiplied and divided by numbers and by registers without axes."""
        for function, by in scales:
            arguments: tuple[Operand, ...] = (register, by)
            register = self.emit(Apply(self.register(word, register.axes), function, arguments))
        return register
