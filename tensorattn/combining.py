"""Programs as values: renaming, binding an input to another program, one after the other; all free of capture."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from tensorattn.errors import BindingError, NotationError, ShapeError, suggest
from tensorattn.ir import Expr, Extent, Index, Statement, Tensor, rebuild, substitute
from tensorattn.program import Program
from tensorattn.resolving import resolve
from tensorattn.scanning import RESERVED, WORD
from tensorattn.source import Source


def rename(program: Program, names: Mapping[str, str]) -> Program:
    """The program with index and tensor names replaced, simultaneously."""
    indices, tensors = set(program.indices), {*program.inputs, *program.defined}
    for old, new in names.items():
        if old in indices and old in tensors:
            raise BindingError(
                "E-NAME",
                f"`{old}` names both an index and a tensor",
                hint="rename by building the text, or rename one of them there first",
            )
        if old not in indices and old not in tensors:
            raise BindingError(
                "E-NAME", f"the program has no name `{old}`", hint=suggest(old, sorted(indices | tensors))
            )
        if not re.fullmatch(WORD, new) or new in RESERVED:
            raise BindingError(
                "E-NAME", f"`{new}` is not a name", hint="a name is letters, digits and primes, and no reserved word"
            )
        kind = indices if old in indices else tensors
        if (new in kind and new not in names) or list(names.values()).count(new) > 1:
            raise BindingError(
                "E-NAME", f"renaming `{old}` to `{new}` would merge two names", hint="rename the other one too"
            )
    made = _renamed(
        program, {o: n for o, n in names.items() if o in indices}, {o: n for o, n in names.items() if o in tensors}
    )
    _check_meaning(made, names)
    return made


def _check_meaning(made: Program, names: Mapping[str, str]) -> None:
    """A new name may be read as something else: a constant, or an index where it was a scalar."""
    shown = ", ".join(f"`{old}` to `{new}`" for old, new in names.items())
    try:
        fact = "" if resolve(Source(str(made))) == made else "the printed program reads as another one"
    except NotationError as error:
        fact = error.what
    if fact:
        what = f"renaming {shown} would change what the formula says"
        raise BindingError("E-NAME", what, facts=[fact], hint="choose a name that the program does not use yet")


def _renamed(program: Program, indices: Mapping[str, str], tensors: Mapping[str, str]) -> Program:
    """Both kinds of names replaced, without a check."""

    def index(i: Index) -> Index:
        return Index(indices.get(i.name, i.name), i.number)

    def names(node: Expr) -> Expr:
        node = rebuild(node, names)
        if isinstance(node, Tensor):
            return replace(node, name=tensors.get(node.name, node.name), span=None, slot_spans=())
        if isinstance(node, Extent):
            return replace(node, name=indices.get(node.name, node.name))
        return node

    made = []
    for s in program.statements:
        axes = tuple(tuple(map(index, axis)) for axis in s.axes)
        body = names(substitute(s.body, index))
        made.append(Statement(tensors.get(s.name, s.name), axes, body, s.upper))
    return Program(tuple(made))


def bind(program: Program, programs: Mapping[str, Program]) -> Program:
    """Each named input is computed by the last statement of its program."""
    for name in programs:
        if name not in program.inputs:
            raise BindingError(
                "E-UNDEF",
                f"the program has no input `{name}`",
                facts=[f"its inputs: {', '.join(program.inputs)}"],
                hint=suggest(name, program.inputs),
            )
    apart = {n: n for n in programs}
    for name in programs:  # an input that another of the programs has too stays an input there
        if any(name in other.inputs for key, other in programs.items() if key != name):
            apart[name] = fresh(name, {*program.inputs, *program.defined})
            program = _renamed(program, {}, {name: apart[name]})
    for name, inner in programs.items():
        program = _connect(inner, program, {apart[name]: inner.statements[-1].name})
    return program


def then(first: Program, second: Program) -> Program:
    """`second` after `first`: results of the first feed the inputs of the same name."""
    wires = {name: name for name in second.inputs if name in first.defined}
    if not wires:
        facts = [f"results: {', '.join(first.defined)}", f"inputs: {', '.join(second.inputs)}"]
        raise BindingError(
            "E-INPUT",
            "no result of the first program has the name of an input of the second",
            facts=facts,
            hint="rename one, or use second.bind(input=first)",
        )
    return _connect(first, second, wires)


def _connect(first: Program, second: Program, wires: Mapping[str, str]) -> Program:
    """The statements of both; the inputs `wires` of the second read statements of the first."""
    for name, result in wires.items():
        _check_rank(second, name, first.statement(result))
    apart = _indices_apart(first, second, wires)
    beside = _indices_beside(second, first)
    taken = {*second.inputs, *second.defined, *first.inputs} - set(wires)
    tensors, read = {}, {}
    for name in second.defined:  # a result of the second never feeds an input of the first
        if name in first.inputs:
            read[name] = fresh(name, {*taken, *first.defined})
            taken.add(read[name])
    for statement in first.statements:
        wired = next((name for name, result in wires.items() if result == statement.name), None)
        wanted = wired if wired is not None and wired not in first.inputs else statement.name
        new = fresh(wanted, taken) if wanted in taken else wanted
        taken.add(new)
        tensors[statement.name] = new
        if wired is not None:
            read[wired] = new
    before = _renamed(first, apart, tensors)
    return Program((*before.statements, *_renamed(second, beside, read).statements))


def fresh(name: str, taken: Iterable[str]) -> str:
    """The name with the first number that makes it new."""
    used = set(taken)
    stem = name.rstrip("'").rstrip("0123456789") or name
    return next(f"{stem}{n}" for n in range(1, len(used) + 2) if f"{stem}{n}" not in used)


def _check_rank(second: Program, name: str, result: Statement) -> None:
    use = next(t for t in second.tensors if t.name == name)
    if len(use.slots) != len(result.axes):
        what = f"`{name}` takes {len(use.slots)} indices, but the result `{result.name}` has {len(result.axes)}"
        raise ShapeError("E-RANK", what, hint="bind a program whose result has the axes of the input")


def _indices_apart(first: Program, second: Program, wires: Mapping[str, str]) -> dict[str, str]:
    """New names for the indices of the first that the second uses for something else."""
    tied: set[str] = set()
    for tensor in second.tensors:
        if tensor.name in wires:
            axes = first.statement(wires[tensor.name]).axes
            tied |= {
                s.name
                for s, a in zip(tensor.slots, axes, strict=True)
                if isinstance(s, Index) and len(a) == 1 and a[0].name == s.name
            }
        for other in first.tensors:
            if other.name == tensor.name and other.name in first.inputs and len(other.slots) == len(tensor.slots):
                tied |= {
                    s.name
                    for s, o in zip(tensor.slots, other.slots, strict=True)
                    if isinstance(s, Index) and isinstance(o, Index) and o.name == s.name
                }
    used = {*first.indices, *second.indices, *first.inputs, *second.inputs}
    apart: dict[str, str] = {}
    for name in first.indices:
        if (name in second.indices and name not in tied) or name in {t.name for t in second.tensors}:
            apart[name] = fresh(name, used)
            used.add(apart[name])
    return apart


def _indices_beside(program: Program, other: Program) -> dict[str, str]:
    """New names for the indices that bear the name of a tensor of the other program: bare, they would be one name."""
    named = {t.name for t in other.tensors}
    used = {*program.indices, *other.indices, *named, *program.inputs}
    beside: dict[str, str] = {}
    for name in program.indices:
        if name in named:
            beside[name] = fresh(name, used)
            used.add(beside[name])
    return beside
