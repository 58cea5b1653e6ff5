"""A `defs.yaml` that tests change: the store chain's, and loading one as the code location does."""

from pathlib import Path

from dagster.components.testing import create_defs_folder_sandbox

from ml_assets.components.declarations import in_one_line, require_consistent

ROOT = Path(__file__).parents[2]
DECLARED = (ROOT / "ml_assets" / "defs" / "store_demand" / "defs.yaml").read_text()


def load(text: str) -> None:
    """Load a defs folder whose only file holds `text`."""
    with create_defs_folder_sandbox() as sandbox:
        folder = sandbox.defs_folder_path / "demand"
        folder.mkdir()
        (folder / "defs.yaml").write_text(text)
        with in_one_line(sandbox.defs_folder_path), sandbox.build_component_tree() as tree:
            require_consistent(tree.build_defs(), sandbox.defs_folder_path)
