from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from attrs import define as _attrs_define

if TYPE_CHECKING:
    from ..models.rule_document import RuleDocument


T = TypeVar("T", bound="VersionDetails")


@_attrs_define
class VersionDetails:
    """Registered version with the evaluation that counts for it.

    Attributes:
        at (datetime.datetime):
        author (str):
        bundle_digest (str):
        dagster_run (str):
        evaluation (str):
        first (str):
        lake_commit (str):
        last (str):
        model (str):
        partition (str):
        rules (list[RuleDocument]):
        schema_hash (str): Digest of names and types of the columns of the training set.
        semantic (str):
        snapshot_digest (str): Digest of its training set. Empty, as are the next two, if Dagster lost its run.
        split_config_hash (str): Digest of the rules by which its rows were split.
        stage (str):
        status (str): Decision of the gates: `blessed`, `undecided` or `rejected`.
        summary (str):
        table (str): Feature table of its window.
        tracking_run (str): Id of the run in the experiment of the model.
        version (int):
    """

    at: datetime.datetime
    author: str
    bundle_digest: str
    dagster_run: str
    evaluation: str
    first: str
    lake_commit: str
    last: str
    model: str
    partition: str
    rules: list[RuleDocument]
    schema_hash: str
    semantic: str
    snapshot_digest: str
    split_config_hash: str
    stage: str
    status: str
    summary: str
    table: str
    tracking_run: str
    version: int

    def to_dict(self) -> dict[str, Any]:
        at = self.at.isoformat()

        author = self.author

        bundle_digest = self.bundle_digest

        dagster_run = self.dagster_run

        evaluation = self.evaluation

        first = self.first

        lake_commit = self.lake_commit

        last = self.last

        model = self.model

        partition = self.partition

        rules = []
        for rules_item_data in self.rules:
            rules_item = rules_item_data.to_dict()
            rules.append(rules_item)

        schema_hash = self.schema_hash

        semantic = self.semantic

        snapshot_digest = self.snapshot_digest

        split_config_hash = self.split_config_hash

        stage = self.stage

        status = self.status

        summary = self.summary

        table = self.table

        tracking_run = self.tracking_run

        version = self.version

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "at": at,
                "author": author,
                "bundle_digest": bundle_digest,
                "dagster_run": dagster_run,
                "evaluation": evaluation,
                "first": first,
                "lake_commit": lake_commit,
                "last": last,
                "model": model,
                "partition": partition,
                "rules": rules,
                "schema_hash": schema_hash,
                "semantic": semantic,
                "snapshot_digest": snapshot_digest,
                "split_config_hash": split_config_hash,
                "stage": stage,
                "status": status,
                "summary": summary,
                "table": table,
                "tracking_run": tracking_run,
                "version": version,
            }
        )

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        from ..models.rule_document import RuleDocument

        d = dict(src_dict)
        at = datetime.datetime.fromisoformat(d.pop("at"))

        author = d.pop("author")

        bundle_digest = d.pop("bundle_digest")

        dagster_run = d.pop("dagster_run")

        evaluation = d.pop("evaluation")

        first = d.pop("first")

        lake_commit = d.pop("lake_commit")

        last = d.pop("last")

        model = d.pop("model")

        partition = d.pop("partition")

        rules = []
        _rules = d.pop("rules")
        for rules_item_data in _rules:
            rules_item = RuleDocument.from_dict(rules_item_data)

            rules.append(rules_item)

        schema_hash = d.pop("schema_hash")

        semantic = d.pop("semantic")

        snapshot_digest = d.pop("snapshot_digest")

        split_config_hash = d.pop("split_config_hash")

        stage = d.pop("stage")

        status = d.pop("status")

        summary = d.pop("summary")

        table = d.pop("table")

        tracking_run = d.pop("tracking_run")

        version = d.pop("version")

        version_details = cls(
            at=at,
            author=author,
            bundle_digest=bundle_digest,
            dagster_run=dagster_run,
            evaluation=evaluation,
            first=first,
            lake_commit=lake_commit,
            last=last,
            model=model,
            partition=partition,
            rules=rules,
            schema_hash=schema_hash,
            semantic=semantic,
            snapshot_digest=snapshot_digest,
            split_config_hash=split_config_hash,
            stage=stage,
            status=status,
            summary=summary,
            table=table,
            tracking_run=tracking_run,
            version=version,
        )

        return version_details
