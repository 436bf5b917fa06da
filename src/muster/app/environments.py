"""Sandboxes and their verifier, as configured: the one place that picks a backend.

    SandboxConfig ─► namespace │ docker ─► deadlines on every call ─► Pool ─► script │ function verifier

Law: built, used and closed in reverse order, whatever happened. Training, evaluation, audit and replay all start here.
"""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from muster import extras
from muster.errors import ConfigError
from muster.sandbox.config import DeadlineConfig, SandboxConfig
from muster.sandbox.deadlines import BoundedBackend
from muster.sandbox.namespace.backend import NamespaceBackend
from muster.sandbox.pool.pool import Pool
from muster.sandbox.port import SandboxBackend
from muster.verifier.config import VerifierConfig
from muster.verifier.function import FunctionVerifier, load_score
from muster.verifier.port import Verifier
from muster.verifier.script import ScriptVerifier


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """Environment of attempts: the sandboxes that agents act in, and what grades them."""

    pool: Pool
    verifier: Verifier


@contextlib.asynccontextmanager
async def environment(sandbox: SandboxConfig, verifier: VerifierConfig, *, label: str) -> AsyncGenerator[Environment]:
    """`label` names the run in directories, cgroups and containers. Raises `ConfigError`, `SandboxStartError`.

    Example: `async with environment(config.sandbox, config.verifier, label="audit") as here: here.pool.lease(...)`
    """
    score = load_score(verifier.score) if verifier.score else None
    backend = _backend(sandbox, label)
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(backend.close)
        pool = Pool(BoundedBackend(backend, DeadlineConfig()), sandbox)
        stack.push_async_callback(pool.close)
        chosen = FunctionVerifier(pool, verifier, score) if score else ScriptVerifier(pool, verifier)
        yield Environment(pool=pool, verifier=chosen)


def _backend(config: SandboxConfig, label: str) -> SandboxBackend:
    if config.backend == "namespace":
        return NamespaceBackend(config, run=label)
    if importlib.util.find_spec("docker") is None:
        raise ConfigError(f"sandbox.backend = 'docker' needs the docker SDK: {extras.install('docker')}")
    from muster.sandbox.docker.backend import DockerBackend  # an extra: nobody else pays for its import

    return DockerBackend(config, run=label)
