"""`axes={"Q": "mu i", "beta": ""}` → the axes of each input by name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tensorattn.errors import BindingError
from tensorattn.names import CONSTANTS
from tensorattn.scanning import MOST_AXES, RESERVED, WORD
from tensorattn.spelling.letters import GREEK_LETTERS, GREEK_MACROS

_HINT = 'axes={"Q": "mu i", "K": "nu i"}; a vector has one name, a scalar none: "beta": ""'


@dataclass(frozen=True, slots=True)
class Declared:
    """The names of the axes of one input; `scripts`: those of its name, as in `W^q`; `batch`: `...` before them."""

    axes: tuple[str, ...]
    batch: bool = False
    scripts: str = ""


def declared(axes: Mapping[str, Any]) -> dict[str, Declared]:
    """The axes by plain name: `W^{q}` is `Wq`. Raises: BindingError."""
    if not isinstance(axes, Mapping):
        raise BindingError("E-MATRIX", f"axes are declared by name, not by a {type(axes).__name__}", hint=_HINT)
    found: dict[str, Declared] = {}
    for given, listed in axes.items():
        name, scripts = _name(given)
        if name in found:
            raise BindingError("E-MATRIX", f"the axes of `{name}` are declared twice", hint="declare each input once")
        names = _listed(name, listed)
        batch = names[:1] == ("...",)
        if name in CONSTANTS and len(names) >= CONSTANTS[name]:
            what = f"`{name}` with {len(names)} indices is a constant of the notation, not an input"
            raise BindingError("E-NAME", what, hint=f'rename it, e.g. "{name}1"')
        found[name] = Declared(tuple(_axis(name, a) for a in names[batch:]), batch, scripts)
    scalars = {name for name, of in found.items() if not of.axes}
    for name, of in found.items():
        for axis in scalars & set(of.axes):
            what = f"`{axis}` is declared as a scalar, and is an axis of `{name}`"
            raise BindingError("E-NAME", what, hint=f"rename one of the two; the size of the axis is |{axis}|")
    return found


def _name(given: object) -> tuple[str, str]:
    """The plain name, and its scripts as `_q` and `^q`."""
    if not isinstance(given, str):
        raise BindingError("E-MATRIX", f"{given!r} is no name of an input", hint=_HINT)
    text = re.sub(r"\\(?:mathbf|mathrm|text|mathit|boldsymbol)\b|[{}()]", "", given).strip()
    text = re.sub(r"\\[A-Za-z]+", lambda m: GREEK_MACROS.get(m.group(), m.group()), text)
    text = "".join(GREEK_LETTERS.get(c, c) for c in text)
    scripts = re.findall(r"[_^][A-Za-z0-9]+", text)
    base = re.sub(r"[_^][A-Za-z0-9]+", "", text)
    scripts.sort(key=lambda s: s[0] != "_")
    name = base + "".join(s[1:] for s in scripts)
    if not re.fullmatch(WORD, name):
        raise BindingError("E-MATRIX", f"{given!r} is no name of an input", hint=_HINT)
    if name in RESERVED:
        what = f"`{name}` is a reserved word and names no input"
        raise BindingError("E-RESERVED", what, hint=f"choose another name, e.g. {name.capitalize()}0")
    return name, "".join(scripts)


def _listed(name: str, listed: Any) -> tuple[str, ...]:
    if isinstance(listed, str):
        names: tuple[Any, ...] = tuple(listed.replace(",", " ").replace("…", "...").split())
    elif isinstance(listed, Iterable):
        names = tuple("..." if axis is ... else axis for axis in listed)
    else:
        raise BindingError("E-MATRIX", f"{listed!r} are no axes of `{name}`", hint=_HINT)
    if len(names) > MOST_AXES:
        what = f"`{name}` has {len(names)} axes, more than the {MOST_AXES} that array libraries hold"
        raise BindingError("E-LIMIT", what, hint="merge axes before")
    if "..." in names[1:]:
        raise BindingError("E-BATCH", f"`...` stands first among the axes of `{name}`", hint='"... mu i"')
    return names


def _axis(name: str, axis: object) -> str:
    text = GREEK_LETTERS.get(str(axis), GREEK_MACROS.get(str(axis), axis))
    if not isinstance(text, str) or not re.fullmatch(WORD, text):
        what = f"{axis!r} in the axes of `{name}` is no name"
        raise BindingError("E-MATRIX", what, hint=f"names are letters, digits and primes, with spaces between: {_HINT}")
    if text in RESERVED:
        raise BindingError(
            "E-RESERVED", f"`{text}` is a reserved word and names no axis of `{name}`", hint="choose another name"
        )
    return text
