"""The axes of a matrix formula: occurrences that are one index, and the kinds (declared names) that they have."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Axes:
    """Union–find over axes, one for each occurrence of a tensor's axis; each has a kind, and a kind perhaps a name."""

    parents: list[int] = field(default_factory=list)
    kinds: list[int] = field(default_factory=list)  # of each axis
    kind_parents: list[int] = field(default_factory=list)
    names: dict[int, str] = field(default_factory=dict)  # of kinds
    named: dict[str, int] = field(default_factory=dict)

    def kind(self, name: str | None) -> int:
        """The kind of this name; without a name a new one that may still turn out to be another."""
        if name is not None and name in self.named:
            return self.named[name]
        self.kind_parents.append(len(self.kind_parents))
        found = len(self.kind_parents) - 1
        if name is not None:
            self.named[name] = found
            self.names[found] = name
        return found

    def fresh(self, kind: int) -> int:
        """A new axis of a kind."""
        self.parents.append(len(self.parents))
        self.kinds.append(kind)
        return len(self.parents) - 1

    def find(self, axis: int) -> int:
        return _root(self.parents, axis)

    def kind_of(self, axis: int) -> int:
        return self.root(self.kinds[axis])

    def root(self, kind: int) -> int:
        """The kind that a kind has turned out to be."""
        return _root(self.kind_parents, kind)

    def name_of(self, axis: int) -> str | None:
        """The name of the kind of an axis, if it has one."""
        return self.names.get(self.kind_of(axis))

    def fits(self, one: int, other: int) -> bool:
        """Whether two axes can be one: they are of one kind, or one has no name yet."""
        a, b = self.kind_of(one), self.kind_of(other)
        return a == b or a not in self.names or b not in self.names

    def unify(self, one: int, other: int) -> None:
        """Makes two axes that fit one index."""
        a, b = self.kind_of(one), self.kind_of(other)
        if a != b:
            named, other_kind = (a, b) if a in self.names else (b, a)
            self.kind_parents[other_kind] = named
        self.parents[self.find(other)] = self.find(one)

    def copy(self) -> Axes:
        return Axes(list(self.parents), list(self.kinds), list(self.kind_parents), dict(self.names), dict(self.named))

    def become(self, other: Axes) -> None:
        """Takes over the state of a copy."""
        self.parents, self.kinds, self.kind_parents = other.parents, other.kinds, other.kind_parents
        self.names, self.named = other.names, other.named

    def names_kinds(self, axes: Iterable[int], names: Iterable[str]) -> None:
        """Gives a name to each kind of these axes that has none, in order."""
        invented = iter(names)
        for axis in axes:
            kind = self.kind_of(axis)
            if kind not in self.names:
                name = next(invented)
                self.names[kind], self.named[name] = name, kind


def _root(parents: list[int], node: int) -> int:
    while parents[node] != node:
        parents[node] = node = parents[parents[node]]
    return node
