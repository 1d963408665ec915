"""Who watches a call: what torch does with it besides computing. Importing it loads no torch."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

RECORDED, TRANSFORMED, TRACED = "recorded", "transformed", "traced"  # how a call is watched
PLAIN = "plain"  # traced for a format that has no operators but its own


def is_calm() -> bool:
    """Whether torch only computes: no tracer, transform, forward derivative, mode of the user's, nor autocast.

    Where it is so, no input can be followed, and none has to be asked.
    """
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "compiler"):  # the second while another thread imports it
        return True
    return not (
        torch.compiler.is_compiling()
        or torch._C._is_tracing()
        or torch._C._len_torch_dispatch_stack()
        or torch._C._functorch.maybe_current_level() is not None
        or torch.autograd.forward_ad._current_level >= 0
        or torch._C._is_any_autocast_enabled()
    )


def follower(values: Sequence[Any]) -> str:
    """Who follows what is computed with tensors, where torch is not calm: a tracer, a transform or a forward
    derivative; or nobody."""
    torch = sys.modules["torch"]
    traced = torch.compiler.is_compiling() or torch.jit.is_tracing() or _has_tracing_mode(torch)
    if (
        not traced
        and torch._C._functorch.maybe_current_level() is None
        and torch.autograd.forward_ad._current_level < 0
    ):
        return ""
    if not any(isinstance(value, torch.Tensor) for value in values):
        return ""
    return TRACED if traced else TRANSFORMED


def _has_tracing_mode(torch: Any) -> bool:
    """Whether operations are recorded by make_fx, or done on tensors without data."""
    if not torch._C._len_torch_dispatch_stack():
        return False
    kinds = torch._C._TorchDispatchModeKey
    return any(torch._C._get_dispatch_mode(kind) is not None for kind in (kinds.PROXY, kinds.FAKE))


def recorder(values: Sequence[Any]) -> str:
    """Whether gradients are recorded; tensors without data are like a transform, which looks at no value."""
    wanted = False
    for value in values:
        if getattr(value, "is_meta", False):
            return TRANSFORMED
        wanted = wanted or getattr(value, "requires_grad", False)
    return RECORDED if wanted and sys.modules["torch"].is_grad_enabled() else ""


def has_symbols(values: Sequence[Any]) -> bool:
    """Whether some size is a symbol of a tracer, as those of a tensor without data may be outside of one."""
    for value in values:
        for size in getattr(value, "shape", ()):
            if type(size) is not int:
                return True
    return False
