"""A newer version of the team's platform: another revision of the ledger's tables, and one more table."""

import yaml

from ml_assets_tests.cluster.cluster_environment import REPOSITORY
from resources.ledger import migrations

REVISION = "r9001"
"""Revision of the ledger's tables that only the newer version knows."""
TABLE = "sales_features_newer"
"""Feature table that only the newer version declares."""
_MIGRATIONS = "resources/ledger/migrations"
_MIGRATION = f"""
import sqlalchemy as sa
from alembic import op

revision, down_revision = "{REVISION}", "{migrations.NEWEST}"


def upgrade() -> None:
    op.create_table("ledger_of_a_newer_version", sa.Column("id", sa.Integer, primary_key=True))
"""
OLDER_AGAIN = f"""
import os
import sqlalchemy as sa
with sa.create_engine(os.environ["ML_ASSETS_LEDGER_URL"]).begin() as connection:
    connection.execute(sa.text("DROP TABLE ledger_of_a_newer_version"))
    connection.execute(sa.text("UPDATE {migrations.VERSION_TABLE} SET version_num = '{migrations.NEWEST}'"))
"""
"""Program that takes the migration back, which no version of the platform does."""


def newer_files(pipeline: str) -> dict[str, str]:
    """Return the changed files of the newer version by their path. `pipeline`: folder with the feature table's twin."""
    module = (REPOSITORY / _MIGRATIONS / "__init__.py").read_text()
    line = f'NEWEST = "{migrations.NEWEST}"'
    assert line in module
    documents = yaml.safe_load_all((REPOSITORY / pipeline / "defs.yaml").read_text())
    (table,) = (one for one in documents if one["type"].endswith(".FeatureTable"))
    table["attributes"]["name"] = TABLE
    del table["attributes"]["online"]
    return {
        f"{_MIGRATIONS}/__init__.py": module.replace(line, f'NEWEST = "{REVISION}"'),
        f"{_MIGRATIONS}/versions/{REVISION}_newer.py": _MIGRATION,
        "ml_assets/defs/newer/defs.yaml": yaml.safe_dump(table, sort_keys=False),
    }
