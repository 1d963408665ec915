"""The torch back end: the same names as every back end, and its words for the renderer. Importing it loads no torch."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from tensorattn.backends import are_python, building
from tensorattn.backends.vocabulary import Vocabulary, common_functions, common_into
from tensorattn.dtypes import FLOATS
from tensorattn.errors import BackendError, DTypeError, ShapeError
from tensorattn.kernel import Kernel

name = "torch"
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32")

WORDS = Vocabulary(
    name="torch",
    namespace="torch",
    exp2="torch.Tensor.exp2_",
    imports=("import math", "import torch"),
    decorator=None,
    load="{x}.to({dtype})",
    load_known="{x}",
    load_scalar="torch.as_tensor({x}, dtype={dtype}, device=device)",
    unsqueeze="{x}.unsqueeze({dim})",
    permute="{x}.permute({dims})",
    packed="{x}.clone(memory_format=torch.contiguous_format)",
    cast="{x}.to({dtype})",
    full="torch.full({shape}, {value}, dtype={dtype}, device=device)",
    iota="torch.arange({size}, device=device)",
    concatenate="torch.cat({xs}, dim={dim})",
    output="{x}.to({dtype})",
    scalar_output="{x}.to({dtype})",
    copied_output="{x}.to({dtype}, copy=True)",
    integer_matmul="integer_matmul({a}, {b})",
    batch_matmul="torch.bmm({a}, {b})",
    device="device_of({inputs})",
    functions=common_functions("torch"),
    room="Room(torch.empty({size}, dtype={dtype}, device=device)) if own else None",
    over="{x} if own else None",
    looks="own and is_near(device)",
    owned="may_write({inputs})",
    into=common_into("torch") | {"equal": "torch.eq", "batch_matmul": "torch.bmm"},
    folds={
        "sum": "torch.sum({x}, dim={dims})",
        "prod": "product({x}, {dims})",
        "max": "greatest({x}, {dims})",
        "min": "least({x}, {dims})",
        "any": "torch.any({x}, dim={dims})",
        "all": "torch.all({x}, dim={dims})",
    },
    helpers=(
        "tensorattn.backends.hashing",
        "tensorattn.backends.limits",
        "tensorattn.backends.torch.functions",
        "tensorattn.backends.torch.tiles",
        "tensorattn.backends.torch.accumulating",
        "tensorattn.backends.torch.weights",
        "tensorattn.backends.torch.attending",
    ),
    array_only=frozenset({"maximum", "minimum"}),
)


def owns(array: Any) -> bool:
    """Whether this back end computes with it: tensors."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor) and array.layout is torch.strided


def as_array(value: object, like: Any = None, floating: str = "float64") -> object:
    """A tensor of a list or number on the device of `like`, of Python floats as `floating`; a tensor as it is.

    Raises: DTypeError if ragged.
    """
    import torch

    if isinstance(value, torch.Tensor):
        return value
    try:
        device = None if like is None else like.device
        found = torch.as_tensor(value, device=device)
        if found.is_floating_point() and are_python(value):  # not rounded to torch's default first
            return torch.as_tensor(value, dtype=getattr(torch, floating), device=device)
        return found
    except (ValueError, TypeError, RuntimeError, OverflowError) as error:
        raise DTypeError("E-DTYPE", f"this is no array of numbers: {error}") from error


def dtype_of(array: Any) -> str:
    """The logical dtype of a tensor. Raises: DTypeError."""
    return "complex" if isinstance(array, complex) else name_of(array.dtype)


def name_of(torch_dtype: object) -> str:
    """The logical dtype that a torch dtype stands for. Raises: DTypeError."""
    dtype = str(torch_dtype).removeprefix("torch.")
    if dtype in (*FLOATS, "bool"):
        return dtype
    if dtype in INTEGERS:
        return "int64"
    if dtype.startswith("complex"):
        return "complex"
    raise DTypeError("E-DTYPE", f"tensors of dtype {dtype} are not supported", hint="use " + ", ".join(FLOATS))


