"""Matrix formulas (`softmax(Q K^T / sqrt(d_k)) V`) with declared axes → programs in index form."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count
from typing import Any

from tensorattn import tree as t
from tensorattn.errors import BindingError, NotationError, suggest
from tensorattn.program import Program
from tensorattn.resolving import BARE, resolve
from tensorattn.scanning import RESERVED
from tensorattn.source import Source, Span
from tensorattn.spelling.matrix import nodes as n
from tensorattn.spelling.matrix.declaring import Declared, declared
from tensorattn.spelling.matrix.parsing import parse_matrix
from tensorattn.spelling.matrix.shaping import Known, Shaper
from tensorattn.spelling.matrix.trees import map_tree
from tensorattn.spelling.matrix.values import Value

_LETTERS = "ijklmnpqrstuvwxyzabcdefgho"


def read_matrix(source: Source, axes: Mapping[str, Any]) -> Program:
    """The program of a matrix formula whose inputs have these axes.

    Raises: NotationError; BindingError for axes of what the formula lacks.
    """
    given = declared(axes)
    statements, shaper = _shaped(source, given)
    read = shaper.used
    for name in given:
        if name not in read:
            facts = [f"the formula's inputs: {', '.join(x for x in shaper.used if x in given) or 'none'}"]
            hint = suggest(name, list(read)) or "remove it, or use it in the formula"
            raise BindingError("E-UNDEF", f"the formula has no input `{name}`", facts=facts, hint=hint)
    return _resolved(source, statements, shaper)


def without_axes(source: Source) -> NotationError:
    """The refusal of a matrix formula whose axes are not declared: it shows the index form to copy."""
    try:
        statements, shaper = _shaped(source, None)
    except NotationError as error:
        return error
    spans = [statements[0].node.span]
    return _explained(source, _index_form(source, statements, shaper), spans)


def explained(source: Source, refused: NotationError) -> NotationError:
    """The refusal itself, or, where the text is a matrix formula, one that shows its index form."""
    codes = {refused.code, *(other.code for other in refused.others)}
    if not codes & {"E-MATRIX", "E-AXIS"}:
        return refused
    try:
        statements, shaper = _shaped(source, None)
        if any(s.node.target and s.node.target.scripts for s in statements) or not (
            "E-MATRIX" in codes or shaper.is_plain
        ):
            return refused
        form = _index_form(source, statements, shaper)
    except NotationError:
        return refused
    marked = next(e for e in (refused, *refused.others) if e.code in ("E-MATRIX", "E-AXIS"))
    return _explained(source, form, marked.spans)


@dataclass(frozen=True, slots=True)
class IndexForm:
    """What a matrix formula without axes may mean: the formula in index form, and the axes that say the same."""

    formula: str
    axes: dict[str, str]


def _index_form(source: Source, statements: list[_Shaped], shaper: Shaper) -> IndexForm:
    """The index form with axes invented: capitals are matrices, small letters vectors, words scalars."""
    program = _resolved(source, statements, shaper)
    kinds = {name: shaper.known[name].kinds for name in program.inputs}
    names = {name: " ".join(shaper.axes.names[shaper.axes.root(k)] for k in of) for name, of in kinds.items()}
    return IndexForm(str(program), names)


def _explained(source: Source, form: IndexForm, spans: Sequence[Span]) -> NotationError:
    facts = ["with invented names of axes it says:", *(f"  {line}" for line in form.formula.splitlines())]
    declared = ", ".join(f'"{name}": "{axes}"' for name, axes in form.axes.items())
    hint = f"copy that, or declare the axes: ta.parse(…, axes={{{declared}}})"
    what = "a matrix formula names no axes, so it does not say what is summed"
    return NotationError("E-MATRIX", what, source=source, spans=spans, facts=facts, hint=hint)


@dataclass(frozen=True, slots=True)
class _Shaped:
    node: n.Assignment
    value: Value


def _shaped(source: Source, given: Mapping[str, Declared] | None) -> tuple[list[_Shaped], Shaper]:
    nodes = parse_matrix(source, given)
    shaper = Shaper(source, given)
    return [_statement(node, shaper, alone=len(nodes) == 1) for node in nodes], shaper


def _statement(node: n.Assignment, shaper: Shaper, alone: bool) -> _Shaped:
    if node.target is None and not alone:
        hint = "give every statement a left side: Y = …"
        shaper.refuse("E-SYNTAX", "a statement without a left side stands among others", node.span, hint)
    shaper.current = node.target.text if node.target else ""
    if node.target is not None:
        _check_target(node.target, shaper)
    value = shaper.value(node.body)
    value = replace(value, tree=shaper.resolve_sizes(value.tree, value.contracted))
    if node.target is not None:
        for parameter in node.parameters:
            if parameter.text not in shaper.used:
                what = f"the parameter `{parameter.text}` does not stand on the right"
                shaper.refuse("E-UNDEF", what, parameter.span, "remove it, or use it")
        kinds = tuple(shaper.axes.kind_of(a) for a in value.axes)
        rows, columns = value.rows is not None, value.columns is not None
        shaper.known[node.target.text] = Known(kinds, value.batch, rows, columns, value.flexible)
        shaper.once(node.target)
        if node.parameters:
            shaper.functions[node.target.text] = node
    return _Shaped(node, value)


def _check_target(word: n.Word, shaper: Shaper) -> None:
    name = word.text
    if name in RESERVED:
        hint = f"choose another name, e.g. {name.capitalize()}0"
        shaper.refuse("E-RESERVED", f"`{name}` is a reserved word and names no result", word.span, hint)
    if name in (shaper.declared or {}):
        what = f"`{name}` is declared as an input and defined by the formula"
        shaper.refuse("E-REDEF", what, word.span, f"leave `{name}` out of the declared axes, or rename the result")
    if name in shaper.known:
        shaper.refuse("E-REDEF", f"`{name}` is used or defined before", word.span, "give it a name of its own")


def _resolved(source: Source, statements: list[_Shaped], shaper: Shaper) -> Program:
    taken = {*shaper.known, *shaper.axes.named, *shaper.sizes}
    letters = (c for c in chain(_LETTERS, (f"i{k}" for k in count(1))) if c not in taken)
    shaper.axes.names_kinds(range(len(shaper.axes.parents)), letters)
    return resolve(source, tuple(_tree(shaped, shaper) for shaped in statements))


def _tree(shaped: _Shaped, shaper: Shaper) -> t.StatementNode:
    """The statement with the names of its axes: those of the result first, then the others as they come."""
    value, node, axes = shaped.value, shaped.node, shaper.axes
    names: dict[int, str] = {}
    taken = {*shaper.known, *axes.named}

    def name_of(text: str) -> str:
        axis = axes.find(int(text))
        if axis not in names:
            first = axes.name_of(axis)
            assert first is not None
            used = set(names.values())
            names[axis] = next(x for x in _primed(first) if x not in used and (x == first or x not in taken))
        return names[axis]

    span = node.target.span if node.target else node.span
    slots: list[t.SlotNode] = [t.BatchSlot(span)] if value.batch else []
    slots += [t.AffineSlot((t.AffineTerm(1, t.Name(name_of(str(a)), span)),), span) for a in value.axes]
    name = node.target.text if node.target else BARE
    target = t.Reference(t.Name(name, span), tuple(slots), 0, span, bool(slots))

    def extent(found: t.ExtentNode) -> t.ExtentNode:
        text = found.name.text
        return t.ExtentNode(t.Name(name_of(text) if text.isdigit() else text, found.span), found.span)

    return t.StatementNode(target, map_tree(value.tree, name_of, extent), node.span)


def _primed(name: str) -> Iterator[str]:
    """t, then t with one prime, with two, then t1, t2, …"""
    stem = name.rstrip("'")
    yield from (name, f"{name}'", f"{name}''")
    yield from (f"{stem}{k}" for k in count(1))
