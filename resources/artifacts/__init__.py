"""Folders of files that outlive a process: training folders, snapshots, bundles, reports.

Here: the choice of the storage. The embedded default is a folder of this machine (local). S3 (s3) is imported only if
an address names it: pods and the platform share this package, which imports the standard library only. Not here: the
meaning of the files.

A folder has a name such as `bundles/<digest>`. Code works on the local folder. It calls `push` to let others see its
files, and `pull` to get the files of others. With the embedded default both have nothing to copy.
"""

from pathlib import Path

from resources.artifacts.local import (
    ArtifactMissing,
    Artifacts,
    ArtifactsError,
    ArtifactsRefused,
    ArtifactsUnavailable,
    FolderArtifacts,
    relative,
)

__all__ = [
    "ArtifactMissing",
    "Artifacts",
    "ArtifactsError",
    "ArtifactsRefused",
    "ArtifactsUnavailable",
    "FolderArtifacts",
    "artifacts_of",
    "relative",
]


def artifacts_of(
    url: str | None, cache: Path, endpoint_url: str | None = None, patience_seconds: float = 60.0
) -> Artifacts:
    """Return the artifacts at `url`: None is `cache` itself, `file:///…` a folder, `s3://bucket/prefix` a bucket.

    `cache` holds the local folders of a bucket. `endpoint_url` is the address of an S3 server other than AWS. Requests
    to a server that does not answer are retried for `patience_seconds`. botocore finds the credentials itself
    (`AWS_*`, profiles, instance roles); they never pass through here. Raise `ArtifactsRefused` for another address.
    """
    if url is None:
        return FolderArtifacts(cache)
    if url.startswith("file://"):
        return FolderArtifacts(Path(url.removeprefix("file://")))
    if url.startswith("s3://") and url.removeprefix("s3://").strip("/"):
        from resources.artifacts.s3 import RemoteArtifacts

        return RemoteArtifacts(url, cache, endpoint_url, patience_seconds)
    raise ArtifactsRefused(
        f"artifacts cannot be kept at {url!r}: ML_ASSETS_ARTIFACTS_URL takes s3://bucket/prefix or file:///folder"
    )
