"""`fit`: expectation–maximisation until it stands still, from one start or several."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tensorattn.latent import accepting
from tensorattn.latent.accelerating import extrapolated
from tensorattn.latent.counting import collect
from tensorattn.latent.distribution import ChainedAttentionDistribution
from tensorattn.latent.estimator import ChainedAttentionEstimator
from tensorattn.latent.reducing import Reduce, reduced, same_everywhere
from tensorattn.latent.rows import Rows
from tensorattn.latent.streaming import Stream

OnStep = Callable[..., Any]


@dataclass(frozen=True, slots=True, eq=False)
class Fit:
    """What `fit` found. `log_likelihood[t]` is that of the model after t steps, Σ w log p; `objective[t]` has the log
    prior added; `held_out[t]` is the mean log-likelihood of the rows held out. `evaluations`: expectation steps, those
    of refused long steps among them. `converged`: a step gained less than `delta`."""

    model: ChainedAttentionDistribution
    log_likelihood: tuple[float, ...]
    objective: tuple[float, ...]
    held_out: tuple[float, ...]
    evaluations: int
    converged: bool

    @property
    def steps(self) -> int:
        """The steps that were made."""
        return len(self.log_likelihood) - 1


@dataclass(frozen=True, slots=True, eq=False)
class _Task:
    """The data and how to learn from it."""

    rows: Rows
    weights: Any
    estimator: ChainedAttentionEstimator
    max_its: int
    delta: float
    rng: np.random.Generator
    report: OnStep | None
    held_out: Rows | None
    patience: int
    accelerate: bool
    batch_size: int | None
    reduce: Reduce | None


@dataclass(slots=True, eq=False)
class _Trace:
    """The models so far, and the one to return: the best on the rows held out, or else on the rows themselves."""

    task: _Task
    log_likelihood: list[float] = field(default_factory=list)
    objective: list[float] = field(default_factory=list)
    held_out: list[float] = field(default_factory=list)
    best: tuple[float, int, ChainedAttentionDistribution] | None = None

    def add(self, model: ChainedAttentionDistribution, ll: float) -> bool:
        """Records a model; whether the rows held out say that it is time to stop."""
        task, step = self.task, len(self.log_likelihood)
        self.log_likelihood.append(ll)
        self.objective.append(ll + (task.estimator.log_prior(model) if task.estimator.mstep == "exact" else 0.0))
        if task.held_out is not None:
            self.held_out.append(_mean_log_likelihood(model, task.held_out, task.reduce))
        value = self.held_out[-1] if self.held_out else step if task.batch_size else self.objective[-1]
        if self.best is None or value >= self.best[0]:
            self.best = (value, step, model)
        if task.report is not None:
            task.report(step, log_likelihood=ll)
        return bool(self.held_out) and step - self.best[1] >= task.patience

    def gain(self) -> float:
        """What the last step added to the objective."""
        return self.objective[-1] - self.objective[-2] if len(self.objective) > 1 else np.inf

    def fit(self, evaluations: int, converged: bool) -> Fit:
        """The result."""
        assert self.best is not None
        return Fit(
            self.best[2],
            tuple(self.log_likelihood),
            tuple(self.objective),
            tuple(self.held_out),
            evaluations,
            converged,
        )

    def score(self) -> float:
        """By which restarts are compared."""
        assert self.best is not None
        return self.best[0] if self.held_out else self.objective[self.best[1]]


def fit(
    rows: Any,
    estimator: ChainedAttentionEstimator,
    max_its: int = 100,
    delta: float | None = 1e-6,
    rng: int | np.random.Generator | None = None,
    on_step: OnStep | None = None,
    *,
    weights: Any = None,
    start: ChainedAttentionDistribution | None = None,
    restarts: int = 1,
    held_out: Any = None,
    patience: int = 10,
    accelerate: bool = False,
    batch_size: int | None = None,
    progress: bool | None = None,
    reduce: Reduce | None = None,
) -> Fit:
    """Fits a chain to observations by EM.

    `rows`: observations or encoded ones, with `weights` (n,); `max_its`: expectation steps after the start's, or epochs
    with `batch_size`; `delta`: stop when a step gains less in the objective, None: never; `rng`: of random starts;
    `start`: a model to start from; `restarts`: random starts, the best is returned; `on_step(step, log_likelihood=…)`
    is called for the start (step 0) and after each step.
    `held_out`: rows that are not learnt from; the model best on them is returned, and `patience` steps without a better
    one end the fit. `accelerate`: SQUAREM, monotone too. `batch_size`: online EM on shuffled batches; `log_likelihood`
    then is that of the batches as they came. `progress`: a bar on standard error; by default where that is a terminal.
    `reduce`: adds vectors over processes (`AllReduce`), each with its own rows and the same `rng` or `start`.

    Raises: ShapeError, DTypeError, ValueRefusedError.
    """
    accepting.made(estimator, ChainedAttentionEstimator, "estimator")
    count = accepting.size(restarts, "restarts")
    asked = (max_its, delta, rng, on_step, held_out, patience, accelerate, batch_size, reduce)
    task = _task(rows, weights, estimator, *asked)
    _check(estimator, start, count, accelerate, task.batch_size)
    with _bar(progress, count * (task.max_its + 1), on_step) as report:
        task = replace(task, weights=accepting.weights(weights, len(task.rows)), report=report)
        return max((_one(task, start) for _ in range(count)), key=lambda found: found[0])[1]


def _task(
    rows: Any, weights: Any, estimator: ChainedAttentionEstimator, max_its: Any, delta: Any, rng: Any,
    report: OnStep | None, held_out: Any, patience: Any, accelerate: bool, batch_size: Any, reduce: Reduce | None,
) -> _Task:  # fmt: skip
    """What was asked for, checked. Raises: ShapeError, DTypeError, ValueRefusedError."""
    return _Task(
        rows=_rows(rows, estimator),
        weights=weights,
        estimator=estimator,
        max_its=accepting.size(max_its, "max_its", 0),
        delta=-np.inf if delta is None else accepting.number(delta, "delta"),
        rng=accepting.generator(rng),
        report=report,
        held_out=None if held_out is None else _rows(held_out, estimator),
        patience=accepting.size(patience, "patience"),
        accelerate=accelerate,
        batch_size=None if batch_size is None else accepting.size(batch_size, "batch_size"),
        reduce=reduce,
    )


def _one(task: _Task, start: ChainedAttentionDistribution | None) -> tuple[float, Fit]:
    """The fit from one start, and what it is worth among others."""
    first = task.estimator.random(task.rng) if start is None else start
    same_everywhere(first, task.reduce)
    return _online(task, first) if task.batch_size else _whole(task, first)


def _rows(given: Any, estimator: ChainedAttentionEstimator) -> Rows:
    return accepting.sizes_of(accepting.observations(given), estimator.num_symbols, estimator.num_targets)


def _check(
    estimator: ChainedAttentionEstimator, start: ChainedAttentionDistribution | None, restarts: int, accelerate: bool,
    batch: int | None,
) -> None:  # fmt: skip
    if start is not None:
        accepting.made(start, ChainedAttentionDistribution, "start")
        sizes = (start.n_hops, start.num_symbols, start.num_targets)
        wanted = (estimator.n_hops, estimator.num_symbols, estimator.num_targets)
        if sizes != wanted:
            raise accepting.refused(f"`start` has (L, S, T) = {sizes}, not {wanted}", hint="give a model of its sizes")
        if restarts > 1:
            raise accepting.refused("`start` and `restarts` are both given", hint="give one of them")
    if accelerate and estimator.mstep != "exact":
        raise accepting.refused("the moment step cannot be accelerated", hint='give `mstep="exact"`')
    if accelerate and batch:
        raise accepting.refused("`accelerate` and `batch_size` are both given", hint="give one of them")


def _whole(task: _Task, model: ChainedAttentionDistribution) -> tuple[float, Fit]:
    """Steps on all rows. Between the last three models and the next stands, with `accelerate`, a long step."""
    trace, recent, evaluations, converged = _Trace(task), [model], 1, False
    found = _collected(task, model)
    while True:
        stop = trace.add(model, found.ll)
        converged = trace.gain() < task.delta
        if stop or converged or evaluations > task.max_its:
            break
        following = task.estimator.estimate(None, found)
        recent.append(following)
        ahead = extrapolated(recent[-3:]) if task.accelerate and len(recent) == 3 else None
        if ahead is not None and evaluations < task.max_its:
            tried = _collected(task, ahead)
            evaluations += 1
            recent = [following]
            if tried.ll + task.estimator.log_prior(ahead) >= trace.objective[-1] + max(task.delta, 0.0):
                model, found, recent = ahead, tried, [ahead]
                continue
        elif len(recent) == 3:
            recent = [following]
        model, found = following, _collected(task, following)
        evaluations += 1
    return trace.score(), trace.fit(evaluations, converged)


def _collected(task: _Task, model: ChainedAttentionDistribution) -> Any:
    return reduced(collect(task.rows, model.tables, task.weights), task.reduce)


def _online(task: _Task, start: ChainedAttentionDistribution) -> tuple[float, Fit]:
    """Epochs of batches in a new order each."""
    assert task.batch_size is not None
    total = float(task.weights.sum())
    if task.reduce is not None:
        total = float(task.reduce(np.array([total]))[0])
    stream = Stream(task.estimator, start=start, total=total, reduce=task.reduce)
    # a source of its own, so that processes with other numbers of rows draw the same starts
    shuffles = np.random.default_rng(task.rng.integers(2**63))
    trace = _Trace(task)
    trace.add(start, _collected(task, start).ll)
    batches = -(-len(task.rows) // task.batch_size)
    if task.reduce is not None:  # every process makes as many steps
        batches = int(task.reduce(np.array([float(batches)]))[0] / task.reduce(np.ones(1))[0])
    stop = False
    while not stop and len(trace.log_likelihood) <= task.max_its:
        order = shuffles.permutation(len(task.rows))
        ll = 0.0
        for part in np.array_split(order, batches):
            before = stream.seen
            mean = stream.update(task.rows.take(part), task.weights[part])
            ll += mean * (stream.seen - before) if stream.seen > before else 0.0
        stop = trace.add(stream.model, ll)
    return trace.score(), trace.fit(1 + stream.steps, False)


def _mean_log_likelihood(model: ChainedAttentionDistribution, rows: Rows, reduce: Reduce | None) -> float:
    found = reduced(collect(rows, model.tables, np.ones(len(rows))), reduce)
    return found.ll / found.n


@contextlib.contextmanager
def _bar(progress: bool | None, total: int, on_step: OnStep | None) -> Generator[OnStep | None]:
    """What to call after each step: a bar, then the user's function."""
    if not (sys.stderr.isatty() if progress is None else progress):
        yield on_step
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=console.is_terminal) as bar:
        task = bar.add_task("log-likelihood", total=total)

        def report(step: int, log_likelihood: float) -> None:
            bar.update(task, advance=1, description=f"log-likelihood {log_likelihood:.4f}")
            if on_step is not None:
                on_step(step, log_likelihood=log_likelihood)

        yield report
