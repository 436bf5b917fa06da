from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from app.publications import in_memory
from muster.errors import ModelError, TrainerError
from muster.model.llama import Llama
from muster.model.weights import digest
from muster.trainer.config import DAPO, GRPO, PPO, AdvantageConfig, DivergenceLimit, IcePop, NoCorrection, TrainerConfig
from muster.trainer.local import LocalTrainer
from muster.trainer.objective.advantage import batch_advantages
from muster.trainer.packing import sequences
from muster.trainer.step import drift_sample
from muster.types import Batch
from trainer.played import T, on_policy, sampled_logprobs, tokens_of, weights
from trainer.tiny import TINY, batch, random_batch, segment, tiny_state, trajectory, write_tiny


@pytest.fixture
def make(model, tmp_path):
    def build(**settings) -> LocalTrainer:
        defaults = {"dtype": "float32", "serving_dtype": "float32", "max_tokens_per_row": 64, "lr": 1e-3}
        config = TrainerConfig(**{**defaults, **settings})
        exporter = in_memory(tmp_path / "shm", fallback=tmp_path / "files")
        (tmp_path / "shm").mkdir(exist_ok=True)
        return LocalTrainer(config, model=model, temperature=T, exporter=exporter)

    return build


def lengths(made: Batch) -> list[int]:
    return [m.sampled_tokens for g in made.groups for m in g.members]


# --- gradients ----------------------------------------------------------------------------------------


def naive_gradients(made: Batch, config: TrainerConfig) -> dict[str, torch.Tensor]:
    """Textbook loss, one sequence at a time, on the reference model: token mean, ratio 1, truncated weights."""
    reference = Llama.from_state(TINY, tiny_state())
    advantages = batch_advantages(made, config.advantage)
    terms, tokens = [], 0
    for group in made.groups:
        for member in group.members:
            for s in member.segments:
                tokens_T = torch.from_numpy(s.tokens_T).long()
                logits_TV = reference.logits(reference.hidden(tokens_T, torch.arange(len(s)))) / T
                at = torch.from_numpy(np.flatnonzero(s.sampled_T))
                logprobs = torch.log_softmax(logits_TV, -1)[at - 1, tokens_T[at]]
                behaviour = torch.from_numpy(s.logprobs_T)[at]
                weight = (logprobs.detach() - behaviour).exp().clamp(max=2.0)
                ratio = (logprobs - logprobs.detach()).exp()
                terms.append((weight * ratio * advantages[member.id]).sum())
                tokens += len(at)
    (-torch.stack(terms).sum() / tokens).backward()
    return {name: p.grad for name, p in reference.named_parameters()}


@pytest.mark.parametrize("limit", [32, 4096], ids=["many rows", "one row"])
def test_the_gradient_of_a_packed_step_is_that_of_the_naive_unpacked_loss(make, limit):
    made = random_batch(3, groups=3, rewards=(1, 0, 0, 1, 0.5))
    config = {"loss": DAPO(), "advantage": AdvantageConfig(kind="grpo"), "max_tokens_per_row": limit}
    trainer = make(**config, max_grad_norm=1e9, lr=1e-12, drift_tokens=0)
    caught: dict[str, torch.Tensor] = {}
    optimizer_step = trainer.learner.optimizer.step

    def spy() -> None:
        caught.update({name: m.grad.clone() for name, m in trainer.learner.masters.trained.items()})
        optimizer_step()

    trainer.learner.optimizer.step = spy
    trainer.step(made)
    expected = naive_gradients(made, trainer.learner.config)
    largest = max(float(g.abs().max()) for g in expected.values())
    for name, gradient in expected.items():
        torch.testing.assert_close(caught[name], gradient, rtol=1e-3, atol=1e-5 * largest)


def test_rows_do_not_change_the_step(make):
    made = random_batch(1, groups=4)
    reached = []
    for limit in (16, 4096):
        trainer = make(max_tokens_per_row=limit)
        trainer.step(made)
        reached.append(trainer.score(tokens_of(made)[:3], temperature=T))
    for one, two in zip(*reached, strict=True):
        np.testing.assert_allclose(one, two, atol=1e-4)


def test_members_without_advantage_are_skipped_but_stay_in_the_mean(make):
    # dr_grpo-like rewards with one member exactly at the mean
    made = random_batch(2, groups=1, rewards=(1.0, 0.0, 0.5))
    trainer = make(loss=PPO(), advantage=AdvantageConfig(kind="dr_grpo"), drift_tokens=0)
    result = trainer.step(made)
    sampled = [m.sampled_tokens for m in made.groups[0].members]
    assert result.metrics["trained_tokens"] == sampled[0] + sampled[1]
    alone = replace(made.groups[0], members=made.groups[0].members[:2])
    other = make(loss=PPO(), advantage=AdvantageConfig(kind="dr_grpo"), drift_tokens=0)
    without = other.step(replace(made, groups=(alone,)))
    share = sum(sampled[:2]) / sum(sampled)
    assert result.metrics["grad_norm"] == pytest.approx(without.metrics["grad_norm"] * share, rel=1e-3)


