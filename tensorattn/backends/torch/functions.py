"""Functions that generated torch code calls: traceable, differentiable, on any device."""

# What these ask of torch has no public names there.
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false

import math
from collections.abc import Sequence

import torch

from tensorattn.backends.limits import LOOK
from tensorattn.errors import ShapeError


def device_of(*inputs: object) -> torch.device | None:
    """The device of the first tensor among the inputs (None, the default, if all are numbers)."""
    for given in inputs:
        if isinstance(given, torch.Tensor):
            return given.device
    return None


def all_finite(*arrays: torch.Tensor) -> bool:
    """Whether every entry is known to be finite: a finite sum proves it.

    A value may only be looked at outside tracers and transforms.
    """
    return may_look(*arrays) and all(math.isfinite(x.sum().item()) for x in arrays)


def holds(test: torch.Tensor) -> bool:
    """Whether a truth without axes is known to hold."""
    return may_look(test) and bool(test.item())


COARSE = 2.0**-10  # of a weight


def are_fine(logarithms: Sequence[torch.Tensor]) -> bool:
    """Whether each log Σ exp is known to be so small that weights made from it are off by no more than COARSE."""
    if not logarithms or not may_look(*logarithms):
        return not logarithms
    sizes = [x.abs() for x in logarithms]
    coarse = [((x > COARSE / torch.finfo(x.dtype).eps) & (x < math.inf)).any() for x in sizes]
    return not torch.stack(coarse).any().item()  # a device is waited for once


def may_look(*arrays: torch.Tensor) -> bool:
    """Whether values may be looked at: not in a tracer or a transform, nor where there are none, nor while a graph of
    CUDA is captured, which runs later."""
    if is_followed() or (any(x.is_cuda for x in arrays) and torch.cuda.is_current_stream_capturing()):
        return False
    return all((type(x) is torch.Tensor or type(x) is torch.nn.Parameter) and not x.is_meta for x in arrays)


def is_followed() -> bool:
    """Whether a tracer or a transform sees every operation, and may see no value."""
    if torch.compiler.is_compiling() or torch.jit.is_tracing() or torch._C._len_torch_dispatch_stack():
        return True
    return torch._C._functorch.maybe_current_level() is not None  # type: ignore[attr-defined]


def in_forward_mode() -> bool:
    """Whether forward derivatives are taken."""
    return torch.autograd.forward_ad._current_level >= 0


def is_for_onnx() -> bool:
    """Whether a trace goes to ONNX, which has none of our operators."""
    return torch.compiler.is_compiling() and torch.onnx.is_in_onnx_export()


def may_write(*inputs: object) -> bool:
    """Whether results may be written over what is no longer needed: nobody else sees or records the operations.

    Gradients, forward derivatives, tracers, transforms and subclasses see every one of them, and autocast chooses the
    dtypes of new arrays only.
    """
    if is_followed() or in_forward_mode():
        return False
    records = torch.is_grad_enabled()
    for x in inputs:
        if isinstance(x, torch.Tensor) and (
            type(x) not in (torch.Tensor, torch.nn.Parameter)
            or (records and x.requires_grad)
            or x.is_meta
            or torch.is_autocast_enabled(x.device.type)
        ):
            return False
    return True


def is_near(device: torch.device | None) -> bool:
    """Whether a value can be looked at without waiting for a device."""
    return (device or torch.get_default_device()).type == "cpu"


