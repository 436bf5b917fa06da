"""Archives of an agent: what is unpacked of them, and what a verifier of its own image sees."""

from __future__ import annotations

import io
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from factories import make_task
from muster import clock
from muster.sandbox.config import SandboxConfig
from muster.sandbox.namespace.backend import NamespaceBackend
from muster.sandbox.pool.pool import Pool
from muster.types import Cause, Collect, ImageSpec, Limits, Outcome, VerifierSpec
from muster.verifier.artifacts import unpack
from muster.verifier.config import VerifierConfig
from muster.verifier.script import ScriptVerifier


def archive(directory: Path, *members: tuple[str, bytes, str]) -> None:
    """(kind, type, name or target)"""
    with tarfile.open(directory / "artifacts.tar", "w") as tar:
        for name, kind, text in members:
            member = tarfile.TarInfo(name)
            member.type = kind
            if kind in (tarfile.SYMTYPE, tarfile.LNKTYPE):
                member.linkname = text
            member.size = len(text) if kind == tarfile.REGTYPE else 0
            tar.addfile(member, io.BytesIO(text.encode()))


def unpacked(tmp_path: Path, paths: tuple[str, ...]) -> dict[str, str]:
    """Target of each mount -> what lies there, if it is a file."""
    mounts = unpack(tmp_path, tmp_path / "out", paths)
    return {m.target: m.source.read_text() if m.source.is_file() else "directory" for m in mounts}


def test_files_and_directories_come_out_at_their_paths(tmp_path: Path) -> None:
    archive(tmp_path, ("app", tarfile.DIRTYPE, ""), ("app/a", tarfile.REGTYPE, "one"), ("b", tarfile.REGTYPE, "two"))
    assert unpacked(tmp_path, ("/app", "/b", "/missing")) == {"/app": "directory", "/b": "two"}
    assert (tmp_path / "out/app/a").read_text() == "one"


def test_links_devices_and_paths_that_lead_out_stay_out(tmp_path: Path) -> None:
    archive(
        tmp_path,
        ("link", tarfile.SYMTYPE, "/etc/passwd"),
        ("hard", tarfile.LNKTYPE, "etc/passwd"),
        ("fifo", tarfile.FIFOTYPE, ""),
        ("node", tarfile.CHRTYPE, ""),
        ("../outside", tarfile.REGTYPE, "no"),
        ("/absolute", tarfile.REGTYPE, "inside"),
        ("good", tarfile.REGTYPE, "yes"),
    )
    assert unpacked(tmp_path, ("/link", "/hard", "/fifo", "/node", "/good")) == {"/good": "yes"}
    assert not (tmp_path / "outside").exists()
    assert {p.name for p in (tmp_path / "out").iterdir()} == {"absolute", "good"}


def test_no_archive_a_link_in_its_place_and_garbage_give_nothing(tmp_path: Path) -> None:
    assert unpack(tmp_path, tmp_path / "out", ("/app",)) == ()
    (tmp_path / "artifacts.tar").symlink_to("/etc/passwd")
    assert unpack(tmp_path, tmp_path / "out2", ("/app",)) == ()
    (tmp_path / "artifacts.tar").unlink()
    (tmp_path / "artifacts.tar").write_bytes(b"no tar at all" * 100)
    assert unpack(tmp_path, tmp_path / "out3", ("/app",)) == ()


TEST = """
cat /app/out/answer > /logs/verifier/seen 2>/dev/null
if [ -e /app/secret ]; then exit 1; fi  # only artifacts may be here
if [ "$(cat /app/out/answer)" = "42 packed" ] && ! touch /app/out/x 2>/dev/null && [ "$OWN" = yes ]; then
  echo 1 > /logs/verifier/reward.txt
else
  echo 0 > /logs/verifier/reward.txt
fi
"""


@pytest.mark.sandbox
@pytest.mark.parametrize(
    ("agent", "cause"),
    [
        ("mkdir out; echo 42 > out/raw; touch secret", Cause.VERIFIER_PASSED),
        ("mkdir out; echo 41 > out/raw", Cause.VERIFIER_FAILED),
        ("true", Cause.VERIFIER_FAILED),
        ("mkdir out; ln -s /etc/hostname out/answer", Cause.VERIFIER_FAILED),
    ],
)
def test_a_separate_environment_sees_the_artifacts_alone(tmp_path: Path, agent: str, cause: Cause) -> None:
    tests = tmp_path / "tests"
    tests.mkdir()
    (tests / "test.sh").write_text(TEST)
    spec = VerifierSpec(
        tests=tests,
        timeout_s=20,
        image=ImageSpec(workdir="/app", env={"OWN": "yes"}),
        artifacts=("/app/out", "/app/none"),
        collect=(Collect(command="[ -f /app/out/raw ] && sed 's/$/ packed/' /app/out/raw > /app/out/answer"),),
    )

    async def main() -> Outcome:
        config = SandboxConfig(state_dir=tmp_path / "state")
        backend = NamespaceBackend(config)
        pool = Pool(backend, config)
        try:
            pristine = await backend.prepare(ImageSpec(workdir="/app"))
            sandbox = await backend.fork(pristine, limits=Limits(), label="agent")
            await sandbox.run(agent, timeout_s=5)
            final = await sandbox.snapshot()
            verifier = ScriptVerifier(pool, VerifierConfig())
            outcome = await verifier.grade(replace(make_task(), verifier=spec), final, pristine)
            await pool.close()
            return outcome
        finally:
            await backend.close()

    assert clock.run(main()).cause is cause
