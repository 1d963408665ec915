"""Where a loop keeps what it makes: never where something that is read later lies."""

from __future__ import annotations

import numpy as np

from tensorattn.ir import Index
from tensorattn.kernel import Apply, Arrange, Contract, Fold, IfFinite, Slice, Stream
from tensorattn.lowering.buffers import Room, places
from tensorattn.parts import Carry, Literal, Summand
from tensorattn.sizes import Size
from tests.kernels import BOTH, call, kernel, register


def stream(body, carry, merge, merged, tile=2):
    return Stream(Index("t"), Size.of("t"), tile, tuple(body), tuple(carry), tuple(merge), tuple(merged))


X, STATE = register("x", "i j t"), register("state", "i j")
CUT, WIDE, PART = register("cut", "i j t"), register("wide", "i j t"), register("part", "i j")
ONES = register("ones", "t")
TWICE, SUM = register("twice", "i j"), register("sum", "i j")


def cut(body):
    return (Slice(CUT, X, Index("t")), Slice(register("some", "t"), ONES, Index("t")), *body)


SUMMED = (Apply(WIDE, "tanh", (CUT,)), Contract(PART, WIDE, register("some", "t")))


def test_steps_share_memory():
    over = register("over", "i j t")
    loop = stream(
        cut((Apply(WIDE, "tanh", (CUT,)), Apply(over, "multiply", (WIDE, Literal(2))),
             Contract(PART, over, register("some", "t")))),
        (Carry(STATE, 0, PART),), (Apply(SUM, "add", (STATE, PART)),), (SUM,),
    )  # fmt: skip
    found = places(loop)
    assert isinstance(found.of["wide"], Room)
    assert found.of["over"] == WIDE
    assert found.of["sum"] == STATE
    assert isinstance(found.of["part"], Room)
    assert len(found.rooms) == 2


def test_a_product_lies_over_what_is_added_to_it():
    added, both = register("added", "i j t"), register("both", "i j t")
    a, b = register("a", "i k"), register("b", "k j t")
    product = Contract(both, a, b, Summand(added, (1, 1)))
    body = cut((Apply(added, "tanh", (CUT,)), product, Contract(PART, both, register("some", "t"))))
    found = places(stream(body, (Carry(STATE, 0, PART),), (Apply(SUM, "add", (STATE, PART)),), (SUM,)))
    assert isinstance(found.of["added"], Room)
    assert found.of["both"] == added
    again = (*body[:-1], Apply(register("third", "i j t"), "add", (added, both)), body[-1])
    found = places(stream(again, (Carry(STATE, 0, PART),), (Apply(SUM, "add", (STATE, PART)),), (SUM,)))
    assert isinstance(found.of["both"], Room)


def test_an_input_is_never_written_over():
    found = places(stream(cut(SUMMED), (Carry(STATE, 0, PART),), (Apply(SUM, "add", (STATE, PART)),), (SUM,)))
    assert isinstance(found.of["wide"], Room)


def test_what_is_read_again_is_kept():
    over, both = register("over", "i j t"), register("both", "i j t")
    body = (Apply(WIDE, "tanh", (CUT,)), Apply(over, "exp", (WIDE,)), Apply(both, "add", (over, WIDE)),
            Contract(PART, both, register("some", "t")))  # fmt: skip
    found = places(stream(cut(body), (Carry(STATE, 0, PART),), (Apply(SUM, "add", (STATE, PART)),), (SUM,)))
    assert found.of["over"] != WIDE
    assert found.of["over"] != found.of["wide"]
    assert found.of["both"] in (WIDE, over)


def test_a_view_keeps_what_it_views():
    turned, over, both = register("turned", "t i j"), register("over", "i j t"), register("both", "i j t")
    body = (Apply(WIDE, "tanh", (CUT,)), Arrange(turned, WIDE), Apply(over, "exp", (WIDE,)),
            Apply(both, "add", (over, turned)), Contract(PART, both, register("some", "t")))  # fmt: skip
    found = places(stream(cut(body), (Carry(STATE, 0, PART),), (Apply(SUM, "add", (STATE, PART)),), (SUM,)))
    assert found.of["over"] != WIDE


def test_what_is_broadcast_is_not_written_over():
    narrow, broad, over = register("narrow", "i t"), register("broad", "i j t"), register("over", "i j t")
    body = (Fold(narrow, "max", CUT), Arrange(broad, narrow), Apply(over, "exp", (broad,)),
            Contract(PART, over, register("some", "t")))  # fmt: skip
    found = places(stream(cut(body), (Carry(STATE, 0, PART),), (Apply(SUM, "add", (STATE, PART)),), (SUM,)))
    assert isinstance(found.of["over"], Room)


def test_what_is_carried_on_lies_in_no_room():
    found = places(
        stream(cut(SUMMED), (Carry(STATE, 0, PART),), (Apply(TWICE, "multiply", (PART, Literal(2))),), (TWICE,))
    )
    assert "twice" not in found.of
    found = places(stream(cut(SUMMED), (Carry(STATE, 0, PART),), (), (PART,)))
    assert "part" not in found.of


def test_states_that_became_one_array_are_not_written_over():
    other, last = register("other", "i j"), register("last", "i j")
    carry = (Carry(STATE, 0, PART), Carry(other, 0, PART))
    merge = (Apply(SUM, "add", (STATE, PART)), Apply(last, "add", (SUM, other)))
    assert places(stream(cut(SUMMED), carry, merge, (SUM, last))).of["sum"] == STATE
    assert "sum" not in places(stream(cut(SUMMED), carry, merge, (SUM, SUM))).of


@BOTH
def test_the_loop_runs(library):
    inputs = {"x": ("i j t", "float64"), "ones": ("t", "float64")}
    x, ones = np.random.default_rng(0).normal(size=(2, 3, 5)), np.ones(5)
    for merge, expected in (
        (Apply(SUM, "add", (STATE, PART)), np.tanh(x).sum(-1)),
        (Apply(SUM, "multiply", (PART, Literal(2))), 2 * np.tanh(x)[..., 4]),
    ):
        loop = stream(cut(SUMMED), (Carry(STATE, 0, PART),), (merge,), (SUM,))
        (found,) = call(library, kernel(inputs, (loop,), (STATE,)), x, ones)
        np.testing.assert_allclose(found, expected)


def test_a_branch_writes_what_outlives_the_round_over_nothing_that_dies_with_it():
    """The room of `wide` is the next round's again, while the state is still read."""
    kept, inner = register("kept", "i j t"), register("inner", "i j t")
    fast = (Apply(inner, "multiply", (WIDE, WIDE)), Apply(kept, "negate", (inner,)))
    branch = IfFinite(kept, (CUT,), fast, (Apply(kept, "negate", (CUT,)),))
    body = cut((Apply(WIDE, "tanh", (CUT,)), branch))
    state, merged = register("all", "i j t"), register("more", "i j t")
    loop = stream(body, (Carry(state, 0, kept),), (Apply(merged, "maximum", (state, kept)),), (merged,))
    assert places(loop).of["inner"] == WIDE
    later = stream((*body, Contract(PART, WIDE, register("some", "t"))), (Carry(STATE, 0, PART),), (), (PART,))
    assert isinstance(places(later).of["inner"], Room)
    alone = stream(body, (Carry(state, 0, kept),), (), (kept,))
    assert places(alone).of["inner"] == WIDE
    assert "kept" not in places(alone).of
