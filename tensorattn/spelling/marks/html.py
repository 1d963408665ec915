"""For notebooks: raised and lowered indices and overlines in plain HTML, which needs no script to be seen. Not read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from tensorattn.program import Program
from tensorattn.showing import show
from tensorattn.signature import Signature
from tensorattn.spelling.marks.ascii import ATOM, Item, Text
from tensorattn.spelling.marks.unicode import Unicode


class Html(Unicode):
    """`<i>W</i><sup>μ <span style="text-decoration:overline">ν ρ</span></sup>`"""

    signs: Mapping[str, str] = {function: escape(sign) for function, sign in Unicode.signs.items()}

    def program(self, statements: Sequence[tuple[str, Text]]) -> str:
        return f"<div>{'<br>'.join(f'{left} = {right.words}' for left, right in statements)}</div>"

    def index(self, name: str) -> str:
        word = super().index(name)
        return f"<i>{word}</i>" if len(word.rstrip("'")) == 1 else word

    def script(self, mark: str, items: Sequence[Item]) -> str:
        return _script(mark, (", " if any(i.kind == "arithmetic" for i in items) else " ").join(i.text for i in items))

    def bar(self, names: Sequence[str], where: str) -> str:
        return f'<span style="text-decoration:overline">{self.binder(names, where, "")}</span>'

    def bind(self, kind: str, binder: str, body: Text) -> Text:
        word = "∑" if kind == "sum" else kind
        return Text(f"{word}{_script('_', binder)}({body.words})", ATOM)

    def cat(self, index: str, parts: Sequence[str], arguments: Sequence[str]) -> str:
        binder = f"{self.index(index)} = {' + '.join(map(self.index, parts))}"
        return f"cat{_script('_', binder)}({', '.join(arguments)})"

    def power(self, base: Text, sign: str, exponent: Text, placed: bool) -> str:
        return f"({base.words}){_script('^', sign + self.at(ATOM, exponent))}"


def _script(mark: str, words: str) -> str:
    tag = "sup" if mark == "^" else "sub"
    return f"<{tag}>{words}</{tag}>"


def display(program: Program, signature: Signature | None = None) -> str:
    """What a notebook shows of a program, or of a compiled one: there its inputs and outputs stand below."""
    if signature is None:
        return show(program, Html())
    rows = [("input", signature.inputs), ("output", signature.outputs)]
    cells = [
        f"<tr><td>{role}</td><td>{escape(name)}</td><td>{escape(', '.join(axes)) or 'a number'}</td></tr>"
        for role, tensors in rows
        for name, axes in tensors.items()
    ]
    return f"{show(program, Html())}<table><tr><th></th><th>name</th><th>axes</th></tr>{''.join(cells)}</table>"
