from __future__ import annotations

import pytest

from app.publications import in_folder, served


@pytest.fixture(params=["checkpoint", "direct"])
def exporter_of(request, tmp_path):  # type: ignore[no-untyped-def]
    """Makes exporters of both ways that bytes travel."""
    return lambda **settings: (in_folder if request.param == "checkpoint" else served)(tmp_path / "there", **settings)
