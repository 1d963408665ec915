"""What stands on the command line: the formula, the sizes and the shapes, each read by one function."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import rich_click as click

from tensorattn.source import Source
from tensorattn.spelling import SPELLINGS

if TYPE_CHECKING:
    from tensorattn.program import Program

SUFFIXES = (".attn", ".tex")

Stage = Literal["text", "tree", "ir", "plan", "kernel", "source"]
Spelling = Literal["ascii", "unicode", "latex", "einsum"]


@dataclass(frozen=True, slots=True)
class Given:
    """`FILE_OR_FORMULA` with the options that say how it is spelt."""

    formula: str
    spelling: str | None
    axes: Mapping[str, str] | None


def read_source(given: Given) -> Source:
    """The text of `FILE_OR_FORMULA`: standard input (`-`), an `.attn` or `.tex` file, else itself.

    Raises: click.UsageError where a file is named that cannot be read.
    """
    formula = given.formula
    if formula == "-":
        return Source(_decode(sys.stdin.buffer.read(), "standard input"), "<stdin>")
    if not formula.endswith(SUFFIXES) or len(formula.splitlines()) > 1:
        return Source(formula)
    path = Path(formula)
    try:
        return Source(_decode(path.read_bytes(), formula), formula)
    except OSError as error:
        raise click.UsageError(f"cannot read {formula}: {error.strerror or error}") from error


def _decode(data: bytes, where: str) -> str:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise click.UsageError(f"{where} is not UTF-8 text (byte {error.start})") from error
    return text.replace("\r\n", "\n").replace("\r", "\n")


def read_program(given: Given) -> Program:
    """The program that `FILE_OR_FORMULA` stands for.

    Raises: click.UsageError; TensorattnError where the formula or its axes are refused.
    """
    import tensorattn

    source = read_source(given)
    return tensorattn.parse(source.text, name=source.name, spelling=given.spelling, axes=given.axes)


def open_sizes(program: Program, sizes: Mapping[str, int]) -> dict[str, int]:
    """Those of `sizes` that no input of the program fixes: a compiled formula has to be told them."""
    from tensorattn.expanding import expand
    from tensorattn.extents import size_reads

    fixed = dict(size_reads(expand(program, 0), {}))
    return {name: size for name, size in sizes.items() if name not in fixed}


def _pair(text: str, example: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise click.BadParameter(f"{text!r} is not of the form {example}")
    return name.strip(), value.strip()


def read_sizes(_context: click.Context, _parameter: click.Parameter, texts: Sequence[str]) -> dict[str, int]:
    """`-d mu=128` as `{"mu": 128}`."""
    sizes: dict[str, int] = {}
    for text in texts:
        name, value = _pair(text, "NAME=SIZE")
        if not value.isdecimal():
            raise click.BadParameter(f"the size of {name} is {value!r}, not an integer of at least 0")
        if sizes.setdefault(name, int(value)) != int(value):
            raise click.BadParameter(f"the size of {name} is given twice: {sizes[name]} and {value}")
    return sizes


def read_shapes(_context: click.Context, _parameter: click.Parameter, texts: Sequence[str]) -> dict[str, str]:
    """`--shape W="M N"` as `{"W": "M N"}`, `--shape W=3,4` as `{"W": "3,4"}`."""
    shapes: dict[str, str] = {}
    for text in texts:
        name, value = _pair(text, 'TENSOR="M N"')
        if name in shapes:
            raise click.BadParameter(f"the shape of {name} is given twice")
        if "," in value and not all(axis.strip() for axis in value.split(",")):
            raise click.BadParameter(f"{text!r} has an empty axis")
        shapes[name] = value
    return shapes


def read_names(_context: click.Context, _parameter: click.Parameter, texts: Sequence[str]) -> tuple[str, ...] | None:
    """Names: `-o W -o y` or `-o W,y` as `("W", "y")`; nothing given: None, the last statement."""
    names = [name for text in texts for name in text.replace(",", " ").split()]
    return tuple(dict.fromkeys(names)) or None


def read_plan(_context: click.Context, _parameter: click.Parameter, texts: Sequence[str]) -> str | dict[str, str]:
    """`--plan streamed` as `"streamed"`, `--plan y=dense` as `{"y": "dense"}`; nothing given: `"auto"`."""
    if len(texts) == 1 and "=" not in texts[0]:
        return texts[0]
    plans: dict[str, str] = {}
    for text in texts:
        name, plan = _pair(text, "STATEMENT=PLAN, or one PLAN for all")
        if plans.setdefault(name, plan) != plan:
            raise click.BadParameter(f"the plan of {name} is given twice: {plans[name]} and {plan}")
    return plans or "auto"


UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def read_memory(_context: click.Context, _parameter: click.Parameter, text: str | None) -> int | None:
    """`--memory 64M` as a number of bytes."""
    if text is None:
        return None
    number, unit = (text[:-1], text[-1:].upper()) if text[-1:].isalpha() else (text, "")
    if not number.isdecimal() or unit not in UNITS:
        raise click.BadParameter(f"{text!r} is no number of bytes: write 4000000, 500K, 64M or 2G")
    return int(number) * UNITS[unit]


def float_dtypes(program: Program, dtype: str) -> dict[str, str]:
    """This dtype for every input that takes floats."""
    from tensorattn.cost import default_dtypes
    from tensorattn.expanding import expand

    return {name: dtype for name, known in default_dtypes(expand(program, 0)).items() if known == "float64"}


# Options that several commands share ------------------------------------------------------------------------------


Decorator = Callable[[Callable[..., None]], Callable[..., None]]


def read_axes(_context: click.Context, _parameter: click.Parameter, texts: Sequence[str]) -> dict[str, str] | None:
    """`--axes Q="mu i"` as `{"Q": "mu i"}`; nothing given: None, no matrix formula."""
    axes: dict[str, str] = {}
    for text in texts:
        name, value = _pair(text, 'TENSOR="mu i"')
        if name in axes:
            raise click.BadParameter(f"the axes of {name} are given twice")
        axes[name] = value
    return axes or None


def formula_argument(command: Callable[..., None]) -> Callable[..., None]:
    """`FILE_OR_FORMULA`, `--spelling` and `--axes`, together as `formula`."""

    @wraps(command)
    def called(formula: str, spelling: str | None, axes: dict[str, str] | None, **others: Any) -> None:
        command(formula=Given(formula, spelling, axes), **others)

    return _formula_text(_spelling_option(_axes_option(called)))


_formula_text: Decorator = click.argument("formula", metavar="FILE_OR_FORMULA")
_spelling_option: Decorator = click.option(
    "--spelling", type=click.Choice(SPELLINGS), help="How the formula is spelt; by default this is found."
)
_axes_option: Decorator = click.option(
    "--axes",
    multiple=True,
    metavar="TENSOR=AXES",
    callback=read_axes,
    help='Axes of an input of a matrix formula, Q="mu i"; repeatable.',
)
sizes_option: Decorator = click.option(
    "-d",
    "--size",
    "--sizes",
    "sizes",
    multiple=True,
    metavar="NAME=SIZE",
    callback=read_sizes,
    help="Size of an index; repeatable.",
)
shapes_option: Decorator = click.option(
    "--shape",
    "shapes",
    multiple=True,
    metavar="TENSOR=AXES",
    callback=read_shapes,
    help='Shape of an input, W="M N" or W=3,4. Repeatable; if one is given, all are.',
)
outputs_option: Decorator = click.option(
    "-o", "--outputs", multiple=True, metavar="NAMES", callback=read_names, help="Results wanted; default: the last."
)
format_option: Decorator = click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Form of output.",
)
backend_option: Decorator = click.option(
    "--backend", type=click.Choice(["numpy", "torch"]), default="numpy", show_default=True, help="Array library."
)
plan_option: Decorator = click.option(
    "--plan",
    multiple=True,
    metavar="PLAN",
    callback=read_plan,
    help="auto (default), dense, streamed, …; or STATEMENT=PLAN, repeatable.",
)
memory_option: Decorator = click.option(
    "--memory",
    metavar="BYTES",
    callback=read_memory,
    help="Budget beside inputs and results: 4000000, 500K, 64M, 2G.",
)
dtype_option: Decorator = click.option(
    "--dtype",
    type=click.Choice(["float64", "float32", "float16", "bfloat16"]),
    default="float64",
    show_default=True,
    help="Of the inputs that take floats.",
)


def planned(command: Callable[..., None]) -> Callable[..., None]:
    """What a command takes that says something of a plan, beside the form of its output."""
    options = (
        formula_argument, sizes_option, outputs_option, plan_option, memory_option, dtype_option, backend_option,
    )  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command
