"""Print programs of the corpus, the library and random ones; KaTeX or pdfLaTeX set their LaTeX, or all is read back."""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import tensorattn as ta
from tests.printing import known_texts, random_texts

DOCUMENT = r"""\documentclass{article}
\usepackage{amsmath}
\begin{document}
%s
\end{document}
"""


def katex(formulas: list[str]) -> list[tuple[int, str]]:
    """Number and message of each formula that KaTeX refuses."""
    script = Path(__file__).with_name("render.cjs")
    done = subprocess.run(["node", script], input=json.dumps(formulas), capture_output=True, text=True, check=True)
    return [(number, message) for number, message in json.loads(done.stdout)]


def pdflatex(formulas: list[str]) -> list[tuple[int, str]]:
    """Number and message of each formula in which pdfLaTeX finds an error."""
    lines = [rf"\message{{[formula {n}]}}\begin{{equation}}{f}\end{{equation}}" for n, f in enumerate(formulas)]
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "all.tex").write_text(DOCUMENT % "\n\n".join(lines))
        command = ["pdflatex", "-interaction=nonstopmode", "-file-line-error", "all.tex"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace", check=False)
    errors, number = [], 0
    for found in re.finditer(r"\[formula (\d+)\]|^(?:!|\./all\.tex:\d+:) ?(.*)", done.stdout, re.MULTILINE):
        number = int(found[1]) if found[1] else number
        errors += [(number, found[2])] if found[2] else []
    if "Output written on" not in done.stdout and not errors:
        errors.append((number, done.stdout[-500:]))
    return errors


def reading(programs: list[ta.Program]) -> list[str]:
    """What is written in a spelling and does not read back as the same program."""
    written = [(p, write(p)) for p in programs for write in (str, ta.Program.unicode, ta.Program.latex)]
    return [text for program, text in written if not _reads_back(text, program)]


def _reads_back(text: str, program: ta.Program) -> bool:
    try:
        return ta.parse(text) == program
    except ta.TensorattnError as error:
        print(error, file=sys.stderr)
        return False


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.typesetting", description=__doc__)
    parser.add_argument("by", choices=["katex", "pdflatex", "reading"])
    parser.add_argument("--programs", type=int, default=1000, metavar="N", help="how many random programs (1000)")
    asked = parser.parse_args()
    programs = [ta.parse(text) for text in [*known_texts(), *random_texts(asked.programs)]]
    if asked.by == "reading":
        refused = reading(programs)
    else:
        formulas = [program.latex() for program in programs]
        refused = [f"{formulas[n]}\n  {message}" for n, message in SETTERS[asked.by](formulas)]
    for text in refused:
        print(text, file=sys.stderr)
    print(f"{asked.by}: {len(programs)} programs, {len(refused)} errors")
    return 1 if refused else 0


SETTERS = {"katex": katex, "pdflatex": pdflatex}

if __name__ == "__main__":
    raise SystemExit(main())
