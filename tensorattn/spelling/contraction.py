"""A program that is one sum of one product of tensors → its einsum string."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import chain, count

from tensorattn.errors import NotationError
from tensorattn.ir import (
    BATCH,
    Affine,
    Constant,
    Expr,
    Index,
    Product,
    Reduce,
    Slot,
    Split,
    Tensor,
    rebuild,
    substitute,
)
from tensorattn.program import Program
from tensorattn.rewriting.deltas import eliminate_deltas
from tensorattn.showing import show_expression, show_slot
from tensorattn.source import Source
from tensorattn.spelling.einsum import MOST_OPERANDS, Style

_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_HINT = "an einsum is one sum of a product of tensors; give what is none a statement of its own, or compile the formula"


@dataclass(frozen=True, slots=True)
class Einsum:
    """An einsum string, the names of its operands in order, and of its result; `str()` is the string.

    `np.einsum(str(e), *(arrays[name] for name in e.operands))`.
    """

    subscripts: str
    operands: tuple[str, ...]
    result: str

    def __str__(self) -> str:
        return self.subscripts


def einsum(program: Program, style: Style | None = None) -> Einsum:
    """The last statement as an einsum string; the statements before it that it reads are put in its place.

    Letters where every index is one letter or `style="letters"` (other indices get letters that are free), else the
    words of einops. Raises: NotationError `E-EINSUM` with the first part that is no contraction.
    """
    if style not in (None, "letters", "words"):
        raise NotationError("E-EINSUM", f"there is no style {style!r}", hint='it is "letters" or "words"')
    statement = program.statements[-1]
    found = _Contraction(program)
    tensors = found.tensors(statement.name)
    slots = [tuple(_slot(program, tensor, s) for s in tensor.slots) for tensor in tensors]
    left = tuple(axis[0] if len(axis) == 1 else Split(axis) for axis in statement.axes)
    indices = list(dict.fromkeys(i for group in (*slots, left) for slot in group for i in _indices(slot)))
    own = [i for i in indices if i.name != BATCH]
    merged = any(isinstance(slot, Split) for group in (*slots, left) for slot in group)
    if style is None:
        style = "letters" if all(len(i.name.rstrip("'")) == 1 for i in own) and not merged else "words"
    if style == "letters" and merged:
        raise _refused(program, statement.body, "a merged axis (h d) stands in no string of letters", 'style="words"')
    names = _letters(program, own) if style == "letters" else _words(own)
    between = "" if style == "letters" else " "
    terms = [between.join(_shown(slot, names) for slot in group) for group in (*slots, left)]
    comma, arrow = (",", "->") if style == "letters" else (", ", " -> ")
    text = f"{comma.join(terms[:-1])}{arrow}{terms[-1]}"
    return Einsum(text, tuple(t.name for t in tensors), statement.name)


class _Contraction:
    """The tensors of the product that a statement is; each sum has indices of its own."""

    def __init__(self, program: Program) -> None:
        self.program, self.numbers = program, count(1)
        self.statements = {s.name: s for s in program.statements}

    def tensors(self, name: str) -> list[Tensor]:
        statement = self.statements[name]
        body = eliminate_deltas(_product(statement.body))
        factors = _without_ones(_factors(body))
        kept = frozenset(statement.indices)
        fresh: dict[Index, Index] = {i: i for i in (*kept, Index(BATCH))}

        def new(index: Index) -> Index:
            return fresh.setdefault(index, Index(index.name, next(self.numbers)))

        found: list[Tensor] = []
        for factor in factors:
            if not isinstance(factor, Tensor):
                what = f"`{show_expression(factor)}` is no tensor, so the formula is no einsum"
                raise _refused(self.program, factor, what, _HINT)
            tensor = substitute(factor, new)
            assert isinstance(tensor, Tensor)
            found.extend(self.inlined(tensor) if tensor.name in self.statements else [tensor])
            if len(found) > MOST_OPERANDS:
                what = f"the einsum string would have more than {MOST_OPERANDS} operands"
                raise _refused(self.program, statement.body, what, "write an einsum for each statement")
        carried = {i for tensor in found for i in tensor.free}
        lacking = next((i for i in _summed(body) if fresh.get(i, i) not in carried), None)
        if lacking is not None:
            what = f"the sum over {lacking.name} is over what no tensor carries, so the formula is no einsum"
            raise _refused(self.program, statement.body, what, "multiply by ones_<…> as an input of its own")
        return found

    def inlined(self, tensor: Tensor) -> list[Tensor]:
        """The tensors of the statement that a tensor names, at its indices."""
        statement = self.statements[tensor.name]
        at: dict[Index, Index] = {}
        for axis, slot in zip(statement.axes, tensor.slots, strict=True):
            first, *others = axis
            if others or not isinstance(slot, Index):
                what = f"`{show_expression(tensor)}` reads a statement through merged axes, which an einsum cannot"
                raise _refused(self.program, tensor, what, "give the parts of the axis names of their own")
            at[first] = slot
        placed = (substitute(inner, lambda i: at.get(i, i)) for inner in self.tensors(tensor.name))
        return [replace(inner, span=tensor.span) for inner in placed if isinstance(inner, Tensor)]


def _product(node: Expr) -> Expr:
    """Explicit sums without a condition, and products in products, as one product."""
    node = rebuild(node, _product) if isinstance(node, (Product, Reduce)) else node
    if isinstance(node, Reduce) and node.kind == "sum" and node.where is None:
        return _product(Product((node.body,), node.indices, span=node.span))
    if not isinstance(node, Product):
        return node
    factors = tuple(chain.from_iterable(_factors(f) for f in node.factors))
    return Product(factors, (*node.summed, *chain.from_iterable(map(_summed, node.factors))), span=node.span)


def _factors(node: Expr) -> tuple[Expr, ...]:
    return node.factors if isinstance(node, Product) else (node,)


def _summed(node: Expr) -> tuple[Index, ...]:
    return node.summed if isinstance(node, Product) else ()


def _without_ones(factors: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """Ones over indices that a tensor carries change nothing."""
    carried = {i for f in factors if isinstance(f, Tensor) for i in f.free}
    return tuple(f for f in factors if not (isinstance(f, Constant) and f.kind == "ones" and f.free <= carried))


def _slot(program: Program, tensor: Tensor, slot: Slot) -> Index | Split:
    if isinstance(slot, Affine):
        what = f"the slot {show_slot(slot)} of `{tensor.name}` is no plain index, so the formula is no einsum"
        raise _refused(program, tensor, what, "gather or slice the array before")
    return slot


def _indices(slot: Index | Split) -> tuple[Index, ...]:
    return slot.indices if isinstance(slot, Split) else (slot,)


def _letters(program: Program, indices: list[Index]) -> dict[Index, str]:
    """A letter for each index: its own, or the first of its name, or the next that is free."""
    if len(indices) > len(_LETTERS):
        what = f"{len(indices)} indices are more than the {len(_LETTERS)} letters of an einsum string"
        raise NotationError("E-EINSUM", what, source=program.source, hint='write words: style="words"')

    def letters(name: str) -> str:
        at = _LETTERS.index(name[0])
        return _LETTERS[at:] + _LETTERS[:at]

    return _named(indices, letters, set(_LETTERS))


def _words(indices: list[Index]) -> dict[Index, str]:
    """A word for each index: its own without primes, or with a digit behind."""

    def words(name: str) -> Iterable[str]:
        stem = name.rstrip("'")
        return chain((stem,), (f"{stem}{n}" for n in count(1)))

    return _named(indices, words, None)


def _named(indices: list[Index], choices: Callable[[str], Iterable[str]], allowed: set[str] | None) -> dict[Index, str]:
    """An index keeps its name where it is allowed and not taken, else has the first free choice."""
    names: dict[Index, str] = {}
    own = {i.name for i in indices if re.fullmatch("[A-Za-z0-9]+", i.name) and (allowed is None or i.name in allowed)}
    for index in indices:
        taken = set(names.values())
        mine = index.name in own and index.name not in taken
        names[index] = index.name if mine else next(c for c in choices(index.name) if c not in taken | own)
    return names


def _shown(slot: Index | Split, names: Mapping[Index, str]) -> str:
    if isinstance(slot, Split):
        return f"({' '.join(names[i] for i in slot.indices)})"
    return BATCH if slot.name == BATCH else names[slot]


def _refused(program: Program, node: Expr, what: str, hint: str) -> NotationError:
    source: Source | None = program.source if node.span is not None else None
    return NotationError("E-EINSUM", what, source=source, spans=[node.span] if node.span else [], hint=hint)
