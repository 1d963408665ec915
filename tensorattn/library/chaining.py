"""A chain of L attention heads, of the formulas of its first hop, a later hop and its end, by `rename` and `then`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tensorattn.errors import BindingError

if TYPE_CHECKING:
    from tensorattn.program import Program


def chain(hops: int, *, observed: bool = True, masked: bool = False) -> Program:
    """Chained attention: each hop attends from the value symbol that the hop before found to the keys of all positions.

    z_1 ~ softmax_i G1[q, key_i], z_l ~ softmax_j G_l[val_{z_{l-1}}, key_j], target ~ B[val_{z_L}, ·]; with
    `observed` the result is `logp^n`, the log-probability of `target^n`, computed in logarithms throughout; else
    `p^n_t`, the probabilities of all targets.

    Inputs: `q` (n), `key`, `val` (n, N) and `target` (n): integers; `G1` … `GL` (S, S): scores of the symbol that asks
    and the symbol of a key; `B` (S, T): probabilities; with `masked` also `keep` (n, N): the positions there are.
    Position l is the index `i1` … `iL`, the message to it the statement `m1` … `mL`.

    >>> print(chain(2))
    m2^<n i2> = log(B_<val^<n i2> target^n>)
    T2^<n i1 i2> = G2_<val^<n i1> key^<n i2>>
    m1^<n i1> = log(T2^<n i1 bar(i2)> exp(m2^<n i2>))
    T1^<n i1> = G1_<q^n key^<n i1>>
    logp^n = log(T1^<n bar(i1)> exp(m1^<n i1>))

    Raises: BindingError `E-LIMIT` for fewer than one hop.
    Source: the model of an end-to-end memory network (Sukhbaatar et al. 2015) with symbols for queries.
    """
    from tensorattn.library import formulas

    if not isinstance(hops, int) or isinstance(hops, bool) or hops < 1:
        raise BindingError("E-LIMIT", f"a chain has at least one hop, not {hops!r}", hint="chain(2)")
    stem = ("chain_masked_" if masked else "chain_") + ("log_" if observed else "")
    end = formulas["chain_log_end" if observed else "chain_end"].program
    whole = end.rename(i=f"i{hops}", m=f"m{hops}")
    for hop in range(hops, 1, -1):
        names = dict(G=f"G{hop}", T=f"T{hop}", m=f"m{hop}", b=f"m{hop - 1}", i=f"i{hop - 1}", j=f"i{hop}")
        whole = whole.then(formulas[stem + "hop"].program.rename(**names))
    return whole.then(formulas[stem + "start"].program.rename(G="G1", g="T1", m="m1", i="i1"))
