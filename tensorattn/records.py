"""Instructions that only what is priced has: no kernel holds them and no back end runs them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Union

from tensorattn.ir import Index
from tensorattn.kernel import Attend
from tensorattn.parts import Register
from tensorattn.sizes import Size


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunked(Attend):
    """NumPy's attention, so many keys at a time as `chunk` has; `apart`: of one matrix of the batch after the other."""

    chunk: Index
    apart: bool


@dataclass(frozen=True, slots=True)
class Flash:
    """torch's attention kernel on operands of one `width`, the mask as floats.

    `several`: the axes of the batch that are not known to be of size 1. `count`: the scores that it computes. `held`:
    the weights that one thread of its backward pass holds, with their cotangents, in entries. `given`: what the mask is
    made of.
    """

    out: Register
    query: Register
    key: Register
    value: Register
    mask: Register | None
    batch: tuple[Index, ...]
    scores: tuple[Index, ...]
    count: Size
    width: tuple[Index, ...]
    held: int
    several: tuple[Index, ...]
    given: tuple[Register, ...] = ()


@dataclass(frozen=True, slots=True)
class FlashBack:
    """Its backward pass, which makes the weights again. `outs`: the cotangents of query, key and value.

    `kept`: what it reads, with the cotangent of the result last.
    """

    of: Flash
    outs: tuple[Register, ...]
    kept: tuple[Register, ...]


@dataclass(frozen=True, slots=True)
class Widened:
    """The source with zeros up to another width, or cut to one: the kernel knows one width of its operands."""

    out: Register
    source: Register


@dataclass(frozen=True, slots=True)
class SoftmaxBack:
    """Of a softmax, W (W̄ − Σ W W̄) in one pass over the weights and their cotangents."""

    out: Register
    weights: Register
    bar: Register


@dataclass(frozen=True, slots=True)
class Added:
    """A cotangent with another term, in its memory."""

    out: Register
    into: Register
    term: Register


@dataclass(frozen=True, slots=True)
class Slope:
    """The cotangent times the slope of a function of one array, from the argument or the value that is `kept`."""

    out: Register
    function: str
    bar: Register
    kept: Register


Record = Union[Flash, FlashBack, Widened, SoftmaxBack, Added, Slope]
