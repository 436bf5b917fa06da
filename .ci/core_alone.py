"""For .ci/wheel, where the core is alone: each module of it can be imported, package data is there, and a small run is
written down for `muster report`.

python core_alone.py CHECKOUT/tests PLACE
"""

import importlib
import pkgutil
import sys
from pathlib import Path

import muster
import muster_suites

# what needs an extra, or is part of an adapter that does; all the rest is the core
BEYOND = (
    "muster.app.run", "muster.engine.embedded", "muster.engine.vllm", "muster.lab.bench", "muster.model",
    "muster.observe.render.timeline", "muster.sandbox.docker", "muster.trainer",
)  # fmt: skip
DATA = {
    "py.typed": 1, "observe/render/*.j2": 1, "lab/emulated/presets.toml": 1, "lab/bench/ttb/ttb.toml": 1,
    "lab/bench/ttb/real/ttb_real.toml": 1, "verifier/audit/exploits/*.sh": 60,
}  # fmt: skip


def main(tests: Path, place: Path) -> None:
    home = Path(muster.__file__).parent
    assert not home.is_relative_to(tests.parent), f"{home} is the checkout's, not the wheel's"
    for package in (muster, muster_suites):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.startswith(BEYOND):
                importlib.import_module(module.name)
    for pattern, least in DATA.items():
        assert len(list(home.glob(pattern))) >= least, f"the wheel lacks {pattern}"
    assert (Path(muster_suites.__file__).parent / "py.typed").is_file()

    sys.path.append(str(tests))
    from observe.synthetic import write_run

    place.mkdir()
    write_run(place / "journal.db").journal.close()


main(Path(sys.argv[1]), Path(sys.argv[2]))
