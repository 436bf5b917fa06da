from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from factories import make_task
from muster.orchestrator.config import Order
from muster.orchestrator.decisions.launch_queue import LaunchQueue
from muster.types import Launch


def launch(group: int, sibling: int, attempt: int = 0) -> Launch:
    id = f"g{group}.{sibling}a{attempt}"
    return Launch(id=id, group_id=f"g{group}", task=make_task(), sibling=sibling, attempt=attempt)


def filled(order: Order) -> LaunchQueue:
    line = LaunchQueue(order)
    for group in range(3):
        for sibling in range(2):
            line.add(launch(group, sibling), batch=group // 2, submission=group, expected_s=10.0 * group)
    line.add(launch(9, 0, attempt=1), batch=0, submission=9, expected_s=0.0)
    return line


def ids(line: LaunchQueue) -> list[str]:
    return [line.pop().id[:4] for _ in range(len(line))]


def test_groups_are_finished_one_by_one_after_the_refills() -> None:
    assert ids(filled("group")) == ["g9.0", "g0.0", "g0.1", "g1.0", "g1.1", "g2.0", "g2.1"]


def test_the_longest_of_a_batch_goes_first_and_no_batch_overtakes() -> None:
    assert ids(filled("longest")) == ["g9.0", "g1.0", "g1.1", "g0.0", "g0.1", "g2.0", "g2.1"]


def test_launch_order_knows_no_groups() -> None:
    assert ids(filled("launch")) == ["g0.0", "g1.0", "g0.1", "g1.1", "g9.0", "g2.0", "g2.1"]


@given(
    st.sampled_from(["group", "longest", "launch"]),
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3), st.integers(0, 2)), unique=True),
    st.sets(st.integers(0, 5)),
)
def test_what_is_dropped_never_comes_and_all_else_comes_once(
    order: Order, entries: list[tuple[int, int, int]], dropped: set[int]
) -> None:
    line = LaunchQueue(order)
    for group, sibling, attempt in entries:
        line.add(launch(group, sibling, attempt), batch=0, submission=group, expected_s=float(group % 2))
    line.drop({f"g{group}" for group in dropped})
    kept = sorted(launch(*e).id for e in entries if e[0] not in dropped)
    assert [x.id for x in line.first(2)] == [x.id for x in line.first(len(kept))][:2]
    assert sorted(line.pop().id for _ in range(len(line))) == kept
