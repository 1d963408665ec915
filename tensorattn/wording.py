"""A choice in words: what becomes of every normaliser and why, what else there is and what it would cost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tensorattn.choosing import Candidate, Choice, Reduction
from tensorattn.cost import Cost
from tensorattn.kinds import KINDS
from tensorattn.plan import describe
from tensorattn.rounds import with_tiles
from tensorattn.sizes import Size


def explain(choice: Choice, sizes: Mapping[str, int]) -> str:
    """The plan in words with its reason, the alternatives and their price, then the order of every contraction.

    Sizes that are not given stay symbols; without any there is no estimate of time.
    """
    head, *orders = describe(choice.plan, sizes).splitlines()
    words = [line for r in choice.chosen.reductions for line in _reduction(r, sizes)]
    if words:
        words += [*_loops(choice.chosen, sizes), *_prices(choice, sizes)]
    return "\n".join([head, *words, *orders])


def data(choice: Choice, sizes: Mapping[str, int]) -> dict[str, Any]:
    """The same as plain data: `candidates` are what was taken, then the others; amounts are integers or polynomials."""
    found = [{"name": choice.chosen.name, "taken": True, "reason": choice.why, **_amounts(choice.chosen, sizes)}]
    for other in choice.rejected:
        amounts = {} if other.candidate is None else _amounts(other.candidate, sizes)
        found.append({"name": other.name, "taken": False, "reason": other.why, **amounts})
    reductions = [
        {
            "statement": r.statement,
            "normaliser": r.normaliser,
            "indices": [index.name for index in r.indices],
            "weights": _plain(r.entries, sizes),
            "plan": r.kind,
        }
        for r in choice.chosen.reductions
    ]
    return {"plan": choice.plan.kind, "reductions": reductions, "candidates": found, "text": explain(choice, sizes)}


def _amounts(candidate: Candidate, sizes: Mapping[str, int]) -> dict[str, Any]:
    known = candidate.cost.given(sizes)
    time = {"seconds": float(f"{candidate.seconds:.2g}")} if _is_known(known) else {}
    return {**known.amounts, **time}


def _is_known(cost: Cost) -> bool:
    return all(size.constant is not None for size in (cost.flops, cost.exps, cost.bytes_moved))


def _reduction(reduction: Reduction, sizes: Mapping[str, int]) -> list[str]:
    entries = _amount(reduction.entries, sizes)
    indices = " ".join(index.name for index in reduction.indices)
    how = KINDS[reduction.kind].words if reduction.kind in KINDS else "held as one array"
    named = f"{reduction.normaliser} over {indices} in {reduction.statement}"
    return [f"{named}: {reduction.kind}, its {entries} weights {how}"]


def _loops(candidate: Candidate, sizes: Mapping[str, int]) -> list[str]:
    """The tiles of each loop; those of an inner one depend on the tiles of the loops around it."""
    lines, known = [], dict(sizes)
    for tiles in candidate.cost.tiles:
        if (tiles.size.symbols | tiles.most.symbols | tiles.rule.per.symbols) <= known.keys():
            found = tiles.at(known)
            known |= found
            count, length = _counted(found[tiles.count], "tile"), _counted(found[tiles.length], "position")
            lines.append(f"loop over {tiles.axis}: {count} of {length}")
        else:
            per = _amount(tiles.rule.per, known)
            lines.append(f"loop over {tiles.axis}: tiles of {tiles.rule.entries:,} entries, {per} for a position")
    return lines


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _prices(choice: Choice, sizes: Mapping[str, int]) -> list[str]:
    rows = [(choice.chosen.name, _price(choice.chosen, sizes), f"chosen: {choice.why}" if choice.why else "chosen")]
    for other in choice.rejected:
        if other.candidate is None:
            rows.append((other.name, f"no plan: {other.why}", ""))
        else:
            rows.append((other.name, _price(other.candidate, sizes), f"not taken: {other.why}" if other.why else ""))
    return [f"  {name}: {price}" + (f"; {why}" if why else "") for name, price, why in rows]


def _price(candidate: Candidate, sizes: Mapping[str, int]) -> str:
    """Time where all sizes are given, FLOPs, exps, and the peak: the largest of several at the sizes at hand."""
    cost = candidate.cost
    known = cost.given(sizes)
    at = with_tiles(cost.tiles, candidate.sizes)
    place = max(range(len(cost.peaks)), key=lambda n: cost.peaks[n].value(at), default=None)
    peak = Size() if place is None else known.peaks[place]
    if peak.constant is not None:
        peak = Size.of(max(peak.constant, 0))
    parts = [f"{_amount(known.flops, {})} FLOPs", f"{_amount(known.exps, {})} exps", f"peak {_amount(peak, {})} bytes"]
    return ", ".join([f"about {_time(candidate.seconds)}", *parts] if _is_known(known) else parts)


def _time(seconds: float) -> str:
    """Two digits: the model is no better."""
    for unit, factor in (("s", 1.0), ("ms", 1e3)):
        if seconds * factor >= 1:
            return f"{float(f'{seconds * factor:.2g}'):,.12g} {unit}"
    return f"{float(f'{seconds * 1e6:.2g}'):.12g} µs"


def _plain(size: Size, sizes: Mapping[str, int]) -> int | str:
    found = size.substitute({name: Size.of(value) for name, value in sizes.items()})
    return str(found) if found.constant is None else found.constant


def _amount(size: Size, sizes: Mapping[str, int]) -> str:
    found = _plain(size, sizes)
    return found if isinstance(found, str) else f"{found:,}"
