from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from pydantic import TypeAdapter, ValidationError

from muster.trainer.config import (
    CorrectionConfig,
    DivergenceLimit,
    GeometricMask,
    IcePop,
    NoCorrection,
    SequenceTIS,
    TokenMask,
    TokenTIS,
)
from muster.trainer.objective.correction import correct, diagnose, k3, limit

LOG_RATIOS = hnp.arrays(np.float64, st.integers(1, 40), elements=st.floats(-50, 50))
ALL = [NoCorrection(), TokenTIS(), TokenMask(), IcePop(), SequenceTIS(), GeometricMask()]
ONE = np.zeros(4, dtype=np.int32)


def kept(config, ratios, sequence_N=ONE):
    return correct(np.log(ratios), sequence_N, config)


@pytest.mark.parametrize("config", ALL, ids=lambda c: c.kind)
@given(log_ratio_N=LOG_RATIOS, data=st.data())
def test_weights_are_finite_capped_and_zero_where_masked(config, log_ratio_N, data):
    sequence_N = np.sort(data.draw(hnp.arrays(np.int32, len(log_ratio_N), elements=st.integers(0, 3))))
    found = correct(log_ratio_N, sequence_N, config)
    assert np.isfinite(found.weights_N).all() and (found.weights_N >= 0).all()
    assert (found.weights_N[~found.kept_N] == 0).all()
    assert not (found.clipped_N & ~found.kept_N).any()
    cap = getattr(config, "cap", getattr(config, "high", 1.0))
    assert found.weights_N.max() <= cap + 1e-6


@pytest.mark.parametrize("config", ALL, ids=lambda c: c.kind)
def test_equal_policies_need_no_correction(config):
    found = kept(config, np.ones(4))
    assert (found.weights_N == 1).all() and found.kept_N.all() and not found.clipped_N.any()


def test_token_tis_cuts_large_ratios_and_keeps_their_tokens():
    found = kept(TokenTIS(cap=2), [0.1, 1, 2, 8])
    np.testing.assert_allclose(found.weights_N, [0.1, 1, 2, 2], rtol=1e-6)
    assert found.kept_N.all() and found.clipped_N.tolist() == [False, False, False, True]


def test_token_mask_drops_large_ratios():
    found = kept(TokenMask(cap=2), [0.1, 1, 2, 8])
    np.testing.assert_allclose(found.weights_N, [0.1, 1, 2, 0], rtol=1e-6)
    assert found.kept_N.tolist() == [True, True, True, False]


def test_icepop_drops_both_ends():
    found = kept(IcePop(low=0.5, high=2), [0.1, 1, 1.5, 8])
    assert found.kept_N.tolist() == [False, True, True, False]


def test_sequence_tis_weights_all_tokens_by_the_product_of_their_sequence():
    found = kept(SequenceTIS(cap=3), [2, 2, 0.5, 0.5], np.array([0, 0, 1, 1], np.int32))
    np.testing.assert_allclose(found.weights_N, [3, 3, 0.25, 0.25], rtol=1e-6)


def test_geometric_mask_does_not_reject_a_sequence_for_being_long():
    ratios, sequence_N = np.full(1000, 1.005), np.zeros(1000, dtype=np.int32)
    assert kept(GeometricMask(low=0.99, high=1.01), ratios, sequence_N).kept_N.all()
    assert 1.005**1000 > 100  # a product would


def test_geometric_mask_drops_whole_sequences():
    found = kept(GeometricMask(low=0.9, high=1.1), [1, 1, 1, 2], np.array([0, 0, 1, 1], np.int32))
    assert found.kept_N.tolist() == [True, True, False, False]


def test_a_window_must_hold_one():
    with pytest.raises(ValidationError, match="the window must hold 1"):
        IcePop(low=1.5, high=2)


def test_the_kind_chooses_the_correction_and_unknown_keys_are_refused():
    adapter = TypeAdapter(CorrectionConfig)
    assert adapter.validate_python({"kind": "icepop", "high": 5}) == IcePop(high=5)
    with pytest.raises(ValidationError):
        adapter.validate_python({"kind": "token_tis", "cup": 2})


def test_a_limit_drops_or_scales_down_what_moved_too_far():
    log_ratio_N, sequence_N = np.array([0.0, 0.0, 2.0, 2.0]), np.array([0, 0, 1, 1], np.int32)
    before = correct(log_ratio_N, sequence_N, NoCorrection())
    dropped = limit(before, log_ratio_N, sequence_N, DivergenceLimit(max_k3=1.0, action="drop"))
    assert dropped.kept_N.tolist() == [True, True, False, False]
    scaled = limit(before, log_ratio_N, sequence_N, DivergenceLimit(max_k3=1.0, action="downweight"))
    assert scaled.kept_N.all()
    np.testing.assert_allclose(scaled.weights_N, [1, 1, *[1 / (np.e**2 - 3)] * 2], rtol=1e-5)


@given(log_ratio_N=LOG_RATIOS)
def test_k3_is_never_negative(log_ratio_N):
    assert (k3(log_ratio_N) >= 0).all()


def test_diagnostics_match_their_formulas():
    ratio_N = np.array([0.5, 1.0, 2.0])
    found = diagnose(np.log(ratio_N))
    assert found.k1 == pytest.approx(0, abs=1e-12)
    assert found.k3 == pytest.approx(np.mean(ratio_N - 1 - np.log(ratio_N)))
    assert found.m2 == pytest.approx(2 * np.log(2) ** 2 / 3)
    assert found.chi2 == pytest.approx(np.mean(ratio_N**2) - 1)
    assert found.ess == pytest.approx(3.5**2 / (3 * 5.25))
    assert found.largest_ratio == pytest.approx(2)
    assert found.mean_abs_difference == pytest.approx(2 * np.log(2) / 3)


def test_k3_estimates_the_divergence_that_it_claims_to():
    rng = np.random.default_rng(0)
    old, new = np.array([0.5, 0.3, 0.2]), np.array([0.4, 0.3, 0.3])
    words_N = rng.choice(3, size=200_000, p=old)
    exact = float(np.sum(old * np.log(old / new)))
    assert diagnose(np.log(new / old)[words_N]).k3 == pytest.approx(exact, rel=0.05)


def test_no_tokens_have_no_divergence():
    found = diagnose(np.empty(0))
    assert (found.k3, found.ess, found.largest_ratio) == (0.0, 1.0, 1.0)
