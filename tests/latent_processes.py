"""A fit in several processes, each with its shard of the rows."""

from __future__ import annotations

import multiprocessing
import os
import socket

import numpy as np

import tensorattn as ta


def shards(rows, processes):
    """(log-likelihoods, log affinities, emission) as every process of a gloo group has them at the end."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    parts = np.array_split(np.arange(len(rows)), processes)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch.distributed", "tests.latent_processes"])  # imported once, not once each
    with context.Pool(processes) as pool:
        jobs = [(rank, processes, port, rows.take(part)) for rank, part in enumerate(parts)]
        return pool.starmap(fitted, jobs, chunksize=1)


def fitted(rank, processes, port, rows):
    """The fit of one process."""
    import torch.distributed as distributed

    os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
    distributed.init_process_group("gloo", rank=rank, world_size=processes)
    try:
        estimator = ta.latent.ChainedAttentionEstimator(2, 8, 8)
        found = ta.latent.fit(rows, estimator, 30, rng=11, accelerate=True, reduce=ta.latent.AllReduce())
        return found.log_likelihood, found.model.log_affinity, found.model.emission
    finally:
        distributed.destroy_process_group()
