"""`Contract` as source: sums of what only one side has, then a broadcast product or one (batched) matrix product.

The axes of a pairwise contraction fall into groups: *batch* (both operands and the result), *left* and *right* (one
operand and the result), *inner* (both operands, summed), and those of one operand alone, which are summed first.
No letters are handed out, so the number of indices is bounded by the array library only.
"""

from __future__ import annotations

from dataclasses import replace

from tensorattn.backends.writing import Groups, Text, Writer, atom
from tensorattn.ir import Index
from tensorattn.kernel import Contract
from tensorattn.lowering.products import Axes, orders, product_of
from tensorattn.parts import Register


def contract(writer: Writer, instruction: Contract) -> None:
    """Write `out = Σ a·b`, with what is added to it."""
    out = instruction.out
    a = writer.read(instruction.a, out.dtype)
    b = writer.read(instruction.b, out.dtype)
    a, b = _summed(writer, a, {*b.axes, *out.axes}), _summed(writer, b, {*a.axes, *out.axes})
    if any(index in b.axes and index not in out.axes for index in a.axes):
        writer.assign(out, _matrix_product(writer, a, b, instruction))
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


def _matrix_product(writer: Writer, a: Text, b: Text, instruction: Contract) -> Text:
    out = instruction.out
    how = product_of(replace(instruction, a=replace(instruction.a, axes=a.axes), b=replace(instruction.b, axes=b.axes)))
    if how.turned:
        a, b = b, a
    batch, left, right, inner = how.batch, how.left, how.right, how.inner
    rows = [(index,) for index in batch] + [side for side in (left, right) if side or batch]
    vector = not batch and not (left and right)  # torch gives memory another shape for these
    place = None if vector else writer.out(out, how.axes, tuple(rows))
    operands = dict(
        a=_matrix(writer, a, (*how.apart, *batch), left, inner, rows=True),
        b=_matrix(writer, b, (*how.apart, *batch), right, inner, rows=False),
    )
    if instruction.added is not None:
        c = _beside(writer, writer.read(instruction.added.register, out.dtype), tuple(rows))
        words = "add_products({a}, {b}, {c}, {place})" if how.apart else "add_product({a}, {b}, {c}, {signs}, {place})"
        source = words.format(**operands, c=c, signs=instruction.added.signs, place=place)
        return _parted(writer, source, batch, left, right)
    words = writer.words.batch_matmul if len(batch) == 1 else "{a} @ {b}"
    words = writer.words.integer_matmul if out.dtype == "int64" else words
    if place is not None:
        kind = "batch_matmul" if len(batch) == 1 else "matmul"
        words = f"{writer.words.into[kind]}({{a}}, {{b}}, out={place})"
    return _parted(writer, words.format(**operands), batch, left, right)


def _beside(writer: Writer, value: Text, groups: Groups) -> str:
    """What is added to a product: a dimension for each group of axes, of size 1 where it has none of them."""
    held = [group if {*group} & {*value.axes} else () for group in groups]
    value = writer.arranged(value, [index for group in held for index in group])
    if all(len(group) == 1 for group in groups):
        return writer.aligned(value, [index for (index,) in groups])
    return f"{atom(value.source)}.reshape({writer.tuple([writer.product(group) for group in held])})"


def _matrix(writer: Writer, value: Text, batch: Axes, outer: Axes, inner: Axes, *, rows: bool) -> str:
    """The operand as (batch of) matrices: `rows`: outer × inner, else inner × outer; transposed without a copy."""
    if not outer and not batch:
        return writer.reshaped(value, inner, [inner])
    held = tuple(index for index in batch if index in value.axes)
    source = _own_matrix(writer, value, held, outer, inner, rows=rows)
    if held == batch:
        return source
    sides = [writer.product(group) for group in ((outer, inner) if rows else (inner, outer))]
    if held != batch[len(batch) - len(held) :]:
        places = [writer.length(index) if index in held else "1" for index in batch]
        source = f"{atom(source)}.reshape({writer.tuple([*places, *sides])})"
    shape = writer.tuple([*map(writer.length, batch), *sides])
    return f"{writer.words.namespace}.broadcast_to({source}, {shape})"


def _own_matrix(writer: Writer, value: Text, batch: Axes, outer: Axes, inner: Axes, *, rows: bool) -> str:
    """The matrices that an operand holds."""
    outer_first, inner_first = orders(batch, outer, inner)
    single = [[index] for index in batch]
    several = len(outer) > 1 or len(inner) > 1
    turned = inner_first if rows else outer_first
    if several and value.axes == turned:
        groups = [*single, inner, outer] if rows else [*single, outer, inner]
        return f"{atom(writer.reshaped(value, turned, groups))}.mT"
    straight, groups = (outer_first, [*single, outer, inner]) if rows else (inner_first, [*single, inner, outer])
    return writer.reshaped(value, straight, groups)


def _parted(writer: Writer, source: str, batch: Axes, left: Axes, right: Axes) -> Text:
    """The product, whose rows and columns stand for several indices each."""
    axes, sides = (*batch, *left, *right), [tuple(side) for side in (left, right) if side]
    if len(sides) == 2 or not batch:
        return writer.unpacked(source, axes, None, (*((index,) for index in batch), *sides))
    return Text(f"{atom(source)}.reshape({writer.shape(axes)})", axes)
