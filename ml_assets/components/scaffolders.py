"""`dg scaffold defs ml_assets.components.… NAME`: a commented example that loads and trains as it is.

Here: which templates make which component's folder, and how names follow from NAME. The text itself lies in
`templates/`.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import dagster as dg
from pydantic import BaseModel, Field

TEMPLATES = Path(__file__).parent / "templates"
FIRST_DAY, LAST_DAY = "2024-01-01", "2024-03-31"
"""The days of the synthetic source."""


class ScaffoldRefused(click.ClickException):
    """A folder of this name cannot be written; the message names one that can."""


class TemplateScaffolder(dg.Scaffolder[Any]):
    """Writes one folder from templates. A subclass says which."""

    documents: Sequence[str]
    """Templates of `defs.yaml`, one document each, in this order."""
    modules: Sequence[str]
    """Templates of the Python files beside it."""
    next_commands: Sequence[str]
    """Commands that show it at work; `{name}` and `{days}` are filled in."""

    def scaffold(self, request: dg.ScaffoldRequest[Any]) -> None:
        """Write the folder and say the next commands."""
        names = _names(request)
        written = {
            "__init__.py": f'"""The folder of {names["name"]}: what it is, and where its data comes from."""\n',
            "defs.yaml": _editor_line(request)
            + "---\n".join(_render(f"{document}.yaml", names) for document in self.documents),
            **{f"{module}.py": _render(f"{module}.py", names) for module in self.modules},
        }
        for file, text in written.items():
            (request.target_path / file).write_text(text)
        click.echo(f"Wrote {', '.join(written)}. They work as they are; edit them to be about your table.")
        click.echo("Next:")
        for command in self.next_commands:
            click.echo(f"  ml-assets {command.format(name=names['name'], days=f'{FIRST_DAY}..{LAST_DAY}')}")


class DatasetScaffolder(TemplateScaffolder):
    """A dataset and its source."""

    documents = ("dataset",)
    modules = ("source",)
    next_commands = ("launch datasets/{name} {days}",)


class FeatureTableParams(BaseModel):
    """Options of the feature table's command."""

    input: str = Field(default="", description="The table it reads; datasets/NAME if not given.")


class FeatureTableScaffolder(TemplateScaffolder):
    """A feature table and its function."""

    documents = ("feature_table",)
    modules = ("features",)
    next_commands = ("launch features/{name} {days}", "leaktest features/{name}")

    @classmethod
    def get_scaffold_params(cls) -> type[BaseModel]:
        """`--input`."""
        return FeatureTableParams


class TrainingPipelineScaffolder(TemplateScaffolder):
    """A whole pipeline, from source to model."""

    documents = (*DatasetScaffolder.documents, *FeatureTableScaffolder.documents, "training_pipeline")
    modules = (*DatasetScaffolder.modules, *FeatureTableScaffolder.modules, "model")
    next_commands = (
        *DatasetScaffolder.next_commands,
        *FeatureTableScaffolder.next_commands,
        f"launch {{name}} {LAST_DAY}",
    )


def _editor_line(request: dg.ScaffoldRequest[Any]) -> str:
    """Return the comment by which editors find the schema that `dg utils generate-component-schema` writes."""
    assert request.project_root is not None
    up = "../" * len(request.target_path.relative_to(request.project_root).parts)
    return f"# yaml-language-server: $schema={up}.dg/schema.json\n"


def _names(request: dg.ScaffoldRequest[Any]) -> dict[str, str]:
    """Return the values of the templates' names. Refuse a NAME that Python cannot import, and leave nothing behind."""
    if request.project_root is None:
        raise ScaffoldRefused("run dg in the project's folder, where pyproject.toml lies")
    parts = request.target_path.relative_to(request.project_root).parts
    parts = parts[1:] if parts[0] == "src" else parts
    wrong = [part for part in parts if not part.isidentifier()]
    if wrong or request.scaffold_format != "yaml":
        if not any(request.target_path.iterdir()):
            request.target_path.rmdir()  # dg makes it before it asks us
        if not wrong:
            raise ScaffoldRefused("these components are declared in YAML: leave --format out")
        right = "".join(c if c.isalnum() else "_" for c in wrong[0])
        right = right if right.isidentifier() else f"my_{right}"
        raise ScaffoldRefused(
            f"'{wrong[0]}' is no Python name, and its functions are imported: try '{right}'"
        )
    # A nested folder's name keeps its parents', so that no two folders' names collide.
    name = "_".join(parts[parts.index("defs") + 1 :])
    given = getattr(request.params, "input", "")
    return {
        "name": name,
        "group": parts[parts.index("defs") + 1],
        "module": ".".join(parts),
        "dataset": given or f"datasets/{name.removesuffix('_features')}",
        "start": FIRST_DAY,
        "end": LAST_DAY,
    }


def _render(template: str, names: Mapping[str, str]) -> str:
    import jinja2  # not while definitions load

    text = (TEMPLATES / f"{template}.j2").read_text()
    return jinja2.Template(text, undefined=jinja2.StrictUndefined, keep_trailing_newline=True).render(names)
