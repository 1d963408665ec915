"""Source of a function → the same with `del` after the last use of every array, so that its memory is free again."""

from __future__ import annotations

import ast
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from tensorattn.syntax import module_tree


def freed(source: str, arrays: Collection[str]) -> str:
    """The source of one function with a line `del a, b` wherever arrays are used for the last time.

    Nothing is deleted right before the function returns. In a branch, what no branch uses later is deleted in each; in
    a loop only what the loop makes and no later round reads.
    """
    tree = module_tree(source)
    function = next(node for node in tree.body if isinstance(node, ast.FunctionDef))
    freeing = _Freeing(frozenset(arrays))
    freeing.visit(function.body, frozenset(), frozenset(), last=True)
    lines = source.splitlines()
    for number in sorted(freeing.inserted, reverse=True):
        lines.insert(number, freeing.inserted[number])
    return "\n".join(lines) + "\n"


@dataclass(slots=True)
class _Freeing:
    """`inserted`: lines to be inserted, by the number of lines before them."""

    arrays: frozenset[str]
    inserted: dict[int, str] = field(default_factory=dict)

    def mentioned(self, *nodes: ast.AST) -> frozenset[str]:
        """The arrays that are read or written somewhere in the nodes."""
        found = (part.id for node in nodes for part in ast.walk(node) if isinstance(part, ast.Name))
        return frozenset(found) & self.arrays

    def written(self, node: ast.AST) -> frozenset[str]:
        """The arrays that exist after the node, for it assigns them on every path."""
        match node:
            case ast.If(body=yes, orelse=no):
                return self._all_written(yes) & self._all_written(no)
            case ast.For():  # of no round
                return frozenset()
        names = (part for part in ast.walk(node) if isinstance(part, ast.Name))
        return frozenset(name.id for name in names if isinstance(name.ctx, ast.Store)) & self.arrays

    def _all_written(self, body: Sequence[ast.stmt]) -> frozenset[str]:
        return frozenset().union(*map(self.written, body))

    def needed(self, body: Sequence[ast.stmt], later: frozenset[str] = frozenset()) -> frozenset[str]:
        """The arrays that have to exist before these statements, of which `later` are read after them.

        Two loops may give one name to arrays of theirs: what is assigned before it is read need not exist.
        """
        for statement in reversed(body):
            match statement:
                case ast.If(test=test, body=yes, orelse=no):
                    later = self.mentioned(test) | self.needed(yes, later) | self.needed(no, later)
                case ast.For(iter=over, body=inner):
                    later |= self.mentioned(over) | self.needed(inner)
                case ast.Assign(targets=targets, value=value):
                    plain = (name for target in targets for name in _names(target))
                    read = self.mentioned(value, *(t for t in targets if not _names(t)))
                    later = (later - frozenset(plain)) | read
                case _:
                    later |= self.mentioned(statement)
        return later

    def visit(self, body: Sequence[ast.stmt], before: frozenset[str], later: frozenset[str], *, last: bool) -> None:
        """A list of statements, of which the arrays `before` exist and `later` are read afterwards."""
        if last and isinstance(body[-1], ast.Return):
            later |= self.mentioned(body[-1])
            body = body[:-1]
        known = [before]
        for statement in body:
            known.append(known[-1] | self.written(statement))
        for number in reversed(range(len(body))):
            statement = body[number]
            self._statement(statement, known[number], later, last=last and number == len(body) - 1)
            later = self.needed([statement], later)

    def _statement(self, statement: ast.stmt, before: frozenset[str], later: frozenset[str], *, last: bool) -> None:
        match statement:
            case ast.If(body=yes, orelse=no):
                ended = (self.needed([statement]) & before) - later
                for side in (yes, no):
                    self._delete(side[0].lineno - 1, side[0].col_offset, ended - self.needed(side))
                    self.visit(side, before, later, last=last)
            case ast.For(body=body):
                self.visit(body, before, later | self.needed(body), last=False)
                if not last:
                    ended = (self.needed([statement]) & before) - later
                    self._delete(statement.end_lineno, statement.col_offset, ended)
            case _ if not last:
                self._delete(statement.end_lineno, statement.col_offset, self.mentioned(statement) - later)

    def _delete(self, place: int | None, indent: int, names: frozenset[str]) -> None:
        if not names or place is None:
            return
        earlier = self.inserted.get(place)
        listed = sorted(names, key=lambda name: (len(name), name))
        line = " " * indent + "del " + ", ".join(listed)
        self.inserted[place] = line if earlier is None else f"{earlier}\n{line}"


def _names(target: ast.expr) -> tuple[str, ...]:
    """The names that an assignment gives anew; none where it writes into what there is."""
    if isinstance(target, ast.Tuple):
        return tuple(name for part in target.elts for name in _names(part))
    return (target.id,) if isinstance(target, ast.Name) else ()
