"""`equivalent`: whether two programs are the same function, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tensorattn.comparing.forms import normal_form
from tensorattn.comparing.sizing import classes, domain, label
from tensorattn.comparing.terms import TooLargeError
from tensorattn.comparing.verdict import Counterexample, Verdict
from tensorattn.errors import BindingError, suggest
from tensorattn.expanding import expand
from tensorattn.ir import BATCH, Index, Statement
from tensorattn.planning import prune
from tensorattn.program import Program
from tensorattn.reading import as_program

if TYPE_CHECKING:
    import numpy as np

    from tensorattn.comparing.trials import Pair

__all__ = ["Counterexample", "Verdict", "equivalent"]


def equivalent(
    first: str | Program,
    second: str | Program,
    *,
    outputs: Sequence[str] | None = None,
    sizes: Mapping[str, int] | None = None,
    rng: np.random.Generator | None = None,
) -> Verdict:
    """Whether two programs are the same function of their inputs, with the reason.

    >>> print(equivalent("y_i = A_<i j> (x_j + z_j)", "y_i = A_<i k> x_k + A_<i l> z_l"))
    equal: both have the same normal form
    >>> print(equivalent("m = sum[i](x_i)", "m = mean[i](x_i)"))
    different: the values differ
      sizes   |i| = 2
      x       = [1, 0]
      m: 1.0 and 0.5

    `outputs`: names that both define, default the last statement of each. `sizes`: of indices that no input fixes, in
    either program. `rng`: draws the inputs (default: a fixed seed). Equal normal forms are a proof for real numbers;
    else the programs are evaluated at random, exactly in finite fields where that is possible, and a difference comes
    with a small counterexample. NaN, infinities and rounding are no differences.

    Raises: NotationError; BindingError `E-UNDEF` for an output that a program lacks.
    """
    programs = as_program(first), as_program(second)
    verdicts = []
    for name in outputs if outputs is not None else (None,):
        names = [_output(p, name) for p in programs]
        verdict = _compare(programs, names[0], names[1], sizes or {}, rng)
        if not verdict:
            return (
                verdict
                if name is None
                else Verdict(False, f"output `{name}`: {verdict.reason}", verdict.counterexample)
            )
        verdicts.append(verdict)
    return Verdict(True, "; ".join(dict.fromkeys(v.reason for v in verdicts)) or "no output is asked for")


def _output(program: Program, name: str | None) -> str:
    if name is None:
        return program.statements[-1].name
    if name not in program.defined:
        facts = ["its statements: " + ", ".join(program.defined)]
        raise BindingError(
            "E-UNDEF", f"no statement is called `{name}`", facts=facts, hint=suggest(name, program.defined)
        )
    return name


def _compare(
    programs: tuple[Program, Program],
    output: str,
    other: str,
    sizes: Mapping[str, int],
    rng: np.random.Generator | None,
) -> Verdict:
    first, second = prune(programs[0], (output,)), prune(programs[1], (other,))
    statements = first.statement(output), second.statement(other)
    reason = _interfaces(first, second) or _output_axes(*statements)
    if reason:
        return Verdict(False, reason)
    batched = any(p.batched or _batched(s) for p, s in zip((first, second), statements, strict=True))
    ranks = (1, 0, 2) if batched else (0,)
    expanded = expand(first, ranks[0]), expand(second, ranks[0])
    reason = _domains(expanded, (output, other), sizes)
    if reason is None and _same_form(expanded, (output, other), sizes):
        return Verdict(True, "both have the same normal form")
    found = _evaluate([_pair((expand(first, r), expand(second, r)), (output, other), sizes) for r in ranks], rng)
    if reason is None:
        return found
    more = "" if found.counterexample is None else "; where these agree, the values differ"
    return Verdict(False, reason + more, found.counterexample)


def _pair(programs: tuple[Program, Program], outputs: tuple[str, str], sizes: Mapping[str, int]) -> Pair:
    from tensorattn.comparing.trials import pair

    return pair(*programs, *outputs, sizes)


def _evaluate(pairs: list[Pair], rng: np.random.Generator | None) -> Verdict:
    from tensorattn.comparing.evaluating import by_evaluation  # imports NumPy, which a normal form does not need

    return by_evaluation(pairs, rng)


def _batched(statement: Statement) -> bool:
    return any(i.name == BATCH for i in statement.indices)


# What must agree before values are compared ------------------------------------------------------------------------


def _interfaces(first: Program, second: Program) -> str | None:
    """Why the inputs are not the same, or None."""
    for program, other, word in ((first, second, "first"), (second, first, "second")):
        lacking = [n for n in program.inputs if n not in other.inputs]
        if lacking:
            return f"only the {word} program reads " + ", ".join(f"`{n}`" for n in lacking)
    ranks = [_ranks(p) for p in (first, second)]
    for name in first.inputs:
        if ranks[0][name] != ranks[1][name]:
            axes = [f"{r[name][0]} axes" + (" and batch axes" if r[name][1] else "") for r in ranks]
            return f"`{name}` has {axes[0]} in the first program and {axes[1]} in the second"
    return None


def _ranks(program: Program) -> dict[str, tuple[int, bool]]:
    found: dict[str, tuple[int, bool]] = {}
    for tensor in program.tensors:
        batch = any(isinstance(s, Index) and s.name == BATCH for s in tensor.slots)
        found[tensor.name] = len(tensor.slots) - batch, batch
    return found


def _output_axes(first: Statement, second: Statement) -> str | None:
    """Why the outputs do not have the same axes, or None."""
    if len(first.axes) != len(second.axes):
        return f"the output has {len(first.axes)} axes in the first program and {len(second.axes)} in the second"
    places = [[n for n, axis in enumerate(s.axes) if axis[0].name == BATCH] for s in (first, second)]
    if places[0] != places[1]:
        return "the batch axes of the output do not stand in the same place"
    return None


def _domains(programs: tuple[Program, Program], outputs: tuple[str, str], sizes: Mapping[str, int]) -> str | None:
    """A pair of axes whose sizes must agree in one program and need not in the other, or None."""
    alone = [domain({0: p}, {0: p.statement(name)}, sizes) for p, name in zip(programs, outputs, strict=True)]
    found = [classes(d) for d in alone]
    axes = [v for v in alone[0].variables if v[0] != "index"]
    for place, a in enumerate(axes):
        for b in axes[place + 1 :]:
            agree = [c.find(a) == c.find(b) for c in found]
            if agree[0] != agree[1]:
                word, other = ("first", "second") if agree[0] else ("second", "first")
                return f"in the {word} program {_axis(a)} and {_axis(b)} have one size, in the {other} they need not"
    return None


def _axis(variable: tuple[object, ...]) -> str:
    return f"axis {variable[1]} of the output" if variable[0] == "output" else f"axis {variable[2]} of `{variable[1]}`"


def _same_form(programs: tuple[Program, Program], outputs: tuple[str, str], sizes: Mapping[str, int]) -> bool:
    statements = {n: p.statement(name) for n, (p, name) in enumerate(zip(programs, outputs, strict=True))}
    tied = domain(dict(enumerate(programs)), statements, sizes)
    found = classes(tied)
    forms = []
    for number, program in enumerate(programs):
        try:
            forms.append(
                normal_form(program, outputs[number], lambda name, n=number: label(("index", n, name), tied, found))
            )
        except TooLargeError:
            return False
    return forms[0] == forms[1]
