"""W11: what a call costs beside its array operations, at tiny sizes, and the time of compiling 20 formulas."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np

from benchmarks.workload import Arrays, Einsums, Function, Peer, Sizes, Workload
from benchmarks.workloads import trilinear, two_index

FORMULAS = 20


def own_operations(workload: Workload, sizes: Sizes) -> Function:
    """The same kernel as plain array code, without tensorattn around it."""
    from benchmarks.peers import compiled, indices_of

    namespace: dict[str, Any] = {}
    types = dict.fromkeys(workload.inputs, "float32")
    exec(compiled(workload, sizes).source("torch", indices_of(workload, sizes), dtypes=types), namespace)

    formula = namespace["formula"]
    names = formula.__code__.co_varnames[: formula.__code__.co_argcount]
    return lambda a: formula(*[a[name] for name in names])[0]


def expression_operations(workload: Workload, sizes: Sizes) -> Function:
    """The array operations of opt_einsum's expressions, on arrays that need no preparation."""
    import opt_einsum
    import torch

    from benchmarks.peers import shapes

    einsums = workload.einsums
    assert isinstance(einsums, Einsums)
    known = shapes(workload, sizes)
    (spec, operands), *_ = einsums.terms
    score = _steps(opt_einsum.contract_path(spec, *(known[n] for n in operands.split()), shapes=True)[1])
    weight_shape = tuple(sizes[index] for index in workload.score.split())
    value_shapes = (weight_shape, *(known[n] for n in einsums.value[1].split()))
    value = _steps(opt_einsum.contract_path(einsums.value[0], *value_shapes, shapes=True)[1])
    divide = sizes[einsums.divide] ** 0.5 if einsums.divide else 1.0

    def run(steps: tuple[tuple[tuple[int, ...], str], ...], arrays: list[Any]) -> Any:
        for places, spec in steps:
            arrays.append(torch.einsum(spec, *[arrays.pop(place) for place in places]))
        return arrays[0]

    def call(a: Arrays) -> Any:
        weights = run(score, [a[name] for name in operands.split()]) / divide
        weights = weights.flatten(-einsums.barred).softmax(-1).view(weight_shape)
        return run(value, [weights, *[a[name] for name in einsums.value[1].split()]])

    return call


def _steps(info: Any) -> tuple[tuple[tuple[int, ...], str], ...]:
    return tuple((tuple(sorted(c[0], reverse=True)), c[2]) for c in info.contraction_list)


def compile_twenty(workload: Workload, sizes: Sizes) -> Function:
    """Parse, check and compile 20 formulas of the library; a comment makes each text new to any cache."""
    import tensorattn

    entries = list(tensorattn.formulas.values())[:FORMULAS]
    number = count()

    def call(a: Arrays) -> Any:
        for entry in entries:
            tensorattn.compile(f"{entry.formula}\n# {next(number)}", sizes=dict(entry.sizes))
        return np.zeros(())

    return call


def _tiny(workload: Workload) -> Workload:
    tiny = {index: 16 if index in ("mu", "nu", "rho") else 8 for index in workload.sizes["full"]} | {"b": 1, "h": 1}
    sizes = {"full": tiny, "small": tiny, "check": workload.sizes["check"]}
    peers = (
        Peer("tensorattn, array code alone", own_operations),
        Peer("opt_einsum, operations alone", expression_operations),
    )
    name, title = f"W11-{workload.name}", f"call overhead: {workload.title}"
    return replace(workload, name=name, title=title, sizes=sizes, peers=peers)


W11_COMPILE = Workload(
    name="W11-compile", title=f"compile time of {FORMULAS} formulas", formula="", inputs={}, row_axis=0, score="",
    sizes={"full": {}, "small": {}, "check": {}}, dense=lambda a, rows, sizes: np.zeros(()), flops=lambda sizes: 0,
    exps=lambda sizes: 0, peers=(Peer("tensorattn, compile", compile_twenty),), compiles_only=True,
)  # fmt: skip

WORKLOADS = (*(_tiny(workload) for workload in (two_index.W1, trilinear.W4, trilinear.W6)), W11_COMPILE)
