from enum import StrEnum


class TrialDocumentState(StrEnum):
    FAILED = "failed"
    FINISHED = "finished"
    PAUSED = "paused"
    RUNNING = "running"

    def __str__(self) -> str:
        return str(self.value)
