"""Laws of the assignment: stable, monotonic in the share, fair, and another for each canary."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ml_assets.use.serving import canary as canaries
from ml_assets.use.serving.canary import EntityRefused, entity_of, sender_of, shared_secret
from resources.artifacts import ArtifactsRefused, FolderArtifacts
from resources.ledger import Ledger

_VALUES = st.none() | st.booleans() | st.integers() | st.floats(allow_infinity=False) | st.text()
_ENTITIES = st.builds(
    lambda values: entity_of(dict(enumerate(values)), range(len(values))), st.lists(_VALUES)
)
_DIGESTS = st.text("0123456789abcdef", min_size=64, max_size=64)
_SHARES = st.floats(0, 1)


SECRET, BEGUN = b"servers", datetime(2026, 1, 2, tzinfo=UTC)


def is_of_canary(
    entity: str,
    *,
    model: str,
    bundle_digest: str,
    share: float,
    secret: bytes = SECRET,
    begun: datetime = BEGUN,
) -> bool:
    return canaries.is_of_canary(
        entity, secret=secret, model=model, bundle_digest=bundle_digest, begun=begun, share=share
    )


@given(_ENTITIES, _DIGESTS, _SHARES, _SHARES)
def test_a_larger_share_keeps_the_entities_of_the_canary(
    entity: str, digest: str, one: float, other: float
) -> None:
    less, more = sorted((one, other))
    if is_of_canary(entity, model="m", bundle_digest=digest, share=less):
        assert is_of_canary(entity, model="m", bundle_digest=digest, share=more)


@given(_ENTITIES, _DIGESTS)
def test_no_share_takes_nobody_and_the_whole_share_everybody(entity: str, digest: str) -> None:
    assert not is_of_canary(entity, model="m", bundle_digest=digest, share=0.0)
    has_name = entity.replace("null", "").strip("[],") != ""
    assert is_of_canary(entity, model="m", bundle_digest=digest, share=1.0) == has_name


@given(_DIGESTS, st.integers(1, 3))
def test_rows_without_an_entity_stay_in_production(digest: str, columns: int) -> None:
    nobody = entity_of(dict.fromkeys("abc"), "abc"[:columns])
    assert not is_of_canary(nobody, model="m", bundle_digest=digest, share=0.999)


def _canary_of(digest: str, model: str = "flight_delay", share: float = 0.1) -> set[int]:
    return {
        i for i in range(20_000) if is_of_canary(f'["{i}"]', model=model, bundle_digest=digest, share=share)
    }


def test_the_share_holds_and_another_canary_gets_other_entities() -> None:
    """2,000 of 20,000 expected; five standard deviations are 212. Two independent tenths share 200 entities."""
    one, other, elsewhere = _canary_of("a" * 64), _canary_of("b" * 64), _canary_of("a" * 64, "store_demand")
    for chosen in (one, other, elsewhere):
        assert 1_788 < len(chosen) < 2_212
    for overlap in (one & other, one & elsewhere):
        assert 130 < len(overlap) < 270


def test_nobody_without_the_secret_knows_the_sides() -> None:
    """Model, bundle and begin are in `/ready`. With another secret, half of the entities of a half are others."""
    names = [f'["{number}"]' for number in range(4_000)]
    right, guess = (
        [is_of_canary(one, model="m", bundle_digest="a" * 64, share=0.5, secret=secret) for one in names]
        for secret in (SECRET, b"")
    )
    assert 1_800 < sum(one == other for one, other in zip(right, guess, strict=True)) < 2_200


def test_a_canary_that_begins_again_has_other_entities() -> None:
    """Clients saw the sides of the first one in its answers."""
    again = BEGUN + timedelta(days=1)
    one, other = (
        {
            i
            for i in range(4_000)
            if is_of_canary(f'["{i}"]', model="m", bundle_digest="a" * 64, share=0.5, begun=at)
        }
        for at in (BEGUN, again)
    )
    assert 800 < len(one & other) < 1_200


def test_all_servers_of_a_store_have_one_secret(tmp_path: Path) -> None:
    artifacts, ledger = FolderArtifacts(tmp_path / "artifacts"), Ledger(f"sqlite:///{tmp_path}/ledger.db")
    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(lambda _: shared_secret(artifacts, ledger), range(8)))
    assert [len(one) for one in found] == [32]
    (file,) = artifacts.folder("serving-secret").iterdir()
    file.write_bytes(b"short")
    with pytest.raises(ArtifactsRefused, match="is no secret of 32 bytes: remove it"):
        shared_secret(artifacts, ledger)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("10.0.0.1", "10.0.0.1", True),
        ("10.0.0.1", "10.0.0.2", False),
        ("2001:db8::1", "2001:db8::ffff", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("", "", True),
    ],
)
def test_a_client_is_its_network_address(one: str, other: str, same: bool) -> None:
    assert (sender_of(one, SECRET) == sender_of(other, SECRET)) == same
    assert not one or one not in sender_of(one, SECRET)


def test_every_process_assigns_the_same_entities() -> None:
    """The numbers are pinned: a change would move entities between the sides during a canary."""
    program = (
        "from ml_assets_tests.serving.test_assignment import is_of_canary as c\n"
        "print([i for i in range(40) if c(f'[\"{i}\"]', model='m', bundle_digest='a' * 64, share=0.2)])"
    )
    for seed in ("0", "1"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        printed = subprocess.check_output([sys.executable, "-c", program], env=environment, text=True)
        assert printed.strip() == str(PINNED)


PINNED = [6, 8, 11, 15, 31, 32, 37]


@given(st.integers(-(2**53), 2**53))
def test_a_number_and_its_text_are_one_entity(value: int) -> None:
    assert len({entity_of({"id": one}, ["id"]) for one in (value, float(value), str(value))}) == 1


@given(st.lists(st.text(), min_size=2, max_size=4), st.data())
def test_different_values_are_different_entities(values: list[str], data: st.DataObject) -> None:
    other = data.draw(st.lists(st.text(), min_size=len(values), max_size=len(values)))
    columns = [str(i) for i in range(len(values))]
    named = entity_of(dict(zip(columns, values, strict=True)), columns)
    assert (named == entity_of(dict(zip(columns, other, strict=True)), columns)) == (values == other)


def test_names_of_entities_are_texts_in_the_order_of_the_columns() -> None:
    row = {
        "tail": "N1",
        "day": date(2013, 1, 2),
        "at": datetime(2013, 1, 2, tzinfo=UTC),
        "late": True,
        "gap": float("nan"),
    }
    assert entity_of(row, ["day", "tail"]) == '["2013-01-02","N1"]'
    assert entity_of(row, ["at", "late", "gap"]) == '["2013-01-02T00:00:00+00:00","true",null]'


@pytest.mark.parametrize(
    ("row", "said"),
    [({}, "'id' is missing"), ({"id": [1]}, "'id' holds list"), ({"id": {}}, "'id' holds dict")],
)
def test_a_row_without_a_usable_entity_is_refused_by_column(row: dict[str, object], said: str) -> None:
    with pytest.raises(EntityRefused, match=said):
        entity_of(row, ["id"])
