"""Two-index attention that generated torch code calls: torch's own kernels, and plain torch where those do not serve.

`attend(q, k, v, scale)` with q (batch…, L, E), k (batch…, S, E), v (batch…, S, V); `bias` (added) and `where` (what is
admitted) are (batch…, L, S). Batch dimensions of size 1, and L and S of `bias` and `where`, are broadcast. A row with
nothing admitted is 0. With `parts` nothing is divided: the results are Σ e·v, m and Σ e of e = exp(score − m), m (−∞
where nothing is admitted) near the largest score. What is not finite gives what plain torch gives: the fused kernel's
answer is looked at, and where it is not finite it is not used, for its exp need not keep NaN. Nor is it where gradients
or parts would be made from a log Σ exp that is so large that it has no digit for the number of keys.
"""

import math
from itertools import pairwise
from typing import Any, NamedTuple

import torch

from tensorattn.backends.limits import MOST_SCORES
from tensorattn.backends.torch.functions import (
    COARSE,
    are_fine,
    excluded_as,
    in_forward_mode,
    is_followed,
    may_look,
)
from tensorattn.backends.torch.weights import softmax

Scale = float | tuple[float, float]
Parts = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class Asked(NamedTuple):
    """What attention is asked for; the scale as one number."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    scale: float
    bias: torch.Tensor | None
    where: torch.Tensor | None
    causal: bool
    parts: bool
    half: torch.dtype | None = None

    @property
    def operands(self) -> list[torch.Tensor]:
        """What a gradient may be wanted of."""
        return [x for x in (self.q, self.k, self.v, self.bias) if x is not None]

    @property
    def recorded(self) -> bool:
        return torch.is_grad_enabled() and any(x.requires_grad for x in self.operands)

    @property
    def batch(self) -> torch.Size:
        shown = self.operands if self.where is None else [*self.operands, self.where]
        return torch.broadcast_shapes(*(x.shape[:-2] for x in shown))


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scale: Scale,
    bias: torch.Tensor | None = None,
    where: torch.Tensor | None = None,
    causal: bool = False,
    parts: bool = False,
    half: torch.dtype | None = None,
) -> torch.Tensor | Parts:
    """softmax(scale · q·k + bias) · v over the admitted keys, or its parts.

    `half`: what q, k and v were before they were widened, so that a device may run its kernel for it.
    """
    if isinstance(scale, tuple):  # the divisor is 0 only where E is 0, and every score with it
        scale = scale[0] / scale[1] if scale[1] else 1.0
    asked, found = Asked(q, k, v, scale, bias, where, causal, parts, half), None
    if _is_fusible(asked):
        found = (_on_cpu if q.device.type == "cpu" else _on_device)(asked)
    if found is None:
        found = _in_blocks(asked)
    return found if parts else found[0]


def _is_fusible(asked: Asked) -> bool:
    """Whether a fused kernel may run: on plain tensors that are not empty (it crashes), with the derivatives it has."""
    operands = asked.operands
    shown = operands if asked.where is None else [*operands, asked.where]
    if is_followed() or any(type(x) is not torch.Tensor and type(x) is not torch.nn.Parameter for x in shown):
        return False
    if any(x.is_meta or x.numel() == 0 for x in shown) or operands[0].dtype not in (torch.float32, torch.float64):
        return False
    if in_forward_mode():
        return False
    if not torch.is_grad_enabled():
        return True
    return not any(x.requires_grad for x in (operands if asked.parts else operands[3:]))  # no gradient of bias and of L


# Fused on the CPU -------------------------------------------------------------------------------------------------


def _on_cpu(asked: Asked) -> Parts | None:
    """torch's flash kernel; None where its answer is not to be trusted."""
    batch, causal, scale = asked.batch, asked.causal, asked.scale
    rows, width = asked.q.shape[-2], asked.v.shape[-1]
    q, k, v = _of_one_width(asked.q, asked.k, asked.v)  # before anything is broadcast
    q, k, v, mask = _four_dimensional(batch, q, k, v, _mask(q, asked.bias, asked.where))
    recorded = asked.recorded
    out, total = (Flash.apply if recorded else _flash)(q, k, v, mask, causal, scale)
    if not (total.amax() < math.inf and math.isfinite(out.detach().sum())):
        return None
    zero = total == 0  # what the kernel gives for a row of −∞; for one of NaN, too, where keys are few
    if zero.any():
        dead = None if mask is None else (mask == -math.inf).all(-1).expand(total.shape)
        doubtful = zero & (out == 0).all(-1)
        if (doubtful if dead is None else doubtful & ~dead).any():
            return None
        total = total if dead is None else total.masked_fill(dead, -math.inf)
    if (recorded or asked.parts) and not are_fine([total]):
        return None
    if width < out.shape[-1]:
        out = out[..., :width] if recorded else out[..., :width].clone()  # no result is kept with zeros that fill it up
    total = total.reshape(*batch, rows)
    return out.reshape(*batch, rows, width), total, (total != -math.inf).to(total.dtype)


