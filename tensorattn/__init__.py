"""tensorattn: a formula in index notation is the program.

import tensorattn as ta
attend = ta.compile("y^mu_n = softmax[nu](q^mu_i k^nu_i / sqrt(|i|)) v^nu_n")
y = attend(q=q, k=k, v=v)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tensorattn.__about__ import __version__
from tensorattn.errors import (
    BackendError,
    BindingError,
    BudgetError,
    DTypeError,
    NotationError,
    NotationWarning,
    PlanError,
    ShapeError,
    TensorattnError,
)

if TYPE_CHECKING:
    from tensorattn import latent as latent
    from tensorattn import nn as nn
    from tensorattn.checking import Shapes as Shapes
    from tensorattn.checking import check as check
    from tensorattn.comparing import equivalent as equivalent
    from tensorattn.compiling import Compiled as Compiled
    from tensorattn.compiling import compile as compile
    from tensorattn.differentiating import grad as grad
    from tensorattn.dropping import dropout as dropout
    from tensorattn.inferring import posterior as posterior
    from tensorattn.library import formulas as formulas
    from tensorattn.merging import merge as merge
    from tensorattn.program import Program as Program
    from tensorattn.reading import parse as parse
    from tensorattn.spelling.einsum import from_einsum as from_einsum

_LAZY = {
    "parse": "reading",
    "check": "checking",
    "Shapes": "checking",
    "compile": "compiling",
    "Compiled": "compiling",
    "dropout": "dropping",
    "merge": "merging",
    "Program": "program",
    "equivalent": "comparing",
    "formulas": "library",
    "from_einsum": "spelling.einsum",
    "grad": "differentiating",
    "posterior": "inferring",
}

__all__ = [
    "BackendError",
    "BindingError",
    "BudgetError",
    "Compiled",
    "DTypeError",
    "NotationError",
    "NotationWarning",
    "PlanError",
    "Program",
    "ShapeError",
    "Shapes",
    "TensorattnError",
    "__version__",
    "check",
    "compile",
    "dropout",
    "equivalent",
    "formulas",
    "from_einsum",
    "grad",
    "merge",
    "parse",
    "posterior",
]


if not TYPE_CHECKING:  # a type checker would take every misspelt name for a good one

    def __getattr__(name: str) -> object:
        """The public functions, imported when first asked for, so that `import tensorattn` stays small."""
        from importlib import import_module

        if name in ("latent", "nn"):
            return import_module(f"tensorattn.{name}")
        if name not in _LAZY:
            raise AttributeError(f"module 'tensorattn' has no attribute {name!r}")
        value = getattr(import_module(f"tensorattn.{_LAZY[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
