"""The body of a statement: tree → IR with scopes. `Resolver` is the state of one statement's resolution."""

from __future__ import annotations

from tensorattn import tree as t
from tensorattn.errors import nearest, suggest
from tensorattn.ir import (
    BATCH,
    BOOLEAN,
    Add,
    Concatenate,
    Expr,
    Extent,
    Index,
    Map,
    Normalise,
    Number,
    Position,
    Reduce,
    Tensor,
    Top,
)
from tensorattn.references import ReferenceResolver
from tensorattn.scope import OPEN, Part, close, merged, product
from tensorattn.source import Span

Env = dict[str, Index]
_OPTIONS = {"softmax": "sink", "l1norm": "eps", "entmax": "alpha", "top": "count"}


class Resolver(ReferenceResolver):
    """Expressions; the tensors in them are resolved by the base class."""

    def expression(self, node: t.Tree, env: Env) -> Part:
        """A scope: a sum of terms, or one term."""
        if not isinstance(node, t.SumNode):
            return self._term(node, env)
        parts = [self._term(term, env) for _, term in node.terms]
        self._siblings(parts, env, terms=True)
        signed: list[Expr] = []
        for (sign, _), part in zip(node.terms, parts, strict=True):
            if sign < 0:
                signed.append(Map("negate", (part.expr,), span=node.span))
            else:
                signed.extend(part.expr.terms if isinstance(part.expr, Add) else (part.expr,))
        whole = merged(parts)
        whole.expr = signed[0] if len(signed) == 1 else Add(tuple(signed), span=node.span)
        return whole

    def _term(self, node: t.Tree, env: Env) -> Part:
        """A product: an index that is not in `env` and counts two or more over its factors is summed here."""
        units = node.units if isinstance(node, t.ProductNode) else (node,)
        operators = node.operators if isinstance(node, t.ProductNode) else ("*",)
        parts = [self._unit(unit, env) for unit in units]
        self._siblings(parts, env, terms=False)
        counts: dict[str, int] = {}
        for part in parts:
            for name in part.opened:
                counts[name] = counts.get(name, 0) + part.count(name)
        summed = {n: self.numbers.fresh(n) for n, c in counts.items() if c >= 2 and n not in env}
        self._precontracted(parts, summed)
        factors = [
            p.expr if op != "/" else Map("reciprocal", (p.expr,), span=u.span)
            for p, op, u in zip(parts, operators, units, strict=True)
        ]
        whole = merged(parts)
        whole.expr = (
            close(product(factors, ()), summed)
            if not summed
            else product([close(f, summed) for f in factors], tuple(summed.values()))
        )
        if len(parts) == 1 and not summed:
            alone = parts[0]
            alone.expr = whole.expr
            if not isinstance(node, t.Bracket):
                return alone
            return Part(alone.expr, alone.opened, {}, alone.contracted, alone.reduced)
        for name in summed:
            whole.contracted.setdefault(name, []).extend(whole.opened.pop(name))
        return whole

    def _unit(self, node: t.Tree, env: Env) -> Part:
        match node:
            case t.Reference():
                return self.reference(node, env)
            case t.NumberNode(value=value):
                return Part(Number(value, span=node.span))
            case t.ExtentNode(name=name):
                return Part(Extent(name.text, span=node.span))
            case t.BatchSlot(span=span):
                return Part(Position(Index(BATCH), span=span), {BATCH: [span]})
            case t.Bracket(body=body):
                inner = self.expression(body, env)
                return Part(inner.expr, inner.opened, {}, inner.contracted, inner.reduced)
            case t.PowerNode(base=base, exponent=exponent):
                return self._call("power", (base, exponent), env, node.span)
            case t.Call(function=function, arguments=arguments):
                return self._call(function, arguments, env, node.span)
            case t.Binding():
                return self._binding(node, env)
            case t.CatNode():
                return self._concatenation(node, env)
            case _:
                return self.expression(node, env)

    def _call(self, function: str, arguments: tuple[t.Tree, ...], env: Env, span: Span) -> Part:
        before, self.in_predicate = self.in_predicate, self.in_predicate or function == "uniform"  # takes positions
        parts = [self.expression(a, env) for a in arguments]
        self.in_predicate = before
        self._siblings(parts, env, terms=False)
        if function in ("and", "or", "not"):
            for part, argument in zip(parts, arguments, strict=True):
                self.require_truth(part.expr, argument.span)
        if function == "where":
            self.require_truth(parts[0].expr, arguments[0].span)
        whole = merged(parts)
        flat: list[Expr] = []
        for part in parts:
            same = function in ("and", "or") and isinstance(part.expr, Map) and part.expr.function == function
            flat.extend(part.expr.arguments if same else (part.expr,))  # type: ignore[union-attr]
        whole.expr = Map(function, tuple(flat), span=span)
        return whole

    def require_truth(self, expr: Expr, span: Span) -> None:
        """A predicate is a comparison, a boolean tensor, `top`, or these joined by and/or/not."""
        if isinstance(expr, (Tensor, Top)) or (isinstance(expr, Map) and expr.function in (*BOOLEAN, "where")):
            return
        self.complain(
            "E-DTYPE",
            f"`{self.text(span)}` is a number, not a condition",
            [span],
            "compare it, e.g. `… > 0`; weights go into the score, + log(a), or multiply the values",
        )

    # binders ---------------------------------------------------------------------------------------------------

    def _binding(self, node: t.Binding, env: Env) -> Part:
        if node.kind in ("sum", "mean", "max", "min", "lse", "prod"):
            return self._reduce(node, env)
        inner = {**env, **{n.text: env.get(n.text, Index(n.text, OPEN)) for n in node.names}}
        body, where = self.expression(node.body, inner), self.condition(node.where, inner)
        options = self._options(node, env)
        parts = [p for p in (where, *options.values(), body) if p is not None]
        self._siblings(parts, env, terms=False)
        self._must_carry(node, body, where)
        whole = merged(parts)
        for name in node.names:
            self.note_name(name)
            whole.opened.setdefault(name.text, []).append(name.span)
        indices = tuple(inner[n.text] for n in node.names)
        condition = None if where is None else where.expr
        if node.kind == "top":
            count = options.get("count")
            whole.expr = Top(indices, Number(1) if count is None else count.expr, body.expr, condition, span=node.span)
            return whole
        kind, given = node.kind, tuple((n, p.expr) for n, p in options.items())
        if kind == "softmax1":
            kind, given = "softmax", (("sink", Number(0)),)
        whole.expr = Normalise(kind, indices, body.expr, condition, given, span=node.span)
        return whole

    def _must_carry(self, node: t.Binding, body: Part, where: Part | None) -> None:
        missing = [n for n in node.names if n.text not in body.opened and (where is None or n.text not in where.opened)]
        if not missing:
            return
        shown = " ".join(n.text for n in missing)
        carried = [n for n in body.opened if n not in {m.text for m in node.names}]
        near = suggest(missing[0].text, carried)
        self.complain(
            "E-NORMIDX",
            f"{node.kind} normalises over {shown}, which its body does not carry",
            [n.span for n in missing],
            near or f"the body carries: {' '.join(carried) or 'no index'}",
        )

    def condition(self, node: t.Tree | None, env: Env) -> Part | None:
        """A predicate: positions are allowed anywhere in it."""
        if node is None:
            return None
        before, self.in_predicate = self.in_predicate, True
        part = self.expression(node, env)
        self.in_predicate = before
        self.require_truth(part.expr, node.span)
        return part

    def _options(self, node: t.Binding, env: Env) -> dict[str, Part]:
        wanted = _OPTIONS.get(node.kind)
        found: dict[str, Part] = {}
        for name, value in node.options:
            key = name if name is not None else wanted if node.kind in ("entmax", "top") else None
            if key is None or key != wanted or key in found:
                takes = {"softmax": "sink=…", "l1norm": "eps=…", "entmax": "a number > 1", "top": "a count"}.get(
                    node.kind, "no option"
                )
                self.complain(
                    "E-SYNTAX",
                    f"{node.kind} does not take the option `{name or self.text(value.span)}`",
                    [value.span],
                    f"it takes {takes}",
                )
                continue
            found[key] = self.expression(value, env)
            self._literal_option(node.kind, found[key].expr, value.span)
            within = [n for n in node.names if n.text in found[key].opened]
            if within:
                self.complain(
                    "E-NORMIDX",
                    f"the option {key} carries {within[0].text}, over which {node.kind} runs",
                    [value.span],
                    "an option has one value for the whole group",
                )
        if wanted and node.kind in ("entmax", "top") and wanted not in found:
            example = "entmax[j; 1.5](x)" if node.kind == "entmax" else "top[j; 2](x)"
            self.complain(
                "E-SYNTAX",
                f"{node.kind} needs its {'exponent' if node.kind == 'entmax' else 'count'}",
                [node.span],
                f"write {example}",
            )
        return found

    def _literal_option(self, kind: str, value: Expr, span: Span) -> None:
        """A count or an exponent that is written out is judged at once."""
        number = value.arguments[0] if isinstance(value, Map) and value.function == "negate" else value
        if not isinstance(number, Number):
            return
        if kind == "top" and (number is not value or not isinstance(number.value, int)):
            self.complain(
                "E-SYNTAX",
                "the count of top is an integer ≥ 0",
                [span],
                "write top[j; 2](x), or give the count as a scalar input",
            )
        if kind == "entmax" and (number is not value or number.value < 1):
            self.complain(
                "E-SYNTAX",
                "the exponent of entmax is at least 1",
                [span],
                "1 is softmax, 2 is sparsemax; write entmax[j; 1.5](x)",
            )

    def _reduce(self, node: t.Binding, env: Env) -> Part:
        for name in node.names:
            if name.text in env:
                self.complain(
                    "E-SHADOW",
                    f"{node.kind}[{name.text}] rebinds {name.text}, which is free or bound around it",
                    [name.span],
                    "use another letter for the bound index",
                )
        bound = {n.text: self.numbers.fresh(n.text) for n in node.names}
        inner = {**env, **bound}
        body, where = self.expression(node.body, inner), self.condition(node.where, inner)
        if node.options:
            self.complain("E-SYNTAX", f"{node.kind} takes no option", [node.options[0][1].span], "remove it")
        parts = [p for p in (where, body) if p is not None]
        self._siblings(parts, env, terms=False)
        whole = merged(parts)
        for name in node.names:
            whole.opened.pop(name.text, None)
            whole.reduced[name.text] = name.span
        condition = None if where is None else where.expr
        whole.expr = Reduce(node.kind, tuple(bound.values()), body.expr, condition, span=node.span)
        return whole

    def _concatenation(self, node: t.CatNode, env: Env) -> Part:
        listed = (node.name, *node.parts)
        repeated = [n for n in listed if sum(m.text == n.text for m in listed) > 1]
        if repeated:
            spans = [n.span for n in repeated]
            self.complain(
                "E-LHSDUP", f"`{repeated[0].text}` repeats within one cat", spans, "name the whole and each part once"
            )
        arguments, bound = [], []
        for name, argument in zip(node.parts, node.arguments, strict=True):
            bound.append(self.numbers.fresh(name.text))
            part = self.expression(argument, {**env, name.text: bound[-1]})
            self._check_part(node, len(bound), part, env)
            part.opened.pop(name.text, None)
            part.reduced[name.text] = name.span
            arguments.append(part)
        self._siblings(arguments, env, terms=True)
        whole = merged(arguments)
        self.note_name(node.name)
        whole.opened.setdefault(node.name.text, []).append(node.name.span)
        index = env.get(node.name.text, Index(node.name.text, OPEN))
        whole.expr = Concatenate(index, tuple(bound), tuple(a.expr for a in arguments), span=node.span)
        return whole

    def _check_part(self, node: t.CatNode, number: int, part: Part, env: Env) -> None:
        """Complaints of one argument of a cat: it binds its part, and does not carry the whole."""
        name, argument, whole = node.parts[number - 1], node.arguments[number - 1], node.name
        if name.text in env:
            message = f"cat binds {name.text}, which is free or bound around it"
            self.complain("E-SHADOW", message, [name.span], "use another letter for the part")
        if name.text not in part.opened:
            message = f"argument {number} of cat does not carry its part {name.text}"
            hint = f"use {name.text} in it, or broadcast with ones_<{name.text}>"
            self.complain("E-NORMIDX", message, [name.span, argument.span], hint)
        if whole.text in part.opened:
            message = f"cat makes {whole.text}, which its argument carries already"
            spans = [whole.span, *part.opened[whole.text]]
            self.complain("E-SHADOW", message, spans, "use another letter for the whole")

    # the rules between sibling scopes --------------------------------------------------------------------------

    def _siblings(self, parts: list[Part], env: Env, terms: bool) -> None:
        """E-SCOPE: summed inside one part and open in another. E-SHADOW: bound in one and open in another factor."""
        for name in dict.fromkeys(n for p in parts for n in (*p.contracted, *p.reduced) if n not in env):
            summing = [p for p in parts if name in p.contracted]
            if any(name in p.opened and any(q is not p for q in summing) for p in parts):
                spans = [s for p in parts for s in (*p.contracted.get(name, ()), *p.opened.get(name, ()))]
                self.scope_error(name, spans)
            binding = [p for p in parts if name in p.reduced]
            opened = [p for p in parts if name in p.opened and any(q is not p for q in binding)]
            if opened and not terms:
                spans = [*(p.reduced[name] for p in binding), *(s for p in opened for s in p.opened[name])]
                hint = f"bring the factor inside, e.g. sum[{name}](A x), or rename the bound index"
                self.complain("E-SHADOW", f"{name} is bound inside a part and used outside it", spans, hint)

    def _precontracted(self, parts: list[Part], summed: dict[str, Index]) -> None:
        groups = frozenset().union(*(p.scorer for p in parts))
        for part in parts:
            if not part.scorer:
                continue
            for name in part.plain:
                carried = any(q is not part and name in q.opened and part.scorer & q.opened.keys() for q in parts)
                if name not in summed or name in groups or carried:
                    continue
                group = " ".join(sorted(part.scorer))
                spans = [s for p in parts for s in p.opened.get(name, ())]
                hint = (
                    f"softmax[{group}](…) around the whole score; or a statement of its own; or brackets that say what "
                    f"is summed first; or sum[{name}](…) around the term"
                )
                what = f"is the softmax over {group} taken before or after the sum over {name}?"
                fact = (
                    f"{name} is summed in the product in which bar({group}) stands, and on no other factor with {group}"
                )
                self.complain("E-PRECONTRACT", what, spans, hint, fact)

    def scope_error(self, name: str, spans: list[Span]) -> None:
        letter = self.names.unused(name)
        what = f"{name} is summed inside one part and used again outside it"
        fact = (
            "brackets, arguments, binder bodies, sides of a comparison and terms are scopes: each sums its own indices"
        )
        self.complain("E-SCOPE", what, spans, f"use another letter for the inner sum, e.g. {letter}", fact)

    def dangling(self, stray: dict[str, list[Span]], free: list[str], known: list[str]) -> None:
        """One complaint for all stray indices of a statement: two of them are often one misspelt."""
        if not stray:
            return
        names = list(stray)
        verb = f"the index {names[0]} occurs" if len(names) == 1 else f"the indices {', '.join(names)} each occur"
        others = [k for k in known if k not in stray]
        near = [f"did you mean `{k}` for `{n}`?" for n in names for k in [nearest(n, others)] if k]
        barred = ", ".join(f"sum[{n}](…)" for n in names if n in self.barred_names)
        lone = ", ".join(f"sum[{n}](…)" for n in names if n not in self.barred_names)
        repair = f"to sum alone write {lone}" if lone else ""
        if barred:
            repair = f"a barred index needs a partner or a place on the left; a marginal is {barred}"
        if len(names) == 2 and nearest(names[0], names[1:]):
            near = [f"did you mean one index? then write `{names[0]}` or `{names[1]}` in both places"]
        elif len(names) == 2 and not near:
            near = [f"if {names[0]} and {names[1]} are one index, write one name"]
        spans = [s for n in names for s in stray[n]]
        what = (
            f"{verb} in one factor only and {'is not an index' if len(names) == 1 else 'are no indices'} of the result"
        )
        result = f"indices of the result: {' '.join(free) or 'none'}"
        fact = f"{result}; an index is summed where it stands in two factors of one product"
        self.complain("E-DANGLING", what, spans, "; ".join([*near[:2], repair]), fact)
