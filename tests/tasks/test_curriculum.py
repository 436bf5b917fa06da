import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.errors import TaskError
from muster.tasks.config import CurriculumConfig
from muster.tasks.curriculum import Curriculum
from muster.types import ImageSpec, Limits, Task, VerifierSpec


def task(name: str, family: str = "") -> Task:
    root = Path("/tasks") / name
    return Task(
        id=name,
        instruction="do it",
        root=root,
        image=ImageSpec(),
        limits=Limits(),
        verifier=VerifierSpec(tests=root / "tests"),
        digest="0",
        family=family,
    )


def suite(families: dict[str, int]) -> list[Task]:
    return [task(f"{name}-{i}", name) for name, count in families.items() for i in range(count)]


def curriculum(families: dict[str, int], seed: int = 0, **settings: float) -> Curriculum:
    return Curriculum(suite(families), CurriculumConfig(**settings), np.random.default_rng(seed))  # pyright: ignore[reportArgumentType]


def family(name: str) -> str:
    return name.rsplit("-", 1)[0]


def play(chooser: Curriculum, success: dict[str, float], groups: int, rng: np.random.Generator) -> Counter[str]:
    """Serve and record `groups` groups of 16; returns how often each family came."""
    served: Counter[str] = Counter()
    for _ in range(groups):
        name = chooser.next().id
        chooser.record(name, [float(rng.random() < success[family(name)]) for _ in range(16)])
        served[family(name)] += 1
    return served


def test_an_instance_is_not_repeated_before_its_siblings_had_their_turn():
    chooser = curriculum({"a": 7})
    assert len({chooser.next().id for _ in range(7)}) == 7
    assert len({chooser.next().id for _ in range(7)}) == 7


def test_families_that_teach_are_served_more_than_saturated_and_hopeless_ones():
    chooser = curriculum({"solved": 8, "middling": 8, "hopeless": 8})
    rates = {"solved": 1.0, "middling": 0.5, "hopeless": 0.0}
    served = play(chooser, rates, 300, np.random.default_rng(1))
    assert served["middling"] > 4 * max(served["solved"], served["hopeless"])
    assert min(served["solved"], served["hopeless"]) > 0


def test_a_hopeless_family_comes_back_when_the_policy_learns_it():
    chooser = curriculum({"late": 4, "steady": 4})
    rng = np.random.default_rng(2)
    before = play(chooser, {"late": 0.0, "steady": 0.5}, 100, rng)["late"]
    after = play(chooser, {"late": 0.5, "steady": 0.5}, 100, rng)["late"]
    assert after > 3 * before


def test_a_task_that_teaches_nothing_comes_less_often_than_its_siblings():
    chooser = curriculum({"a": 4})
    served: Counter[str] = Counter()
    for _ in range(200):
        name = chooser.next().id
        served[name] += 1
        chooser.record(name, [1.0] * 16 if name == "a-0" else [0.0, 1.0] * 8)
    assert 0 < served["a-0"] < 0.5 * min(served[f"a-{i}"] for i in (1, 2, 3))


def test_estimates_start_in_the_middle_and_follow_the_rewards():
    chooser = curriculum({"a": 2})
    assert chooser.task_success("a-0") == pytest.approx(0.5)
    chooser.record("a-0", [0.0] * 16)
    assert chooser.task_success("a-0") < chooser.task_success("a-1") < 0.5
    for _ in range(5):
        chooser.record("a-0", [1.0] * 16)
    assert chooser.task_success("a-0") > 0.95


def test_a_quarantined_task_never_comes_again_and_its_first_reason_stays():
    chooser = curriculum({"a": 3})
    chooser.quarantine("a-1", "control run failed")
    chooser.quarantine("a-1", "later reason")
    assert "a-1" not in {chooser.next().id for _ in range(20)}
    assert chooser.quarantined == {"a-1": "control run failed"}


def test_faults_in_a_row_quarantine_a_task_and_a_grade_between_starts_the_count_again():
    chooser = curriculum({"a": 2}, quarantine_after=3)
    bad, shaky = (t.id for t in suite({"a": 2}))
    assert [chooser.fault(bad, "verifier_fault") for _ in range(4)] == [False, False, True, False]
    for _ in range(5):
        assert not chooser.fault(shaky, "verifier_fault")
        assert not chooser.fault(shaky, "verifier_fault")
        chooser.record(shaky, [1.0, 0.0])
    assert chooser.quarantined == {bad: "3 faults in a row, the last: verifier_fault"}


