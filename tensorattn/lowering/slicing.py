"""A loop over a free axis: all that is pointwise along it runs on a slice, whatever it is.

Relations between relations, weights that are squared, sparsemax: every row is by itself. The intermediates that hold a
common free axis are made, used and dropped slice by slice; results along the axis are stacked, sums over it carried.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tensorattn.ir import Index
from tensorattn.kernel import Instruction, Stream
from tensorattn.lowering.flow import Flow
from tensorattn.lowering.liveness import without_dead
from tensorattn.lowering.looping import RefusalError, drawn_in, placed, slices
from tensorattn.lowering.roots import carry, root
from tensorattn.lowering.unifying import renamed
from tensorattn.parts import Register, Stacked, TileRule
from tensorattn.sizes import Size

SMALL = 4  # what is left whole counts from this part of a tile on
Inside = Callable[[tuple[Instruction, ...], frozenset[str], int], tuple[Instruction, ...]]


@dataclass(frozen=True, slots=True)
class Region:
    """The instructions to run slice by slice along `axis`, how large the largest array is that is left whole, and how
    many entries every slice adds to, where these are more than a tile."""

    axis: Index
    loop: frozenset[int]
    left: int
    added: int

    def registers(self, flow: Flow) -> list[Register]:
        return [flow.out(n) for n in self.loop]


def region(flow: Flow, target: int, axis: Index, entries: int) -> Region:
    """The region around one instruction.

    Raises: RefusalError where it cannot be sliced, or where that would save nothing.
    """
    if not _may_run(flow, target, axis):
        raise RefusalError(f"{axis.name} does not run through it")
    read = flow.read[target]
    least = max(flow.entries(r.axes) for r in [r for r in read if not flow.is_given(r)] or read)
    found: list[Region] = []
    for connect in (True, False):
        try:
            found.append(_region(flow, target, axis, least, entries, connect))
        except RefusalError:
            continue
    if not found:
        raise RefusalError("no axis that is not barred runs through all that is made of them")
    return min(found, key=lambda r: r.left)


def _region(flow: Flow, target: int, axis: Index, least: int, entries: int, connect: bool) -> Region:
    large = {n for n in range(len(flow.body)) if _is_large(flow, n, least)}
    loop = _around(flow, {target}, axis, large)
    if connect:  # what is large and made of this, through what is small
        on = {n for n in flow.later(loop) & large if flow.may_move(n, axis)}
        between = flow.later(loop) & flow.earlier(on)
        if all(flow.may_move(n, axis) for n in between):
            loop = _around(flow, loop | between, axis, large)
    others = {i for n in loop & large for i in flow.out(n).axes} - {axis}
    loop = drawn_in(flow, loop, axis, others, entries)
    loop = _with_between(flow, _narrowed(flow, loop, axis), axis)
    placed(flow, loop, [])
    ends = {flow.out(n).name for n in loop if not flow.may_move(n, axis) and root(flow.body[n], axis)}
    if any(r.name in ends for n in loop for r in flow.read[n]):
        raise RefusalError("a sum over the slices would be read before it is done")
    kept = [flow.out(n) for n in loop if flow.kept(n, loop)]
    if any(axis not in r.axes and root(flow.body[flow.makers[r.name]], axis) is None for r in kept):
        raise RefusalError("a part of it would be made in every round")
    inner = {n for n in loop if _is_large(flow, n, least) and axis in flow.out(n).axes and not flow.kept(n, loop)}
    if not inner:
        raise RefusalError("nothing would be saved")
    outside = {r.name: r for n in loop for r in flow.read[n] if flow.makers.get(r.name) not in loop}
    left = [r for r in (*kept, *outside.values()) if r.name not in flow.results and not flow.is_given(r)]
    sizes = [flow.entries(r.axes) for r in left]
    whole = max((s for s in sizes if s >= min(least, entries // SMALL)), default=0)
    added = sum(flow.entries(r.axes) for r in kept if axis not in r.axes)
    return Region(axis, frozenset(loop), whole, added if added > entries else 0)


def _may_run(flow: Flow, number: int, axis: Index) -> bool:
    return flow.may_move(number, axis) or root(flow.body[number], axis) is not None


def _is_large(flow: Flow, number: int, least: int) -> bool:
    out = getattr(flow.body[number], "out", None)
    return out is not None and not flow.is_given(out) and flow.entries(out.axes) >= least


def _around(flow: Flow, start: set[int], axis: Index, large: set[int]) -> set[int]:
    """All that makes or uses the same large arrays."""
    loop, queue = set(start), list(start)
    while queue:
        number = queue.pop()
        near = {flow.makers[r.name] for r in flow.read[number] if r.name in flow.makers} & large
        if number in large:
            near |= flow.users.get(flow.out(number).name, set())
        new = {n for n in near - loop if _may_run(flow, n, axis)}
        loop |= new
        queue += [n for n in new if flow.may_move(n, axis)]
    return loop


def _narrowed(flow: Flow, loop: set[int], axis: Index) -> set[int]:
    """With what makes less of a result while it is at hand: the sums over other axes."""
    loop = set(loop)
    for number in sorted(loop):
        if axis in flow.out(number).axes and flow.kept(number, loop) and flow.out(number).name not in flow.results:
            loop |= _lessened(flow, number, loop, axis)
    return loop


def _with_between(flow: Flow, loop: set[int], axis: Index) -> set[int]:
    """With what is made of a part of the loop for another part, where it runs along the axis."""
    between = (flow.later(loop) & flow.earlier(loop)) - loop
    return loop | between if all(flow.may_move(n, axis) for n in between) else loop


def _lessened(flow: Flow, number: int, loop: set[int], axis: Index) -> set[int]:
    """All that is made of a result down to what is smaller; nothing where that is not less in all."""
    whole = flow.entries(flow.out(number).axes)
    found: set[int] = set()
    ends, queue = 0, [number]
    while queue:
        for user in flow.users[flow.out(queue.pop()).name] - loop - found:
            if not _may_run(flow, user, axis) or any(axis not in r.axes for r in _made(flow, user, loop | found)):
                return set()
            found.add(user)
            size = flow.entries(flow.out(user).axes)
            if size < whole:
                ends += size
            elif flow.out(user).name in flow.results or not flow.may_move(user, axis):
                return set()
            else:
                queue.append(user)
    return found if ends < whole else set()


def _made(flow: Flow, number: int, loop: set[int]) -> list[Register]:
    """What an instruction reads of a loop."""
    return [r for r in flow.read[number] if flow.makers.get(r.name) in loop]


def sliced(flow: Flow, found: Region, tile: TileRule, inside: Inside) -> tuple[Instruction, ...]:
    """The body with the loop in place of the region; `inside` plans what runs in a slice."""
    axis, loop = found.axis, set(found.loop)
    stem = f"{axis.name}{min(loop)}"
    cut, steps = slices(flow, loop, axis, stem)
    results = [(n, flow.out(n)) for n in sorted(loop) if flow.kept(n, loop)]
    parts = {r.name: Register(f"{r.name}p{stem}", r.axes, r.dtype) for _, r in results}
    body = (*steps, *(renamed(flow.body[n], cut | parts) for n in sorted(loop)))
    per = max(tile.per.value({name: flow.sizes.get(name, 1) for name in tile.per.symbols}), 1)
    length = max(min(tile.entries // per, flow.length(axis)), 1)
    body = inside(body, frozenset(p.name for p in parts.values()), length)
    carried = [carry(r, parts[r.name], how) for n, r in results if (how := root(flow.body[n], axis))]
    stream = Stream(
        axis, Size.of(axis.name), tile, without_dead(body, tuple(parts.values())),
        carry=tuple(c for c, _, _ in carried),
        merge=tuple(i for _, steps, _ in carried for i in steps),
        merged=tuple(m for _, _, m in carried),
        stacked=tuple(Stacked(r, parts[r.name]) for _, r in results if axis in r.axes),
    )  # fmt: skip
    return placed(flow, loop, [stream])
