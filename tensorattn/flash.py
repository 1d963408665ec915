"""What torch's fused attention kernel takes and holds: operands of one width, a mask of floats, blocks of scores."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from math import inf, prod

from tensorattn.adjoining.emitting import Emitter
from tensorattn.ir import Index
from tensorattn.kernel import Attend, Fill, Instruction, Stream
from tensorattn.lowering.views import entries
from tensorattn.parts import Literal, Register
from tensorattn.records import Flash, Widened
from tensorattn.sizes import Size

LOWEST = Literal(-inf)
# of the backward pass of the attention kernel: with so many rows or more, how many it takes at once; and keys at most
BLOCKS = ((768, 256), (192, 64), (0, 32))
KEYS_AT_ONCE = 512
LONG = 1 << 10  # a size that is not known


def attended(instruction: Attend) -> tuple[Index, ...]:
    """The indices of the scores of an attention."""
    return (*instruction.batch, *instruction.rows, *instruction.group)


def scored(attend: Attend) -> Size:
    """The scores that an attention computes; a causal one, about half of them: every row up to its own position."""
    whole = entries(attended(attend))
    return (whole + entries((*attend.batch, *attend.rows))) * Fraction(1, 2) if attend.causal else whole


def fused(e: Emitter, made: Attend, sizes: Mapping[str, int] | None) -> None:
    """The attention with its mask as one array of floats, and its operands in one width. Without sizes, all are long
    and of one width."""
    mask = made.bias
    if made.where is not None:
        mask = e.select(made.where, mask or Literal(0.0), LOWEST, made.out.dtype)
    query, key, value, width = made.query, made.key, made.value, made.values
    bond, values, rows, keys = (
        prod(LONG if sizes is None else sizes[i.name] for i in axes[: None if sizes else 1])
        for axes in (made.bond, made.values, made.rows, made.group)
    )
    if bond < values:
        query, key = (_widened(e, x, made.bond, made.values) for x in (query, key))
    elif values < bond:
        value, width = _widened(e, value, made.values, made.bond), made.bond
    block = next(block for least, block in BLOCKS if rows >= least)
    scores, held = (*made.batch, *made.rows, *made.group), 2 * block * min(keys, KEYS_AT_ONCE)
    given = tuple(x for x in (made.bias, made.where) if x is not None)
    several = tuple(i for i in made.batch if sizes is None or sizes[i.name] != 1)
    flash = Flash(made.out, query, key, value, mask, made.batch, scores, scored(made), width, held, several, given)
    e.body.append(flash)  # type: ignore[arg-type]


def _widened(e: Emitter, x: Register, width: tuple[Index, ...], to: tuple[Index, ...]) -> Register:
    rest = (i for i in x.axes if i not in width)
    return e.emit(Widened(e.register((*rest, *to), x.dtype), x))  # type: ignore[arg-type]


def flashed(body: Iterable[Instruction], sizes: Mapping[str, int] | None) -> Iterator[Instruction]:
    """A body without branches, with the fused kernel and what it is given in the place of each attention."""
    for number, made in enumerate(body):
        match made:
            case Stream(body=inner):
                yield replace(made, body=tuple(flashed(inner, sizes)))
            case Attend(out=out):
                e = Emitter(f"f{number}{out.name} ")
                fused(e, made, sizes)
                yield from e.body
                yield from (Fill(part, 0) for part in (made.greatest, made.total) if part is not None)
            case _:
                yield made
