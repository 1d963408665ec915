"""The sizes of two programs together: what ties them, which agree everywhere, and how to choose some that fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from math import prod

from tensorattn.extents import SumFact, index_names, size_facts, size_reads
from tensorattn.ir import Affine, Extent, Index, Position, Statement, Tensor, walk
from tensorattn.program import Program

Variable = tuple[object, ...]  # ("index", program, name), ("axis", input, axis) or ("output", axis)
Product = tuple[Variable, ...]


@dataclass(frozen=True, slots=True)
class Domain:
    """Variables and the equations between them: products that agree, sums `whole = Σ parts + constant`, known sizes."""

    variables: tuple[Variable, ...]
    products: tuple[tuple[Product, Product], ...]
    sums: tuple[tuple[Variable, Product, int], ...]
    given: Mapping[Variable, int]
    reaches: Mapping[Variable, tuple[tuple[int, Affine], ...]]  # input axes: program and affine slots that read them


def domain(programs: Mapping[int, Program], outputs: Mapping[int, Statement], sizes: Mapping[str, int]) -> Domain:
    """The domain of programs without `...`, by number."""
    variables: dict[Variable, None] = {}
    products: list[tuple[Product, Product]] = []
    sums: list[tuple[Variable, Product, int]] = []
    reaches: dict[Variable, list[tuple[int, Affine]]] = {}
    for number, program in programs.items():
        variables |= {("index", number, name): None for name in index_names(program)}
        inputs = set(program.inputs)
        for fact in size_facts(program):
            if isinstance(fact, SumFact):
                whole, *parts = (("index", number, n) for n in (fact.whole, *fact.parts))
                sums.append((whole, tuple(parts), fact.constant))
                continue
            names: Product = tuple(("index", number, n) for n in fact.names)
            if fact.tensor in inputs:
                products.append(((("axis", fact.tensor, fact.axis),), names))
            else:
                axis = program.statement(fact.tensor).axes[fact.axis]
                products.append((tuple(("index", number, i.name) for i in axis), names))
        for place, axis in enumerate(outputs[number].axes):
            products.append(((("output", place),), tuple(("index", number, i.name) for i in axis)))
        for tensor in program.tensors:
            for place, slot in enumerate(tensor.slots if tensor.name in inputs else ()):
                reaches.setdefault(("axis", tensor.name, place), [])
                if isinstance(slot, Affine):
                    reaches["axis", tensor.name, place].append((number, slot))
    products += [((("index", 0, n),), (("index", 1, n),)) for n in sorted(_open_in_both(programs))]
    known = {v: sizes[str(v[2])] for v in variables if v[2] in sizes}
    variables |= dict.fromkeys(reaches) | {
        ("output", place): None for place, _ in enumerate(next(iter(outputs.values())).axes)
    }
    return Domain(tuple(variables), tuple(products), tuple(sums), known, {v: tuple(s) for v, s in reaches.items()})


def _open_in_both(programs: Mapping[int, Program]) -> set[str]:
    """Names whose size no input fixes, in both programs: a call gives it by name, so it is one size."""
    if len(programs) == 1:
        return set()
    found = [set(index_names(p)) - {name for name, _ in size_reads(p, {})} for p in programs.values()]
    return found[0] & found[1]


# Sizes that agree everywhere ---------------------------------------------------------------------------------------


@dataclass(slots=True)
class Classes:
    """A partition of variables: those of one class have one size wherever the programs are defined."""

    parent: dict[Variable, Variable] = field(default_factory=dict)

    def find(self, variable: Variable) -> Variable:
        while variable in self.parent:
            variable = self.parent[variable]
        return variable

    def join(self, a: Variable, b: Variable) -> bool:
        a, b = self.find(a), self.find(b)
        if a != b:
            self.parent[a] = b
        return a != b


def classes(domain: Domain) -> Classes:
    """Which sizes agree: by plain slots and deltas, and where all other parts of a split or a sum agree."""
    found = Classes()
    equal = [(a, b) for a, b in domain.products if len(a) == len(b) == 1]
    for (a,), (b,) in equal:
        found.join(a, b)
    for whole, parts, constant in domain.sums:
        if len(parts) == 1 and not constant:
            found.join(whole, parts[0])
    while any(_one_left(a, b, found) for a, b in _known_alike(domain, found)):
        pass
    return found


def _known_alike(domain: Domain, found: Classes) -> Iterator[tuple[Product, Product]]:
    """Products, and sums, that are known to agree."""
    by_whole: dict[Variable, list[Product]] = {}
    for a, b in domain.products:
        if len(a) == 1 and len(b) > 1:
            by_whole.setdefault(found.find(a[0]), []).append(b)
        elif len(a) > 1 and len(b) > 1:
            yield a, b
    by_parts: dict[tuple[str, ...], Variable] = {}
    for whole, group in by_whole.items():
        for parts in group:
            other = by_parts.setdefault(tuple(sorted(repr(found.find(v)) for v in parts)), whole)
            yield (whole,), (other,)
    for group in by_whole.values():
        yield from ((group[0], other) for other in group[1:] if _positive(other, domain))
    for place, (whole, parts, constant) in enumerate(domain.sums):
        for other, others, more in domain.sums[place + 1 :]:
            if constant == more:
                yield (whole, *_paired(parts, others, found)[0]), (other, *_paired(parts, others, found)[1])


def _positive(parts: Product, domain: Domain) -> bool:
    """Whether all parts but one have given sizes: then a split has one solution."""
    return sum(v not in domain.given for v in parts) <= 1 and all(domain.given.get(v, 1) > 0 for v in parts)


def _paired(a: Product, b: Product, found: Classes) -> tuple[Product, Product]:
    """Both without the parts that agree."""
    left, right = list(a), list(b)
    for variable in a:
        partner = next((v for v in right if found.find(v) == found.find(variable)), None)
        if partner is not None:
            left.remove(variable)
            right.remove(partner)
    return tuple(left), tuple(right)


def _one_left(a: Product, b: Product, found: Classes) -> bool:
    """Whether two sizes were joined, because all other parts agree."""
    left, right = _paired(a, b, found)
    return len(left) == len(right) == 1 and found.join(left[0], right[0])


def label(variable: Variable, domain: Domain, found: Classes) -> str:
    """A name of a size that is the same in both programs where the sizes are the same; else it is its own."""
    members = [v for v in domain.variables if found.find(v) == found.find(variable)]
    constants = [domain.given[v] for v in members if v in domain.given]
    constants += [c for whole, parts, c in domain.sums if not parts and found.find(whole) == found.find(variable)]
    if constants:
        return str(constants[0])
    return min("|" + ".".join(map(str, v)) + "|" for v in members or [variable])


# Choosing sizes ----------------------------------------------------------------------------------------------------


def choose(domain: Domain, prefer: Callable[[Variable], int]) -> dict[Variable, int] | None:
    """Sizes that satisfy every equation, the preferred ones where nothing fixes them. None: they do not fit."""
    sizes = dict(domain.given)
    for variable in _order(domain):
        if not _propagate(domain, sizes):
            return None
        if variable not in sizes:
            sizes[variable] = (
                _reach(variable, domain, sizes, prefer(variable)) if variable[0] == "axis" else prefer(variable)
            )
    return sizes if _propagate(domain, sizes) and min(sizes.values(), default=0) >= 0 else None


def _order(domain: Domain) -> list[Variable]:
    """Parts of splits and sums first, then other indices, then the axes of inputs."""
    parts = {v for pair in domain.products for side in pair if len(side) > 1 for v in side}
    parts |= {v for _, found, _ in domain.sums for v in found}
    ranks = {"index": 1, "output": 2, "axis": 3}
    return sorted(domain.variables, key=lambda v: 0 if v in parts else ranks[str(v[0])])


def _propagate(domain: Domain, sizes: dict[Variable, int]) -> bool:
    """Fills in the sizes that equations fix; False where an equation cannot hold."""
    progress = True
    while progress:
        progress = False
        for left, right in domain.products:
            for side, other in ((left, right), (right, left)):
                unknown = [v for v in side if v not in sizes]
                if any(v not in sizes for v in other) or len(unknown) > 1:
                    continue
                total, known = prod(sizes[v] for v in other), prod(sizes[v] for v in side if v in sizes)
                if not unknown and known != total:
                    return False
                if unknown and known:
                    if total % known:
                        return False
                    sizes[unknown[0]], progress = total // known, True
        for whole, parts, constant in domain.sums:
            unknown = [v for v in (whole, *parts) if v not in sizes]
            known = sum(sizes.get(p, 0) for p in parts) + constant
            if not unknown and sizes[whole] != known:
                return False
            if len(unknown) == 1 and parts.count(unknown[0]) <= 1:
                sizes[unknown[0]] = known if unknown[0] == whole else sizes[whole] - known
                progress = True
    return True


def _reach(variable: Variable, domain: Domain, sizes: Mapping[Variable, int], preferred: int) -> int:
    """A length that holds every position its affine slots take."""
    highest = 0
    for number, slot in domain.reaches[variable]:
        if _is_gather(slot):
            highest = max(highest, preferred + slot.constant - 1)
        else:
            highest = max(highest, _largest(number, slot, sizes))
    return highest + 1


def _is_gather(slot: Affine) -> bool:
    return len(slot.terms) == 1 and slot.terms[0][0] == 1 and isinstance(slot.terms[0][1], Tensor)


def _largest(number: int, slot: Affine, sizes: Mapping[Variable, int]) -> int:
    total = slot.constant
    for coefficient, atom in slot.terms:
        match atom:
            case Position(index=Index(name=name)):
                total += max(coefficient * (sizes.get(("index", number, name), 1) - 1), 0)
            case Extent(name=name):
                total += coefficient * sizes.get(("index", number, name), 1)
            case Tensor():
                total += max(coefficient, 0)  # an integer is drawn as 0 or 1
    return total


def bounds(domain: Domain, sizes: Mapping[Variable, int]) -> dict[str, int]:
    """For each index tensor and integer scalar, how many values from 0 on it may take."""
    found: dict[str, int] = {}
    for variable, slots in domain.reaches.items():
        for _, slot in slots:
            room = max(sizes[variable] - slot.constant, 1) if _is_gather(slot) else 2
            for _, atom in slot.terms:
                for tensor in (n for n in walk(atom) if isinstance(n, Tensor)):
                    found[tensor.name] = min(found.get(tensor.name, room), room)
    return found
