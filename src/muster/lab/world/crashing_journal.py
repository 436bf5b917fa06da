"""A journal in memory that crashes with its process, between any two commits.

Law: what was committed survives, nothing after it does. Death is a copy of the record at that instant; what the dying
process still writes goes into the original, which nobody reads again.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager

from muster.journal import Journal


class CrashingJournal(Journal):
    """Journal in memory that is killed with its process.

    Example: `journal.crash_after(40, main.cancel)` kills at the 40th commit from now; then read `journal.survivor`.
    """

    _left = 0
    _kill: Callable[[], object] | None = None
    survivor: CrashingJournal | None = None

    def crash_after(self, commits: int, kill: Callable[[], object]) -> None:
        """Call `kill()` after `commits` more of them; `survivor` is what remains."""
        self._left, self._kill = commits, kill

    def cancel_crash(self) -> None:
        """Let it live: the process ended before its time came."""
        self._kill = None

    @contextmanager
    def transaction(self) -> Generator[None]:
        with super().transaction():
            yield
        if self._depth == 0 and self._kill is not None:
            self._left -= 1
            if self._left <= 0:
                kill, self._kill = self._kill, None
                self.survivor = self.copied()
                kill()
