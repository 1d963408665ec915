"""`tensorattn.nn.Formula`: shapes, initial values, calls, torch's own tools, dropout, and what it refuses."""

import copy
import io
import math
import pickle

import pytest
import torch
from torch.nn import functional

import tensorattn as ta
from tensorattn.nn import Formula

SELF_ATTENTION = """
    q_<... t h c> = x_<... t i> Wq_<i h c>
    k_<... t h c> = x_<... t i> Wk_<i h c>
    v_<... t h e> = x_<... t i> Wv_<i h e>
    a_<... t h e> = softmax[s : s <= t](q_<... t h c> k_<... s h c> / sqrt(|c|)) v_<... s h e>
    y_<... t o>   = a_<... t h e> Wo_<h e o> + b_o
"""
SIZES = {"i": 12, "o": 12, "h": 3, "c": 4, "e": 4}
WEIGHTS = ("Wq", "Wk", "Wv", "Wo", "b")


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def layer(**options):
    return Formula(SELF_ATTENTION, parameters=WEIGHTS, sizes=SIZES, **options)


def by_torch(m, x):
    """The same from torch's own attention."""
    q, k, v = (torch.einsum("bti,ihc->bhtc", x, w) for w in (m.Wq, m.Wk, m.Wv))
    a = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    return torch.einsum("bhte,heo->bto", a, m.Wo) + m.b


