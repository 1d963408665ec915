"""The package as others get it: wheel, sdist, an import from another folder, and how little a start loads."""

import ast
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import tensorattn as ta

ROOT = Path(__file__).resolve().parent.parent
HEAVY = ("numpy", "torch", "sympy", "opt_einsum", "jax", "scipy")


def python(code, *, folder=ROOT, path=None):
    """What a fresh interpreter prints."""
    environment = {**os.environ, **({"PYTHONPATH": str(path)} if path else {})}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=folder, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def below(folder, *suffixes):
    """Contents by path relative to the root of the repository."""
    found = {p.relative_to(ROOT).as_posix(): p.read_bytes() for p in (ROOT / folder).rglob("*") if p.suffix in suffixes}
    assert found
    return found


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    """The folder with an sdist, and a wheel made from that sdist."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="session")
def wheel(built):
    (found,) = built.glob("tensorattn-*.whl")
    with zipfile.ZipFile(found) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_wheel_holds_the_grammar_byte_for_byte(wheel):
    for name, content in below("grammar", ".lark").items():
        assert wheel[f"tensorattn/{name}"] == content


def test_wheel_holds_the_whole_package_and_nothing_else(wheel):
    for name, content in below("tensorattn", ".py", ".attn", ".typed").items():
        assert wheel[name] == content, name
    assert {name.split("/")[0].split("-")[0] for name in wheel} == {"tensorattn"}
    assert "tensorattn/py.typed" in wheel


def test_wheel_names_its_dependencies_its_command_and_its_licence(wheel):
    meta = {name.split(".dist-info/")[1]: text.decode() for name, text in wheel.items() if ".dist-info/" in name}
    needed = [
        line for line in meta["METADATA"].splitlines() if line.startswith("Requires-Dist") and "extra" not in line
    ]
    assert {line.split(": ")[1].split(">")[0] for line in needed} == {
        "lark", "numpy", "opt-einsum", "pygments", "rich-click", "sympy"
    }  # fmt: skip
    assert "tensorattn = tensorattn.cli:main" in meta["entry_points.txt"]
    assert "[pygments.lexers]\ntensorattn = tensorattn.highlighting:TensorattnLexer" in meta["entry_points.txt"]
    assert meta["licenses/LICENSE"] == (ROOT / "LICENSE").read_text()


def test_sdist_holds_sources_grammar_and_tests(built):
    (found,) = built.glob("tensorattn-*.tar.gz")
    with tarfile.open(found) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames()}
    assert {"pyproject.toml", "LICENSE", "README.md", "Makefile", "constraints.txt", "tests/test_packaging.py"} <= names
    assert below("grammar", ".lark").keys() <= names
    assert not [name for name in names if name.startswith((".venv", ".git/"))]


def test_installed_wheel_computes_in_another_folder(built, tmp_path):
    (found,) = built.glob("tensorattn-*.whl")
    target = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--no-deps", "--no-index"]
    done = subprocess.run([*pip, "--target", str(target), str(found)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    printed = python(
        "import numpy as np, tensorattn as ta, tensorattn.library;"
        "y = ta.compile('y^mu_n = W^<mu bar(nu)> v^nu_n')(W=np.zeros((2, 4)), v=np.arange(4.0)[:, None]);"
        "print(ta.__file__); print(y.tolist()); print('joint_attention' in ta.formulas)",
        folder=tmp_path,
        path=target,
    )
    where, values, known = printed.splitlines()
    assert Path(where).is_relative_to(target)
    assert values == "[[1.5], [1.5]]"
    assert known == "True"


def test_import_loads_no_array_library():
    code = f"import sys, tensorattn; print([m for m in {HEAVY!r} if m in sys.modules])"
    assert python(code) == "[]"


def test_command_line_starts_without_any_array_library():
    code = f"import sys, tensorattn.cli; print([m for m in {(*HEAVY, 'lark')!r} if m in sys.modules])"
    assert python(code) == "[]"


def test_parse_check_and_plan_load_neither_sympy_nor_torch():
    code = (
        "import sys, tensorattn as ta; p = ta.parse('y^mu_n = W^<mu bar(nu : nu <= mu)> v^nu_n');"
        "ta.check(p, W=(4, 3), v=(3, 2)); ta.compile(p).plan(mu=4, nu=3, n=2);"
        "print([m for m in ('sympy', 'torch') if m in sys.modules])"
    )
    assert python(code) == "[]"


def test_type_checkers_are_told_of_every_name_that_is_imported_when_asked_for():
    statements = ast.parse((ROOT / "tensorattn" / "__init__.py").read_text()).body
    seen = next(s.body for s in statements if isinstance(s, ast.If) and ast.unparse(s.test) == "TYPE_CHECKING")
    declared = {name.asname: s.module.removeprefix("tensorattn").lstrip(".") for s in seen for name in s.names}
    assert declared == {**ta._LAZY, "latent": "", "nn": ""}
    assert set(ta.__all__) - ta._LAZY.keys() <= vars(ta).keys()


def test_every_dependency_is_explained():
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    explained = (ROOT / "CONTRIBUTING.md").read_text().split("## Dependencies")[1]
    listed = [
        *project["project"]["dependencies"],
        *(d for extra in project["project"]["optional-dependencies"].values() for d in extra),
        *(d for group in project["dependency-groups"].values() for d in group if isinstance(d, str)),
        *project["build-system"]["requires"],
    ]
    assert not [name for name in (d.split(">")[0] for d in listed) if name not in explained]


def test_constraints_hold_pins_and_no_address():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    assert "torch==2.13.0" in lines
    assert not [line for line in lines if line.count("==") != 1 or "/" in line or "+" in line]
