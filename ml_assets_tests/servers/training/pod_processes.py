"""Two nodes of a job as two processes on loopback, started like the pods of a launcher: they share nothing but
the store."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from deployment.testbed.processes import free_port
from ml_assets.data.snapshots.split_reader import MANIFEST, open_snapshot
from ml_assets.model.training.data.streaming import open_artifacts
from ml_assets_tests.servers.token_store import TokenStore
from ml_assets_tests.servers.training.s3_server import OwnS3Server
from resources.job.events import TrainingEvent
from resources.job.job import TrainingJob, TrainingResult

NODES = 2


@dataclass
class PodProcesses:
    """One job, attempt after attempt."""

    job: TrainingJob
    storage: OwnS3Server | TokenStore
    url: str
    place: Path
    shard_cache: int | None = None
    attempt: int = 0
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    variables: dict[str, str] | None = None
    """Credentials of the nodes; None if they have those of this process."""

    def __post_init__(self) -> None:
        """Send the input and the job to the store, as a launcher does first."""
        source = open_snapshot(Path(self.job.snapshot)).folder
        open_artifacts(self.url, source.parent).push(source.name, last=MANIFEST)
        folder = self.place / "launcher" / "job"
        folder.mkdir(parents=True)
        (folder / "job.json").write_text(self.job.to_json())
        open_artifacts(self.url, folder.parent).push("job", ["job.json"])

    def start(self, nodes: int = NODES, cause: str = "") -> None:
        """Another attempt, on nodes with empty disks."""
        self.attempt += 1
        port = free_port("127.0.0.1")
        self.processes = [self._start(node, nodes, port, cause) for node in range(nodes)]

    def _start(self, node: int, nodes: int, port: int, cause: str) -> subprocess.Popen[bytes]:
        scratch = self.place / f"attempt-{self.attempt}-node-{node}"
        scratch.mkdir()
        environment = os.environ | self.storage.environment
        if self.variables is not None:
            secret = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
            environment = {key: value for key, value in environment.items() if key not in secret}
            environment |= self.variables
        environment |= {
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "TRAINING_FOLDER": f"{self.url}/job",
            "TRAINING_SNAPSHOT": f"{self.url}/{Path(self.job.snapshot).name}",
            "TRAINING_SCRATCH": str(scratch),
            "TRAINING_NODES": str(nodes),
            "TRAINING_RANKS": str(self.job.settings.workers // NODES),
            "TRAINING_CAUSE": cause,
            "JOB_COMPLETION_INDEX": str(node),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "GLOO_SOCKET_IFNAME": "lo",
        }
        if self.shard_cache is not None:
            environment["TRAINING_SHARD_CACHE"] = str(self.shard_cache)
        with self.log(node).open("wb") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "ml_assets.model.training.node.pod"],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def log(self, node: int) -> Path:
        """Output of a node in this attempt."""
        return self.place / f"attempt-{self.attempt}-node-{node}.log"

    def events(self, node: int = 0) -> list[TrainingEvent]:
        """Return the events of this attempt."""
        lines = self.log(node).read_text(errors="replace").splitlines()
        return [event for event in map(TrainingEvent.from_line, lines) if event is not None]

    def wait_for(self, kind: str, step: int = 0, seconds: float = 90) -> TrainingEvent:
        """The first event of a kind at `step` or later."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and self.processes[0].poll() is None:
            for event in self.events():
                if event.kind == kind and event.step >= step:
                    return event
            time.sleep(0.02)
        raise AssertionError(f"no {kind} at step {step}:\n{self.said()}")

    def wait(self, seconds: float = 120) -> list[int]:
        """Exit codes of the nodes once all have ended."""
        deadline = time.monotonic() + seconds
        try:
            return [process.wait(max(0.1, deadline - time.monotonic())) for process in self.processes]
        except subprocess.TimeoutExpired as error:
            raise AssertionError(f"not ended after {seconds} s:\n{self.said()}") from error

    def said(self) -> str:
        """The end of what each node said."""
        return "\n".join(
            self.log(node).read_text(errors="replace")[-3000:] for node in range(len(self.processes))
        )

    def rank_pids(self) -> list[int]:
        """Return the process ids of this attempt, by rank."""
        return self.wait_for("started").values["pids"]

    def kill_node(self, node: int) -> None:
        """SIGKILL to all of a node's processes at once, as when its machine is gone."""
        os.killpg(self.processes[node].pid, signal.SIGKILL)

    def pull(self) -> Path:
        """The job's folder as it lies in the store, in a folder of its own."""
        cache = self.place / f"pulled-{self.attempt}"
        open_artifacts(self.url, cache).pull("job")
        return cache / "job"

    def result(self) -> TrainingResult:
        """Return the result of the job."""
        return TrainingResult.read(self.pull() / "result.json")

    def end(self) -> None:
        """End all processes of the pod."""
        for process in self.processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
