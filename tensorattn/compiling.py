"""`compile`: program → `Compiled`, the arrows in order: check, expand, plan, lower, build; and what a call does."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType, MappingProxyType
from typing import Any

from tensorattn import backends
from tensorattn.arguments import check_numbers, check_superfluous, gathered_sizes, given_sizes, merged, missing
from tensorattn.asking import Asking, check_memory, check_plan
from tensorattn.backends.torch import uncast
from tensorattn.checking import report, solve
from tensorattn.describing import Described
from tensorattn.dtypes import infer
from tensorattn.errors import BindingError, suggest
from tensorattn.extents import index_names
from tensorattn.ir import BATCH, Index
from tensorattn.planning import prune
from tensorattn.program import Program
from tensorattn.reading import as_program
from tensorattn.signature import signature
from tensorattn.sizes import Size
from tensorattn.specialising import Request, Specialisation, dtype_name, dtypes_of, specialise
from tensorattn.watching import PLAIN, RECORDED, TRACED, TRANSFORMED, follower, has_symbols, is_calm, recorder

MOST_PLANS = 8  # plans for other sizes beside the first one of a specialisation
MOST_SPECIALISATIONS = 64  # dtypes × batch ranks × plans kept by one compiled object


class _Traced:
    """Specialisations made while a tracer ran, as attributes; `names`: which of them belongs to which key."""

    def __init__(self) -> None:
        self.names: dict[tuple[Any, ...], str] = {}


class Compiled(Described):
    """A formula as a callable: arrays by name, or one mapping; NumPy in, NumPy out; torch in, torch out.

    Made by `tensorattn.compile`. Immutable, thread-safe, picklable; holds no arrays.
    """

    __slots__ = (
        "_batched",
        "_last",
        "_outputs",
        "_request",
        "_single",
        "_sizes",
        "_table",
        "_traced",
        "inputs",
        "program",
        "signature",
        "used",
    )

    def __init__(
        self,
        program: Program,
        outputs: tuple[str, ...],
        single: bool,
        sizes: Mapping[str, int],
        memory: int | None,
        plan: Asking,
    ) -> None:
        used = prune(program, outputs)
        sizes = {name: size for name, size in sizes.items() if name in index_names(used)}
        values = dict(
            program=program, used=used, inputs=used.inputs, signature=signature(program, outputs), _outputs=outputs,
            _single=single, _batched=used.batched, _sizes=MappingProxyType(dict(sizes)), _table={}, _traced=_Traced(),
            _last=[(None, None)], _request=Request(used, outputs, dict(sizes), plan, memory),
        )  # fmt: skip
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("compiled formulas are immutable; compile again with other options")

    __delattr__ = None  # type: ignore[assignment]

    @property
    def _torchdynamo_orig_callable(self) -> Callable[..., Any]:
        """What torch.compile traces: the method, whose code object is this formula's own, not a wrapper all share."""
        return self.__call__

    @property
    def _torchdynamo_wrapper_id(self) -> int:
        """What torch asks before it follows the attribute above."""
        return id(self)

    # the call ----------------------------------------------------------------------------------------------------

    def __call__(self, arrays: Mapping[str, Any] | None = None, /, *, out: Any = None, **named: Any) -> Any:
        """The outputs for these inputs: an array, or a dict where `outputs` was a sequence of names.

        `out`: an array (or a mapping) that the result is copied into after the last read of any input.
        Raises: BindingError `E-INPUT E-UNDEF`; ShapeError; DTypeError; BackendError; all before any array work.
        """
        if arrays is not None:
            named = arrays if arrays.__class__ is dict and not named else merged(arrays, named)  # type: ignore[assignment]
        values = self._in_order(named)
        calm = is_calm()
        watched = "" if calm else follower(values)
        entry = None if watched else self._recalled(values)
        if entry is None:
            values, entry = self._checked(named, values, watched)
        results = entry.run(*values) if calm else uncast(entry.run, values)
        if out is not None:
            return self._store(entry, out, results)
        return results[0] if self._single else dict(zip(self._outputs, results, strict=True))

    def _in_order(self, named: Mapping[str, Any]) -> tuple[Any, ...]:
        """The inputs in order, and none besides that the program does not have."""
        try:
            values = tuple([named[name] for name in self.inputs])
        except KeyError:
            raise missing(self.program, self.inputs, {str(name): value for name, value in named.items()}) from None
        if len(named) != len(values):
            check_superfluous(self.program, self.inputs, {str(name): value for name, value in named.items()})
        return values

    def _recalled(self, values: tuple[Any, ...]) -> Specialisation | None:
        """The specialisation of the last call, where these inputs are like those in all that is ever looked at."""
        facts, entry = self._last[0]
        try:
            return entry if entry is not None and entry.facts(*values) == facts else None
        except (AttributeError, TypeError):  # a list or a number in the place of an array, or an array for a number
            return None

    def _checked(
        self, named: Mapping[str, Any], given: tuple[Any, ...], watched: str
    ) -> tuple[tuple[Any, ...], Specialisation]:
        """The inputs as arrays, and the specialisation for them, after all checks."""
        values, key = self._keyed(named, given, watched)
        if watched == TRACED:
            entry = getattr(self._traced, self._specialise_in_trace(key))
        else:
            entry = self._table.get(key) or self._specialise(values, key)
        if not entry.fits(*values):
            self._explain(values)
        if watched == TRACED:
            return values, entry
        if entry.holds is not None and not entry.holds(*values):
            entry = self._replan(entry, values, key)
        if not watched and not has_symbols(values):
            self._last[0] = entry.facts(*values), entry  # one write: another thread sees this pair or another
        return values, entry

    def _keyed(
        self, named: Mapping[str, Any], values: tuple[Any, ...], watched: str
    ) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """The inputs as arrays, and what a specialisation is chosen by: dtypes, ranks of `...`, the watcher."""
        key = tuple([_kind(v) for v in values])
        if list in key or tuple in key:
            values = backends.with_arrays(backends.find(named), values)
            key = tuple([_kind(v) for v in values])
        if self._batched:
            key = (*key, *[0 if type(v) in (int, float) else getattr(v, "ndim", 0) for v in values])
        if watched != TRACED and (empty := _empty_axes(values)):
            key = (*key, empty)
        watched = watched or recorder(values)
        return values, (*key, watched) if watched else key

    # specialisations -----------------------------------------------------------------------------------------------

    def _specialise(self, values: tuple[Any, ...], key: tuple[Any, ...]) -> Specialisation:
        """Checks everything, plans for the sizes at hand, and keeps the result (no lock: the last writer wins)."""
        arrays = dict(zip(self.inputs, values, strict=True))
        backend = backends.find(arrays)
        dtypes = dtypes_of(backend, arrays)
        infer(self.used, dtypes)
        ranks = {n: v.ndim for n, v in arrays.items() if hasattr(v, "ndim")}
        device = next((backend.device_of(v) for v in values if hasattr(v, "ndim")), "cpu")
        watched = next((word for word in (RECORDED, TRANSFORMED) if word in key), "")
        sizes = self._explain(values)
        request = self._request.at(sizes)
        made = specialise(request, backend, dtypes, ranks, sizes, watched, device)
        if len(self._table) >= MOST_SPECIALISATIONS:
            self._table.clear()
        self._table[key] = made
        return made

    def _specialise_in_trace(self, key: tuple[Any, ...]) -> str:
        """As `_specialise`, for a tracer: by dtypes and ranks alone, for no size may be looked at.

        The answer is the name of an attribute, because a tracer reads attributes as they are now.
        """
        watched = PLAIN if sys.modules["torch"].onnx.is_in_onnx_export() else TRACED
        name = self._traced.names.setdefault((*key, watched), f"entry{len(self._traced.names)}")
        if not hasattr(self._traced, name):
            count = len(self.inputs)
            dtypes = {n: dtype_name(d) for n, d in zip(self.inputs, key[:count], strict=True)}
            given = key[count : 2 * count] if self._batched else (0,) * count
            ranks = dict(zip(self.inputs, given, strict=True))
            ranks = {n: ranks[n] for n, d in zip(self.inputs, key, strict=False) if not isinstance(d, type)}
            request = self._request.traced(dtypes)
            setattr(self._traced, name, specialise(request, backends.get("torch"), dtypes, ranks, None, watched))
        return name

    # torch reads this mark of `assume_constant_result`: the function runs while tracing and its result is a constant
    _specialise_in_trace._dynamo_marked_constant = True  # type: ignore[attr-defined]

    def _replan(self, entry: Specialisation, values: tuple[Any, ...], key: tuple[Any, ...]) -> Specialisation:
        """The plan for other sizes, where that of `entry` does not hold; where there are many already, itself, or if a
        budget has to be kept, a new one in the place of the last."""
        for number in range(MOST_PLANS):
            other = self._table.get((*key, number))
            if other is None:
                return self._specialise(values, (*key, number))
            if other.holds is None or other.holds(*values):
                return other
        return entry if self._request.memory is None else self._specialise(values, (*key, MOST_PLANS - 1))

    def _explain(self, values: tuple[Any, ...]) -> dict[str, int]:
        """The index sizes of a call. Raises: the error that says what does not fit."""
        arrays = dict(zip(self.inputs, values, strict=True))
        backends.find(arrays)
        check_numbers(arrays)
        shapes = {n: tuple(Size.of(int(d)) for d in getattr(v, "shape", ())) for n, v in arrays.items()}
        found = solve(self.used, shapes, self._sizes, complete=True)
        sizes = {n: s.constant or 0 for n, s in found.index_sizes.items()}
        return sizes | self._batch_sizes(arrays) | gathered_sizes(self.used, arrays)

    def _batch_sizes(self, arrays: Mapping[str, Any]) -> dict[str, int]:
        for tensor in self.used.tensors:
            if tensor.name in arrays and Index(BATCH) in tensor.slots:
                shape = tuple(getattr(arrays[tensor.name], "shape", ()))
                return {f"{BATCH}{n}": int(size) for n, size in enumerate(shape[: len(shape) - len(tensor.slots) + 1])}
        return {}

    def _store(self, entry: Specialisation, out: Any, results: tuple[Any, ...]) -> Any:
        into = {self._outputs[0]: out} if self._single else out
        for name in self._outputs:
            if name not in into:
                raise BindingError(
                    "E-INPUT", f"`out` has no array for the output `{name}`", hint="give one array an output"
                )
        for name in into:
            if name not in self._outputs:
                raise BindingError(
                    "E-UNDEF", f"`out` has `{name}`, which is no output", hint=suggest(str(name), self._outputs)
                )
        for name, value in zip(self._outputs, results, strict=True):
            entry.store(into[name], value)
        return out

    def __repr__(self) -> str:
        return f"tensorattn.compile({str(self.program)!r})"

    def __reduce__(self) -> tuple[object, ...]:
        outputs = self._outputs[0] if self._single else self._outputs
        return _recompile, (str(self.program), outputs, dict(self._sizes), self._request.memory, self._request.plan)


