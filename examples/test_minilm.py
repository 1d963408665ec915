"""all-MiniLM-L6-v2 by formulas against plain torch; `make test-minilm` runs it (it fetches 90 MB of weights)."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

FILE = Path(__file__).parent / "minilm.py"
SPEC = importlib.util.spec_from_file_location("minilm_example", FILE)
minilm = importlib.util.module_from_spec(SPEC)
sys.modules[SPEC.name] = minilm  # a dataclass looks its module up
SPEC.loader.exec_module(minilm)

SENTENCES = (
    "Yes.",
    "The bank raised its interest rates again.",
    "A man is eating food.",
    "When the storm had passed, the fishermen of the village mended their nets by the shore until it grew dark.",
)


def plain_torch(weights, ids, keep):
    """The same model in torch's own layers, written without the formulas."""
    w = {name: torch.from_numpy(value) for name, value in weights.items()}

    def linear(x, name):
        return functional.linear(x, w[name + ".weight"], w[name + ".bias"])

    def norm(x, name):
        return functional.layer_norm(x, x.shape[-1:], w[name + ".weight"], w[name + ".bias"], eps=1e-12)

    def heads(x):
        return x.unflatten(-1, (12, 32)).transpose(1, 2)

    at = "embeddings."
    x = functional.embedding(ids, w[at + "word_embeddings.weight"])
    x = x + w[at + "position_embeddings.weight"][: ids.shape[1]] + w[at + "token_type_embeddings.weight"][0]
    x = norm(x, at + "LayerNorm")
    for number in range(6):
        at = f"encoder.layer.{number}."
        q, k, v = (heads(linear(x, f"{at}attention.self.{part}")) for part in ("query", "key", "value"))
        z = functional.scaled_dot_product_attention(q, k, v, attn_mask=keep[:, None, None, :])
        x = norm(
            x + linear(z.transpose(1, 2).flatten(2), at + "attention.output.dense"), at + "attention.output.LayerNorm"
        )
        h = linear(functional.gelu(linear(x, at + "intermediate.dense")), at + "output.dense")
        x = norm(x + h, at + "output.LayerNorm")
    mean = (x * keep[..., None]).sum(1) / keep.sum(1, keepdim=True)
    return functional.normalize(mean, dim=1)


@pytest.fixture(scope="module")
def folder():
    found = minilm.model_folder(None)
    assert found is not None, minilm.NO_WEIGHTS
    return found


@pytest.fixture(scope="module")
def encoder(folder):
    return minilm.load_encoder(folder)


@pytest.fixture(scope="module")
def batch(folder):
    return minilm.padded(minilm.tokenized(folder, SENTENCES))


@pytest.fixture(scope="module")
def embedded(encoder, batch):
    return encoder.encode(batch.ids, batch.at, batch.keep)


def test_the_batch_holds_padding(batch):
    assert not batch.keep.all()
    assert batch.keep.sum(1).min() < batch.keep.shape[1] // 2


def test_equals_plain_torch(encoder, batch, embedded):
    expected = plain_torch(encoder.weights, torch.from_numpy(batch.ids), torch.from_numpy(batch.keep))
    assert embedded.dtype == np.float32
    np.testing.assert_allclose(embedded, expected.numpy(), rtol=0, atol=1e-5)


def test_torch_arrays_give_the_same(encoder, batch, embedded):
    weights = {name: torch.from_numpy(value) for name, value in encoder.weights.items()}
    other = minilm.Encoder(encoder.layers, weights)
    value = other.encode(*(torch.from_numpy(part) for part in (batch.ids, batch.at, batch.keep)))
    assert isinstance(value, torch.Tensor)
    np.testing.assert_allclose(value.numpy(), embedded, rtol=0, atol=1e-5)


def test_padding_changes_nothing(folder, encoder, embedded):
    for n, row in enumerate(minilm.tokenized(folder, SENTENCES)):
        alone = minilm.padded([row])
        np.testing.assert_allclose(encoder.encode(alone.ids, alone.at, alone.keep)[0], embedded[n], rtol=0, atol=1e-5)


def test_what_stands_in_the_padding_has_no_effect(encoder, batch, embedded):
    ids = np.where(batch.keep, batch.ids, 2003)
    np.testing.assert_allclose(encoder.encode(ids, batch.at, batch.keep), embedded, rtol=0, atol=1e-6)


def test_related_sentences_are_nearer(folder, encoder):
    """The published behaviour of the model: a paraphrase is nearer than an unrelated sentence."""
    rows = minilm.tokenized(folder, [s for pair in minilm.PAIRS for s in pair])
    batch = minilm.padded(rows)
    e = encoder.encode(batch.ids, batch.at, batch.keep)
    cosines = (e[0::2] * e[1::2]).sum(1)
    assert (cosines[0::2] > cosines[1::2] + 0.1).all()


def test_the_program_runs(capsys):
    assert minilm.main(["--pair", "A cat sleeps.", "A kitten is asleep."]) == 0
    assert "A kitten is asleep." in capsys.readouterr().out


def test_missing_weights_are_named(tmp_path, capsys):
    assert minilm.main(["--model", str(tmp_path)]) == 2
    assert "no weights found" in capsys.readouterr().err
