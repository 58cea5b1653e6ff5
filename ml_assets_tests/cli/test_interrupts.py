"""Interrupts that came where a library or Python itself handles them, as a person reads them."""

import subprocess
import sys

import pytest

SAID = """
import logging
from dagster import DagsterExecutionInterruptedError
from ml_assets.context.interrupts import not_for_children

class Closed:
    def __del__(self):
        raise {error}

def close():
    try:
        raise {error}
    except BaseException as error:
        logging.getLogger("sqlalchemy.pool.impl.AnyPool").error("closing", exc_info=True)
        try:
            raise OSError("while it was handled")
        except OSError:
            logging.getLogger("of another library").error("closing", exc_info=True)

with not_for_children():
    close()
    Closed()
"""


def _said_of(error: str) -> list[str]:
    command = [sys.executable, "-c", SAID.format(error=error)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stderr.splitlines()


@pytest.mark.parametrize("error", ["KeyboardInterrupt", "DagsterExecutionInterruptedError"])
def test_an_interrupt_that_was_handled_is_not_said(error: str) -> None:
    assert _said_of(error) == []


def test_any_other_error_is_said() -> None:
    said = _said_of("ValueError('broken')")
    assert said.count("closing") == 2
    assert any(line.startswith("Exception ignored in") for line in said)
