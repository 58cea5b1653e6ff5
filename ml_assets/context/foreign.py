"""Launch of the evaluation of a model that was trained elsewhere: the file of its document, all checks before a run.

Not here: the document and its checks (`model.release.foreign_document`, `model.steps.foreign`).
"""

import dataclasses
from functools import partial
from pathlib import Path

from pydantic import ValidationError

from ml_assets.components.metadata import REGISTERS
from ml_assets.context.errors import LaunchRefused
from ml_assets.context.launch import Launchable, launchable
from ml_assets.context.plan import plan_of
from ml_assets.context.project import Project
from ml_assets.model.release.foreign_document import MOST_DOCUMENT_BYTES, ForeignModel
from ml_assets.model.steps.foreign import checked_graph_of, require_fit, require_objective, store_foreign
from ml_assets.model.steps.spec import PipelineSpec
from resources.artifacts import Artifacts


def registrable(project: Project, document: ForeignModel) -> Launchable:
    """Return the launch; see `Context.registrable`. Its `prepare` checks the graph and keeps the document."""
    spec = project.declared.pipeline(document.model)
    what = launchable(project, document.model, document.partition, trains=False)
    require_objective(spec, document)
    planned = plan_of(project, document.model, document.partition)
    if planned.validation.barred:
        raise LaunchRefused(
            f"{document.model} {document.partition} cannot measure a model yet: partitions of its window are missing "
            f"or refused. ml-assets plan {document.model} {document.partition} names them"
        )
    require_fit(spec, document, project.reader(), planned.validation.keys)
    return dataclasses.replace(
        what,
        own_tags={REGISTERS: document.digest},
        prepare=partial(_check_and_keep, spec, project.platform.artifacts, document),
    )


def _check_and_keep(spec: PipelineSpec, artifacts: Artifacts, document: ForeignModel) -> None:
    checked_graph_of(spec, document)
    store_foreign(artifacts, document)


def read_foreign(file: Path) -> ForeignModel:
    """Read the document of a model from a JSON file. Raises `LaunchRefused` with file and field."""
    try:
        with file.open("rb") as stream:
            content = stream.read(MOST_DOCUMENT_BYTES + 1)  # a device has no size to ask for
        if len(content) > MOST_DOCUMENT_BYTES:
            raise LaunchRefused(
                f"{file} has more than {MOST_DOCUMENT_BYTES:,} bytes, which are the most: make the model smaller"
            )
        return ForeignModel.model_validate_json(content)
    except OSError as error:
        raise LaunchRefused(f"{file} cannot be read: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the document"
        raise LaunchRefused(
            f"{file}: {where}: {first['msg']}. docs/how-to/api.md shows a document"
        ) from error
