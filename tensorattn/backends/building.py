"""Generated source → a module text of its own, or a function: where helpers come from and where source is kept."""

from __future__ import annotations

import ast
import functools
import importlib
import itertools
import linecache
import math
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files

from tensorattn.backends.naming import identifier
from tensorattn.backends.rendering import function_source
from tensorattn.backends.vocabulary import Vocabulary
from tensorattn.kernel import Kernel
from tensorattn.syntax import module_tree

_serial = itertools.count()

STAND_IN = '''\
class ShapeError(ValueError):
    """A position outside its axis."""

    def __init__(self, code, what, *, facts=(), hint=None):
        self.code, self.what, self.facts, self.hint = code, what, facts, hint
        super().__init__("; ".join((f"{code}: {what}", *facts)))
'''


@dataclass(frozen=True, slots=True)
class Definition:
    """One top-level statement of a helper module: its text, the names it makes, and the names it needs."""

    text: str
    makes: frozenset[str]
    needs: frozenset[str]
    extends: frozenset[str]  # functions of the module that its decorators use: it belongs to them, called or not
    own: bool  # not an import


@functools.cache
def definitions(module: str) -> tuple[Definition, ...]:
    """The top-level statements of a helper module, read from its text (so that no array library is loaded)."""
    package, _, stem = module.rpartition(".")
    text = files(package).joinpath(f"{stem}.py").read_text(encoding="utf-8")
    lines = text.splitlines()
    found: list[Definition] = []
    for node in module_tree(text).body:
        if isinstance(node, ast.Expr) or getattr(node, "module", "") == "__future__":
            continue
        decorators = getattr(node, "decorator_list", [])
        extends = frozenset().union(*map(_names, decorators)) & {name for d in found for name in d.makes if d.own}
        first = min([node.lineno, *(d.lineno for d in decorators)])
        source = "\n".join(lines[first - 1 : node.end_lineno])
        own = not isinstance(node, (ast.Import, ast.ImportFrom))
        found.append(Definition(source, _made(node), _names(node), extends, own))
    return tuple(found)


def _made(node: ast.stmt) -> frozenset[str]:
    match node:
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            return frozenset({name})
        case ast.Assign(targets=targets):
            return frozenset(t.id for t in targets if isinstance(t, ast.Name))
        case ast.Import(names=names) | ast.ImportFrom(names=names):
            return frozenset((a.asname or a.name).partition(".")[0] for a in names)
    raise TypeError(f"a helper module holds functions, constants and imports only, not {ast.unparse(node)}")


def _names(node: ast.AST) -> frozenset[str]:
    return frozenset(n.id for n in ast.walk(node) if isinstance(n, ast.Name))


def reserved(words: Vocabulary) -> frozenset[str]:
    """Every name that a module of generated code may hold besides the function."""
    made = frozenset().union(*(d.makes for module in words.helpers for d in definitions(module)))
    return made | {"math", "ShapeError", words.namespace}


def render(kernel: Kernel, name: str, words: Vocabulary, standalone: bool = False) -> str:
    """The source of a kernel: the function, or with `standalone` a module that runs without this package."""
    function = function_source(kernel, name, words, reserved(words), standalone=standalone)
    if not standalone:
        return function
    helpers, imports = _closure(function, words)
    text = "\n\n\n".join([*helpers, function])
    text = text.replace('"tensorattn::', f'"tensorattn_{identifier(name)}::')
    return "\n".join(sorted({*words.imports, *imports})) + "\n\n\n" + text


def _closure(function: str, words: Vocabulary) -> tuple[list[str], set[str]]:
    """The helper definitions a function needs, in order, and the imports those need."""
    needed = set(_names(module_tree(function)))
    chosen: list[str] = []
    imports: set[str] = set()
    for module in reversed(words.helpers):
        kept: set[int] = set()
        parts = definitions(module)
        while True:
            new = {n for n, d in enumerate(parts) if n not in kept and (d.makes & needed or d.extends & needed)}
            if not new:
                break
            kept |= new
            needed.update(*(parts[n].needs for n in new))
        used = [parts[n] for n in sorted(kept)]
        imports.update(d.text for d in used if not d.own and "tensorattn" not in d.text)
        chosen = [d.text for d in used if d.own] + chosen
    return ([STAND_IN.rstrip(), *chosen] if "ShapeError" in needed else chosen), imports


def build(kernel: Kernel, name: str, words: Vocabulary) -> Callable[..., tuple[object, ...]]:
    """The kernel as a function with a code object of its own; its source shows in tracebacks and debuggers."""
    source = render(kernel, name, words)
    filename = f"<tensorattn {words.name} {identifier(name)} {next(_serial)}>"
    space: dict[str, object] = {"math": math}  # no __name__: dynamo would import a module of that name
    space[words.namespace] = importlib.import_module(words.imports[-1].split()[1])
    for module in words.helpers:
        loaded = importlib.import_module(module)
        space.update({made: getattr(loaded, made) for d in definitions(module) for made in d.makes})
    exec(compile(source, filename, "exec"), space)  # our own text; every name in it was made an identifier
    function = space[identifier(name)]
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    weakref.finalize(function, linecache.cache.pop, filename, None)
    return function  # type: ignore[return-value]
