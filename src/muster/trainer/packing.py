"""Packing: the tokens to compute once, the row they go in, and who may see whom.

Law: pure. A token whose whole past is shared is computed once. Siblings share their prompt, so a group is a prefix
tree; a tree is laid out as a trunk (what all share) and branches (bundles of continuations, each again a small
tree). A trajectory is never split between rows, so that what belongs to a sequence is known within a row. Tokens
after the last sampled one predict nothing and are left out.

    segments ─► one prefix tree per group ─► rows of at most `max_tokens_per_row`

    a row:   |════ trunk ════|─ branch ─|─ branch ─| |════ trunk ════|─ branch ─| …
    sees:     causal          trunk + ancestors inside the branch

Tokens are shared inside a branch and with its trunk; between branches a shared continuation is computed again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from muster.types import Bools, Floats, Ints, ReadyGroup, Segment

BRANCH_TOKENS = 192
"""A branch is filled with continuations up to this many tokens. Larger branches waste attention on pairs that may
not see each other; smaller ones make many small matrix products."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One segment of one trajectory on its way into a row.

    trajectory: index shared by all segments of a trajectory; segment: index of this one among all given.
    """

    trajectory: int
    segment: int
    ordinal: int  # of the segment within its trajectory
    group: int
    advantage: float
    data: Segment


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """Rows [start, stop). visible_UU[i, j]: its i-th token may see its j-th. All of them see the whole trunk."""

    start: int
    stop: int
    visible_UU: Bools


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenTree:
    """A trunk in rows [start, stop), causal within itself, and the branches that continue it."""

    start: int
    stop: int
    branches: tuple[Branch, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedRow:
    """One forward and backward pass. T tokens; N trained tokens, each predicted at a row of its own past.

    predict_N   where in the row the hidden state is that predicts the token
    segment_N, offset_N   which segment the token came from (index as given) and where in it
    sequence_N  which trajectory (0..S-1 within this row)
    trajectories_S  index as given
    """

    tokens_T: Ints
    positions_T: Ints
    trees: tuple[TokenTree, ...]
    predict_N: Ints
    targets_N: Ints
    behaviour_N: Floats
    versions_N: Ints
    advantage_N: Floats
    segment_N: Ints
    offset_N: Ints
    sequence_N: Ints
    trajectories_S: Ints

    def __len__(self) -> int:
        return len(self.tokens_T)


def sequences(groups: Sequence[ReadyGroup], advantages: Mapping[str, float]) -> list[Item]:
    """Every segment of the groups that holds a sampled token, with its trajectory's advantage."""
    found: list[Item] = []
    trajectory = 0
    for group_index, group in enumerate(groups):
        for member in group.members:
            for ordinal, data in enumerate(s for s in member.segments if s.sampled_T.any()):
                assert not data.sampled_T[0], "a sampled token has a past"
                found.append(
                    Item(
                        trajectory=trajectory,
                        segment=len(found),
                        ordinal=ordinal,
                        group=group_index,
                        advantage=advantages[member.id],
                        data=data,
                    )
                )
            trajectory += 1
    return found


def plan(items: Sequence[Item], max_tokens_per_row: int) -> list[PackedRow]:
    """Rows that hold every item exactly once, group by group.

    A row is longer than `max_tokens_per_row` only when a single trajectory is.
    """
    by_group: dict[int, dict[int, list[Item]]] = {}
    for item in items:
        by_group.setdefault(item.group, {}).setdefault(item.trajectory, []).append(item)
    parts: list[_Part] = []
    for members in by_group.values():
        in_order = sorted(members.values(), key=lambda member: member[0].data.tokens_T.tolist())
        parts.extend(_split(in_order, max_tokens_per_row))
    return [_join(bin_) for bin_ in _first_fit(parts, max_tokens_per_row)]


@dataclass(slots=True, kw_only=True)
class _Part:
    """Some members of one group, laid out from row 0; `paths` gives each item's rows, one per token."""

    tokens: list[int]
    positions: list[int]
    trees: list[TokenTree]
    paths: list[tuple[Item, Ints]]


def _split(members: list[list[Item]], limit: int) -> list[_Part]:
    """Lay out a group whole, or halve it until every part fits. Neighbours in order share most."""
    part = _lay_out([item for member in members for item in member])
    if len(part.tokens) <= limit or len(members) == 1:
        return [part]
    half = len(members) // 2
    return [*_split(members[:half], limit), *_split(members[half:], limit)]


def _lay_out(items: list[Item]) -> _Part:
    """One tree for the first segments of all members, one for the second ones, and so on."""
    part = _Part(tokens=[], positions=[], trees=[], paths=[])
    for ordinal in sorted({item.ordinal for item in items}):
        together = [item for item in items if item.ordinal == ordinal]
        _grow_tree(part, sorted(together, key=lambda item: _past(item).tolist()))
    return part


