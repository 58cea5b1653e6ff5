"""Processes that do what a person does at a terminal, and may die at it. Importable, so that children find it.

Here: starting them, and what each does. Not here: when they die (`moments`), what must stand then (`installation`).
"""

import json
import multiprocessing
import os
from collections.abc import Callable, Sequence
from multiprocessing.context import ForkServerContext, ForkServerProcess
from multiprocessing.synchronize import Barrier
from pathlib import Path

from ml_assets_tests.chaos.moments import Clock, Moment, RankMoment
from ml_assets_tests.chaos.shop import FEATURES, MODEL, SALES, Shop
from resources.mlflow_client import open_client

PHASE_OF = {SALES: "ingest", FEATURES: "features", MODEL: "snapshot"}
_HEAVY = [
    "dagster._core.storage.sqlite_storage", "mlflow.tracking", "mlflow.store.tracking.sqlalchemy_workspace_store",
    "mlflow.store.model_registry.sqlalchemy_workspace_store", "matplotlib.figure", "onnxruntime",
    "onnxscript.function_libs.torch_lib.ops", "pandera.polars", "pyarrow.pandas_compat", "safetensors.torch",
    "torch._dynamo", "torch._inductor.codecache", "torch.onnx", "ml_assets.validation.check",
    "ml_assets.evaluation.report", "ml_assets.release.bundle", "ml_assets.training.step.load",
]  # fmt: skip


def context() -> ForkServerContext:
    """Children of a server that has imported everything and run nothing: seconds less for each."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*_HEAVY, __name__])
    return context


def start(home: Path, moment: Moment | None = None, of_a_rank: RankMoment | None = None) -> ForkServerProcess:
    """Begin to run everything in `home`, in a process of its own that dies at `moment`."""
    return _start(run_all, home, moment, of_a_rank)


def start_launching(home: Path, table: str, weeks: Sequence[str], together: Barrier) -> ForkServerProcess:
    """Begin to materialize some partitions of a table, at the moment when all processes are ready to."""
    return _start(launch_together, home, table, weeks, together)


def start_tracking(home: Path) -> ForkServerProcess:
    """Begin to make MLflow's tables."""
    return _start(open_tracker, home)


def said(home: Path) -> str:
    """The end of what processes of this home wrote to their terminals."""
    return _said(home).read_text()[-4000:]


def run_all(home: Path, moment: Moment | None, of_a_rank: RankMoment | None) -> None:
    """Ingest, build, train, evaluate, register. Leaves the operations it counted in `operations` beside the
    home."""
    if of_a_rank is not None:
        of_a_rank.announce()
    clock = Clock(home, moment)
    clock.enter("ingest")
    shop = Shop.at(home)
    clock.follow(shop.instance)
    shop.run_all(lambda name: clock.enter(PHASE_OF[name]) if name != SALES else None)
    clock.enter("")
    home.with_name("operations").write_text(json.dumps(clock.operations))


def launch_together(home: Path, table: str, weeks: Sequence[str], together: Barrier) -> None:
    """`ml-assets launch <table> <first>..<last>`."""
    shop = Shop.at(home)
    _ = shop.defs, shop.instance
    together.wait(120)
    shop.launch(table, weeks[0], weeks[-1])


def open_tracker(home: Path) -> None:
    """Open the tracker, as the first training in a home does."""
    open_client(Shop.at(home).settings.resolved_tracking_uri.reveal())


def _start(work: Callable[..., None], home: Path, *arguments: object) -> ForkServerProcess:
    process = context().Process(target=_at_a_terminal, args=(work, home, *arguments))
    process.start()
    return process


def _at_a_terminal(work: Callable[..., None], home: Path, *arguments: object) -> None:
    terminal = os.open(_said(home), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(terminal, 1)
    os.dup2(terminal, 2)
    work(home, *arguments)


def _said(home: Path) -> Path:
    return home.with_name("said")
