"""Storage of studies: Optuna's own tables, in SQLite under the home or in a schema beside the ledger's tables.

Not here: the trials of a study (`ml_assets.tuning.study`).
"""

from pathlib import Path
from typing import TYPE_CHECKING

from resources.addresses import Address

if TYPE_CHECKING:
    from optuna.storages import RDBStorage

SCHEMA = "ml_assets_studies"
"""Schema of Optuna's tables in PostgreSQL. Alembic's table of Optuna would otherwise be the ledger's."""
_BUSY_SECONDS = 60
"""Seconds that a write to SQLite waits for other writers."""


def open_storage(address: Address) -> "RDBStorage":
    """Open the storage at `address`; create its tables at the first use. One process at a time may call this."""
    import sqlalchemy as sa
    from optuna import logging
    from optuna.storages import RDBStorage

    logging.set_verbosity(logging.WARNING)  # Optuna announces each study and trial on stderr
    url = sa.make_url(address.reveal())
    if url.get_backend_name() == "sqlite":
        if url.database:
            Path(url.database).parent.mkdir(parents=True, exist_ok=True)
        return RDBStorage(address.reveal(), engine_kwargs={"connect_args": {"timeout": _BUSY_SECONDS}})
    url = url.set(drivername="postgresql+psycopg2")
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    with engine.begin() as connection:
        connection.execute(sa.schema.CreateSchema(SCHEMA, if_not_exists=True))
    # A trial may take hours, after which the server may have dropped the connection.
    options = {"pool_pre_ping": True, "connect_args": {"options": f"-c search_path={SCHEMA}"}}
    return RDBStorage(url.render_as_string(hide_password=False), engine_kwargs=options)