def _recompile(text: str, outputs: Any, sizes: dict[str, int], memory: int | None, plan: Asking) -> Compiled:
    return _compile(as_program(text), outputs, sizes, memory, plan)


def compile(
    program: str | Program,
    *,
    outputs: str | Sequence[str] | None = None,
    sizes: Mapping[str, int] | None = None,
    memory: int | None = None,
    plan: Asking = "auto",
    strict: bool = False,
) -> Compiled:
    """A formula as a callable.

    >>> import numpy as np
    >>> joint = compile("W^<mu bar(nu rho)> v^<bar(nu rho)>_n")
    >>> joint(W=np.zeros((2, 3, 4)), v=np.ones((3, 4, 5))).shape
    (2, 5)

    `outputs`: a name, or a sequence of names (then a call returns a dict); default the last statement. `sizes`: of
    indices that no input fixes, `{"h": 8}` for the heads of a split. `memory`: a budget in bytes above inputs and
    outputs. `plan`: one of `auto dense flattened streamed factored` for all, or `{"y": "dense"}` by statement.
    `strict`: lints are errors.

    Raises: NotationError; BindingError `E-UNDEF`; PlanError; BudgetError at a call.
    """
    program = as_program(program)
    plan, memory = check_plan(program, plan), check_memory(memory)
    sizes = given_sizes("sizes", sizes)
    found = solve(program, {}, sizes, complete=False)
    report(program, found.lints, strict)
    return _compile(program, outputs, sizes, memory, plan)


