"""Memory of loops over tiles: rooms and what is written to them, stretches of results, and running sums."""

import math

import torch

from tensorattn.backends.torch.functions import in_forward_mode, is_followed


def put(pieces: list[torch.Tensor], part: torch.Tensor, dim: int, start: int, size: int) -> None:
    """Take a stretch of a result that is `size` long along `dim`.

    The list holds the whole result, from the start or from the first stretch on; where gradients or a transform follow
    what is computed, it holds the stretches, or the whole is made anew, for those do not follow a write well.
    """
    recorded = is_recorded(part)
    if not pieces and not recorded:
        shape = [*part.shape[:dim], size, *part.shape[dim + 1 :]]
        pieces.append(torch.empty(shape, dtype=part.dtype, device=part.device))
    if pieces and pieces[0].shape[dim] == size:
        if recorded:
            pieces[0] = torch.slice_scatter(pieces[0], part, dim, start, start + part.shape[dim])
        else:
            pieces[0].narrow(dim, start, part.shape[dim]).copy_(part)
    else:
        pieces.append(part)


def joined(pieces: list[torch.Tensor], dim: int) -> torch.Tensor:
    """The result whose stretches were put; the list gives it away."""
    found = pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=dim)
    pieces.clear()
    return found


def is_recorded(x: torch.Tensor) -> bool:
    """Whether something watches the computation: recorded gradients, a transform, forward mode, a subclass."""
    recorded = x.requires_grad and torch.is_grad_enabled()
    return recorded or is_followed() or in_forward_mode() or type(x) is not torch.Tensor


LOG2_E = 1 / math.log(2)


def exp_(x: torch.Tensor) -> torch.Tensor:
    """e^x in place of x ≤ 0, by exp2 where that is known to be the faster one, after a pass for its unit.

    That rounds once more: |x| e^x 2^-24 is less than an ulp of the largest weight, which is 1.
    """
    if x.dtype is not torch.float32 or not x.is_cpu or is_recorded(x):
        return x.exp_()
    return x.mul_(LOG2_E).exp2_()


class Room(dict[tuple[int, ...], torch.Tensor]):
    """Flat memory; `room[shape]` is a view of its first entries, kept because most tiles have one shape."""

    def __init__(self, memory: torch.Tensor) -> None:
        self.memory = memory

    def __missing__(self, shape: tuple[int, ...]) -> torch.Tensor:
        if len(self) == 4:  # of a triangle every tile has another
            self.clear()
        view = self[shape] = self.memory[: math.prod(shape)].view(shape)
        return view


def fit(room: Room | None, shape: tuple[int, ...]) -> torch.Tensor | None:
    """The room in this shape; None, which asks for new memory, where there is none."""
    return None if room is None else room[shape]


def select(p: torch.Tensor, a: torch.Tensor, b: torch.Tensor | float, out: torch.Tensor | None = None) -> torch.Tensor:
    """a where p, else b; `out` is written if given (nobody follows the values then, and most of a tile may be in p)."""
    if out is None:
        return torch.where(p, a, b)
    if isinstance(b, torch.Tensor):
        return torch.where(p, a, b, out=out)
    out = out if out is a else out.copy_(a)
    if not out.is_cpu or out.numel() < SMALL_TILE:
        return out.masked_fill_(~p, b)
    if _at_places(p, out, b):
        return out
    first, last = outside(p)
    if first < last:
        part = out[..., first:last] if p.dim() and p.shape[-1] > 1 else out
        p = p[..., first:last] if p.dim() else p
        part.masked_fill_(~p, b) if out.dtype not in BITS else _in_bits(p, part, b)
    return out


def outside(p: torch.Tensor) -> tuple[int, int]:
    """The stretch of the last axis without which p holds everywhere; (0, 0) if it does anyway."""
    if not p.numel():
        return 0, 0
    bytes_ = p.view(torch.uint8)  # of which the least is found twenty times as fast as whether all bools are true
    columns = bytes_.flatten(0, -2).amin(0) if p.dim() > 1 else bytes_.reshape(-1)
    places = (columns == 0).nonzero()
    return (int(places[0]), int(places[-1]) + 1) if len(places) else (0, 0)


SMALL_TILE = 1 << 14  # entries that are filled in less time than a look at the mask takes
SHORT_MASK = 1 << 14  # whose places are found in less time than a tile takes
FEW_PLACES = 16  # of which one is outside: then an entry at a time costs less than all that lie around them


