"""Checked program → program of the same meaning that is cheaper or safer to compute: one rule per file.

A rule is a pure function of one node whose children are already rewritten; it returns the node itself where it does
not apply.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tensorattn.ir import Expr, rebuild
from tensorattn.program import Program
from tensorattn.rewriting.deltas import eliminate_deltas
from tensorattn.rewriting.ratios import recognise_l1norm, recognise_ratio
from tensorattn.rewriting.sums import merge_sums


@dataclass(frozen=True, slots=True)
class Rule:
    """A rewrite of one node, and why it is worth having."""

    name: str
    apply: Callable[[Expr], Expr]
    reason: str


RULES = (
    Rule("merge sums", merge_sums, "one product is one choice of contraction order; nested ones hide orders"),
    Rule("eliminate deltas", eliminate_deltas, "a Kronecker delta renames an index and is never built"),
    Rule("exp ratio", recognise_ratio, "exp(s) / Σ exp(s) overflows where the softmax does not"),
    Rule("l1norm of exp", recognise_l1norm, "the same, written as a normaliser"),
)


def rewrite(program: Program) -> Program:
    """The program with every rule of RULES applied, in order, to every node, children first."""
    statements = program.statements
    for rule in RULES:
        statements = tuple(replace(s, body=_everywhere(rule.apply, s.body)) for s in statements)
    return replace(program, statements=statements)


def _everywhere(apply: Callable[[Expr], Expr], node: Expr) -> Expr:
    return apply(rebuild(node, lambda child: _everywhere(apply, child)))
