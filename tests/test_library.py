"""Every formula of the library against an independent NumPy computation, on NumPy and torch; and the mapping itself."""

import math
import pickle
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import tensorattn as ta
from tensorattn.errors import NotationError, TensorattnError
from tensorattn.library import UnknownFormulaError
from tensorattn.library.entry import Entry
from tensorattn.library.listing import page
from tensorattn.library.reading import read_entry

ROOT = Path(__file__).parent.parent
NAMES = tuple(ta.formulas)
E = np.einsum


def softmax(x, axes):
    """Softmax over one axis or jointly over several, by definition."""
    e = np.exp(x - x.max(axis=axes, keepdims=True))
    return e / e.sum(axis=axes, keepdims=True)


def joint_attention(k, q, r, M, v):
    y = np.zeros((len(k), v.shape[2]))
    for mu in range(len(k)):
        scores = np.array([[E("i,j,k,ijk->", k[mu], a, b, M) for b in r] for a in q])
        y[mu] = E("ab,abn->n", softmax(scores, (0, 1)), v)
    return y


def diagonal(n):
    delta = np.zeros((n, n, n))
    for i in range(n):
        delta[i, i, i] = 1.0
    return delta


def nested_relations(k, q, r, M, t, u, B, s, z, Mtilde, G):
    W = E("mi,nj,rk,ijk->mnr", k, q, r, M)
    a, b = E("mnr,nk->mrk", softmax(W, 1), t), E("mnr,rk->mnk", softmax(W, 2), u)
    C = E("mra,mnb,ab->mrn", a, b, B)
    c, d = E("mrn,ng->mrg", softmax(C, 2), s), E("mrn,rh->mnh", softmax(C, 1), z)
    return E("lgh,rn,mrg,mnh->ml", Mtilde, G, c, d)


def attention(Q, K, V, scale=1.0):
    return softmax(Q @ K.T * scale, 1) @ V


def multi_head(x, Wq, Wk, Wv):
    heads = [attention(x @ a, x @ b, x @ c, 1 / math.sqrt(a.shape[1])) for a, b, c in zip(Wq, Wk, Wv, strict=True)]
    return np.concatenate(heads, axis=1)