def _at_places(p: torch.Tensor, out: torch.Tensor, b: float) -> bool:
    """Fill `out` where not p, place by place; whether that was worth it."""
    if p.numel() > SHORT_MASK:
        return False
    held = [dim for dim in range(-p.dim(), 0) if p.shape[dim] > 1]
    if not held or not p.numel():
        return False
    first, last = held[0], held[-1]
    whole = all(p.shape[dim] == out.shape[dim] for dim in range(first, last + 1))
    if not whole or any(out.stride(d) != out.stride(d + 1) * out.shape[d + 1] for d in range(first, last)):
        return False  # what is filled is to be one dimension of `out`
    places = p.logical_not().flatten().nonzero().squeeze(1)
    if len(places) * FEW_PLACES > p.numel():
        return False
    if len(places):
        out.flatten(first, last).index_fill_(last, places, b)
    return True


FEW_BITS = 1 << 15  # of a mask at once
BITS = {torch.float32: torch.int32, torch.float64: torch.int64}


def _in_bits(p: torch.Tensor, out: torch.Tensor, b: float) -> torch.Tensor:
    """`out` with b where not p, by masks of its bits, a stretch of p at a time: masked_fill is no vector code and ten
    times slower."""
    kind = BITS[out.dtype]
    bits, other = out.view(kind), torch.tensor(b, dtype=out.dtype).view(kind)
    while p.dim() and len(p) == 1:
        p = p[0]
    if not p.dim():
        return out.fill_(b)
    step = max(FEW_BITS * len(p) // p.numel(), 1)
    for start in range(0, len(p), step):
        mask = p[start : start + step].to(kind).neg_()
        part = bits.narrow(out.dim() - p.dim(), start, len(mask))
        part.bitwise_and_(mask)
        if other != 0:
            part.bitwise_or_(mask.bitwise_not_().bitwise_and_(other))
    return out


def add_product(
    a: torch.Tensor, b: torch.Tensor, added: torch.Tensor, signs: tuple[int, int], out: torch.Tensor | None = None
) -> torch.Tensor:
    """signs[0] a b + signs[1] added, of matrices, one sign of which is 1; `out`, if given, is written in one pass, in
    none where it is `added`."""
    alpha, sign = signs
    added = added if sign > 0 else -added  # small, and BLAS takes another way for a factor that is not 1
    if out is None:
        return added + a @ b if alpha > 0 else added - a @ b
    added = out if added.is_set_to(out) else added  # torch copies what is another object
    if a.dim() == 2:
        return torch.addmm(added, a, b, alpha=alpha, out=out)
    if out.dim() == 3:
        return torch.baddbmm(added, a, b, alpha=alpha, out=out)
    if added.shape[:-2] != out.shape[:-2]:  # one for several places of the batch
        small = 1 in added.shape[-2:]
        added = added.expand(*out.shape[:-2], *added.shape[-2:]) if small else out.copy_(added)
    whole = out.flatten(0, -3)  # a copy where `out` lies in another order
    added = whole if added is out else added.flatten(0, -3)
    torch.baddbmm(added, a.flatten(0, -3), b.flatten(0, -3), alpha=alpha, out=whole)
    return out if whole.data_ptr() == out.data_ptr() else whole.unflatten(0, out.shape[:-2])


def add_products(
    a: torch.Tensor, b: torch.Tensor, added: torch.Tensor, out: torch.Tensor | None = None
) -> torch.Tensor:
    """added + Σ a b over the places of the first dimension, of matrices; `out`, if given, is `added`."""
    if out is None or a.is_cuda:  # where one product is worth a copy of its operands
        return add_product(a.mT.flatten(0, 1).mT, b.flatten(0, 1), added, (1, 1), out)
    return torch.addbmm(out, a, b, out=out)


def add_at(
    total: torch.Tensor, part: torch.Tensor, places: tuple[tuple[int, int, int], ...], own: bool
) -> torch.Tensor:
    """The total with a part added to a stretch of it: for each place a dimension, where it starts and stops."""
    total = total if own else total.clone()
    stretch = total
    for dim, start, stop in places:
        stretch = stretch.narrow(dim, start, stop - start)
    stretch += part
    return total


FEW_PARTS = 4  # of a sum, so that a pass for each costs less than one for their sum and one to add it


def add_sum(total: torch.Tensor, x: torch.Tensor, dims: tuple[int, ...], own: bool) -> torch.Tensor:
    """The total with the sum of x along the axes added."""
    if not own:
        return total + torch.sum(x, dim=dims)
    few = len(dims) == 1 and x.shape[dims[0]] <= FEW_PARTS
    for part in x.unbind(dims[0]) if few else (torch.sum(x, dim=dims),):
        total += part
    return total
