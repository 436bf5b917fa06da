"""Resident sessions of one replica: the contexts that its cache is promised to. Pure.

    starts ─► busy ─rests─► idle, the longest idle first ─► starts …     forget: ended, moved, or evicted
                              └─ make_room: whoever was idle for `hold_s` gives way, the longest idle before others

Law: the promises stay within `limit_tokens`; who is idle gives way before they exceed it, and only a session that is
larger than the limit may exceed it, alone. The order of giving way is that of the server's own cache, which forgets
what was used least recently: so what is promised is what is really there.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field


@dataclass(slots=True)
class Residents:
    """A session is here from its first turn until its end, unless it gave way. Sizes are tokens.

    Example: `r = Residents(limit_tokens=1000); r.make_room(600, now=0.0, hold_s=10.0)` gives True
    """

    limit_tokens: int
    used_tokens: int = field(init=False, default=0)
    _busy: dict[str, int] = field(init=False, default_factory=dict[str, int])
    _idle: OrderedDict[str, tuple[int, float]] = field(
        init=False, default_factory=OrderedDict[str, tuple[int, float]]
    )  # session -> size, idle since

    def __contains__(self, session: str) -> bool:
        return session in self._busy or session in self._idle

    @property
    def busy(self) -> int:
        return len(self._busy)

    def starts(self, session: str, tokens: int) -> None:
        """Begin a session's turn, at whose end it has `tokens`. Whoever is idle gives way to what is too much."""
        assert session not in self._busy, "a session has one turn at a time"
        self.forget(session)
        self._busy[session] = tokens
        self.used_tokens += tokens
        self._trim()

    def rests(self, session: str, tokens: int, now: float) -> None:
        """End a session's turn; it will need `tokens` at its next one."""
        self.used_tokens += tokens - self._busy.pop(session)
        self._idle[session] = (tokens, now)
        self._trim()

    def forget(self, session: str) -> None:
        """Forget a session that needs nothing here any more. Unknown ones are ignored."""
        size = self._busy.pop(session, None)
        if size is None:
            size, _ = self._idle.pop(session, (0, 0.0))
        self.used_tokens -= size

    def make_room(self, tokens: int, *, now: float, hold_s: float) -> bool:
        """Whether `tokens` more may be promised, now that whoever was idle for `hold_s` has given way."""
        while self._idle and self.used_tokens + tokens > self.limit_tokens:
            longest, (_, since) = next(iter(self._idle.items()))
            if since + hold_s > now:
                break
            self.forget(longest)
        return self.used_tokens + tokens <= self.limit_tokens or not (self._busy or self._idle)

    def gives_way_at(self, hold_s: float) -> float | None:
        """Time at which the longest idle will give way to others; None: nobody is idle."""
        for _, since in self._idle.values():
            return since + hold_s
        return None

    def _trim(self) -> None:
        while self.used_tokens > self.limit_tokens and self._idle:
            self.forget(next(iter(self._idle)))