# --- what a step does ---------------------------------------------------------------------------------


def test_on_policy_the_first_step_has_ratio_one(make):
    trainer = make()
    result = trainer.step(on_policy(random_batch(4), trainer))
    metrics = result.metrics
    assert metrics["k3"] < 1e-8 and metrics["ess"] == pytest.approx(1, abs=1e-4)
    assert metrics["clip_fraction"] == metrics["dropped_fraction"] == metrics["truncated_fraction"] == 0
    assert metrics["fresh_fraction"] == 1 and metrics["fresh_mean_abs_logprob_difference"] < 1e-4
    assert max(result.divergence.values()) < 1e-8


def test_equal_rewards_move_nothing(make):
    trainer = make(weight_decay=0.1)
    trainer.step(random_batch(0))  # gives the optimiser momentum
    before = weights(trainer)
    result = trainer.step(random_batch(1, rewards=(1.0, 1.0, 1.0)))
    assert weights(trainer) == before and result.metrics["updates"] == 0 and result.divergence == {}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_batch_raises_the_probability_of_what_was_rewarded(make, dtype):
    trainer = make(dtype=dtype, lr=3e-3)
    made = random_batch(5, groups=1)
    before = sampled_logprobs(trainer, made)
    for _ in range(5):
        trainer.step(on_policy(made, trainer))
    after = sampled_logprobs(trainer, made)
    for member in made.groups[0].members:
        moved = after[member.id] - before[member.id]
        assert (moved > 0) == (member.outcome.reward > 0), (member.id, moved)


def test_segments_of_one_trajectory_share_its_advantage_and_are_all_trained(make):
    rng = np.random.default_rng(0)

    def piece() -> object:
        return segment(rng.integers(0, 64, 8), [0] * 5 + [1] * 3)

    members = [trajectory(f"g0.{i}", [piece() for _ in range(1 + i)], float(i != 3)) for i in range(4)]
    result = make().step(batch([members]))  # rewards 1, 1, 1, 0 over 1, 2, 3 and 4 segments
    assert result.metrics["trained_tokens"] == 30 and set(result.divergence) == {f"g0.{i}" for i in range(4)}


def test_stale_tokens_are_told_apart_from_fresh_ones(make):
    trainer = make()
    made = on_policy(random_batch(6), trainer)
    trainer.step(made)
    trainer.export(1)
    metrics = trainer.step(made).metrics  # version 0, two steps of weights later: stale
    assert metrics["fresh_fraction"] == 0 and metrics["oldest_lag"] == 1
    assert metrics["stale_k3"] > 0 and "fresh_k3" not in metrics
    assert metrics["stale_k3"] == pytest.approx(metrics["k3"])


def test_weights_that_moved_unpublished_have_sampled_nothing(make):
    trainer = make()
    made = on_policy(random_batch(6), trainer)
    assert trainer.step(made).metrics["fresh_fraction"] == 1
    assert trainer.step(made).metrics["fresh_fraction"] == 0


def test_the_drift_odometer_measures_the_distance_to_the_next_version(make):
    trainer = make(drift_tokens=10_000, lr=1e-3)
    made = on_policy(random_batch(7), trainer)
    first = trainer.step(made).metrics
    second = trainer.step(made).metrics  # its behaviour policy is exactly one step away
    assert first["drift_m2"] == pytest.approx(second["m2"], rel=1e-3) and first["drift_m2"] > 0


def test_a_step_without_a_sample_says_nothing_of_the_drift_and_one_without_an_update_that_there_was_none(make):
    trainer = make(drift_tokens=0)
    assert "drift_m2" not in trainer.step(random_batch(7)).metrics
    assert trainer.step(random_batch(7, rewards=(1.0, 1.0))).metrics["drift_m2"] == 0.0


def test_the_odometers_sum_is_an_upper_estimate_of_the_exact_distance(make):
    """On one sample of tokens it cannot be less, whatever the steps were trained on."""
    trainer = make(lr=3e-3, drift_tokens=10_000)
    sample = on_policy(random_batch(3), trainer)
    driven = 0.0
    for seed in range(4):
        made = on_policy(sample, trainer)
        trainer.step(on_policy(random_batch(seed), trainer))
        moved = trainer.measure(made.groups)
        driven += float(np.sqrt(np.average([d.rms**2 for d in moved.values()], weights=lengths(made))))
    exact = [d.rms**2 for d in trainer.measure(sample.groups).values()]
    assert 0 < float(np.sqrt(np.average(exact, weights=lengths(sample)))) <= driven


