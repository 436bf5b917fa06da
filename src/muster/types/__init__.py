"""The nouns of Muster.

Law: frozen, slotted, keyword-only data with no behaviour beyond reading itself; numpy at most, never torch.
Five stages read these and nobody runs them.

    Task ─► Group (G attempts) ─► Trajectory (segments, turns, spans) ─► Outcome ─► ReadyGroup ─► Batch

Import them from here: which file a noun lives in is nobody's business. Times are seconds on `clock.now()`.
"""

from muster.types.arrays import UNSAMPLED, Bools, Floats, Ints
from muster.types.engines import Completion, Evaluation, Publication, PublicationRecord, Sampling, Session, Version
from muster.types.outcomes import Cause, Evidence, Graded, Outcome, Ungraded, Verdict
from muster.types.spans import DeviceState, Span, Stage
from muster.types.tasks import Collect, HealthCheck, ImageSpec, Launch, Limits, Task, TaskStep, VerifierSpec
from muster.types.trajectories import Batch, Kept, ReadyGroup, Segment, Trajectory, Turn

__all__ = [
    "UNSAMPLED",
    "Batch",
    "Bools",
    "Cause",
    "Collect",
    "Completion",
    "DeviceState",
    "Evaluation",
    "Evidence",
    "Floats",
    "Graded",
    "HealthCheck",
    "ImageSpec",
    "Ints",
    "Kept",
    "Launch",
    "Limits",
    "Outcome",
    "Publication",
    "PublicationRecord",
    "ReadyGroup",
    "Sampling",
    "Segment",
    "Session",
    "Span",
    "Stage",
    "Task",
    "TaskStep",
    "Trajectory",
    "Turn",
    "Ungraded",
    "Verdict",
    "VerifierSpec",
    "Version",
]
