"""A `defs.yaml` that tests change: the store chain's, and loading one as the code location does."""

from pathlib import Path

from dagster.components.testing import create_defs_folder_sandbox

from ml_assets.components.declarations import in_one_line, require_consistent

ROOT = Path(__file__).parents[2]
_LEFT_OUT = ("  drift: ", "  on_bad_rows: ", "    determinism: ")
_TEXT = (ROOT / "ml_assets" / "defs" / "store_demand" / "defs.yaml").read_text().partition("  release:\n")[0]
DECLARED = "".join(line for line in _TEXT.splitlines(keepends=True) if not line.startswith(_LEFT_OUT))
"""Without the keys that the example shows beyond the plain ones: tests add keys of their own."""


def load(text: str) -> None:
    """Load a defs folder whose only file holds `text`."""
    with create_defs_folder_sandbox() as sandbox:
        folder = sandbox.defs_folder_path / "demand"
        folder.mkdir()
        (folder / "defs.yaml").write_text(text)
        with in_one_line(sandbox.defs_folder_path), sandbox.build_component_tree() as tree:
            require_consistent(tree.build_defs(), sandbox.defs_folder_path)