def _grow_tree(part: _Part, items: list[Item]) -> None:
    """Append a trunk and its branches. `items` are in lexicographic order, so that sharers are neighbours."""
    pasts = [_past(item) for item in items]
    depth = _common(pasts[0], pasts[-1])  # in lexicographic order the ends differ first
    start = len(part.tokens)
    part.tokens.extend(pasts[0][:depth].tolist())
    part.positions.extend(range(depth))
    trunk = np.arange(start, start + depth, dtype=np.int32)
    branches: list[Branch] = []
    bundle = _Bundle(part=part, depth=depth)
    for item, past in zip(items, pasts, strict=True):
        if bundle.cost(past) > BRANCH_TOKENS and bundle.paths:
            branches.extend(bundle.close())
            bundle = _Bundle(part=part, depth=depth)
        part.paths.append((item, np.concatenate((trunk, bundle.add(past)))))
    branches.extend(bundle.close())
    part.trees.append(TokenTree(start=start, stop=start + depth, branches=tuple(branches)))


class _Bundle:
    """A branch under construction: the prefix tree of the continuations added so far, in depth-first order."""

    def __init__(self, *, part: _Part, depth: int) -> None:
        self.part = part
        self.depth = depth
        self.start = len(part.tokens)
        self.paths: list[Ints] = []
        self.last = np.empty(0, dtype=np.int32)

    def cost(self, past: Ints) -> int:
        """Tokens of the branch if `past` were added."""
        return len(self.part.tokens) - self.start + len(past) - self.depth - self._shared(past)

    def add(self, past: Ints) -> Ints:
        """Rows of the continuation of `past`: those it shares with the one before it, then new ones."""
        own, shared = past[self.depth :], self._shared(past)
        first = len(self.part.tokens)
        self.part.tokens.extend(own[shared:].tolist())
        self.part.positions.extend(range(self.depth + shared, len(past)))
        kept = self.paths[-1][:shared] if self.paths else np.empty(0, dtype=np.int32)
        path = np.concatenate((kept, np.arange(first, len(self.part.tokens), dtype=np.int32)))
        self.paths.append(path)
        self.last = own
        return path

    def close(self) -> list[Branch]:
        stop = len(self.part.tokens)
        if stop == self.start:
            return []
        visible_UU = np.zeros((stop - self.start, stop - self.start), dtype=np.bool_)
        for path in self.paths:
            local = path - self.start
            visible_UU[np.ix_(local, local)] |= np.tri(len(local), dtype=np.bool_)
        return [Branch(start=self.start, stop=stop, visible_UU=visible_UU)]

    def _shared(self, past: Ints) -> int:
        return _common(past[self.depth :], self.last) if self.paths else 0


def _past(item: Item) -> Ints:
    """The tokens that predict something: all before the last sampled one."""
    return item.data.tokens_T[: int(np.flatnonzero(item.data.sampled_T)[-1])]


def _common(a: Ints, b: Ints) -> int:
    """Length of the longest common prefix."""
    length = min(len(a), len(b))
    different = np.flatnonzero(a[:length] != b[:length])
    return int(different[0]) if len(different) else length


def _first_fit(parts: list[_Part], limit: int) -> list[list[_Part]]:
    bins: list[list[_Part]] = []
    room: list[int] = []
    for part in parts:
        size = len(part.tokens)
        index = next((i for i, free in enumerate(room) if free >= size), None)
        if index is None:
            bins.append([part])
            room.append(limit - size)
        else:
            bins[index].append(part)
            room[index] -= size
    return bins


def _join(parts: list[_Part]) -> PackedRow:
    """Put parts one behind the other and list what is trained."""
    trees: list[TokenTree] = []
    placed: list[tuple[Item, Ints]] = []
    offset = 0
    for part in parts:
        trees.extend(_moved(tree, offset) for tree in part.trees)
        placed.extend((item, path + offset) for item, path in part.paths)
        offset += len(part.tokens)
    sampled = [np.flatnonzero(item.data.sampled_T) for item, _ in placed]
    trajectories_S, sequence_I = np.unique([item.trajectory for item, _ in placed], return_inverse=True)
    counts = [len(s) for s in sampled]

    def gather(values: list[Floats] | list[Ints]) -> np.ndarray:
        return np.concatenate(values)

    return PackedRow(
        tokens_T=np.concatenate([np.asarray(p.tokens, dtype=np.int32) for p in parts]),
        positions_T=np.concatenate([np.asarray(p.positions, dtype=np.int32) for p in parts]),
        trees=tuple(trees),
        predict_N=gather([path[s - 1] for (_, path), s in zip(placed, sampled, strict=True)]),
        targets_N=gather([item.data.tokens_T[s] for (item, _), s in zip(placed, sampled, strict=True)]),
        behaviour_N=gather([item.data.logprobs_T[s] for (item, _), s in zip(placed, sampled, strict=True)]),
        versions_N=gather([item.data.versions_T[s] for (item, _), s in zip(placed, sampled, strict=True)]),
        advantage_N=np.repeat(np.asarray([i.advantage for i, _ in placed], dtype=np.float32), counts),
        segment_N=np.repeat(np.asarray([i.segment for i, _ in placed], dtype=np.int32), counts),
        offset_N=np.concatenate(sampled).astype(np.int32),
        sequence_N=np.repeat(sequence_I.astype(np.int32), counts),
        trajectories_S=trajectories_S.astype(np.int32),
    )


def _moved(tree: TokenTree, offset: int) -> TokenTree:
    branches = tuple(
        Branch(start=b.start + offset, stop=b.stop + offset, visible_UU=b.visible_UU) for b in tree.branches
    )
    return TokenTree(start=tree.start + offset, stop=tree.stop + offset, branches=branches)
