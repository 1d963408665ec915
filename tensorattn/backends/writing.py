"""The writer: lines of source, and what is known of the registers while they are written."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from math import inf, isnan, lcm
from types import MappingProxyType
from typing import assert_never

from tensorattn.backends.naming import Names
from tensorattn.backends.vocabulary import Vocabulary
from tensorattn.ir import Index
from tensorattn.lowering.buffers import Room
from tensorattn.parts import Literal, Register, Root
from tensorattn.sizes import Axis, Quotient, Size, SizeRead

INPUT = "an input"  # the owner of registers that may share memory with an input or are broadcast: never given out


Groups = tuple[tuple[Index, ...], ...]


@dataclass(frozen=True, slots=True)
class Text:
    """An array as source text (an atom) with its axes, and who owns its memory (None: it is new).

    `packed`: source text of the same array with one dimension for each of `groups` of its axes, where it was made so.
    """

    source: str
    axes: tuple[Index, ...]
    owner: str | None = None
    packed: str | None = None
    groups: Groups = ()


class Writer:
    """Collects the body of one function; the only mutable thing in rendering."""

    def __init__(
        self, words: Vocabulary, names: Names, sizes: Mapping[str, SizeRead], *, standalone: bool = False
    ) -> None:
        self.words, self.names, self.reads, self.standalone = words, names, sizes, standalone
        self.arrays: set[str] = set()  # the variables that hold arrays with axes
        self._same: dict[str, str] = {}  # registers that are another variable, renamed
        self._joined: set[str] = set()  # variables that are written in more than one place
        self._packed: dict[str, tuple[Groups, str]] = {}  # variables with a dimension a group of axes; the whole shape
        self.lines: list[str] = []
        self.owners: dict[str, str] = {}
        self.halves: dict[str, str] = {}  # the registers that are an input of half precision, and its dtype
        self.needs_device = False
        self._used: set[str] = set()
        self._depth = 1
        self._lengths: dict[Index, str] = {}
        self.bounds: dict[Index, tuple[str, str]] = {}
        self._tiles: dict[str, str] = {}
        self.places: Mapping[str, Room | Register] = {}
        self.rooms: Mapping[Room, str] = {}
        self.needs_owned = False

    # Lines and registers

    def line(self, text: str) -> None:
        self.lines.append("    " * self._depth + text)

    @contextmanager
    def indented(self) -> Generator[None]:
        self._depth += 1
        yield
        self._depth -= 1

    @contextmanager
    def tile(self, axis: Index, start: str, stop: str, length: str, tile: str) -> Generator[None]:
        """Within it, `axis` is as long as the tile, and `Slice` cuts at its bounds; `tile`: how long most are."""
        before = dict(self._lengths), dict(self.bounds), dict(self._tiles)
        self._lengths[axis], self.bounds[axis], self._tiles[axis.name] = length, (start, stop), tile
        yield
        self._lengths, self.bounds, self._tiles = before

    def tiled(self, size: Size) -> str:
        """A size in which the axes of the enclosing loops are as long as their tiles."""
        return self._polynomial(size, self._tiles)

    @contextmanager
    def placed(self, places: Mapping[str, Room | Register], rooms: Mapping[Room, str]) -> Generator[None]:
        """Within it, these registers are written to these places."""
        before = self.places, self.rooms
        self.places, self.rooms = {**self.places, **places}, {**self.rooms, **rooms}
        yield
        self.places, self.rooms = before

    def name(self, register: Register) -> str:
        name = self.names.keep("register", register.name)
        return self._same.get(name, name)

    def join(self, register: Register) -> str:
        """The variable of a register that several places write: it is never another one, renamed."""
        name = self.name(register)
        self._joined.add(name)
        if register.axes:
            self.arrays.add(name)
        return name

    def read(self, register: Register, dtype: str | None = None) -> Text:
        """A register as text, in another dtype if one is asked for."""
        name = self.name(register)
        owner = self.owners.get(name, name)
        whole, found = name, Text(name, register.axes, owner)
        if name in self._packed:  # in the shape it was made in: a loop that slices it knows another one
            groups, shape = self._packed[name]
            whole = f"{name}.reshape({shape})"
            found = Text(whole, register.axes, owner, name, groups)
        if dtype is None or dtype == register.dtype:
            return found
        return Text(self.words.cast.format(x=whole, dtype=self.words.dtype(dtype)), register.axes)

    def unpacked(
        self, source: str, axes: Sequence[Index], owner: str | None = None, groups: Groups | None = None
    ) -> Text:
        """An array that has one dimension for each of these groups of its axes (None: for each axis)."""
        if groups is None or all(len(group) == 1 for group in groups):
            return Text(source, tuple(axes), owner)
        return Text(f"{atom(source)}.reshape({self.shape(axes)})", tuple(axes), owner, source, groups)

    def assign(self, out: Register, value: Text) -> None:
        """`out = value`, with the axes brought into the order of `out`."""
        value = self.arranged(value, out.axes)
        name, source = self.name(out), value.source
        self._packed.pop(name, None)
        if value.packed is not None and name not in self._joined:
            source = value.packed
            self._packed[name] = value.groups, self.shape(out.axes)
        if source.isidentifier() and source != name and name not in self._joined:
            self._same[name] = source
            return
        self.owners[name] = value.owner or name
        if out.axes:
            self.arrays.add(name)
        axes = " ".join(index.name for index in out.axes)
        self.line(f"{name} = {source}" + (f"  # {_comment(axes)}" if axes else ""))

    def out(self, out: Register, axes: Sequence[Index], groups: Groups | None = None) -> str | None:
        """What `out=` is for a result with its axes in this order, and in these groups; None: new memory."""
        place = self.places.get(out.name)
        if place is None or set(axes) != set(out.axes):
            return None
        groups = groups or tuple((index,) for index in axes)
        if isinstance(place, Register):
            self.needs_owned = True
            return self.words.over.format(x=self.reshaped(self.read(place), axes, groups))
        return f"fit({self.rooms[place]}, {self.tuple([self.product(group) for group in groups])})"

    # Axes

    def permuted(self, value: Text, axes: Sequence[Index]) -> Text:
        order = [value.axes.index(index) for index in axes]
        if order == list(range(len(order))):
            return value
        dims = ", ".join(map(str, order))
        turned = order == [*range(len(order) - 2), len(order) - 1, len(order) - 2]
        source = f"{atom(value.source)}.mT" if turned else self.words.permute.format(x=atom(value.source), dims=dims)
        return Text(source, tuple(axes), value.owner)

    def reshaped(self, value: Text, axes: Sequence[Index], groups: Sequence[Sequence[Index]]) -> str:
        """The source text of a value with axes `axes` after each group of them became one dimension."""
        if value.packed is not None and value.axes == tuple(axes) and value.groups == tuple(map(tuple, groups)):
            return value.packed
        source = self.permuted(value, axes).source
        if value.packed is not None and value.axes == tuple(axes):
            source = value.packed
        elif all(len(group) == 1 for group in groups):
            return source
        return f"{atom(source)}.reshape({self.tuple([self.product(group) for group in groups])})"

    def aligned(self, value: Text, axes: Sequence[Index], *, whole: bool = False) -> str:
        """The value ready to broadcast against `axes`; `whole`: with every dimension, leading ones of size 1 too."""
        lacking = set(value.axes) - set(axes)
        if lacking:
            raise LookupError(f"{value.source} has axes {lacking} that its place lacks")
        permuted = self.permuted(value, [index for index in axes if index in value.axes])
        keys = [":" if index in value.axes else "None" for index in axes]
        while keys and keys[0] == "None" and not whole:
            del keys[0]
        if "None" not in keys:
            return permuted.source
        if keys.count("None") == 1:
            return self.words.unsqueeze.format(x=atom(permuted.source), dim=keys.index("None"), keys=", ".join(keys))
        return f"{atom(permuted.source)}[{', '.join(keys)}]"

    def arranged(self, value: Text, axes: Sequence[Index]) -> Text:
        """The value with exactly these axes, those it lacks broadcast."""
        if set(value.axes) == set(axes):
            return self.permuted(value, axes)
        return self.expanded(self.aligned(value, axes), axes)

    def expanded(self, source: str, axes: Sequence[Index]) -> Text:
        """A source that broadcasts to `axes`, broadcast (so that its memory is not to be given out)."""
        return Text(f"{self.words.namespace}.broadcast_to({source}, {self.shape(axes)})", tuple(axes), INPUT)

    def dims(self, axes: Sequence[Index], chosen: Iterable[Index]) -> str:
        """Positions of the chosen indices within `axes`, as the text of a tuple."""
        return self.tuple([str(axes.index(index)) for index in chosen])

    # Sizes and numbers

    def length(self, index: Index) -> str:
        """The size of an index: an identifier or a number."""
        return self._lengths[index] if index in self._lengths else self.symbol(index.name)

    def symbol(self, name: str) -> str:
        if name not in self.reads:
            raise LookupError(f"the kernel does not say how the size `{name}` is found")
        self._used.add(name)
        return self.names.of("size", name)

    def product(self, indices: Sequence[Index]) -> str:
        return " * ".join(self.length(index) for index in indices) or "1"

    def shape(self, axes: Sequence[Index]) -> str:
        return self.tuple([self.length(index) for index in axes])

    @staticmethod
    def tuple(parts: Sequence[str]) -> str:
        return f"({parts[0]},)" if len(parts) == 1 else f"({', '.join(parts)})"

    def number(self, value: int | float | Size | Root) -> str:
        """A literal as an atom of source text."""
        if isinstance(value, Root):
            return f"math.sqrt({self.number(value.of)})"
        if isinstance(value, Size):
            return self._polynomial(value)
        if isinstance(value, float) and (isnan(value) or value in (inf, -inf)):
            return "math.nan" if isnan(value) else "math.inf" if value > 0 else "(-math.inf)"
        return repr(value) if value >= 0 else f"({value!r})"

    def _polynomial(self, size: Size, known: Mapping[str, str] = MappingProxyType({})) -> str:
        if size.constant is not None:
            return self.number(size.constant)
        below = lcm(*(Fraction(c).denominator for _, c in size.terms))
        terms = []
        for monomial, coefficient in size.terms:
            whole = int(coefficient * below)
            factors = [known.get(name) or self.symbol(name) for name, power in monomial for _ in range(power)]
            terms.append(" * ".join(factors if whole == 1 and factors else [self.number(whole), *factors]))
        total = " + ".join(terms)
        if below != 1:
            return f"(({total}) // {below})"
        return total if total.isidentifier() else f"({total})"

    def filled(self, shape: str, value: int | float | Size | Root, dtype: str) -> str:
        self.needs_device = True
        return self.words.full.format(shape=shape, value=self.number(value), dtype=self.words.dtype(dtype))

    def iota(self, size: str) -> str:
        self.needs_device = True
        return self.words.iota.format(size=size)

    def scalar(self, literal: Literal, dtype: str) -> Text:
        """A literal as an array without axes."""
        return Text(self.filled("()", literal.value, dtype), ())

    def size_lines(self) -> list[str]:
        """The lines that read the sizes that were used from the shapes, in the kernel's order."""
        for name in reversed(list(self.reads)):
            if name in self._used:
                self._used.update(_needed(self.reads[name]))
        return [
            f"    {self.names.of('size', name)} = {self._reading(read)}"
            for name, read in self.reads.items()
            if name in self._used
        ]

    def _reading(self, read: SizeRead) -> str:
        match read:
            case int():
                return str(read)
            case Size():
                return self._polynomial(read)
            case Axis(input=name, axis=axis):
                return f"{self.names.of('input', name)}.shape[{axis}]"
            case Quotient(of=axis, by=by):
                parts = [self.names.of("size", name) for name in by]
                # An empty part leaves nothing to divide; the shapes were checked before.
                return self._reading(axis) + "".join(f" // ({part} or 1)" for part in parts)
            case _:
                assert_never(read)


def _needed(read: SizeRead) -> tuple[str, ...]:
    """The sizes that have to be known before this one."""
    match read:
        case Quotient(of=Size() as whole, by=names):
            return (*whole.symbols, *names)
        case Quotient(by=names):
            return names
        case Size():
            return tuple(read.symbols)
        case int() | Axis():
            return ()
        case _:
            assert_never(read)


def atom(source: str) -> str:
    """The source as something a method or a subscript may follow."""
    whole = source.isidentifier() or (source.endswith((")", "]", ".mT")) and not _operators(source))
    return source if whole else f"({source})"


def _operators(source: str) -> bool:
    """Whether an operator stands outside all brackets."""
    depth = 0
    for character in source:
        depth += (character in "([") - (character in ")]")
        if not depth and character in " -~":
            return True
    return False


def _comment(text: str) -> str:
    return " ".join(text.split())


def comment_lines(texts: Iterable[str]) -> list[str]:
    """Texts as comment lines, whatever line ends they hold."""
    return [f"# {line}".rstrip() for text in texts for line in text.splitlines() or [""]]
