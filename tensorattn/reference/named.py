"""Arrays with named axes."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from tensorattn.ir import Index


@dataclass(frozen=True, slots=True)
class Named:
    """An array whose axes are indices, in order."""

    indices: tuple[Index, ...]
    array: np.ndarray


EVERYWHERE, NOWHERE = Named((), np.array(True)), Named((), np.array(False))


def union(parts: Iterable[Named], *more: Sequence[Index]) -> tuple[Index, ...]:
    return tuple(dict.fromkeys(itertools.chain(*(p.indices for p in parts), *more)))


def align(named: Named, indices: Sequence[Index]) -> np.ndarray:
    """Its array with one axis per index of `indices`: length 1 where it lacks the index."""
    kept = [i for i in indices if i in named.indices]
    array = np.transpose(named.array, [named.indices.index(i) for i in kept])
    return array.reshape([array.shape[kept.index(i)] if i in named.indices else 1 for i in indices])


def both(*masks: Named) -> Named:
    order = union(masks)
    result = EVERYWHERE.array
    for mask in masks:
        result = result & align(mask, order)
    return Named(order, result)


def either(*masks: Named) -> Named:
    order = union(masks)
    result = NOWHERE.array
    for mask in masks:
        result = result | align(mask, order)
    return Named(order, result)


def some(mask: Named, indices: Iterable[Index]) -> Named:
    gone = [i for i in mask.indices if i in set(indices)]
    axes = tuple(mask.indices.index(i) for i in gone)
    return Named(tuple(i for i in mask.indices if i not in gone), np.any(mask.array, axis=axes))