def _compile(
    program: Program, outputs: str | Sequence[str] | None, sizes: dict[str, int], memory: int | None, plan: Asking
) -> Compiled:
    single = outputs is None or isinstance(outputs, str)
    if not single and not isinstance(outputs, Sequence):
        raise BindingError("E-UNDEF", f"outputs={outputs!r} names no statement", hint="a name or a sequence of names")
    names = (outputs or program.defined[-1],) if single else tuple(outputs)  # type: ignore[arg-type]
    if not names:
        raise BindingError("E-UNDEF", "outputs names no statement", hint=f"one of {', '.join(program.defined)}")
    for name in names:
        program.statement(str(name))
    compiled = _own_code()(program, names, single, sizes, memory, plan)  # type: ignore[arg-type]
    if plan not in ("auto", "dense"):
        compiled.plan()  # says now, not at the first call, that there is no such plan
    return compiled


def _own_code() -> type[Compiled]:
    """A class with a `__call__` of its own code object: torch.compile counts recompilations by code object."""
    original = Compiled.__call__
    code = original.__code__.replace(co_name="__call__")
    call = FunctionType(code, original.__globals__, original.__name__, original.__defaults__, original.__closure__)
    call.__kwdefaults__ = original.__kwdefaults__
    call.__doc__ = original.__doc__
    return type("Compiled", (Compiled,), {"__slots__": (), "__call__": call, "__module__": __name__})


def _empty_axes(values: tuple[Any, ...]) -> tuple[tuple[int, int], ...]:
    """Which axes of which inputs are empty: sums over nothing have kernels of their own."""
    axes = ((n, axis, size) for n, v in enumerate(values) for axis, size in enumerate(getattr(v, "shape", ())))
    return tuple((n, axis) for n, axis, size in axes if type(size) is int and size == 0)  # else a symbol of a tracer


def _kind(value: Any) -> Any:
    """The dtype of an array, the class of anything else; a number may be a symbol of a tracer."""
    if type(value) in (bool, int, float):
        return type(value)
    return getattr(value, "dtype", value.__class__)
