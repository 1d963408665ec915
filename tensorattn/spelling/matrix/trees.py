"""Trees with other names for their indices and sizes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tensorattn import tree as t


def map_tree(tree: t.Tree, index: Callable[[str], str], extent: Callable[[t.ExtentNode], t.ExtentNode]) -> t.Tree:
    """The tree of a matrix formula with every index renamed and every size replaced."""

    def mapped(node: t.Tree) -> t.Tree:
        match node:
            case t.Reference(slots=slots):
                return replace(node, slots=tuple(slot(s) for s in slots))
            case t.ExtentNode():
                return extent(node)
            case t.Bracket(body=body):
                return replace(node, body=mapped(body))
            case t.Call(arguments=arguments):
                return replace(node, arguments=tuple(map(mapped, arguments)))
            case t.PowerNode(base=base, exponent=exponent):
                return replace(node, base=mapped(base), exponent=mapped(exponent))
            case t.ProductNode(units=units):
                return replace(node, units=tuple(map(mapped, units)))
            case t.SumNode(terms=terms):
                return replace(node, terms=tuple((sign, mapped(term)) for sign, term in terms))
            case t.Binding(names=names, body=body):
                return replace(node, names=tuple(replace(n, text=index(n.text)) for n in names), body=mapped(body))
            case _:
                return node

    def slot(node: t.SlotNode) -> t.SlotNode:
        if not isinstance(node, t.AffineSlot) or node.plain is None:
            return node
        name = replace(node.plain, text=index(node.plain.text))
        return t.AffineSlot((t.AffineTerm(1, name),), node.span)

    return mapped(tree)
