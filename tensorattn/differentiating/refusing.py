"""What cannot be differentiated, said before any work is done."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from tensorattn.dtypes import predicates
from tensorattn.errors import BindingError, DTypeError, suggest
from tensorattn.ir import Tensor, children, walk
from tensorattn.program import Program


def check_outputs(program: Program, output: str | Sequence[str] | None) -> tuple[str, ...]:
    """The statements to differentiate. Raises: BindingError `E-UNDEF`."""
    names = _names("output", output) if output is not None else (program.defined[-1],)
    for name in names:
        program.statement(name)
    return names


def check_inputs(program: Program, wrt: str | Sequence[str]) -> tuple[str, ...]:
    """The inputs to differentiate by. Raises: BindingError `E-UNDEF`; DTypeError `E-DTYPE`."""
    names = _names("wrt", wrt)
    for name in names:
        if name not in program.inputs:
            _refuse(program, name)
    for statement in program.statements:
        for node in walk(statement.body):
            for part in predicates(node):
                if isinstance(part, Tensor) and part.name in names:
                    _discrete(program, part, "is a predicate here, a truth without a derivative")
            if isinstance(node, Tensor):
                for atom in children(node):
                    if isinstance(atom, Tensor) and atom.name in names:
                        _discrete(program, atom, f"is a position in `{node.name}`, an integer without a derivative")
    return names


def _names(what: str, given: object) -> tuple[str, ...]:
    names = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, Sequence) else ()
    if not names or not all(isinstance(name, str) for name in names):
        raise BindingError("E-UNDEF", f"{what}={given!r} names nothing", hint=f'{what}="q", or {what}=["q", "k"]')
    twice = next((n for n in names if names.count(n) > 1), None)
    if twice is not None:
        raise BindingError("E-UNDEF", f"{what}= names `{twice}` twice", hint="name it once")
    return names


def _refuse(program: Program, name: str) -> NoReturn:
    facts = [f"its inputs: {', '.join(program.inputs) or 'none'}"]
    hint = suggest(name, program.inputs) or "differentiate by an input"
    if name in program.defined:
        hint = f"`{name}` is a statement: give the ones after it as a program of their own, of which it is an input"
    raise BindingError("E-UNDEF", f"the program has no input `{name}`", facts=facts, hint=hint)


def _discrete(program: Program, tensor: Tensor, why: str) -> NoReturn:
    spans = () if tensor.span is None else (tensor.span,)
    raise DTypeError(
        "E-DTYPE",
        f"`{tensor.name}` {why}",
        source=program.source if spans else None,
        spans=spans,
        facts=["only real numbers have gradients"],
        hint=f"leave `{tensor.name}` out of wrt=",
    )
