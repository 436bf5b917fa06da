"""The trainer's own process: reads requests from a socket, answers them in order, leaves when the other side does.

Law: it dies with its parent. A thread does nothing but read, so that the end of the socket is seen in the middle of a
step too; answers are data or a pickled error, never a broken stream.

    parent ══ socket ══► reader thread ─► queue ─► LocalTrainer (main thread) ─► answer ══► parent

    message: 8 bytes of length, then a pickle of TrainerCall or TrainerReply. Started by `trainer.process.link` alone:
    python -m muster.trainer.process.worker FILE_DESCRIPTOR
"""

from __future__ import annotations

import os
import pickle
import queue
import socket
import sys
import threading
import traceback

import torch

from muster.errors import MusterError, TrainerError
from muster.model.weights import resolve
from muster.trainer.local import LocalTrainer
from muster.trainer.process.messages import LENGTH_BYTES, TrainerCall, TrainerReply, TrainerSetup, frame


def main(descriptor: int) -> None:
    connection = socket.socket(fileno=descriptor)
    requests: queue.SimpleQueue[TrainerCall] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(connection, requests), daemon=True).start()
    trainer: LocalTrainer | None = None
    while True:
        request = requests.get()
        try:
            if isinstance(request.arguments, TrainerSetup):
                trainer = _start(request.arguments)
                value = None
            else:
                assert trainer is not None, "the first request sets up"
                value = getattr(trainer, request.method)(*request.arguments, **request.keywords)
            answer = TrainerReply(id=request.id, value=value)
        except MusterError as error:
            answer = TrainerReply(id=request.id, error=error)
        except OSError as error:  # a full disk, an unreadable folder; anything else ends this process, loudly
            evidence = {"traceback": traceback.format_exc()}
            answer = TrainerReply(id=request.id, error=TrainerError(f"{request.method}: {error}", evidence))
        connection.sendall(frame(answer))


def _start(setup: TrainerSetup) -> LocalTrainer:
    torch.set_num_threads(setup.config.threads)
    return LocalTrainer(
        setup.config, model=resolve(setup.model), temperature=setup.temperature, exporter=setup.exporter
    )


def _read(connection: socket.socket, requests: queue.SimpleQueue[TrainerCall]) -> None:
    stream = connection.makefile("rb")
    while header := stream.read(LENGTH_BYTES):
        body = stream.read(int.from_bytes(header, "big"))
        requests.put(pickle.loads(body))
    os._exit(0)  # the parent is gone: whatever is being computed has no reader


if __name__ == "__main__":
    main(int(sys.argv[1]))
