"""From the cotangent of a statement to those of the tensors it reads: one rule a node.

Values that the rules need again (weights, arguments that are contractions) become statements of their own, so that the
program computes them once; so do cotangents that several tensors share.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping

from tensorattn.differentiating.admitting import admitted
from tensorattn.differentiating.collecting import with_axes
from tensorattn.differentiating.contexts import Context, reads_by_position
from tensorattn.differentiating.expressions import both, call, where
from tensorattn.differentiating.functions import CONSTANT, partials
from tensorattn.differentiating.normalisers import RULES, Weights
from tensorattn.differentiating.statements import Book, batch_first, read
from tensorattn.errors import BindingError
from tensorattn.ir import (
    BATCH,
    BOOLEAN,
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
    Statement,
    Tensor,
    Top,
    rebuild,
    substitute,
    walk,
)
from tensorattn.keys import indices_of
from tensorattn.rewriting.logarithms import differentiable, recognise_log
from tensorattn.source import Span

Take = Callable[[Tensor, Context], None]


class Pull:
    """The rules for one statement. `active`: the tensors that depend on what is differentiated by."""

    def __init__(self, book: Book, statement: Statement, active: frozenset[str], take: Take) -> None:
        self.book, self.statement, self.active, self.take = book, statement, active, take
        self.order = tuple(dict.fromkeys((*statement.indices, *indices_of(statement.body))))
        self._known: dict[Expr, Tensor] = {statement.body: read(statement)}

    def run(self, cotangent: Context) -> None:
        self.visit(self.statement.body, cotangent)

    def is_active(self, node: Expr) -> bool:
        """Whether the node depends on what is differentiated by."""
        return any(True for _ in self._leaves(node))

    def _leaves(self, node: Expr) -> Iterator[Tensor]:
        """The tensors through which it does."""
        match node:
            case Tensor(name=name):
                if name in self.active:
                    yield node
                return
            case Map(function=function) if function in BOOLEAN or function in CONSTANT:
                return
            case Map(function="where", arguments=(_, *parts)) | Concatenate(arguments=parts):
                inner: tuple[Expr, ...] = tuple(parts)
            case Map(arguments=parts) | Product(factors=parts) | Add(terms=parts):
                inner = parts
            case Reduce(body=body):
                inner = (body,)
            case Normalise(score=score, options=options):
                inner = (score, *(o for _, o in options))
            case _:
                return
        for part in inner:
            yield from self._leaves(part)

    # values --------------------------------------------------------------------------------------------------------

    def value(self, node: Expr) -> Expr:
        """The node as it is read again, with what has a statement of its own read from there."""
        known = self._known.get(node)
        if known is not None and node is not self.statement.body:
            return known
        if not any(isinstance(n, Tensor) and n.name in self.active for n in walk(node)):
            return node
        match node:
            case Normalise() | Reduce(kind="max" | "min" | "prod") if self.is_active(node):
                return self.again(node, "Weights" if isinstance(node, Normalise) else node.kind.capitalize())
            case Map(function=function, arguments=arguments) if function not in BOOLEAN and function != "where":
                return Map(function, tuple(self.atom(a) for a in arguments))
            case Tensor():
                return node
        return rebuild(node, self.value)

    def again(self, node: Expr, role: str) -> Tensor:
        """The node as a statement of its own, computed before the one it stands in."""
        known = self._known.get(node)
        if isinstance(node, Tensor) and all(isinstance(s, Index) for s in node.slots):
            return node
        if known is None:
            body = node if isinstance(node, Tensor) else rebuild(node, self.value)
            axes = self.ordered(node.free)
            name = self.book.inner_name(self.statement.name + role)
            self.book.forward[self.statement.name].append(self.book.made(name, [(i,) for i in axes], 0, body))
            known = self._known[node] = Tensor(name, axes)
        return known

    def atom(self, node: Expr, role: str = "Inner") -> Expr:
        """The value of an argument, in a statement of its own where it takes a sum to compute."""
        heavy = any(
            isinstance(n, (Normalise, Reduce, Top)) or (isinstance(n, Product) and n.summed) for n in walk(node)
        )
        if heavy and self.is_active(node) and not reads_by_position(node):
            known = self.value(node)
            return known if isinstance(known, Tensor) else self.again(node, role)
        return self._apart(self.value(node))

    def _apart(self, node: Expr) -> Expr:
        """A copy that may stand beside what it is a copy of, with other indices where it sums."""
        bound = {i: self.book.identity(i) for i in dict.fromkeys(indices_of(node)) if i not in node.free}
        return substitute(node, lambda i: bound.get(i, i)) if bound else node

    def ordered(self, indices: frozenset[Index]) -> tuple[Index, ...]:
        known = [i for i in self.order if i in indices]
        return batch_first((*known, *sorted(i for i in indices if i not in known)))

    # cotangents ----------------------------------------------------------------------------------------------------

    def shared(self, context: Context, node: Expr, role: str = "") -> Context:
        """The cotangent of a node: a statement of its own where several tensors in the node take it."""
        if len(list(self._leaves(node))) < 2 or _is_tensor(context, node.free):
            return context
        return self.stated(context, node.free, role)

    def stated(self, context: Context, indices: frozenset[Index], role: str) -> Context:
        """The cotangent over these indices as one tensor."""
        axes = self.ordered(indices)
        if _is_tensor(context, axes) and not context.guards:
            return context
        return self.book.derived(context, axes, f"d{self.statement.name}{role}")

    # rules ---------------------------------------------------------------------------------------------------------

    def visit(self, node: Expr, context: Context) -> None:
        """Hands the cotangent of a node on to the tensors in it."""
        if not self.is_active(node):
            return
        self._check_batch(node, context)
        match node:
            case Tensor():
                self.take(node, context)
            case Product():
                self._product(node, context)
            case Add(terms=terms):
                context = self.shared(context, node, "Sum")
                for term in terms:
                    self.visit(term, context)
            case Map():
                self._map(node, context)
            case Reduce():
                REDUCTIONS[node.kind](self, node, context)
            case Normalise():
                self._normalise(node, context)
            case Concatenate():
                self._parts(node, context)

    def _product(self, node: Product, context: Context) -> None:
        for number, factor in enumerate(node.factors):
            if self.is_active(factor):
                others = [self.value(f) for n, f in enumerate(node.factors) if n != number]
                self.visit(factor, self._in_range(context.within(node.summed).times(*others), factor))

    def _in_range(self, context: Context, factor: Expr) -> Context:
        """The cotangent of a factor, below its predicate where that keeps what it is made of in range."""
        if not any(map(reads_by_position, context.factors)):
            return context
        return context.under(admitted(factor, self.book.definitions, self.book.identity))

    def _map(self, node: Map, context: Context) -> None:
        if node.function == "where":
            condition, yes, no = node.arguments
            condition = self.value(condition)
            self.visit(yes, context.under(condition))
            self.visit(no, context.under(call("not", condition)))
            return
        if node.function == "negate":
            self.visit(node.arguments[0], context.negated())
            return
        if (plain := recognise_log(node, self.book.identity)) is not node:
            self.visit(differentiable(plain), context)  # a quotient of sums of exponentials would underflow
            return
        arguments = tuple(self.atom(a) for a in node.arguments)
        for argument, slope in zip(node.arguments, partials(node.function, arguments), strict=False):
            if slope is not None and self.is_active(argument):
                self.visit(argument, self.shared(context.times(slope), argument, "Inner"))

    def _normalise(self, node: Normalise, context: Context) -> None:
        weights = self.again(node, "Weights")
        cotangent = self.stated(context, node.free, "Weights")
        options = {name: self.atom(option, name.capitalize()) for name, option in node.options}
        found = Weights(self, node, weights, cotangent, options)
        score, by_options = RULES[node.kind](found)
        self.visit(node.score, self.shared(score, node.score, "Score"))
        for name, option in node.options:
            if name in by_options:
                self.visit(option, self.shared(by_options[name], option, name.capitalize()))

    def _parts(self, node: Concatenate, context: Context) -> None:
        """Part n reads the cotangent where it stands in the whole."""
        cotangent = self.stated(context, node.free, "Whole")
        before: list[tuple[int, Expr]] = []
        for part, argument in zip(node.parts, node.arguments, strict=True):
            if self.is_active(argument):
                here = _moved(cotangent, node.index, part, tuple(before))
                self.visit(argument, self.shared(here, argument))
            before.append((1, Extent(part.name)))

    def _check_batch(self, node: Expr, context: Context) -> None:
        batch = Index(BATCH)
        if batch not in context.scope or batch in node.free:
            return
        leaf = next(iter(self._leaves(node)))
        raise BindingError(
            "E-GRAD",
            f"the gradient of `{leaf.name}` would be a sum over `...`, which the notation has not",
            source=self.book.program.source if leaf.span else None,
            spans=_spans(leaf),
            facts=[
                f"`{leaf.name}` has no `...`: the same numbers serve every batch entry",
                "`...` stands for axes whose number is not known, and is never summed",
            ],
            hint="write the batch axes as indices with names, e.g. b in the place of `...`; or give "
            f"`{leaf.name}` the `...` as well, broadcast it at the call, and sum its gradient over these axes",
        )


def _is_tensor(context: Context, indices: Collection[Index]) -> bool:
    """Whether a cotangent over these indices is one tensor, perhaps below guards."""
    one = len(context.factors) == 1 and isinstance(context.factors[0], Tensor) and not context.negative
    return one and set(context.scope) <= set(indices)


def _moved(cotangent: Context, whole: Index, part: Index, before: tuple[tuple[int, Expr], ...]) -> Context:
    """A cotangent over the whole, read at the positions of a part."""
    slot = Affine(((1, Position(part)), *before))  # type: ignore[arg-type]

    def at(node: Expr) -> Expr:
        if isinstance(node, Tensor):
            return Tensor(node.name, tuple(slot if s == whole else s for s in node.slots), node.upper)
        return node

    factors = tuple(at(f) for f in cotangent.factors)
    scope = tuple(part if i == whole else i for i in cotangent.scope)
    guards = tuple(g for g in cotangent.guards if whole not in g.free)
    return Context(factors, scope, guards, cotangent.negative)


def _spans(node: Expr) -> tuple[Span, ...]:
    return () if node.span is None else (node.span,)


# reductions ---------------------------------------------------------------------------------------------------------


def _sum(pull: Pull, node: Reduce, context: Context) -> None:
    guard = None if node.where is None else pull.value(node.where)
    context = context.within(node.indices).under(guard)
    pull.visit(node.body, pull.shared(context, node.body, "Sum"))


def _mean(pull: Pull, node: Reduce, context: Context) -> None:
    """Each admitted tuple takes an equal part: 1 / |j|, or the weights l1norm[j : where](1)."""
    where_ = None if node.where is None else pull.value(node.where)
    counted = tuple(i for i in node.indices if where_ is not None and i in where_.free)
    shares = [call("reciprocal", Extent(i.name)) for i in node.indices if i not in counted]
    context = context.within(node.indices)
    if counted:
        equal = Normalise("l1norm", counted, Number(1), where_)
        shares.append(pull.again(equal, "Shares"))
    elif where_ is not None:
        context = context.under(where_)
    pull.visit(node.body, pull.shared(context.times(*shares), node.body, "Mean"))


def _spread(score: Expr, node: Reduce) -> Expr:
    """The score of weights over the indices of a reduction, some of which neither its body nor its predicate holds."""
    held = frozenset() if node.where is None else node.where.free
    return with_axes(score, [i for i in node.indices if i not in held])


def _extreme(pull: Pull, node: Reduce, context: Context) -> None:
    """Those that attain it take equal parts: the weights l1norm[j : where](1 where the body is the extreme)."""
    extreme = pull.value(node)
    body = pull.atom(node.body, "Entries")
    attains = where(call("equal", body, extreme), Number(1), Number(0))
    where_ = None if node.where is None else pull.value(node.where)
    shares = pull.again(Normalise("l1norm", node.indices, _spread(attains, node), where_), "Shares")
    pull.visit(node.body, pull.shared(context.within(node.indices).times(shares), node.body, "Entries"))


def _lse(pull: Pull, node: Reduce, context: Context) -> None:
    """The softmax of the body."""
    weights = pull.again(Normalise("softmax", node.indices, _spread(node.body, node), node.where), "Weights")
    pull.visit(node.body, pull.shared(context.within(node.indices).times(weights), node.body, "Score"))


def _prod(pull: Pull, node: Reduce, context: Context) -> None:
    """The product of all the others, so that it is right with zeros among them."""
    whole = pull.ordered(node.body.free | set(node.indices))
    entries = pull.value(node.body) if reads_by_position(node.body) else pull.again(node.body, "Entries")
    names = {i: Index(pull.book.copy_name(i.name, 1), pull.book.identity(i).number) for i in node.indices}
    other = [_differs(names[i], i, entries) for i in node.indices if i in whole]
    differs = other[0] if len(other) == 1 else Map("or", tuple(other))

    def new(index: Index) -> Index:
        return names.get(index, index)

    conditions = [] if node.where is None else [substitute(pull.value(node.where), new)]
    others = Reduce("prod", tuple(names.values()), substitute(entries, new), both(*conditions, differs))
    guard = None if node.where is None else pull.value(node.where)
    context = context.within(node.indices).times(pull.again(others, "Others")).under(guard)
    pull.visit(node.body, pull.shared(context, node.body, "Entries"))


def _differs(other: Index, index: Index, entries: Expr) -> Expr:
    """That two indices of one size differ; where nothing else says that their sizes agree, by a delta."""
    if any(isinstance(n, Tensor) and index in n.slots for n in walk(entries)):
        return call("not_equal", Position(other), Position(index))
    return call("equal", Constant("delta", (other, index)), Number(0))


REDUCTIONS: Mapping[str, Callable[[Pull, Reduce, Context], None]] = {
    "sum": _sum,
    "mean": _mean,
    "max": _extreme,
    "min": _extreme,
    "lse": _lse,
    "prod": _prod,
}
