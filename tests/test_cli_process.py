"""The command line as a process of its own: status, standard input, colours, completion."""

import os
import re
import subprocess
import sys

import pytest

VALUE = "y^mu_n = W^<mu bar(nu)> v^nu_n"
DANGLING = "y_i = A_<i j> x_k"


def process(*arguments, **options):
    command = [sys.executable, "-m", "tensorattn", *arguments]
    return subprocess.run(command, capture_output=True, text=True, **options)


def test_version():
    from tensorattn.__about__ import __version__

    assert process("--version").stdout == f"tensorattn, version {__version__}\n"


def test_exit_status_of_the_process():
    assert process("check", VALUE).returncode == 0
    failed = process("check", DANGLING)
    assert (failed.returncode, failed.stdout) == (1, "")
    assert failed.stderr.startswith("E-DANGLING")
    assert process("check").returncode == 2
    assert process("nonsense").returncode == 2


def test_standard_input_of_the_process():
    assert process("show", "-", input=VALUE).stdout == VALUE + "\n"


def test_no_color_is_respected():
    forced = {**os.environ, "FORCE_COLOR": "1", "COLUMNS": "80"}
    forced.pop("NO_COLOR", None)
    assert "\x1b[" in process("--help", env=forced).stdout
    plain = {**os.environ, "NO_COLOR": "1"}
    plain.pop("FORCE_COLOR", None)
    assert "\x1b[" not in process("--help", env=plain).stdout


def test_completion_is_offered_in_bash():
    code = "from tensorattn.cli import main; main(prog_name='tensorattn')"
    environment = {**os.environ, "_TENSORATTN_COMPLETE": "bash_source"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert "complete -o nosort -F _tensorattn_completion tensorattn" in done.stdout


@pytest.mark.parametrize("colours", [True, False])
def test_formulas_have_colours_on_a_terminal(colours):
    shown, terminal = os.openpty()
    environment = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    environment |= {} if colours else {"NO_COLOR": "1"}
    command = [sys.executable, "-m", "tensorattn", "show", VALUE]
    subprocess.run(command, stdout=terminal, check=True, env=environment, timeout=60)
    os.close(terminal)
    text = os.read(shown, 10_000).decode()
    os.close(shown)
    assert ("\x1b[" in text) == colours
    assert re.sub(r"\x1b\[[0-9;]*m", "", text).strip() == VALUE