def test_divergence_is_a_mean_per_token_so_that_long_trajectories_are_not_punished(make):
    """Ten times the same exchange is as far away as one, over all its segments; a product of ratios would be not."""
    trainer = make()
    (short,) = random_batch(4, groups=1, rewards=(1.0,)).groups
    member = short.members[0]
    long = replace(member, id="long", segments=member.segments * 10)
    found = trainer.measure([replace(short, members=(member, long))])
    assert found["long"].k3 == pytest.approx(found[member.id].k3, rel=1e-5)
    assert found["long"].rms == pytest.approx(found[member.id].rms, rel=1e-5)


def test_what_was_measured_is_not_scored_again_by_a_step_that_needs_it(make):
    made = random_batch(8, groups=4)
    scored = []
    for measured in (0, 3, 4):
        trainer = make(updates_per_batch=2, drift_tokens=0)
        trainer.measure(made.groups[:measured])
        scored.append(trainer.step(made).metrics["scored_tokens"])
    assert scored[0] > scored[1] > scored[2] == 0


def test_a_measure_is_forgotten_when_the_weights_move(make, tmp_path):
    trainer = make()
    made = on_policy(random_batch(8), trainer)
    assert max(d.k3 for d in trainer.measure(made.groups).values()) < 1e-9
    trainer.save(tmp_path / "start")
    trainer.step(random_batch(9))
    stepped = trainer.measure(made.groups)
    assert min(d.k3 for d in stepped.values()) > 1e-9
    trainer.restore(tmp_path / "start")
    assert max(d.k3 for d in trainer.measure(made.groups).values()) < 1e-9


def test_several_updates_compare_with_the_policy_at_the_start_of_the_step(make):
    trainer = make(updates_per_batch=2, lr=1e-2, loss=PPO(epsilon_low=0.01, epsilon_high=0.01))
    result = trainer.step(on_policy(random_batch(8, groups=4), trainer))
    assert result.metrics["updates"] == 2
    assert result.metrics["k3"] < 1e-6  # behaviour equals the policy at the start, whatever the updates did
    assert result.metrics["clip_fraction"] > 0  # the second update is off the start


def test_a_penalty_pulls_back_towards_the_initial_weights(make):
    made = random_batch(9, groups=1)
    distances = []
    for coefficient in (0.0, 1.0):
        trainer = make(kl_coefficient=coefficient, lr=2e-3)
        start = sampled_logprobs(trainer, made)
        for _ in range(8):
            trainer.step(on_policy(made, trainer))
        end = sampled_logprobs(trainer, made)
        distances.append(sum(abs(end[k] - start[k]) for k in start))
    assert distances[1] < 0.8 * distances[0]


def test_a_mask_drops_tokens_and_a_limit_drops_trajectories(make):
    made = random_batch(10)  # behaviour log-probabilities are made up: ratios are anything
    masked = make(correction=IcePop()).step(made).metrics
    assert 0 < masked["dropped_fraction"] < 1
    limited = make(correction=NoCorrection(), divergence_limit=DivergenceLimit(max_k3=1e-9)).step(made).metrics
    assert limited["dropped_fraction"] == 1 and limited["updates"] == 0


def test_the_rate_warms_up(make):
    trainer = make(warmup_steps=4, lr=1e-3)
    rates = [trainer.step(random_batch(i)).metrics["lr"] for i in range(5)]
    np.testing.assert_allclose(rates, [2.5e-4, 5e-4, 7.5e-4, 1e-3, 1e-3])


def test_gradients_are_clipped_by_their_norm(make):
    wild = make(max_grad_norm=1e-3, lr=1e-3)
    assert wild.step(random_batch(0)).metrics["grad_norm"] > 1e-3


def test_a_gradient_that_is_not_finite_is_refused_and_nothing_moves(make):
    trainer = make()
    with torch.no_grad():
        next(iter(trainer.learner.masters.trained.values())).fill_(float("nan"))
    trainer.learner.compute.refresh()
    with pytest.raises(TrainerError, match="not finite"):
        trainer.step(random_batch(0))
    assert trainer.learner.updates == 0


# --- scores, checkpoints, weights ---------------------------------------------------------------------


