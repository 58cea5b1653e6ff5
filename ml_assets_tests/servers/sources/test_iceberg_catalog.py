"""An Iceberg table with its catalog in PostgreSQL and its files in S3: rows, wrong credentials, outages of either."""

import pytest

from ml_assets.data.sources.protocol import SourceAway, SourceRefused
from ml_assets.extras.streams.iceberg_source import IcebergReader
from ml_assets_tests.components.installation import failure_of
from ml_assets_tests.servers.sources.conftest import URL_ENV, Declare, Warehouse
from ml_assets_tests.servers.sources.object_warehouse import ACCESS, BUCKET, SECRET_ENV, ObjectWarehouse
from ml_assets_tests.sources.iceberg_shop import IcebergShop
from ml_assets_tests.sources.landed_sales import reader_of, require_every_day
from ml_assets_tests.sources.sales import DAYS, SALES, rows

ICEBERG = {"kind": "iceberg", "catalog_env": URL_ENV, "table": "shop.sales", **ACCESS}


@pytest.fixture
def shop(warehouse: Warehouse, bucket: ObjectWarehouse) -> IcebergShop:
    """The sales of all days."""
    env = bucket.server.environment
    files = {
        "s3.endpoint": env["AWS_ENDPOINT_URL"],
        "s3.access-key-id": env["AWS_ACCESS_KEY_ID"],
        "s3.secret-access-key": env["AWS_SECRET_ACCESS_KEY"],
        "s3.region": "us-east-1",
    }
    shop = IcebergShop(warehouse.url, f"s3://{BUCKET}/iceberg", files)
    shop.write(rows(*DAYS))
    return shop


def test_days_land_from_catalog_and_bucket(declare: Declare, shop: IcebergShop, warehouse: Warehouse) -> None:
    installation = declare(ICEBERG)
    result = installation.run(SALES, partition=DAYS[0], last=DAYS[4])
    assert result.success, failure_of(result)
    require_every_day(installation)
    (first,) = (one.snapshot_id for one in shop.snapshots())
    shop.write(rows(*DAYS[1:]))
    before = installation.main.digests(SALES)
    assert declare(ICEBERG | {"snapshot": first}).run(SALES, partition=DAYS[0]).success
    assert installation.main.digests(SALES) == before


def test_faults_of_bucket_and_catalog_are_named(
    declare: Declare, shop: IcebergShop, bucket: ObjectWarehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert declare(ICEBERG).run(SALES, partition=DAYS[0]).success
    before = declare(ICEBERG).main.digests(SALES)

    def fails(kind: type[SourceRefused], *said: str) -> None:
        broken = declare(ICEBERG, patience_seconds=0.5)
        found = failure_of(broken.run(SALES, partition=DAYS[1]))
        for words in said:
            assert words in found
        assert "a-wrong-secret" not in found
        with pytest.raises(SourceRefused) as raised:
            reader_of(broken, IcebergReader).check()
        assert type(raised.value) is kind

    with monkeypatch.context() as patch:
        patch.setenv(SECRET_ENV, "a-wrong-secret")
        fails(SourceRefused, "cannot be read", "Check source.catalog_env")
    with monkeypatch.context() as patch:
        patch.setenv(URL_ENV, _with_password(shop.address, "a-wrong-secret"))
        fails(SourceRefused, "password authentication failed")
    with monkeypatch.context() as patch:
        patch.setenv(URL_ENV, "postgresql://u:a-wrong-secret@127.0.0.1:9/shop")
        fails(SourceAway, "did not answer for 0.5 s")
    with monkeypatch.context() as patch:
        patch.setenv(URL_ENV, shop.address.rpartition("/")[0] + "/postgres")
        fails(SourceRefused, "cannot be read", "iceberg_tables")
    bucket.server.kill()
    fails(SourceAway, "did not answer for 0.5 s")
    bucket.server.start()
    assert declare(ICEBERG).main.digests(SALES) == before
    assert declare(ICEBERG).run(SALES, partition=DAYS[1]).success


def _with_password(address: str, password: str) -> str:
    scheme, _, rest = address.partition("://")
    user, _, host = rest.rpartition("@")
    return f"{scheme}://{user.partition(':')[0]}:{password}@{host}"
