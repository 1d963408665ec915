"""The peers that every workload has: tensorattn with each plan, dense torch and its kin, einsum libraries."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from benchmarks.workload import Arrays, Einsums, Function, Peer, RefusedError, Sizes, Workload

PLANS = ("dense", "flattened", "streamed", "factored")
CHUNK_BYTES = 1 << 26


def peers_of(workload: Workload) -> tuple[Peer, ...]:
    """Everyone who competes on this workload with arrays of its library, tensorattn first."""
    if workload.compiles_only:
        return workload.peers
    plans = () if workload.name.startswith("W11") else PLANS
    own = [Peer("tensorattn", partial(_tensorattn, plan="auto"), workload.backend)]
    own += [Peer(f"tensorattn, {plan}", partial(_tensorattn, plan=plan), workload.backend) for plan in plans]
    others = _numpy_peers(workload) if workload.backend == "numpy" else _torch_peers(workload)
    return (*own, *others)


def _torch_peers(workload: Workload) -> tuple[Peer, ...]:
    found = list(workload.peers)
    if workload.torch is not None:
        found.append(Peer("dense torch", _dense_torch, predicted_bytes=_dense_bytes))
        found.append(Peer("torch.compile", _compiled_torch, predicted_bytes=_dense_bytes))
    if workload.name in ("W4", "W4-long", "W9"):
        found.append(Peer("checkpointed loop over mu", _checkpointed))
    if workload.einsums is not None:
        found.append(Peer("opt_einsum + softmax", partial(_expressions, library="torch"), predicted_bytes=_dense_bytes))
        found.append(Peer("einx", _einx, needs=("einx",), predicted_bytes=_dense_bytes))
    return tuple(found)


def _numpy_peers(workload: Workload) -> tuple[Peer, ...]:
    if workload.einsums is None:
        return ()
    return (
        Peer("np.einsum + softmax", _numpy_einsum, "numpy", predicted_bytes=_dense_bytes),
        Peer("opt_einsum + softmax", partial(_expressions, library="numpy"), "numpy", predicted_bytes=_dense_bytes),
    )


# tensorattn ----------------------------------------------------------------------------------------------------------


def compiled(workload: Workload, sizes: Sizes, plan: str = "auto") -> Any:
    """The compiled formula. Raises: RefusedError where there is no such plan for it."""
    import tensorattn

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tensorattn.NotationWarning)
        try:
            return tensorattn.compile(workload.text(sizes), plan=plan)
        except tensorattn.PlanError as error:
            raise RefusedError(f"no such plan: {error.what}") from error


def _tensorattn(workload: Workload, sizes: Sizes, plan: str) -> Function:
    return compiled(workload, sizes, plan)


def indices_of(workload: Workload, sizes: Sizes) -> dict[str, int]:
    """The sizes of the indices of the formula, without the numbers that it writes out."""
    used = {index for given in workload.inputs.values() for index in given.axes.split()}
    return {index: size for index, size in sizes.items() if index in used}


# torch ---------------------------------------------------------------------------------------------------------------


def _dense_bytes(workload: Workload, sizes: Sizes) -> int:
    """Scores and weights, and one of their temporaries."""
    return 4 * 3 * workload.score_entries(sizes)


def _written(workload: Workload) -> Callable[[Arrays, Sizes], Any]:
    assert workload.torch is not None
    return workload.torch


def _dense_torch(workload: Workload, sizes: Sizes) -> Function:
    return partial(_written(workload), sizes=sizes)


def _compiled_torch(workload: Workload, sizes: Sizes) -> Function:
    import torch

    return torch.compile(partial(_written(workload), sizes=dict(sizes)), dynamic=False)


def _checkpointed(workload: Workload, sizes: Sizes) -> Function:
    """Rows in chunks, each recomputed in the backward pass: the usual way out of a dense computation's memory."""
    import torch
    from torch.utils.checkpoint import checkpoint

    dense = _written(workload)
    axes = {n: g.axes.split().index(workload.row) for n, g in workload.inputs.items() if workload.row in g.axes.split()}
    rows = sizes[workload.row]
    length = max(1, rows * CHUNK_BYTES // (4 * workload.score_entries(sizes)))

    def call(a: Arrays) -> Any:
        names = list(a)

        def chunk(*tensors: Any) -> Any:
            return dense(dict(zip(names, tensors, strict=True)), sizes)

        found = []
        for start in range(0, rows, length):
            size = min(length, rows - start)
            sliced = [a[n].narrow(axes[n], start, size) if n in axes else a[n] for n in names]
            found.append(checkpoint(chunk, *sliced, use_reentrant=False))
        return torch.cat(found, dim=workload.row_axis)

    return call


# einsum libraries ----------------------------------------------------------------------------------------------------


def shapes(workload: Workload, sizes: Sizes) -> dict[str, tuple[int, ...]]:
    """The shape of every input."""
    return {name: tuple(sizes[i] for i in given.axes.split()) for name, given in workload.inputs.items()}


def _said(workload: Workload) -> Einsums:
    assert workload.einsums is not None
    return workload.einsums


def _summed(einsums: Einsums, found: list[tuple[str, Any]]) -> Any:
    """Terms of few letters, broadcast to all letters of the score and added."""
    total: Any = 0
    for letters, term in found:
        spread = tuple(slice(None) if letter in letters else None for letter in einsums.score)
        total = total + term[spread]
    return total


def _einsum_attention(
    einsums: Einsums, sizes: Sizes, contract: Callable[..., Any], softmax: Callable[..., Any]
) -> Function:
    """`contract(number, spec, *arrays)` and `softmax(score, barred)` of some library around one another."""

    def call(a: Arrays) -> Any:
        found = []
        for number, (spec, operands) in enumerate(einsums.terms):
            term = contract(number, spec, *[a[name] for name in operands.split()])
            if einsums.divide and number == 0:
                term = term / sizes[einsums.divide] ** 0.5
            found.append((spec.split("->")[1], term))
        weights = softmax(_summed(einsums, found), einsums.barred)
        spec, operands = einsums.value
        return contract(-1, spec, weights, *[a[name] for name in operands.split()])

    return call


def _numpy_softmax(score: np.ndarray, barred: int) -> np.ndarray:
    axes = tuple(range(-barred, 0))
    weights = np.exp(score - score.max(axis=axes, keepdims=True))
    return weights / weights.sum(axis=axes, keepdims=True)


def _torch_softmax(score: Any, barred: int) -> Any:
    return score.flatten(-barred).softmax(-1).view(score.shape)


def _numpy_einsum(workload: Workload, sizes: Sizes) -> Function:
    """np.einsum with its best order of contraction, found once."""
    paths: dict[int, Any] = {}

    def contract(number: int, spec: str, *arrays: np.ndarray) -> np.ndarray:
        if number not in paths:
            paths[number] = np.einsum_path(spec, *arrays, optimize="optimal")[0]
        return np.einsum(spec, *arrays, optimize=paths[number])

    return _einsum_attention(_said(workload), sizes, contract, _numpy_softmax)


def _expressions(workload: Workload, sizes: Sizes, library: str) -> Function:
    """opt_einsum's compiled expressions, the order of contraction found once."""
    import opt_einsum

    einsums, known = _said(workload), shapes(workload, sizes)
    weights = tuple(sizes[index] for index in workload.score.split())
    made: dict[int, Any] = {}
    for number, (spec, operands) in enumerate(einsums.terms):
        made[number] = opt_einsum.contract_expression(spec, *(known[n] for n in operands.split()), optimize="optimal")
    spec, operands = einsums.value
    made[-1] = opt_einsum.contract_expression(spec, weights, *(known[n] for n in operands.split()), optimize="optimal")

    def contract(number: int, spec: str, *arrays: Any) -> Any:
        return made[number](*arrays)

    softmax = _numpy_softmax if library == "numpy" else _torch_softmax
    return _einsum_attention(einsums, sizes, contract, softmax)


def _einx(workload: Workload, sizes: Sizes) -> Function:
    """einx's notation; its `dot` contracts an axis of two tensors; a third is multiplied into one of them before."""
    import einx

    einsums = _said(workload)
    score, barred = einsums.score, einsums.barred
    brackets = f"{' '.join(score[:-barred])} [{' '.join(score[-barred:])}]"

    def contract(number: int, spec: str, *arrays: Any) -> Any:
        inputs, output = spec.split("->")
        letters, operands = inputs.split(","), list(arrays)
        while any(inputs.count(letter) > 2 and letter not in output for letter in inputs):
            merged = "".join(dict.fromkeys(letters[-2] + letters[-1]))
            operands[-2:] = [einx.multiply(_spaced(f"{letters[-2]},{letters[-1]}->{merged}"), *operands[-2:])]
            letters[-2:] = [merged]
            inputs = ",".join(letters)
        for place, own in enumerate(letters):  # `dot` contracts no axis of a single tensor
            lone = [letter for letter in own if inputs.count(letter) == 1 and letter not in output]
            if lone:
                pattern = " ".join(f"[{letter}]" if letter in lone else letter for letter in own)
                operands[place] = einx.sum(pattern, operands[place])
                letters[place] = "".join(letter for letter in own if letter not in lone)
        inputs = ",".join(letters)
        return einx.dot(_spaced(f"{inputs}->{output}"), *operands) if len(operands) > 1 else operands[0]

    def softmax(value: Any, barred: int) -> Any:
        return einx.softmax(brackets, value)

    return _einsum_attention(einsums, sizes, contract, softmax)


def _spaced(spec: str) -> str:
    """`bhmi,bhni->bhmn` as einx writes it.

    >>> _spaced("mi,ni->mn")
    'm i, n i -> m n'
    """
    inputs, output = spec.split("->")
    return f"{', '.join(' '.join(part) for part in inputs.split(','))} -> {' '.join(output)}"
