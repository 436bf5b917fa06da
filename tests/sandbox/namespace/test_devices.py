from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from muster.sandbox.namespace.devices import DeviceNodes
from muster.sandbox.namespace.isolation.bubblewrap import DEVICES

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes device nodes")


def modes(directory: Path) -> dict[str, int]:
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()}


def test_each_sandbox_has_nodes_of_its_own_as_new(tmp_path: Path) -> None:
    nodes = DeviceNodes(tmp_path / "devices")
    one, two = nodes.take(), nodes.take()
    assert one is not None
    assert two is not None
    assert one != two
    (one / "null").chmod(0)
    os.chown(one / "zero", 33, 33)
    assert modes(two) == dict.fromkeys(DEVICES, 0o666)
    nodes.give(one, after=None)
    assert nodes.take() == one
    assert modes(one) == dict.fromkeys(DEVICES, 0o666)
    assert (one / "zero").stat().st_uid == 0
    (two / "full").stat()
    with pytest.raises(OSError, match="No space left"), (two / "full").open("w") as full:
        full.write("x")
