"""The command line: check, explain, cost, grad, posterior, run, emit, show.

Exit status: 0 fine, 1 the formula or its inputs have errors, 2 usage. Data goes to standard output, diagnostics to
standard error. Everything heavy is imported inside the command that needs it.
"""

from __future__ import annotations

import warnings
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, get_args

import rich_click as click

from tensorattn.__about__ import __version__
from tensorattn.cli import arguments
from tensorattn.cli.reporting import report_data, report_error, report_lints
from tensorattn.errors import NotationWarning, TensorattnError

if TYPE_CHECKING:
    from tensorattn.compiling import Compiled
    from tensorattn.program import Program


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="tensorattn")
def main() -> None:
    """Higher-order attention in index notation: the formula is the program.

    FILE_OR_FORMULA is the text of a formula, the name of an .attn file, or - for standard input.
    """


@contextmanager
def _diagnosed(form: str) -> Generator[None]:
    """Errors of the formula are printed and are exit status 1; its warnings were printed when it was read."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotationWarning)
        try:
            yield
        except TensorattnError as error:
            report_error(form, error)
            raise SystemExit(1) from error


def _compile(
    program: Program,
    outputs: tuple[str, ...] | None,
    sizes: dict[str, int],
    plan: str | dict[str, str] = "auto",
    memory: int | None = None,
) -> Compiled:
    import tensorattn

    return tensorattn.compile(program, outputs=outputs, sizes=sizes, plan=plan, memory=memory)


@main.command()
@arguments.formula_argument
@arguments.sizes_option
@arguments.shapes_option
@click.option("--strict", is_flag=True, help="Warnings are errors.")
@arguments.format_option
def check(formula: arguments.Given, sizes: dict[str, int], shapes: dict[str, str], strict: bool, form: str) -> None:
    """Check a formula: the size of every index, the outputs, the equations proved and required."""
    from tensorattn.cli.checked import check_with_sizes, checked_data, checked_text

    with _diagnosed(form):
        program = arguments.read_program(formula)
        found = check_with_sizes(program, shapes, sizes, strict)
        report_lints(form, program)
        report_data(form, checked_text(found), checked_data(found))


def _planned(
    formula: arguments.Given,
    sizes: dict[str, int],
    outputs: tuple[str, ...] | None,
    plan: str | dict[str, str],
    memory: int | None,
    dtype: str,
    backend: str,
) -> tuple[Program, Compiled, dict[str, Any]]:
    """The formula, what it is compiled to, and what its methods that speak of a plan take by name."""
    program = arguments.read_program(formula)
    compiled = _compile(program, outputs, arguments.open_sizes(program, sizes), plan, memory)
    return program, compiled, {"backend": backend, "dtypes": arguments.float_dtypes(compiled.used, dtype)}


@main.command()
@arguments.planned
@arguments.format_option
def explain(sizes: dict[str, int], form: str, **asked: Any) -> None:
    """Say in words how a formula is computed, why, and what else would cost."""
    from tensorattn import wording

    with _diagnosed(form):
        program, compiled, of = _planned(sizes=sizes, **asked)
        choice = compiled.choice(sizes, **of)
        report_lints(form, program)
        report_data(form, wording.explain(choice, sizes), wording.data(choice, sizes))


@main.command()
@arguments.planned
@arguments.format_option
def cost(sizes: dict[str, int], form: str, **asked: Any) -> None:
    """Print FLOPs, exponentials, bytes moved and peak bytes, forward and backward; symbolic where sizes are missing."""
    with _diagnosed(form):
        program, compiled, of = _planned(sizes=sizes, **asked)
        price = compiled.cost(sizes, **of)
        report_lints(form, program)
        report_data(form, str(price), price.data)


@main.command()
@arguments.formula_argument
@click.option(
    "--wrt",
    multiple=True,
    required=True,
    metavar="INPUTS",
    callback=arguments.read_names,
    help="Differentiate by these inputs; repeatable.",
)
@click.option(
    "-o",
    "--output",
    multiple=True,
    metavar="NAMES",
    callback=arguments.read_names,
    help="Differentiate these statements; default: the last.",
)
@arguments.format_option
def grad(formula: arguments.Given, wrt: tuple[str, ...] | None, output: tuple[str, ...] | None, form: str) -> None:
    """Print the vector-Jacobian product of a formula, as a formula."""
    import tensorattn

    with _diagnosed(form):
        program = arguments.read_program(formula)
        found = tensorattn.grad(program, wrt or (), output)
        report_lints(form, program)
        names = {"inputs": list(found.inputs), "outputs": list(found.defined[-len(wrt or ()) :])}
        report_data(form, str(found), {"program": str(found), **names})


@main.command()
@arguments.formula_argument
@click.option("--index", required=True, metavar="INDEX", help='A barred index: nu, a group "nu rho", or y.nu in y.')
@click.option("--output", metavar="NAME", help="The statement that is given; default: the last.")
@arguments.format_option
def posterior(formula: arguments.Given, index: str, output: str | None, form: str) -> None:
    """Print the posterior of a barred index given an output, as a formula."""
    import tensorattn

    with _diagnosed(form):
        program = arguments.read_program(formula)
        found = tensorattn.posterior(program, index, output)
        report_lints(form, program)
        names = {"inputs": list(found.inputs), "output": found.defined[-1]}
        report_data(form, str(found), {"program": str(found), **names})


@main.command()
@arguments.formula_argument
@click.option(
    "-i",
    "--input",
    "inputs",
    multiple=True,
    metavar="INPUT",
    help="NAME=FILE.npy, NAME=NUMBER, or a FILE.npz or FILE.safetensors whose arrays are taken by name. Repeatable.",
)
@click.option("-O", "--output-file", "target", metavar="FILE", help="Write the results to an .npz or .npy file.")
@arguments.sizes_option
@arguments.outputs_option
@arguments.plan_option
@arguments.memory_option
@arguments.backend_option
@arguments.format_option
def run(
    formula: arguments.Given,
    inputs: tuple[str, ...],
    target: str | None,
    sizes: dict[str, int],
    outputs: tuple[str, ...] | None,
    plan: str | dict[str, str],
    memory: int | None,
    backend: str,
    form: str,
) -> None:
    """Compute a formula on arrays from files."""
    from tensorattn.cli.arrays import check_target, read_inputs, write_outputs
    from tensorattn.cli.running import call, results_data, results_text

    with _diagnosed(form):
        program = arguments.read_program(formula)
        compiled = _compile(program, outputs, sizes, plan, memory)
        check_target(target, tuple(compiled.signature.outputs))
        results = call(compiled, read_inputs(inputs, compiled.inputs), backend)
        report_lints(form, program)
    if target is None:
        report_data(form, results_text(results), results_data(results))
    else:
        write_outputs(target, results)


@main.command()
@arguments.formula_argument
@arguments.sizes_option
@arguments.outputs_option
@arguments.plan_option
@arguments.backend_option
@arguments.format_option
def emit(
    formula: arguments.Given,
    sizes: dict[str, int],
    outputs: tuple[str, ...] | None,
    plan: str | dict[str, str],
    backend: str,
    form: str,
) -> None:
    """Print stand-alone Python source that computes a formula without tensorattn."""
    with _diagnosed(form):
        program = arguments.read_program(formula)
        compiled = _compile(program, outputs, arguments.open_sizes(program, sizes), plan)
        text = compiled.source(backend, sizes)
        report_lints(form, program)
        report_data(form, text.rstrip("\n"), {"backend": backend, "source": text})


@main.command()
@arguments.formula_argument
@click.option(
    "--stage",
    type=click.Choice(get_args(arguments.Stage)),
    default="text",
    show_default=True,
    help="Which stage to print.",
)
@click.option(
    "--as",
    "written",
    type=click.Choice(get_args(arguments.Spelling)),
    help="How to spell the text; default: ascii, the canonical one.",
)
@arguments.sizes_option
@arguments.outputs_option
@arguments.backend_option
@arguments.format_option
def show(
    formula: arguments.Given,
    stage: arguments.Stage,
    written: arguments.Spelling | None,
    sizes: dict[str, int],
    outputs: tuple[str, ...] | None,
    backend: str,
    form: str,
) -> None:
    """Print any stage between the text and the code; the text in any spelling."""
    from tensorattn.cli.stages import language, stage_text

    if written and stage != "text":
        raise click.UsageError(f"--as is for the stage text, not for {stage}")
    with _diagnosed(form):
        program = arguments.read_program(formula)
        text = stage_text(program, stage, sizes, outputs, backend, written or "ascii")
        named = {"as": written or "ascii"} if stage == "text" else {}
        report_data(form, text.rstrip("\n"), {"stage": stage, **named, "text": text}, language(stage, written))
