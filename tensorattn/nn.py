"""`Formula`: an ordinary `torch.nn.Module` whose forward pass is a formula."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tensorattn.arguments import given_sizes
from tensorattn.asking import Asking
from tensorattn.checking import solve
from tensorattn.compiling import Compiled, compile
from tensorattn.declaring import declared
from tensorattn.dropping import dropout as dropped_program
from tensorattn.errors import BindingError, ShapeError, suggest
from tensorattn.initialising import start
from tensorattn.ir import BATCH, Index
from tensorattn.program import Program
from tensorattn.reading import as_program
from tensorattn.showing import show_slot
from tensorattn.sizes import Size

try:
    import torch
    from torch import Tensor

    from tensorattn.backends.torch import operator as operator  # saved programs call it
except ImportError as error:
    raise ImportError("tensorattn.nn needs torch: pip install 'tensorattn[torch]'") from error

__all__ = ["Formula"]

Initialiser = Callable[[Tensor], Any]
SEEDS = 2**63 - 1  # torch draws integers below this number


class Formula(torch.nn.Module):
    """A formula with parameters.

    >>> project = Formula("y_<... e> = x_<... d> A_<d e> + b_e", parameters=("A", "b"), sizes={"d": 4, "e": 3})
    >>> project
    Formula(y_<... e> = x_<... d> A_<d e> + b_e; parameters A[4, 3], b[3])
    >>> project(x=torch.ones(2, 5, 4)).shape
    torch.Size([2, 5, 3])

    `parameters`: the inputs that are parameters; their shapes come from `sizes`, the sizes of indices by name, and from
    the shapes of the buffers. `shapes`: the shape of a parameter with an axis that no index names, as the rows of a
    table `E_<token_t, d>`: `{"E": "65 d"}`. `buffers`: inputs that are tensors of the module, saved if `persistent`.
    `init`: a function that fills a tensor, as those of `torch.nn.init` do, or a mapping from names to such functions;
    what it leaves out starts as `tensorattn.initialising` says. `dropout`: the share of the weights that is dropped in
    training, in all statements or in those of `dropped` (`tensorattn.dropout`); the seed is drawn from torch's default
    generator at each call. `outputs`, `plan`, `memory`: those of `tensorattn.compile`.

    A call takes the other inputs by keyword, in one mapping, or in order (`.inputs`). The keys of `state_dict` are the
    names of the tensors.

    Raises: BindingError `E-UNDEF` (no such input), `E-NAME` (a name that cannot be used), `E-INPUT` (at a call);
    ShapeError `E-EXTENT` (a size that nothing gives), `E-RANK`; and what `compile` raises.
    """

    def __init__(
        self,
        program: str | Program,
        *,
        parameters: str | Iterable[str] = (),
        sizes: Mapping[str, int] | None = None,
        shapes: Mapping[str, Any] | None = None,
        buffers: Mapping[str, Tensor] | None = None,
        persistent: bool = True,
        init: Initialiser | Mapping[str, Initialiser] | None = None,
        dropout: float = 0.0,
        dropped: str | Iterable[str] | None = None,
        outputs: str | Sequence[str] | None = None,
        plan: Asking = "auto",
        memory: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        program, self._sizes, buffers = as_program(program), given_sizes("sizes", sizes), dict(buffers or {})
        names = (parameters,) if isinstance(parameters, str) else tuple(parameters)
        options: dict[str, Any] = {"outputs": outputs, "sizes": self._sizes, "plan": plan, "memory": memory}
        self._compiled = compile(program, **options)
        _check_names(program, self._compiled, names, tuple(buffers))
        _check_functions(init, names)
        self._init, self._dropout, self._dropped = init, _rate(dropout), None
        self._seed, self._rate = _fresh(program, "seed"), _fresh(program, "rate")
        if dropout or dropped is not None:
            changed = dropped_program(program, dropped, seed=self._seed, rate=self._rate)
            self._dropped = compile(changed, **options)
        found = _shapes(program, self._sizes, names, dict(shapes or {}), buffers)
        self._known = {name: size.constant for name, size in found.index_sizes.items()}
        for name in names:
            shape = _shape(program, name, found.tensor_shapes[name])
            self.register_parameter(name, torch.nn.Parameter(torch.empty(shape, device=device, dtype=dtype)))
        for name, tensor in buffers.items():
            self.register_buffer(name, _moved(tensor, device, dtype), persistent=persistent)
        self._own = (*names, *buffers)
        self._inputs = tuple(name for name in self._compiled.inputs if name not in self._own)
        self.reset_parameters()

    @property
    def program(self) -> Program:
        """The formula."""
        return self._compiled.program

    @property
    def inputs(self) -> tuple[str, ...]:
        """The inputs of a call, in order."""
        return self._inputs

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Every parameter as it starts."""
        for name, parameter in self.named_parameters(recurse=False):
            own = self._init.get(name) if isinstance(self._init, Mapping) else self._init
            if own is not None:
                made = own(parameter)
                if isinstance(made, Tensor) and made is not parameter:
                    parameter.copy_(made)
                continue
            first = start(self.program, name, self._known)
            if first.deviation:
                parameter.normal_(first.mean, first.deviation)
            else:
                parameter.fill_(first.mean)

    def forward(self, *arrays: Any, **named: Any) -> Any:
        """The output of the formula, or a dict of them.

        Raises: BindingError `E-INPUT E-UNDEF`; ShapeError; DTypeError; BackendError.
        """
        values = self._given(arrays, named)
        for name in self._own:
            values[name] = getattr(self, name)
        if self._dropped is None or not self.training:
            return self._compiled(values)
        values[self._seed] = torch.randint(SEEDS, (), device=_device(values))
        values[self._rate] = self._dropout
        return self._dropped(values)

    def _given(self, arrays: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
        """The inputs of a call by name. Raises: BindingError `E-INPUT`."""
        if len(arrays) == 1 and isinstance(arrays[0], Mapping):
            named = {**arrays[0], **named}
            arrays = ()
        if len(arrays) > len(self._inputs):
            facts = [f"the inputs of a call, in order: {', '.join(self._inputs) or 'none'}"]
            what = f"a call takes {len(self._inputs)} inputs, {len(arrays)} are given"
            raise BindingError("E-INPUT", what, facts=facts, hint="give them by name")
        for name, array in zip(self._inputs, arrays, strict=False):
            if name in named:
                raise BindingError("E-INPUT", f"the input `{name}` is given twice", hint="by name or in order")
            named[name] = array
        for name in self._own:
            if name in named:
                facts = [f"the inputs of a call: {', '.join(self._inputs) or 'none'}"]
                what = f"`{name}` is a tensor of the module, no input of a call"
                raise BindingError("E-INPUT", what, facts=facts, hint="torch.func.functional_call replaces it")
        return named

    def extra_repr(self) -> str:
        """The formula, the parameters with their shapes, and the dropout."""
        parts = [str(self.program)]
        for word, tensors in (("parameters", self.named_parameters), ("buffers", self.named_buffers)):
            shown = ", ".join(f"{n}{list(t.shape)}" for n, t in tensors(recurse=False))
            parts += [f"{word} {shown}"] if shown else []
        if self._dropout:
            parts.append(f"dropout {self._dropout}")
        return ("; " if len(self.program.statements) == 1 else "\n").join(parts)


def _shapes(
    program: Program, sizes: dict[str, int], names: tuple[str, ...], shapes: dict[str, Any], buffers: dict[str, Tensor]
) -> Any:
    """The sizes that are known of everything. Raises: BindingError `E-UNDEF`; ShapeError."""
    for name in shapes:
        if name not in names:
            hint = suggest(str(name), names) or "the shapes of other inputs come with the call"
            raise BindingError("E-UNDEF", f"shapes= names `{name}`, which is no parameter", hint=hint)
    known = {name: declared(name, shape) for name, shape in {**shapes, **buffers}.items()}
    return solve(program, known, sizes, complete=False)


def _shape(program: Program, name: str, shape: tuple[Size, ...]) -> tuple[int, ...]:
    """The shape of a parameter. Raises: ShapeError `E-EXTENT` that names the index whose size is not known."""
    use = next(t for t in program.tensors if t.name == name)
    if Index(BATCH) in use.slots:
        what = f"the parameter `{name}` has batch axes `...`, which stand for no fixed shape"
        raise ShapeError("E-EXTENT", what, source=program.source, spans=_span(use), hint="write its indices")
    for axis, size in enumerate(shape):
        if size.constant is not None:
            continue
        symbols = sorted(size.symbols)
        if f"{name}.{axis}" in symbols:
            read = show_slot(use.slots[axis])
            what = f"axis {axis} of the parameter `{name}` is read at `{read}`: no index has its size"
            axes = " ".join("…" if n == axis else show_slot(s) for n, s in enumerate(use.slots))
            hint = f'shapes={{"{name}": "{axes}"}}'
        else:
            shown = ", ".join(f"|{s}|" for s in symbols)
            what = f"the shape of the parameter `{name}` needs {shown}, which nothing gives"
            hint = "sizes={" + ", ".join(f'"{s}": …' for s in symbols) + "}"
        raise ShapeError("E-EXTENT", what, source=program.source, spans=_span(use), hint=hint)
    return tuple(int(size.constant or 0) for size in shape)


def _span(use: Any) -> tuple[Any, ...]:
    return (use.span,) if use.span else ()


def _check_names(program: Program, compiled: Compiled, parameters: tuple[str, ...], buffers: tuple[str, ...]) -> None:
    """Raises: BindingError."""
    for what, names in (("parameter", parameters), ("buffer", buffers)):
        for name in names:
            if name not in program.inputs:
                facts = [f"the formula's inputs: {', '.join(program.inputs)}"]
                hint = suggest(str(name), program.inputs) or "name inputs only"
                raise BindingError("E-UNDEF", f"the {what} `{name}` is no input of the formula", facts=facts, hint=hint)
            if name not in compiled.inputs:
                hint = "name it in outputs=, or leave it out"
                raise BindingError("E-UNDEF", f"no output needs the {what} `{name}`", hint=hint)
            if names.count(name) > 1 or (name in parameters and name in buffers):
                other = "named twice" if names.count(name) > 1 else "a parameter and a buffer"
                raise BindingError("E-NAME", f"`{name}` is {other}", hint="name it once")
            if hasattr(Formula, name) or name in torch.nn.Module().__dict__:
                hint = f'rename it: program.rename({name}="{name}0")'
                raise BindingError("E-NAME", f"`{name}` is an attribute of every torch module", hint=hint)


def _check_functions(init: Any, names: tuple[str, ...]) -> None:
    """Raises: BindingError."""
    if init is not None and not callable(init) and not isinstance(init, Mapping):
        raise BindingError("E-INPUT", f"init={init!r} is no function", hint="init=torch.nn.init.xavier_uniform_")
    for name, function in init.items() if isinstance(init, Mapping) else ():
        if name not in names:
            hint = suggest(str(name), names) or "name parameters only"
            raise BindingError("E-UNDEF", f"init= names `{name}`, which is no parameter", hint=hint)
        if not callable(function):
            hint = f'init={{"{name}": torch.nn.init.zeros_}}'
            raise BindingError("E-INPUT", f"init[{name!r}] is {function!r}, no function", hint=hint)


def _rate(dropout: Any) -> float:
    if isinstance(dropout, bool) or not isinstance(dropout, (int, float)) or not 0 <= dropout <= 1:
        raise BindingError("E-INPUT", f"dropout={dropout!r} is no rate", hint="a number from 0 to 1")
    return float(dropout)


def _fresh(program: Program, name: str) -> str:
    taken = {*program.defined, *program.inputs, *program.indices}
    return next(n for n in (name, *(f"{name}{k}" for k in range(len(taken) + 1))) if n not in taken)


def _moved(tensor: Any, device: Any, dtype: torch.dtype | None) -> Tensor:
    """A buffer on the device of the parameters; only floats take their dtype."""
    tensor = torch.as_tensor(tensor)
    return tensor.to(device=device, dtype=dtype if tensor.is_floating_point() else None)


def _device(values: Mapping[str, Any]) -> torch.device | None:
    return next((v.device for v in values.values() if isinstance(v, Tensor)), None)
