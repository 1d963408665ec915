"""Which names of a program are indices, which are tensors, and how each tensor is used."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from tensorattn import tree as t

CONSTANTS = {"delta": 2, "eps": 2, "epsilon": 2, "ones": 1}  # name → fewest indices with which it is the constant


@dataclass(slots=True)
class Names:
    """The names of a program by role; `ranks` holds, for each tensor, its first use."""

    indices: set[str] = field(default_factory=set)
    tensors: set[str] = field(default_factory=set)
    targets: dict[str, t.Reference] = field(default_factory=dict)
    ranks: dict[str, t.Reference] = field(default_factory=dict)
    current: str = ""

    def is_position(self, reference: t.Reference) -> bool:
        return not reference.scripted and reference.name.text in self.indices

    def is_constant(self, reference: t.Reference) -> bool:
        name = reference.name.text
        return name in CONSTANTS and len(reference.slots) >= CONSTANTS[name] and name not in self.targets

    def unused(self, like: str) -> str:
        """A letter that no index of the program has."""
        letters = [c for c in "abcdefghijklmnopqrstuvwxyz" if c not in self.indices | self.tensors]
        after = [c for c in letters if c > like[0]]
        return (after or letters or [like + "1"])[0]

    def references(self, node: t.Tree) -> Iterator[t.Reference]:
        """Every tensor read in a tree, gathers included."""
        if isinstance(node, t.Reference):
            yield node
            for slot in node.slots:
                for term in slot.terms if isinstance(slot, t.AffineSlot) and slot.plain is None else ():
                    if isinstance(term.atom, t.Name) and term.atom.text not in self.indices:
                        yield t.Reference(term.atom, (), 0, term.atom.span, False)
        for part in t.parts(node):
            yield from self.references(part)


def collect(statements: tuple[t.StatementNode, ...]) -> Names:
    """The names of all statements."""
    names = Names()
    for statement in statements:
        if statement.target is not None:
            names.targets.setdefault(statement.target.name.text, statement.target)
            names.tensors.add(statement.target.name.text)
            _slots(statement.target, names)
        _tree(statement.body, names)
    return names


def _tree(node: t.Tree, names: Names) -> None:
    match node:
        case t.Reference():
            if node.scripted:
                names.tensors.add(node.name.text)
            _slots(node, names)
        case t.Binding(names=found):
            names.indices.update(n.text for n in found)
        case t.CatNode(name=name, parts=found):
            names.indices.update((name.text, *(n.text for n in found)))
    for part in t.parts(node):
        _tree(part, names)


def _slots(reference: t.Reference, names: Names) -> None:
    for slot in reference.slots:
        match slot:
            case t.AffineSlot() if slot.plain is not None:
                names.indices.add(slot.plain.text)
            case t.SplitSlot(names=found) | t.BarSlot(names=found):
                names.indices.update(n.text for n in found)
