"""What the gradients of a kernel cost after the forward pass: an estimate of the algorithm, not of what autograd does.

By the standard rule every contraction costs one contraction for each of its operands, everything pointwise about its
own price again. Dense keeps its weights: of two matrix products forward, four backward. A loop over tiles keeps results
and log-sum-exps only and makes its scores and weights again: of two forward, five backward (Dao et al. 2022,
algorithm 4), and as many exps as forward. Gradients of inputs are outputs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from tensorattn.cost import Cost, bytes_moved, exps, flops
from tensorattn.kernel import Contract, Instruction, Kernel, Load, Stream, Weigh
from tensorattn.lowering.liveness import makes, reads
from tensorattn.lowering.views import is_view, size_in_bytes
from tensorattn.parts import Register
from tensorattn.peaks import maximal, total
from tensorattn.rounds import Placed, looped, placed, resolved, tiled, with_stretches
from tensorattn.sizes import Size


def backward_cost(kernel: Kernel) -> Cost:
    """FLOPs, exps, bytes moved and peak bytes of the gradients of all outputs with respect to all float inputs."""
    body, tiles, stretches = tiled(kernel)
    means, most = resolved(stretches, "mean"), resolved(stretches, "most")
    tiles = with_stretches(tiles, means)
    everything = placed(tuple(map(_unmerged, body)), tiles)
    live = _differentiable(everything)
    again = _made_again(everything)
    counts = [Size(), Size(), Size()]
    for instruction, around in everything:
        for n, amount in enumerate(_counts(instruction, live, again)):
            counts[n] = counts[n] + looped(amount.substitute(means), around)
    alive = tuple(size.substitute(most) for size in _peaks(kernel, everything, live))
    return Cost(*counts, alive, tiles)


def _unmerged(instruction: Instruction) -> Instruction:
    """A loop without its merges, which no gradient passes: the rule for the whole sum replaces theirs."""
    if not isinstance(instruction, Stream):
        return instruction
    return replace(instruction, body=tuple(map(_unmerged, instruction.body)), merge=())


def _differentiable(everything: Iterable[Placed]) -> set[Register]:
    """The registers that depend on an input by floats."""
    live: set[Register] = set()
    for instruction, _ in everything:
        if isinstance(instruction, Load) or live & reads(instruction):
            live |= {r for r in makes(instruction) if r.dtype.startswith("float")}
    return live


def _made_again(everything: list[Placed]) -> set[Register]:
    """What is made in loops up to the weights of a tile."""
    needed: set[Register] = set()
    for instruction, around in reversed(everything):
        if around and (_weighs(instruction) or needed & set(makes(instruction))):
            needed |= {*makes(instruction), *reads(instruction)}
    return needed


def _weighs(instruction: Instruction) -> bool:
    """Whether it makes weights of scores: with a maximum, or where none is needed without."""
    return isinstance(instruction, Weigh) or getattr(instruction, "function", "") in ("exp", "exp2")


def _counts(instruction: Instruction, live: set[Register], again: set[Register]) -> tuple[Size, Size, Size]:
    """FLOPs, exps and bytes of one instruction in one round."""
    found = (Size(), Size(), Size())
    if is_view(instruction):
        return found
    made = makes(instruction)
    if again & set(made):
        found = (flops(instruction), exps(instruction), bytes_moved(instruction))
    if not live & set(made):
        return found
    used = [r for r in _operands(instruction) if r in live]
    each = flops(instruction)
    if isinstance(instruction, Contract):
        each = each * len(used)
    gradients = total(size_in_bytes(r) for r in (made[0], *used))
    return found[0] + each, found[1], found[2] + bytes_moved(instruction) + gradients


def _operands(instruction: Instruction) -> tuple[Register, ...]:
    """What is read, twice where it is read twice."""
    return (instruction.a, instruction.b) if isinstance(instruction, Contract) else tuple(reads(instruction))


def _peaks(kernel: Kernel, everything: list[Placed], live: set[Register]) -> tuple[Size, ...]:
    """Everything kept, what a round makes again, and the gradients at one instruction, for each of them."""
    given = {r for i, _ in everything if is_view(i) and not isinstance(i, Stream) for r in makes(i)}
    given |= {r for i, _ in everything if isinstance(i, Load) for r in makes(i)}
    outputs = {output.register for output in kernel.outputs}
    owned = [(r, around) for i, around in everything for r in makes(i) if r in live and r not in given | outputs]
    kept = total(size_in_bytes(r) for r, around in owned if not around)
    found = [Size()]
    for instruction, around in everything:
        if not live & set(makes(instruction)) or is_view(instruction):
            continue
        beside = total(size_in_bytes(r) for r, other in owned if around and other == around)
        gradients = {r for r in (*makes(instruction), *reads(instruction)) if r in live and r not in given | outputs}
        found.append(kept + beside + total(size_in_bytes(r) for r in sorted(gradients, key=lambda r: r.name)))
    return maximal(found)
