"""IR → canonical ASCII text. `read(show(p)) == p`, and showing is a fixed point."""

from __future__ import annotations

from tensorattn.bracketing import brackets_of, count_in, is_divisor, is_implicit
from tensorattn.ir import (
    COMPARISONS,
    Add,
    Affine,
    Concatenate,
    Constant,
    Expr,
    Extent,
    Index,
    Map,
    Normalise,
    Number,
    Position,
    Product,
    Reduce,
    Slot,
    Split,
    Statement,
    Tensor,
    Top,
    walk,
)
from tensorattn.program import Program
from tensorattn.scanning import is_one_index

_SIGNS = {function: sign for sign, function in COMPARISONS.items()}
OR, AND, NOT, COMPARISON, SUM, PRODUCT, UNIT, ATOM = range(8)
Names = frozenset[str]


def show(program: Program) -> str:
    """The program, one statement a line."""
    return "\n".join(show_statement(s) for s in program.statements)


def show_statement(statement: Statement) -> str:
    slots = tuple(axis[0] if len(axis) == 1 else Split(axis) for axis in statement.axes)
    return f"{statement.name}{groups(slots, statement.upper)} = {show_expression(statement.body)}"


def show_expression(expr: Expr) -> str:
    """An expression by itself."""
    return _write(expr, OR, frozenset())


def groups(slots: tuple[Slot, ...], upper: int, bar: tuple[Index, ...] = (), where: str = "") -> str:
    """`^<…>_<…>`; `bar`: the indices, contiguous in one group, that stand under a bar."""
    out = ""
    for mark, listed in (("^", slots[:upper]), ("_", slots[upper:])):
        if not listed:
            continue
        words = _words(listed, bar, where)
        if len(words) == 1 and is_one_index(words[0]) and isinstance(listed[0], Index):
            out += mark + words[0]
        else:
            separator = ", " if len(words) > 1 and any(_is_arithmetic(s) for s in listed) else " "
            out += f"{mark}<{separator.join(words)}>"
    return out


def _words(slots: tuple[Slot, ...], bar: tuple[Index, ...], where: str) -> list[str]:
    words = []
    for slot in slots:
        if isinstance(slot, Index) and slot in bar:
            if slot == bar[0]:
                words.append(f"bar({' '.join(i.name for i in bar)}{where})")
            continue
        words.append(show_slot(slot))
    return words


def _is_arithmetic(slot: Slot) -> bool:
    if not isinstance(slot, Affine):
        return False
    sums = len(slot.terms) > 1 or bool(slot.terms and slot.constant) or _needs_zero(slot)
    return sums or slot.constant < 0 or any(c != 1 for c, _ in slot.terms)


def _needs_zero(slot: Affine) -> bool:
    """A lone position or scalar as an affine slot: without `+0` it would read as a plain slot, which fixes a size."""
    if len(slot.terms) != 1 or slot.constant:
        return False
    ((coefficient, atom),) = slot.terms
    return coefficient == 1 and (isinstance(atom, Position) or (isinstance(atom, Tensor) and not atom.slots))


def show_slot(slot: Slot) -> str:
    match slot:
        case Index(name=name):
            return name
        case Split(indices=indices):
            return f"({' '.join(i.name for i in indices)})"
        case Affine(terms=terms, constant=constant):
            out = ""
            for coefficient, atom in terms:
                size = abs(coefficient)
                out += (
                    ("-" if coefficient < 0 else "+" if out else "")
                    + (f"{size}*" if size != 1 else "")
                    + _write(atom, ATOM, frozenset())
                )
            if constant or not terms or _needs_zero(slot):
                out += ("-" if constant < 0 else "+" if out else "") + str(abs(constant))
            return out


def _write(expr: Expr, level: int, blocked: Names) -> str:
    """The text of an expression that stands at a place of this level; over `blocked` names no bar is written."""
    text, own = _text(expr, blocked)
    return text if own >= level else f"({text})"