@pytest.mark.parametrize("plan", ["auto", "streamed"])
def test_attention_with_parameters_is_that_of_torch(plan):
    m, x = layer(plan=plan, dtype=torch.float64), torch.randn(2, 5, 12, dtype=torch.float64)
    y, want = m(x), by_torch(m, x)
    torch.testing.assert_close(y, want, rtol=0, atol=1e-12)
    own = torch.autograd.grad(y.square().sum(), list(m.parameters()))
    others = torch.autograd.grad(want.square().sum(), list(m.parameters()))
    for a, b in zip(own, others, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


def test_shapes_come_from_sizes_buffers_and_shapes():
    m = Formula(
        "y_<t d> = E_<token_t, d> + P_<t d> + R_<t + 3> + s * table_<t d>",
        parameters=("E", "P", "R", "s"),
        sizes={"t": 5},
        shapes={"E": (65, "d"), "R": "8"},
        buffers={"table": torch.ones(5, 7)},
    )
    assert {n: tuple(p.shape) for n, p in m.named_parameters()} == {"E": (65, 7), "P": (5, 7), "R": (8,), "s": ()}
    assert m.inputs == ("token",)
    assert m(torch.tensor([0, 64, 1, 2, 3])).shape == (5, 7)
    heads = Formula("y_<(h c)> = x_i W_<i (h c)>", parameters="W", sizes={"i": 3, "h": 2, "c": 4})
    assert heads.W.shape == (3, 8)


def test_initial_values():
    text = "y_<t o> = relu(x_<t i> W_<i o> + b_o) * g_o + E_<w_t, o> + x_<t i> (U_<h c i> V_<h c o>)"
    m = Formula(
        text,
        parameters=("W", "b", "g", "E", "U", "V"),
        sizes={"i": 300, "o": 200, "h": 2, "c": 50},
        shapes={"E": "90 o"},
    )
    assert m.W.std().item() == pytest.approx(1 / math.sqrt(300), rel=0.02)
    assert m.U.std().item() == pytest.approx(1 / math.sqrt(2 * 50 * 300), rel=0.02)
    assert m.V.std().item() == pytest.approx(1 / math.sqrt(2 * 50), rel=0.02)
    assert m.E.std().item() == pytest.approx(1, rel=0.02)
    assert torch.all(m.b == 0)
    assert torch.all(m.g == 1)
    before = m.W.detach().clone()
    m.reset_parameters()
    assert not torch.equal(before, m.W)


def test_initialisers():
    kwargs = {"parameters": ("W", "b"), "sizes": {"d": 4, "e": 3}}
    text = "y_<... e> = x_<... d> W_<d e> + b_e"
    assert torch.all(Formula(text, init=torch.nn.init.ones_, **kwargs).b == 1)
    m = Formula(text, init={"b": lambda t: t.fill_(2)}, **kwargs)
    assert torch.all(m.b == 2)
    assert m.W.std() > 0
    drawn = Formula(text, init=lambda t: torch.full_like(t, 5), **kwargs)  # not in place
    assert torch.all(drawn.W == 5)
    xavier = Formula(text, init=torch.nn.init.xavier_uniform_, parameters="W", sizes=kwargs["sizes"])
    assert xavier.W.abs().max() <= math.sqrt(6 / 7)


def test_calls_by_name_in_order_and_by_mapping():
    m = Formula("y_<t e> = softmax[s](x_<t d> A_<d c> z_<s c>) z_<s e>", parameters="A", sizes={"d": 2, "c": 3})
    x, z = torch.randn(4, 2), torch.randn(5, 3)
    assert m.inputs == ("x", "z")
    for y in (m(x, z), m(x, z=z), m(z=z, x=x), m({"x": x, "z": z})):
        assert torch.equal(y, m(x=x, z=z))


def test_buffers_are_saved_unless_they_are_not_persistent():
    kwargs = {"parameters": "W", "sizes": {"i": 2, "j": 2}, "buffers": {"keep": torch.eye(2, dtype=torch.bool)}}
    text = "y_i = softmax[j : keep_<i j>](W_<i j>) x_j"
    m = Formula(text, **kwargs)
    assert set(m.state_dict()) == {"W", "keep"}
    assert set(Formula(text, persistent=False, **kwargs).state_dict()) == {"W"}
    assert m.double().keep.dtype == torch.bool
    torch.testing.assert_close(m(torch.tensor([1.0, 2.0]).double()), torch.tensor([1.0, 2.0]).double())


def test_state_dict_moves_copies_and_pickles():
    m, x = layer(dropout=0.1), torch.randn(2, 5, 12)
    assert list(m.state_dict()) == list(WEIGHTS)
    want = m.eval()(x)
    saved = io.BytesIO()
    torch.save(m.state_dict(), saved)
    saved.seek(0)
    other = layer(dropout=0.1).eval()
    assert not torch.equal(other(x), want)
    other.load_state_dict(torch.load(saved, weights_only=True))
    whole = io.BytesIO()
    torch.save(m, whole)
    whole.seek(0)
    again = torch.load(whole, weights_only=False)
    for copied in (other, copy.deepcopy(m), pickle.loads(pickle.dumps(m)), again):
        assert torch.equal(copied(x), want)
        assert repr(copied) == repr(m)
    assert copy.deepcopy(m).double()(x.double()).dtype == torch.float64
    assert m.to(torch.bfloat16)(x.bfloat16()).dtype == torch.bfloat16
    meta = layer(device="meta")
    meta.to_empty(device="cpu")
    meta.reset_parameters()
    assert meta(x).shape == (2, 5, 12)


def test_repr_is_the_formula():
    m = Formula("y_<... e> = x_<... d> A_<d e>", parameters="A", sizes={"d": 4, "e": 3}, dropout=0)
    assert repr(m) == "Formula(y_<... e> = x_<... d> A_<d e>; parameters A[4, 3])"
    assert "softmax[s : s <= t]" in repr(layer(dropout=0.5))
    assert "dropout 0.5" in repr(layer(dropout=0.5))


def test_inside_a_model_with_torch_tools():
    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.attend, self.norm = layer(dropout=0.2), torch.nn.LayerNorm(12)

        def forward(self, x):
            return x + self.attend(self.norm(x))

    block, x = Block(), torch.randn(2, 5, 12)
    assert "attend.Wq" in block.state_dict()
    optimiser = torch.optim.AdamW(block.parameters(), lr=1e-2)
    block(x).square().mean().backward()
    optimiser.step()
    values = {n: torch.zeros_like(p) for n, p in block.named_parameters()}
    assert torch.equal(torch.func.functional_call(block.eval(), values, (x,)), x)
    per_sample = torch.func.vmap(
        torch.func.grad(lambda p, one: torch.func.functional_call(block, p, (one[None],)).sum()), in_dims=(None, 0)
    )({n: p.detach() for n, p in block.named_parameters()}, x)
    assert per_sample["attend.Wq"].shape == (2, 12, 3, 4)


def test_dropout_is_for_training_and_is_reproduced_by_the_seed():
    m, x = layer(dropout=0.4), torch.randn(2, 6, 12)
    plain = layer()
    plain.load_state_dict(m.state_dict())
    torch.manual_seed(7)
    first, second = m(x), m(x)
    assert not torch.equal(first, second)
    torch.manual_seed(7)
    assert torch.equal(m(x), first)
    assert torch.equal(m.eval()(x), plain(x))
    m.train()
    torch.manual_seed(7)
    checkpointed = torch.utils.checkpoint.checkpoint(m, x.requires_grad_(), use_reentrant=False)
    assert torch.equal(checkpointed, first)
    none = layer(dropout=0.4, dropped="a")
    assert not torch.equal(none(x), none(x))


def test_dropout_keeps_the_same_weights_in_the_gradient():
    m = Formula(
        "y^mu_n = W^<mu bar(nu)> v^nu_n", parameters="W", sizes={"mu": 4, "nu": 6}, dropout=0.5, dtype=torch.float64
    )
    v = torch.randn(6, 3, dtype=torch.float64, requires_grad=True)

    def call(v, W):
        torch.manual_seed(3)
        return torch.func.functional_call(m, {"W": W}, (v,))

    assert torch.autograd.gradcheck(call, (v, m.W))


def test_torch_compile_makes_one_graph():
    m, x = layer(dropout=0.3), torch.randn(2, 5, 12)
    compiled = torch.compile(m, fullgraph=True, backend="aot_eager")
    torch.manual_seed(5)
    want = m(x)
    grads = torch.autograd.grad(want.square().sum(), list(m.parameters()))
    torch.manual_seed(5)
    y = compiled(x)
    torch.testing.assert_close(y, want)
    for a, b in zip(torch.autograd.grad(y.square().sum(), list(m.parameters())), grads, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    m.eval()
    torch.testing.assert_close(compiled(x=x), m(x))


def test_several_outputs_plan_and_memory():
    text = "P^<mu nu> = W^<mu bar(nu)>\ny^mu_n = P^<mu nu> v^nu_n"
    m = Formula(text, parameters="W", sizes={"mu": 3, "nu": 4}, outputs=["P", "y"], plan="dense", memory=10**6)
    found = m(torch.randn(4, 2))
    torch.testing.assert_close(found["P"].sum(dim=1), torch.ones(3))
    with pytest.raises(ta.BudgetError):
        Formula(text, parameters="W", sizes={"mu": 3, "nu": 4}, memory=0)(torch.randn(4, 2))


LINE = "y_<... e> = x_<... d> A_<d e> + b_e"


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (
            {"parameters": "A", "sizes": {"d": 2}},
            "E-EXTENT",
            r"the shape of the parameter `A` needs \|e\|, which nothing",
        ),
        ({"parameters": "A"}, "E-EXTENT", r"needs \|d\|"),
        ({"parameters": "x", "sizes": {"d": 2}}, "E-EXTENT", "the parameter `x` has batch axes"),
        ({"parameters": "B"}, "E-UNDEF", "the parameter `B` is no input of the formula"),
        ({"parameters": "y"}, "E-UNDEF", "the parameter `y` is no input of the formula"),
        ({"parameters": ("A", "A")}, "E-NAME", "`A` is named twice"),
        ({"parameters": "A", "buffers": {"A": torch.ones(2, 2)}}, "E-NAME", "`A` is a parameter and a buffer"),
        ({"buffers": {"c": torch.ones(2)}}, "E-UNDEF", "the buffer `c` is no input"),
        ({"parameters": "A", "sizes": {"d": 2, "z": 3}}, "E-UNDEF", "`sizes` names the index `z`"),
        ({"parameters": "A", "sizes": {"d": -2}}, "E-EXTENT", "the size of d is given as -2"),
        ({"parameters": "A", "shapes": {"A": "2 3 4"}}, "E-RANK", "`A` takes 2 axes"),
        ({"parameters": "A", "shapes": {"b": "2"}}, "E-UNDEF", "shapes= names `b`, which is no parameter"),
        ({"parameters": "A", "buffers": {"b": torch.ones(3)}, "sizes": {"d": 2, "e": 4}}, "E-EXTENT", "e is|4|3"),
        ({"dropout": 1.5}, "E-INPUT", "dropout=1.5 is no rate"),
        ({"dropout": 0.5}, "E-UNDEF", "no weights are made in this program"),
        ({"parameters": "A", "init": {"b": torch.nn.init.ones_}}, "E-UNDEF", "init= names `b`"),
        ({"parameters": "A", "init": 3}, "E-INPUT", "init=3 is no function"),
        ({"plan": "fast"}, "E-PLAN", "there is no plan"),
    ],
)
def test_refusals_when_made(options, code, message):
    with pytest.raises(ta.TensorattnError, match=message) as found:
        Formula(LINE, **options)
    assert found.value.code == code
    assert found.value.hint


