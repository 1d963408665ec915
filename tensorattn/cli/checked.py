"""What `check` found, as text and as plain data."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tensorattn.checking import Shapes
    from tensorattn.program import Program
    from tensorattn.sizes import Size


def check_with_sizes(program: Program, shapes: Mapping[str, str], sizes: Mapping[str, int], strict: bool) -> Shapes:
    """The check, where a size belongs to an index of the program, or else to a name in the shapes.

    Raises: TensorattnError.
    """
    import tensorattn

    declared = {name: _with_numbers(shape, sizes, program) for name, shape in shapes.items()}
    names = {word for shape in shapes.values() for word in _words(shape)} - {*program.indices}
    own = {name: size for name, size in sizes.items() if name not in names}
    return tensorattn.check(program, declared, strict=strict, sizes=own)


def _with_numbers(shape: str, sizes: Mapping[str, int], program: Program) -> str:
    numbers = {name: str(size) for name, size in sizes.items() if name not in program.indices}
    return re.sub(_WORD, lambda found: numbers.get(found.group(), found.group()), shape)


_WORD = r"[^\W\d][\w']*"


def _words(text: str) -> list[str]:
    return re.findall(_WORD, text)


def checked_text(found: Shapes) -> str:
    """Sizes, shapes and equations; warnings are reported elsewhere."""
    return str(replace(found, lints=()))


def checked_data(found: Shapes) -> dict[str, Any]:
    """Sizes by index, shapes by tensor, the outputs, and the equations between sizes."""
    shapes = {name: [plain_size(size) for size in axes] for name, axes in found.tensor_shapes.items()}
    return {
        "sizes": {name: plain_size(size) for name, size in found.index_sizes.items()},
        "shapes": shapes,
        "outputs": {name: shapes[name] for name in found.outputs_named},
        "proved": [str(equation) for equation in found.proved],
        "required": [str(equation) for equation in found.required],
    }


def plain_size(size: Size) -> int | str:
    """A size as an integer where it has no name, else as text."""
    return str(size) if size.constant is None else size.constant
