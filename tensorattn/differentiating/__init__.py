"""Program → gradient program: the vector–Jacobian product in the same notation (docs/gradients.md)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from tensorattn.differentiating.closing import like, tied
from tensorattn.differentiating.collecting import Collected, axes_of, guards_of, over, total
from tensorattn.differentiating.contexts import Context
from tensorattn.differentiating.pulling import Pull
from tensorattn.differentiating.recognising import with_weights
from tensorattn.differentiating.refusing import check_inputs, check_outputs
from tensorattn.differentiating.statements import Book, read
from tensorattn.ir import Number, Split, Statement, Tensor, rebuild, walk
from tensorattn.planning import prune
from tensorattn.program import Program
from tensorattn.reading import as_program
from tensorattn.resolving import resolve
from tensorattn.source import Source


def grad(program: str | Program, wrt: str | Sequence[str], output: str | Sequence[str] | None = None) -> Program:
    """The vector–Jacobian product of a program as a program: its statements, then `d<input>` for each name in `wrt`.

    It takes one input `d<output>` more for each differentiated output (default: the last statement), with its axes.

    >>> print(grad("y^mu_n = W^<mu bar(nu)> v^nu_n", "v"))
    y^mu_n = W^<mu bar(nu)> v^nu_n
    dv^nu_n = dy^mu_n softmax[nu](W^<mu nu>)

    A name that the program has already gets the first number that makes it new: `dy1`. The gradients are the last
    statements, in the order of `wrt`.

    Raises: BindingError `E-UNDEF E-GRAD`; DTypeError `E-DTYPE` for index tensors and predicates in `wrt`.
    """
    program = as_program(program)
    outputs = check_outputs(program, output)
    names = check_inputs(program, wrt)
    program = with_weights(program, outputs)
    return _Tape(prune(program, outputs), program, names, outputs).program()


class _Tape:
    """One differentiation: the statements in reverse, each handing its cotangent on."""

    def __init__(self, used: Program, program: Program, names: tuple[str, ...], outputs: tuple[str, ...]) -> None:
        self.used, self.original, self.wrt, self.outputs = used, program, names, outputs
        self.book = Book(program)
        self.active = _active(used, names)
        self.collected = {name: Collected() for name in (*used.inputs, *used.defined)}
        self.seeds, self.gradients = self._named()
        self.bodies: dict[str, Statement] = {}

    def _named(self) -> tuple[dict[str, str], dict[str, str]]:
        """The names of the new inputs and of the gradients: those that are free first, then numbered ones."""
        wanted = [("seed", name) for name in self.outputs] + [("gradient", name) for name in self.wrt]
        wanted.sort(key=lambda w: f"d{w[1]}" in self.book.taken)
        found: dict[tuple[str, str], str] = {}
        for kind, name in wanted:
            tensors = [t for t in self.original.tensors if t.name == name]
            axes = self.original.statement(name).axes if kind == "seed" else tensors[0].slots
            found[kind, name] = self.book.name(f"d{name}", scalar=not axes)
        return {n: found["seed", n] for n in self.outputs}, {n: found["gradient", n] for n in self.wrt}

    def program(self) -> Program:
        for statement in reversed(self.used.statements):
            cotangent = self._cotangent(statement)
            if cotangent is None or statement.name not in self.active:
                continue
            pull = Pull(self.book, statement, self.active, self._take)
            pull.run(cotangent)
            self.bodies[statement.name] = replace(statement, body=rebuild(statement.body, pull.value))
        finals = [self._gradient(name) for name in self.wrt]
        listed = [s for t in self.original.statements for s in (*self.book.forward[t.name], self.bodies.get(t.name, t))]
        made = prune(
            Program(_ordered([*listed, *self.book.backward, *finals])),
            (*self.original.defined, *self.gradients.values()),
        )
        made = self._with_seeds(made)
        for name in self.wrt:
            final = tied(made, self.original, self.gradients[name], name)
            made = Program(tuple(final if s.name == final.name else s for s in made.statements))
        return Program(resolve(Source(str(made))).statements)

    def _with_seeds(self, made: Program) -> Program:
        """With a reading of every cotangent that no gradient depends on, so that it is an input all the same."""
        unread = [
            Statement(self.book.inner_name(f"{seed}Unused"), self.used.statement(name).axes, self._seed(name), 0)
            for name, seed in self.seeds.items()
            if seed not in made.inputs
        ]
        first = len(made.statements) - len(self.wrt)
        return Program((*made.statements[:first], *unread, *made.statements[first:]))

    def _seed(self, name: str) -> Tensor:
        """The cotangent given for an output, over its axes."""
        statement = self.used.statement(name)
        return Tensor(self.seeds[name], read(statement).slots, statement.upper)

    def _take(self, tensor: Tensor, context: Context) -> None:
        self.collected[tensor.name].take(tensor, context)

    def _cotangent(self, statement: Statement) -> Context | None:
        """Of a statement all of whose readers are done; None where it has no influence."""
        seed = self._seed(statement.name) if statement.name in self.seeds else None
        readings = self.collected[statement.name].readings
        if not readings:
            return None if seed is None else Context((seed,), statement.indices)
        axes, upper = axes_of(self.book, statement.name)
        if seed is not None:
            readings.append((read(statement), Context((seed,), statement.indices)))
        contexts = over(self.book, axes, f"d{statement.name}", readings)
        name = self.book.inner_name(f"d{statement.name}")
        self.book.backward.append(self.book.made(name, axes, upper, total(self.book, contexts, axes)))
        own = read(statement).slots
        guards = guards_of(contexts, axes)
        alike = [len(a) for a in axes] == [len(a) for a in statement.axes]
        renamed = dict(zip((i for axis in axes for i in axis), statement.indices, strict=False))
        kept = Context((), (), guards if alike else ()).renamed(renamed).guards
        return Context((Tensor(name, own, upper),), statement.indices, kept)

    def _gradient(self, name: str) -> Statement:
        readings = self.collected[name].readings if name in self.collected else []
        axes, upper = axes_of(self.book, name)
        final = self.gradients[name]
        if not readings:
            slots = tuple(axis[0] if len(axis) == 1 else Split(axis) for axis in axes)
            return self.book.made(final, axes, upper, like(Tensor(name, slots, upper), Number(0)))
        contexts = over(self.book, axes, final, readings)
        return self.book.made(final, axes, upper, total(self.book, contexts, axes))


def _active(program: Program, names: tuple[str, ...]) -> frozenset[str]:
    """The tensors that depend on what is differentiated by."""
    active = set(names)
    for statement in program.statements:
        if any(isinstance(n, Tensor) and n.name in active for n in walk(statement.body)):
            active.add(statement.name)
    return frozenset(active)


def _ordered(statements: Sequence[Statement]) -> tuple[Statement, ...]:
    """Statements in an order in which each comes after those that it reads."""
    by_name = {s.name: s for s in statements}
    done: dict[str, Statement] = {}

    def visit(statement: Statement) -> Iterator[Statement]:
        if statement.name in done:
            return
        for node in walk(statement.body):
            if isinstance(node, Tensor) and node.name in by_name and node.name != statement.name:
                visit_all(by_name[node.name])
        done[statement.name] = statement
        yield statement

    def visit_all(statement: Statement) -> None:
        for _ in visit(statement):
            pass

    for statement in statements:
        visit_all(statement)
    return tuple(done.values())
