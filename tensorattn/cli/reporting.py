"""Data to standard output, diagnostics to standard error, each as text or JSON."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

import rich_click as click

from tensorattn.errors import TensorattnError
from tensorattn.source import Source, Span

if TYPE_CHECKING:
    from tensorattn.program import Program


def report_data(form: str, text: str, data: object, language: str | None = None) -> None:
    """Print a result: `text`, or `data` as one JSON document. A text in a `language` has colours on a terminal."""
    if form == "json":
        text = json.dumps(data, ensure_ascii=False, indent=2, allow_nan=False)
    elif language and sys.stdout.isatty() and not os.environ.get("NO_COLOR"):
        text = _coloured(text, language)
    click.echo(text)


def _coloured(text: str, language: str) -> str:
    from pygments import highlight
    from pygments.formatters import TerminalFormatter
    from pygments.lexers import get_lexer_by_name

    from tensorattn.highlighting import TensorattnLexer

    lexer = TensorattnLexer() if language == "tensorattn" else get_lexer_by_name(language)
    return highlight(text, lexer, TerminalFormatter()).rstrip("\n")


def report_error(form: str, error: TensorattnError) -> None:
    """Print an error and the further ones found with it; as JSON one object a line."""
    if form == "text":
        click.echo(str(error), err=True)
        return
    for each in (error, *error.others):
        click.echo(json.dumps(diagnostic(each), ensure_ascii=False), err=True)


def report_lints(form: str, program: Program) -> None:
    """Print what reads like a slip in a program, as warnings."""
    from tensorattn.linting import lints

    for lint in lints(program):
        spans = () if lint.span is None else (lint.span,)
        warning = TensorattnError("E-LINT", lint.message, source=program.source, spans=spans, hint=lint.hint)
        if form == "text":
            click.echo(str(warning).replace("E-LINT", "warning", 1), err=True)
        else:
            click.echo(json.dumps(diagnostic(warning, "warning"), ensure_ascii=False), err=True)


def diagnostic(error: TensorattnError, severity: str = "error") -> dict[str, Any]:
    """An error as plain data: `severity`, `code`, `message`, `spans`, `facts`, `hint`."""
    return {
        "severity": severity,
        "code": error.code,
        "message": error.what,
        "spans": [] if error.source is None else [_place(error.source, span) for span in error.spans],
        "facts": list(error.facts),
        "hint": error.hint,
    }


def _place(source: Source, span: Span) -> dict[str, int]:
    line, column, _ = source.line_of(span.start)
    end_line, end_column, _ = source.line_of(span.end)
    return {"line": line, "column": column, "end_line": end_line, "end_column": end_column}