def device_of(array: Any) -> str:
    """Where the tensor lies."""
    return str(array.device)


def plainness() -> tuple[str, dict[str, object]]:
    """A condition on an array `{x}` of the generated checks, and the names in it: what `owns` asks beyond the dtype."""
    import torch

    return "{x}.layout is strided", {"strided": torch.strided}


def facts() -> tuple[str, dict[str, object]]:
    """All that checks ask of an array `{x}` as a list of expressions, and the names in them."""
    import torch

    told = "{x}.__class__, {x}.dtype, {x}.shape, {x}.device, {x}.layout, {x}.requires_grad and recording()"
    return told, {"recording": torch.is_grad_enabled}


def exponential_base() -> str:
    """torch's exp2 runs at two to three times the rate of its exp."""
    return "2"


def store(out: object, value: Any) -> None:
    """Copy a result into a tensor of the user's. Raises: BackendError, ShapeError, DTypeError."""
    import torch

    if not isinstance(out, torch.Tensor):
        raise BackendError(
            "E-BACKEND", f"`out` is a {type(out).__name__}, the result a tensor", hint="give one like the result"
        )
    if out.shape != value.shape:
        raise ShapeError(
            "E-EXTENT",
            f"`out` has shape {tuple(out.shape)}, the result {tuple(value.shape)}",
            hint="give one of that shape",
        )
    if out.dtype != value.dtype:
        raise DTypeError(
            "E-DTYPE", f"`out` has dtype {out.dtype}, the result {value.dtype}", hint="give one of that dtype"
        )
    if out.device != value.device:
        raise BackendError(
            "E-BACKEND", f"`out` is on {out.device}, the result on {value.device}", hint="give one there"
        )
    if any(step == 0 and size > 1 for step, size in zip(out.stride(), out.shape, strict=True)):
        raise BackendError(
            "E-BACKEND", "`out` is an expanded tensor: several of its entries are one number", hint="out.clone()"
        )
    if out.is_leaf and out.requires_grad and torch.is_grad_enabled():
        raise BackendError("E-BACKEND", "`out` is a leaf that takes gradients", hint="write under torch.no_grad()")
    out.copy_(value)


def render(kernel: Kernel, function: str, standalone: bool = False) -> str:
    """The source of a kernel as torch code."""
    return building.render(kernel, function, WORDS, standalone)


def uncast(run: Callable[..., tuple[object, ...]], values: Sequence[Any]) -> tuple[object, ...]:
    """What a function gives for these inputs in their own dtypes: autocast would change those of some operations and
    not of others, so that the accuracy would depend on the plan."""
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "compiler") or not torch._C._is_any_autocast_enabled():
        return run(*values)
    kinds = [value.device.type for value in values if isinstance(value, torch.Tensor) and not value.is_meta]
    if not kinds:
        return run(*values)
    with torch.autocast(kinds[0], enabled=False):
        return run(*values)


def operation(key: str, scalars: tuple[bool, ...]) -> Callable[..., tuple[object, ...]]:
    """The program of a key as one operator with all its derivatives."""
    from tensorattn.backends.torch import operator

    return operator.operation(key, scalars)


def linked(
    run: Callable[..., tuple[Any, ...]], links: tuple[tuple[int, ...], ...]
) -> Callable[..., tuple[object, ...]]:
    """The same function, recorded so that each result has gradients of zeros for the inputs at these places."""
    from tensorattn.backends.torch.functions import with_link

    def call(*values: Any) -> tuple[object, ...]:
        pairs = zip(run(*values), links, strict=True)
        return tuple(with_link(result, [values[n] for n in places]) for result, places in pairs)

    return call


def build(kernel: Kernel, function: str) -> Callable[..., tuple[object, ...]]:
    """The kernel as a function of its inputs in order."""
    return building.build(kernel, function, WORDS)
