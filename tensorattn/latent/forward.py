"""The library's chain of L hops, compiled: forward pass and posteriors. Torch in, torch out, with gradients."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from tensorattn.compiling import Compiled, compile
from tensorattn.inferring import posterior as posterior_program
from tensorattn.latent.rows import Rows
from tensorattn.library import formulas
from tensorattn.library.chaining import chain


@lru_cache(maxsize=64)
def _compiled(hops: int, observed: bool, masked: bool) -> Compiled:
    return compile(chain(hops, observed=observed, masked=masked))


@lru_cache(maxsize=64)
def _posterior(hops: int, hop: int, masked: bool) -> Compiled:
    return compile(posterior_program(chain(hops, masked=masked), f"i{hop}"))


@lru_cache(maxsize=1)
def _scores() -> Compiled:
    return compile(formulas["key_scores"].program)


def scores_of(keys: Any, sigma2: float) -> list[Any]:
    """The score table (S, S) of every hop of key tables (L, S, S) [hop, key symbol, query symbol]."""
    return [_scores()(K=table, sigma2=sigma2) for table in keys]


def log_density(rows: Rows, scores: Any, emission: Any) -> Any:
    """log p of the targets, (n,). `scores` (L, S, S) [hop, query symbol, key symbol]."""
    return _compiled(len(scores), True, _masked(rows))(_inputs(rows, scores, emission, target=rows.target))


def predicted(rows: Rows, scores: Any, emission: Any) -> Any:
    """The probabilities of all targets, (n, T)."""
    return _compiled(len(scores), False, _masked(rows))(_inputs(rows, scores, emission))


def posteriors(rows: Rows, scores: Any, emission: Any) -> list[Any]:
    """Given the targets: of hop 1 P(z_1 = i), (n, N); of hop l ≥ 2 P(z_{l−1} = i, z_l = j), (n, N, N)."""
    given = _inputs(rows, scores, emission, target=rows.target)
    return [_posterior(len(scores), hop, _masked(rows))(given) for hop in range(1, len(scores) + 1)]


def _masked(rows: Rows) -> bool:
    return not bool(rows.keep.all())


def _inputs(rows: Rows, scores: Any, emission: Any, **observed: Any) -> dict[str, Any]:
    given = {"q": rows.query, "key": rows.context_keys, "val": rows.context_values, **observed}
    if _masked(rows):
        given["keep"] = rows.keep
    if hasattr(emission, "requires_grad"):
        import torch

        given = {name: torch.as_tensor(a, device=emission.device) for name, a in given.items()}
    return {**given, "B": emission, **{f"G{hop}": table for hop, table in enumerate(scores, start=1)}}
