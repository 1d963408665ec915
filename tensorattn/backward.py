"""What the backward pass of torch costs, for the gradients of all outputs with respect to all float inputs.

A plan with loops, a sliced ratio among them, is one operator, whose backward pass is a kernel like any other
(`adjoining`): the price is that of the kernel which runs. Other plans are recorded by autograd operation by operation.
What it runs then is modelled by the adjoint of the recorded kernel without its forward part: the same contractions,
elementwise work by the rules of `adjoining`, and of what the forward pass made as much as is read again.

The peak is that of the backward pass beyond inputs, outputs, their cotangents and the gradients it gives back; what
is kept between the passes is part of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

from tensorattn.adjoining import adjoint
from tensorattn.cost import Cost, bytes_moved, exps, flops, joined_bonds, kernel_cost
from tensorattn.dtypes import FLOATS
from tensorattn.errors import BudgetError
from tensorattn.kernel import Instruction, Kernel, Load, Output
from tensorattn.kinds import Draft
from tensorattn.lowering.liveness import makes
from tensorattn.lowering.views import bytes_of, entries, is_view, viewed
from tensorattn.parts import Register
from tensorattn.peaks import bytes_alive, maximal, peaks, total
from tensorattn.recording import Recorded, recorded
from tensorattn.sizes import Size
from tensorattn.units import Unit, stepped, unit

NOTHING = Cost(Size(), Size(), Size(), ())


def operator_cost(key: str) -> Cost:
    """Of the operator of a key, planned for torch and the sizes that it was made for."""
    made = unit(key)
    assert made.saved is not None
    back = _backward(made)
    if back is None:
        return NOTHING
    kernel = back.planned("torch", _sizes(back))
    found = kernel_cost(kernel, "torch", _sizes(back))
    return _added(found, kernel.outputs, total(map(bytes_of, made.outputs[made.saved.first :])))


def _backward(made: Unit) -> Unit | None:
    """The gradients of all float inputs from those of all outputs; None where there are none."""
    assert made.saved is not None
    first = made.saved.first
    given = tuple(n < first and o.dtype in FLOATS for n, o in enumerate(made.outputs))
    wanted = tuple(name for name, there in zip(made.kernel.inputs, made.floats, strict=True) if there)
    return unit(stepped(made.key, "adjoint", given, wanted)) if wanted and any(given) else None


def _sizes(made: Unit) -> dict[str, int]:
    return Draft(made.plan, made.kernel).sizes


def operator_needs(key: str) -> int:
    """The bytes that the larger pass of the operator of a key has to be granted; more than its budget if none fits."""
    made, found = unit(key), []
    for step in filter(None, (made, _backward(made))):
        try:
            found.append(step.chosen("torch", _sizes(step)).peak + step.held.value(_sizes(step)))
        except BudgetError as error:
            found.append(error.least)
    return max(found)


def recorded_needs(draft: Draft, dtypes: Mapping[str, str]) -> int:
    """The same of a kernel without loops that autograd records: what it keeps is there in both passes."""
    kernel, start = recorded_pass(draft, dtypes)
    alive = bytes_alive(kernel, kernel.body, "torch")
    joined = joined_bonds(kernel)
    forward = replace(
        kernel_cost(draft.kernel, "torch", draft.sizes), peaks=maximal([s.substitute(joined) for s in alive[:start]])
    )
    back = recorded_cost(draft, dtypes, strewn=True)  # as that of a sum is, one number everywhere
    both = (cost.at(draft.sizes).peak_bytes for cost in (forward, back) if cost.peaks)
    peak = max(both, default=0)
    return peak + max(peak // 3, min(3 * peak, 1 << 20))  # the model of what autograd does is good to 25 % or 1 MB


def recorded_cost(draft: Draft, dtypes: Mapping[str, str], *, strewn: bool = False) -> Cost:
    """Of a kernel without loops that autograd records. `dtypes`: of the inputs. `strewn`: where the cotangents do not
    lie in memory as the results do, so that what wants them in order makes a copy."""
    kernel, start = recorded_pass(draft, dtypes)
    counts = (total(map(count, kernel.body[start:])) for count in (flops, exps, bytes_moved))
    joined = joined_bonds(kernel)
    bars = [i.out for i in kernel.body if isinstance(i, Load) and i.input and i.input not in draft.kernel.inputs]
    layouts = dict.fromkeys(bars, ()) if strewn else {}
    alive = peaks(kernel, kernel.body, "torch", start=start, layouts=layouts) if start < len(kernel.body) else ()
    found = Cost(*(c.substitute(joined) for c in counts), peaks=tuple(size.substitute(joined) for size in alive))
    return _added(found, kernel.outputs)


def recorded_pass(draft: Draft, dtypes: Mapping[str, str]) -> tuple[Kernel, int]:
    """The kernel of both passes, as far as gradients need the first, and where in its body the second one starts."""
    body = recorded(draft.kernel, draft.sizes)
    kernel = replace(draft.kernel, body=body)
    wanted = {i.input for i in body if isinstance(i, Load) and i.out.dtype.startswith("float")}
    given = [output.dtype in FLOATS for output in kernel.outputs]
    joint = adjoint(kernel, given, [n for n in kernel.inputs if n in wanted], dtypes, sweeping=Recorded)
    made = {r.name for i in body for r in makes(i)}
    start = sum(r.name in made for i in joint.body for r in makes(i)[:1])
    theirs = _owned(body, kernel.outputs)
    done = tuple(_result(i) if theirs.intersection(makes(i)) else i for i in joint.body)
    return replace(joint, body=done), start


def _added(cost: Cost, terms: Iterable[Output], kept: Size = Size()) -> Cost:  # noqa: B008 (immutable)
    """With what else is kept, and the sums of the gradients of inputs that are read in several places."""
    terms = list(terms)
    reads = Counter(term.name for term in terms)
    several = {t.name: t for t in terms if reads[t.name] > 1}.values()
    sums = [(_entries(t) * (reads[t.name] - 1), bytes_of(t) * (reads[t.name] - 1), bytes_of(t)) for t in several]
    more = total(count for count, _, _ in sums)
    beside, both = total(rest for _, rest, _ in sums), total(rest + one for _, rest, one in sums)
    alive = [kept + size + beside for size in cost.peaks] + [kept + both]
    moved = total(rest * 3 for _, rest, _ in sums)
    return replace(cost, flops=cost.flops + more, bytes_moved=cost.bytes_moved + moved, peaks=maximal(alive))


def _entries(output: Output) -> Size:
    return entries(index for axis in output.axes for index in axis)


def _owned(body: Iterable[Instruction], outputs: Iterable[Output]) -> set[Register]:
    """The registers in whose memory the results lie."""
    makers = {r: i for i in body for r in makes(i)}
    found = set()
    for output in outputs:
        register = output.register
        while is_view(maker := makers[register]) and not isinstance(maker, Load):
            register = viewed(maker)
        if output.dtype == output.register.dtype and not isinstance(maker, Load):
            found.add(register)
    return found


def _result(instruction: Instruction) -> Instruction:
    """What makes a result as a load of it, which takes no memory."""
    out = makes(instruction)[0]
    return Load(out, "", tuple((index,) for index in out.axes), out.dtype)
