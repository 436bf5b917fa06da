from __future__ import annotations

import numpy as np
import pytest

from muster.trainer.objective.numerics import probe


def test_equal_scores_have_no_mismatch():
    scores = [np.array([0, -1, -2], np.float32), np.array([0, -3], np.float32)]
    found = probe(scores, scores)
    assert (found.tokens, found.mean_abs_difference, found.k3, found.ess) == (3, 0, 0, 1)
    assert not found.alarming


def test_the_first_token_has_no_past_and_is_not_compared():
    found = probe([np.array([0.0, -1.0])], [np.array([9.0, -1.5])])
    assert found.tokens == 1 and found.mean_abs_difference == pytest.approx(0.5)
    assert found.largest_ratio == pytest.approx(np.exp(0.5))


def test_weights_that_were_not_loaded_raise_the_alarm_and_rounding_does_not():
    rng = np.random.default_rng(0)
    engine = -rng.exponential(1.0, 2000)
    rounding = engine + rng.normal(0, 0.03, 2000)
    wrong_weights = engine + rng.normal(0, 0.3, 2000)
    assert not probe([engine], [rounding]).alarming
    assert probe([engine], [wrong_weights]).alarming


def test_no_tokens_are_no_mismatch():
    assert probe([np.zeros(1)], [np.zeros(1)]).tokens == 0
