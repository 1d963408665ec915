"""Python text → its syntax tree, in one thread at a time."""

from __future__ import annotations

import ast
import threading

# Python 3.11 counts the depth of the trees that are made once for all threads, and gives up where two make one.
_MAKING = threading.RLock()


def module_tree(text: str) -> ast.Module:
    """The tree of a module. Raises: SyntaxError."""
    with _MAKING:
        return ast.parse(text)


def expression_tree(text: str) -> ast.expr:
    """The tree of an expression. Raises: SyntaxError."""
    with _MAKING:
        return ast.parse(text, mode="eval").body
