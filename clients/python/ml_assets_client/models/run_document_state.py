from enum import StrEnum


class RunDocumentState(StrEnum):
    COMPLETED = "completed"
    FAILED = "failed"
    KILLED = "killed"
    QUEUED = "queued"
    RUNNING = "running"

    def __str__(self) -> str:
        return str(self.value)
