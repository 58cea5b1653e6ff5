"""Earlier names of keys and words in `defs.yaml`, and their current names.

Here: the table. `sections.refuse_unknown_keys` raises the refusal that names the new key.
"""

from collections.abc import Mapping

RENAMED_KEYS: Mapping[str, Mapping[str, str]] = {
    "Contract": {"key": "primary_key"},
    "EvaluationSpec": {"block": "bootstrap_unit"},
    "Gate": {"by": "margin", "if_unsure": "on_undecided", "if_undefined": "on_undefined"},
    "InputSection": {"known": "known_at"},
    "KnowledgeRule": {"at": "column", "hides": "columns"},
    "ModelInputsSection": {"row_key": "primary_key", "sample": "blob"},
    "ModelSection": {"entry": "script"},
    "ScheduleSection": {"newest": "latest"},
    "SourceSection": {"newest": "latest"},
    "TableSpecSection": {"group": "group_name", "automation": "automation_condition"},
    "TrainingPipelineSpec": {
        "group": "group_name",
        "automation": "automation_condition",
        "stale": "on_stale_inputs",
    },
    "training": {
        "accumulate": "gradient_accumulation_steps",
        "recompute": "activation_checkpointing",
        "comm": "gradient_compression",
        "metric_steps": "log_every_steps",
        "checkpoint_steps": "checkpoint_every_steps",
        "checkpoint_minutes": "checkpoint_every_minutes",
        "hang_seconds": "heartbeat_timeout_seconds",
        "still_seconds": "stall_timeout_seconds",
    },
}
"""Section → old key → current key. A section is a class name and covers its subclasses; `training` and
`training.parallel` are sections, too, whose settings are dataclasses."""

RENAMED_WORDS: Mapping[str, Mapping[str, Mapping[str, str]]] = {
    "InputSection": {"lookback": {"whole": "all"}},
}
"""Section → key → old word of its value → current word."""