def _mask(q: torch.Tensor, bias: torch.Tensor | None, where: torch.Tensor | None) -> torch.Tensor | None:
    """What is added to the scores: the bias, and −∞ where nothing is admitted."""
    if where is None:
        return bias
    if bias is None:
        return torch.zeros(where.shape, dtype=q.dtype, device=q.device).masked_fill_(~where, -math.inf)
    return torch.where(where, bias, -math.inf)


def _flash(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, causal: bool, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    return flash(q, k, v, 0.0, causal, attn_mask=mask, scale=scale)


class Flash(torch.autograd.Function):
    """The flash kernel with its own backward, and a backward in plain torch where that is differentiated again."""

    @staticmethod
    def forward(
        ctx: Any,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        mask: torch.Tensor | None,
        causal: bool,
        scale: float,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        out, total = _flash(q, k, v, mask, causal, scale)
        ctx.save_for_backward(q, k, v, mask, out, total)
        ctx.how = causal, scale
        ctx.mark_non_differentiable(total)
        return out, total

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> tuple[Any, ...]:
        grad, _ = grad_outputs
        q, k, v, mask, out, total = ctx.saved_tensors
        causal, scale = ctx.how
        if torch.is_grad_enabled():
            again = [x if x.requires_grad else x.detach().requires_grad_() for x in (q, k, v)]
            keys, mask = _without_dead(again[1], mask)
            asked = Asked(again[0], keys, again[2], scale=scale, bias=mask, where=None, causal=causal, parts=False)
            plain = _plain(asked)[0]
            grads = torch.autograd.grad(plain, again, grad, create_graph=True)
        else:
            flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
            grad = grad.transpose(1, 2).contiguous().transpose(1, 2)  # else the kernel makes a copy of its own as well
            grads = flash(grad, q, k, v, out, total, 0.0, causal, attn_mask=mask, scale=scale)
        return *grads, None, None, None


def _without_dead(k: torch.Tensor, mask: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Keys with 0 for those that are not finite, which the mask excludes: all their scores were −∞, for the answer of
    the kernel was a number. A second derivative would multiply them by 0."""
    dead = ~k.isfinite().all(-1)
    if not dead.any():
        return k, mask
    none = torch.zeros((), dtype=k.dtype, device=k.device) if mask is None else mask
    return k.masked_fill(dead[..., None], 0), torch.where(dead[..., None, :], -math.inf, none)


def _of_one_width(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> list[torch.Tensor]:
    """Zeros fill the narrower side, for the kernel knows one width; it reads neighbours along the last dimension.

    Where a wide one has to be filled all are, to a multiple of eight, which the kernel is faster with.
    """
    width = max(q.shape[-1], v.shape[-1])
    if q.shape[-1] != v.shape[-1] and width > 32:
        width = -(-width // 8) * 8
    padded = [x if x.shape[-1] == width else torch.nn.functional.pad(x, (0, width - x.shape[-1])) for x in (q, k, v)]
    return [x if x.stride(-1) == 1 else x.contiguous() for x in padded]


def _four_dimensional(
    batch: torch.Size, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """The operands with two batch dimensions, of full size but for those of the mask, which the kernel broadcasts.

    The kernel wants the second one inside the rows: it copies a cotangent that lies otherwise, and gives gradients so.
    """
    inside = len(batch) > 0 and q.stride(-3) < q.stride(-2)
    cut = best = len(batch) - inside
    if len(batch) > 1:  # where fewest operands have to be copied; a mask without rows is small
        shown = [x for x in (q, k, v, mask) if x is not None and x.shape[-2] > 1]
        cut = min(range(1, len(batch) + 1), key=lambda n: (sum(not _fits(x, batch, n) for x in shown), n != best))
    full = math.prod(batch[:cut]), math.prod(batch[cut:])
    q, k, v = (_two_batches(x, batch, cut).expand(*full, *x.shape[-2:]) for x in (q, k, v))
    return q, k, v, None if mask is None else _two_batches(mask, batch, cut)


def _two_batches(x: torch.Tensor, batch: torch.Size, cut: int) -> torch.Tensor:
    """The batch dimensions before and after the cut as one each, which stays of size 1 where all of them are."""
    pairs = (x.shape[:cut], batch[:cut]), (x.shape[cut:-2], batch[cut:])
    before, after = (own if _is_one(own) else whole for own, whole in pairs)
    wide = x.expand(*before, *after, *x.shape[-2:])
    return wide.reshape(math.prod(before), math.prod(after), *x.shape[-2:])


def _is_one(sizes: torch.Size) -> bool:
    return all(size == 1 for size in sizes)


def _fits(x: torch.Tensor, batch: torch.Size, cut: int) -> bool:
    """Whether the batch dimensions before and after the cut are each all broadcast, or neighbours in memory."""
    for part in (range(cut), range(cut, len(batch))):
        own = [(batch[n], x.stride(n) if x.shape[n] > 1 else 0) for n in part if batch[n] > 1]
        if any(step for _, step in own) and any(step != size * one for (_, step), (size, one) in pairwise(own)):
            return False
    return True


# Fused elsewhere --------------------------------------------------------------------------------------------------


def _on_device(asked: Asked) -> Parts | None:
    """torch chooses the kernel; the device waits only where gradients are recorded. None where parts are asked for."""
    q, k, v, scale, bias, where, causal, parts, half = asked
    if parts or (asked.recorded and _is_coarse(asked)):
        return None
    wide = q.dtype
    if half is not None:  # no digit is lost; the kernel adds scores and sums up in float32
        q, k, v = (x.to(half) for x in (q, k, v))
    if causal and (bias is not None or where is not None):
        below = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril()
        where, causal = below if where is None else where & below, False
    mask = _mask(q, bias, where)
    batch = torch.broadcast_shapes(*(x.shape[:-2] for x in (q, k, v, mask) if x is not None))
    q, k, v, four = _four_dimensional(batch, q, k, v, mask)
    attention = torch.nn.functional.scaled_dot_product_attention
    out = attention(q, k, v, attn_mask=four, is_causal=causal, scale=scale)
    out = out.reshape(*batch, *out.shape[-2:]).to(wide)
    if mask is not None:
        out = out.masked_fill((mask == -math.inf).all(-1, keepdim=True), 0)
    return out, out, out


@torch.no_grad()
def _is_coarse(asked: Asked) -> bool:
    """Whether gradients made from the log Σ exp would be wrong: by a bound, for which the device is waited for once,
    else by the scores.

    While a graph of CUDA is captured nobody can tell, and the kernel runs.
    """
    q, k, bias = asked.q, asked.k, asked.bias
    if not may_look(q):
        return False
    norms = [torch.linalg.vector_norm(x, dim=-1).amax() for x in (q, k)]
    bound = abs(asked.scale) * norms[0] * norms[1] + math.log(k.shape[-2])
    if bias is not None:
        rows = bias.amax(-1)
        bound = bound + rows.masked_fill(rows == -math.inf, 0).abs().amax()
    if bound.item() < COARSE / torch.finfo(q.dtype).eps:
        return False
    _, greatest, _ = _in_blocks(asked._replace(parts=True))
    return not are_fine([greatest])


# Plain ------------------------------------------------------------------------------------------------------------


def _plain(asked: Asked, first: int = 0) -> Parts:
    """The same in plain torch, with every derivative; `first`: the position of the first row."""
    q, k, v, scale, bias, where, causal, parts, _ = asked
    score = (q * scale) @ k.transpose(-1, -2)
    score = score if bias is None else score + bias
    if causal:
        positions = torch.arange(score.shape[-1], device=q.device)
        below = positions <= torch.arange(first, first + score.shape[-2], device=q.device)[:, None]
        where = below if where is None else where & below
    if where is not None:
        where = where.expand(torch.broadcast_shapes(where.shape, score.shape))
        score = score.expand(where.shape)
    if not parts:
        out = softmax(score, (score.dim() - 1,), where) @ v
        return out, out, out
    live = score != -math.inf if where is None else (score != -math.inf) & where
    some, flat = live.any(-1), excluded_as(score, (score.dim() - 1,), live)
    near = torch.logsumexp(flat.detach(), dim=-1)  # of no keys it is −∞, where amax fails
    near = torch.where(torch.isfinite(near), near, 0)
    powers = torch.where(live, torch.exp(flat - near[..., None]), 0)
    out, greatest = powers @ v, torch.where(some, near, -math.inf)
    return out, greatest.expand(out.shape[:-1]), powers.sum(-1).expand(out.shape[:-1])


def _in_blocks(asked: Asked) -> Parts:
    """The plain way in blocks of rows, so that it holds few scores; in one where a gradient or a trace is recorded."""
    q, rows = asked.q, asked.q.shape[-2]
    most = MOST_SCORES // max(math.prod(asked.batch) * asked.k.shape[-2], 1)
    if rows <= most or asked.recorded or torch.compiler.is_compiling():
        return _plain(asked)
    found = []
    for start in range(0, rows, max(most, 1)):
        stop = start + max(most, 1)
        bias, where = (x if x is None or x.shape[-2] == 1 else x[..., start:stop, :] for x in (asked.bias, asked.where))
        found.append(_plain(asked._replace(q=q[..., start:stop, :], bias=bias, where=where), start))
    outs, *sums = zip(*found, strict=True)
    out = torch.cat(outs, dim=-2)
    greatest, total = (torch.cat(x, dim=-1) for x in sums) if asked.parts else (out, out)
    return out, greatest, total
