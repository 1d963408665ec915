"""Any stage between the text and the code, as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import assert_never

from tensorattn.cli.arguments import Spelling, Stage, open_sizes
from tensorattn.ir import Index
from tensorattn.program import Program
from tensorattn.sizes import Size
from tensorattn.source import Source
from tensorattn.tree import Name

WIDEST = 100  # characters of a line


def spelt(program: Program, spelling: Spelling) -> str:
    """The program in a spelling."""
    match spelling:
        case "ascii":
            return str(program)
        case "unicode":
            return program.unicode()
        case "latex":
            return program.latex()
        case "einsum":
            return str(program.einsum())
    assert_never(spelling)


def language(stage: Stage, spelling: Spelling | None) -> str | None:
    """The name by which Pygments knows what is printed, if it is a language."""
    if stage == "text":
        return {"latex": "tex", "einsum": None}.get(spelling or "", "tensorattn")
    return "python" if stage == "source" else None


def stage_text(
    program: Program,
    stage: Stage,
    sizes: Mapping[str, int],
    outputs: tuple[str, ...] | None,
    backend: str,
    spelling: Spelling = "ascii",
) -> str:
    """One stage of a program: its text in a spelling, its tree that of the text it was read from or of its index form.

    Raises: TensorattnError where it is no einsum and should be written as one.
    """
    import tensorattn
    from tensorattn.parsing import parse_tree

    match stage:
        case "text":
            return spelt(program, spelling)
        case "tree":
            source = program.source
            if source is None or source.spelling in ("matrix", "einsum"):
                source = Source(str(program))
            return "\n".join(line for statement in parse_tree(source) for line in outline(statement))
        case "ir":
            return "\n".join(line for statement in program.statements for line in outline(statement))
        case "plan" | "kernel" | "source":
            compiled = tensorattn.compile(program, outputs=outputs, sizes=open_sizes(program, sizes))
    match stage:
        case "plan":
            return compiled.explain(sizes)
        case "kernel":
            return "\n".join(outline(compiled.kernel(sizes)))
        case "source":
            return compiled.source(backend, sizes)
    assert_never(stage)


def outline(value: object, label: str = "") -> Iterator[str]:
    """A tree of dataclasses without its spans: on one line where it is short, else its parts indented below."""
    line = label + _inline(value)
    if len(line) <= WIDEST or not _parts(value):
        yield line
        return
    yield f"{label}{'' if isinstance(value, tuple) else type(value).__name__}("
    for name, part in _parts(value):
        yield from (f"  {inner}" for inner in outline(part, name))
    yield ")"


def _inline(value: object) -> str:
    match value:
        case Name(text=text) | Index(name=text, number=0):
            return text
        case Index(name=text, number=number):
            return f"{text}#{number}"
        case Size():
            return str(value)
        case _:
            pass
    if not isinstance(value, tuple) and not is_dataclass(value):
        return repr(value)
    inner = ", ".join(name + _inline(part) for name, part in _parts(value))
    return f"({inner})" if isinstance(value, tuple) else f"{type(value).__name__}({inner})"


def _parts(value: object) -> list[tuple[str, object]]:
    if isinstance(value, tuple):
        return [("", part) for part in value]
    if not is_dataclass(value):
        return []
    shown = [(f.name, getattr(value, f.name)) for f in fields(value) if f.repr and f.name != "span"]
    return [(f"{name}=", part) for name, part in shown if part not in ((), None)]
