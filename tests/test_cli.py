"""The command line: what it prints where, and its exit status."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import save_file

from tensorattn.cli import main

ATTENTION = "W^<mu nu> = q^mu_i k^nu_i / sqrt(|i|)\ny^mu_n = W^<mu bar(nu)> v^<bar(nu)>_n\n"
VALUE = "y^mu_n = W^<mu bar(nu)> v^nu_n"
DANGLING = "y_i = A_<i j> x_k"


def run(*arguments, stdin=None, status=0):
    result = CliRunner().invoke(main, list(arguments), input=stdin)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == status, result.output
    return result


def softmax(x, axis):
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


@pytest.fixture
def files(tmp_path, monkeypatch):
    """A folder with `attention.attn` and its inputs, entered."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(7)
    arrays = {"q": rng.normal(size=(3, 2)), "k": rng.normal(size=(5, 2)), "v": rng.normal(size=(5, 4))}
    Path("attention.attn").write_text(ATTENTION)
    for name, array in arrays.items():
        np.save(f"{name}.npy", array)
    np.savez("arrays.npz", unused=np.zeros(1), **arrays)
    weights = softmax(arrays["q"] @ arrays["k"].T / np.sqrt(2), axis=1)
    return {"W": arrays["q"] @ arrays["k"].T / np.sqrt(2), "y": weights @ arrays["v"], **arrays}


# Where the formula comes from -------------------------------------------------------------------------------------


def test_a_formula_a_file_and_standard_input_are_read_alike(files):
    printed = {
        run("show", ATTENTION).stdout,
        run("show", "attention.attn").stdout,
        run("show", "-", stdin=ATTENTION).stdout,
    }
    assert len(printed) == 1
    assert "W^<mu bar(nu)>" in printed.pop()


def test_a_missing_file_is_a_usage_error_that_names_it(tmp_path):
    result = run("check", str(tmp_path / "none.attn"), status=2)
    assert "none.attn" in result.stderr
    assert "No such file" in result.stderr
    assert result.stdout == ""


def test_a_file_that_is_not_text_is_a_usage_error(files):
    Path("bad.attn").write_bytes(b"y_i = \xff x_i")
    assert "not UTF-8 text (byte 6)" in run("check", "bad.attn", status=2).stderr


def test_a_file_with_windows_line_ends_and_a_byte_order_mark(files):
    Path("windows.attn").write_bytes(b"\xef\xbb\xbf" + ATTENTION.replace("\n", "\r\n").encode())
    assert run("show", "windows.attn").stdout == run("show", "attention.attn").stdout


def test_an_error_names_the_file(files):
    Path("bad.attn").write_text("# a comment\n" + DANGLING)
    line = json.loads(run("check", "bad.attn", "--format", "json", status=1).stderr.splitlines()[0])
    assert line["spans"][0]["line"] == 2


def test_run_takes_a_plan_and_a_budget(files):
    inputs = [part for name in ("q", "k", "v") for part in ("-i", f"{name}={name}.npy")]
    run("run", "attention.attn", *inputs, "--plan", "streamed", "--memory", "1M", "-O", "y.npy")
    np.testing.assert_allclose(np.load("y.npy"), files["y"], atol=1e-12)
    assert "E-BUDGET" in run("run", "attention.attn", *inputs, "--memory", "10", status=1).stderr
    assert "for start" in run("emit", "attention.attn", "--plan", "streamed").stdout


# Errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["check", "explain", "cost", "run", "emit", "show"])
def test_an_error_in_the_formula_is_status_1_with_a_caret_on_standard_error(command):
    result = run(command, DANGLING, status=1)
    assert result.stdout == ""
    first, line, carets, *_ = result.stderr.splitlines()
    assert first.startswith("E-DANGLING: ")
    assert line.endswith(DANGLING)
    assert "^" in carets
    assert set(carets) <= {"^", " ", "|"}


