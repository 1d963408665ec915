"""The posterior of a barred index given an output, as a program (docs/posterior.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tensorattn.differentiating import grad
from tensorattn.differentiating.contexts import simple
from tensorattn.differentiating.expressions import call
from tensorattn.differentiating.refusing import check_outputs
from tensorattn.differentiating.statements import Book, batch_first, read
from tensorattn.errors import BindingError
from tensorattn.inferring.bars import Bar, find
from tensorattn.inferring.lifting import Axis, Lifting
from tensorattn.inferring.logs import is_logarithm
from tensorattn.inferring.tying import ties
from tensorattn.ir import (
    Expr,
    Index,
    Map,
    Normalise,
    Slot,
    Split,
    Statement,
    Tensor,
    rebuild,
    walk,
)
from tensorattn.keys import indices_of
from tensorattn.planning import prune
from tensorattn.program import Program
from tensorattn.reading import as_program
from tensorattn.resolving import resolve
from tensorattn.rewriting.logarithms import Part, is_plain, log_weights, logarithm, recognise_log
from tensorattn.rewriting.scores import total
from tensorattn.source import Source


def posterior(program: str | Program, index: str | Sequence[str], output: str | None = None) -> Program:
    """The posterior of a barred index given an output: weight · ∂ log output / ∂ weight, as a program.

    Its last statement is `posterior`, with the axes of the weights and then those of the output that they lack.
    `index`: the barred index, a group `nu rho`, or `y.nu` for the bar in the statement y; `output`: default the last
    statement. Of an output that the weights reach through logarithms alone (`log`, `lse`, sums of such) the posterior
    is that of what it is the logarithm of, computed in logarithms where its form allows it.

    >>> print(posterior("p_<n t> = g_<n bar(i)> E_<n i t>", "i"))
    pWeights_<n i> = g_<n bar(i)>
    p_<n t> = pWeights_<n i> E_<n i t>
    dpWeights_<n i t> = E_<n i t>
    posterior_<n i t> = pWeights_<n i> dpWeights_<n i t> / p_<n t>

    Raises: BindingError `E-UNDEF` (no such bar or statement), `E-INDEX` (several bars over the index), `E-GRAD`.
    Source: for a mixture p = Σ_i w_i e_i the posterior of i is w_i e_i / p = w_i ∂ log p / ∂ w_i; forward–backward is
    the same derivative of a chain.
    """
    program = as_program(program)
    (name,) = check_outputs(program, output)
    bar = find(prune(program, (name,)), program, index)
    if program.statement(name).body is bar.weights:
        raise BindingError(
            "E-UNDEF",
            f"`{name}` is these weights themselves: it says nothing about which index they meet",
            hint="give the statement that sums them as output=",
        )
    return _Inference(program, name, bar).program()


@dataclass(frozen=True, slots=True)
class _Cut:
    """A program in which weights (or their logarithms) are an input, and the statement that computes them."""

    program: Program
    weights: Statement
    logarithmic: bool  # whether the statement is the logarithm of the weights


class _Inference:
    def __init__(self, program: Program, output: str, bar: Bar) -> None:
        self.original, self.output, self.bar = program, output, bar
        self.book = Book(program)

    def program(self) -> Program:
        cut = self._in_logarithms() or self._cut()
        name, axes = cut.weights.name, cut.weights.axes
        pulled = grad(cut.program, name, self.output)
        tied = {place: axis for axis, place in ties(cut.program, name, len(axes), self.output).items()}
        seed = next(n for n in pulled.inputs if n not in cut.program.inputs)
        book = Book(Program((*pulled.statements, cut.weights)))
        free, places = self._further(book, tied)
        made = Lifting(book, seed, free, places).lifted(pulled)
        *others, jacobian = made.statements
        final = self._final(book, cut, jacobian, free, places, tied)
        if all(node.name != jacobian.name for node in walk(final.body) if isinstance(node, Tensor)):
            whole = Program(_after_inputs([*others, final], cut.weights))
        else:
            whole = Program(_after_inputs([*made.statements, final], cut.weights))
        whole = prune(whole, (*self.original.defined, final.name))
        return Program(resolve(Source(str(whole))).statements)

    # cutting -------------------------------------------------------------------------------------------------------

    def _cut(self) -> _Cut:
        """The weights themselves as an input."""
        home = self.original.statement(self.bar.statement)
        if home.body is self.bar.weights:
            rest = tuple(s for s in self.original.statements if s is not home)
            return _Cut(Program(rest), home, False)
        tensor, statement = self._stated(home, self.bar.weights, "Weights")

        def change(node: Expr) -> Expr:
            return tensor if node is self.bar.weights else rebuild(node, change)

        return _Cut(self._replaced({home.name: change(home.body)}), statement, False)

    def _in_logarithms(self) -> _Cut | None:
        """The logarithms of the weights as an input, where all that is done with them is a logarithm of a sum."""
        home, weights = self.original.statement(self.bar.statement), self.bar.weights
        if not is_plain(weights) or home.body is weights:
            return None
        score = total([part.term for part in log_weights(weights, self.book.identity)])
        tensor, statement = self._stated(home, weights, "LogWeights", score)

        def weigh(found: Normalise) -> tuple[Part, ...]:
            return (Part(tensor),) if found is weights else log_weights(found, self.book.identity)

        def change(node: Expr) -> Expr:
            if node is weights:
                return node
            if isinstance(node, Map) and node.function == "log" and recognise_log(node) is not node:
                return logarithm(node.arguments[0], weigh) or node
            return rebuild(node, change)

        bodies = {s.name: change(s.body) for s in self.original.statements}
        if any(node is weights for node in walk(bodies[home.name])):
            return None
        return _Cut(self._replaced(bodies), statement, True)

    def _stated(
        self, home: Statement, weights: Normalise, role: str, body: Expr | None = None
    ) -> tuple[Tensor, Statement]:
        """A statement of the weights, or of another body over their indices, and a reading of it."""
        order = tuple(dict.fromkeys((*home.indices, *indices_of(home.body))))
        axes = batch_first(i for i in order if i in weights.free)
        name = self.book.inner_name(home.name + role)
        return Tensor(name, axes), self.book.made(name, [(i,) for i in axes], 0, body or weights)

    def _replaced(self, bodies: Mapping[str, Expr]) -> Program:
        """The program with other bodies, in which indices of one name are named apart."""
        made = []
        for s in self.original.statements:
            body = bodies.get(s.name, s.body)
            made.append(s if body == s.body else self.book.made(s.name, s.axes, s.upper, body))
        return Program(tuple(made))

    # the result ----------------------------------------------------------------------------------------------------

    def _further(self, book: Book, tied: Mapping[int, int]) -> tuple[tuple[Axis, ...], tuple[int | None, ...]]:
        """The axes of the output that the weights lack, and which axis of the output each is."""
        free: list[Axis] = []
        places: list[int | None] = []
        for number, axis in enumerate(self.original.statement(self.output).axes):
            if number in tied:
                places.append(None)
                continue
            places.append(len(free))
            free.append(tuple(book.identity(Index(i.name)) for i in axis))
        return tuple(free), tuple(places)

    def _final(
        self,
        book: Book,
        cut: _Cut,
        jacobian: Statement,
        free: tuple[Axis, ...],
        places: tuple[int | None, ...],
        tied: Mapping[int, int],
    ) -> Statement:
        """posterior = weights · ∂ output / ∂ weights / output, or the derivative by the logarithms of the weights."""
        logarithm_ = is_logarithm(self.original, self.output, self.bar.weights)
        if cut.logarithmic and logarithm_:
            return replace(jacobian, name=book.inner_name("posterior"))
        own = cut.weights.axes
        names = {index.name for axis in own for index in axis}
        copies = {i: Index(book.copy_name(i.name, 1), i.number) for axis in free for i in axis if i.name in names}
        axes = (*own, *(tuple(copies.get(i, i) for i in axis) for axis in free))
        factors: list[Expr] = [] if cut.logarithmic else [read(cut.weights)]
        factors.append(Tensor(jacobian.name, tuple(map(_slot, axes)), cut.weights.upper))
        if not logarithm_:
            slots = [own[tied[n]] if p is None else axes[len(own) + p] for n, p in enumerate(places)]
            upper = self.original.statement(self.output).upper
            factors.append(call("reciprocal", Tensor(self.output, tuple(map(_slot, slots)), upper)))
        return book.made(book.inner_name("posterior"), axes, cut.weights.upper, simple(tuple(factors), ()))


def _slot(axis: Axis) -> Slot:
    return axis[0] if len(axis) == 1 else Split(axis)


def _after_inputs(statements: Sequence[Statement], weights: Statement) -> tuple[Statement, ...]:
    """The statements with that of the weights before the first that reads it."""
    first = next(n for n, s in enumerate(statements) if any(_reads(node, weights.name) for node in walk(s.body)))
    return (*statements[:first], weights, *statements[first:])


def _reads(node: Expr, name: str) -> bool:
    return isinstance(node, Tensor) and node.name == name
