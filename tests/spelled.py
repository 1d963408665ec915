"""Plain formulas spelt in Unicode and in LaTeX, sign by sign: texts for tests of the readers, not for reading."""

from __future__ import annotations

import re
from unicodedata import lookup, normalize

from tensorattn.scanning import BINDERS, GREEK, RESERVED

_TOKEN = re.compile(
    r"#[^\n]*|[\^_]<|[\^_](?=[A-Za-z])|leaky_relu|[A-Za-z][A-Za-z0-9]*'*|[0-9.]+(?:e-?[0-9]+)?|\*\*|[<>=!]=|[ ]+|."
    "|\n",
    re.DOTALL,
)
_LOWERED = {**dict(zip("aehijklmnoprstuvx", "ₐₑₕᵢⱼₖₗₘₙₒₚᵣₛₜᵤᵥₓ", strict=True)), "beta": "ᵦ", "gamma": "ᵧ", "rho": "ᵨ"}
_RAISED = {**dict(zip("abcdefghijklmnoprstuvwxyz", "ᵃᵇᶜᵈᵉᶠᵍʰⁱʲᵏˡᵐⁿᵒᵖʳˢᵗᵘᵛʷˣʸᶻ", strict=True)), "beta": "ᵝ"}
_SIGNS = {"-": "−", "*": "·", "<=": "≤", ">=": "≥", "!=": "≠", "and": "∧", "or": "∨", "not": "¬"}
_MACROS = {"<=": r"\le", ">=": r"\ge", "!=": r"\ne", "*": r"\cdot", "and": r"\land", "or": r"\lor", "not": r"\lnot"}


def greek(word: str) -> str | None:
    """A Greek letter with its digits and primes."""
    stem, tail = re.fullmatch(r"([A-Za-z]+)(.*)", word, re.DOTALL).groups()
    if stem.lower() not in GREEK or stem not in (stem.lower(), stem.capitalize()):
        return None
    size = "CAPITAL" if stem[0].isupper() else "SMALL"
    return lookup(f"GREEK {size} LETTER {'LAMDA' if stem.lower() == 'lambda' else stem.upper()}") + tail


def unicode(text: str) -> str:
    """`k^mu_i` as `k^μᵢ`, `bar(nu)` as an overline, groups in ⟨ ⟩."""
    text = re.sub(r"bar\(([a-z]+)\)", lambda m: (greek(m[1]) or m[1]) + "\u0305" if _one(m[1]) else m[0], text)
    out, stack = [], []
    tokens = _TOKEN.findall(text)
    for at, token in enumerate(tokens):
        before = tokens[at - 1] if at else ""
        if token in ("^<", "_<"):
            stack.append("<")
            out.append(token[0] + "⟨")
        elif token == ">" and stack[-1:] == ["<"]:
            stack.pop()
            out.append("⟩")
        elif token in "([":
            stack.append(token)
            out.append(token)
        elif token in ")]":
            stack.pop()
            out.append(token)
        elif before in ("^", "_") and (raised := (_RAISED if before == "^" else _LOWERED).get(token)):
            out[-1] = raised
        elif token == "sqrt":
            out.append("√")
        elif token == "sum":
            out.append("∑")
        elif token in _SIGNS and (stack[-1:] != ["<"] or not token.isalpha()):
            out.append(_SIGNS[token])
        elif token[0].isascii() and token[0].isalpha() and token not in RESERVED:
            out.append(greek(token) or token)
        else:
            out.append(token)
    return normalize("NFC", "".join(out)).replace("'", "′")


def _one(name: str) -> bool:
    return len(name) == 1 or name in GREEK


class _Latex:
    """One pass over the tokens; `stack` holds what closes each open bracket."""

    def __init__(self, text: str) -> None:
        self.tokens = _TOKEN.findall(text)
        self.at, self.out, self.stack = 0, [], []

    def spelt(self) -> str:
        while self.at < len(self.tokens):
            token = self.tokens[self.at]
            self.at += 1
            self._token(token, "".join(self.tokens[self.at : self.at + 1]))
        return "".join(self.out)

    def _token(self, token: str, after: str) -> None:
        top = self.stack[-1] if self.stack else ""
        if token in ("^<", "_<"):
            self._open(token[0] + "{", "slots")
        elif token in ("^", "_"):
            self.out.append(token)
            self.out.append("{" + self._name(self.tokens[self.at]) + "}")
            self.at += 1
        elif token == ">" and top == "slots":
            self._close("}")
        elif token == "bar" and after == "(" and top == "slots":
            self.at += 1
            self._open(r"\bar{", "bar")
        elif token in BINDERS and after == "[":
            self.at += 1
            self.out.append(rf"\mathrm{{{token}}}")
            self._open("_{", "binder")
        elif token in "([":
            self._open("(" if top == "slots" else r"\left(", "merge" if top == "slots" else "bracket")
        elif token in ")]":
            self._close({"bar": "}", "binder": "}", "merge": ")"}.get(top, r"\right)"))
        elif token.isspace() and "\n" not in token:
            between = (
                top in ("slots", "merge") and self.out[-1] not in ("{", "^{", "_{", ",") and after not in (">", ",")
            )
            self.out.append("," if between else " ")
        elif token == "\n":
            self.out.append(" " if self.stack else " \\\\\n")
        elif token == ":" and top in ("bar", "binder"):
            self.out.append(":")
        elif token in _MACROS:
            self.out.append(_MACROS[token] + " ")
        elif token[0].isalpha():
            self.out.append(self._name(token))
        else:
            self.out.append(token)

    def _open(self, text: str, kind: str) -> None:
        self.out.append(text)
        self.stack.append(kind)

    def _close(self, text: str) -> None:
        self.stack.pop()
        self.out.append(text)

    def _name(self, word: str) -> str:
        stem = word.rstrip("'")
        primes = word[len(stem) :]
        if len(stem) == 1:
            return word
        if stem in GREEK and stem != "omicron":
            return rf"\{stem}{primes} "
        return rf"\mathrm{{{stem}}}".replace("_", r"\_") + primes


def latex(text: str) -> str:
    r"""`k^mu_i` as `k^{\mu}_{i}`, `softmax[j : p](x)` as `\mathrm{softmax}_{j:p}\left(x\right)`."""
    return _Latex(text).spelt()
