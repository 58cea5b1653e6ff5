"""Artifacts of a home that move to a real S3, while lake, ledger and MLflow stay files of the home."""

from pathlib import Path

import polars as pl

from ml_assets.model.release.promotion import promote
from ml_assets.model.release.registry import moved_from, readdress
from ml_assets.model.release.releases import bundles_of, registry_of, releases_of
from ml_assets_tests.release.conftest import rows
from ml_assets_tests.servers.running_servers import RunningServers
from ml_assets_tests.serving.released import MODEL, platform_of, register
from resources.ledger import Person
from resources.platform import Platform
from resources.settings import Settings

__all__ = ["rows"]  # a fixture


def test_versions_follow_their_bundles_to_s3(
    servers: RunningServers, tmp_path: Path, rows: pl.DataFrame
) -> None:
    here, on_s3 = tmp_path / "home", servers.settings(tmp_path / "home")
    bundle = register(platform_of(here), rows, "1")
    now = Platform(
        Settings(home=here, artifacts_url=on_s3.artifacts_url, s3_endpoint_url=on_s3.s3_endpoint_url)
    )
    tracking = now.settings.resolved_tracking_uri
    assert registry_of(now).versions(MODEL) == []
    assert moved_from(tracking, bundles_of(now)) == [(here / "artifacts").as_uri()]
    now.artifacts.push(f"bundles/{bundle.digest}")  # as `aws s3 sync` copies it
    changed = readdress(tracking, bundles_of(now))
    assert (changed.versions, changed.missing) == (1, ())
    (version,) = registry_of(now).versions(MODEL)
    assert (version.number, version.bundle_digest) == (1, bundle.digest)
    promoted = promote(releases_of(now), MODEL, 1, by=Person.unchecked("ada"), reason="from the bucket")
    assert promoted.bundle_digest == bundle.digest
    assert moved_from(tracking, bundles_of(now)) == []
