"""`check`: program + declared shapes → sizes, output shapes, and the equations that must hold; no array is touched."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tensorattn.declaring import declared
from tensorattn.equations import Equation, Equations, Known
from tensorattn.errors import BindingError, NotationError, NotationWarning, ShapeError, suggest
from tensorattn.extents import AxisFact, SizeFact, SumFact, definition_axes, index_names, size_facts
from tensorattn.ir import BATCH, Index, Position, Tensor, walk
from tensorattn.linting import Lint, lints
from tensorattn.program import Program
from tensorattn.ranges import check_ranges
from tensorattn.reading import as_program
from tensorattn.sizes import Size
from tensorattn.source import Span


@dataclass(frozen=True)
class Shapes:
    """What a check found. Sizes are integers ≥ 0; expressions are sympy's, made when asked for."""

    index_sizes: Mapping[str, Size]
    tensor_shapes: Mapping[str, tuple[Size, ...]]
    outputs_named: tuple[str, ...]
    proved: tuple[Equation, ...]
    required: tuple[Equation, ...]
    lints: tuple[Lint, ...]

    @cached_property
    def sizes(self) -> dict[str, Any]:
        """The size of each index as a sympy expression."""
        return {n: s.to_sympy() for n, s in self.index_sizes.items()}

    @cached_property
    def tensors(self) -> dict[str, tuple[Any, ...]]:
        """The shape of each input and statement as sympy expressions."""
        return {n: tuple(s.to_sympy() for s in shape) for n, shape in self.tensor_shapes.items()}

    @cached_property
    def outputs(self) -> dict[str, tuple[Any, ...]]:
        """The shape of each statement."""
        return {n: self.tensors[n] for n in self.outputs_named}

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        lines = ["sizes     " + ", ".join(f"|{n}| = {s}" for n, s in self.index_sizes.items())]
        lines += [f"shape     {n}: ({', '.join(map(str, s))})" for n, s in self.tensor_shapes.items()]
        lines += [f"required  {e}  ({e.left.origin}; {e.right.origin})" for e in self.required]
        lines += [f"proved    {e}  ({e.left.origin}; {e.right.origin})" for e in self.proved]
        return "\n".join(lines + [f"lint      {lint.message}" for lint in self.lints])


def check(
    program: str | Program,
    shapes: Mapping[str, Any] | None = None,
    /,
    *,
    strict: bool = False,
    sizes: Mapping[str, Any] | None = None,
    **named: Any,
) -> Shapes:
    """Checks a program, with the shapes of its inputs if given: text `"M D"`, tuples, sympy expressions, or arrays.

    >>> found = check("y^mu_n = W^<mu bar(nu rho)> v^<bar(nu rho)>_n", W="M N R", v="N S C")
    >>> [str(equation) for equation in found.required]
    ['R = S']

    Shapes may be omitted for all inputs; if one is given, all are. `sizes`: sizes of indices that no input fixes.
    Inputs called `strict` or `sizes` go into the mapping. Lints are warnings; `strict=True` makes them errors.

    Raises: NotationError; BindingError `E-UNDEF`; ShapeError `E-RANK E-EXTENT E-SPLIT E-BATCH E-RANGE`.
    """
    program = as_program(program)
    if shapes is not None and not isinstance(shapes, Mapping):
        raise ShapeError("E-EXTENT", f"shapes are given by name, not as {shapes!r}", hint='check(f, W="M N")')
    given = {**(shapes or {}), **named}
    found = solve(program, {n: declared(n, s) for n, s in given.items()}, sizes or {}, bool(given))
    report(program, found.lints, strict)
    return found


def report(program: Program, found: tuple[Lint, ...], strict: bool) -> None:
    """Lints as warnings, or as one error."""
    if strict and found:
        first = found[0]
        raise NotationError(
            "E-LINT",
            first.message,
            source=program.source,
            spans=[first.span] if first.span else (),
            facts=[x.message for x in found[1:]],
            hint=first.hint,
        )
    for lint in found:
        warnings.warn(NotationWarning(f"{lint.message} ({lint.hint})"), stacklevel=4)