def longest(x: torch.Tensor, dims: tuple[int, ...], room: int = LOOK) -> float:
    """The greatest Euclidean norm over the axes; at least that, where squares underflow."""
    x = x if x.is_floating_point() else x.double()
    if not x.numel():
        return 0.0
    if not dims:
        least, most = torch.aminmax(x)
        return torch.maximum(-least, most).item() + math.sqrt(torch.finfo(x.dtype).tiny)
    if dims == tuple(range(x.dim() - len(dims), x.dim())):
        return torch.linalg.vector_norm(x, dim=dims).amax().item() + math.sqrt(torch.finfo(x.dtype).tiny)
    longest_dim = max(range(x.dim()), key=lambda dim: x.shape[dim])  # the norm along other axes is slow
    step = max(room * x.shape[longest_dim] // x.numel(), 1)  # squares stay in cache
    squares = x.new_zeros(())
    for part in x.split(step, longest_dim):
        found = torch.sum(part * part, dim=dims)
        squares = squares + found if longest_dim in dims else torch.maximum(squares, found.amax())
    return squares.amax().sqrt().item() + math.sqrt(torch.finfo(x.dtype).tiny)


MANY_ROWS = 32  # for each pair, so that a look at the pairs costs little beside what is done with them
PAIRS = 1 << 18  # looked at together


def longest_pair(a: torch.Tensor, b: torch.Tensor, rows: int, room: int | None = None) -> float:
    """The greatest norm of a product of two vectors along the last axis, one of a and one of b at the same first place.

    Infinite where it is not worth a look or takes more than `room` entries, where a square may be lost, and where an
    entry is no finite number.
    """
    if rows < MANY_ROWS or not (a.numel() and b.numel()) or (room is not None and a.numel() + b.numel() > room):
        return math.inf
    a, b = a * a, (b * b).mT
    if not (a.amax().item() < 1e18 and b.amax().item() < 1e18):
        return math.inf
    step = max((room or PAIRS) // (b.shape[0] * b.shape[2]), 1)
    return 1.001 * math.sqrt(max((a[:, n : n + step] @ b).amax().item() for n in range(0, a.shape[1], step)))


def longest_image(x: torch.Tensor, rows: tuple[int, ...], columns: tuple[int, ...], room: int = LOOK) -> float:
    """At least the greatest factor by which matrices, one at each place along the other axes, lengthen a vector.

    (Σ σ⁸)^⅛ of their singular values σ, a Schatten norm, in three products; of large ones (Σ σ²)^½. NaN or infinite
    where an entry is.
    """
    lengths = [math.prod(x.shape[dim] for dim in dims) for dims in (rows, columns)]
    if not x.numel():
        return 0.0
    least, greatest = torch.aminmax(x)
    most = torch.maximum(-least, greatest).item()
    if not 0 < most < math.inf:
        return most
    digits = 1.01 + max(lengths) * torch.finfo(x.dtype).eps  # of products of few digits, and of long sums
    if math.prod(lengths) > room:
        return digits * longest(x, tuple(sorted((*rows, *columns))), room)
    others = sorted({*range(x.ndim)} - {*rows, *columns}, key=lambda dim: -x.shape[dim])
    x = x.permute(*others, *rows, *columns) if others else x.permute(*rows, *columns)[None]
    step, found = max(room // math.prod(x.shape[1:]), 1), []
    for n in range(0, x.shape[0], step):
        part = x[n : n + step].reshape(-1, *lengths) / most  # no power overflows, and none of the greatest underflows
        part = part if lengths[0] >= lengths[1] else part.mT
        square = part.mT @ part
        square = square @ square
        found.append(torch.sum(square * square, dim=(1, 2)).amax())
    return digits * most * float(torch.stack(found).amax()) ** 0.125


def integer_matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The matrix product of integers, which CUDA does not have."""
    if a.device.type == "cpu":
        return a @ b
    left = a if a.dim() > 1 else a[None, :]
    right = b if b.dim() > 1 else b[:, None]
    product = torch.sum(left[..., :, :, None] * right[..., None, :, :], dim=-2)
    product = product if b.dim() > 1 else product[..., 0]
    return product if a.dim() > 1 else (product[..., 0, :] if b.dim() > 1 else product[..., 0])


def product(x: torch.Tensor, dims: tuple[int, ...]) -> torch.Tensor:
    for dim in sorted(dims, reverse=True):
        x = torch.prod(x, dim=dim)
    return x


def greatest(x: torch.Tensor, dims: tuple[int, ...]) -> torch.Tensor:
    """The maximum over `dims` (its gradient shared equally among ties); nothing there: −∞."""
    if any(x.shape[dim] == 0 for dim in dims):
        return torch.full(_rest(x, dims), _bound(x, -1), dtype=x.dtype, device=x.device)
    return torch.amax(x, dim=dims)


def least(x: torch.Tensor, dims: tuple[int, ...]) -> torch.Tensor:
    """The minimum over `dims` (its gradient shared equally among ties); nothing there: +∞."""
    if any(x.shape[dim] == 0 for dim in dims):
        return torch.full(_rest(x, dims), _bound(x, 1), dtype=x.dtype, device=x.device)
    return torch.amin(x, dim=dims)


def _rest(x: torch.Tensor, dims: tuple[int, ...]) -> list[int]:
    return [size for dim, size in enumerate(x.shape) if dim not in dims]


def _bound(x: torch.Tensor, side: int) -> float:
    if x.is_floating_point():
        return side * math.inf
    return torch.iinfo(x.dtype).max if side > 0 else torch.iinfo(x.dtype).min


def relu(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x)


def leaky_relu(x: torch.Tensor, slope: torch.Tensor | float) -> torch.Tensor:
    return torch.where(x > 0, x, slope * x)


def elu(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.elu(x)


def gelu(x: torch.Tensor) -> torch.Tensor:
    far = x == math.inf  # where torch's vectorised one of float32 is NaN
    return torch.where(far, x, torch.nn.functional.gelu(torch.where(far, 0.0, x)))


def sigmoid(x: torch.Tensor) -> torch.Tensor:
    return torch.sigmoid(x)


def silu(x: torch.Tensor) -> torch.Tensor:
    return x * torch.sigmoid(x)


def softplus(x: torch.Tensor) -> torch.Tensor:
    return -torch.nn.functional.logsigmoid(-x)  # torch's own softplus turns linear above a threshold


def sign(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x == x, torch.sign(x), x)  # torch's sign of NaN is 0


def in_twos(x: torch.Tensor) -> torch.Tensor:
    """x / ln 2, finite where x is."""
    most = torch.finfo(x.dtype).max
    return torch.where(x.isinf(), x, (x / math.log(2)).clamp(-most, most))


def rows(x: torch.Tensor, dims: tuple[int, ...]) -> torch.Tensor:
    """The axes `dims`, in their order, flattened into one last axis."""
    last = tuple(range(-len(dims), 0))
    return x.movedim(dims, last).flatten(-len(dims))


def unrows(flat: torch.Tensor, dims: tuple[int, ...], shape: tuple[int, ...]) -> torch.Tensor:
    """The inverse of `rows` for a tensor of this shape."""
    parted = flat.unflatten(-1, [shape[dim] for dim in dims])
    return parted.movedim(tuple(range(-len(dims), 0)), dims)


def excluded_as(x: torch.Tensor, dims: tuple[int, ...], live: torch.Tensor) -> torch.Tensor:
    """x where `live`, else −∞, but 0 in rows where nothing is: what softmax can take without making a NaN."""
    some = torch.any(live, dim=dims, keepdim=True)
    return torch.where(live, x, torch.where(some, -math.inf, 0.0).to(x.dtype))


def log_sum_exp(x: torch.Tensor, dims: tuple[int, ...], where: torch.Tensor | None = None) -> torch.Tensor:
    """log Σ exp over the admitted entries; −∞, with gradient 0, where there are none."""
    live = x != -math.inf
    if where is not None:
        live = live & where
    admitted = excluded_as(x, dims, live)
    if may_write(x):
        total = torch.logsumexp(admitted, dim=dims)
    else:  # the slope exp(x - total) has no digit for the number of entries, where these are large
        near = torch.logsumexp(admitted.detach(), dim=dims, keepdim=True)
        near = torch.where(torch.isfinite(near), near, 0)
        total = torch.logsumexp(admitted - near, dim=dims) + near.reshape(_rest(x, dims))
    return torch.where(torch.any(live, dim=dims), total, -math.inf)


def _sorted(x: torch.Tensor) -> torch.Tensor:
    """The positions along the last axis in the order of the entries, equal ones in that of positions.

    ONNX orders them so always, and the exporter does not know the word for it.
    """
    return torch.argsort(x, dim=-1) if is_for_onnx() else torch.argsort(x, dim=-1, stable=True)


def largest(
    x: torch.Tensor, dims: tuple[int, ...], count: torch.Tensor | int, where: torch.Tensor | None = None
) -> torch.Tensor:
    """True at the `count` largest admitted entries; ties go to the lower position, NaN comes last."""
    flat = rows(x, dims)
    order = _sorted(-flat if x.is_floating_point() else ~flat)
    admitted = None if where is None else rows(where.expand(x.shape), dims)
    if admitted is not None:
        excluded = ~torch.gather(admitted, -1, order)
        order = torch.gather(order, -1, _sorted(excluded.to(torch.int32)))
    rank = torch.argsort(order, dim=-1)
    chosen = rank < (rows(count, dims) if isinstance(count, torch.Tensor) and count.dim() else count)
    return unrows(chosen if admitted is None else chosen & admitted, dims, x.shape)


@torch.library.custom_op(
    "tensorattn::check_range",
    mutates_args=(),
    schema="(Tensor positions, SymInt size, str what, Tensor? where) -> Tensor",
)
def _check_range(positions: torch.Tensor, size: int, what: str, where: torch.Tensor | None) -> torch.Tensor:
    outside = (positions < 0) | (positions >= size)
    if where is not None:
        outside = outside & where
    if torch.any(outside):
        value = int(positions.expand(outside.shape)[outside][0])
        allowed = f"0..{size - 1}" if size else "none: the size is 0"
        raise ShapeError(
            "E-RANGE",
            f"{what}: position {value} is out of range",
            facts=(f"allowed: {allowed}",),
            hint="exclude the tuple with a predicate, or mend the positions; they never wrap",
        )
    return positions.clone() if where is None else torch.where(where, positions, 0)


@_check_range.register_fake
def _check_range_fake(positions: torch.Tensor, size: int, what: str, where: torch.Tensor | None) -> torch.Tensor:
    return positions.clone() if where is None else torch.where(where, positions, 0)


@_check_range.register_vmap
def _check_range_vmap(
    info: object,
    in_dims: tuple[int | None, ...],
    positions: torch.Tensor,
    size: int,
    what: str,
    where: torch.Tensor | None,
) -> tuple[torch.Tensor, int]:
    ranks = [x.dim() - (dim is not None) for x, dim in ((positions, in_dims[0]), (where, in_dims[3])) if x is not None]
    rank = max(ranks)
    positions = batch_first(positions, in_dims[0], rank)
    where = None if where is None else batch_first(where, in_dims[3], rank)
    return _check_range(positions, size, what, where), 0


def batch_first(x: torch.Tensor, dim: int | None, rank: int) -> torch.Tensor:
    """x with the mapped dimension `dim` (None: a new one) first, and `rank` more."""
    x = x[None] if dim is None else x.movedim(dim, 0)
    return x[(slice(None), *(None,) * (rank + 1 - x.dim()))]


def check_range(positions: torch.Tensor, size: int, what: str, where: torch.Tensor | None = None) -> torch.Tensor:
    """The positions, 0 where not admitted: one opaque operator, so that it traces. Raises: ShapeError.

    ONNX has no such operator, and its positions wrap: there a negative one is moved beyond the end, which is refused.
    """
    if is_for_onnx():
        positions = torch.where(positions < 0, size, positions)
        return positions if where is None else torch.where(where, positions, 0)
    return _check_range(positions, size, what, where)


def segment_sum(source: torch.Tensor, segments: torch.Tensor, dim: int, size: int) -> torch.Tensor:
    """Σ of the entries of each segment along `dim`; `segments` has the rank of the source. Floats in float64."""
    shape = [size if n == dim else length for n, length in enumerate(source.shape)]
    if 0 in shape:
        return source.new_zeros(shape)
    wide = source.double() if source.is_floating_point() else source
    total = torch.zeros(shape, dtype=wide.dtype, device=source.device)
    return total.scatter_add(dim, segments.expand(source.shape), wide).to(source.dtype)


def occupied(x: torch.Tensor, kept: int) -> torch.Tensor:
    """x, along the dimensions after the first `kept` with one entry 0 where there is none: for excluded positions."""
    if 0 not in x.shape[kept:]:
        return x
    shape = (*x.shape[:kept], *(max(size, 1) for size in x.shape[kept:]))
    return torch.sum(x).to(x.dtype).expand(shape)  # 0, through which x has a gradient


def scatter(source: torch.Tensor, kept: int, places: tuple[torch.Tensor, ...], shape: tuple[int, ...]) -> torch.Tensor:
    """The entries added up where they belong: the first `kept` dimensions as they are, the others at the places."""
    total = torch.zeros(shape, dtype=source.dtype, device=source.device)
    if places and 0 not in shape:
        return torch.ops.aten.index_put(total, [*[None] * kept, *places], source, True)
    return total if places else total + source


def with_link(result: torch.Tensor, inputs: list[torch.Tensor]) -> torch.Tensor:
    """The result, whose gradients for these inputs are recorded to be zeros, in every order."""
    links = [x.flatten()[:1].sum().to(result.dtype) for x in inputs if isinstance(x, torch.Tensor) and x.requires_grad]
    if not links:
        return result
    never = torch.zeros((), dtype=torch.bool, device=result.device)
    return result + sum(torch.where(never, link, 0) for link in links)
