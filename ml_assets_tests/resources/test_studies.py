"""Storage of studies without its server. With one: `servers/test_studies.py`."""

import re
import socket

import pytest

from ml_assets.components.failures import TRANSIENT
from resources.addresses import Address
from resources.database_errors import StudiesUnavailable
from resources.tracking.studies import open_storage


def test_a_server_that_is_away_is_named_and_may_come_back() -> None:
    """So Dagster repeats the step, which continues the study. The password stays out of the error."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # refuses connections: nobody listens
        address = Address(f"postgresql://ada:hidden@127.0.0.1:{silent.getsockname()[1]}/ledger")
        with pytest.raises(TRANSIENT) as caught:
            open_storage(address, patience_seconds=0.1)
    assert isinstance(caught.value, StudiesUnavailable)
    assert re.search(f"studies, {re.escape(str(address))}, .*ML_ASSETS_LEDGER_URL", str(caught.value))
    assert "hidden" not in str(caught.value)
