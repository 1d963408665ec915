"""`Contract` as source: sums of what only one side has, then a broadcast product or one (batched) matrix product.

The axes of a pairwise contraction fall into groups: *batch* (both operands and the result), *left* and *right* (one
operand and the result), *inner* (both operands, summed), and those of one operand alone, which are summed first.
No letters are handed out, so the number of indices is bounded by the array library only.
"""

from __future__ import annotations

from collections.abc import Sequence

from tensorattn.backends.writing import Text, Writer, atom
from tensorattn.ir import Index
from tensorattn.kernel import Contract
from tensorattn.lowering.layouts import repeating
from tensorattn.parts import Register


def contract(writer: Writer, instruction: Contract) -> None:
    """Write `out = Σ a·b`."""
    out = instruction.out
    a = writer.read(instruction.a, out.dtype)
    b = writer.read(instruction.b, out.dtype)
    a, b = _summed(writer, a, {*b.axes, *out.axes}), _summed(writer, b, {*a.axes, *out.axes})
    if any(index in b.axes and index not in out.axes for index in a.axes):
        writer.assign(out, _matrix_product(writer, a, b, out))
    else:
        writer.assign(out, _broadcast_product(writer, a, b, out))


def _summed(writer: Writer, value: Text, kept: set[Index]) -> Text:
    gone = [index for index in value.axes if index not in kept]
    if not gone:
        return value
    source = writer.words.folds["sum"].format(x=value.source, dims=writer.dims(value.axes, gone), dtype="")
    return Text(source, tuple(index for index in value.axes if index in kept))


def _broadcast_product(writer: Writer, a: Text, b: Text, out: Register) -> Text:
    present = tuple(index for index in out.axes if index in a.axes or index in b.axes)
    factors, place = (writer.aligned(a, present), writer.aligned(b, present)), writer.out(out, present)
    if place is None:
        return Text(" * ".join(factors), present)
    return Text(f"{writer.words.into['multiply']}({', '.join(factors)}, out={place})", present)


def _matrix_product(writer: Writer, a: Text, b: Text, out: Register) -> Text:
    axes = out.axes
    repeated = {repeating(a.axes, b.axes, axes), repeating(b.axes, a.axes, axes)}
    batch = [index for index in axes if (index in a.axes and index in b.axes) or index in repeated]
    left = [index for index in a.axes if index in axes and index not in (*b.axes, *batch)]
    right = [index for index in b.axes if index in axes and index not in (*a.axes, *batch)]
    present = tuple(index for index in axes if index in (*batch, *left, *right))
    if present != (*batch, *left, *right) and present == (*batch, *right, *left):
        a, b, left, right = b, a, right, left
    inner = [index for index in a.axes if index in b.axes and index not in axes]
    in_b = [index for index in b.axes if index in inner]
    if _copies(a, b, batch, (left, right), in_b) < _copies(a, b, batch, (left, right), inner):
        inner = in_b
    rows = [[index] for index in batch] + [side for side in (left, right) if side or batch]
    vector = not batch and not (left and right)  # torch gives memory another shape for these
    place = None if vector else writer.out(out, (*batch, *left, *right), tuple(map(tuple, rows)))
    product = writer.words.batch_matmul if len(batch) == 1 else "{a} @ {b}"
    product = writer.words.integer_matmul if out.dtype == "int64" else product
    if place is not None:
        kind = "batch_matmul" if len(batch) == 1 else "matmul"
        product = f"{writer.words.into[kind]}({{a}}, {{b}}, out={place})"
    source = product.format(
        a=_matrix(writer, a, batch, left, inner, rows=True), b=_matrix(writer, b, batch, right, inner, rows=False)
    )
    return _parted(writer, source, batch, left, right)


def _layouts(batch: Sequence[Index], outer: Sequence[Index], inner: Sequence[Index]) -> tuple[tuple[Index, ...], ...]:
    """The orders of axes that a reshape turns into a matrix without a copy: rows × inner, and inner × rows."""
    return (*batch, *outer, *inner), (*batch, *inner, *outer)


def _copies(
    a: Text, b: Text, batch: Sequence[Index], outer: tuple[Sequence[Index], ...], inner: Sequence[Index]
) -> int:
    """How many operands have to be copied for this order of the summed indices."""
    count = 0
    for value, own in zip((a, b), outer, strict=True):
        held = [index for index in batch if index in value.axes]
        count += value.axes not in _layouts(held, own, inner) and (len(own) > 1 or len(inner) > 1)
    return count


def _matrix(
    writer: Writer, value: Text, batch: Sequence[Index], outer: Sequence[Index], inner: Sequence[Index], *, rows: bool
) -> str:
    """The operand as (batch of) matrices: `rows`: outer × inner, else inner × outer; transposed without a copy."""
    if not outer and not batch:
        return writer.reshaped(value, inner, [inner])
    held = [index for index in batch if index in value.axes]
    source = _own_matrix(writer, value, held, outer, inner, rows=rows)
    if held == batch:
        return source
    sides = (outer, inner) if rows else (inner, outer)
    shape = writer.tuple([writer.product(group) for group in (*([index] for index in batch), *sides)])
    return f"{writer.words.namespace}.broadcast_to({source}, {shape})"


def _own_matrix(
    writer: Writer, value: Text, batch: Sequence[Index], outer: Sequence[Index], inner: Sequence[Index], *, rows: bool
) -> str:
    """The matrices that an operand holds."""
    outer_first, inner_first = _layouts(batch, outer, inner)
    single = [[index] for index in batch]
    several = len(outer) > 1 or len(inner) > 1
    turned = inner_first if rows else outer_first
    if several and value.axes == turned:
        groups = [*single, inner, outer] if rows else [*single, outer, inner]
        return f"{atom(writer.reshaped(value, turned, groups))}.mT"
    straight, groups = (outer_first, [*single, outer, inner]) if rows else (inner_first, [*single, inner, outer])
    return writer.reshaped(value, straight, groups)


def _parted(writer: Writer, source: str, batch: Sequence[Index], left: Sequence[Index], right: Sequence[Index]) -> Text:
    """The product, whose rows and columns stand for several indices each."""
    axes, sides = (*batch, *left, *right), [tuple(side) for side in (left, right) if side]
    if len(sides) == 2 or not batch:
        return writer.unpacked(source, axes, None, (*((index,) for index in batch), *sides))
    return Text(f"{atom(source)}.reshape({writer.shape(axes)})", axes)
