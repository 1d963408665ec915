"""The blocks of the Markdown pages run as tests: Python code, doctests, and console sessions of the command line.

`pytest README.md docs --update-golden` writes what the console sessions print now into the pages.
"""

import doctest
import os
import shlex
from pathlib import Path
from unittest.mock import patch

import pytest
from sybil import Sybil
from sybil.parsers.markdown import CodeBlockParser, PythonCodeBlockParser, SkipParser

ROOT = Path(__file__).parent
UPDATE = False


def pytest_addoption(parser):
    parser.addoption("--update-golden", action="store_true", help="write what is printed now into the pages")


def pytest_configure(config):
    global UPDATE
    UPDATE = config.getoption("--update-golden")
    os.environ.update(NO_COLOR="1", COLUMNS="200")  # help and errors of the command line: plain, and not wrapped


def _of_base_e():
    """NumPy's exponentials as on a processor without AVX-512, so that what is printed is the same on every machine."""
    return patch("tensorattn.backends.numpy.exponential_base", lambda: "e")


@pytest.fixture
def base_e():
    with _of_base_e():
        yield


def run_console(example):
    """Run the `$ tensorattn …` lines of a block and compare what they print with the lines that follow."""
    commands = [line[2:] for line in example.parsed.splitlines() if line.startswith("$ ")]
    printed = "".join(f"$ {command}\n{_output(command)}" for command in commands)
    if UPDATE:
        path = Path(example.path)
        path.write_text(path.read_text().replace(f"```console\n{example.parsed}```", f"```console\n{printed}```", 1))
        return
    assert printed == example.parsed


def _output(command):
    from click.testing import CliRunner

    from tensorattn.cli import main

    program, *arguments = shlex.split(command)
    assert program == "tensorattn", f"only tensorattn runs in these pages, not {program}"
    with _of_base_e():
        result = CliRunner().invoke(main, arguments)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return "".join(f"{line.rstrip()}\n" for line in result.output.rstrip("\n").splitlines())


def _enter_folder(namespace):
    namespace["_folder"] = os.getcwd()
    os.chdir(ROOT)


def _leave_folder(namespace):
    os.chdir(namespace["_folder"])


pytest_collect_file = Sybil(
    parsers=[
        SkipParser(),
        PythonCodeBlockParser(doctest_optionflags=doctest.ELLIPSIS),
        CodeBlockParser("console", run_console),
    ],
    patterns=["*.md"],
    setup=_enter_folder,
    teardown=_leave_folder,
).pytest()
