"""An agent of the user's own, from `muster.train` to the journal: real engine, trainer and sandboxes, a tiny model."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

import muster
import tiny_llama as tiny
from muster.app import run
from muster.config import RunConfig, validate
from muster.errors import ConfigError, UserError
from muster.journal import Journal
from muster_suites.write import generate

pytestmark = [pytest.mark.model, pytest.mark.sandbox]
EXAMPLES = Path(__file__).parents[2] / "examples"
TEMPLATE = (
    "{% for message in messages %}<im>{{ message['role'] }}\n{{ message['content'] }}</im>{% endfor %}"
    "{% if add_generation_prompt %}<im>assistant\n{% endif %}"
)
SCORES = """
def score(trajectory, sandbox):  # anything that differs within a group
    return float(int(trajectory.segments[0].tokens_T.sum()) % 2)
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a tiny chat model, two tasks and a scorer."""
    place = tmp_path_factory.mktemp("own")
    model = tiny.write_model(place / "model", config=replace(tiny.CONFIG, context=4096))
    vocabulary = {token: i for i, token in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<im>", special=True), AddedToken("</im>", special=True)])
    tokenizer.save(str(model / "tokenizer.json"))
    (model / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "</im>"}}))
    (model / "chat_template.jinja").write_text(TEMPLATE)
    for split in ("train", "heldout"):
        generate(place / split, seed=0, per_family=1, split=split, families=["make-directory"])
    (place / "scores_of_own_agent.py").write_text(SCORES)
    return place


@pytest.fixture
def there(place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """In that directory; what the loader adds to the path goes with the test."""
    monkeypatch.chdir(place)
    monkeypatch.setattr(sys, "path", [*sys.path, str(EXAMPLES)])
    yield place


def config(place: Path, **agent: object) -> RunConfig:
    return validate(
        {
            "model": str(place / "model"),
            "loop": {"steps": 1, "evaluate_every": 1},
            "tasks": {"train": str(place / "train"), "heldout": str(place / "heldout")},
            "schedule": {"groups_per_batch": 1, "group_size": 4, "slots": 8},
            "agent": {"max_turns": 2, "max_tokens_per_turn": 4, "max_context_tokens": 4096, **agent},
            "engine": {"dtype": "float32", "max_model_len": 4096, "max_streams": 8, "kv_capacity_tokens": 65536},
            "trainer": {"dtype": "float32", "serving_dtype": "float32"},
            "sandbox": {"warm": 0},
            "verifier": {"score": "scores_of_own_agent:score"},
        }
    )


def test_an_own_agent_is_trained_evaluated_and_named_in_the_fingerprint(there: Path) -> None:
    console = Console(file=io.StringIO())
    directory = muster.train(config(there, player="own_agent:Careful"), there / "run", console=console, plain=True)
    with Journal.open(directory / "journal.db") as journal:
        first, last = journal.evaluations()
        assert journal.meta()["config"]["agent"]["player"] == "own_agent:Careful"
    assert (first.version.number, last.version.number) == (0, 1)
    assert last.fingerprint["player"] == "own_agent:Careful"
    assert last.fingerprint["player_source"] == first.fingerprint["player_source"]
    assert muster.resume(directory, console=console, plain=True) == directory, "it is done, and the player is found"


def test_what_is_wrong_with_a_player_is_told_before_anything_is_written(there: Path) -> None:
    with pytest.raises(ConfigError, match=r"agent\.player = 'own_agent:Carefull': own_agent has no class"):
        muster.train(config(there, player="own_agent:Carefull"), there / "none")
    with pytest.raises(UserError, match="leave one out"):
        muster.train(config(there, player="own_agent:Careful"), there / "none", player=muster.Agent)
    assert not (there / "none").exists()


def test_a_class_is_recorded_by_its_name(there: Path) -> None:
    found = run.named(config(there), muster.Agent)
    assert found.agent.player == "muster.rollout.agent:Agent"