def solve(program: Program, shapes: Mapping[str, tuple[Size, ...]], sizes: Mapping[str, Any], complete: bool) -> Shapes:
    """The sizes of everything. `complete`: every input must be declared and every size end up known."""
    if complete:
        _check_names(program, shapes)
    names = index_names(program)
    for name in sizes:
        _check_given(program, name, names)
    axes, batch = _axes(program, shapes), _batch(program, shapes)
    equations = Equations(program.source, set(names))
    known_sizes = [(n, Known(declared("sizes", (v,))[0], f"sizes[{n!r}]")) for n, v in sizes.items()]
    given = [_equation((n,), Size.of(n), known, is_declared=True, gives=True) for n, known in known_sizes]
    waiting = equations.run([*given, *(_of_fact(f, program, axes, shapes) for f in size_facts(program))])
    while waiting and any(equations.unite(e) for e in waiting):
        waiting = equations.run(waiting)
    if complete:
        check_open(program, [name for name in names if name in equations.unknown])
    equations.unknown.clear()
    equations.run(waiting)
    known = equations.sizes(names)
    check_ranges(program, axes, known, equations)
    tensors = {
        n: (*(batch if _is_batched(program, n) else ()), *map(equations.reduced, axes[n]))
        for n in (*program.inputs, *program.defined)
    }
    return Shapes(known, tensors, program.defined, tuple(equations.proved), tuple(equations.required), lints(program))


def _equation(names: tuple[str, ...], own: Size, known: Known, *, is_declared: bool, gives: bool) -> Equation:
    shown = names[0] if len(names) == 1 else f"({' '.join(names)})"
    return Equation(shown, Known(own, f"the size of {shown}", known.span), known, is_declared, gives)


_WORDS = {
    "cat": "the sum of the parts of cat",
    "delta": "delta makes both indices one",
    "eps": "eps has as many values an index as indices",
}


def _of_fact(
    fact: SizeFact, program: Program, axes: Mapping[str, tuple[Size, ...]], shapes: Mapping[str, object]
) -> Equation:
    """What a slot, a cat or a constant says, as an equation."""
    if isinstance(fact, SumFact):
        total = sum((Size.of(p) for p in fact.parts), Size.of(fact.constant))
        return _equation(
            (fact.whole,),
            Size.of(fact.whole),
            Known(total, _WORDS[fact.kind], fact.span),
            is_declared=False,
            gives=False,
        )
    own = Size.product(fact.names)
    origin = f"axis {fact.axis} of {fact.tensor} ({' '.join(fact.names)})"
    known = Known(axes[fact.tensor][fact.axis], origin, fact.span)
    is_input = fact.tensor not in program.defined
    return _equation(fact.names, own, known, is_declared=fact.tensor in shapes, gives=is_input)


def _check_names(program: Program, shapes: Mapping[str, object]) -> None:
    for name in program.inputs:
        if name not in shapes:
            spans = [t.span for t in program.tensors if t.name == name and t.span]
            unused = sorted(set(shapes) - set(program.inputs))
            raise BindingError(
                "E-UNDEF",
                f"`{name}` is neither declared nor defined",
                source=program.source,
                spans=spans[:1],
                facts=[f"declared: {', '.join(shapes)}"],
                hint=suggest(name, [*unused, *shapes]) or f"declare {name}, or fix the spelling",
            )
    for name in shapes:
        if name in program.inputs:
            continue
        if name in program.indices:
            spans = _places(program, name)
            raise NotationError(
                "E-NAME",
                f"the declared input `{name}` is an index in the formula",
                source=program.source,
                spans=spans,
                hint=f"rename the scalar; bare, `{name}` is the position along the index {name}",
            )
        facts = [f"the formula's inputs: {', '.join(program.inputs) or 'none'}"]
        raise BindingError(
            "E-UNDEF",
            f"the formula has no input `{name}`",
            facts=facts,
            hint=suggest(name, program.inputs) or "remove it, or use it in the formula",
        )


def _places(program: Program, name: str) -> list[Span]:
    """Where an index name stands bare, else where it stands first."""
    bare = [
        n.span
        for s in program.statements
        for n in walk(s.body)
        if isinstance(n, Position) and n.index.name == name and n.span
    ]
    slots = [
        span
        for t in program.tensors
        for slot, span in zip(t.slots, t.slot_spans, strict=False)
        if isinstance(slot, Index) and slot.name == name
    ]
    return bare or slots[:1]


