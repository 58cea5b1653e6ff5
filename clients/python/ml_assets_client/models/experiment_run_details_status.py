from enum import StrEnum


class ExperimentRunDetailsStatus(StrEnum):
    FAILED = "FAILED"
    FINISHED = "FINISHED"
    KILLED = "KILLED"
    RUNNING = "RUNNING"
    SCHEDULED = "SCHEDULED"

    def __str__(self) -> str:
        return str(self.value)
