"""Softmaxes written out, over one or several statements, as weights before they are differentiated.

The derivative of exp(s) / Σ exp(s) as a quotient overflows where that of the weights does not.
"""

from __future__ import annotations

from dataclasses import replace

from tensorattn.planning import written_out
from tensorattn.program import Program
from tensorattn.rewriting import WEIGHTS, rewrite
from tensorattn.rewriting.fusing import fuse


def with_weights(program: Program, outputs: tuple[str, ...]) -> Program:
    """The program with weights in every statement that writes some out; every statement keeps its name and place."""
    found = rewrite(fuse(program, outputs, written_out(program, outputs)), WEIGHTS)
    changed = {name for name, rule in found.applied if rule is not WEIGHTS[0]}
    bodies = {s.name: s.body for s in found.program.statements if s.name in changed}
    return replace(program, statements=tuple(replace(s, body=bodies.get(s.name, s.body)) for s in program.statements))
