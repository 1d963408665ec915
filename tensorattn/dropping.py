"""Program → program with dropout on its weights: each normalised weight is kept with probability 1 − rate.

Source: Srivastava et al. 2014, "Dropout", §10; on attention weights: Vaswani et al. 2017, §5.4. What is kept is divided
by 1 − rate, so that the mean stays as it is. How we differ: what is kept is a function of a seed and the weight's own
positions (`uniform`), so that tiles, recomputed tiles and every plan drop the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import count

from tensorattn.errors import BindingError, suggest
from tensorattn.ir import BATCH, BOOLEAN, Add, Expr, Map, Normalise, Number, Position, Product, Tensor, Top, rebuild
from tensorattn.ordering import reading_order
from tensorattn.program import Program
from tensorattn.reading import as_program
from tensorattn.scope import product

WEIGHTS = ("softmax", "sparsemax", "entmax", "l1norm")  # l2norm makes a vector of length 1, no weights


def dropout(
    program: str | Program, of: str | Iterable[str] | None = None, *, seed: str = "seed", rate: str = "rate"
) -> Program:
    """The program with every weight multiplied by `where(uniform(seed, n, …) >= rate, 1 / (1 - rate), 0)`.

    >>> print(dropout("y^mu_n = W^<mu bar(nu)> v^nu_n"))
    y^mu_n = W^<mu bar(nu)> where(uniform(seed, 0, mu, nu) >= rate, 1 / (1 - rate), 0) v^nu_n

    `of`: the statements in which weights are dropped (default all). `seed`, `rate`: the names of two new scalar inputs,
    an integer and a number from 0 to 1; with rate 0 nothing changes. The `…` are the positions of all axes of the
    weight, batch axes too; `n` counts the weights, so that no two share their numbers. Weights in a predicate stay.

    Raises: BindingError `E-UNDEF` (no such statement, or no weights are made in it), `E-NAME` (a name is taken).
    """
    program = as_program(program)
    chosen = _chosen(program, of)
    for name in (seed, rate):
        _check_new(program, name, "seed" if name == seed else "rate")
    if seed == rate:
        raise BindingError("E-NAME", f"seed and rate are both called `{seed}`", hint="give them two names")
    dropping, statements = _Dropping(Tensor(seed), Tensor(rate)), []
    for statement in program.statements:
        if statement.name in chosen:
            statement = replace(statement, body=dropping.of(statement.body))
        statements.append(statement)
    made = Program(tuple(statements))
    return as_program(str(made))


def weighing(program: Program) -> tuple[str, ...]:
    """The statements in which weights are made that dropout drops."""
    return tuple(s.name for s in program.statements if _Dropping(Number(0), Number(0)).of(s.body) != s.body)


def _chosen(program: Program, of: str | Iterable[str] | None) -> frozenset[str]:
    own = weighing(program)
    names = own if of is None else (of,) if isinstance(of, str) else tuple(of)
    facts = [f"statements in which weights are made: {', '.join(own) or 'none'}"]
    if not names:
        raise BindingError("E-UNDEF", "no weights are made in this program", hint="dropout needs a bar or a normaliser")
    for name in names:
        program.statement(name)
        if name not in own:
            hint = suggest(name, own) or (f"of={own[0]!r}" if own else "dropout needs a bar or a normaliser")
            raise BindingError("E-UNDEF", f"no weights are made in `{name}`", facts=facts, hint=hint)
    return frozenset(names)


def _check_new(program: Program, name: str, what: str) -> None:
    from tensorattn.scanning import RESERVED

    taken = {*program.defined, *program.inputs, *program.indices}
    if name in taken or name in RESERVED or not (name.isascii() and name.isalnum() and name[:1].isalpha()):
        why = "is in the program already" if name in taken else "cannot be the name of an input"
        raise BindingError("E-NAME", f"`{name}` {why}", hint=f'choose another: dropout(…, {what}="{what}1")')


class _Dropping:
    """Multiplies weights by what is kept of them; counts the weights."""

    def __init__(self, seed: Expr, rate: Expr) -> None:
        self.seed, self.rate, self.numbers = seed, rate, count()

    def of(self, node: Expr) -> Expr:
        """The expression with every weight in it dropped, those in conditions excepted."""
        match node:
            case Top() | Tensor():
                return node
            case Map(function=function) if function in BOOLEAN:
                return node
            case Normalise(kind=kind, score=score):
                node = replace(node, score=self.of(score))
                return Product((node, self._kept(node))) if kind in WEIGHTS else node
            case Map(function="where", arguments=(condition, *rest)):
                return replace(node, arguments=(condition, *map(self.of, rest)))
            case Product(factors=factors, summed=summed):
                return product([self.of(f) for f in factors], summed)
            case Add():
                return rebuild(node, self.of)
        where = getattr(node, "where", None)
        return rebuild(node, lambda child: child if child is where else self.of(child))

    def _kept(self, weights: Normalise) -> Expr:
        order = reading_order(weights)
        axes = [i for i in order if i in weights.free and i not in weights.indices] + list(weights.indices)
        axes.sort(key=lambda index: index.name != BATCH)
        keys = (self.seed, Number(next(self.numbers)), *map(Position, axes))
        kept = Map("greater_equal", (Map("uniform", keys), self.rate))
        scale = Map("reciprocal", (Add((Number(1), Map("negate", (self.rate,)))),))
        return Map("where", (kept, Product((Number(1), scale)), Number(0)))
