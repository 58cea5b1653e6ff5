"""Storage of studies: Optuna's own tables, in SQLite under the home or in a schema beside the ledger's tables.

Import this late: it imports Optuna, which takes a second. Not here: the trials of a study
(`ml_assets.extras.tuning.study`).
"""

from pathlib import Path
from typing import Any

import sqlalchemy as sa
from optuna import logging
from optuna.storages import RDBStorage
from sqlalchemy import event

from resources.addresses import Address, with_driver
from resources.database_errors import StudiesUnavailable, is_away
from resources.retry import patiently

SCHEMA = "ml_assets_studies"
"""Schema of Optuna's tables in PostgreSQL. Alembic's table of Optuna would otherwise be the ledger's."""
_BUSY_SECONDS = 60
"""Seconds that a write to SQLite waits for other writers."""


def open_storage(address: Address, patience_seconds: float = 30.0) -> RDBStorage:
    """Open the storage at `address`; create its tables at the first use. One process at a time may call this.

    If PostgreSQL is away, each connection waits `patience_seconds` for it. Then any use of the storage raises
    `StudiesUnavailable`, and so does a transaction that the server cut off: it may be stored or not.
    """
    logging.set_verbosity(logging.WARNING)  # Optuna announces each study and trial on stderr
    url = sa.make_url(with_driver(address.reveal()))
    if url.get_backend_name() == "sqlite":
        if url.database:
            Path(url.database).parent.mkdir(parents=True, exist_ok=True)
        return RDBStorage(address.reveal(), engine_kwargs={"connect_args": {"timeout": _BUSY_SECONDS}})
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    _wait_for_server(engine, address, patience_seconds)
    with engine.begin() as connection:
        connection.execute(sa.schema.CreateSchema(SCHEMA, if_not_exists=True))
    # A trial may take hours, after which the server may have dropped the connection.
    options = {"pool_pre_ping": True, "connect_args": {"options": f"-c search_path={SCHEMA}"}}
    storage = RDBStorage(url.render_as_string(hide_password=False), engine_kwargs=options)
    _wait_for_server(storage.engine, address, patience_seconds)
    return storage


def _wait_for_server(engine: sa.Engine, address: Address, patience_seconds: float) -> None:
    """Let each new connection of `engine` wait for a server that is away, and name the database in the error.

    Optuna uses a connection for one transaction, and `pool_pre_ping` makes a new one if the server restarted between
    two of them. A transaction is not repeated: it may be stored although its answer was lost.
    """

    def connect(dialect: Any, _: object, arguments: Any, options: Any) -> Any:
        return patiently(
            lambda: dialect.connect(*arguments, **options),
            is_away,
            lambda _: patience_seconds,
            first_pause=0.02,
            longest_pause=0.5,
        )

    def name_the_database(context: sa.ExceptionContext) -> None:
        error = context.sqlalchemy_exception
        if error is not None and is_away(error) and not context.is_pre_ping:
            first_line = address.hide_in(str(context.original_exception).partition("\n")[0])
            raise StudiesUnavailable(
                f"the database of studies, {address}, does not answer or broke the connection ({first_line}): check "
                "that the server runs, and ML_ASSETS_LEDGER_URL; then launch the study again, which continues"
            ) from context.original_exception

    event.listen(engine, "do_connect", connect)
    event.listen(engine, "handle_error", name_the_database)
