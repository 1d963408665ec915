"""Decoding: one token a call, with cached keys and values; and a long prompt attended to part by part.

Formula: a layer of causal attention whose rows start at position `start`: softmax over s <= t + start.
Source: Vaswani et al. 2017, "Attention Is All You Need"; parts: Dao et al. 2022, "FlashAttention", section 3.1.
"""

import time

import numpy as np

import tensorattn as ta

PROJECT = """
    q_<h t d> = x_<t i> Wq_<i h d>
    k_<h t d> = x_<t i> Wk_<i h d>
    v_<h t d> = x_<t i> Wv_<i h d>
"""
ATTEND = "y_<h t e> = softmax[s : s <= t + start](q_<h t d> k_<h s d> / sqrt(|d|)) v_<h s e>"
PART = """
    S_<h t s> = q_<h t d> k_<h s d> / sqrt(|d|)
    y_<h t e> = S_<h t bar(s : first + s <= start + t)> v_<h s e>
    L_<h t>   = lse[s : first + s <= start + t](S_<h t s>)
"""
TOKENS, WIDTH, HEADS, SIZE = 400, 32, 4, 8


def decode(project, attend, x, weights):
    """The rows one by one; each projects its own token only, and reads the keys and values so far as views."""
    keys, values = (np.empty((HEADS, TOKENS, SIZE)) for _ in range(2))
    rows = []
    for t in range(TOKENS):
        new = project(x=x[t : t + 1], **weights)
        keys[:, t : t + 1], values[:, t : t + 1] = new["k"], new["v"]
        rows.append(attend(q=new["q"], k=keys[:, : t + 1], v=values[:, : t + 1], start=t))
    return np.concatenate(rows, axis=1)


def one_by_one(q, k, v):
    """Plain NumPy, head by head and row by row."""
    y = np.empty_like(q)
    for h in range(HEADS):
        for t in range(TOKENS):
            e = np.exp(k[h, : t + 1] @ q[h, t] / np.sqrt(SIZE))
            y[h, t] = e / e.sum() @ v[h, : t + 1]
    return y


def main():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(TOKENS, WIDTH))
    weights = {name: rng.normal(size=(WIDTH, HEADS, SIZE)) / np.sqrt(WIDTH) for name in ("Wq", "Wk", "Wv")}
    project, attend = ta.compile(PROJECT, outputs=["q", "k", "v"]), ta.compile(ATTEND)

    qkv = project(x=x, **weights)
    full = attend(**qkv, start=0)
    np.testing.assert_allclose(full, one_by_one(**qkv), rtol=1e-10, atol=1e-12)

    decode(project, attend, x, weights)  # makes the plans; there are no more than two for all lengths
    began = time.perf_counter()
    stepwise = decode(project, attend, x, weights)
    seconds = time.perf_counter() - began
    np.testing.assert_allclose(stepwise, full, rtol=1e-10, atol=1e-12)
    print(attend.program)
    print(f"{TOKENS} tokens, one a call: equal to the full pass to {np.abs(stepwise - full).max():.0e}")
    print(f"2 calls a token, {TOKENS / seconds:,.0f} tokens a second")

    # The last ten rows over three stretches of the cache, each by itself; only log-sum-exps and results meet.
    part, start = ta.compile(PART, outputs=["y", "L"]), TOKENS - 10
    parts = []
    for first, last in ((0, 150), (150, 395), (395, TOKENS)):
        own = {"q": qkv["q"][:, start:], "k": qkv["k"][:, first:last], "v": qkv["v"][:, first:last]}
        found = part(**own, first=first, start=start)
        parts.append((found["y"], found["L"]))
    assert np.isneginf(parts[2][1]).any(), "rows before the last stretch admit nothing of it"
    merged, _ = ta.merge(*parts)
    np.testing.assert_allclose(merged, full[:, start:], rtol=1e-10, atol=1e-12)
    print("three stretches of the keys merged by their log-sum-exps: the same")


if __name__ == "__main__":
    main()
