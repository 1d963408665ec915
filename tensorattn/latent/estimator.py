"""`ChainedAttentionEstimator`: from statistics to a model, and a random model to start from."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from tensorattn.latent import accepting, maximising, statistics
from tensorattn.latent.accumulator import ChainedAttentionAccumulatorFactory
from tensorattn.latent.distribution import FORMAT, ChainedAttentionDistribution, read_json
from tensorattn.latent.maximising import Prior

MSTEPS = ("exact", "moment")
SPREAD = 0.3  # of the logarithms of random affinities and emissions


class ChainedAttentionEstimator:
    """Maximisation steps of expectation–maximisation for L hops, S symbols and T targets.

    `mstep`: "exact" raises the likelihood (with its priors) at every step; "moment" takes key tables as means of
    queries, as mixle does. `pseudo_count`: c observations a row of every table, spread evenly over its entries: a
    Gamma(c/S + 1, c/S) prior of affinities and a Dirichlet prior of emissions. `emission_smoothing` is added to each
    count of the emission. `keys`: the label under which sites share statistics. `sigma2`: of the models made.

    Raises: DTypeError `E-DTYPE`, ValueRefusedError `E-VALUE`.
    """

    def __init__(
        self,
        n_hops: int,
        num_symbols: int,
        num_targets: int,
        *,
        sigma2: float = 0.1,
        emission_smoothing: float = 1e-4,
        pseudo_count: float | None = None,
        name: str | None = None,
        keys: str | None = None,
        mstep: str = "exact",
    ) -> None:
        self.n_hops = accepting.size(n_hops, "n_hops")
        self.num_symbols = accepting.size(num_symbols, "num_symbols")
        self.num_targets = accepting.size(num_targets, "num_targets")
        self.sigma2 = accepting.number(sigma2, "sigma2", above=0)
        self.emission_smoothing = accepting.number(emission_smoothing, "emission_smoothing", least=0)
        self.pseudo_count = None if pseudo_count is None else accepting.number(pseudo_count, "pseudo_count", least=0)
        self.name, self.keys = name, keys
        if mstep not in MSTEPS:
            raise accepting.refused(f"`mstep` is {mstep!r}", hint='give "exact" or "moment"')
        self.mstep = mstep

    def settings(self) -> dict[str, Any]:
        """The arguments that make this estimator."""
        return dict(vars(self))

    def replaced(self, **changes: Any) -> ChainedAttentionEstimator:
        """The same with other settings."""
        return ChainedAttentionEstimator(**{**self.settings(), **changes})

    def __repr__(self) -> str:
        return f"ChainedAttentionEstimator({', '.join(f'{n}={v!r}' for n, v in self.settings().items())})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ChainedAttentionEstimator) and self.settings() == other.settings()

    def __hash__(self) -> int:
        return hash(tuple(self.settings().values()))

    @property
    def prior(self) -> Prior:
        """The prior that `pseudo_count` and `emission_smoothing` stand for."""
        count = self.pseudo_count or 0.0
        return Prior(count, count, self.emission_smoothing)

    def accumulator_factory(self) -> ChainedAttentionAccumulatorFactory:
        """Makes accumulators of these sizes."""
        return ChainedAttentionAccumulatorFactory(self.n_hops, self.num_symbols, self.num_targets, self.keys, self.name)

    def estimate(self, nobs: float | None, suff_stat: Any) -> ChainedAttentionDistribution:
        """The model that these statistics make. `nobs` is not needed: the statistics hold their weight.

        Raises: ShapeError, DTypeError, ValueRefusedError.
        """
        found = statistics.restored(suff_stat, self.n_hops, self.num_symbols, self.num_targets)
        if self.mstep == "exact" and found.lack_reach:
            raise accepting.refused(
                "the statistics lack `reach`, which the exact step needs",
                hint='collect them with this package, or give `mstep="moment"`',
            )
        emission = maximising.emission(found, self.prior)
        if self.mstep == "moment":
            made = ChainedAttentionDistribution(maximising.moment(found, self.prior), emission, self.sigma2, self.name)
        else:
            affinity = maximising.exact(found, self.prior)
            made = ChainedAttentionDistribution.from_affinities(affinity, emission, self.sigma2, self.name)
        made.made_by = self
        return made

    def log_prior(self, model: ChainedAttentionDistribution) -> float:
        """Up to a constant; the exact step never lowers log-likelihood + log prior."""
        return self.prior.log_density(model.log_affinity, model.emission)

    def random(self, rng: int | np.random.Generator | None = None) -> ChainedAttentionDistribution:
        """A random model near the uniform one, a start for `fit`."""
        rng = accepting.generator(rng)
        affinity = SPREAD * rng.standard_normal((self.n_hops, self.num_symbols, self.num_symbols))
        emission = np.exp(SPREAD * rng.standard_normal((self.num_symbols, self.num_targets)))
        emission /= emission.sum(axis=1, keepdims=True)
        made = ChainedAttentionDistribution.from_affinities(affinity, emission, self.sigma2, self.name)
        made.made_by = self
        return made

    def to_json(self) -> str:
        """The settings as JSON."""
        return json.dumps({"type": type(self).__name__, "format": FORMAT, "settings": self.settings()})

    @classmethod
    def from_json(cls, text: str) -> ChainedAttentionEstimator:
        """The inverse of `to_json`. Raises: ValueRefusedError `E-VALUE`."""
        return cls.from_settings(read_json(text, cls.__name__).get("settings"))

    @classmethod
    def from_settings(cls, settings: Any) -> ChainedAttentionEstimator:
        """The inverse of `settings`. Raises: ValueRefusedError `E-VALUE` for other names."""
        try:
            return cls(**settings)
        except TypeError:
            raise accepting.refused("the JSON text has other settings", hint="give what `to_json` wrote") from None
