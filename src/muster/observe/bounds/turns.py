"""A cohort turn by turn: what an engine's physics need to know of it, as flat arrays.

Law: pure. Work is counted under perfect prefix reuse: a token is computed once, unless no cache could hold it. What one
trajectory computes and others then share is counted once for all of them, and marked, because nobody knows for whom.

    groups of siblings of (context, reply, command seconds) ─► Turns ─► engine_bounds.EngineWork
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """Every turn of a cohort, one entry each, a trajectory's in order.

    trajectory_T: its index in the cohort
    context_T: tokens of the prompt, history included
    reply_T: tokens sampled
    fresh_T: tokens of the prompt that no cache can hold; at least 1, the last
    shared_T: of these, how many another trajectory might compute in its stead
    own_T: tokens of the prompt that no other trajectory has
    tool_s_T: seconds of the command that follows
    """

    trajectory_T: npt.NDArray[np.int64]
    context_T: Array
    reply_T: Array
    fresh_T: Array
    shared_T: Array
    own_T: Array
    tool_s_T: Array

    @classmethod
    def of(cls, groups: Sequence[Sequence[Sequence[tuple[int, int, float]]]], *, common_tokens: int = 0) -> Turns:
        """groups: [group][sibling][turn] of (context, reply, command seconds). The siblings' first prompts are equal,
        the first `common_tokens` of them in all groups: each is computed once.

        A context that shrinks begins anew (compaction); how much of it a cache holds is then unknown, so nothing of it
        is counted as fresh but the last token.

        Example: `Turns.of([[[(1000, 200, 1.5), (1700, 90, 0.0)]]])`
        """
        rows: list[tuple[float, ...]] = []
        index, seen = 0, 0
        for group in groups:
            known = seen  # of the next sibling's first prompt
            for turns in group:
                prompt = turns[0][0] if turns else 0
                before, shared = known, prompt if len(group) > 1 else min(prompt, common_tokens)
                for context, reply, tool_s in turns:
                    fresh = max(1, context - before)
                    stand_in = max(0, min(fresh - 1, shared - before))
                    rows.append((index, context, reply, fresh, stand_in, max(0, context - prompt), tool_s))
                    before, shared = context + max(0, reply - 1), 0  # the last token said is not computed
                known = max(known, prompt)
                index += 1
            seen = common_tokens if group else seen
        columns = np.array(rows, np.float64).reshape(-1, 7).T
        return cls(
            trajectory_T=columns[0].astype(np.int64),
            context_T=columns[1],
            reply_T=columns[2],
            fresh_T=columns[3],
            shared_T=columns[4],
            own_T=columns[5],
            tool_s_T=columns[6],
        )

    def among(self, members_N: npt.NDArray[np.bool_]) -> Turns:
        """Those of some trajectories, without what others might compute in their stead."""
        mine_T = members_N[self.trajectory_T]
        index_N = np.cumsum(members_N) - 1
        return Turns(
            trajectory_T=index_N[self.trajectory_T[mine_T]],
            context_T=self.context_T[mine_T],
            reply_T=self.reply_T[mine_T],
            fresh_T=(self.fresh_T - self.shared_T)[mine_T],
            shared_T=np.zeros(int(mine_T.sum())),
            own_T=self.own_T[mine_T],
            tool_s_T=self.tool_s_T[mine_T],
        )
