"""Calling a compiled formula on arrays that were read from files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import rich_click as click

from tensorattn.cli.arrays import plain_values

if TYPE_CHECKING:
    import numpy as np

    from tensorattn.compiling import Compiled


def call(compiled: Compiled, inputs: Mapping[str, Any], backend: str) -> dict[str, np.ndarray]:
    """The results by name, computed by the array library named."""
    arrays = dict(inputs) if backend == "numpy" else {name: _to_torch(value) for name, value in inputs.items()}
    found = compiled(arrays)
    names = tuple(compiled.signature.outputs)
    results = found if isinstance(found, Mapping) else {names[0]: found}
    return {name: _to_numpy(value) for name, value in results.items()}


def _to_torch(value: Any) -> Any:
    try:
        import torch
    except ImportError as error:
        raise click.UsageError('--backend torch needs: pip install "tensorattn[torch]"') from error
    return value if isinstance(value, (int, float)) else torch.from_numpy(value)


def _to_numpy(value: Any) -> np.ndarray:
    import numpy as np

    return np.asarray(value)


def results_text(results: Mapping[str, np.ndarray]) -> str:
    """Name, shape, dtype and values of each result."""
    return "\n".join(f"{name} {list(array.shape)} {array.dtype}\n{array}" for name, array in results.items())


def results_data(results: Mapping[str, np.ndarray]) -> dict[str, object]:
    """The same as plain data."""
    return {
        name: {"shape": list(array.shape), "dtype": str(array.dtype), "values": plain_values(array)}
        for name, array in results.items()
    }
