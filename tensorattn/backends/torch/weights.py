"""Normalisers that generated torch code calls: weights along the axes `dims` jointly.

Excluded entries, and rows with nothing admitted, are exactly 0 with gradient exactly 0: every value goes in through a
`where` or `masked_fill` and comes out through one, and what is computed between them is finite.
"""

import math
from collections.abc import Callable

import torch

from tensorattn.backends.torch.functions import batch_first, is_followed, is_for_onnx, rows, unrows
from tensorattn.backends.torch.tiles import exp_, outside, select
from tensorattn.errors import ShapeError


def softmax(
    score: torch.Tensor,
    dims: tuple[int, ...],
    where: torch.Tensor | None = None,
    sink: torch.Tensor | float | None = None,
) -> torch.Tensor:
    """exp(score) / (Σ exp(score) + exp(sink)), stable; a row with nothing admitted is 0, one with +∞ or NaN is NaN."""
    admitted = score if where is None else score.masked_fill(~where, -math.inf)
    if sink is None:
        weights = _softmax(admitted, dims)
        if _no_row_is_nan(weights, dims):  # a row of −∞ alone is NaN there
            return weights if where is None or not weights.requires_grad else weights.masked_fill(~where, 0)
    dead = admitted == -math.inf
    admitted = admitted.masked_fill(torch.all(dead, dim=dims, keepdim=True), 0)
    weights = _softmax(admitted, dims)
    if sink is not None:  # Σ exp / (Σ exp + exp(sink))
        near = torch.logsumexp(admitted.detach(), dim=dims, keepdim=True)  # beside a large one, log n is lost
        weights = weights * torch.sigmoid(torch.logsumexp(admitted - near, dim=dims, keepdim=True) + (near - sink))
    return weights.masked_fill(dead, 0)


def _softmax(score: torch.Tensor, dims: tuple[int, ...]) -> torch.Tensor:
    if len(dims) == 1:
        return torch.softmax(score, dims[0])
    if dims[0] + len(dims) == score.dim() and dims == tuple(range(dims[0], score.dim())):
        return torch.softmax(score.flatten(dims[0]), -1).view(score.shape)
    return unrows(torch.softmax(rows(score, dims), dim=-1), dims, score.shape)


FEW = 1 << 12  # entries that are compared faster than one of each row is picked


def _no_row_is_nan(weights: torch.Tensor, dims: tuple[int, ...]) -> bool:
    """Whether no row of a softmax is NaN, for all its entries are where one is: one entry a row tells.

    A value may only be looked at outside tracers and transforms, and is worth a look only where no device waits for it.
    """
    if type(weights) is not torch.Tensor or not weights.is_cpu or is_followed():
        return False
    firsts = weights
    if weights.numel() > FEW:
        for dim in sorted(dims, reverse=True):
            firsts = firsts.select(dim, 0)
    return torch.equal(firsts, firsts)  # NaN is not equal to itself