def _check_given(program: Program, name: str, names: tuple[str, ...]) -> None:
    if name not in names:
        raise BindingError(
            "E-UNDEF",
            f"`sizes` names the index `{name}`, which the formula lacks",
            facts=[f"its indices: {', '.join(names)}"],
            hint=suggest(name, names) or "remove it",
        )


def _uses(program: Program, name: str) -> list[Tensor]:
    return [t for t in program.tensors if t.name == name]


def _is_batched(program: Program, name: str) -> bool:
    if name in program.defined:
        return any(a[0].name == BATCH for a in program.statement(name).axes)
    return any(Index(BATCH) in t.slots for t in _uses(program, name))


def _axes(program: Program, shapes: Mapping[str, tuple[Size, ...]]) -> dict[str, tuple[Size, ...]]:
    """The sizes of the axes of every tensor, batch axes left out. Raises: ShapeError `E-RANK`.

    An axis of an input without a shape has the sizes that its first plain slot names, else a symbol of its own.
    """
    axes = dict(definition_axes(program))
    for name in program.inputs:
        use, batched = _uses(program, name)[0], _is_batched(program, name)
        wanted = len(use.slots) - batched
        if name not in shapes:
            axes[name] = tuple(Size.of(f"{name}.{n}") for n in range(wanted))
            continue
        given = len(shapes[name])
        if given < wanted or (given > wanted and not batched):
            least = "at least " if batched else ""
            facts = [f"{name} has shape ({', '.join(map(str, shapes[name]))})"]
            what = f"`{name}` takes {least}{wanted} axes in the formula, the given shape has {given}"
            raise ShapeError(
                "E-RANK",
                what,
                source=program.source if use.span else None,
                spans=[use.span] if use.span else (),
                facts=facts,
                hint=f"give `{name}` {least}{wanted} axes, or write its indices; `...` stands for batch axes",
            )
        axes[name] = shapes[name][given - wanted :]
    for fact in size_facts(program):
        if isinstance(fact, AxisFact) and axes[fact.tensor][fact.axis] == Size.of(f"{fact.tensor}.{fact.axis}"):
            own = list(axes[fact.tensor])
            own[fact.axis] = Size.product(fact.names)
            axes[fact.tensor] = tuple(own)
    return axes


def _batch(program: Program, shapes: Mapping[str, tuple[Size, ...]]) -> tuple[Size, ...]:
    """The batch axes that all tensors with `...` share. Raises: ShapeError `E-BATCH`."""
    first: tuple[str, tuple[Size, ...]] | None = None
    for name in program.inputs:
        if name not in shapes or not _is_batched(program, name):
            continue
        use = _uses(program, name)[0]
        batch = shapes[name][: len(shapes[name]) - len(use.slots) + 1]
        if first is None:
            first = (name, batch)
        elif batch != first[1]:
            facts = [f"{n}: ({', '.join(map(str, b))})" for n, b in (first, (name, batch))]
            raise ShapeError(
                "E-BATCH",
                f"`...` stands for different axes in `{first[0]}` and `{name}`",
                source=program.source if use.span else None,
                spans=[use.span] if use.span else (),
                facts=facts,
                hint="give both the same batch axes; a tensor without `...` is broadcast",
            )
    return first[1] if first else ()


def check_open(program: Program, names: Iterable[str]) -> None:
    """Raises: ShapeError `E-EXTENT` for the first of these names, whose sizes nothing gives."""
    for name in names:
        spans = [t.span for t in program.tensors if t.span and name in {i.name for i in t.free}]
        spans = spans or [s.span for s in program.statements if s.span]
        what = f"the size of {name} is open: no plain slot of an input fixes it"
        raise ShapeError(
            "E-EXTENT",
            what,
            source=program.source if spans else None,
            spans=spans[:1],
            facts=["affine and gathered slots and predicates fix no size"],
            hint=f'give it: sizes={{"{name}": …}}',
        )