def test_quarantining_everything_is_an_error_that_gives_the_reasons():
    chooser = curriculum({"a": 1})
    chooser.quarantine("a-0", "no reward written")
    with pytest.raises(TaskError, match="all 1 tasks are quarantined: a-0: no reward written"):
        chooser.next()


def test_no_task_and_two_tasks_of_one_name_are_refused():
    with pytest.raises(TaskError, match="no task to train on"):
        curriculum({})
    with pytest.raises(TaskError, match="two tasks are named x"):
        Curriculum([task("x"), task("x")], CurriculumConfig(), np.random.default_rng(0))


def test_the_informative_share_counts_groups_whose_rewards_differ():
    chooser = curriculum({"a": 1}, window_groups=4, fresh_below=0.5)
    assert chooser.informative_share == 1.0
    for rewards in ([0.0, 1.0], [1.0, 1.0], [0.0, 0.0]):
        chooser.record("a-0", rewards)
    assert chooser.informative_share == pytest.approx(1 / 3)
    assert not chooser.wants_fresh_tasks, "the window is not full yet"
    chooser.record("a-0", [1.0])
    assert chooser.wants_fresh_tasks


def test_fresh_tasks_join_where_the_rotation_stands():
    chooser = curriculum({"a": 2})
    for _ in range(20):
        chooser.next()
    chooser.add([task("a-2", "a")])
    served = Counter(chooser.next().id for _ in range(30))
    assert max(served.values()) - min(served.values()) <= 1, "no catching up"


def test_state_of_tasks_that_are_gone_is_dropped_and_new_ones_are_served():
    old = curriculum({"a": 3})
    old.quarantine("a-0", "flaky")
    play(old, {"a": 0.5}, 12, np.random.default_rng(0))
    new = Curriculum([task("a-2", "a"), task("b-0", "b")], CurriculumConfig(), np.random.default_rng(5))
    new.restore(json.loads(json.dumps(old.state())))
    assert new.quarantined == {}
    assert {new.next().id for _ in range(20)} == {"a-2", "b-0"}


actions = st.lists(
    st.one_of(
        st.just(None),
        st.tuples(st.integers(0, 5), st.lists(st.sampled_from([0.0, 0.25, 1.0, -1.0, 3.0]), min_size=1, max_size=8)),
        st.tuples(st.integers(0, 4), st.just("quarantine")),
    ),
    max_size=30,
)


def act(chooser: Curriculum, script: list) -> list[str]:
    names = [f"{name}-{i}" for name in "ab" for i in range(3)]
    chosen = []
    for step in script:
        if step is None:
            chosen.append(chooser.next().id)
        elif step[1] == "quarantine":
            chooser.quarantine(names[step[0]], "because")
        else:
            chooser.record(names[step[0]], step[1])
    return chosen


@given(before=actions, after=actions, seed=st.integers(0, 2**32))
def test_a_resumed_curriculum_goes_on_exactly_alike(before, after, seed):
    first = curriculum({"a": 3, "b": 3}, seed=seed)
    act(first, before)
    resumed = curriculum({"a": 3, "b": 3}, seed=1)
    resumed.restore(json.loads(json.dumps(first.state())))
    assert act(first, after) == act(resumed, after)
    assert first.state() == resumed.state()


@given(script=actions, seed=st.integers(0, 2**32))
def test_estimates_stay_probabilities_and_no_task_is_starved(script, seed):
    chooser = curriculum({"a": 3, "b": 3}, seed=seed, exploration_floor=0.3)
    act(chooser, script)
    for name in chooser.state()["tasks"]:
        assert 0.0 < chooser.task_success(name) < 1.0
    assert 0.0 <= chooser.informative_share <= 1.0
    open_tasks = {f"{name}-{i}" for name in "ab" for i in range(3)} - chooser.quarantined.keys()
    assert {chooser.next().id for _ in range(400)} == open_tasks
