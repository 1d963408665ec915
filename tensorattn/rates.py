"""What a kernel takes in seconds: its counts over the rates of a typical machine.

time = FLOPs of contractions / GEMM rate + exps / exp rate + bytes / bandwidth + instructions · overhead

Bytes count at the rate of the cache where every array of an instruction is small enough, else at that of memory, where
writing costs more than reading because the array is new: the system maps large arrays anew, page by page. The rounds of
a loop use the same memory again, so that larger arrays stay in cache. On a GPU the terms overlap: their maximum.
The rates were measured once, one thread: a plan depends on sizes and the kind of processor, never on what else the
machine does. What matters is their proportion, which differs little between machines of one kind.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf
from types import MappingProxyType

from tensorattn.cost import bytes_moved, exps, flops
from tensorattn.flash import attended
from tensorattn.kernel import Accumulate, Attend, Contract, Instruction, Kernel, LogSumExp, Normalised, Weigh
from tensorattn.lowering.liveness import makes, reads
from tensorattn.lowering.views import BYTES, entries, is_view, size_in_bytes
from tensorattn.peaks import total
from tensorattn.rounds import Tiles, placed, resolved, tiled, with_stretches, with_tiles
from tensorattn.sizes import Size
from tensorattn.windows import additions

# How often a normaliser reads what it is given: maximum, difference, exp and sum, then a quotient; or by sorting.
# A running sum, one entry after the other, takes for every addition as long as so many readings.
PASSES: Mapping[str, Mapping[type, int]] = {
    "numpy": {Normalised: 7, Weigh: 5, LogSumExp: 5, Accumulate: 16},
    "torch": {Normalised: 1, Weigh: 5, LogSumExp: 5, Accumulate: 8},  # its softmax is one operator
}
SORTED, SORTED_PASSES = frozenset({"sparsemax", "entmax"}), 60

FEW_ROWS = 192  # of a query; the fused kernel of the CPU takes fewer in blocks of 32
NARROW_SHARE = 0.75  # of the rate of products that is left then
FLAT_ROWS, FLAT_SHARE = 768, 0.95  # ... of flattened keys; fewer rows than that it takes in blocks of 64


@dataclass(frozen=True, slots=True)
class Rates:
    """FLOPs of a matrix product, and exponentials of base e and of base 2, a second."""

    gemm: float
    exp: float
    exp2: float


@dataclass(frozen=True, slots=True)
class Machine:
    """An array library on a device: rates by dtype, bytes a second, the cache and the cost of one call."""

    library: str
    rates: Mapping[str, Rates]
    cached: float  # bytes a second, read or written, in cache
    read: float  # ... from memory
    written: float  # ... to new memory
    fresh: int  # bytes of a new array that is had from the cache
    reused: int  # ... of one that a round of a loop made before
    call: float  # seconds of one instruction, without its work
    overlaps: bool = False


# AMD EPYC (AVX2), one core, NumPy 2 with OpenBLAS, torch 2 with MKL; arrays of 2^17 to 2^25 entries, 2048² products.
NUMPY = Machine(
    "numpy",
    {"float32": Rates(60e9, 0.7e9, 0.35e9), "float64": Rates(30e9, 0.14e9, 0.14e9)},
    cached=90e9,
    read=25e9,
    written=13e9,
    fresh=4 << 20,
    reused=16 << 20,
    call=1e-6,
)
# ... with AVX-512, where NumPy's exponentials are vectorised and base 2 is the faster one.
NUMPY_BASE_2 = replace(NUMPY, rates={"float32": Rates(107e9, 2.2e9, 4.7e9), "float64": Rates(51e9, 1.0e9, 1.4e9)})
TORCH = Machine(
    "torch",
    {"float32": Rates(60e9, 0.97e9, 1.9e9), "float64": Rates(30e9, 0.38e9, 0.5e9)},
    cached=90e9,
    read=25e9,
    written=2.1e9,
    fresh=4 << 20,
    reused=16 << 20,
    call=3e-6,
)
# One H200, from its data sheet and published kernels: float32 products without TF32.
GPU = Machine(
    "torch",
    {"float32": Rates(50e12, 3.9e12, 3.9e12), "float64": Rates(60e12, 0.5e12, 0.5e12)},
    cached=10e12,
    read=4.3e12,
    written=4.3e12,
    fresh=30 << 20,
    reused=30 << 20,
    call=6e-6,
    overlaps=True,
)
MACHINES = MappingProxyType({"numpy": NUMPY, "numpy base 2": NUMPY_BASE_2, "torch": TORCH, "torch gpu": GPU})


def machine(backend: str, base: str, device: str = "cpu") -> Machine:
    """The machine that arrays of this library on this device are computed on; `base`: of its faster exponential."""
    if not device.startswith("cpu"):
        return MACHINES.get(f"{backend} gpu", TORCH)
    return MACHINES.get(f"{backend} base {base}") or MACHINES.get(backend, TORCH)


@dataclass(frozen=True, slots=True)
class Step:
    """One instruction in one round of the loops around it, for an estimate of its time.

    FLOPs of a contraction; exps of base e and of base 2; bytes read and written, as often as they are; the bytes of
    each of its arrays.
    """

    flops: Size
    exps: Size
    exps2: Size
    read: Size
    written: Size
    arrays: tuple[Size, ...]
    dtype: str
    tiles: tuple[Tiles, ...]
    fused_rows: Size | None = None  # of an attention kernel
    flattened: bool = False  # whether its keys are made of several axes


def seconds(kernel: Kernel, sizes: Mapping[str, int], on: Machine) -> float:
    """The estimated time of a kernel at these sizes."""
    body, tiles, stretches = tiled(kernel)
    means = resolved(stretches, "mean", tiles, sizes)
    tiles = with_stretches(tiles, means)
    known = with_tiles(tiles, sizes)
    known |= {name: max(mean.value(known), 1) for name, mean in means.items()}
    steps = (_step(i, around, on.library) for i, around in placed(body, tiles) if not is_view(i))
    return sum(_seconds(step, known, on) for step in steps)


def _step(instruction: Instruction, tiles: tuple[Tiles, ...], library: str) -> Step:
    """What the time of an instruction depends on. A normaliser passes over its scores several times."""
    made, used = makes(instruction), reads(instruction)
    base_e, base_2 = exps(instruction), Size()
    fused = isinstance(instruction, Attend) and library == "torch"  # its kernel has a fast exponential
    if fused or getattr(instruction, "function", "") == "exp2" or getattr(instruction, "base", "") == "2":
        base_e, base_2 = base_2, base_e
    read = bytes_moved(instruction) - total(size_in_bytes(r) for r in made)
    passes = PASSES[library].get(type(instruction), 1)
    if isinstance(instruction, Accumulate):
        passes *= additions(instruction.windows)
    if isinstance(instruction, Normalised) and instruction.kind in SORTED:
        passes = SORTED_PASSES
    if isinstance(instruction, Attend) and library == "numpy":  # whose attention is written out, chunk by chunk
        read = read + entries(attended(instruction)) * (BYTES[instruction.out.dtype] * PASSES[library][Weigh])
    floats = [r.dtype for r in (*made, *used) if r.dtype.startswith("float")]
    return Step(
        flops(instruction) if isinstance(instruction, (Attend, Contract)) else Size(),
        base_e,
        base_2,
        read * passes,
        total(size_in_bytes(r) for r in made),
        tuple(dict.fromkeys(size_in_bytes(r) for r in (*made, *used))),
        max(floats, default="float32"),
        tiles,
        Size.product(i.name for i in instruction.rows) if fused else None,  # type: ignore[union-attr]
        fused and len(instruction.group) > 1,  # type: ignore[union-attr]
    )


def _share(step: Step, sizes: Mapping[str, int]) -> float:
    """Of the rate of products, what is left in a fused kernel with few rows."""
    rows = inf if step.fused_rows is None else step.fused_rows.value(sizes)
    if rows < FEW_ROWS:
        return NARROW_SHARE
    return FLAT_SHARE if step.flattened and rows < FLAT_ROWS else 1.0


def _seconds(step: Step, sizes: Mapping[str, int], on: Machine) -> float:
    """One instruction in all the rounds of the loops around it."""
    rates = on.rates.get(step.dtype, on.rates["float64"])
    most = on.reused if step.tiles else on.fresh
    in_cache = max((array.value(sizes) for array in step.arrays), default=0) <= most
    read, written = (on.cached, on.cached) if in_cache else (on.read, on.written)
    terms = (
        step.flops.value(sizes) / (rates.gemm * (1.0 if on.overlaps else _share(step, sizes))),
        step.exps.value(sizes) / rates.exp + step.exps2.value(sizes) / rates.exp2,
        step.read.value(sizes) / read + step.written.value(sizes) / written,
    )
    rounds, calls = 1.0, 1
    for tiles in step.tiles:
        rounds *= tiles.size.value(sizes) / max(sizes[tiles.length], 1)
        calls *= sizes[tiles.count]
    return rounds * (max(terms) if on.overlaps else sum(terms)) + calls * on.call
