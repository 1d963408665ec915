"""Every example runs and asserts; the layers of examples/minilm/ in a small size against plain torch."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

import tensorattn as ta
from tensorattn.library.reading import read_entry

EXAMPLES = Path(__file__).parent.parent / "examples"
# Weights of 90 MB: `make test-minilm`; other packages: `make test-onnx`;
# a quarter of a minute: `tests/test_training_example.py` trains less.
NEED_MORE = {"minilm.py", "test_minilm.py", "test_onnx_export.py", "training.py"}
RUN = sorted(file.name for file in EXAMPLES.glob("*.py") if file.name not in NEED_MORE)
BATCH, LENGTH, WIDTH, HEADS, INNER, WORDS = 3, 7, 12, 3, 20, 11


def loaded(name):
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # a dataclass looks its module up
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", RUN)
def test_example_runs_and_its_assertions_hold(name):
    done = subprocess.run([sys.executable, EXAMPLES / name], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout.strip()


def test_no_example_is_optimised_to_nothing():
    """The examples check by `assert` or numpy.testing; each has at least one."""
    for name in RUN:
        text = (EXAMPLES / name).read_text(encoding="utf-8")
        assert "assert" in text, name


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("minilm/*.attn")), ids=lambda file: file.stem)
def test_formula_files_state_all_their_inputs(file):
    entry = read_entry(file.stem, file.read_text(encoding="utf-8"))
    assert {shape.name for shape in entry.shapes} == set(entry.program.inputs)
    assert entry.title
    assert entry.formula == str(entry.program)


@pytest.fixture(scope="module")
def minilm():
    return loaded("minilm")


@pytest.fixture(scope="module")
def layers(minilm):
    return minilm.compile_layers(heads=HEADS)


def random_weights(minilm, rng):
    """Weights of a two-layer checkpoint of a small size, under the checkpoint's names."""
    shapes = {"word": (WORDS, WIDTH), "place": (LENGTH + 4, WIDTH), "kind": (2, WIDTH)}
    weights = {minilm.EMBEDDINGS[name]: rng.normal(size=shape) for name, shape in shapes.items()}
    weights |= {key: rng.normal(size=WIDTH) for key in minilm.EMBEDDING_NORM.values()}
    parts = minilm.ATTENTION | minilm.ATTENTION_NORM | minilm.FEED_FORWARD
    shapes = {name: (WIDTH, WIDTH) if name.startswith("W") else (WIDTH,) for name in parts}
    shapes |= {"W1": (INNER, WIDTH), "b1": (INNER,), "W2": (WIDTH, INNER)}
    for number in range(2):
        at = f"encoder.layer.{number}."
        weights |= {at + key: rng.normal(size=shapes[name]) / 3 for name, key in parts.items()}
        weights |= {at + key: rng.normal(size=WIDTH) for key in minilm.FEED_FORWARD_NORM.values()}
    return weights


def plain_torch(minilm, weights, ids, keep):
    """The same model by torch's own encoder layer, embeddings and pooling by hand."""
    w = {name: torch.from_numpy(value) for name, value in weights.items()}
    word, place, kind = (w[minilm.EMBEDDINGS[n]] for n in ("word", "place", "kind"))
    gain, bias = (w[minilm.EMBEDDING_NORM[n]] for n in ("gain", "bias"))
    x = functional.layer_norm(word[ids] + place[: ids.shape[1]] + kind[0], (WIDTH,), gain, bias, eps=minilm.EPS)
    for number in range(2):
        at = f"encoder.layer.{number}."
        layer = torch.nn.TransformerEncoderLayer(
            WIDTH, HEADS, INNER, dropout=0.0, activation="gelu", layer_norm_eps=minilm.EPS, batch_first=True
        ).double()
        part = {n: w[at + k] for n, k in (minilm.ATTENTION | minilm.FEED_FORWARD).items()}
        layer.load_state_dict(
            {
                "self_attn.in_proj_weight": torch.cat([part["Wq"], part["Wk"], part["Wv"]]),
                "self_attn.in_proj_bias": torch.cat([part["bq"], part["bk"], part["bv"]]),
                "self_attn.out_proj.weight": part["Wo"],
                "self_attn.out_proj.bias": part["bo"],
                "linear1.weight": part["W1"],
                "linear1.bias": part["b1"],
                "linear2.weight": part["W2"],
                "linear2.bias": part["b2"],
                "norm1.weight": w[at + minilm.ATTENTION_NORM["gain"]],
                "norm1.bias": w[at + minilm.ATTENTION_NORM["bias"]],
                "norm2.weight": w[at + minilm.FEED_FORWARD_NORM["gain"]],
                "norm2.bias": w[at + minilm.FEED_FORWARD_NORM["bias"]],
            }
        )
        # training mode without dropout: the inference fast path would zero the padded rows
        x = layer(x, src_key_padding_mask=~keep).detach()
    mean = (x * keep[..., None]).sum(1) / keep.sum(1, keepdim=True)
    return functional.normalize(mean, dim=1)


