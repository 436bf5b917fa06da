"""Shapes of arrays. `tokens_T` has one entry per token of its segment."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]
Bools = npt.NDArray[np.bool_]

UNSAMPLED = -1
"""Version of a token that no engine sampled (prompt or observation)."""
