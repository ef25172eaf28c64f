"""Picks written out slowly, token by token, as a reference. One slot at a time, python numbers in float64."""

from __future__ import annotations

import math

import numpy as np

MASK32 = 0xFFFFFFFF


def philox(counter, key):
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        a, b = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (b >> 32) ^ c1 ^ k0, b & MASK32, (a >> 32) ^ c3 ^ k1, a & MASK32
        k0, k1 = (k0 + 0x9E3779B9) & MASK32, (k1 + 0xBB67AE85) & MASK32
    return c0, c1, c2, c3


def noise(seed, position, token):
    word = philox((position, token, 0, 0), (seed & MASK32, seed >> 32))[0]
    return -math.log(-math.log1p(-(word + 0.5) / 2**32))


def edited(z, params, vocabulary, prompt, history):
    """z after mask removal, penalties, bias, min_tokens and thinking budget; a list."""
    z = list(z)
    if vocabulary.mask is not None:
        z[vocabulary.mask] = -math.inf
    for token in range(len(z)):
        if token in prompt or token in history:
            z[token] = (
                z[token] / params.repetition_penalty if z[token] > 0 else z[token] * params.repetition_penalty
            )
        times = list(history).count(token)
        z[token] -= params.frequency_penalty * times + (params.presence_penalty if times else 0.0)
    for token, value in params.logit_bias.items():
        z[token] += value
    if len(history) < params.min_tokens:
        for token in (*params.stop_token_ids, *(() if params.ignore_eos else vocabulary.eos)):
            z[token] = -math.inf
    if params.thinking_budget is not None:
        opening, closing = vocabulary.think
        thinking = False
        for token in prompt:
            if token in (opening, closing):
                thinking = token == opening
        if thinking and closing not in history and len(history) == params.thinking_budget:
            z = [0.0 if token == closing else -math.inf for token in range(len(z))]
    return z


def filtered(x, params):
    """Tokens that min-p, top-k and top-p leave of tempered logits x."""
    order = sorted(range(len(x)), key=lambda token: (-x[token], token))
    peak = x[order[0]]
    mass = {token: math.exp(x[token] - peak) for token in order}
    if params.min_p > 0:
        order = [token for token in order if mass[token] >= params.min_p]
    if params.top_k > 0:
        order = order[: params.top_k]
    if params.top_p < 1:
        total = sum(mass[token] for token in order)
        keep, so_far = [], 0.0
        for token in order:
            keep.append(token)
            so_far += mass[token]
            if so_far >= params.top_p * total:
                break
        order = keep
    return order


def pick(z, params, vocabulary, prompt, history, position):
    z = edited(z, params, vocabulary, prompt, history)
    if params.temperature == 0:
        return max(range(len(z)), key=lambda token: (z[token], -token))
    temperature = float(np.float32(params.temperature))
    x = [value / temperature for value in z]
    alive = filtered(x, params)
    return max(alive, key=lambda token: x[token] + noise(params.seed, position, token))
