"""Rotary encoding against formulas written out pair by pair."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.tiny import CPU, NLD, config_of, tiny_config

from recguide.models.config import LinearScaling, Llama3Scaling, RopeConfig, YarnScaling
from recguide.models.rotary import Rotary, attention_factor, inverse_frequencies, yarn_range

YARN = YarnScaling(factor=16.0, original_max_positions=16384, mscale=1.0, mscale_all_dim=1.0)


def yarn_by_hand(factor, original, theta, dim, fast=32.0, slow=1.0):
    def corr(rotations):
        return dim * math.log(original / (2 * math.pi * rotations)) / (2 * math.log(theta))

    low, high = max(math.floor(corr(fast)), 0), min(math.ceil(corr(slow)), dim - 1)
    frequencies = []
    for j in range(dim // 2):
        kept = theta ** (-2 * j / dim)
        ramp = min(max((j - low) / (high - low), 0.0), 1.0)
        frequencies.append(kept / factor * ramp + kept * (1 - ramp))
    return frequencies


def llama3_by_hand(factor, low, high, original, theta, dim):
    frequencies = []
    for j in range(dim // 2):
        frequency = theta ** (-2 * j / dim)
        wavelength = 2 * math.pi / frequency
        if wavelength < original / high:
            frequencies.append(frequency)
        elif wavelength > original / low:
            frequencies.append(frequency / factor)
        else:
            smooth = (original / wavelength - low) / (high - low)
            frequencies.append((1 - smooth) * frequency / factor + smooth * frequency)
    return frequencies


@pytest.mark.parametrize("factor", [16.0, 0.25, 1.0])
@pytest.mark.parametrize(("theta", "dim", "original"), [(1e6, 128, 16384), (1e9, 128, 16384), (1e4, 64, 512)])
def test_yarn_frequencies(factor, theta, dim, original):
    yarn = YarnScaling(factor=factor, original_max_positions=original)
    found = inverse_frequencies(RopeConfig(theta=theta, scaling=yarn), dim)
    assert found.dtype == torch.float64
    assert found.tolist() == pytest.approx(yarn_by_hand(factor, original, theta, dim), rel=1e-12)


def test_yarn_ramp_of_no_width_is_a_step():
    """A context so short that even slow pairs turn less than once puts both ends at pair 0."""
    yarn = YarnScaling(factor=4.0, original_max_positions=4)
    assert yarn_range(yarn, 1e4, 8)[0] == 0
    found = inverse_frequencies(RopeConfig(theta=1e4, scaling=yarn), 8)
    assert torch.isfinite(found).all()


def test_llama_3_and_linear_frequencies():
    llama3 = Llama3Scaling(
        factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_positions=8192
    )
    found = inverse_frequencies(RopeConfig(theta=5e5, scaling=llama3), 64)
    assert found.tolist() == pytest.approx(llama3_by_hand(32.0, 1.0, 4.0, 8192, 5e5, 64), rel=1e-12)
    assert len({round(found[j].item() / 5e5 ** (-2 * j / 64), 6) for j in range(32)}) > 3  # a blend exists
    linear = inverse_frequencies(RopeConfig(theta=1e4, scaling=LinearScaling(factor=4.0)), 64)
    plain = inverse_frequencies(RopeConfig(theta=1e4), 64)
    assert linear.tolist() == pytest.approx((plain / 4).tolist())


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"mscale": 1.0, "mscale_all_dim": 1.0}, 1.0),
        ({}, 0.1 * math.log(16) + 1),
        ({"mscale": 0.7, "mscale_all_dim": 1.0}, (0.07 * math.log(16) + 1) / (0.1 * math.log(16) + 1)),
        ({"attention_factor": 1.25}, 1.25),
        ({"factor": 0.25}, 1.0),
    ],
)
def test_attention_factor(changes, expected):
    yarn = YarnScaling(**{"factor": 16.0, "original_max_positions": 16384, **changes})
    assert attention_factor(RopeConfig(theta=1e6, scaling=yarn)) == pytest.approx(expected)


@pytest.mark.parametrize("factor", [16.0, 0.25])
def test_nld_multiplies_neither_cos_nor_sin(factor):
    raw = {**NLD, "head_dim": 128, "rope_parameters": {**NLD["rope_parameters"], "factor": factor}}
    rotation = Rotary(config_of(raw), torch.float64, CPU).at(torch.tensor([0, 1, 4095, 16384, 262143]))
    assert torch.allclose(rotation.cos**2 + rotation.sin**2, torch.ones(1, dtype=torch.float64))


@given(st.integers(0, 5000), st.integers(0, 5000), st.integers(0, 5000), st.integers(0, 2**31), st.booleans())
def test_scores_depend_on_distance_alone(query_at, key_at, shift, seed, scaled):
    family = "nemotron_labs_diffusion" if scaled else "llama"
    rotary = Rotary(tiny_config(family), torch.float64, CPU)
    generator = torch.Generator().manual_seed(seed)
    q, k = torch.randn(2, 1, 1, 8, dtype=torch.float64, generator=generator)

    def score(shift):
        turned = rotary.at(torch.tensor([query_at + shift])).turn(q)
        return (turned * rotary.at(torch.tensor([key_at + shift])).turn(k)).sum().item()

    assert score(shift) == pytest.approx(score(0), abs=1e-8)


def test_the_rotation_pairs_halves():
    """Position 1 turns (1, 0) of pair j by its frequency, into dimensions j and j + half."""
    rotary = Rotary(tiny_config("llama", rope_scaling=None), torch.float64, CPU)
    turned = rotary.at(torch.tensor([1])).turn(torch.eye(8, dtype=torch.float64)[None])[0]
    for j, frequency in enumerate(inverse_frequencies(RopeConfig(theta=1e4), 8).tolist()):
        expected = torch.zeros(8, dtype=torch.float64)
        expected[j], expected[j + 4] = math.cos(frequency), math.sin(frequency)
        assert torch.allclose(turned[j], expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_angles_of_low_precision_models_are_float32(dtype):
    config = tiny_config("nemotron_labs_diffusion")
    positions = torch.tensor([1999])
    exact = Rotary(config, torch.float64, CPU).at(positions)
    low = Rotary(config, dtype, CPU).at(positions)
    assert low.cos.dtype == low.query_scale.dtype == dtype
    rounding = torch.finfo(dtype).eps + 1999 * torch.finfo(torch.float32).eps
    assert (low.cos.double() - exact.cos).abs().max() < rounding
    assert (low.sin.double() - exact.sin).abs().max() < rounding