def test_json_diagnostics_are_one_object_a_line():
    lines = [json.loads(line) for line in run("check", DANGLING, "--format", "json", status=1).stderr.splitlines()]
    assert lines[0].keys() == {"severity", "code", "message", "spans", "facts", "hint"}
    assert (lines[0]["severity"], lines[0]["code"]) == ("error", "E-DANGLING")
    place = lines[0]["spans"][0]
    assert (place["line"], place["end_line"]) == (1, 1)
    assert DANGLING[place["column"] - 1 : place["end_column"] - 1] in ("j", "k", "A_<i j>", "x_k")


def test_lines_and_columns_of_a_later_line():
    result = run("check", "a_i = b_i\n  c_i = a_i * d_<i zz>", "--format", "json", status=1)
    place = json.loads(result.stderr.splitlines()[0])["spans"][0]
    assert place["line"] == 2
    assert place["column"] >= 3


def test_a_shape_error_is_status_1():
    result = run("check", VALUE, "--shape", "W=3,4", "--shape", "v=5,2", status=1)
    assert result.stdout == ""
    assert "4" in result.stderr
    assert "5" in result.stderr


# check ------------------------------------------------------------------------------------------------------------


def test_check_prints_sizes_outputs_and_required_equations():
    data = json.loads(run("check", VALUE, "--shape", "W=M N", "--shape", "v=K 5", "--format", "json").stdout)
    assert data["sizes"]["mu"] == "M"
    assert data["sizes"]["n"] == 5
    assert data["outputs"]["y"] == ["M", 5]
    assert len(data["required"]) == 1
    assert "K" in data["required"][0]
    assert "N" in data["required"][0]


def test_check_as_text_holds_the_same():
    words = [line.split() for line in run("check", VALUE, "--shape", "W=M N", "--shape", "v=K 5").stdout.splitlines()]
    assert ["shape", "y:", "(M,", "5)"] in words
    assert {line[0] for line in words} == {"sizes", "shape", "required"}


def test_check_puts_numbers_for_sizes():
    arguments = ("--shape", "W=M N", "--shape", "v=N D", "-d", "M=12", "-d", "D=7", "--format", "json")
    data = json.loads(run("check", VALUE, *arguments).stdout)
    assert data["outputs"]["y"] == [12, 7]
    assert data["sizes"]["nu"] == "N"


def test_check_refutes_sizes_that_contradict():
    arguments = ("--shape", "W=M N", "--shape", "v=K D", "-d", "N=12", "-d", "K=7")
    assert "E-" in run("check", VALUE, *arguments, status=1).stderr


def test_check_without_shapes_takes_sizes_of_indices():
    data = json.loads(run("check", VALUE, "-d", "mu=12", "--format", "json").stdout)
    assert data["sizes"]["mu"] == 12


def test_check_refuses_a_size_that_the_formula_lacks():
    assert "`zeta`" in run("check", VALUE, "-d", "zeta=3", status=1).stderr


def test_a_warning_goes_to_standard_error_and_strict_makes_it_an_error():
    lint = "y_i = A_<i i>"
    result = run("check", lint)
    assert "sizes" in result.stdout
    assert result.stderr.startswith("warning: ")
    assert run("check", lint, "--strict", status=1).stdout == ""
    line = json.loads(run("check", lint, "--format", "json").stderr.splitlines()[0])
    assert line["severity"] == "warning"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("-d", "mu"), "NAME=SIZE"),
        (("-d", "mu=x"), "not an integer"),
        (("-d", "mu=-3"), "not an integer"),
        (("-d", "mu=3", "-d", "mu=4"), "given twice"),
        (("--shape", "W"), "TENSOR="),
        (("--shape", "W=3", "--shape", "W=4"), "given twice"),
        (("--shape", "W=3,,4"), "empty axis"),
        (("--format", "xml"), "xml"),
        (("--nonsense",), "--nonsense"),
    ],
)
def test_usage_errors_are_status_2(arguments, words):
    result = run("check", VALUE, *arguments, status=2)
    assert words in result.stderr
    assert result.stdout == ""


