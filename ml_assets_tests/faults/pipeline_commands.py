"""Commands of the pipeline `store_demand` as child processes, which may die or pause at chosen points.

Here: starting them, and what each does. Not here: the points (`kill_points`), what must stand afterwards
(`pipeline_facts`), the servers that are killed while a command pauses (`servers/pipeline`).
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from multiprocessing.synchronize import Barrier
from pathlib import Path

from ml_assets_tests.faults.child_processes import Child, forkserver, start
from ml_assets_tests.faults.demand_project import FEATURES, MODEL, SALES, DemandProject
from ml_assets_tests.faults.kill_points import KillPoint, KillSwitch, PauseBell, PhaseCounter, RankKillPoint
from ml_assets_tests.prepared_home import prepare_home
from resources.settings import Settings
from resources.tracking.mlflow_client import open_client

PHASE_OF = {SALES: "ingest", FEATURES: "features", MODEL: "snapshot"}
_HEAVY = [
    "dagster._core.storage.sqlite_storage", "mlflow.tracking", "mlflow.store.tracking.sqlalchemy_workspace_store",
    "mlflow.store.model_registry.sqlalchemy_workspace_store", "matplotlib.figure", "onnxruntime",
    "onnxscript.function_libs.torch_lib.ops", "pandera.polars", "pyarrow.pandas_compat", "safetensors.torch",
    "torch._dynamo", "torch._inductor.codecache", "torch.onnx", "ml_assets.data.validation.check",
    "ml_assets.model.evaluation.report.report", "ml_assets.model.release.bundle", "ml_assets.model.training.step.load",
]  # fmt: skip


@dataclass(frozen=True)
class PausingCommand(Child):
    """A command that rings a bell at chosen points, and waits for an answer before it goes on."""

    bell: Connection
    """Gives the phase of the point; any answer lets the command go on."""


def context() -> ForkServerContext:
    """Return the context of these commands: seconds less for each."""
    return forkserver(*_HEAVY, __name__)


def start_all(home: Path, kill_at: KillPoint | None = None, of_a_rank: RankKillPoint | None = None) -> Child:
    """Begin to run everything in `home`, in a process that dies at `kill_at`."""
    return start(context(), _output(home), run_all, _variables(home), kill_at, of_a_rank)


def start_pausing(variables: Mapping[str, str], points: Sequence[KillPoint] = ()) -> PausingCommand:
    """Begin to run everything on the installation of `variables`, ringing at each of `points`."""
    ours, theirs = context().Pipe()
    output = _output(Path(variables["ML_ASSETS_HOME"]))
    child = start(context(), output, run_all_pausing, dict(variables), tuple(points), theirs)
    theirs.close()
    return PausingCommand(child.process, output, ours)


def start_launching(home: Path, table: str, weeks: Sequence[str], together: Barrier) -> Child:
    """Begin to materialize some partitions of a table, at the moment when all processes are ready to."""
    return start(context(), _output(home), launch_together, home, table, weeks, together)


def start_tracking(home: Path) -> Child:
    """Begin to make MLflow's tables."""
    return start(context(), _output(home), open_tracker, home)


def run_all(variables: dict[str, str], kill_at: KillPoint | None, of_a_rank: RankKillPoint | None) -> None:
    """Ingest, build, train, evaluate, register; die at `kill_at`.

    Leaves the number of operations of each phase in `operations` beside the home.
    """
    if of_a_rank is not None:
        of_a_rank.announce()
    home = Path(variables["ML_ASSETS_HOME"])
    counter = KillSwitch(home, kill_at)
    _run_all(variables, counter)
    home.with_name("operations").write_text(json.dumps(counter.operations))


def run_all_pausing(variables: dict[str, str], points: Sequence[KillPoint], bell: Connection) -> None:
    """Ingest, build, train, evaluate, register; ring at each of `points` and wait for the answer."""

    def ring(phase: str) -> None:
        bell.send(phase)
        bell.recv()

    _run_all(variables, PauseBell(Path(variables["ML_ASSETS_HOME"]), points, ring))


def launch_together(home: Path, table: str, weeks: Sequence[str], together: Barrier) -> None:
    """`ml-assets launch <table> <first>..<last>`."""
    project = DemandProject.at(home)
    _ = project.defs, project.instance
    together.wait(120)
    project.launch(table, weeks[0], weeks[-1])


def open_tracker(home: Path) -> None:
    """Open the tracker, as the first training in a home does."""
    open_client(DemandProject.at(home).settings.resolved_tracking_uri.reveal())


def _run_all(variables: dict[str, str], counter: PhaseCounter) -> None:
    os.environ.update(variables)
    counter.enter("ingest")
    settings = Settings()
    prepare_home(settings)
    project = DemandProject(settings)
    counter.follow(project.instance)
    project.run_all(lambda name: counter.enter(PHASE_OF[name]) if name != SALES else None)
    counter.enter("")


def _variables(home: Path) -> dict[str, str]:
    return {"ML_ASSETS_HOME": str(home), "ML_ASSETS_AUTHOR": "ada"}


def _output(home: Path) -> Path:
    return home.with_name("said")
