"""Notices: short messages for the user, each with a reason. Programs use the reason and never the message."""

from __future__ import annotations

from enum import StrEnum

from muster_contract.wire import document, wire_field


class NoticeReason(StrEnum):
    """Why a notice was sent. A reason that is unknown to this version, such as one of a newer trainer image, is read as `NOTICE`."""

    description: str
    is_warning: bool

    def __new__(cls, value: str, description: str = "", is_warning: bool = False) -> NoticeReason:
        member = str.__new__(cls, value)
        member._value_ = value
        member.description = description
        member.is_warning = is_warning
        return member

    @classmethod
    def _missing_(cls, value: object) -> NoticeReason | None:
        return cls.NOTICE if isinstance(value, str) else None

    CHECKPOINT_DAMAGED = "CheckpointDamaged", "A checkpoint does not verify. Training resumes from an older one.", True
    EVALUATION_SKIPPED = "EvaluationSkipped", "The evaluator cannot read a checkpoint and skips it."
    NOTHING_TO_EVALUATE = "NothingToEvaluate", "The evaluator ends because the job has no test set or no checkpoint storage."
    INPUT_STALLED = "InputStalled", "Training often waits for samples."
    LOSS_NOT_FINITE = "LossNotFinite", "The loss is NaN or infinite, and nanLoss lets training continue."
    RESCUE_FAILED = "RescueFailed", "A rank lost its peers and could not save its last step."
    MEMORY_UNUSED = "MemoryUnused", "Snapshots are not kept in memory, because they do not fit or the replicas are too few.", True
    SNAPSHOT_INCOMPLETE = "SnapshotIncomplete", "No snapshot in memory has all parts. Training resumes from storage or starts over.", True
    SAVE_FAILED = "SaveFailed", "A checkpoint could not be saved. Training goes on for at most ten minutes, and tries again.", True
    MODEL_EXPORTED = "ModelExported", "The trained model is exported, or a part of the export is left out."
    PIPELINE_CUT = "PipelineCut", "How a pipeline's layers are divided into stages."
    SUMMARIES_FAILED = "SummariesFailed", "TensorBoard summaries cannot be written."
    EVENTS_LOST = "EventsLost", "The supervisor cannot write events.jsonl."
    EVENTS_MALFORMED = "EventsMalformed", "A process wrote lines that are not events."
    PROCESSES_REMAIN = "ProcessesRemain", "Processes of an ended replica do not end, not even by SIGKILL."
    ENVIRONMENTS_DIFFER = "EnvironmentsDiffer", "The ranks of a world run different software or devices."
    NOTICE = "Notice", "Any other notice, such as one of the user's own program."


def reason_of(value: object) -> object:
    """The value of a `NoticeReason`, for any text."""
    return NoticeReason(value).value if isinstance(value, str) else value


def notice_of(value: object) -> object:
    """The JSON object of a notice. Older versions wrote the message alone."""
    return {"message": value, "reason": NoticeReason.NOTICE.value} if isinstance(value, str) else value


@document
class Notice:
    """A message for the user."""

    message: str = wire_field(default="", cut=1024, doc="The message.")
    reason: NoticeReason = wire_field(default=NoticeReason.NOTICE, convert=reason_of, doc="Why it was sent.")
