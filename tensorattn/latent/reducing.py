"""Sums over processes: `AllReduce` of torch.distributed, or any function that adds vectors of all processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tensorattn.latent import accepting, statistics
from tensorattn.latent.distribution import ChainedAttentionDistribution
from tensorattn.latent.rows import Array
from tensorattn.latent.statistics import Statistics

Reduce = Callable[[Array], Array]
SAME = 1e-9


class AllReduce:
    """The sum of a vector over the processes of a group of torch.distributed (gloo), each with its own shard of rows.

    Raises: what torch.distributed raises, as where no process group has been made.
    """

    def __init__(self, group: Any = None) -> None:
        self.group = group

    def __call__(self, vector: Array) -> Array:
        import torch
        import torch.distributed as distributed

        summed = torch.from_numpy(np.array(vector, dtype=np.float64))
        distributed.all_reduce(summed, group=self.group)
        return summed.numpy()


def reduced(found: Statistics, reduce: Reduce | None) -> Statistics:
    """The statistics of all processes; they were collected under one model."""
    return found if reduce is None else statistics.unflat(reduce(statistics.flat(found)), found)


def same_everywhere(start: ChainedAttentionDistribution, reduce: Reduce | None) -> None:
    """Raises: ValueRefusedError where the processes start from different models."""
    if reduce is None:
        return
    own = np.concatenate([start.log_affinity.ravel(), start.emission.ravel()])
    count = reduce(np.ones(1))
    mean = reduce(own) / count
    apart = reduce(np.array([float(abs(mean - own).max())]))
    if apart[0] > SAME:
        raise accepting.refused(
            "the processes start from different models",
            hint="give `fit` the same seed in `rng`, or the same `start`, in every process",
        )