# run --------------------------------------------------------------------------------------------------------------


EACH = ("-i", "q=q.npy", "-i", "k=k.npy", "-i", "v=v.npy")


@pytest.mark.parametrize("inputs", [EACH, ("-i", "arrays.npz")])
@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_run_writes_what_numpy_computes(files, inputs, backend):
    run("run", "attention.attn", *inputs, "-O", "y.npy", "--backend", backend)
    np.testing.assert_allclose(np.load("y.npy"), files["y"], rtol=1e-12)


def test_run_writes_several_results_by_name(files):
    run("run", "attention.attn", "-i", "arrays.npz", "-o", "W,y", "-O", "out.npz")
    with np.load("out.npz") as out:
        assert sorted(out.files) == ["W", "y"]
        np.testing.assert_allclose(out["W"], files["W"], rtol=1e-12)
        np.testing.assert_allclose(out["y"], files["y"], rtol=1e-12)


def test_a_result_called_file_can_be_written(files):
    run("run", "file_i = sum[j](v_<i j>)", "-i", "v=v.npy", "-O", "out.npz")
    with np.load("out.npz") as out:
        np.testing.assert_allclose(out["file"], files["v"].sum(axis=1))


def test_run_prints_shapes_and_values(files):
    text = run("run", "attention.attn", "-i", "arrays.npz").stdout
    assert text.startswith("y [3, 4] float64\n[[")
    data = json.loads(run("run", "attention.attn", "-i", "arrays.npz", "--format", "json").stdout)
    assert data["y"]["shape"] == [3, 4]
    assert data["y"]["dtype"] == "float64"
    np.testing.assert_allclose(data["y"]["values"], files["y"], rtol=1e-12)


def test_json_values_that_json_lacks_are_strings(files):
    np.save("x.npy", np.array([np.nan, np.inf, -np.inf, 1.0]))
    result = run("run", "y_i = 2 * x_i", "-i", "x=x.npy", "--format", "json")
    assert json.loads(result.stdout)["y"]["values"] == ["NaN", "Infinity", "-Infinity", 2.0]


def test_a_number_is_a_scalar_input(files):
    run("run", "y_<i j> = lam * v_<i j>", "-i", "v=v.npy", "-i", "lam=0.5", "-O", "y.npy")
    np.testing.assert_allclose(np.load("y.npy"), files["v"] / 2)


def test_a_size_that_no_input_fixes_is_given(files):
    run("run", "y_<i h> = sum[d](v_<i (h d)>)", "-i", "v=v.npy", "-d", "h=2", "-O", "y.npy")
    np.testing.assert_allclose(np.load("y.npy"), files["v"].reshape(5, 2, 2).sum(axis=2))


def test_safetensors_are_read_by_name(files):
    save_file({name: files[name] for name in "qkv"}, "arrays.safetensors")
    run("run", "attention.attn", "-i", "arrays.safetensors", "-O", "y.npy")
    np.testing.assert_allclose(np.load("y.npy"), files["y"], rtol=1e-12)


def test_a_missing_input_is_an_error_of_the_formula(files):
    result = run("run", "attention.attn", "-i", "q=q.npy", "-i", "k=k.npy", status=1)
    assert result.stderr.startswith("E-INPUT: ")
    assert "`v`" in result.stderr


