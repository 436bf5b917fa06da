"""The drift odometer: how far apart two versions of the policy are, without another forward pass.

    StepRow k ─measured─► rms of version k -> k + 1 ─moved─► Odometer ─► distance(older, newer)

After each step the trainer scores a sample of the tokens it trained on again; `drift_m2` is the mean squared log-ratio
between the two versions on it. Its root is a distance: over one sample of tokens, root-mean-square log-ratios obey the
triangle inequality (Minkowski's, in L2), as KL does not. So the sum over the steps between two versions is an upper
estimate of what a direct comparison would find, exact when every step moves the same way; an estimate, because each
step is measured on tokens of its own. Those were trained and move further than others as a rule: three steps on the
starter model read 0.84, 0.03 and 0.12 nats, and moved the tokens of the batch after them by 0.12, 0.04 and 0.04. The
odometer keeps out what may be far; how far it is, the trainer measures.

Law: pure. What was not measured is not taken for small: such a step counts as the largest that was seen. The record of
the steps is all there is, so a resumed run reads the same distances as one that was never interrupted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from muster.journal import StepRow


class Odometer:
    """Distances between versions, in nats (root-mean-square log-ratio per token).

    Example: `odometer.moved(1, 0.02); odometer.moved(2, 0.03); odometer.distance(0, 2)` is 0.05.
    """

    def __init__(self) -> None:
        self._measured = [0.0]  # sum of the measured steps from version 0 to each version
        self._unknown = [0]  # steps without a measurement, likewise
        self._largest = 0.0

    @property
    def version(self) -> int:
        """The newest version that it knows of."""
        return len(self._measured) - 1

    @property
    def largest(self) -> float:
        """The longest step that was measured; 0 before the first."""
        return self._largest

    def moved(self, version: int, rms: float | None) -> None:
        """The step that made `version` moved the policy by `rms`; None: nobody measured it. Each version once."""
        known = len(self._measured) - 1
        assert version > known, f"version {version} comes after {known}"
        assert rms is None or (math.isfinite(rms) and rms >= 0), rms
        for _ in range(version - known - 1):
            self._extend(None)
        self._extend(rms)

    def distance(self, older: int, newer: int) -> float:
        """Upper estimate of the distance between two versions; steps that were not made yet count as unknown."""
        older, newer = sorted((older, newer))
        assert older >= 0, older
        last = len(self._measured) - 1
        measured = self._measured[min(newer, last)] - self._measured[min(older, last)]
        return max(0.0, measured) + self.unknown(older, newer) * self._largest

    def unknown(self, older: int, newer: int) -> int:
        """Steps between two versions that nobody measured: the part of their distance that is assumed."""
        older, newer = sorted((older, newer))
        last = len(self._unknown) - 1
        made = self._unknown[min(newer, last)] - self._unknown[min(older, last)]
        return made + max(0, newer - max(older, last))

    def _extend(self, rms: float | None) -> None:
        self._measured.append(self._measured[-1] + (rms or 0.0))
        self._unknown.append(self._unknown[-1] + (rms is None))
        self._largest = max(self._largest, rms or 0.0)


def measured(step: StepRow) -> float | None:
    """Drift of the policy in a step (root-mean-square log-ratio, nats); None if it was not measured, or to no end.

    A step without an update moved nothing, and needs no sample to say so.
    """
    if step.metrics.get("updates") == 0:
        return 0.0
    m2 = step.metrics.get("drift_m2")
    return math.sqrt(m2) if m2 is not None and math.isfinite(m2) else None


def rebuilt(steps: Iterable[StepRow]) -> Odometer:
    """The odometer after these steps, given in order: what a resumed run starts with."""
    odometer = Odometer()
    for step in steps:
        odometer.moved(step.step + 1, measured(step))
    return odometer