def test_refusals_of_names():
    with pytest.raises(ta.BindingError, match="`type` is an attribute of every torch module"):
        Formula("y_i = type_i x_i", parameters="type", sizes={"i": 2})
    with pytest.raises(ta.BindingError, match="no output needs the parameter `a`"):
        Formula("u_i = a_i x_i\ny_i = b_i x_i", parameters="a", sizes={"i": 2})
    with pytest.raises(
        ta.ShapeError, match="axis 0 of the parameter `E` is read at `w_t`: no index has its size"
    ) as found:
        Formula("y_<t d> = E_<w_t, d>", parameters="E", sizes={"d": 2})
    assert found.value.hint == 'shapes={"E": "… d"}'


def test_refusals_at_a_call():
    m = Formula(LINE, parameters=("A", "b"), sizes={"d": 2, "e": 3})
    with pytest.raises(ta.BindingError, match="the input `x` is missing"):
        m()
    with pytest.raises(ta.BindingError, match="a call takes 1 inputs, 2 are given"):
        m(torch.ones(2), torch.ones(2))
    with pytest.raises(ta.BindingError, match="the input `x` is given twice"):
        m(torch.ones(2), x=torch.ones(2))
    with pytest.raises(ta.BindingError, match="`A` is a tensor of the module"):
        m(torch.ones(2), A=torch.ones(2, 3))
    with pytest.raises(ta.BindingError, match="the formula has no input `z`"):
        m(torch.ones(2), z=1)
    with pytest.raises(ta.ShapeError):
        m(torch.ones(4))
    with pytest.raises(ta.BackendError):
        m(torch.ones(2).numpy())