def _text(expr: Expr, blocked: Names) -> tuple[str, int]:
    match expr:
        case Number(value=value):
            return (repr(value), ATOM) if value >= 0 else (repr(value), SUM)
        case Extent(name=name):
            return f"|{name}|", ATOM
        case Position(index=index):
            return index.name, ATOM
        case Tensor(name=name, slots=slots, upper=upper):
            return name + groups(slots, upper), ATOM
        case Constant(kind=kind, indices=indices, upper=upper):
            return kind + groups(indices, upper), ATOM
        case Add(terms=terms):
            return _sum(terms, blocked), SUM
        case Product():
            return _product(expr, blocked)
        case Map():
            return _map(expr, blocked)
        case Normalise():
            return _term((expr,), (), blocked), ATOM
        case Reduce(kind=kind, indices=indices, body=body, where=where):
            return f"{kind}[{_binder(indices, where, '', frozenset())}]({_write(body, OR, blocked)})", ATOM
        case Top(indices=indices, count=count, body=body, where=where):
            binder = _binder(indices, where, f"; {_write(count, OR, frozenset())}", frozenset())
            return f"top[{binder}]({_write(body, OR, blocked)})", ATOM
        case Concatenate(index=index, parts=parts, arguments=arguments):
            sizes = " + ".join(p.name for p in parts)
            return f"cat[{index.name} = {sizes}]({', '.join(_write(a, OR, blocked) for a in arguments)})", ATOM


def _binder(indices: tuple[Index, ...], where: Expr | None, options: str, blocked: Names) -> str:
    names = " ".join(i.name for i in indices)
    return names + (f" : {_write(where, OR, blocked)}" if where is not None else "") + options


def _sum(terms: tuple[Expr, ...], blocked: Names) -> str:
    out = ""
    for term in terms:
        negative = isinstance(term, Map) and term.function == "negate"
        word = _write(term.arguments[0] if negative else term, PRODUCT, blocked)  # type: ignore[union-attr]
        if negative:
            out += f" - {word}" if out else f"-{word}"
        else:
            out += f" + {word}" if out else word
    return out


def _map(expr: Map, blocked: Names) -> tuple[str, int]:
    function, arguments = expr.function, expr.arguments
    if function == "negate":
        return f"-{_write(arguments[0], PRODUCT, blocked)}", SUM
    if function == "reciprocal":
        return f"1 / {_write(arguments[0], UNIT, blocked)}", PRODUCT
    if function == "power":
        base, exponent = arguments
        if isinstance(exponent, Map) and exponent.function == "negate":
            return f"{_write(base, ATOM, blocked)}**-{_write(exponent.arguments[0], ATOM, blocked)}", UNIT
        return f"{_write(base, ATOM, blocked)}**{_write(exponent, ATOM, blocked)}", UNIT
    if function in _SIGNS:
        return f" {_SIGNS[function]} ".join(_write(a, SUM, blocked) for a in arguments), COMPARISON
    if function in ("and", "or"):
        level = {"and": AND, "or": OR}[function]
        return f" {function} ".join(_write(a, level + 1, blocked) for a in arguments), level
    if function == "not":
        return f"not {_write(arguments[0], NOT, blocked)}", NOT
    return f"{function}({', '.join(_write(a, OR, blocked) for a in arguments)})", ATOM


# products -----------------------------------------------------------------------------------------------------------


def _product(expr: Product, blocked: Names) -> tuple[str, int]:
    bars = _bars(expr.factors, expr.summed, blocked)
    explicit = tuple(i for i in expr.summed if not is_implicit(expr, i, bars))
    if explicit:
        kept = tuple(i for i in expr.summed if i not in explicit)
        inner = _term(expr.factors, kept, blocked)
        return f"sum[{' '.join(i.name for i in explicit)}]({inner})", ATOM
    return _term(expr.factors, expr.summed, blocked), PRODUCT if len(expr.factors) > 1 else UNIT


