from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.trainer.packing import Item, PackedRow, plan, sequences
from trainer.tiny import batch, random_batch, segment, trajectory


@st.composite
def groups_of_segments(draw):
    """Groups of trajectories over two words, so that prefixes are shared often and at every depth."""
    items: list[Item] = []
    trajectory = 0
    for group in range(draw(st.integers(1, 3))):
        prompt = draw(st.lists(st.integers(0, 1), min_size=1, max_size=6))
        for _ in range(draw(st.integers(1, 6))):
            for ordinal in range(draw(st.integers(1, 2))):
                own = draw(st.lists(st.tuples(st.integers(0, 1), st.booleans()), min_size=1, max_size=9))
                own[draw(st.integers(0, len(own) - 1))] = (1, True)
                data = segment([*prompt, *(t for t, _ in own)], [*[0] * len(prompt), *(s for _, s in own)])
                items.append(
                    Item(
                        trajectory=trajectory,
                        segment=len(items),
                        ordinal=ordinal,
                        group=group,
                        advantage=float(trajectory),
                        data=data,
                    )
                )
            trajectory += 1
    return items


def visible(row: PackedRow) -> np.ndarray:
    """(T, T), True where a row may see another, from the trees alone."""
    mask = np.zeros((len(row), len(row)), dtype=np.bool_)
    for tree in row.trees:
        trunk = slice(tree.start, tree.stop)
        mask[trunk, trunk] = np.tri(tree.stop - tree.start, dtype=np.bool_)
        for branch in tree.branches:
            own = slice(branch.start, branch.stop)
            mask[own, trunk] = True
            mask[own, own] = branch.visible_UU
    return mask


@given(items=groups_of_segments(), limit=st.integers(8, 60))
def test_every_sampled_token_is_trained_once_and_sees_exactly_its_past(items, limit):
    seen: set[tuple[int, int]] = set()
    for row in plan(items, limit):
        mask = visible(row)
        for n in range(len(row.targets_N)):
            data, offset = items[row.segment_N[n]].data, int(row.offset_N[n])
            assert data.sampled_T[offset] and row.targets_N[n] == data.tokens_T[offset]
            past = np.flatnonzero(mask[row.predict_N[n]])
            in_order = past[np.argsort(row.positions_T[past])]
            assert row.positions_T[in_order].tolist() == list(range(offset))
            assert row.tokens_T[in_order].tolist() == data.tokens_T[:offset].tolist()
            assert (int(row.segment_N[n]), offset) not in seen
            seen.add((int(row.segment_N[n]), offset))
    assert len(seen) == sum(int(item.data.sampled_T.sum()) for item in items)


@given(items=groups_of_segments(), limit=st.integers(8, 60))
def test_rows_respect_their_limit_and_never_split_a_trajectory(items, limit):
    rows = plan(items, limit)
    where: dict[int, int] = {}
    for index, row in enumerate(rows):
        assert len(row) <= limit or len(row.trajectories_S) == 1
        for member in row.trajectories_S:
            assert where.setdefault(int(member), index) == index
        for n in range(len(row.targets_N)):
            item = items[row.segment_N[n]]
            assert row.trajectories_S[row.sequence_N[n]] == item.trajectory
            assert row.advantage_N[n] == item.advantage


@given(items=groups_of_segments())
@settings(max_examples=30)
def test_a_plan_is_deterministic(items):
    one, two = plan(items, 40), plan(items, 40)
    assert [r.tokens_T.tolist() for r in one] == [r.tokens_T.tolist() for r in two]


def test_a_shared_prompt_is_computed_once_and_the_last_token_not_at_all():
    made = batch([[trajectory(f"g0.{i}", [segment([7] * 20 + [i, 1], [0] * 20 + [1, 1])], 0.0) for i in range(4)]])
    (row,) = plan(sequences(made.groups, dict.fromkeys((f"g0.{i}" for i in range(4)), 1.0)), 100)
    assert len(row) == 20 + 4  # 20 shared, then the first sampled token of each; the second predicts nothing


def test_identical_siblings_are_computed_once_and_trained_each():
    made = batch([[trajectory(f"g0.{i}", [segment([5, 6, 7, 8], [0, 0, 1, 1])], 0.0) for i in range(3)]])
    (row,) = plan(sequences(made.groups, {"g0.0": 1.0, "g0.1": -1.0, "g0.2": 0.5}), 100)
    assert len(row) == 3 and len(row.targets_N) == 6
    assert sorted(set(row.advantage_N.tolist())) == [-1.0, 0.5, 1.0]


def test_what_siblings_sampled_alike_is_shared_below_the_prompt_too():
    prompt = [9] * 10
    tails = [[1, 2, 3, 4], [1, 2, 3, 5], [2, 2, 3, 4]]
    made = batch(
        [[trajectory(f"g0.{i}", [segment(prompt + t + [0], [0] * 10 + [1] * 5)], 0.0) for i, t in enumerate(tails)]]
    )
    (row,) = plan(sequences(made.groups, dict.fromkeys(["g0.0", "g0.1", "g0.2"], 1.0)), 100)
    assert len(row) == 10 + 5 + 4


def test_packing_saves_most_of_the_tokens_of_a_group():
    made = random_batch(groups=1, rewards=[1.0, 0.0] * 8, prompt=300, sampled=10)
    items = sequences(made.groups, dict.fromkeys((m.id for m in made.groups[0].members), 1.0))
    (row,) = plan(items, 4096)
    assert len(row) < sum(len(item.data) for item in items) / 8
