"""Arrays from and to files: `.npy`, `.npz`, `.safetensors`; a result file is whole or absent."""

from __future__ import annotations

import math
import os
import tempfile
import zipfile
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import rich_click as click

if TYPE_CHECKING:
    import numpy as np

MANY = (".npz", ".safetensors")  # files that hold arrays by name


def read_inputs(texts: Sequence[str], wanted: Sequence[str]) -> dict[str, Any]:
    """Inputs by name, from `name=file.npy`, `name=0.5` or a file of arrays by name (of which `wanted` are taken).

    Raises: click.UsageError where a file cannot be read or a name is given twice.
    """
    inputs: dict[str, Any] = {}
    for text in texts:
        found = _read_one(text, wanted)
        twice = sorted(inputs.keys() & found.keys())
        if twice:
            raise click.UsageError(f"input {twice[0]} is given twice, the second time by {text!r}")
        inputs.update(found)
    return inputs


def _read_one(text: str, wanted: Sequence[str]) -> dict[str, Any]:
    name, equals, value = text.partition("=")
    if Path(text).suffix in MANY and (not equals or Path(text).exists()):
        arrays = _load_many(text)
        return {name: arrays[name] for name in wanted if name in arrays}
    if not equals or not name or not value:
        raise click.UsageError(f"-i {text!r}: write NAME=FILE.npy, NAME=NUMBER, FILE.npz or FILE.safetensors")
    number = _number(value)
    return {name: _load_array(value) if number is None else number}


def _number(text: str) -> int | float | None:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return None


def _load_array(path: str) -> np.ndarray:
    import numpy as np

    if Path(path).suffix != ".npy":
        more = ": it holds arrays by name, so give it without NAME=" if Path(path).suffix in MANY else ""
        raise click.UsageError(f"{path} is not an .npy file{more}")
    with _reading(path), open(path, "rb") as file:
        return np.load(file, allow_pickle=False)


def _load_many(path: str) -> dict[str, np.ndarray]:
    with _reading(path):
        return _load_safetensors(path) if path.endswith(".safetensors") else _load_numpy(path)


@contextmanager
def _reading(path: str) -> Generator[None]:
    try:
        yield
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error).splitlines()[0]
        raise click.UsageError(f"cannot read {path}: {reason}") from error


def _load_numpy(path: str) -> dict[str, np.ndarray]:
    import numpy as np

    with open(path, "rb") as file:
        loaded = np.load(file, allow_pickle=False)
        if not isinstance(loaded, np.lib.npyio.NpzFile):
            raise ValueError("it holds one array without a name; rename it to .npy")
        return {name: loaded[name] for name in loaded.files}


def _load_safetensors(path: str) -> dict[str, np.ndarray]:
    try:
        from safetensors import SafetensorError
        from safetensors.numpy import load_file
    except ImportError as error:
        raise click.UsageError('reading .safetensors needs: pip install "tensorattn[safetensors]"') from error
    try:
        return load_file(path)
    except SafetensorError as error:
        raise ValueError(str(error)) from error


def check_target(path: str | None, outputs: Sequence[str]) -> None:
    """Refuse a result file that could not be written, before any work.

    Raises: click.UsageError.
    """
    if path is None:
        return
    target = Path(path)
    if target.suffix not in (".npy", ".npz"):
        raise click.UsageError(f"-O {path}: results are written to .npz or .npy files")
    if target.suffix == ".npy" and len(outputs) > 1:
        raise click.UsageError(f"-O {path}: an .npy file holds one array, here are {', '.join(outputs)}; use .npz")
    if target.is_dir() or not target.parent.is_dir():
        raise click.UsageError(f"-O {path}: {'is a folder' if target.is_dir() else 'its folder does not exist'}")


def write_outputs(path: str, outputs: Mapping[str, np.ndarray]) -> None:
    """Write results to `.npz` (by name) or `.npy` (the only one).

    Raises: click.UsageError where the file cannot be written; it is then as it was before.
    """
    import numpy as np

    try:
        with _replacing(Path(path)) as file:
            if path.endswith(".npy"):
                (array,) = outputs.values()
                np.lib.format.write_array(file, array, allow_pickle=False)
            else:
                _write_archive(file, outputs)
    except OSError as error:
        raise click.UsageError(f"cannot write {path}: {error.strerror or error}") from error


def _write_archive(file: IO[bytes], outputs: Mapping[str, np.ndarray]) -> None:
    # np.savez takes the names as keywords, so an output called `file` would collide with its own parameter.
    import numpy as np

    with zipfile.ZipFile(file, "w") as archive:
        for name, array in outputs.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)


@contextmanager
def _replacing(path: Path) -> Generator[IO[bytes]]:
    """A file beside `path` that takes its place once it is wholly written."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, _permissions(path))
        os.replace(name, path)
    finally:
        Path(name).unlink(missing_ok=True)


def _permissions(path: Path) -> int:
    if path.exists():
        return path.stat().st_mode & 0o777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


def plain_values(array: np.ndarray) -> Any:
    """An array as nested lists for JSON, which has no NaN and no infinity: these become strings."""
    return _plain(array.tolist())


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value
