"""The last touches: the axes of a gradient that nothing else fixes are those of the input, and so is its dtype."""

from __future__ import annotations

from collections.abc import Iterator

from tensorattn.differentiating.expressions import call, where
from tensorattn.expanding import expand
from tensorattn.extents import index_names, size_reads
from tensorattn.ir import Expr, Index, Number, Reduce, Split, Statement, Tensor, substitute
from tensorattn.keys import indices_of
from tensorattn.planning import prune
from tensorattn.program import Program

NEVER = call("greater", Number(0), Number(1))


def like(tensor: Expr, value: Expr) -> Expr:
    """The value with the axes and the dtype of a tensor, whose entries do not matter: `where(0 > 1, x_i, value)`."""
    return where(NEVER, tensor, value)


def open_names(program: Program, output: str) -> set[str]:
    """The indices of which no input that an output needs fixes the size."""
    used = expand(prune(program, (output,)), 0)
    return set(index_names(used)) - {name for name, _ in size_reads(used, {})}


def tied(made: Program, original: Program, name: str, source: str) -> Statement:
    """The gradient `name` of the input `source`, with further readings that fix the sizes it has.

    They are sizes that the original program knows; those that it has to be given stay open here too.
    """
    statement = made.statement(name)
    for body in _tries(statement, original, source, made):
        candidate = Statement(name, statement.axes, body, statement.upper)
        others = tuple(candidate if s.name == name else s for s in made.statements)
        before, after = open_names(made, name), open_names(Program(others), name)
        if after < before:
            statement, made = candidate, Program(others)
    return statement


def _tries(statement: Statement, original: Program, source: str, made: Program) -> Iterator[Expr]:
    """The body with one reading more each time: first of the input itself, then of inputs that have what is open."""
    if not open_names(made, statement.name):
        return
    slots = tuple(axis[0] if len(axis) == 1 else Split(axis) for axis in statement.axes)
    body = like(Tensor(source, slots, statement.upper), statement.body)
    yield body
    for tensor in original.tensors:
        plain = all(isinstance(s, Index | Split) for s in tensor.slots)
        if tensor.name in original.inputs and plain and tensor.slots:
            yield like(_sum(tensor, statement.indices), body)


def _sum(tensor: Tensor, axes: tuple[Index, ...]) -> Expr:
    """A tensor summed over all its indices but those that the axes have."""
    own = {i.name: i for i in axes}
    new = {i: own.get(i.name, Index(i.name, -1)) for i in indices_of(tensor)}
    summed = tuple(dict.fromkeys(i for i in new.values() if i not in axes))
    read = substitute(tensor, lambda i: new[i])
    return Reduce("sum", summed, read) if summed else read
