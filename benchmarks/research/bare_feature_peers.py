"""Feast and duckdb on the inputs of `point_in_time.py`. Runs in the peers' environment, without this project.

`bare_feature_peers.py PEER FOLDER` reads `rows.parquet` and `facts.parquet` of FOLDER, writes the joined rows to
`PEER.parquet`, sorted by row number, and prints one JSON object: the seconds of the join. Peers: `feast-dask`,
`feast-duckdb`, and `duckdb`, which joins with both times in SQL.
"""

import json
import sys
import time
from datetime import timedelta
from pathlib import Path

TTL = timedelta(days=30)
BITEMPORAL = """
    select rows.row, arg_max(facts.value, (facts.happened_at, facts.known_at)) as value
    from rows left join facts on facts.key = rows.key
        and facts.happened_at <= rows.at and facts.known_at <= rows.at
        and facts.happened_at >= rows.at - interval 30 day
    group by rows.row order by rows.row
"""


def feast(store: str, folder: Path) -> float:
    import pandas as pd
    from feast import Entity, FeatureStore, FeatureView, Field, FileSource, RepoConfig, ValueType
    from feast.types import Float64

    config = RepoConfig(
        project="peers",
        provider="local",
        registry=str(folder / f"{store}-registry.db"),
        offline_store={"type": store},
        online_store=None,
        entity_key_serialization_version=3,
    )
    entity = Entity(name="key", join_keys=["key"], value_type=ValueType.INT64)
    source = FileSource(
        path=str(folder / "facts.parquet"),
        timestamp_field="happened_at",
        created_timestamp_column="known_at",
    )
    view = FeatureView(
        name="facts",
        entities=[entity],
        ttl=TTL,
        schema=[Field(name="value", dtype=Float64)],
        source=source,
    )
    repository = FeatureStore(config=config)
    repository.apply([entity, view])
    rows = pd.read_parquet(folder / "rows.parquet").rename(columns={"at": "event_timestamp"})
    began = time.perf_counter()
    joined = repository.get_historical_features(entity_df=rows, features=["facts:value"]).to_df()
    seconds = time.perf_counter() - began
    joined[["row", "value"]].sort_values("row").to_parquet(folder / f"feast-{store}.parquet", index=False)
    return seconds


def duckdb(folder: Path) -> float:
    import duckdb as library

    database = library.connect()
    for name in ("rows", "facts"):
        database.execute(f"create table {name} as select * from '{folder / name}.parquet'")
    began = time.perf_counter()
    database.execute(f"create table joined as {BITEMPORAL}")
    seconds = time.perf_counter() - began
    database.execute(f"copy (from joined order by row) to '{folder / 'duckdb.parquet'}' (format parquet)")
    return seconds


if __name__ == "__main__":
    _, peer, given = sys.argv
    kind, _, store = peer.partition("-")
    taken = feast(store, Path(given)) if kind == "feast" else duckdb(Path(given))
    sys.stdout.write(json.dumps({"seconds": taken}) + "\n")
