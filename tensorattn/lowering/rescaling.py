"""Scores in units of ln 2, so that the faster exp2 weighs them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf, log

from tensorattn.kernel import Apply, Arrange, Cast, Contract, IfFinite, Instruction, Kernel, Weigh
from tensorattn.lowering.liveness import makes, reads, without_dead
from tensorattn.parts import Literal, Operand, Register

LOG2_E = 1 / log(2)


class Scaling:
    """The scores in units of ln 2, where that costs no pass over them: the scale goes to an operand of less support.

    `score` and `base`: what to weigh; `outside` and `inside`: the instructions it takes before and in the loop.
    """

    def __init__(self, body: tuple[Instruction, ...], inside: set[int], score: Register, base: str) -> None:
        self.makers = {r.name: i for i in (body[n] for n in sorted(inside)) for r in makes(i)}
        self.full = frozenset(score.axes)
        self.outside: list[Instruction] = []
        self.inside: list[Instruction] = []
        scaled = self._scaled(score) if base == "2" else None
        self.score, self.base = (score, "e") if scaled is None else (scaled, "2")
        if scaled is None:
            self.outside, self.inside = [], []

    def _scaled(self, register: Register) -> Register | None:
        """log₂(e) times the register, or None where that would be a pass over all scores."""
        if not self.full <= set(register.axes):
            return self._multiplied(register)
        match self.makers.get(register.name):
            case Contract(a=a, b=b) as made:
                small, other = (a, b) if len(a.axes) <= len(b.axes) else (b, a)
                scaled = self._scaled(small)
                return None if scaled is None else self._keep(replace(made, out=_named(register), a=scaled, b=other))
            case Apply(function="multiply", arguments=(Register() as a, b)) as made:
                scaled = self._scaled(a)
                return (
                    None if scaled is None else self._keep(replace(made, out=_named(register), arguments=(scaled, b)))
                )
            case Apply(function="divide", arguments=(Register() as a, b)) as made:
                scaled = self._scaled(a)
                return (
                    None if scaled is None else self._keep(replace(made, out=_named(register), arguments=(scaled, b)))
                )
            case Apply(function="add" | "subtract", arguments=(Register() as a, Register() as b)) as made:
                both = (self._term(a), self._term(b))
                if both[0] is None or both[1] is None:
                    return None
                return self._keep(replace(made, out=_named(register), arguments=both))
            case Apply(function="select", arguments=(where, Register() as a, Literal() as other)) as made:
                scaled = self._scaled(a) if other.value in (0, -inf) else None
                return scaled and self._keep(replace(made, out=_named(register), arguments=(where, scaled, other)))
            case Arrange(source=source) | Cast(source=source) as made if source.dtype == register.dtype:
                scaled = self._scaled(source)
                return None if scaled is None else self._keep(replace(made, out=_named(register), source=scaled))
            case IfFinite() as made:
                return self._branched(made)
        return None

    def _branched(self, made: IfFinite) -> Register | None:
        """Both sides scaled: the fast one where that costs no pass, the safe one at its end."""
        within = Scaling(made.fast, set(range(len(made.fast))), made.out, "2")
        if within.base != "2":
            return None
        out, plain = within.score, replace(made.out, name=f"{made.out.name}raw")
        fast = without_dead((*made.fast, *within.outside, *within.inside), (out,))
        last = replace(made.safe[-1], out=plain)
        safe = (*made.safe[:-1], last, Apply(out, "multiply", (plain, Literal(LOG2_E))))
        return self._keep(IfFinite(out, made.values, fast, safe))

    def _term(self, register: Register) -> Register | None:
        """A term of a sum: data may be as large as numbers are, as in a mask of the least number, and stays finite."""
        small = not self.full <= set(register.axes) and not isinstance(self.makers.get(register.name), Contract)
        return self._multiplied(register, "in_twos") if small else self._scaled(register)

    def _multiplied(self, register: Register, function: str = "multiply") -> Register:
        arguments = (register,) if function == "in_twos" else (register, Literal(LOG2_E))
        scaled = self._number(register) or Apply(_named(register), function, arguments)
        (self.inside if register.name in self.makers else self.outside).append(scaled)
        return scaled.out

    def _number(self, register: Register) -> Apply | None:
        """A choice of numbers, each scaled."""
        made = self.makers.get(register.name)
        if not (isinstance(made, Apply) and made.function in ("where", "select")):
            return None
        numbers: list[Operand] = []
        for number in made.arguments[1:]:
            if isinstance(number, Literal) and isinstance(number.value, (int, float)):
                numbers.append(Literal(number.value * LOG2_E))
            elif isinstance(number, Register) and (inner := self._number(number)) is not None:
                numbers.append(self._keep(inner))
            else:
                return None
        return replace(made, out=_named(register), arguments=(made.arguments[0], *numbers))

    def _keep(self, instruction: Contract | Apply | Arrange | Cast | IfFinite) -> Register:
        self.inside.append(instruction)
        return instruction.out


def _named(register: Register) -> Register:
    return replace(register, name=f"{register.name}b2")


def rebased(kernel: Kernel, base: str) -> Kernel:
    """The kernel with exp2 in place of exp, where its argument comes in units of ln 2 without a pass over all of it.

    Those that share scores change together: one alone would need them in both units.
    """
    if base != "2":
        return kernel
    results = tuple(o.register for o in kernel.outputs)
    body = kernel.body
    exps = [i for i in body if isinstance(i, Apply) and i.function == "exp"]
    while exps:
        scales = _scales(body, exps[0])
        alike = [exps[0], *(e for e in exps[1:] if scales and scales & _scales(body, e))]
        changed = without_dead(_rebased(body, alike), results)
        body = changed if _is_no_more(body, changed, exps[0].out) else body
        exps = [e for e in exps if e not in alike]
    return replace(kernel, body=body)


def _scaling(body: tuple[Instruction, ...], exp: Apply) -> Scaling | None:
    """What an exponential takes in units of ln 2; None where that would be a pass over all of it."""
    argument = exp.arguments[0]
    found = Scaling(body, set(range(body.index(exp))), argument, "2") if isinstance(argument, Register) else None
    return found if found is not None and found.base == "2" else None


def _scales(body: tuple[Instruction, ...], exp: Apply) -> set[Register]:
    """What is as large as an exponential, and made in units of ln 2 for it."""
    found = _scaling(body, exp)
    return set() if found is None else {r for i in found.inside for r in makes(i) if {*r.axes} >= {*exp.out.axes}}


def _rebased(body: tuple[Instruction, ...], exps: Sequence[Apply]) -> tuple[Instruction, ...]:
    """The body with exp2 for these, where that costs no pass; what several need is made once."""
    for made in exps:
        number, scaling = body.index(made), _scaling(body, made)
        if scaling is not None:
            exp2 = replace(made, function="exp2", arguments=(scaling.score,))
            known = set(body[:number])
            steps = (i for i in (*scaling.outside, *scaling.inside) if i not in known)
            body = (*body[:number], *steps, exp2, *body[number + 1 :])
    return body


def weighed_in_twos(body: tuple[Instruction, ...], results: frozenset[str]) -> tuple[Instruction, ...]:
    """The body of a slice, with exp2 for the softmaxes that share scores: one alone would need them in both units."""
    for score in {i.score.name: i.score for i in body if _is_plain(i)}.values():  # type: ignore[union-attr]
        users = [n for n, i in enumerate(body) if score in reads(i)]
        if score.name not in results and all(_is_plain(body[n]) for n in users):
            body = _in_twos(body, users, score, results)
    return body


def _is_plain(instruction: Instruction) -> bool:
    return isinstance(instruction, Weigh) and instruction.base == "e" and instruction.floor is None


def _in_twos(
    body: tuple[Instruction, ...], users: list[int], score: Register, results: frozenset[str]
) -> tuple[Instruction, ...]:
    scaling = Scaling(body, set(range(users[0])), score, "2")
    made = (*scaling.outside, *scaling.inside)
    taken = {r.name for i in body for r in makes(i)} & {r.name for i in made for r in makes(i)}
    if scaling.base != "2" or taken:
        return body
    new = [*body[: users[0]], *made]
    for number, instruction in enumerate(body[users[0] :], users[0]):
        if number not in users:
            new.append(instruction)
            continue
        assert isinstance(instruction, Weigh)
        greatest = _named(instruction.greatest)
        new.append(replace(instruction, score=scaling.score, base="2", greatest=greatest))
        new.append(Apply(instruction.greatest, "multiply", (greatest, Literal(log(2)))))
    kept = tuple(r for i in new for r in makes(i) if r.name in results)
    changed = without_dead(tuple(new), kept)
    return changed if _is_no_more(body, changed, score) else body


def _is_no_more(body: tuple[Instruction, ...], changed: tuple[Instruction, ...], score: Register) -> bool:
    """Whether nothing like the scores is made in both units."""
    large = [sum(set(score.axes) <= set(r.axes) for i in side for r in makes(i)) for side in (body, changed)]
    return large[1] <= large[0]