def test_scores_equal_the_reference_model_and_do_not_depend_on_company(make):
    trainer = make()
    rng = np.random.default_rng(0)
    sequences: Sequence[np.ndarray] = [rng.integers(0, 64, n).astype(np.int32) for n in (1, 2, 9, 30)]
    sequences = [*sequences, sequences[-1][:12]]
    reference = Llama.from_state(TINY, tiny_state())
    for tokens_T, found_T in zip(sequences, trainer.score(sequences, temperature=1.3), strict=True):
        ids = torch.from_numpy(tokens_T).long()
        logits_TV = reference.logits(reference.hidden(ids, torch.arange(len(ids)))) / 1.3
        expected = torch.log_softmax(logits_TV, -1)[:-1].gather(1, ids[1:, None])[:, 0]
        assert found_T[0] == 0
        np.testing.assert_allclose(found_T[1:], expected.detach().numpy(), atol=1e-4)


def test_serving_precision_can_be_asked_for(make):
    trainer = make(serving_dtype="bfloat16")
    tokens = [np.arange(30, dtype=np.int32)]
    (exact_T,), (serving_T,) = (trainer.score(tokens, temperature=T, serving=s) for s in (False, True))
    difference = np.abs(exact_T - serving_T).mean()
    assert 0 < difference < 0.2


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_restored_trainer_continues_bit_for_bit(make, tmp_path, dtype):
    settings = {"dtype": dtype, "updates_per_batch": 2, "warmup_steps": 5, "weight_decay": 0.01}
    trainer = make(**settings)
    trainer.step(random_batch(0))
    trainer.export(1)
    trainer.step(random_batch(1))
    trainer.save(tmp_path / "checkpoint")
    expected = trainer.step(random_batch(2, groups=4))
    resumed = make(**settings)
    resumed.restore(tmp_path / "checkpoint")
    found = resumed.step(random_batch(2, groups=4))
    assert weights(resumed) == weights(trainer)
    timeless = {k: v for k, v in expected.metrics.items() if not k.endswith("_s")}
    assert {k: v for k, v in found.metrics.items() if not k.endswith("_s")} == timeless


def test_a_checkpoint_replaces_an_older_one_of_its_name(make, tmp_path):
    trainer = make()
    trainer.save(tmp_path / "checkpoint")
    trainer.step(random_batch(0))
    trainer.save(tmp_path / "checkpoint")
    resumed = make()
    resumed.restore(tmp_path / "checkpoint")
    assert weights(resumed) == weights(trainer)
    assert [p.name for p in tmp_path.iterdir() if "checkpoint" in p.name] == ["checkpoint"]


def test_a_folder_that_is_no_checkpoint_is_refused_by_name(make, tmp_path):
    with pytest.raises(ModelError, match="nothing: not a checkpoint of a trainer"):
        make().restore(tmp_path / "nothing")


def test_a_checkpoint_of_another_model_is_refused(make, tmp_path):
    make().save(tmp_path / "checkpoint")
    other = write_tiny(tmp_path / "other", replace(TINY, mlp_width=56))
    trainer = LocalTrainer(TrainerConfig(), model=other, temperature=T, exporter=in_memory(tmp_path))
    with pytest.raises(ModelError, match="another model"):
        trainer.restore(tmp_path / "checkpoint")


def test_the_published_digest_is_that_of_the_serving_weights(make):
    trainer = make(serving_dtype="bfloat16", loss=GRPO())
    publication = trainer.export(3)
    served = {name: m.detach().to(torch.bfloat16) for name, m in trainer.learner.masters.trained.items()}
    assert publication.version.digest == digest(served) and publication.version.number == 3


def test_behaviour_as_proximal_policy_excludes_a_correction():
    with pytest.raises(ValueError, match="already compares with the engine's policy"):
        TrainerConfig(proximal="behaviour")
    assert TrainerConfig(proximal="behaviour", correction=NoCorrection()).proximal == "behaviour"


@given(st.integers(0, 400), st.integers(1, 5), st.integers(0, 2**32 - 1))
def test_a_drift_sample_takes_whole_trajectories_from_all_groups_in_turn(tokens, groups, seed) -> None:
    made = random_batch(seed % 7, groups=groups)
    items = sequences(made.groups, {m.id: 1.0 for g in made.groups for m in g.members})
    sample = drift_sample(items, tokens, np.random.default_rng(seed))
    sizes = [int(item.data.sampled_T.sum()) for item in sample]
    assert len({item.trajectory for item in sample}) == len(sample)
    assert sum(sizes) >= min(tokens, sum(int(item.data.sampled_T.sum()) for item in items))
    assert sum(sizes[:-1]) < max(tokens, 1), "and no more than it takes"
    taken = Counter(item.group for item in sample)
    assert not sample or max(taken.values()) - min((taken[g] for g in range(groups)), default=0) <= 1
