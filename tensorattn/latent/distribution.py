"""`ChainedAttentionDistribution`: an L-hop chain of attention heads as a distribution of (context, query, target)."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorattn.errors import ShapeError
from tensorattn.latent import accepting, forward, paths
from tensorattn.latent.counting import Tables
from tensorattn.latent.encoder import ChainedAttentionDataEncoder
from tensorattn.latent.rows import Array, Rows
from tensorattn.latent.tables import centred, keys_of, scores_of

if TYPE_CHECKING:
    from tensorattn.latent.estimator import ChainedAttentionEstimator
    from tensorattn.latent.sampler import ChainedAttentionSampler, Seed

FORMAT = 1


class ChainedAttentionDistribution:
    """A chain of L content-addressed attention heads, p(target | context, query).

    An observation is (context_keys, context_values, query, target), or these with a boolean mask of the positions that
    count: `a_i = softmax_i G^1[q, k_i]`, `A^l_ij = softmax_j G^l[v_i, k_j]`, `z_1 ~ a`, `z_l ~ A^l[z_{l−1}, ·]`,
    `t ~ B[v_{z_L}, ·]` with `G^l[v,k] = −‖e_v − K^l_k‖² / 2σ²`.

    `keys`: K (L, S, S) [hop, key symbol, query symbol]; `emission`: B (S, T), rows of probabilities by value symbol;
    `sigma2`: σ², the temperature. float32 is taken; NumPy parameters are computed in float64. With torch parameters
    `seq_log_density`, `predict_proba` and `seq_posterior` return tensors of their dtype, differentiable.

    >>> copy = ChainedAttentionDistribution(np.eye(3)[None], np.eye(3) * 0.8 + 1 / 15)
    >>> copy.log_density(([0, 1, 2], [2, 2, 0], 1, 2)).round(2)
    np.float64(-0.14)

    Raises: ShapeError `E-EXTENT`, DTypeError `E-DTYPE`, ValueRefusedError `E-VALUE`.
    Source: Sukhbaatar et al. 2015, "End-To-End Memory Networks"; forward–backward as in Vogel & Ney 1996.
    """

    def __init__(self, keys: Any, emission: Any, sigma2: float = 0.1, name: str | None = None) -> None:
        found = accepting.numbers(keys, "keys", (None, None, None))
        hops, symbols, queries = found.shape
        if hops == 0 or symbols == 0 or symbols != queries:
            raise ShapeError(
                "E-EXTENT",
                f"`keys` has shape {found.shape}",
                facts=["its axes are hop, key symbol, query symbol; both are of the same S ≥ 1 symbols, hops L ≥ 1"],
                hint="give (L, S, S)",
            )
        self.sigma2 = accepting.number(sigma2, "sigma2", above=0)
        self.name = name
        self._keys: Array | None = found  # None where affinities were given
        self.emission = accepting.emission(emission, symbols)
        self.log_affinity = centred(scores_of(found, self.sigma2))
        self._tensors = (keys, emission) if _is_tensor(keys) or _is_tensor(emission) else None
        self.made_by: ChainedAttentionEstimator | None = None

    @classmethod
    def from_affinities(
        cls, log_affinity: Any, emission: Any, sigma2: float = 0.1, name: str | None = None
    ) -> ChainedAttentionDistribution:
        """The chain with these affinities log W (L, S, S) [hop, query symbol, key symbol], each row up to a constant.

        `keys` are tables that have just this attention at `sigma2`. Raises: as the constructor.
        """
        scores = accepting.numbers(log_affinity, "log_affinity", (None, None, None))
        if 0 in scores.shape or scores.shape[1] != scores.shape[2]:
            raise ShapeError("E-EXTENT", f"`log_affinity` has shape {scores.shape}", hint="give (L, S, S)")
        made = cls.__new__(cls)
        made.sigma2 = accepting.number(sigma2, "sigma2", above=0)
        made.name = name
        made._keys, made._tensors, made.made_by = None, None, None
        made.emission = accepting.emission(emission, scores.shape[1])
        made.log_affinity = centred(scores)
        return made

    @property
    def keys(self) -> Array:
        """K (L, S, S) [hop, key symbol, query symbol]."""
        return keys_of(self.log_affinity, self.sigma2) if self._keys is None else self._keys

    @property
    def key_tables(self) -> Array:
        """`keys`, under mixle's name."""
        return self.keys

    @property
    def n_hops(self) -> int:
        """L."""
        return self.log_affinity.shape[0]

    @property
    def num_symbols(self) -> int:
        """S."""
        return self.log_affinity.shape[1]

    @property
    def num_targets(self) -> int:
        """T."""
        return self.emission.shape[1]

    @property
    def tables(self) -> Tables:
        """What an expectation step needs."""
        return Tables(self.log_affinity, self.emission)

    def __repr__(self) -> str:
        sizes = f"L={self.n_hops}, S={self.num_symbols}, T={self.num_targets}"
        return f"ChainedAttentionDistribution({sizes}, sigma2={self.sigma2:g}, name={self.name!r})"

    def density(self, x: Any) -> float:
        """p of one observation. Raises: as `log_density`."""
        return np.exp(self.log_density(x))

    def log_density(self, x: Any) -> float:
        """log p of one observation; −∞ only where p is 0.

        Raises: ShapeError `E-RANK` `E-EXTENT` `E-RANGE` `E-EMPTY`, DTypeError `E-DTYPE`.
        """
        return self.seq_log_density(self._encoded([x]))[0]

    def seq_log_density(self, x: Any) -> Any:
        """log p (n,) of encoded observations. Raises: as `log_density`."""
        rows = self._rows(x)
        scores, emission = self._parameters()
        return forward.log_density(rows, scores, emission)

    def predict_proba(self, context_keys: Any, context_values: Any, query: Any, *, mask: Any = None) -> Any:
        """The probabilities of the targets: (T,) for one context and query, else (n, T).

        Contexts (N,) or (n, N) and queries () or (n,) are broadcast against each other.
        Raises: as `log_density`; `E-EXTENT` where they do not broadcast.
        """
        rows, single = accepting.contexts(context_keys, context_values, query, mask)
        scores, emission = self._parameters()
        found = forward.predicted(accepting.sizes_of(rows, self.num_symbols, None), scores, emission)
        return found[0] if single else found

    def attention(self, x: Any) -> paths.Attention:
        """The weights of one observation before its target is known: `first` (N,), `later` (L − 1, N, N)."""
        found = paths.attention(self._encoded([x]), self.log_affinity)
        return paths.Attention(found.first[0], found.later[:, 0])

    def seq_attention(self, x: Any) -> paths.Attention:
        """The weights of encoded observations, `first` (n, N), `later` (L − 1, n, N, N)."""
        return paths.attention(self._rows(x), self.log_affinity)

    def posterior(self, x: Any) -> paths.Posterior:
        """Where one observation's hops landed, given its target: `positions` (L, N), `pairs` (L − 1, N, N)."""
        found = self.seq_posterior(self._encoded([x]))
        return paths.Posterior(found.positions[:, 0], found.pairs[:, 0], found.log_density[0])

    def seq_posterior(self, x: Any) -> paths.Posterior:
        """The posterior of encoded observations, `positions` (L, n, N), `pairs` (L − 1, n, N, N)."""
        return paths.posterior(self._rows(x), *self._parameters())

    def decode(self, x: Any) -> paths.Path:
        """The most probable positions (L,) of one observation's hops given its target (Viterbi)."""
        found = self.seq_decode(self._encoded([x]))
        return paths.Path(found.positions[0], found.log_density[0])

    def seq_decode(self, x: Any) -> paths.Path:
        """The most probable positions (n, L) of encoded observations."""
        return paths.decode(self._rows(x), self.log_affinity, self.emission)

    def sampler(self, seed: Seed = None) -> ChainedAttentionSampler:
        """Draws observations; `seed`: an integer, a `numpy.random.Generator`, or a `RandomState` for mixle's draws."""
        from tensorattn.latent.sampler import ChainedAttentionSampler

        return ChainedAttentionSampler(self, seed)

    def estimator(self, pseudo_count: float | None = None) -> ChainedAttentionEstimator:
        """An estimator of the same sizes, with the settings of the one that made this, if one did."""
        from tensorattn.latent.estimator import ChainedAttentionEstimator

        if self.made_by is not None:
            return self.made_by if pseudo_count is None else self.made_by.replaced(pseudo_count=pseudo_count)
        return ChainedAttentionEstimator(
            self.n_hops, self.num_symbols, self.num_targets, sigma2=self.sigma2, pseudo_count=pseudo_count,
            name=self.name,
        )  # fmt: skip

    def dist_to_encoder(self) -> ChainedAttentionDataEncoder:
        """The encoder of observations."""
        return ChainedAttentionDataEncoder()

    def to_json(self) -> str:
        """Everything, exactly, as JSON."""
        table = {"log_affinity": self.log_affinity} if self._keys is None else {"keys": self._keys}
        whole = {
            "type": type(self).__name__,
            "format": FORMAT,
            **{name: value.tolist() for name, value in table.items()},
            "emission": self.emission.tolist(),
            "sigma2": self.sigma2,
            "name": self.name,
            "estimator": None if self.made_by is None else self.made_by.settings(),
        }
        return json.dumps(whole)

    @classmethod
    def from_json(cls, text: str) -> ChainedAttentionDistribution:
        """The inverse of `to_json`. Raises: ValueRefusedError `E-VALUE`, and what the constructor raises."""
        from tensorattn.latent.estimator import ChainedAttentionEstimator

        whole = read_json(text, cls.__name__)
        make: Callable[..., ChainedAttentionDistribution]
        make, table = (cls.from_affinities, "log_affinity") if "log_affinity" in whole else (cls, "keys")
        try:
            made = make(whole[table], whole["emission"], whole["sigma2"], whole["name"])
            settings = whole["estimator"]
        except KeyError as missing:
            raise accepting.refused(f"the JSON text has no {missing}", hint="give what `to_json` wrote") from None
        if table == "log_affinity":  # centring them once more would change a last digit
            made.log_affinity = accepting.numbers(whole[table], table, made.log_affinity.shape)
        if settings is not None:
            made.made_by = ChainedAttentionEstimator.from_settings(settings)
        return made

    def _parameters(self) -> tuple[Any, Any]:
        if self._tensors is None:
            return self.log_affinity, self.emission
        import torch

        keys, emission = self._tensors
        like = keys if _is_tensor(keys) else emission
        keys, emission = (torch.as_tensor(a, dtype=like.dtype, device=like.device) for a in (keys, emission))
        return forward.scores_of(keys, self.sigma2), emission

    def _encoded(self, items: list[Any]) -> Rows:
        return accepting.sizes_of(accepting.observations(items), self.num_symbols, self.num_targets)

    def _rows(self, x: Any) -> Rows:
        return accepting.encoded(x, self.num_symbols, self.num_targets)


def _is_tensor(given: Any) -> bool:
    return "torch" in sys.modules and isinstance(given, sys.modules["torch"].Tensor)


def read_json(text: str, kind: str) -> dict[str, Any]:
    """The object that `to_json` of this class wrote. Raises: ValueRefusedError `E-VALUE`."""
    try:
        whole = json.loads(text)
    except (TypeError, ValueError) as error:
        raise accepting.refused(f"the text is no JSON: {error}", hint="give what `to_json` wrote") from None
    if not isinstance(whole, dict) or whole.get("type") != kind or whole.get("format") != FORMAT:
        raise accepting.refused(f"the text is no {kind}", hint="give what `to_json` wrote")
    return whole
