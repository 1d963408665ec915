"""The NumPy back end: the same names as every back end, and its words for the renderer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensorattn.backends import are_python, building
from tensorattn.backends.vocabulary import Vocabulary, common_functions, common_into
from tensorattn.dtypes import FLOATS
from tensorattn.errors import BackendError, DTypeError, ShapeError
from tensorattn.kernel import Kernel

name = "numpy"
KINDS = {"b": "bool", "i": "int64", "u": "int64", "c": "complex"}

WORDS = Vocabulary(
    name="numpy",
    namespace="np",
    exp2="np.exp2",
    imports=("import math", "import numpy as np"),
    decorator='@np.errstate(all="ignore")',
    load="np.asarray({x}, {dtype})",
    load_known="np.asarray({x})",
    load_scalar="np.asarray({x}, {dtype})",
    unsqueeze="{x}[{keys}]",
    permute="{x}.transpose({dims})",
    packed="{x}.copy()",
    cast="{x}.astype({dtype}, copy=False)",
    full="np.full({shape}, {value}, {dtype})",
    iota="np.arange({size}, dtype=np.int64)",
    concatenate="np.concatenate({xs}, axis={dim})",
    output="{x}.astype({dtype}, copy=False)",
    scalar_output="np.asarray({x}, {dtype})",
    copied_output="np.array({x}, {dtype})",
    integer_matmul="{a} @ {b}",
    batch_matmul="{a} @ {b}",
    device=None,
    functions=common_functions("np"),
    room="np.empty({size}, {dtype})",
    into=common_into("np"),
    folds={
        "sum": "total({x}, {dims})",
        "prod": "np.prod({x}, axis={dims})",
        "max": "np.max({x}, axis={dims}, initial=lowest({dtype}))",
        "min": "np.min({x}, axis={dims}, initial=highest({dtype}))",
        "any": "np.any({x}, axis={dims})",
        "all": "np.all({x}, axis={dims})",
    },
    helpers=(
        "tensorattn.backends.erf",
        "tensorattn.backends.hashing",
        "tensorattn.backends.limits",
        "tensorattn.backends.numpy.functions",
        "tensorattn.backends.numpy.accumulating",
        "tensorattn.backends.numpy.weights",
        "tensorattn.backends.numpy.attending",
    ),
)


def owns(array: object) -> bool:
    """Whether this back end computes with it: NumPy arrays and scalars."""
    import numpy as np

    return isinstance(array, (np.ndarray, np.generic)) and not isinstance(array, np.ma.MaskedArray)


def as_array(value: object, like: object = None, floating: str = "float64") -> object:
    """An array of the value (a list, a NumPy scalar, …), of Python floats as `floating`; an array as it is.

    Raises: DTypeError for what is ragged.
    """
    import numpy as np

    try:
        found = np.asarray(value)
        return found.astype(floating) if found.dtype.kind == "f" and are_python(value) else found
    except (ValueError, TypeError, OverflowError) as error:
        raise DTypeError("E-DTYPE", f"this is no array of numbers: {error}") from error


def dtype_of(array: object) -> str:
    """The logical dtype of an array. Raises: DTypeError."""
    import numpy as np

    dtype = np.asarray(array).dtype
    if dtype.name == "uint64":
        hint = "cast it: x.astype(np.int64) where the values fit, or to a float"
        raise DTypeError("E-DTYPE", "arrays of dtype uint64 are not supported: int64 does not hold them", hint=hint)
    if dtype.kind in KINDS:
        return KINDS[dtype.kind]
    if dtype.name in FLOATS:
        return dtype.name
    raise DTypeError("E-DTYPE", f"arrays of dtype {dtype.name} are not supported", hint="use " + ", ".join(FLOATS))


def device_of(array: object) -> str:
    """Where the array lies."""
    return "cpu"


def plainness() -> tuple[str, dict[str, object]]:
    """A condition on an array `{x}` of the generated checks, and the names in it: what `owns` asks beyond the dtype."""
    import numpy as np

    return "not isinstance({x}, masked)", {"masked": np.ma.MaskedArray}


def facts() -> tuple[str, dict[str, object]]:
    """All that checks ask of an array `{x}` as a list of expressions, and the names in them."""
    return "{x}.__class__, {x}.dtype, {x}.shape", {}


def exponential_base() -> str:
    """NumPy's exp2 is vectorised with AVX-512 only; elsewhere its exp is the faster one."""
    from numpy._core._multiarray_umath import __cpu_features__

    return "2" if __cpu_features__.get("AVX512_SKX") else "e"


def store(out: object, value: Any) -> None:
    """Copy a result into an array of the user's. Raises: BackendError, ShapeError, DTypeError."""
    import numpy as np

    if not isinstance(out, np.ndarray):
        raise BackendError(
            "E-BACKEND", f"`out` is a {type(out).__name__}, the result a NumPy array", hint="give one like the result"
        )
    if out.shape != value.shape:
        raise ShapeError(
            "E-EXTENT", f"`out` has shape {out.shape}, the result {value.shape}", hint="give one of that shape"
        )
    if out.dtype != value.dtype:
        raise DTypeError(
            "E-DTYPE", f"`out` has dtype {out.dtype}, the result {value.dtype}", hint="give one of that dtype"
        )
    if not out.flags.writeable:
        raise BackendError("E-BACKEND", "`out` is read-only", hint="give one that can be written")
    np.copyto(out, value)


def render(kernel: Kernel, function: str, standalone: bool = False) -> str:
    """The source of a kernel as NumPy code."""
    return building.render(kernel, function, WORDS, standalone)


def operation(key: str, scalars: tuple[bool, ...]) -> Callable[..., tuple[object, ...]]:
    """Nothing watches NumPy. Raises: BackendError."""
    raise BackendError("E-BACKEND", "NumPy takes no derivatives of calls", hint="write the gradient as a program")


def build(kernel: Kernel, function: str) -> Callable[..., tuple[object, ...]]:
    """The kernel as a function of its inputs in order."""
    return building.build(kernel, function, WORDS)