def _term(factors: tuple[Expr, ...], summed: tuple[Index, ...], blocked: Names) -> str:
    bars, brackets = _bars(factors, summed, blocked), brackets_of(factors, summed)
    out, divided = "", False
    for number, factor in enumerate(factors):
        others = frozenset(n for k, f in enumerate(factors) if k != number for n in _normalised(f))
        inside = blocked | others
        over = is_divisor(factors, number)
        word = _barred(factor, number in bars, inside) if not over else _write(factor.arguments[0], UNIT, inside)  # type: ignore[union-attr]
        opening = "(" * sum(low == number for low, _ in brackets)
        apart = opening or divided or any(high == number for _, high in brackets)
        if over:
            out += f" / {word}"
        elif not out or out[-1] == "(":
            out += opening + word
        else:
            starred = (
                apart or word[0].isdigit() or word[0] == "." or (word[0] == "(" and _ends_bare(factors[number - 1]))
            )
            out += f" * {opening}{word}" if starred else f" {word}"
        out += ")" * sum(high == number + 1 for _, high in brackets)
        divided = over
    return out


def _ends_bare(factor: Expr) -> bool:
    return isinstance(factor, Position) or (isinstance(factor, Tensor) and not factor.slots)


def _normalised(expr: Expr) -> Names:
    return frozenset(i.name for n in walk(expr) if isinstance(n, Normalise) for i in n.indices)


def _bars(factors: tuple[Expr, ...], summed: tuple[Index, ...], blocked: Names) -> frozenset[int]:
    """The factors that print as a barred tensor."""
    found = {n for n, f in enumerate(factors) if _can_bar(f, blocked) and not _clashes(n, factors)}
    while True:
        groups_ = frozenset(i for n in found for i in factors[n].indices)  # type: ignore[union-attr]
        kept = {n for n in found if not _contracted_early(n, factors, summed, groups_)}
        if kept == found:
            return frozenset(found)
        found = kept


def _can_bar(factor: Expr, blocked: Names) -> bool:
    if (
        not isinstance(factor, Normalise)
        or factor.kind != "softmax"
        or factor.options
        or not isinstance(factor.score, Tensor)
    ):
        return False
    slots, group = factor.score.slots, factor.indices
    if not set(group) <= set(slots) or blocked & {i.name for i in group}:
        return False
    at = slots.index(group[0])
    contiguous = slots[at : at + len(group)] == group and not at < factor.score.upper < at + len(group)
    return (
        contiguous
        and all(count_in(factor.score, i.name) == 1 for i in group)
        and not (factor.where and _normalised(factor.where) & {i.name for i in group})
    )


def _clashes(number: int, factors: tuple[Expr, ...]) -> bool:
    own = {i.name for i in factors[number].indices}  # type: ignore[union-attr]
    return any(own & _normalised(f) for n, f in enumerate(factors) if n != number)


def _contracted_early(
    number: int, factors: tuple[Expr, ...], summed: tuple[Index, ...], barred: frozenset[Index]
) -> bool:
    factor = factors[number]
    assert isinstance(factor, Normalise)
    for index in factor.score.free - set(factor.indices):
        carried = any(n != number and index in f.free and f.free & set(factor.indices) for n, f in enumerate(factors))
        if index in summed and index not in barred and not carried:
            return True
    return False


def _barred(factor: Expr, as_bar: bool, blocked: Names) -> str:
    if not isinstance(factor, Normalise):
        return _write(factor, UNIT, blocked)
    own = frozenset(i.name for i in factor.indices)
    if as_bar and _can_bar(factor, blocked):
        tensor = factor.score
        assert isinstance(tensor, Tensor)
        where = f" : {_write(factor.where, OR, blocked | own)}" if factor.where is not None else ""
        return tensor.name + groups(tensor.slots, tensor.upper, factor.indices, where)
    kind, options = factor.kind, dict(factor.options)
    if kind == "softmax" and options.get("sink") == Number(0):
        kind = "softmax1"
        options = {}
    blocked = blocked | own
    shown = ", ".join(
        _write(v, OR, blocked) if kind == "entmax" else f"{n}={_write(v, OR, blocked)}" for n, v in options.items()
    )
    binder = _binder(factor.indices, factor.where, f"; {shown}" if shown else "", blocked)
    return f"{kind}[{binder}]({_write(factor.score, OR, blocked)})"
