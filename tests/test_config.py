from __future__ import annotations

import re
from pathlib import Path

import pytest

from muster.config import RunConfig, load, to_toml, validate
from muster.errors import ConfigError


def test_the_defaults_are_a_valid_run() -> None:
    config = load()
    assert config == RunConfig()
    assert config.schedule.max_lag == 0


def test_a_file_and_overrides_are_merged_the_override_last(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('seed = 3\n[schedule]\nslots = 8\n[agent]\naction_format = "tool_call"\n')
    config = load(path, ["schedule.slots=16", "agent.temperature=1.0", "model=/models/x"])
    assert (config.seed, config.schedule.slots, config.agent.action_format) == (3, 16, "tool_call")
    assert config.model == "/models/x"


def test_what_is_printed_is_what_is_read(tmp_path: Path) -> None:
    config = load(None, ["schedule.max_lag=2", "trainer.loss.kind=dapo", "trainer.loss.epsilon_high=0.3"])
    path = tmp_path / "resolved.toml"
    path.write_text(to_toml(config))
    assert load(path) == config


def test_the_record_of_a_run_gives_the_same_configuration() -> None:
    config = load(None, ["sandbox.slots=3"])
    assert validate(config.model_dump(mode="json")) == config


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("schedule.max_lagg=1", "unknown key 'schedule.max_lagg'; did you mean 'schedule.max_lag'?"),
        ("max_lag=1", "unknown key 'max_lag'; did you mean 'schedule.max_lag'?"),
        ("schedule.slots=0", "schedule.slots: .*greater than or equal to 1 .*got 0"),
        ("schedule.slots=many", "schedule.slots: .*valid integer.*got 'many'"),
        ("trainer.loss.epsilon_high=0.3", "trainer.loss: say which kind"),
        ("nothing", "write key=value"),
        ("model.x=1", "model"),
        ("trainer.serving_dtype=float32", "trainer.serving_dtype .* and engine.dtype .* differ"),
        ("agent.max_context_tokens=100000", "raise engine.max_model_len"),
    ],
)
def test_a_wrong_override_is_one_clear_line(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        load(None, [override])
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ('trainer.correction={kind="none"}', "needs a correction"),
        ("trainer.drift_tokens=0", "how old a success is"),
        ("schedule.reuse.max_share=0.001", "less than one trajectory"),
    ],
)
def test_replay_that_cannot_work_is_refused(setting: str, message: str) -> None:
    assert load(None, ["schedule.reuse.enabled=true"]).schedule.reuse.enabled
    with pytest.raises(ConfigError, match=message):
        load(None, ["schedule.reuse.enabled=true", setting])


def test_a_limit_on_a_distance_that_nothing_measures_is_refused() -> None:
    load(None, ["schedule.max_lag=2", "schedule.max_divergence=0.1"])
    with pytest.raises(ConfigError, match="nothing would measure the distance"):
        load(None, ["schedule.max_lag=2", "schedule.max_divergence=0.1", "trainer.drift_tokens=0"])


def test_lag_without_a_correction_is_refused() -> None:
    with pytest.raises(ConfigError, match="only with a correction"):
        load(None, ["schedule.max_lag=1", 'trainer.correction={kind="none"}'])


def test_a_missing_file_and_broken_toml_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        load(tmp_path / "none.toml")
    broken = tmp_path / "broken.toml"
    broken.write_text("[loop\nsteps = 3")
    with pytest.raises(ConfigError, match=r"broken\.toml: not valid TOML"):
        load(broken)


def test_a_bare_word_is_the_kind_of_an_engine_or_transport() -> None:
    loaded = load(None, ["engine=vllm", "engine.replicas=2", "publish.transport=checkpoint"])
    assert loaded.engine.kind == "vllm"
    assert loaded.engine.replicas == 2
    assert loaded.publish.transport.kind == "checkpoint"


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["engine=vllm", "engine.max_strms=3"], "unknown key 'engine.max_strms'; did you mean 'engine.max_streams'"),
        (["engine=vlm"], "engine.kind: 'vlm' is none of 'embedded', 'vllm'"),
        (["publish.transport=tape"], "publish.transport.kind: 'tape' is none of 'memory', 'direct', 'checkpoint'"),
    ],
)
def test_an_error_in_one_of_several_kinds_is_told_in_the_words_of_the_file(overrides: list[str], says: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(says)):
        load(None, overrides)


def test_a_key_of_before_is_read_under_its_present_name() -> None:
    old = validate({"schedule": {"replay": {"enabled": True, "max_uses": 2}, "max_lag": 1}})
    assert old == validate({"schedule": {"reuse": {"enabled": True, "max_uses": 2}, "max_lag": 1}})
    assert load(None, ["schedule.replay.max_uses=2"]).schedule.reuse.max_uses == 2


def test_a_key_under_both_its_names_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"schedule\.replay was renamed schedule\.reuse, and both are set"):
        validate({"schedule": {"replay": {"enabled": True}, "reuse": {"enabled": False}}})


def test_a_section_of_before_is_read_under_its_present_name() -> None:
    assert validate({"keeper": {"wedged_s": 9.0}}).servers.wedged_s == 9.0
    assert load(None, ["keeper.restarts_per_hour=2"]).servers.restarts_per_hour == 2
