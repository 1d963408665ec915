"""What a compiled formula says of itself: plan, words, cost, kernel and source, for sizes that are given or not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from tensorattn import backends, wording
from tensorattn.arguments import check_superfluous, given_sizes
from tensorattn.choosing import Choice, choose
from tensorattn.cost import Cost, default_dtypes
from tensorattn.errors import BindingError, ShapeError, suggest
from tensorattn.expanding import expand
from tensorattn.extents import index_names, size_reads
from tensorattn.kernel import Kernel
from tensorattn.kinds import Case, Draft
from tensorattn.plan import Plan
from tensorattn.program import Program
from tensorattn.rates import machine
from tensorattn.signature import Signature
from tensorattn.specialising import Request, decide
from tensorattn.watching import RECORDED


class Described:
    """The part of `Compiled` that makes no call."""

    __slots__ = ()

    program: Program
    used: Program
    inputs: tuple[str, ...]
    signature: Signature
    _sizes: Mapping[str, int]
    _request: Request

    def _repr_latex_(self) -> str:
        return f"$$\n{self.program.latex()}\n$$"

    def _repr_html_(self) -> str:
        from tensorattn.spelling.marks.html import display

        return display(self.program, self.signature)

    def choice(
        self,
        sizes: Mapping[str, int] | None = None,
        /,
        *,
        backend: str = "numpy",
        dtypes: Mapping[str, str] | None = None,
        **named: int,
    ) -> Choice:
        """The plan for these index sizes (nominal ones if none are given; no batch axes), and all that were not taken.

        For a back end, and inputs of these dtypes (default: what each place asks for, floats float64).
        """
        return self._chosen(self._given(sizes, named), dtypes, backend, thorough=True)

    def plan(self, sizes: Mapping[str, int] | None = None, /, **named: int) -> Plan:
        """The plan for these index sizes, by name or as a mapping (nominal ones if none are given; no batch axes)."""
        return self._chosen(self._given(sizes, named)).plan

    def explain(
        self,
        sizes: Mapping[str, int] | None = None,
        /,
        *,
        backend: str = "numpy",
        dtypes: Mapping[str, str] | None = None,
        **named: int,
    ) -> str:
        """The plan in words: how each normaliser is done and why, what else there is and its price, every contraction.

        Arguments as of `choice`. Sizes that are not given stay symbols.
        """
        given = self._given(sizes, named)
        return wording.explain(self._chosen(given, dtypes, backend, thorough=True), given)

    def cost(
        self,
        sizes: Mapping[str, int] | None = None,
        /,
        *,
        backend: str = "numpy",
        dtypes: Mapping[str, str] | None = None,
        **named: int,
    ) -> Cost:
        """FLOPs, exps, bytes moved and peak bytes beyond inputs and outputs; `.backward`: the same of the gradients.

        Numbers where the sizes are given, polynomials in those that are not; `.at(sizes)` gives integers. Arguments as
        of `choice`. `.backward` is made when it is read: it is the backward pass of torch, whatever the back end, for
        the plan that is taken while gradients are recorded, and for the gradients of all float inputs. Its peak is
        beyond inputs, outputs, cotangents and gradients, with all that is kept since the forward pass. Raises:
        BudgetError where it does not fit in `memory`, as the pass itself does.
        """
        given = self._given(sizes, named)
        chosen = self._chosen(given, dtypes, backend).chosen
        return replace(chosen.cost, gradients=partial(self._backward, given, dtypes)).given(given)

    def _backward(self, given: Mapping[str, int], dtypes: Mapping[str, str] | None) -> Cost:
        from tensorattn.backward import operator_cost, recorded_cost

        case, request = self._case(given, dtypes, "torch", recorded=True)
        chosen, key = decide(request, case, 0, RECORDED)
        if key is not None:
            return operator_cost(key)
        looped = any(kind == "streamed" for kind, _ in chosen.chosen.recipe)  # what is recorded has no loops
        return recorded_cost(case.dense if looped else Draft(chosen.plan, chosen.kernel), case.dtypes)

    def kernel(
        self,
        sizes: Mapping[str, int] | None = None,
        /,
        *,
        backend: str = "numpy",
        dtypes: Mapping[str, str] | None = None,
        **named: int,
    ) -> Kernel:
        """The instructions. Arguments as of `choice`.

        Raises: ShapeError `E-EXTENT` where a size is neither fixed by an input nor given.
        """
        found = self._chosen(self._given(sizes, named), dtypes, backend)
        return replace(found.kernel, comments=tuple(str(self.used).splitlines()))

    def source(
        self,
        backend: str = "numpy",
        sizes: Mapping[str, int] | None = None,
        /,
        *,
        dtypes: Mapping[str, str] | None = None,
        **named: int,
    ) -> str:
        """Stand-alone source for a back end (`numpy`, `torch`): a function `formula` that runs without tensorattn."""
        chosen = (
            str(named.pop("backend")) if "backend" in named and "backend" not in index_names(self.used) else backend
        )
        return backends.get(chosen).render(
            self.kernel(sizes, backend=chosen, dtypes=dtypes, **named), "formula", standalone=True
        )

    def _chosen(
        self,
        given: Mapping[str, int],
        dtypes: Mapping[str, str] | None = None,
        backend: str = "numpy",
        *,
        thorough: bool = False,
    ) -> Choice:
        """Plan and kernel for these sizes, without batch axes; sizes that no input fixes may be among them."""
        case, request = self._case(given, dtypes, backend)
        return choose(case, request.asked(), thorough=thorough)

    def _case(
        self, given: Mapping[str, int], dtypes: Mapping[str, str] | None, backend: str, *, recorded: bool = False
    ) -> tuple[Case, Request]:
        """What is planned, and the request with what is given of it; a budget is for actual sizes."""
        program = expand(self.used, 0)
        fixed = dict(size_reads(program, self._sizes))
        sizes = {**self._sizes, **{n: s for n, s in given.items() if n not in fixed}}
        reads = size_reads(program, sizes)
        check_superfluous(self.program, self.inputs, dtypes or {})
        known = {**default_dtypes(program), **(dtypes or {})}
        if dtypes is not None:
            self._check_known(program, dict(reads))
        dtypes = {n: known[n] for n in self.inputs}
        library = backends.get(backend)
        base = library.exponential_base()
        on = machine(library.name, base)
        case = Case(program, self._request.outputs, dtypes, reads, given or None, on, base, recorded=recorded)
        complete = given.keys() >= set(index_names(program))
        request = replace(self._request, sizes=sizes, memory=self._request.memory if complete else None)
        return case, request

    def _given(self, sizes: Mapping[str, int] | None, named: Mapping[str, int]) -> dict[str, int]:
        given = given_sizes("sizes", sizes)
        if twice := next((name for name in named if given.get(name, named[name]) != named[name]), None):
            what = f"the size of {twice} is given twice: {given[twice]} and {named[twice]}"
            raise ShapeError("E-EXTENT", what, hint="give it in the mapping or by name")
        given |= named
        names = index_names(self.used)
        tables = {f"{t.name}.{axis}" for t in self.used.tensors for axis in range(len(t.slots))}
        for name in given:
            if name not in names and name not in tables:
                raise BindingError(
                    "E-UNDEF",
                    f"the formula has no index `{name}`",
                    facts=[f"its indices: {', '.join(names)}"],
                    hint=suggest(name, names) or "remove it",
                )
        return {**self._sizes, **given_sizes("sizes", given)}

    def _check_known(self, program: Program, reads: Mapping[str, object]) -> None:
        missing = [n for n in index_names(program) if n not in reads]
        if missing:
            what = f"the size of {missing[0]} is open: no plain slot of an input fixes it"
            raise ShapeError(
                "E-EXTENT",
                what,
                source=self.program.source,
                hint=f"give it: sizes={{{missing[0]!r}: …}} to compile, or {missing[0]}=… here",
            )
