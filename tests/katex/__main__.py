"""Print formulas of the corpus, the library and random programs in LaTeX, and have KaTeX render each."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import tensorattn as ta
from tests.printing import known_texts, random_texts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=1000, metavar="N", help="how many random programs (1000)")
    count = parser.parse_args().programs
    programs = [ta.parse(text) for text in [*known_texts(), *random_texts(count)]]
    formulas = [program.latex() for program in programs] + [program._repr_latex_().strip("$") for program in programs]
    script = Path(__file__).with_name("render.cjs")
    done = subprocess.run(["node", script], input=json.dumps(formulas), capture_output=True, text=True, check=True)
    errors = json.loads(done.stdout)
    for number, message in errors:
        print(f"{formulas[number]}\n  {message}", file=sys.stderr)
    print(f"KaTeX rendered {len(formulas) - len(errors)} of {len(formulas)} formulas")
    return 1 if errors else 0


if __name__ == "__main__":
    raise SystemExit(main())
