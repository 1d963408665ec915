"""A name in an expression: a tensor with slots, a bar, a constant, a position or a scalar."""

from __future__ import annotations

from tensorattn import tree as t
from tensorattn.errors import NotationError
from tensorattn.ir import BATCH, Affine, Constant, Expr, Extent, Index, Normalise, Position, Slot, Split, Tensor
from tensorattn.names import CONSTANTS, Names
from tensorattn.scope import OPEN, Numbers, Part, merged
from tensorattn.source import Source, Span

Env = dict[str, Index]


class ReferenceResolver:
    """Resolves references; keeps what the whole statement needs to know about its indices."""

    def __init__(self, names: Names, source: Source, complaints: list[NotationError]) -> None:
        self.names, self.source, self.complaints = names, source, complaints
        self.numbers = Numbers()
        self.scorers: set[Span] = set()
        self.barred_names: set[str] = set()
        self.first_upper: dict[str, bool] = {}
        self.first_seen: dict[str, int] = {}
        self.first_named: dict[str, int] = {}
        self.in_predicate = False

    def complain(self, code: str, what: str, spans: list[Span], hint: str, *facts: str) -> None:
        places = sorted(set(spans))
        self.complaints.append(NotationError(code, what, source=self.source, spans=places, facts=facts, hint=hint))

    def text(self, span: Span) -> str:
        return self.source.text[span.start : span.end]

    def note_index(self, name: t.Name, upper: bool) -> None:
        if self.first_seen.get(name.text, name.span.start) >= name.span.start:
            self.first_seen[name.text] = name.span.start
            self.first_upper[name.text] = upper

    def note_name(self, name: t.Name) -> None:
        """An index named by a binder or read as a position stands in no slot there, neither upper nor lower."""
        self.first_named[name.text] = min(self.first_named.get(name.text, name.span.start), name.span.start)

    def reference(self, node: t.Reference, env: Env) -> Part:
        if not node.scripted:
            return self._bare(node, env)
        if not self.names.is_constant(node):
            self._check_rank(node)
        slots, part = self._slots(node, env)
        return self._barred(node, self._tensor(node, slots), part, env)

    def _tensor(self, node: t.Reference, slots: list[Slot]) -> Expr:
        name = node.name.text
        if not self.names.is_constant(node):
            return Tensor(name, tuple(slots), _upper(node), tuple(s.span for s in _spread(node)), span=node.span)
        indices = tuple(s for s in slots if isinstance(s, Index))
        if len(indices) != len(slots):
            hint = "compare positions instead, e.g. where(i == j + 1, 1, 0)"
            self.complain("E-SYNTAX", f"the constant `{name}` takes plain indices", [node.span], hint)
        return Constant("eps" if name == "epsilon" else name, indices, _upper(node), span=node.span)

    def _barred(self, node: t.Reference, tensor: Expr, part: Part, env: Env) -> Part:
        part.expr = tensor
        for bar in node.bars:
            self.barred_names.update(n.text for n in bar.names)
            if bar.span not in self.scorers:
                continue
            indices = tuple(self.index(n.text, env) for n in bar.names)
            where = self.condition(bar.where, {**env, **{i.name: i for i in indices}})  # type: ignore[attr-defined]
            part.scorer = bar.group
            written = part.written
            if where is not None:
                part = merged([part, where])
                part.scorer, part.written = bar.group, written
            part.expr = Normalise("softmax", indices, part.expr, None if where is None else where.expr, span=bar.span)
        barred = {n.text for bar in node.bars for n in bar.names}
        part.plain = tuple(n for n in part.opened if n not in barred and n != BATCH)
        return part

    def index(self, name: str, env: Env) -> Index:
        return env.get(name, Index(name, OPEN))

    # slots -----------------------------------------------------------------------------------------------------

    def _slots(self, node: t.Reference, env: Env) -> tuple[list[Slot], Part]:
        slots: list[Slot] = []
        part = Part(Extent(""))
        for number, slot in enumerate(node.slots):
            upper = number < node.upper
            match slot:
                case t.BatchSlot(span=span):
                    slots.append(Index(BATCH))
                    part.opened.setdefault(BATCH, []).append(span)
                case t.SplitSlot(names=names):
                    slots.append(Split(tuple(self._open(n, env, part, upper) for n in names)))
                case t.BarSlot(names=names):
                    slots.extend(self._open(n, env, part, upper) for n in names)
                case t.AffineSlot():
                    slots.append(self._affine(slot, env, part, upper))
        return slots, part

    def _open(self, name: t.Name, env: Env, part: Part, upper: bool) -> Index:
        self.note_index(name, upper)
        part.opened.setdefault(name.text, []).append(name.span)
        part.written[name.text] = part.written.get(name.text, 0) + 1
        return self.index(name.text, env)

    def _affine(self, slot: t.AffineSlot, env: Env, part: Part, upper: bool) -> Slot:
        if slot.plain is not None:
            return self._open(slot.plain, env, part, upper)
        terms: list[tuple[int, Position | Extent | Tensor]] = []
        constant = 0
        for term in slot.terms:
            match term.atom:
                case None:
                    constant += term.coefficient
                case t.Name() as name if name.text in self.names.indices:
                    terms.append((term.coefficient, Position(self._open(name, env, part, upper), span=name.span)))
                case t.Name() as name:
                    self._check_rank(t.Reference(name, (), 0, name.span, False))
                    terms.append((term.coefficient, Tensor(name.text, span=name.span)))
                case t.ExtentNode(name=name):
                    terms.append((term.coefficient, Extent(name.text, span=name.span)))
                case t.Reference() as gather:
                    self._check_rank(gather)
                    inner, opened = self._slots(gather, env)
                    for name, spans in opened.opened.items():
                        part.opened.setdefault(name, []).extend(spans)
                        part.written[name] = part.written.get(name, 0) + opened.written.get(name, 0)
                    terms.append(
                        (
                            term.coefficient,
                            Tensor(
                                gather.name.text,
                                tuple(inner),
                                gather.upper,
                                tuple(s.span for s in _spread(gather)),
                                span=gather.span,
                            ),
                        )
                    )
        return Affine(tuple(terms), constant)

    # bare names ------------------------------------------------------------------------------------------------

    def _bare(self, node: t.Reference, env: Env) -> Part:
        name = node.name.text
        if name not in self.names.indices:
            self._check_rank(node)
            return Part(Tensor(name, span=node.span))
        if name in self.names.tensors and not self.in_predicate:
            self.complain(
                "E-NAME",
                f"`{name}` names both an index and a tensor; bare, it could be either",
                [node.span],
                f"the tensor takes its indices, {name}_<…>; rename one of the two",
                f"the index {name}: its position; the tensor {name}: its values",
            )
        elif name not in env and not self.in_predicate:
            self.complain(
                "E-NAME",
                f"`{name}` is an index of the program, and here no index of the result nor bound",
                [node.span],
                f"the size is |{name}|; a sum over positions is sum[{name}](…); a scalar needs another name",
                "a position is only read where its index is free, bound, or inside a predicate",
            )
        self.note_name(node.name)
        return Part(Position(self.index(name, env), span=node.span), {name: [node.span]})

    # ranks -----------------------------------------------------------------------------------------------------

    def _check_rank(self, node: t.Reference) -> None:
        """One tensor has one rank, with or without `...`."""
        name = node.name.text
        target = self.names.targets.get(name)
        if name == self.names.current:
            return
        first = target if target is not None else self.names.ranks.setdefault(name, node)
        if first is node:
            return
        if _batched(first) != _batched(node):
            self.complain(
                "E-BATCH",
                f"`{name}` stands with `...` and without",
                [first.span, node.span],
                "write `...` in both places",
                "`...` stands for the same leading axes of a tensor wherever it is read",
            )
        elif _rank(first) != _rank(node):
            facts = "its definition has" if target is not None else "its first use has"
            what = f"`{name}` takes {_rank(first)} indices ({facts} {_rank(first)}), here it has {_rank(node)}"
            if name in CONSTANTS and not node.scripted:
                what += f"; the constant {name} needs indices"
            self.complain(
                "E-RANK",
                what,
                [first.span, node.span],
                f"give `{name}` the same number of slots everywhere, or rename one of the two",
                f"{self.text(first.span)}: {_rank(first)}",
                f"{self.text(node.span)}: {_rank(node)}",
            )


def _batched(node: t.Reference) -> bool:
    return any(isinstance(s, t.BatchSlot) for s in node.slots)


def _rank(node: t.Reference) -> int:
    return sum(len(s.names) if isinstance(s, t.BarSlot) else 1 for s in node.slots)


def _upper(node: t.Reference) -> int:
    """How many axes stand in the upper group."""
    return sum(len(s.names) if isinstance(s, t.BarSlot) else 1 for s in node.slots[: node.upper])


def _spread(node: t.Reference) -> list[t.Name | t.SlotNode]:
    """The slots one an axis, a bar group spread into its names."""
    return [n for s in node.slots for n in (s.names if isinstance(s, t.BarSlot) else (s,))]