@pytest.fixture
def small(minilm, layers):
    rng = np.random.default_rng(1)
    rows = [rng.integers(0, WORDS, size=n).tolist() for n in (LENGTH, 2, 5)]
    return minilm.Encoder(layers, random_weights(minilm, rng)), rows, minilm.padded(rows)


def test_encoder_of_formulas_equals_torch(minilm, small):
    encoder, _, batch = small
    assert encoder.depth == 2
    expected = plain_torch(minilm, encoder.weights, torch.from_numpy(batch.ids), torch.from_numpy(batch.keep))
    value = encoder.encode(batch.ids, batch.at, batch.keep)
    assert value.shape == (BATCH, WIDTH)
    np.testing.assert_allclose(value, expected.numpy(), rtol=1e-9, atol=1e-10)


def test_encoder_on_torch_arrays_has_gradients(minilm, small):
    encoder, _, batch = small
    weights = {name: torch.from_numpy(value).requires_grad_() for name, value in encoder.weights.items()}
    ids, at, keep = (torch.from_numpy(part) for part in (batch.ids, batch.at, batch.keep))
    value = minilm.Encoder(encoder.layers, weights).encode(ids, at, keep)
    np.testing.assert_allclose(
        value.detach().numpy(), encoder.encode(batch.ids, batch.at, batch.keep), rtol=1e-9, atol=1e-10
    )
    value[0, 0].backward()
    gradient = weights["encoder.layer.0.attention.self.query.weight"].grad
    assert gradient is not None
    assert torch.isfinite(gradient).all()
    assert gradient.abs().max() > 0


def test_padding_changes_nothing(minilm, small):
    encoder, rows, batch = small
    together = encoder.encode(batch.ids, batch.at, batch.keep)
    for n, row in enumerate(rows):
        alone = minilm.padded([row])
        value = encoder.encode(alone.ids, alone.at, alone.keep)
        np.testing.assert_allclose(value[0], together[n], rtol=1e-9, atol=1e-10)


def test_similarities_are_cosines(small):
    encoder, _, batch = small
    e = encoder.encode(batch.ids, batch.at, batch.keep)
    expected = [[a @ b / np.sqrt((a @ a) * (b @ b)) for b in e] for a in e]
    np.testing.assert_allclose(encoder.layers.similarity(e=e), expected, rtol=1e-10)


def test_weights_of_another_size_are_refused(minilm, small):
    encoder, _, batch = small
    x = encoder.embed(batch.ids, batch.at)
    wrong = encoder.named({n: k for n, k in minilm.ATTENTION.items() if n != "bq"}, "encoder.layer.0.")
    with pytest.raises(ta.TensorattnError) as caught:
        encoder.layers.attention(x=x, keep=batch.keep, bq=np.zeros(WIDTH + HEADS), **wrong)
    assert caught.value.code == "E-EXTENT"
    assert "bq" in str(caught.value)
