from enum import StrEnum


class GetCostsBy(StrEnum):
    DAY = "day"
    GPU = "gpu"
    GROUP = "group"
    PARTITION = "partition"
    PIPELINE = "pipeline"
    STATUS = "status"

    def __str__(self) -> str:
        return str(self.value)
