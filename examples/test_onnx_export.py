"""Formulas as ONNX models, run by onnxruntime at other sizes than those of the export, against the slow evaluation of
the formula's meaning, which shares no code with torch; `make test-onnx` runs it (it fetches onnx and onnxruntime)."""

import warnings

import numpy as np
import onnxruntime
import pytest
import torch

import tensorattn as ta
from tensorattn.nn import Formula
from tensorattn.reference import evaluate

QKV = {"q": "m 3", "k": "n 3", "v": "n 2"}
TRIPLE = {"q": "m 3", "k": "n 3", "r": "p 3", "v": "n 2", "w": "p 2"}
FORMULAS = {
    "masked": ("y^mu_n = softmax[nu : nu < mu](q^mu_i k^nu_i + b^<mu nu>) v^nu_n", {**QKV, "b": "m n"}),
    "window": ("y^mu_n = softmax[nu : 0 <= mu - nu < 3](q^mu_i k^nu_i) v^nu_n", QKV),
    "joint": ("y^mu_n = softmax[nu rho](sum[i](q^mu_i k^nu_i r^rho_i)) v^nu_n w^rho_n", TRIPLE),
    "pairs": ("y^mu_n = softmax[nu rho](q^mu_i k^nu_i + k^nu_i r^rho_i + q^mu_i r^rho_i) v^nu_n w^rho_n", TRIPLE),
    "sink": ("y^mu_n = softmax[nu; sink=0.5](q^mu_i k^nu_i) v^nu_n", QKV),
    "gather": ("y^mu_n = softmax[nu](q^mu_i k^nu_i + E_<t_nu>) v^nu_n", {**QKV, "E": "4", "t": "n"}),
    "lse": ("y^mu = lse[nu : nu <= mu](q^mu_i k^nu_i)", {"q": "m 3", "k": "n 3"}),
    "sparsemax": ("y^mu_n = sparsemax[nu](q^mu_i k^nu_i) v^nu_n", QKV),
    "entmax": ("y^mu_n = entmax[nu; 1.5](q^mu_i k^nu_i) v^nu_n", QKV),
    "entmax of any exponent": ("y^mu_n = entmax[nu; 1.3](q^mu_i k^nu_i) v^nu_n", QKV),
    "top": ("y^mu_n = softmax[nu : top[nu; 2](q^mu_i k^nu_i)](q^mu_i k^nu_i) v^nu_n", QKV),
    "l1norm": ("y^mu_n = l1norm[nu](exp(q^mu_i k^nu_i)) v^nu_n", QKV),
    "prod": ("y^mu = prod[nu](tanh(q^mu_i k^nu_i))", {"q": "m 3", "k": "n 3"}),
    "running sum": ("y_i = sum[t : t <= i](x_t) z_i", {"x": "m", "z": "n"}),
    "heads": (
        "y^<h t>_e = softmax[s : s <= t](q^<t h d> k^<s h d> / sqrt(|d|)) v^<s h e>",
        {"q": "m 2 3", "k": "n 2 3", "v": "n 2 4"},
    ),
}
PLANS = ("flattened", "factored", "streamed", "dense", "auto")
LENGTHS = {"m": 5, "n": 7, "p": 6}
OTHERS = ({"m": 11, "n": 13, "p": 4}, {"m": 2, "n": 3, "p": 2})

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of the exporter and of onnxscript
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


def drawn(shapes, lengths, seed):
    rng = np.random.default_rng(seed)
    found = {}
    for name, shape in shapes.items():
        sizes = [lengths.get(word) or int(word) for word in shape.split()]
        found[name] = np.arange(sizes[0]) % 4 if name == "t" else rng.normal(size=sizes).astype(np.float32)
    return found


def exported(module, shapes, names):
    """The module as a session of onnxruntime, a function of inputs in order at any lengths."""
    dims = {word: torch.export.Dim(word, min=2, max=1000) for word in LENGTHS}
    dynamic = tuple({n: dims[w] for n, w in enumerate(shapes[name].split()) if w in dims} for name in names)
    arrays = drawn(shapes, LENGTHS, seed=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            module,
            tuple(torch.from_numpy(arrays[n]) for n in names),
            dynamic_shapes=(dynamic,),
            dynamo=True,
            verbose=False,
        )
    session = onnxruntime.InferenceSession(program.model_proto.SerializeToString())
    places = [given.name for given in session.get_inputs()]
    return lambda arrays: session.run(None, dict(zip(places, (arrays[n] for n in names), strict=True)))[0]


class Call(torch.nn.Module):
    """A compiled formula as a module of its inputs in order."""

    def __init__(self, compiled):
        super().__init__()
        self.compiled = compiled

    def forward(self, *arrays):
        return self.compiled(dict(zip(self.compiled.inputs, arrays, strict=True)))


def with_another_plan(text):
    """The formula with the first plan there is, so that together they are all plans."""
    for plan in PLANS[sum(map(ord, text)) % 3 :]:
        try:
            return ta.compile(text, plan=plan)
        except ta.PlanError:
            continue
    raise AssertionError


@pytest.mark.parametrize("name", FORMULAS)
def test_at_other_lengths(name):
    text, shapes = FORMULAS[name]
    compiled = with_another_plan(text)
    run = exported(Call(compiled), shapes, compiled.inputs)
    for seed, lengths in enumerate((LENGTHS, *OTHERS)):
        arrays = drawn(shapes, lengths, seed)
        if name == "top":
            arrays["k"][1] = arrays["k"][0]  # equal scores: the lower position is taken
        np.testing.assert_allclose(run(arrays), evaluate(ta.parse(text), arrays)["y"], rtol=1e-4, atol=1e-5)


def test_every_plan_gives_the_same_model():
    text, shapes = FORMULAS["pairs"]
    models = []
    for plan in PLANS[1:]:
        compiled = ta.compile(text, plan=plan)
        models.append(exported(Call(compiled), shapes, compiled.inputs)(drawn(shapes, OTHERS[0], 1)))
    for model in models[1:]:
        np.testing.assert_array_equal(model, models[0])


def test_a_position_out_of_range_is_refused():
    text, shapes = FORMULAS["gather"]
    compiled = ta.compile(text)
    run = exported(Call(compiled), shapes, compiled.inputs)
    for wrong in (-1, 4):
        arrays = drawn(shapes, LENGTHS, seed=0)
        arrays["t"][2] = wrong
        with pytest.raises(Exception, match="invalid index found"):
            run(arrays)


def test_a_module_with_parameters():
    attend = Formula(
        "q_<t c> = x_<t i> Q_<i c>; k_<t c> = x_<t i> K_<i c>; "
        "y_<t i> = softmax[s : s <= t](q_<t c> k_<s c> / sqrt(|c|)) x_<s i>",
        parameters=("Q", "K"),
        sizes={"i": 8, "c": 4},
        plan="streamed",
    )
    run = exported(attend, {"x": "m 8"}, ("x",))
    x = drawn({"x": "m 8"}, {"m": 17}, seed=1)["x"]
    scores = (x @ attend.Q.detach().numpy()) @ (x @ attend.K.detach().numpy()).T / 2
    weights = np.exp(scores) * np.tri(17)
    np.testing.assert_allclose(run({"x": x}), weights / weights.sum(-1, keepdims=True) @ x, rtol=1e-4, atol=1e-5)
