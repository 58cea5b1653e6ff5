"""Process that moves an embedded lake to a repository: `python -m … FOLDER URL REPOSITORY KEY SECRET CACHE`."""

import sys
from pathlib import Path

from resources.lake.lakefs import LakeFSStore
from resources.lake.lakefs_api import LakeFSApi
from resources.lake.local import LocalStore
from resources.lake.migration import Migration

if __name__ == "__main__":
    folder, url, repository, key, secret, cache = sys.argv[1:]
    target = LakeFSStore(LakeFSApi(url, repository, key, secret), Path(cache))
    Migration(LocalStore(Path(folder)), target).copy(print)