def test_sizes_that_contradict_are_an_error_of_the_formula(files):
    result = run("run", "attention.attn", "-i", "q=q.npy", "-i", "k=v.npy", "-i", "v=v.npy", status=1)
    assert result.stderr.startswith("E-")
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("-i", "q=none.npy"), "none.npy"),
        (("-i", "none.npz"), "none.npz"),
        (("-i", "q=attention.attn"), "not an .npy file"),
        (("-i", "q=arrays.npz"), "give it without NAME="),
        (("-i", "q"), "NAME=FILE.npy"),
        (("-i", "broken.npy"), "NAME=FILE.npy"),
        (("-i", "q=broken.npy"), "cannot read broken.npy"),
        (("-i", "broken.npz"), "cannot read broken.npz"),
        (("-i", "renamed.npz"), "rename it to .npy"),
        (("-i", "q=objects.npy"), "cannot read objects.npy"),
        (("-i", "arrays.npz", "-i", "q=q.npy"), "given twice"),
        (("-i", "arrays.npz", "-O", "y.txt"), ".npz or .npy"),
        (("-i", "arrays.npz", "-O", "none/y.npy"), "folder does not exist"),
        (("-i", "arrays.npz", "-o", "W,y", "-O", "y.npy"), "use .npz"),
    ],
)
def test_files_that_cannot_be_used_are_usage_errors(files, arguments, words):
    Path("broken.npy").write_bytes(b"\x93NUMPY\x01")
    Path("broken.npz").write_bytes(b"PK\x03\x04 nothing")
    Path("renamed.npz").write_bytes(Path("q.npy").read_bytes())
    np.save("objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    result = run("run", "attention.attn", *arguments, status=2)
    assert words in " ".join(result.stderr.replace("│", " ").split())
    assert result.stdout == ""


def test_a_failed_write_leaves_the_old_file_and_no_other(files, monkeypatch):
    Path("y.npy").write_bytes(b"old")
    before = sorted(os.listdir())

    def fail(*_arguments, **_options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np.lib.format, "write_array", fail)
    assert "No space left" in run("run", "attention.attn", "-i", "arrays.npz", "-O", "y.npy", status=2).stderr
    assert Path("y.npy").read_bytes() == b"old"
    assert sorted(os.listdir()) == before


def test_a_written_file_has_ordinary_permissions(files):
    run("run", "attention.attn", "-i", "arrays.npz", "-O", "y.npy")
    Path("plain").touch()
    assert stat.S_IMODE(os.stat("y.npy").st_mode) == stat.S_IMODE(os.stat("plain").st_mode)


# emit, show ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_emitted_source_runs_by_itself(files, backend):
    Path("emitted.py").write_text(run("emit", "attention.attn", "--backend", backend).stdout)
    code = (
        "import inspect, sys, numpy as np\n"
        "from emitted import formula\n"
        "arrays = {n: np.load(n + '.npy') for n in inspect.signature(formula).parameters}\n"
        + ("import torch; arrays = {n: torch.from_numpy(a) for n, a in arrays.items()}\n" if backend == "torch" else "")
        + "(y,) = formula(**arrays); np.save('y.npy', np.asarray(y))\n"
        "assert 'tensorattn' not in sys.modules"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)
    np.testing.assert_allclose(np.load("y.npy"), files["y"], rtol=1e-12)


def test_emitted_source_has_the_size_that_no_input_fixes_and_reads_the_others(files):
    text = run("emit", "y_<i h> = sum[d](v_<i (h d)>)", "-d", "h=2", "-d", "i=9").stdout
    namespace = {}
    exec(text, namespace)
    (y,) = namespace["formula"](files["v"])
    np.testing.assert_allclose(y, files["v"].reshape(5, 2, 2).sum(axis=2))


@pytest.mark.parametrize("stage", ["text", "tree", "ir", "plan", "kernel", "source"])
def test_every_stage_prints(stage):
    sizes = ("-d", "mu=8", "-d", "nu=8", "-d", "n=4")
    text = run("show", VALUE, "--stage", stage, *sizes).stdout
    assert text.strip()
    data = json.loads(run("show", VALUE, "--stage", stage, *sizes, "--format", "json").stdout)
    assert data["stage"] == stage
    assert data["text"].strip() == text.strip()


def test_shown_text_is_the_canonical_one_and_a_fixed_point():
    text = run("show", "y^mu_n=W^<mu bar(nu)>*v^<bar(nu)>_n").stdout
    assert text == VALUE + "\n"
    assert run("show", text).stdout == text
