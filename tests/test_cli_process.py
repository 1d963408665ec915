"""The command line as a process of its own: status, standard input, colours, completion."""

import os
import subprocess
import sys

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
