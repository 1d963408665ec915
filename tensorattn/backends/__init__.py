"""Back ends: kernel → Python source → callable, one subpackage each, found by the arrays of a call.

A back end is a subpackage of this one that exports the names of `Backend`; nothing lists them. An array library is
never imported to find out whether an array is its own: a library that is not loaded has made no array.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Protocol

from tensorattn.dtypes import FLOATS, join
from tensorattn.errors import BackendError, DTypeError, suggest
from tensorattn.kernel import Kernel


class Backend(Protocol):
    """What a back end module exports."""

    name: str

    def owns(self, array: object) -> bool:
        """Whether the array is of this library."""
        ...

    def as_array(self, value: object, like: Any = None, floating: str = "float64") -> object:
        """An array of a list or a scalar, on the device of `like`, Python floats as `floating`; an array as it is."""
        ...

    def dtype_of(self, array: Any) -> str:
        """`bool int64 float16 bfloat16 float32 float64 complex`; all integer kinds are `int64`. Raises: DTypeError."""
        ...

    def name_of(self, dtype: Any) -> str:
        """The same for a dtype of the library. Raises: DTypeError. Only of a library that watches."""
        ...

    def device_of(self, array: Any) -> str:
        """Where the array lies."""
        ...

    def plainness(self) -> tuple[str, dict[str, object]]:
        """A condition on an array `{x}` for generated checks, and its names: what `owns` asks beyond the dtype."""
        ...

    def facts(self) -> tuple[str, dict[str, object]]:
        """All that checks ask of an array `{x}` as a list of expressions, and the names in them."""
        ...

    def exponential_base(self) -> str:
        """`2` where exp2 is faster than exp on this machine, else `e`."""
        ...

    def store(self, out: object, value: Any) -> None:
        """Copy a result into an array of the user's. Raises: BackendError, ShapeError, DTypeError."""
        ...

    def render(self, kernel: Kernel, function: str, standalone: bool = False) -> str:
        """The kernel as source: a function, or with `standalone` a module that needs only the array library."""
        ...

    def operation(self, key: str, scalars: tuple[bool, ...]) -> Callable[..., tuple[object, ...]]:
        """The program of a key (units.py) as one operator with all its derivatives, which a watcher sees as a whole.

        `scalars`: which inputs are Python numbers. Only of a library that watches."""
        ...

    def linked(
        self, run: Callable[..., tuple[object, ...]], links: tuple[tuple[int, ...], ...]
    ) -> Callable[..., tuple[object, ...]]:
        """The same function, recorded so that each result has gradients of zeros for the inputs at these places.

        Only of a library that watches."""
        ...

    def build(self, kernel: Kernel, function: str) -> Callable[..., tuple[object, ...]]:
        """The kernel as a function of its inputs in order, which returns the outputs in order."""
        ...


@functools.cache
def names() -> tuple[str, ...]:
    """The back ends there are."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(__path__) if module.ispkg))


@functools.cache
def get(name: str) -> Backend:
    """The back end of this name. Raises: BackendError."""
    if name not in names():
        hint = suggest(str(name), names()) or "the back ends are " + ", ".join(names())
        raise BackendError("E-BACKEND", f"there is no back end `{name}`", hint=hint)
    return importlib.import_module(f"{__name__}.{name}")  # type: ignore[return-value]


def number_dtype(value: object) -> str | None:
    """`bool`, `int` or `float` for a Python number (which widens no result), else None."""
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return "int"
    return "float" if type(value) is float else None


def are_python(value: object) -> bool:
    """Whether a list holds Python numbers alone, which have no dtype to bring."""
    if isinstance(value, (list, tuple)):
        return all(map(are_python, value))
    return type(value) in (bool, int, float)


def with_arrays(backend: Backend, values: tuple[Any, ...]) -> tuple[Any, ...]:
    """The inputs of a call with arrays in the place of lists.

    A list widens no result, as a Python number does not: its floats are as wide as the widest of the arrays.
    """
    arrays, dtypes = [v for v in values if backend.owns(v)], set[str]()
    for array in arrays:
        with suppress(DTypeError):  # said later, with the name of the input
            dtypes.add(backend.dtype_of(array))
    near, floating = next(iter(arrays), None), join(dtypes & {*FLOATS}) if dtypes & {*FLOATS} else "float64"
    return tuple(backend.as_array(v, near, floating) if isinstance(v, (list, tuple)) else v for v in values)


def find(arrays: Mapping[str, object]) -> Backend:
    """The back end of the inputs of a call; lists and Python numbers go with the others, or else with NumPy.

    Raises: BackendError (`E-BACKEND`) for several libraries, several devices, or an unsupported library.
    """
    loaded = [get(name) for name in names() if name in sys.modules]
    owners: dict[str, str] = {}
    devices: dict[str, str] = {}
    chosen: Backend | None = None
    for name, array in arrays.items():
        owner = next((backend for backend in loaded if backend.owns(array)), None)
        if owner is not None:
            chosen = chosen or owner
            owners[name], devices[name] = owner.name, owner.device_of(array)
        elif number_dtype(array) is None and not isinstance(array, (list, tuple, complex)):
            raise BackendError(
                "E-BACKEND",
                f"`{name}` is a {type(array).__module__}.{type(array).__qualname__}, no array of a supported library",
                facts=(f"supported: {', '.join(names())}",),
                hint="convert it first",
            )
    _alike("libraries", owners, "convert the inputs to one library")
    _alike("devices", devices, "move the inputs to one device")
    return chosen or get("numpy")


def _alike(kind: str, values: Mapping[str, str], hint: str) -> None:
    if len(set(values.values())) > 1:
        facts = [f"`{name}`: {value}" for name, value in values.items()]
        raise BackendError("E-BACKEND", f"the inputs are of several {kind}", facts=facts, hint=hint)
