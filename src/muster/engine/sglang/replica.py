"""A replica behind an SGLang server. The API was read from release 0.5.23.

The release needs a GPU and does not run here: this adapter is tested against a double of the server (tests/engine/
sglang_double.py) that answers and refuses as the released source does. On a real one `connect` asks what it relies on.

    generate ──► gate ──► /generate ──► kept back while it holds tokens of unproven weights ──► Completion
    pause        closes the gate
      hold       /pause_generation in_place: requests stay where they are
      finish     until ours have ended          abort   /abort_request for all, until they have ended
    commit       recompute, flush: /pause_generation retract, then the cache is emptied with the update
                 /update_weights_from_disk of what `stage` laid ready ─► label, path and checksum are asked for
    score        a paused server computes nothing: it runs for as long as the score takes
    resume       /continue_generation, opens the gate

Law: after an update that failed nobody knows what a server holds (its roll-back reads the new path once more), so this
replica answers nothing until a commit succeeds. A server offers no digest: `commit` proves that what it loaded is the
file that was published, that its own checksum changed with it, and that one version never has two; the rest is for the
publisher's canary. `commit` therefore returns the digest of that file.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from muster import clock
from muster.engine.http.endpoint import Endpoint
from muster.engine.port import CachePolicy, EngineStatistics, InFlight, Pause, Scores, Staged
from muster.engine.sglang import wire
from muster.engine.sglang.proofs import Proofs
from muster.engine.sglang.staging import Staging
from muster.engine.sglang.traffic import Traffic
from muster.errors import EngineError
from muster.transport.receive import Receiver
from muster.types import Completion, Ints, Publication, Sampling, Session, Version

_ABORT_S = 5.0
_ABORT_AGAIN_S = 0.5
_PROBED = range(32)
_OVERLAP = (
    "SGLang labels the tokens of a step that was under way with the new version, though the old weights sampled them; "
    'set engine.overlap = false, or publish.cache = "recompute"'
)


class SglangReplica:
    """Implements `engine.port.Replica`. Use as an async context manager: entering connects.

    Example:
        async with SglangReplica("replica-0", url, version=v0, receiver=Receiver(label="run-replica-0")) as replica:
            completion = await replica.generate(tokens, Sampling(max_tokens=16), Session(id="t1"))
    """

    def __init__(
        self,
        name: str,
        url: str,
        token: str | None = None,
        *,
        version: Version,
        receiver: Receiver,
        overlap: bool = True,
        session_header: str = "X-SMG-Routing-Key",
        checksums: bool = True,
        staging: Path | None = None,
        request_timeout_s: float = 600.0,
        control_timeout_s: float = 60.0,
    ) -> None:
        """version: of the weights that the server was started with.

        overlap: the server schedules a step while the one before runs. session_header: by which a router in front of
        servers keeps a session in its place. checksums: ask for one after each commit. staging: a folder that the
        server reads under the same path; a temporary one of this machine by default.
        """
        self.name = name
        self._server = Endpoint(name, url, token, timeout_s=control_timeout_s)
        self._request_timeout_s = request_timeout_s
        self._version = version
        self._overlap, self._session_header, self._ask_checksums = overlap, session_header, checksums
        self._staging, self._proofs, self._traffic = Staging(receiver, staging), Proofs(), Traffic()
        self._control = asyncio.Lock()  # of pause, commit, resume, and a score in between
        self._pause: Pause | None = None
        self._in_flight = InFlight.HOLD
        self._salts = f"{uuid.uuid4().hex}-"  # not those of an earlier run on the same server
        self._salt = 0

    # --- life -----------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        try:
            await self.connect()
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close()

    async def _close(self) -> None:
        await self._traffic.close()
        await self._server.close()
        self._staging.close()

    def mark_dead(self, reason: str) -> None:
        """Fail all calls from now on, for `reason`: whoever runs the server saw it end."""
        self._server.mark_dead(reason)

    async def connect(self) -> None:
        """Check what this adapter relies on. Raises `EngineError` naming what the server must be started with."""
        info = await self._server.call("GET", "/server_info")
        if not self._overlap and not info.get("disable_overlap_schedule"):
            raise EngineError(f"{self.name}: engine.overlap is false: start it with --disable-overlap-schedule")
        await self._server.call("POST", "/continue_generation", {})  # whoever used it before may have ended in a pause
        label = await self._label()
        if label == wire.UNLABELLED:
            body = {"new_version": wire.label_of(self._version), "abort_all_requests": False}
            await self._server.call("POST", "/update_weight_version", body)
        else:
            self._version = self._server.parsed(lambda: wire.known(label))
        await self._check_temperature()
        await self._compare_checksum(self._version)

    async def _check_temperature(self) -> None:
        """Log-probabilities must be after temperature: at half of it, differences between them are doubled."""
        halves, ones = [
            self._server.parsed(lambda answer=answer: wire.probe_from(answer))
            for answer in [
                await self._server.call(
                    "POST", "/generate", wire.probe_body(_PROBED, temperature, rid=uuid.uuid4().hex)
                )
                for temperature in (0.5, 1.0)
            ]
        ]
        spread, doubled = ones - ones.mean(), halves - halves.mean()
        if np.abs(doubled - 2 * spread).sum() > np.abs(doubled - spread).sum():
            raise EngineError(
                f"{self.name}: its log-probabilities are before temperature; start it without "
                "SGLANG_RETURN_ORIGINAL_LOGPROB"
            )

    # --- requests -------------------------------------------------------------------------------------

    async def generate(self, tokens: Ints, sampling: Sampling, session: Session) -> Completion:
        """Generate; tokens of weights that are not proven yet are handed out after `resume`, or never."""
        self._refuse_empty(tokens)
        arrived_s, retractions = self._traffic.paused_s, self._traffic.retractions
        await self._served()
        rid = uuid.uuid4().hex
        body = wire.generate_body(tokens, sampling, session, rid=rid, salt=self._cache_salt)
        answer = await self._request(rid, body, {self._session_header: session.id})
        paused_s = self._traffic.paused_s - arrived_s
        completion = self._server.parsed(lambda: wire.completion_from(answer, replica=self.name, paused_s=paused_s))
        await self._proven(completion)
        ours = self._traffic.retractions - retractions  # for our commits, not for want of memory
        self._traffic.count(tokens, completion, preemptions=wire.retractions_from(answer) - ours)
        return completion

    async def score(self, tokens: Ints, *, temperature: float) -> Scores:
        self._refuse_empty(tokens)
        if self._pause is None:
            return await self._score(tokens, temperature)
        async with self._control, self._running():
            return await self._score(tokens, temperature)

    async def statistics(self) -> EngineStatistics:
        """Counters are of what this adapter has asked for; a reply counts when it has ended."""
        self._refuse_unknown()
        label, loads = await asyncio.gather(self._label(), self._server.call("GET", "/v1/loads?include=core"))
        version = wire.version_of(label) or Version(number=-1, digest=f"unknown: {label}")
        return self._server.parsed(lambda: self._traffic.statistics(self.name, version, loads["loads"]))

    # --- weights --------------------------------------------------------------------------------------

    def supports(self, in_flight: InFlight, cache: CachePolicy) -> str | None:
        """Beyond this, `recompute` is `flush`: a server that does not empty its cache would recompute from it."""
        kept = cache in (CachePolicy.KEEP, CachePolicy.SHARE)
        return _OVERLAP if in_flight is InFlight.HOLD and kept and self._overlap else None

    async def stage(self, publication: Publication) -> Staged:
        return await asyncio.to_thread(self._staging.stage, publication)

    async def pause(self, in_flight: InFlight) -> Pause:
        async with self._control:
            if self._pause is None:
                self._traffic.close_gate()
                try:
                    pause = await self._quiet(in_flight)
                except BaseException:
                    with suppress(EngineError):  # only its answer may be lost: requests would wait in a paused server
                        await self._server.call("POST", "/continue_generation", {}, timeout_s=_ABORT_S)
                    self._traffic.open_gate()
                    raise
                self._pause, self._in_flight = pause, in_flight
            return self._pause

    async def commit(self, version: Version, cache: CachePolicy) -> Version:
        async with self._control:
            if version == self._version and await self._holds(version):
                return version
            if self._pause is None:
                raise EngineError(f"{self.name}: commit of version {version.number}, but it is not paused")
            folder = self._staging.folder_of(version)
            if folder is None:
                raise EngineError(f"{self.name}: version {version.number} is not staged")
            if (reason := self.supports(self._in_flight, cache)) is not None:
                raise EngineError(f"{self.name}: {reason}")
            recomputes = cache in (CachePolicy.RECOMPUTE, CachePolicy.FLUSH)
            self._proofs.updating(version)
            await self._update(version, folder, flush=recomputes)
            self._proofs.committed(version)
            self._traffic.updated(version, recomputes=recomputes)
            self._salt += cache is not CachePolicy.SHARE
            self._version = version
            return version

    async def resume(self) -> None:
        self._refuse_unknown()
        async with self._control:
            await self._server.call("POST", "/continue_generation", {"torch_empty_cache": True})
            self._pause = None
            self._proofs.resumed()
            self._traffic.open_gate()

    # --- how ------------------------------------------------------------------------------------------

    @property
    def _cache_salt(self) -> str:
        """Salt of the cache, shared by requests begun since one commit. Not by those of one version: if it comes back,
        requests that were held over the change have left keys and values of both in the cache.
        """
        return f"{self._salts}{self._salt}"

    async def _label(self) -> str:
        return str((await self._server.call("GET", "/model_info"))["weight_version"])

    async def _holds(self, version: Version) -> bool:
        """Nobody doubts it, and the server, which may be another one by now, says so."""
        return self._proofs.unknown is None and await self._label() == wire.label_of(version)

    async def _served(self) -> None:
        """Wait for the gate, no longer than a request may take."""
        try:
            async with clock.timeout(self._request_timeout_s):
                while not self._traffic.gate.is_set():
                    await self._traffic.gate.wait()
        except TimeoutError:
            raise EngineError(f"{self.name}: paused for {self._request_timeout_s:g} s") from None
        self._refuse_unknown()

    def _refuse_empty(self, tokens: Ints) -> None:
        if not len(tokens):
            raise EngineError(f"{self.name}: token_ids is empty", {"status": 400})

    def _refuse_unknown(self) -> None:
        if self._proofs.unknown is not None:
            raise EngineError(f"{self.name}: unknown weights: {self._proofs.unknown}")

    async def _request(self, rid: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> Any:
        """The server looks only now and then whether we still listen: a request that we give up is aborted by name."""
        with self._traffic.running(rid):
            try:
                return await self._server.call(
                    "POST", "/generate", body, headers=headers, timeout_s=self._request_timeout_s
                )
            except EngineError as error:
                if error.evidence.get("status") != 400:
                    self._abandon(rid)
                    raise
                raise EngineError(f"{error} (token_ids: {len(body['input_ids'])})", error.evidence) from None
            except BaseException:
                self._abandon(rid)
                raise

    def _abandon(self, rid: str) -> None:
        call = self._server.call("POST", "/abort_request", {"rid": rid}, timeout_s=_ABORT_S)
        self._traffic.in_background(call)

    async def _proven(self, completion: Completion) -> None:
        if self._proofs.keeps_back(completion.versions_T):
            await self._served()
        if withdrawn := self._proofs.withdrawn(completion.versions_T):
            raise EngineError(f"{self.name}: sampled with weights that were withdrawn: {withdrawn}")

    async def _score(self, tokens: Ints, temperature: float) -> Scores:
        rid = uuid.uuid4().hex
        body = wire.score_body(tokens, temperature, rid=rid, salt=f"{self._salts}{rid}")  # a proof uses no old cache
        before = self._version
        answers = await self._server.call("POST", "/generate", body)
        if self._version != before:  # its parts may be of both
            raise EngineError(f"{self.name}: the weights have changed while a score was computed")
        logprobs_T, version = self._server.parsed(lambda: wire.scores_from(answers, tokens, temperature))
        return Scores(logprobs_T=logprobs_T, version=version)

    @asynccontextmanager
    async def _running(self) -> AsyncGenerator[None]:
        """A paused server runs inside, with the gate closed; held requests go on meanwhile."""
        if self._pause is None:
            yield
            return
        await self._server.call("POST", "/continue_generation", {"torch_empty_cache": False})
        try:
            yield
        finally:
            await self._server.call(
                "POST", "/pause_generation", {"mode": "in_place" if self._pause.held else "retract"}
            )

    async def _quiet(self, in_flight: InFlight) -> Pause:
        """After it the server computes nothing. Its own mode `abort` looks again after 1 s; so we abort ourselves."""
        ours, until = self._traffic.in_flight, clock.now() + self._request_timeout_s
        if in_flight is InFlight.HOLD:
            await self._server.call("POST", "/pause_generation", {"mode": "in_place"})
            return Pause(held=ours)
        while self._traffic.in_flight and clock.now() < until:
            if in_flight is InFlight.ABORT:
                await self._server.call("POST", "/abort_request", {"abort_all": True})
            await self._traffic.idle(_ABORT_AGAIN_S if in_flight is InFlight.ABORT else until - clock.now())
        if self._traffic.in_flight:
            raise EngineError(f"{self.name}: {self._traffic.in_flight} requests have not ended in time")
        await self._server.call("POST", "/pause_generation", {"mode": "retract"})
        return Pause(finished=ours) if in_flight is InFlight.FINISH else Pause(aborted=ours)

    async def _update(self, version: Version, folder: Path, *, flush: bool) -> None:
        if flush:
            await self._server.call("POST", "/pause_generation", {"mode": "retract"})
        await self._server.call("POST", "/update_weights_from_disk", wire.update_body(folder, version, flush=flush))
        info = await self._server.call("GET", "/model_info")
        expected = {"weight_version": wire.label_of(version), "model_path": str(folder)}
        if {key: info.get(key) for key in expected} != expected:
            raise EngineError(f"{self.name}: updated to {expected}, and says {info}")
        await self._compare_checksum(version)

    async def _compare_checksum(self, version: Version) -> None:
        if not self._ask_checksums:
            return
        answer = await self._server.call("POST", "/weights_checker", {"action": "checksum"})
        checksum = self._server.parsed(lambda: str(answer["per_engine_checksum"]))
        if (doubt := self._proofs.doubt(version, checksum)) is not None:
            raise EngineError(f"{self.name}: {doubt}")
