"""Who makes and who uses the registers of a body, and how large they are at the sizes it is planned for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import prod

from tensorattn.ir import Index
from tensorattn.kernel import Instruction, Iota, Load, Slice, Stream, View, Weigh
from tensorattn.lowering.liveness import makes, reads
from tensorattn.lowering.pointwise import is_pointwise
from tensorattn.parts import Register
from tensorattn.sizes import Size


class Flow:
    """A body, the names of the results it has to leave, and the lengths of its axes by name.

    `read`: what each instruction reads, which is asked for many times.
    """

    def __init__(self, body: tuple[Instruction, ...], results: frozenset[str], sizes: Mapping[str, int]) -> None:
        self.body, self.results, self.sizes = body, results, sizes
        self.makers = {r.name: n for n, i in enumerate(body) for r in makes(i)}
        self.read = tuple(map(reads, body))
        self.users: dict[str, set[int]] = {}
        for number, read in enumerate(self.read):
            for register in read:
                self.users.setdefault(register.name, set()).add(number)

    def length(self, index: Index) -> int:
        return self.sizes.get(index.name, 1)

    def entries(self, indices: Iterable[Index]) -> int:
        """How many entries there are over these indices."""
        return prod(self.length(i) for i in set(indices))

    def out(self, number: int) -> Register:
        return self.body[number].out  # type: ignore[union-attr]

    def is_given(self, register: Register) -> bool:
        """Whether it is an input or a view of one: it takes no memory."""
        number = self.makers.get(register.name)
        if number is None:
            return True
        made = self.body[number]
        if isinstance(made, (View, Slice)):
            return self.is_given(made.source)
        return isinstance(made, (Load, Iota))

    def grows(self, register: Register) -> bool:
        """Whether it holds axes that no input it is made of holds together."""
        if self.is_given(register):
            return False
        before = [r for n in self.earlier([self.makers[register.name]]) for r in makes(self.body[n])]
        return not any(set(register.axes) <= set(r.axes) for r in before if self.is_given(r))

    def may_move(self, number: int, axis: Index) -> bool:
        """Whether the instruction may run on stretches of the axis."""
        return not isinstance(self.body[number], (Stream, Weigh)) and is_pointwise(self.body[number], axis)

    def kept(self, number: int, loop: set[int]) -> bool:
        """Whether something outside the loop needs what the instruction makes."""
        name = self.out(number).name
        return name in self.results or not self.users.get(name, set()) <= loop

    def later(self, numbers: Iterable[int]) -> set[int]:
        """The instructions that depend on these, with them."""
        return _closure(numbers, lambda n: (u for r in makes(self.body[n]) for u in self.users.get(r.name, ())))

    def earlier(self, numbers: Iterable[int]) -> set[int]:
        """The instructions on which these depend, with them."""
        return _closure(numbers, lambda n: (self.makers[r.name] for r in self.read[n] if r.name in self.makers))


def _closure(numbers: Iterable[int], near: Callable[[int], Iterable[int]]) -> set[int]:
    """These numbers and all that are reached from them."""
    found: set[int] = set()
    queue = list(numbers)
    while queue:
        number = queue.pop()
        if number not in found:
            found.add(number)
            queue += near(number)
    return found


def size_of(indices: Iterable[Index]) -> Size:
    """The number of entries over these indices, as a polynomial in the sizes."""
    return Size.product(i.name for i in dict.fromkeys(indices))


def names_of(indices: Iterable[Index]) -> str:
    return " ".join(i.name for i in sorted(indices))
