"""Proofs of the weights that an SGLang server holds, and so of the tokens that they sampled.

    updating ─► unknown ─► doubt? ─► committed ─► unproven ─► resumed ─► proven
                   ▲ failed, late       │ another version is committed first
                   └─ until one succeeds └─► withdrawn: its tokens never leave

Law: pure. A server's checksum is over its own layout, so it says nothing by itself; two of them say whether an update
changed something, and whether a version that comes back is the same.
"""

from __future__ import annotations

import numpy as np

from muster.types import Ints, Version


class Proofs:
    """Proofs of one server's weights, since it was connected.

    Example:
        proofs.updating(version)
        ...  # the server says that it has updated
        if proofs.doubt(version, checksum) is None:
            proofs.committed(version)
    """

    def __init__(self) -> None:
        self.unknown: str | None = None
        self._checksums: dict[str, str] = {}  # by digest
        self._unproven: int | None = None
        self._withdrawn: set[int] = set()

    def updating(self, version: Version) -> None:
        """From now on nobody knows what the server holds."""
        self.unknown = f"an update to version {version.number} has not succeeded"

    def doubt(self, version: Version, checksum: str) -> str | None:
        """Reason to doubt that a server with this checksum holds `version`; None: nothing speaks against it."""
        known = self._checksums.get(version.digest)
        if known is not None:
            return None if known == checksum else f"other bytes than when it served version {version.number} before"
        if checksum in self._checksums.values():
            return f"the update to version {version.number} changed nothing"
        self._checksums[version.digest] = checksum
        return None

    def committed(self, version: Version) -> None:
        """The server holds `version`, as far as it can be told. What was committed in the same pause is withdrawn."""
        if self._unproven is not None and self._unproven != version.number:
            self._withdrawn.add(self._unproven)
        self._unproven, self.unknown = version.number, None
        self._withdrawn.discard(version.number)

    def resumed(self) -> None:
        """Take the weights as proven: whoever committed has found that they are right."""
        self._unproven = None

    def keeps_back(self, versions_T: Ints) -> bool:
        """Some of these tokens are of weights that may still be withdrawn."""
        return self._unproven is not None and self._unproven in versions_T

    def withdrawn(self, versions_T: Ints) -> list[int]:
        """Numbers of those of these versions that were withdrawn."""
        return [number for number in np.unique(versions_T).tolist() if number in self._withdrawn]
