"""Parts of the platform from which answers are made, each with a small look at its present state.

A route names every part that its answer reads and that may change. Declarations are no part: a running API keeps those
of its start. Nor is what never changes: contents of a commit, events of a run that has ended. Not here: keeping an
answer (`answers`).
"""

import time
from collections.abc import Callable, Hashable
from functools import partial
from pathlib import Path

import dagster as dg

from ml_assets.components.training_pipeline import TRAINING_SET
from ml_assets.context.project import Project
from ml_assets.context.runs import Runs
from ml_assets.dagster_host.marks import asset_mark, run_mark
from ml_assets.extras.api.answers import Part, PartLook
from ml_assets.model.steps.usage import UsageDamaged, read_usage_file
from resources.job.events import USAGE, folder_of_training
from resources.tracking.mlflow_client import embedded_file

_SETTLED_SECONDS = 0.1
"""Age from which the time of a file tells each later change: a file system counts time in steps of some milliseconds.
"""


class PartsRead:
    """Parts of one project."""

    def __init__(self, project: Project) -> None:
        platform = project.platform
        self._project, self._runs = project, Runs(project)
        self._folders: dict[str, str] = {}
        """Run → folder of its training, which stays."""
        self._ended: dict[str, str] = {}
        """File of a training that reserves nothing more → its state."""
        self.main: Part = _always(PartLook("lake", "main", partial(platform.lake.resolve, "main")))
        """Commit of main."""
        self.decisions: Part = _always(PartLook("ledger", "decisions", platform.ledger.models.head))
        """Chain of the ledger: decisions, evaluations, launches, accounts."""
        uri = project.settings.resolved_tracking_uri.reveal()
        self.tracked: Part = _always(PartLook("tracker", "runs", partial(_state_of, uri)))
        """MLflow's experiments and versions, without files. Only an embedded one tells when it changed."""
        self.usage: Part = _always(PartLook("artifacts", "usage", self._usage))
        """Reservations of all trainings, and the table of prices. While one runs, its costs grow with each second."""

    def verdicts(self, kind: str) -> Part:
        """Return the part that is the verdicts on the table `kind/{table}`."""
        newest = self._project.platform.ledger.newest_change
        return _each("ledger", "table", lambda table: newest(f"{kind}/{table}"), kind)

    def run(self) -> Part:
        """Return the part that is the row of the run `{id}` of Dagster."""
        return _each("dagster", "id", lambda run_id: run_mark(self._project.instance, run_id))

    def training_sets(self) -> Part:
        """Return the part that is the training sets of the model `{name}` among Dagster's events."""

        def see(model: str) -> Hashable:
            return asset_mark(self._project.instance, dg.AssetKey([model, TRAINING_SET]))

        return _each("dagster", "name", see)

    def files_of_tracked(self) -> Part:
        """Return the part that is the files of the run `{run}` of MLflow."""
        attached = self._project.platform.tracker.attached
        return _each("tracker", "run", lambda run_id: tuple(attached(run_id).items()))

    def checkpoints(self) -> Part:
        """Return the part that is the checkpoints and events of the training of the run `{id}` of Dagster."""
        return _each("artifacts", "id", self._checkpoints_of)

    def _checkpoints_of(self, run_id: str) -> Hashable:
        folder = self._folders.get(run_id)
        if folder is None:
            training = self._runs.training(run_id)
            made = self._runs.training_set(training)
            if not made:  # it comes
                return None
            folder = folder_of_training(training.model, str(made["fingerprint"]))
            self._folders[run_id] = folder
        return tuple(self._project.platform.artifacts.states(folder).items())

    def _usage(self) -> Hashable:
        artifacts, prices = self._project.platform.artifacts, self._project.settings.prices
        table = () if prices is None else _state_of_files(prices)
        if table is None:
            return None
        states = artifacts.states(USAGE)
        for file, state in states.items():
            if self._ended.get(file) == state:
                continue
            try:
                record = read_usage_file(artifacts, f"{USAGE}/{file}")
            except UsageDamaged:  # a fault of the answers that need it, which say so, and of no others
                return None
            if record is None or record.is_open:
                return None
            self._ended[file] = state
        return tuple(states.items()), table


def _always(look: PartLook) -> Part:
    return lambda _: look


def _each(place: str, parameter: str, see: Callable[[str], Hashable], kind: str = "") -> Part:
    """Return a part for each value of a parameter of the path."""
    return lambda given: PartLook(place, (parameter, kind, given[parameter]), partial(see, given[parameter]))


def _state_of(uri: str) -> Hashable:
    """Return the state of an embedded MLflow's file; None for a server, or within moments of a change."""
    path = embedded_file(uri)
    # SQLite writes to the second file first.
    return None if path is None else _state_of_files(path, Path(f"{path}-wal"))


def _state_of_files(*files: Path) -> tuple[tuple[int, int, int], ...] | None:
    """Return what changes with the content of files; None within moments of a change."""
    found: list[tuple[int, int, int]] = []
    for one in files:
        try:
            stat = one.stat()
        except FileNotFoundError:
            continue
        if not stat.st_size:  # readers of SQLite make and remove an empty one
            continue
        if time.time() - stat.st_mtime < _SETTLED_SECONDS:
            return None
        found.append((stat.st_ino, stat.st_size, stat.st_mtime_ns))
    return tuple(found)
