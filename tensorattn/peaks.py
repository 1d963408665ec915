"""Kernel → the bytes alive at each of its instructions, beyond inputs and outputs.

Modelled over the lifetimes of the registers of the back ends: a register dies after its last use, views cost nothing,
and each instruction has the temporaries its code makes with one library or the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from tensorattn import holding
from tensorattn.ir import Index
from tensorattn.kernel import (
    Accumulate,
    Apply,
    Arrange,
    Cast,
    CheckRange,
    Contract,
    Instruction,
    Kernel,
    Largest,
    Load,
    LogSumExp,
    Normalised,
    Powers,
    SegmentSum,
    Stream,
    Weigh,
)
from tensorattn.lowering.buffers import Room, places
from tensorattn.lowering.liveness import makes, reads
from tensorattn.lowering.products import Axes, Product, neighbours, product_of
from tensorattn.lowering.views import BYTES, bytes_of, entries, is_view, size_in_bytes, viewed
from tensorattn.parts import Literal, Register
from tensorattn.records import Chunked, Flash, FlashBack, Record, Slope
from tensorattn.sizes import Size

# What a function or a normaliser holds at once beside its result: arrays like it, and other bytes an entry. Measured.
TEMPORARIES = {
    "sigmoid": (2, 0), "silu": (2, 0), "gelu": (0, 64), "elu": (1, 1), "leaky_relu": (1, 1), "uniform": (0, 16),
    "in_twos": (2, 1),
}  # fmt: skip
WEIGHT_TEMPORARIES = {"softmax": (0, 0), "l1norm": (2, 0), "l2norm": (2, 0), "sparsemax": (2, 10), "entmax": (4, 3)}
THREE_HALVES_TEMPORARIES = (5, 19)
TORCH_FUNCTIONS = {
    "silu": (1, 0), "gelu": (1, 1), "leaky_relu": (1, 1), "softplus": (2, 0), "sign": (1, 1), "uniform": (0, 16),
    "in_twos": (2, 1),
}  # fmt: skip
TORCH_TEMPORARIES = {"softmax": (0, 0), "l1norm": (2, 3), "l2norm": (2, 3), "sparsemax": (4, 3), "entmax": (9, 4)}
SLOPE_TEMPORARIES = {"power": 2, "reciprocal": 2, "cos": 2, "sin": 1, "abs": 1, "sqrt": 1}
BOND = "bond_"  # an index that stands for several bonds joined is named so
KEYS = "keys_"  # an index that stands for a chunk of the keys of an attention is named so


def total(sizes: Iterable[Size]) -> Size:
    """Their sum."""
    return sum(sizes, Size())


def _temporaries(instruction: Instruction | Record, stored: Mapping[Register, Axes], library: str) -> Size:
    """Bytes an instruction holds beside its operands and its result."""
    match instruction:
        case Normalised() if library == "torch":
            return _normalised_temporaries(instruction, stored)
        case Contract() if library == "torch":
            return _copies(instruction, stored) + _unbatched(instruction, stored)
        case Contract():
            return _copies(instruction, stored)
        case Chunked():
            return holding.attended(instruction, stored)
        case Flash():
            return holding.fused(instruction, stored)
        case FlashBack():
            return holding.fused_back(instruction, stored)
        case Accumulate():
            return _accumulated_temporaries(instruction, library)
    return _entrywise_temporaries(instruction, library)


def _entrywise_temporaries(instruction: Instruction | Record, library: str) -> Size:
    """So many for each entry, however they lie in memory."""
    match instruction:
        case Apply(out=out, function=function):
            copies, others = (TORCH_FUNCTIONS if library == "torch" else TEMPORARIES).get(function, (0, 0))
            return size_in_bytes(out) * copies + entries(out.axes) * others
        case Normalised(out=out, kind=kind, where=where, options=options):
            copies, others = WEIGHT_TEMPORARIES[kind]
            if kind == "entmax" and dict(options)["alpha"] == Literal(1.5):
                copies, others = THREE_HALVES_TEMPORARIES
            selected = where is not None and kind == "softmax"
            return size_in_bytes(out) * (copies + selected) + entries(out.axes) * others
        case Weigh(out=out, where=where):
            return entries(out.axes) if where is not None else Size()
        case Powers(out=out, where=where):
            return size_in_bytes(out) if where is not None else Size()
        case Slope(out=out, function=function):
            return size_in_bytes(out) * SLOPE_TEMPORARIES.get(function, 0)
        case SegmentSum(source=source):  # positions, and floats in float64
            return entries(source.axes) * 16
        case LogSumExp(source=source, where=where):
            torch = library == "torch"
            return size_in_bytes(source) * (2 + (where is not None and not torch)) + entries(source.axes) * torch
        case Largest(source=source, where=where):
            return entries(source.axes) * (16 + 8 * (where is not None) + 8 * (library == "torch"))
        case CheckRange(out=out):
            return entries(out.axes) * 2
    return Size()


def _normalised_temporaries(made: Normalised, stored: Mapping[Register, Axes]) -> Size:
    """Of torch: admitted scores, scores brought into order, and what the formulas of the other kinds make."""
    out, where = made.out, made.where is not None
    copies, others = TORCH_TEMPORARIES[made.kind]
    if made.kind == "softmax":
        last = len(made.indices) == 1 or set(out.axes[-len(made.indices) :]) == set(made.indices)
        ordered = last and stored[made.score] == made.score.axes
        copies, others = (3, 1) if "sink" in dict(made.options) else (where + (not ordered), 0)
    elif made.kind in ("sparsemax", "entmax"):
        copies += where
    return size_in_bytes(out) * copies + entries(out.axes) * others


def _accumulated_temporaries(instruction: Accumulate, library: str) -> Size:
    """The running sums before they are shifted; for a window the sums over some and over twice as many entries."""
    source, out = instruction.source, instruction.out
    each = size_in_bytes(source)
    found = Size()
    for low, high in instruction.windows:
        if low is None or high is None:
            found = found + each * (2 if high is None else high != 0)
            continue
        padded = (Size.of(instruction.along.name) + (high - low)) * BYTES[source.dtype]
        if library == "torch":  # NumPy takes a few columns at a time
            padded = padded * Size.product(i.name for i in source.axes if i != instruction.axis)
            found = found + each
        found = found + padded * 2
    return found + size_in_bytes(out) * (len(instruction.windows) > 1)


def _groups(step: Contract) -> tuple[Product, tuple[tuple[Register, Axes], tuple[Register, Axes]]]:
    """How a matrix product is made, and its operands, each with the axes that it shares with the result alone."""
    found = product_of(step)
    a, b = (found.right, found.left) if found.turned else (found.left, found.right)
    return found, ((step.a, a), (step.b, b))


def _copies(step: Contract, stored: Mapping[Register, Axes]) -> Size:
    """The operands that a matrix product has to bring into order: those whose merged axes are not neighbours."""
    made, sides = _groups(step)
    inner = made.inner
    if not inner:
        return Size()
    total = Size()
    for one, rest in sides:
        axes = tuple(index for index in stored[one] if index not in made.apart)
        if not (axes and neighbours(rest, axes) and neighbours(inner, axes)):
            total = total + size_in_bytes(one)
    return total


def _unbatched(step: Contract, stored: Mapping[Register, Axes]) -> Size:
    """The operands, and the result, that torch copies because the axes of the batch are not the slow ones together."""
    made, sides = _groups(step)
    batch, inner = made.batch, made.inner
    if not batch or not inner:
        return Size()
    total = Size()
    for one, rest in sides:
        axes = tuple(i for i in stored[one] if i in (*batch, *rest, *inner))
        ordered = neighbours(rest, axes) and neighbours(inner, axes)
        kept, own = tuple(i for i in axes if i in batch), tuple(i for i in batch if i in axes)
        if own != batch and len(own) > 0:  # repeated along an axis that stands behind others of the batch
            total = total + entries(set(batch) | set(axes)) * BYTES[one.dtype]
        elif ordered and axes and (axes[-1] in batch or kept != own or not neighbours(own, axes)):
            total = total + size_in_bytes(one)
    return total


def _stored(instruction: Instruction, stored: Mapping[Register, Axes], library: str) -> dict[Register, Axes]:
    """The axes of the results in the order in which memory holds them."""
    made = makes(instruction)
    if isinstance(instruction, Stream) or len(made) != 1:
        return {each: each.axes for each in made}
    return {made[0]: _layout(instruction, stored, library)}


def _layout(instruction: Instruction, stored: Mapping[Register, Axes], library: str) -> Axes:
    out = instruction.out.axes  # type: ignore[union-attr]
    match instruction:
        case Load():
            return stored.get(instruction.out, out)
        case Contract():
            made, _ = _groups(instruction)
            return made.axes if made.inner else out
        case Arrange(source=source, packed=False) if {*stored[source]} <= {*out}:  # an axis it lacks takes no memory
            return stored[source]
        case Normalised() if library == "torch":
            return out
        case Normalised(score=source) | Cast(source=source) | Arrange(source=source, packed=False):
            return stored[source] if set(stored[source]) == set(out) else out
        case Apply(arguments=arguments):
            return _woven(out, [stored.get(a, a.axes) for a in arguments if isinstance(a, Register)], library)
    return out


def _woven(out: Axes, orders: Sequence[Axes], library: str) -> Axes:
    """The order in which an operation entry by entry writes: axes swap where an operand has them the other way round.

    The first operand with both decides in torch; in NumPy they swap where all of them want it.
    """

    def swap(slow: Index, fast: Index) -> bool | None:
        turned = [o.index(fast) < o.index(slow) for o in orders if slow in o and fast in o]
        return None if not turned else turned[0] if library == "torch" else all(turned)

    found: list[Index] = []
    for index in out:
        at = len(found)
        for place in reversed(range(len(found))):
            turned = swap(found[place], index)
            if turned is False:
                break
            at = place if turned else at
        found.insert(at, index)
    return tuple(found)


def peaks(
    kernel: Kernel,
    body: tuple[Instruction, ...],
    library: str = "numpy",
    *,
    start: int = 0,
    layouts: Mapping[Register, Axes] = MappingProxyType({}),
) -> tuple[Size, ...]:
    """Bytes alive at each instruction, less those of the results, without those that another always exceeds.

    `start`: of a body without loops, the first instruction that is looked at. `layouts`: how inputs lie in memory, in
    the order of their axes or, where it has no axes, in none.
    """
    results = total(map(bytes_of, kernel.outputs))
    return maximal([size - results for size in bytes_alive(kernel, body, library, layouts)[start:]])


def bytes_alive(
    kernel: Kernel,
    body: tuple[Instruction, ...],
    library: str,
    layouts: Mapping[Register, Axes] = MappingProxyType({}),
) -> list[Size]:
    """Bytes alive at each instruction (of loops: of their bodies) and after the last one, the results among them."""
    owner = _owners(body, {}, {})
    last = _last_uses(body, owner, (output.register for output in kernel.outputs))
    alive, found = _alive(body, owner, last, dict(layouts), library)
    for output in kernel.outputs:
        copied = owner.get(output.register) is None or output.dtype != output.register.dtype
        if copied:
            alive = alive + bytes_of(output)
    return [*found, alive]


Owners = dict[Register, "Register | None"]  # whose memory a register has; None: an input's


def _owners(body: tuple[Instruction, ...], outer: Owners, placed: Mapping[str, Room | Register]) -> Owners:
    owner = dict(outer)
    for instruction in body:
        for made in makes(instruction):
            place = placed.get(made.name, made)
            owner[made] = None if isinstance(place, Room) else owner.get(place, place)
        if is_view(instruction):
            seen = None if isinstance(instruction, Load) else owner.get(viewed(instruction))
            owner[instruction.out] = seen  # type: ignore[union-attr]
    return owner


def _last_uses(body: tuple[Instruction, ...], owner: Owners, kept: Iterable[Register]) -> dict[Register, int]:
    """The place after which each register made here is no longer needed; `kept` are needed after all."""
    own = {made for instruction in body for made in makes(instruction)}
    last: dict[Register, int] = {}
    for place, instruction in enumerate(body):
        for register in (*makes(instruction), *reads(instruction)):
            if (root := owner.get(register)) in own:
                last[root] = place
    for register in kept:
        if (root := owner.get(register)) in own:
            last[root] = len(body)
    return last


def _alive(
    body: tuple[Instruction, ...],
    owner: Owners,
    last: Mapping[Register, int],
    stored: dict[Register, Axes],
    library: str,
    placed: Mapping[str, Room | Register] = MappingProxyType({}),
) -> tuple[Size, list[Size]]:
    """Bytes alive after a body, and at each of its instructions; `stored` gathers how registers lie in memory."""
    alive, found = Size(), []
    for place, instruction in enumerate(body):
        alive = alive + total(size_in_bytes(made) for made in makes(instruction) if owner[made] == made)
        if isinstance(instruction, Stream):
            found += [alive + inner for inner in _in_stream(instruction, owner, stored, library)]
        stored.update(_stored(instruction, stored, library))
        if not isinstance(instruction, Contract):  # which fills a room in the order of its product
            stored.update({r: _placed(r, placed, stored) for r in makes(instruction) if r.name in placed})
        found.append(alive + _temporaries(instruction, stored, library))
        alive = alive - total(size_in_bytes(root) for root, end in last.items() if end == place)
    return alive, found


def _placed(register: Register, placed: Mapping[str, Room | Register], stored: Mapping[Register, Axes]) -> Axes:
    """The order of what is written to given memory: that of its own axes, or that of an operand."""
    place = placed[register.name]
    return register.axes if isinstance(place, Room) else stored.get(place, register.axes)


def _in_stream(stream: Stream, outer: Owners, stored: Mapping[Register, Axes], library: str) -> list[Size]:
    """Bytes alive inside a round of the loop, beside the state that it carries."""
    body, placed = (*stream.body, *stream.merge), places(stream)
    rooms = total(entries(room.axes) * BYTES[room.dtype] for room in placed.rooms)
    owner = _owners(body, {**outer, **{carry.state: carry.state for carry in stream.carry}}, placed.of)
    last = _last_uses(body, owner, (*stream.merged, *(stack.part for stack in stream.stacked)))
    layouts = {**stored, **{carry.state: carry.state.axes for carry in stream.carry}}
    return [rooms + size for size in _alive(body, owner, last, layouts, library, placed.of)[1]]


def maximal(sizes: list[Size]) -> tuple[Size, ...]:
    """The sizes that no other exceeds coefficient by coefficient."""
    kept: list[Size] = []
    for size in dict.fromkeys(sizes):
        if any(_exceeds(other, size) for other in kept):
            continue
        kept = [other for other in kept if not _exceeds(size, other)] + [size]
    return tuple(kept)


def _exceeds(large: Size, small: Size) -> bool:
    return all(coefficient >= 0 for _, coefficient in (large - small).terms)
