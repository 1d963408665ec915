"""Kernel → the source of one Python function: one or a few lines an instruction, the same for every back end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tensorattn.backends import attending, branching, looping
from tensorattn.backends.contracting import contract
from tensorattn.backends.elementwise import apply
from tensorattn.backends.freeing import freed
from tensorattn.backends.gathering import gather, scatter
from tensorattn.backends.naming import Names, identifier
from tensorattn.backends.vocabulary import Vocabulary
from tensorattn.backends.writing import INPUT, Groups, Text, Writer, atom, comment_lines
from tensorattn.dtypes import HALVES
from tensorattn.ir import Index
from tensorattn.kernel import (
    Accumulate,
    Apply,
    Arrange,
    Attempt,
    Attend,
    Cast,
    CheckRange,
    Contract,
    Fill,
    Fold,
    Gather,
    IfBounded,
    IfFinite,
    Instruction,
    Iota,
    Join,
    Kernel,
    Largest,
    Load,
    LogSumExp,
    Normalised,
    Output,
    Powers,
    Scatter,
    SegmentSum,
    Slice,
    Stream,
    View,
    Weigh,
)
from tensorattn.parts import Literal, Operand, Register


def function_source(
    kernel: Kernel, name: str, words: Vocabulary, reserved: frozenset[str], *, standalone: bool = False
) -> str:
    """The function `name(inputs in order) -> tuple of outputs`; `reserved` are the names its module uses.

    `standalone`: nobody has looked at the inputs, so that each is brought to its dtype.
    """
    names = Names({*reserved, *looping.LOCALS, identifier(name), "device", "own", "math", words.namespace})
    for register in _registers(kernel.body):
        names.keep("register", register.name)
    arguments = [names.of("input", given) for given in kernel.inputs]
    writer = Writer(words, names, dict(kernel.sizes), standalone=standalone)
    writer.owners.update(dict.fromkeys(arguments, INPUT))
    write_all(writer, kernel.body)
    results = _outputs(writer, kernel.outputs)
    head = writer.size_lines()
    if writer.needs_device and words.device is not None:
        head.append("    device = " + words.device.format(inputs=", ".join(arguments)))
    if writer.needs_owned and words.owned is not None:
        head.append("    own = " + words.owned.format(inputs=", ".join(arguments)))
    decorator = [] if words.decorator is None else [words.decorator]
    lines = [*comment_lines(kernel.comments), *decorator, f"def {identifier(name)}({', '.join(arguments)}):"]
    return freed("\n".join([*lines, *head, *writer.lines, *results]) + "\n", writer.arrays)


def _registers(body: Sequence[Instruction]) -> list[Register]:
    found = []
    for instruction in body:
        match instruction:
            case Stream():
                found += [*(c.state for c in instruction.carry), *(s.out for s in instruction.stacked)]
                found += _registers(instruction.body) + _registers(instruction.merge)
            case Attempt():
                found += [*instruction.outs, *_registers(instruction.fast), *_registers(instruction.fallback)]
            case IfBounded():
                found += _registers((*instruction.fast, *instruction.safe))
            case IfFinite():
                found += [instruction.out, *_registers(instruction.fast), *_registers(instruction.safe)]
            case _:
                found.append(instruction.out)
    return found


def write_all(writer: Writer, body: Sequence[Instruction]) -> None:
    for instruction in body:
        write(writer, instruction)


def write(writer: Writer, instruction: Instruction) -> None:
    """The lines of one instruction."""
    WRITERS[type(instruction)](writer, instruction)


def _view(writer: Writer, made: View) -> None:
    writer.assign(made.out, _split(writer, writer.read(made.source, made.out.dtype), made.splits))


def _iota(writer: Writer, made: Iota) -> None:
    counted = writer.iota(writer.number(made.size))
    writer.assign(made.out, Text(_cast(writer, counted, "int64", made.out.dtype), made.out.axes))


def _fill(writer: Writer, made: Fill) -> None:
    out = made.out
    writer.assign(out, Text(writer.filled(writer.shape(out.axes), made.value, out.dtype), out.axes))


def _arrange(writer: Writer, made: Arrange) -> None:
    out, value = made.out, writer.read(made.source, made.out.dtype)
    if made.packed:
        ordered = writer.arranged(value, out.axes)
        value = Text(writer.words.packed.format(x=atom(ordered.source)), out.axes)
    writer.assign(out, value)


def _recast(writer: Writer, made: Cast) -> None:
    writer.assign(made.out, writer.read(made.source, made.out.dtype))


def _cast(writer: Writer, source: str, have: str, want: str) -> str:
    return source if have == want else writer.words.cast.format(x=atom(source), dtype=writer.words.dtype(want))


# Reading ------------------------------------------------------------------------------------------------------


def _load(writer: Writer, load: Load) -> None:
    known = load.given == load.out.dtype and load.given != "int64" and not writer.standalone  # there are many integers
    known = known and not (load.given == "bool" and not load.splits)  # it may be a Python truth
    if load.given in HALVES:
        writer.halves[load.out.name] = load.given
    template = writer.words.load if load.splits else writer.words.load_scalar
    if known:
        template = writer.words.load_known
    writer.needs_device = writer.needs_device or not (load.splits or known)
    source = template.format(x=writer.names.of("input", load.input), dtype=writer.words.dtype(load.out.dtype))
    dimensions = tuple(Index(f"dimension {n}") for n in range(len(load.splits)))
    writer.assign(load.out, _split(writer, Text(source, dimensions, INPUT), load.splits))


def _split(writer: Writer, value: Text, splits: Sequence[Sequence[Index]]) -> Text:
    """The value with each dimension read as the indices of `splits`, and the diagonal where one stands twice."""
    flat = [index for split in splits for index in split]
    source = value.source
    if any(len(split) != 1 for split in splits):
        source = f"{atom(source)}.reshape({writer.shape(flat)})"
    for index in [index for index, count in Counter(flat).items() for _ in range(count - 1)]:
        first = flat.index(index)
        second = flat.index(index, first + 1)
        source = f"{atom(source)}.diagonal(0, {first}, {second})"
        flat = [other for n, other in enumerate(flat) if n not in (first, second)] + [index]
    return Text(source, tuple(flat), value.owner)


# Reductions and weights ---------------------------------------------------------------------------------------


def _fold(writer: Writer, fold: Fold) -> None:
    source = writer.read(fold.source, fold.out.dtype)
    gone = [index for index in source.axes if index not in fold.out.axes]
    if not gone:
        return writer.assign(fold.out, source)
    x, dims, groups = _over(writer, source, gone)
    text = writer.words.folds[fold.kind].format(x=x, dims=dims, dtype=writer.words.dtype(fold.out.dtype))
    kept = tuple(index for index in source.axes if index in fold.out.axes)
    left = tuple(group for group in groups if group[0] in kept)
    return writer.assign(fold.out, writer.unpacked(text, kept, None, left))


def _jointly(writer: Writer, score: Text, indices: Sequence[Index]) -> Text:
    """A score that lies in memory in the order of its axes, with one dimension for neighbours normalised together."""
    first, count = score.axes.index(indices[0]), len(indices)
    if score.packed is None or score.axes[first : first + count] != tuple(indices):
        return score
    alone = [(index,) for index in score.axes]
    groups = (*alone[:first], tuple(indices), *alone[first + count :])
    return writer.unpacked(writer.reshaped(score, score.axes, groups), score.axes, score.owner, groups)


def _over(writer: Writer, source: Text, chosen: Sequence[Index]) -> tuple[str, str, Groups]:
    """A value, where it has these axes, and the groups of its axes; a packed one where they are whole groups."""
    within = [n for n, group in enumerate(source.groups) if group[0] in chosen]
    if source.packed is not None and {i for n in within for i in source.groups[n]} == set(chosen):
        return source.packed, writer.tuple([str(n) for n in within]), source.groups
    return source.source, writer.dims(source.axes, chosen), tuple((index,) for index in source.axes)


def _operand(writer: Writer, operand: Operand, axes: Sequence[Index], dtype: str) -> str:
    match operand:
        case Literal(value=value):
            return writer.number(value)
        case Register():
            return writer.aligned(writer.read(operand, dtype), axes, whole=True)


def _normalised(writer: Writer, weights: Normalised) -> None:
    score = writer.read(weights.score, weights.out.dtype)
    kind, options = weights.kind, dict(weights.options)
    if kind == "entmax" and isinstance(alpha := options["alpha"], Literal) and alpha.value in (1, 2):
        kind, options = ("softmax" if alpha.value == 1 else "sparsemax"), {}
    if kind == "entmax" and isinstance(options["alpha"], Literal) and options["alpha"].value == 1.5:
        kind, options = "entmax_three_halves", {}
    if weights.where is None and not options:
        source, dims, groups = _over(writer, _jointly(writer, score, weights.indices), weights.indices)
        return writer.assign(weights.out, writer.unpacked(f"{kind}({source}, {dims})", score.axes, None, groups))
    parts = [score.source, writer.dims(score.axes, weights.indices), *_where(writer, weights.where, score.axes)]
    parts += [f"{name}={_operand(writer, value, score.axes, weights.out.dtype)}" for name, value in options.items()]
    return writer.assign(weights.out, Text(f"{kind}({', '.join(parts)})", score.axes))


def _weigh(writer: Writer, weigh: Weigh) -> None:
    score = writer.arranged(writer.read(weigh.score, weigh.out.dtype), weigh.out.axes)
    parts = [score.source, writer.dims(score.axes, weigh.indices), *_where(writer, weigh.where, score.axes)]
    parts += [f"exp={writer.words.exp2}"] if weigh.base == "2" else []
    free = tuple(index for index in score.axes if index not in weigh.indices)
    parts += [] if weigh.floor is None else [f"floor={writer.aligned(writer.read(weigh.floor), free)}"]
    place = writer.out(weigh.out, score.axes)
    parts += [] if place is None else [f"out={place}"]
    made = [writer.join(register) for register in (weigh.out, weigh.greatest, weigh.total)]
    writer.owners.update({name: name for name in made})
    writer.line(f"{', '.join(made)} = weigh({', '.join(parts)})")
    for register in (weigh.greatest, weigh.total):
        if register.axes != free:
            writer.assign(register, Text(writer.name(register), free))


def _powers(writer: Writer, powers: Powers) -> None:
    score = writer.read(powers.score, powers.out.dtype)
    parts = [score.source, writer.dims(score.axes, powers.indices), *_where(writer, powers.where, score.axes)]
    made = [writer.join(register) for register in (powers.out, powers.greatest)]
    writer.owners.update({name: name for name in made})
    writer.line(f"{', '.join(made)} = powers({', '.join(parts)})")


def _where(writer: Writer, where: Register | None, axes: Sequence[Index]) -> list[str]:
    return [] if where is None else [f"where={_operand(writer, where, axes, 'bool')}"]


def _log_sum_exp(writer: Writer, instruction: LogSumExp) -> None:
    out, where = instruction.out, instruction.where
    source = writer.read(instruction.source, out.dtype)
    axes = tuple(dict.fromkeys((*source.axes, *(where.axes if where is not None else ()))))
    gone = [index for index in axes if index not in out.axes]
    if not gone and where is None:
        return writer.assign(out, source)
    parts = [writer.arranged(source, axes).source, writer.dims(axes, gone), *_where(writer, where, axes)]
    kept = tuple(index for index in axes if index in out.axes)
    return writer.assign(out, Text(f"log_sum_exp({', '.join(parts)})", kept))


def _largest(writer: Writer, instruction: Largest) -> None:
    source = writer.read(instruction.source)
    axes = tuple(index for index in instruction.out.axes if index in {*source.axes, *instruction.indices})
    count = _operand(writer, instruction.count, instruction.out.axes, "int64")
    if isinstance(instruction.count, Register) or instruction.where is not None or axes != instruction.out.axes:
        axes = instruction.out.axes
    parts = [writer.arranged(source, axes).source, writer.dims(axes, instruction.indices), count]
    parts += _where(writer, instruction.where, axes)
    writer.assign(instruction.out, Text(f"largest({', '.join(parts)})", axes))


# Positions ----------------------------------------------------------------------------------------------------


def _check_range(writer: Writer, check: CheckRange) -> None:
    positions, where = writer.read(check.positions, check.out.dtype), check.where
    axes = tuple(dict.fromkeys((*positions.axes, *(where.axes if where is not None else ()))))
    gone = [index for index in axes if index not in check.out.axes]
    parts = [writer.aligned(positions, axes, whole=True), writer.number(check.size), repr(check.what)]
    if where is None:
        return writer.assign(check.out, Text(f"check_range({', '.join(parts)})", positions.axes, positions.owner))
    if not gone:
        parts += _where(writer, where, axes)
        return writer.assign(check.out, Text(f"check_range({', '.join(parts)})", axes))
    # A position counts as admitted if any tuple over the axes that the positions lack admits it.
    dims = writer.dims(where.axes, gone)
    admitted = writer.words.folds["any"].format(x=writer.read(where).source, dims=dims, dtype="")
    left = Text(admitted, tuple(index for index in where.axes if index not in gone))
    axes = tuple(index for index in axes if index not in gone)
    parts[0] = writer.aligned(positions, axes, whole=True)
    parts.append(f"where={writer.aligned(left, axes, whole=True)}")
    return writer.assign(check.out, Text(f"check_range({', '.join(parts)})", axes))


def _segment_sum(writer: Writer, instruction: SegmentSum) -> None:
    out, axis = instruction.out, instruction.axis
    source, segments = writer.read(instruction.source, out.dtype), writer.read(instruction.segments, "int64")
    axes = (*source.axes, *(index for index in segments.axes if index not in source.axes))
    parts = [
        writer.arranged(source, axes).source,
        writer.aligned(segments, axes, whole=True),
        str(axes.index(axis)),
        writer.length(instruction.segment),
    ]
    kept = tuple(instruction.segment if index == axis else index for index in axes)
    writer.assign(out, Text(f"segment_sum({', '.join(parts)})", kept))


def _accumulate(writer: Writer, instruction: Accumulate) -> None:
    source, axis = writer.read(instruction.source, instruction.out.dtype), instruction.axis
    parts = [source.source, str(source.axes.index(axis)), writer.length(instruction.along)]
    parts += map(str, instruction.windows)
    parts += ["kind='prod'"] if instruction.kind == "prod" else []
    kept = tuple(instruction.along if index == axis else index for index in source.axes)
    writer.assign(instruction.out, Text(f"accumulate({', '.join(parts)})", kept))


def _join(writer: Writer, join: Join) -> None:
    sources = []
    for source, part in zip(join.sources, join.parts, strict=True):
        axes = tuple(part if index == join.axis else index for index in join.out.axes)
        sources.append(writer.arranged(writer.read(source, join.out.dtype), axes).source)
    dim = join.out.axes.index(join.axis)
    joined = writer.words.concatenate.format(xs=writer.tuple(sources), dim=dim)
    writer.assign(join.out, Text(joined, join.out.axes))


# Results ------------------------------------------------------------------------------------------------------


def _outputs(writer: Writer, outputs: Sequence[Output]) -> list[str]:
    """The lines that give the results: none shares memory with an input or with another result."""
    given: set[str] = {INPUT}
    results = []
    for output in outputs:
        value = writer.read(output.register)
        flat = [index for axis in output.axes for index in axis]
        source = writer.reshaped(writer.arranged(value, flat), flat, output.axes)
        template = writer.words.output if output.register.dtype != output.dtype else "{x}"
        if not output.axes:
            template = writer.words.scalar_output
        if value.owner in given or set(value.axes) != set(flat):
            template = writer.words.copied_output
        given.add(value.owner or INPUT)
        text = source if template == "{x}" else atom(source)
        results.append(template.format(x=text, dtype=writer.words.dtype(output.dtype)))
    return [f"    return {writer.tuple(results)}"]


WRITERS: dict[type, Callable[[Writer, Any], None]] = {
    Load: _load, View: _view, Contract: contract, Apply: apply, Fold: _fold, Iota: _iota, Fill: _fill, Gather: gather,
    Scatter: scatter, CheckRange: _check_range, SegmentSum: _segment_sum, Accumulate: _accumulate, Join: _join,
    Normalised: _normalised, Weigh: _weigh, Powers: _powers, LogSumExp: _log_sum_exp, Largest: _largest,
    Arrange: _arrange, Cast: _recast, Attend: attending.attend, Slice: looping.write_slice,
    Stream: partial(looping.write_stream, write_all=write_all),
    IfFinite: partial(branching.write_if_finite, write_all=write_all),
    Attempt: partial(branching.write_attempt, write_all=write_all),
    IfBounded: partial(branching.write_if_bounded, write_all=write_all),
}  # fmt: skip
