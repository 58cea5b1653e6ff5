from enum import StrEnum


class StageRequestStage(StrEnum):
    APPROVED = "approved"
    ARCHIVED = "archived"
    PRODUCTION = "production"
    REJECTED = "rejected"

    def __str__(self) -> str:
        return str(self.value)
