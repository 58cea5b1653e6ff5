"""Pages of `docs/reference` that are made from the code. `make render` writes them; a test compares them with it."""

from pathlib import Path

from deployment.site.command_reference import commands
from deployment.site.context_reference import context_page
from deployment.site.settings_reference import variables
from deployment.site.yaml_examples import Examples, declarations
from deployment.site.yaml_reference import page
from ml_assets.components.specs import DatasetSpec, FeatureTableSpec, TrainingPipelineSpec
from ml_assets.foundation.checkout import ROOT

_FOLDER = Path("docs", "reference")
_COMPONENTS = {
    "dataset.md": ("Dataset", "a table of raw rows", DatasetSpec),
    "feature-table.md": ("FeatureTable", "a table of features", FeatureTableSpec),
    "training-pipeline.md": ("TrainingPipeline", "a model", TrainingPipelineSpec),
}
_HOW_TO_READ = (
    "`make render` makes this page from the code. Where a key has no default and is not required, its\n"
    "meaning says what holds without it. An unknown key is refused, with the nearest right one."
)


def reference() -> dict[Path, str]:
    """Return the Markdown of each page, by its path below the root of the checkout."""
    declared = declarations(ROOT)
    pages = {"commands.md": commands(), "context.md": context_page(), "settings.md": variables()}
    for name, (title, what, spec) in _COMPONENTS.items():
        about = f"Keys of {what}: `type: ml_assets.components.{title}`.\n{_HOW_TO_READ}"
        schema = spec.model_json_schema()
        pages[name] = page(title, about, schema, Examples(schema, declared))
    return {_FOLDER / name: text for name, text in pages.items()}
