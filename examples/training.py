"""Train a character-level decoder on the topics of Python's own help, its attention a formula file.

Formula: examples/training/attention.attn; then the same with one line changed: attention over pairs of earlier places.
Source: Vaswani et al. 2017; the score over pairs: Clift et al. 2019, "Logic and the 2-Simplicial Transformer".
The same decoder with torch's scaled_dot_product_attention starts from the same weights and learns along the same curve.
"""

import argparse
import importlib.util
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics

import torch
from rich.console import Console
from rich.progress import Progress
from torch import Tensor, nn
from torch.nn import functional

from tensorattn.nn import Formula

FORMULA = (Path(__file__).resolve().parent / "training" / "attention.attn").read_text("utf-8")
TWO = "z_<b h t e> = softmax[s : s <= t](q_<b h t c> k_<b h s c> / sqrt(|c|)) v_<b h s e>"
THREE = """z_<b h t e> = softmax[r s : r <= t and s <= t](sum[c](q_<b h t c> k_<b h r c> k_<b h s c>)) \
v_<b h r e> v_<b h s e>"""
JOINT = FORMULA.replace(TWO, THREE)
TOLERANCE = 1e-4  # between the curves of the formula and of torch
LEARNING_RATE = 3e-3
NO_PICTURE = "no picture: matplotlib is not installed (pip install 'tensorattn[plot]')"


@dataclass(frozen=True)
class Shape:
    """The sizes of a decoder and of its batches."""

    steps: int = 100
    batch: int = 8
    context: int = 32
    width: int = 48
    heads: int = 4
    layers: int = 2


class Corpus:
    """A text as character numbers, and batches drawn from it."""

    def __init__(self, text: str) -> None:
        self.letters = sorted(set(text))
        number = {letter: n for n, letter in enumerate(self.letters)}
        self.ids = torch.tensor([number[letter] for letter in text])

    def batches(self, shape: Shape) -> list[Tensor]:
        """Stretches of the text, one character longer than the context, the same at every call."""
        draw = torch.Generator().manual_seed(0)
        starts = torch.randint(len(self.ids) - shape.context, (shape.steps, shape.batch, 1), generator=draw)
        return list(self.ids[starts + torch.arange(shape.context + 1)])


class PlainAttention(nn.Module):
    """What examples/training/attention.attn says, by torch's own attention, with parameters of the same names."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width, heads, size = shape.width, shape.heads, shape.width // shape.heads
        for name in ("Wq", "Wk", "Wv"):
            self.register_parameter(name, nn.Parameter(torch.empty(width, heads, size)))
        self.Wo = nn.Parameter(torch.empty(heads, size, width))
        self.bo = nn.Parameter(torch.empty(width))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (torch.einsum("bti,ihc->bhtc", x, W) for W in (self.Wq, self.Wk, self.Wv))
        z = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return torch.einsum("bhte,heo->bto", z, self.Wo) + self.bo


def attention(formula: str) -> Callable[[Shape], nn.Module]:
    """A formula as the attention of a layer; parameters start as N(0, 1/fan-in), the bias as 0."""

    def made(shape: Shape) -> Formula:
        size = shape.width // shape.heads
        sizes = {"i": shape.width, "h": shape.heads, "c": size, "e": size, "o": shape.width}
        return Formula(formula, parameters=("Wq", "Wk", "Wv", "Wo", "bo"), sizes=sizes)

    return made


class Layer(nn.Module):
    """Attention and a feed-forward layer, each with its residual and a norm before it."""

    def __init__(self, shape: Shape, attend: Callable[[Shape], nn.Module]) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(shape.width) for _ in range(2))
        self.attend = attend(shape)
        self.feed = nn.Sequential(
            nn.Linear(shape.width, 4 * shape.width), nn.GELU(), nn.Linear(4 * shape.width, shape.width)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(self.norms[0](x))
        return x + self.feed(self.norms[1](x))


class Decoder(nn.Module):
    """Character numbers b t → scores of the next character b t letter."""

    def __init__(self, letters: int, shape: Shape, attend: Callable[[Shape], nn.Module]) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(letters, shape.width), nn.Embedding(shape.context, shape.width)
        self.layers = nn.Sequential(*(Layer(shape, attend) for _ in range(shape.layers)))
        self.norm, self.read = nn.LayerNorm(shape.width), nn.Linear(shape.width, letters)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.letters(ids) + self.places(torch.arange(ids.shape[1]))
        return self.read(self.norm(self.layers(x)))


def train(model: Decoder, batches: list[Tensor], advance: Callable[[], None]) -> list[float]:
    """The loss, in nats a character, at each step."""
    optimiser, losses = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE), []
    for ids in batches:
        scores = model(ids[:, :-1])
        loss = functional.cross_entropy(scores.flatten(0, 1), ids[:, 1:].flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
        advance()
    return losses


def curves(shape: Shape, console: Console) -> dict[str, list[float]]:
    """The three models, all with the same first weights, trained on the same batches."""
    corpus = Corpus("".join(topics[name] for name in sorted(topics)))
    kinds = {"formula": attention(FORMULA), "torch": PlainAttention, "joint": attention(JOINT)}
    torch.manual_seed(0)
    models = {name: Decoder(len(corpus.letters), shape, kind) for name, kind in kinds.items()}
    for model in models.values():
        model.load_state_dict(models["formula"].state_dict())  # the names of the tensors are the same
    batches, found = corpus.batches(shape), {}
    console.print(f"{len(corpus.ids):,} characters, {len(corpus.letters)} letters; {shape}", highlight=False)
    with Progress(console=console, transient=True) as progress:
        for name, model in models.items():
            task, began = progress.add_task(name, total=shape.steps), time.perf_counter()
            found[name] = train(model, batches, lambda task=task: progress.advance(task))
            each = (time.perf_counter() - began) / shape.steps
            console.print(f"{name:8} loss {found[name][0]:.3f} → {found[name][-1]:.3f}, {each * 1e3:.0f} ms a step")
    return found


def draw(found: dict[str, list[float]], path: Path) -> str:
    """The curves as a picture; what was done, in words."""
    if importlib.util.find_spec("matplotlib") is None:
        return NO_PICTURE
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for (name, losses), style in zip(found.items(), ("-", "--", "-"), strict=True):
        axes.plot(losses, style, label=name)
    axes.set(xlabel="step", ylabel="loss (nats a character)")
    axes.legend()
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:  # no such folder, no such format
        return f"no picture: {error}"
    return f"picture: {path}"


def main(arguments: list[str] | None = None) -> dict[str, list[float]]:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--picture", type=Path, default=Path("training.svg"), help="where the curves are drawn")
    for name, default in vars(Shape()).items():
        parser.add_argument(f"--{name}", type=int, default=default)
    options = vars(parser.parse_args(arguments))
    picture, console = options.pop("picture"), Console()

    found = curves(Shape(**options), console)
    apart = max(abs(a - b) for a, b in zip(found["formula"], found["torch"], strict=True))
    assert apart <= TOLERANCE, f"the curves of the formula and of torch are {apart:.1e} apart"
    assert len(set(JOINT.splitlines()) - set(FORMULA.splitlines())) == 1, "one line makes the attention joint"
    console.print(f"formula and torch: the same curve, at most {apart:.0e} apart")
    console.print(f"joint: the one changed line is\n  {THREE}", markup=False, highlight=False)
    console.print(draw(found, picture), markup=False, highlight=False)
    return found


if __name__ == "__main__":
    main()
