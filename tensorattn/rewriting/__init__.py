"""Checked program → program of the same meaning that is cheaper or safer to compute: one rule per file.

A rule is a pure function of one node whose children are already rewritten; it returns the node itself where it does
not apply.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from tensorattn.ir import Expr, rebuild
from tensorattn.predicates import bringing
from tensorattn.program import Program
from tensorattn.rewriting.bonds import merge_bonds
from tensorattn.rewriting.concatenations import split_concatenations
from tensorattn.rewriting.deltas import eliminate_deltas
from tensorattn.rewriting.kernels import reassociate_l1norm
from tensorattn.rewriting.logarithms import recognise_log
from tensorattn.rewriting.marginalising import marginalise, nest_lse
from tensorattn.rewriting.ratios import recognise_l1norm, recognise_ratio
from tensorattn.rewriting.scatters import sum_apart
from tensorattn.rewriting.shifting import drop_shifts
from tensorattn.rewriting.splitting import split
from tensorattn.rewriting.sums import merge_sums
from tensorattn.rewriting.terms import weighs


@dataclass(frozen=True, slots=True)
class Rule:
    """A rewrite of one node or of a program, and why it is worth having."""

    name: str
    apply: Callable[..., Any]
    reason: str
    masked: bool = False  # whether `apply` also takes the definitions that bring a predicate or weights


WEIGHTS = (
    Rule("merge sums", merge_sums, "one product is one choice of contraction order; nested ones hide orders"),
    Rule("exp ratio", recognise_ratio, "exp(s) / Σ exp(s) overflows where the softmax does not"),
    Rule("l1norm of exp", recognise_l1norm, "the same, written as a normaliser"),
)
CANONICAL = (
    WEIGHTS[0],
    Rule("eliminate deltas", eliminate_deltas, "a Kronecker delta renames an index and is never built"),
    *WEIGHTS[1:],
    Rule("log of a sum", recognise_log, "the logarithm of a sum of exponentials underflows where log-sum-exp does not"),
)
LINEAR = (
    Rule("cat then dot", split_concatenations, "a sum of scores, each over its own indices", masked=True),
    Rule("linear attention", reassociate_l1norm, "a ratio of two products needs no array over all pairs"),
)
SCORES = (
    Rule("drop shifts", drop_shifts, "a softmax does not change where a whole row of scores is shifted"),
    Rule(
        "marginalise", marginalise, "a barred index that no value holds is summed in the score, where few terms hold it"
    ),
    Rule("nest lse", nest_lse, "a log-sum-exp takes each index where few terms hold it, and not all together"),
    Rule("split", split, "terms without a common barred index are independent: their softmax is a product of two"),
)
# What the rules above look at are terms and factors; these put together what is computed together, when they are done.
SCATTER = Rule("scatter", sum_apart, "every entry is added at the place that data give: no one-hot matrix is formed")
LAST = (
    Rule("bond merge", merge_bonds, "terms that share factors are one contraction", masked=True),
    SCATTER,
)
RULES = CANONICAL + LINEAR + SCORES + LAST


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A program that rules have changed, and which of them changed which statement."""

    program: Program
    applied: tuple[tuple[str, Rule], ...]


def rewrite(program: Program, rules: tuple[Rule, ...] = RULES) -> Rewritten:
    """The program with every rule applied, in order, to every node, children first."""
    statements = program.statements
    masked = bringing(program) | {s.name for s in statements if weighs(s.body)}
    applied: list[tuple[str, Rule]] = []
    for rule in rules:
        apply = partial(rule.apply, masked=masked) if rule.masked else rule.apply
        changed = tuple(replace(s, body=_everywhere(apply, s.body)) for s in statements)
        applied += [(new.name, rule) for old, new in zip(statements, changed, strict=True) if old.body != new.body]
        statements = changed
    return Rewritten(replace(program, statements=statements), tuple(applied))


def _everywhere(apply: Callable[[Expr], Expr], node: Expr) -> Expr:
    return apply(rebuild(node, lambda child: _everywhere(apply, child)))
