from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast

from attrs import define as _attrs_define

if TYPE_CHECKING:
    from ..models.expected_document import ExpectedDocument
    from ..models.plan_document_refused import PlanDocumentRefused
    from ..models.plan_document_to_build import PlanDocumentToBuild
    from ..models.plan_document_to_rebuild import PlanDocumentToRebuild


T = TypeVar("T", bound="PlanDocument")


@_attrs_define
class PlanDocument:
    """Reads and steps of a launch of a model, and the reasons against it.

    Attributes:
        commit (str): Commit of the lake.
        done (bool): True if the partition was evaluated before.
        expected (ExpectedDocument | None): Hours, money and start of the training; null if a launch would find it
            finished.
        explanation (str):
        faults (list[str]):
        first_possible (None | str):
        is_as_trained (bool): True if a launch would find the finished training.
        model (str):
        partition (str):
        ready (bool): False if the launch would refuse.
        refused (PlanDocumentRefused): `table key` to reason, for rejected and unusable partitions.
        to_build (PlanDocumentToBuild):
        to_rebuild (PlanDocumentToRebuild):
    """

    commit: str
    done: bool
    expected: ExpectedDocument | None
    explanation: str
    faults: list[str]
    first_possible: str | None
    is_as_trained: bool
    model: str
    partition: str
    ready: bool
    refused: PlanDocumentRefused
    to_build: PlanDocumentToBuild
    to_rebuild: PlanDocumentToRebuild

    def to_dict(self) -> dict[str, Any]:
        from ..models.expected_document import ExpectedDocument

        commit = self.commit

        done = self.done

        expected: dict[str, Any] | None
        if isinstance(self.expected, ExpectedDocument):
            expected = self.expected.to_dict()
        else:
            expected = self.expected

        explanation = self.explanation

        faults = self.faults

        first_possible: str | None
        first_possible = self.first_possible

        is_as_trained = self.is_as_trained

        model = self.model

        partition = self.partition

        ready = self.ready

        refused = self.refused.to_dict()

        to_build = self.to_build.to_dict()

        to_rebuild = self.to_rebuild.to_dict()

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "commit": commit,
                "done": done,
                "expected": expected,
                "explanation": explanation,
                "faults": faults,
                "first_possible": first_possible,
                "is_as_trained": is_as_trained,
                "model": model,
                "partition": partition,
                "ready": ready,
                "refused": refused,
                "to_build": to_build,
                "to_rebuild": to_rebuild,
            }
        )

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        from ..models.expected_document import ExpectedDocument
        from ..models.plan_document_refused import PlanDocumentRefused
        from ..models.plan_document_to_build import PlanDocumentToBuild
        from ..models.plan_document_to_rebuild import PlanDocumentToRebuild

        d = dict(src_dict)
        commit = d.pop("commit")

        done = d.pop("done")

        def _parse_expected(data: object) -> ExpectedDocument | None:
            if data is None:
                return data
            try:
                if not isinstance(data, dict):
                    raise TypeError()
                expected_type_0 = ExpectedDocument.from_dict(data)

                return expected_type_0
            except (TypeError, ValueError, AttributeError, KeyError):
                pass
            return cast(ExpectedDocument | None, data)

        expected = _parse_expected(d.pop("expected"))

        explanation = d.pop("explanation")

        faults = cast(list[str], d.pop("faults"))

        def _parse_first_possible(data: object) -> str | None:
            if data is None:
                return data
            return cast(None | str, data)

        first_possible = _parse_first_possible(d.pop("first_possible"))

        is_as_trained = d.pop("is_as_trained")

        model = d.pop("model")

        partition = d.pop("partition")

        ready = d.pop("ready")

        refused = PlanDocumentRefused.from_dict(d.pop("refused"))

        to_build = PlanDocumentToBuild.from_dict(d.pop("to_build"))

        to_rebuild = PlanDocumentToRebuild.from_dict(d.pop("to_rebuild"))

        plan_document = cls(
            commit=commit,
            done=done,
            expected=expected,
            explanation=explanation,
            faults=faults,
            first_possible=first_possible,
            is_as_trained=is_as_trained,
            model=model,
            partition=partition,
            ready=ready,
            refused=refused,
            to_build=to_build,
            to_rebuild=to_rebuild,
        )

        return plan_document