def sinusoidal(length, width):
    table = np.zeros((length, width))
    for position in range(length):
        for f in range(width // 2):
            angle = position / 10000 ** (2 * f / width)
            table[position, 2 * f], table[position, 2 * f + 1] = math.sin(angle), math.cos(angle)
    return table


def appended(x, column):
    return np.concatenate([x, np.asarray(column, dtype=float)[:, None]], axis=1)


def bag_of_words(word):
    return np.stack([np.bincount(row, minlength=4) for row in word])


def gate(query, K, key, sigma2):
    return softmax(np.array([-np.sum((query - K[a]) ** 2) / (2 * sigma2) for a in key]), 0)


def content_gate(q, K, key, sigma2):
    return np.stack([gate(q[n], K, key[n], sigma2) for n in range(len(q))])


def one_hop(K, B, q, key, val, sigma2):
    one = np.eye(K.shape[1])
    return np.stack([gate(one[q[n]], K, key[n], sigma2) @ B[val[n]] for n in range(len(q))])


def two_hop(K, B, q, key, val, sigma2):
    one, p = np.eye(K.shape[2]), np.zeros((len(q), B.shape[1]))
    for n in range(len(q)):
        first = gate(one[q[n]], K[0], key[n], sigma2)
        for i, weight in enumerate(first):
            p[n] += weight * (gate(one[val[n, i]], K[1], key[n], sigma2) @ B[val[n]])
    return p


def gates(scores, keep=None):
    """Softmax over the last axis of what is kept."""
    e = np.exp(scores) * (1 if keep is None else keep)
    return e / np.maximum(e.sum(-1, keepdims=True), 1e-300)


def chain_start(G, q, key, m, keep=None):
    return np.stack([gates(G[q[n]][key[n]], None if keep is None else keep[n]) @ m[n] for n in range(len(q))])


def chain_hop(G, val, key, m, keep=None):
    rows = [gates(G[val[n]][:, key[n]], None if keep is None else keep[n]) for n in range(len(val))]
    return np.stack([row @ m[n] for n, row in enumerate(rows)])


def in_logarithms(formula):
    def logarithms(*, m, **arrays):
        with np.errstate(divide="ignore"):
            return np.log(formula(**arrays, m=np.exp(m)))

    return logarithms


def key_scores(K, sigma2):
    one = np.eye(len(K))
    return np.array([[-np.sum((one[v] - K[k]) ** 2) / (2 * sigma2) for k in range(len(K))] for v in range(len(K))])


REFERENCES = {
    "key_scores": key_scores,
    "chain_start": chain_start,
    "chain_masked_start": chain_start,
    "chain_log_start": in_logarithms(chain_start),
    "chain_masked_log_start": in_logarithms(chain_start),
    "chain_hop": chain_hop,
    "chain_masked_hop": chain_hop,
    "chain_log_hop": in_logarithms(chain_hop),
    "chain_masked_log_hop": in_logarithms(chain_hop),
    "chain_end": lambda B, val: B[val],
    "chain_log_end": lambda B, val, target: np.log(np.stack([B[v, t] for v, t in zip(val, target, strict=True)])),
    "dot_product_attention": lambda k, q, M, v: softmax(k @ M @ q.T, 1) @ v,
    "dot_product_attention_delta": lambda k, q, v: softmax(k @ q.T, 1) @ v,
    "attention_weights": lambda W: softmax(W, 1),
    "joint_output": lambda W, v: softmax(W.reshape(len(W), -1), 1) @ v.reshape(-1, v.shape[2]),
    "joint_attention": joint_attention,
    "joint_attention_delta": lambda k, q, r, v: joint_attention(k, q, r, diagonal(k.shape[1]), v),
    "relation_a": lambda W, t: E("mnr,nk->mrk", softmax(W, 1), t),
    "relation_b": lambda W, u: E("mnr,rk->mnk", softmax(W, 2), u),
    "combined_relations": lambda Mtilde, G, c, d: E("lgh,rn,mrg,mnh->ml", Mtilde, G, c, d),
    "nested_relations": nested_relations,
    "weighted_sum": lambda a, x: a @ x,
    "self_attention": lambda x: attention(x, x, x),
    "self_attention_ratio": lambda x: np.exp(x @ x.T) / np.exp(x @ x.T).sum(1, keepdims=True) @ x,
    "projected_attention": lambda x, Wq, Wk, Wv: attention(x @ Wq, x @ Wk, x @ Wv, 1 / math.sqrt(Wq.shape[1])),
    "query_key_value_attention": attention,
    "scaled_attention": lambda Q, K, V: attention(Q, K, V, 1 / math.sqrt(Q.shape[1])),
    "multi_head_attention": multi_head,
    "position_appended": lambda x: appended(x, np.arange(len(x)) / len(x)),
    "position_count_appended": lambda x: appended(x, np.arange(len(x))),
    "position_sine_appended": lambda x, w: appended(x, [math.sin(w * i) for i in range(len(x))]),
    "position_added": lambda x, P: x + P,
    "sinusoidal_encoding": lambda: sinusoidal(6, 6),
    "sinusoidal_encoding_halves": lambda: sinusoidal(6, 6)[:, [0, 2, 4, 1, 3, 5]],
    "position_encoded_attention": lambda x: attention(*[x + sinusoidal(*x.shape)] * 3),
    "one_hot": lambda word: np.eye(4)[word],
    "bag_of_words": bag_of_words,
    "similarity_sum": lambda e: (e @ e.T) @ e,
    "contextual_embeddings": lambda e: attention(e, e, e),
    "task_specific_embeddings": lambda e, Wq, Wk, Wv: attention(e @ Wq, e @ Wk, e @ Wv),
    "content_gate": content_gate,
    "one_hop_attention": one_hop,
    "two_hop_attention": two_hop,
}


def compiled(entry):
    return ta.compile(entry.program, sizes=dict(entry.sizes) or None)


def to_torch(value):
    return torch.from_numpy(value) if isinstance(value, np.ndarray) else value


def test_every_formula_has_a_reference():
    assert set(REFERENCES) == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_numpy_equals_the_independent_computation(name):
    entry = ta.formulas[name]
    inputs = entry.example(np.random.default_rng(7))
    expected = REFERENCES[name](**inputs)
    value = compiled(entry)(inputs)
    assert value.shape == expected.shape
    np.testing.assert_allclose(value, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", [n for n in NAMES if ta.formulas[n].shapes])
def test_torch_equals_the_independent_computation(name):
    entry = ta.formulas[name]
    inputs = entry.example(np.random.default_rng(11))
    expected = REFERENCES[name](**inputs)
    value = compiled(entry)({n: to_torch(a) for n, a in inputs.items()})
    assert isinstance(value, torch.Tensor)
    np.testing.assert_allclose(value.numpy(), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_entry_states_its_source_and_all_inputs(name):
    entry = ta.formulas[name]
    assert entry.title
    assert entry.source
    assert {shape.name for shape in entry.shapes} == set(entry.program.inputs)
    assert ta.parse(entry.text) == entry.program == ta.parse(str(entry.program))


@pytest.mark.parametrize("name", NAMES)
def test_file_is_written_as_the_printer_writes(name):
    entry = ta.formulas[name]
    assert entry.formula == str(entry.program)


@pytest.mark.parametrize("name", ["combined_relations", "nested_relations"])
def test_last_formula_as_printed_is_refused_and_the_repair_accepted(name):
    entry = ta.formulas[name]
    printed = re.search(r"[Aa]s printed: `([^`]+)`", entry.notes)
    assert printed is not None
    with pytest.raises(NotationError) as caught:
        ta.parse(printed.group(1))
    error = caught.value
    assert error.code == "E-DANGLING"
    assert [printed.group(1)[span.start : span.end] for span in error.spans] == ["sigma", "nu"]
    assert "sigma and nu" in (error.hint or "")
    assert ta.parse(printed.group(1).replace("sigma", "nu")) == ta.parse(entry.formula.splitlines()[-1])


def test_entries_that_are_said_to_be_equal_are_equal():
    rng = np.random.default_rng(3)
    x = rng.normal(size=(5, 3))
    value = compiled(ta.formulas["self_attention"])(x=x)
    np.testing.assert_allclose(compiled(ta.formulas["contextual_embeddings"])(e=x), value, rtol=1e-12)
    np.testing.assert_allclose(compiled(ta.formulas["self_attention_ratio"])(x=x), value, rtol=1e-12)
    ids = rng.integers(0, 4, size=(3, 5))
    hot = compiled(ta.formulas["one_hot"])
    counts = np.stack([hot(word=row).sum(axis=0) for row in ids])
    np.testing.assert_array_equal(compiled(ta.formulas["bag_of_words"])(word=ids), counts)


def test_the_written_out_softmax_is_stable():
    x = np.array([[40.0, 0.0], [0.0, 40.0]])
    value = compiled(ta.formulas["self_attention_ratio"])(x=x)
    np.testing.assert_allclose(value, x, atol=1e-12)


def test_bag_of_words_of_the_notes():
    """ram sita ram; sita ram hari: with ram 0, sita 1, hari 2."""
    entry = ta.formulas["bag_of_words"]
    count = ta.compile(entry.program, sizes={"a": 3})(word=np.array([[0, 1, 0], [1, 0, 2]]))
    np.testing.assert_array_equal(count, [[2, 1, 0], [1, 1, 1]])
    assert count.dtype == np.int64


def test_padding_is_not_counted():
    entry = ta.formulas["bag_of_words"]
    count = ta.compile(entry.program, sizes={"a": 3})(word=np.array([[0, 1, -1], [2, -1, -1]]))
    np.testing.assert_array_equal(count, [[1, 1, 0], [0, 0, 1]])


def test_torch_functions_named_in_equals():
    rng = np.random.default_rng(5)
    inputs = {n: torch.from_numpy(a) for n, a in ta.formulas["scaled_attention"].example(rng).items()}
    sdpa = torch.nn.functional.scaled_dot_product_attention
    q, k, v = (inputs[n][None] for n in "QKV")
    torch.testing.assert_close(compiled(ta.formulas["scaled_attention"])(inputs), sdpa(q, k, v)[0])
    unscaled = compiled(ta.formulas["query_key_value_attention"])(inputs)
    torch.testing.assert_close(unscaled, sdpa(q, k, v, scale=1.0)[0])


def test_mapping_is_read_only_and_suggests_a_name():
    with pytest.raises(UnknownFormulaError) as caught:
        ta.formulas["joint_atention"]
    assert isinstance(caught.value, KeyError)
    assert isinstance(caught.value, TensorattnError)
    assert caught.value.hint == "did you mean `joint_attention`?"
    assert pickle.loads(pickle.dumps(caught.value)).hint == caught.value.hint
    assert "no_such" not in ta.formulas
    assert ta.formulas.get("no_such") is None
    with pytest.raises(TypeError):
        ta.formulas["x"] = 1
    assert len(ta.formulas) == len(NAMES) == len(list(ta.formulas))


def test_entry_is_frozen_and_examples_follow_the_generator():
    entry = ta.formulas["joint_attention"]
    with pytest.raises(AttributeError):
        entry.title = "other"
    first, again, other = (entry.example(np.random.default_rng(seed))["M"] for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_unknown_field_and_version_are_refused():
    with pytest.raises(NotationError, match="no field `titel`"):
        read_entry("x", "# notation: 1\n# titel: a\ny_i = x_i\n")
    with pytest.raises(NotationError, match="notation 2"):
        read_entry("x", "# notation: 2\n# title: a\ny_i = x_i\n")
    with pytest.raises(NotationError, match="no kind of entries `negative`"):
        read_entry("x", "# notation: 1\n# title: a\n# shapes: x i: negative\ny_i = x_i\n")
    assert isinstance(read_entry("x", "# notation: 1\n# title: a\n# source: b\ny_i = x_i\n"), Entry)


def test_nothing_is_parsed_or_loaded_at_import():
    code = "import sys, tensorattn as ta; list(ta.formulas); print({'numpy', 'torch', 'sympy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.strip() == "set()"


def test_documentation_page_is_the_library():
    written = (ROOT / "docs" / "library.md").read_text(encoding="utf-8")
    assert written == page(), "run `python -m tensorattn.library.listing > docs/library.md`"