def weigh(
    score: torch.Tensor,
    dims: tuple[int, ...],
    where: torch.Tensor | None = None,
    exp: Callable[[torch.Tensor], torch.Tensor] = exp_,
    floor: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A tile of a softmax: exp(score − m), m = max of the floor and the admitted scores, and the sum."""
    if where is not None and out is not None and where.is_cpu and outside(where) == (0, 0):  # a tile within it
        where = None
    admitted = score if where is None else select(where, score, -math.inf, out)
    greatest = _highest(admitted, dims).detach()
    if floor is not None:
        greatest = torch.maximum(
            greatest, floor.detach()[tuple(None if n in dims else slice(None) for n in range(score.dim()))]
        )
    weights = torch.subtract(admitted, torch.where(greatest == -math.inf, 0, greatest), out=out)
    weights = exp(weights)  # in place: the difference is not needed again
    return weights, torch.squeeze(greatest, dims), torch.sum(weights, dim=dims)


def powers(
    score: torch.Tensor, dims: tuple[int, ...], where: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """exp(score − m), 0 where excluded, and m = max of the admitted scores (0 where there is none), a constant."""
    admitted = score if where is None else torch.where(where, score, -math.inf)
    shift = _highest(admitted.detach(), dims)
    shift = torch.where(shift == -math.inf, 0, shift)
    return exp_(admitted - shift), torch.squeeze(shift, dims)


def _highest(x: torch.Tensor, dims: tuple[int, ...]) -> torch.Tensor:
    """The maximum along the axes, which stay with size 1; −∞ where there is nothing."""
    if any(x.shape[dim] == 0 for dim in dims):
        return x.new_full([1 if n in dims else size for n, size in enumerate(x.shape)], -math.inf)
    return torch.amax(x, dim=dims, keepdim=True)


def l1norm(
    score: torch.Tensor, dims: tuple[int, ...], where: torch.Tensor | None = None, eps: torch.Tensor | float = 0
) -> torch.Tensor:
    """score / (Σ score + eps); 0 where the denominator is 0. Scaled by the greatest entry, so that no sum overflows."""
    admitted = score if where is None else torch.where(where, score, 0)
    scale = _scale(admitted, dims)
    admitted = admitted / scale
    return _quotient(admitted, torch.sum(admitted, dim=dims, keepdim=True) + eps / scale, where)


def l2norm(score: torch.Tensor, dims: tuple[int, ...], where: torch.Tensor | None = None) -> torch.Tensor:
    """score / √Σ score²; 0 where the denominator is 0. Scaled by the greatest entry: no square over- or underflows."""
    admitted = score if where is None else torch.where(where, score, 0)
    admitted = admitted / _scale(admitted, dims)
    square = torch.sum(admitted * admitted, dim=dims, keepdim=True)
    zero = square == 0
    return _quotient(admitted, torch.where(zero, 0, torch.sqrt(torch.where(zero, 1, square))), where)


def _scale(x: torch.Tensor, dims: tuple[int, ...]) -> torch.Tensor:
    """The greatest magnitude along the axes (a constant: it cancels); 1 where there is none, or it is not finite."""
    if x.numel() == 0:
        return torch.ones((), dtype=x.dtype, device=x.device)
    greatest = torch.amax(torch.abs(x.detach()), dim=dims, keepdim=True)
    return torch.where((greatest > 0) & torch.isfinite(greatest), greatest, 1)


def _quotient(admitted: torch.Tensor, total: torch.Tensor, where: torch.Tensor | None) -> torch.Tensor:
    zero = total == 0
    live = ~zero if where is None else ~zero & where
    return torch.where(live, admitted / torch.where(zero, 1, total), 0)


def sparsemax(score: torch.Tensor, dims: tuple[int, ...], where: torch.Tensor | None = None) -> torch.Tensor:
    """The projection onto the simplex: max(score − τ, 0) with τ such that the weights sum to 1.

    Source: Martins and Astudillo 2016, algorithm 1.
    """
    return _sparse(score, dims, where, -2.0, lambda z: _powered(z, _sparsemax_threshold(z), 1))


def entmax_three_halves(score: torch.Tensor, dims: tuple[int, ...], where: torch.Tensor | None = None) -> torch.Tensor:
    """entmax with α = 1.5, exactly, by sorting. Source: Peters, Niculae and Martins 2019, algorithm 2."""
    return _sparse(score, dims, where, -4.0, lambda z: _powered(z / 2, _three_halves_threshold(z / 2), 2))


def entmax(
    score: torch.Tensor, dims: tuple[int, ...], where: torch.Tensor | None = None, alpha: torch.Tensor | float = 1.5
) -> torch.Tensor:
    """max(1 + t (score − τ), 0)^(1/t) with t = α − 1 and τ such that the weights sum to 1; α = 1 is softmax."""
    t = torch.as_tensor(alpha, dtype=score.dtype, device=score.device) - 1
    t = rows(t, dims) if t.dim() else t
    least = torch.clamp(-2 / t.detach(), min=-1e4)  # so far down there is no share, whatever the exponent
    return _sparse(score, dims, where, least, lambda z: _bent(z - _general_shift(z, t), t)[0])


def _sparse(
    score: torch.Tensor,
    dims: tuple[int, ...],
    where: torch.Tensor | None,
    least: torch.Tensor | float,
    shares: Callable[[torch.Tensor], torch.Tensor],
) -> torch.Tensor:
    """Weights of the entmax family, as shares of rows whose greatest entry is 0 and none of whose is below `least`.

    There every share is 0, so that what is far down adds no rounding error. The threshold is a differentiable function
    of the row, with the support held constant: exact wherever the weights have a derivative, to every order.
    """
    flat = rows(score, dims)
    if flat.shape[-1] == 0:
        return score + 0  # no entries, through which the score has a gradient
    live = flat != -math.inf
    if where is not None:
        live = live & rows(where.expand(score.shape), dims)
    greatest = torch.amax(torch.where(live, flat, -math.inf), dim=-1, keepdim=True).detach()
    wild = ~(greatest < math.inf)
    shift = torch.where(torch.isfinite(greatest), greatest, 0)
    tame = live & ~wild
    nothing = torch.where(torch.any(tame, dim=-1, keepdim=True), torch.as_tensor(least).to(flat), 0)
    z = torch.where(tame, torch.maximum(torch.where(tame, flat - shift, 0), nothing), nothing)
    weights = torch.where(live, shares(z), 0)
    weights = torch.where(live & wild, math.nan, weights)
    return unrows(weights, dims, score.shape)


def _powered(z: torch.Tensor, tau: torch.Tensor, exponent: int) -> torch.Tensor:
    support = z > tau
    return torch.where(support, torch.where(support, z - tau, 1) ** exponent, 0)


def _sparsemax_threshold(z: torch.Tensor) -> torch.Tensor:
    ordered = torch.sort(z.detach(), dim=-1, descending=True).values
    rank = torch.arange(1, z.shape[-1] + 1, dtype=z.dtype, device=z.device)
    total = torch.cumsum(ordered, dim=-1)
    count = torch.sum(1 + rank * ordered > total, dim=-1, keepdim=True)
    support = z > (torch.gather(total, -1, torch.clamp(count - 1, min=0)) - 1) / count
    return (torch.sum(torch.where(support, z, 0), dim=-1, keepdim=True) - 1) / torch.sum(support, dim=-1, keepdim=True)


def _three_halves_threshold(z: torch.Tensor) -> torch.Tensor:
    ordered = torch.sort(z.detach(), dim=-1, descending=True).values
    rank = torch.arange(1, z.shape[-1] + 1, dtype=z.dtype, device=z.device)
    mean = torch.cumsum(ordered, dim=-1) / rank
    spread = torch.cumsum(ordered * ordered, dim=-1) - rank * mean * mean
    tau = mean - torch.sqrt(torch.clamp((1 - spread) / rank, min=0))
    count = torch.sum(tau <= ordered, dim=-1, keepdim=True)
    support = z > torch.gather(tau, -1, torch.clamp(count - 1, min=0))
    return _square_threshold(z, support)


def _square_threshold(z: torch.Tensor, support: torch.Tensor) -> torch.Tensor:
    """τ of Σ (z − τ)² = 1 over a known support, from centred moments."""
    count = torch.sum(support, dim=-1, keepdim=True)
    mean = torch.sum(torch.where(support, z, 0), dim=-1, keepdim=True) / count
    spread = torch.sum(torch.where(support, (z - mean) ** 2, 0), dim=-1, keepdim=True)
    return mean - torch.sqrt(torch.clamp((1 - spread) / count, min=0))


@torch.library.custom_op("tensorattn::entmax_shift", mutates_args=(), schema="(Tensor z, Tensor t) -> Tensor")
def _bisected(z: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    """One opaque operator, so that a trace holds one node and not hundreds, and may look at the exponent."""
    if not torch.all(t >= 0):
        raise ShapeError("E-RANGE", "the exponent of entmax must be 1 or more", hint="1 is softmax, 2 is sparsemax")
    return _halved(z, t)


def _halved(z: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    """The greatest τ at which Σ is at least 1, one bit of it a round; n equal entries have (1 − n^−t) / t ≤ log n."""
    low = torch.zeros_like(z[..., :1])
    count = torch.sum(torch.ones_like(z), dim=-1, keepdim=True)  # a number would fix the length in an exported model
    high = low + torch.minimum(1 / t, torch.log(count))
    for _ in range(54 if z.dtype == torch.float64 else 25):
        middle = (low + high) / 2
        inside = torch.clamp(t * (z - middle), min=-1)
        shares = torch.exp(torch.where(inside == 0, z - middle, torch.log1p(inside) / t))
        heavy = torch.sum(shares, dim=-1, keepdim=True) >= 1
        low, high = torch.where(heavy, middle, low), torch.where(heavy, high, middle)
    return low


@_bisected.register_fake
def _bisected_fake(z: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(z[..., :1])


@_bisected.register_vmap
def _bisected_vmap(
    info: object, in_dims: tuple[int | None, ...], z: torch.Tensor, t: torch.Tensor
) -> tuple[torch.Tensor, int]:
    rank = max(x.dim() - (dim is not None) for x, dim in ((z, in_dims[0]), (t, in_dims[1])))
    return _bisected(batch_first(z, in_dims[0], rank), batch_first(t, in_dims[1], rank)), 0


def _general_shift(z: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    """τ by bisection, to the last bit, then two Newton steps that carry the derivatives.

    A Newton step from a constant that solves the equation has the derivative of the implicit function; each further
    step doubles the order to which that holds.
    """
    tau = (_halved if is_for_onnx() else _bisected)(z.detach(), t.detach())
    for _ in range(2):
        shares, slopes = _bent(z - tau, t)
        tau = tau + (torch.sum(shares, dim=-1, keepdim=True) - 1) / torch.sum(slopes, dim=-1, keepdim=True)
    return tau


def _bent(x: torch.Tensor, t: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(1 + t x)^(1/t) where that is positive, else 0, and its slope in x; at t = 0 both are exp(x)."""
    support = t * x > -1
    x = torch.where(support, x, 0)
    inside = t * x
    shares = torch.where(support, torch.exp(x * _log1p_ratio(inside)), 0)
    return shares, shares / (1 + inside)


TERMS = 17  # of the series, exact to 1e-18 below 0.1


def _log1p_ratio(x: torch.Tensor) -> torch.Tensor:
    """log(1 + x) / x, by its series where x is small: the derivatives of the quotient are differences there."""
    near = torch.abs(x) < 0.1  # no constant of the module: a trace for all sizes would take it for an input
    inner, far = torch.where(near, x, 0), torch.where(near, 1, x)
    series = torch.full_like(x, 1 / TERMS)
    for n in reversed(range(1, TERMS)):
        series = 1 / n - inner * series
    return torch.where(near, series, torch.log1p(far) / far)
