"""Trainings of the GPU benchmark, and the bar of each measurement (T1, T2, T9, T10).

Here: the trainings, small and large. Not here: running one (trainings), the table (__main__).
"""

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks._report import Result
from benchmarks.gpu.data import columns, texts
from benchmarks.gpu.trainings import KillOnce, Outcome, job_of, note, train
from ml_assets.data.snapshots.split_reader import Snapshot
from resources.job.training_settings import Parallel, TrainingSettings

ROOT = Path(__file__).parents[2]
FLIGHTS = "benchmarks.gpu.models.flights"
DECODER = "benchmarks.gpu.models.decoder"
READ_BYTES = "ml_assets_tests.layouts.decoder.read_bytes"


@dataclass(frozen=True, kw_only=True)
class CaseSizes:
    """Sizes for one kind of machine."""

    rows: int
    """Training rows of the table of columns."""
    batch: int
    flights_epochs: int
    small: dict[str, int]
    """The decoder whose losses are compared."""
    small_rows: int
    large: dict[str, int]
    """The decoder whose GPU utilization is measured."""
    large_rows: int
    large_batch: int
    fed_steps: int


GPU = CaseSizes(
    rows=2_000_000,
    batch=8192,
    flights_epochs=4,
    small={"tokens": 256, "width": 512, "heads": 8, "blocks": 6},
    small_rows=6400,
    large={"tokens": 1024, "width": 1024, "heads": 16, "blocks": 16},
    large_rows=1600,
    large_batch=32,
    fed_steps=150,
)
"""Sizes with which all parts take about ten minutes on one H100, most of them to start processes."""
CPU = CaseSizes(
    rows=20_000,
    batch=1000,
    flights_epochs=3,
    small={"tokens": 32, "width": 32, "heads": 4, "blocks": 2},
    small_rows=640,
    large={"tokens": 64, "width": 64, "heads": 4, "blocks": 2},
    large_rows=480,
    large_batch=32,
    fed_steps=20,
)
"""Sizes for tests of the benchmark itself without a GPU. Their numbers mean nothing."""


class Bench:
    """The trainings of one run of the benchmark, in one folder."""

    def __init__(self, folder: Path, device: str) -> None:
        self._folder, self.device = folder, device
        self.scale = GPU if device == "cuda" else CPU
        self._made: dict[str, Snapshot] = {}
        self.figures: dict[str, dict[str, float]] = {}
        """Metrics by the name of the training, for the JSON."""

    def results(self, names: list[str]) -> Iterator[Result]:
        """Run the parts in `names` one after the other. A part that raises becomes a result that misses its bar."""
        for name in names:
            note(f"== {name}")
            try:
                yield from PARTS[name](self)
            except Exception as error:  # the table must be printed, even if a part fails
                note(f"{name} failed: {type(error).__name__}: {error}")
                yield Result(
                    name=f"{name}: {type(error).__name__}: {str(error)[:300]}",
                    value=0.0,
                    unit="",
                    bar="runs to its end",
                    ok=False,
                )

    @property
    def table(self) -> Snapshot:
        """Return the snapshot of columns, made once."""
        return self._snapshot("columns", lambda at: columns(at, self.scale.rows))

    def text(self, rows: int, tokens: int) -> Snapshot:
        """Return the snapshot of texts, made once."""
        return self._snapshot(f"texts-{rows}-{tokens}", lambda at: texts(at, rows, tokens))

    def flights(self, name: str, on_event: Any = None, **changes: Any) -> Outcome:
        """Train the flights network."""
        settings = TrainingSettings(
            **{
                "epochs": self.scale.flights_epochs,
                "patience": 100,
                "global_batch": self.scale.batch,
                "workers": 1,
                "log_every_steps": 10,
                **changes,
            }
        )
        return self._train(name, self.table, FLIGHTS, {}, settings, on_event=on_event)

    def decoder(self, name: str, *, large: bool, **changes: Any) -> Outcome:
        """Train the small or the large decoder for an epoch."""
        shape = self.scale.large if large else self.scale.small
        rows = self.scale.large_rows if large else self.scale.small_rows
        settings = TrainingSettings(
            **{
                "epochs": 1,
                "global_batch": self.scale.large_batch if large else 64,
                "workers": 1,
                "log_every_steps": 5,
                "learning_rate": 3e-4,
                **changes,
            }
        )
        snapshot = self.text(rows, shape["tokens"])
        return self._train(
            name, snapshot, DECODER, shape, settings, decode=READ_BYTES, objective="next_token"
        )

    def fed(self, name: str, **changes: Any) -> dict[str, Any]:
        """Return the output of `fed` for the flights network."""
        settings = TrainingSettings(global_batch=self.scale.batch, workers=1, **changes)
        job = job_of(self.table, FLIGHTS, {}, settings)
        folder = self._folder / name
        folder.mkdir()
        (folder / "job.json").write_text(job.to_json())
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "torch.distributed.run",
                "--nproc-per-node=1",
                "--rdzv-backend=c10d",
                "--rdzv-endpoint=127.0.0.1:0",
                "--local-addr=127.0.0.1",
                "-m",
                "benchmarks.gpu.fed",
                str(folder / "job.json"),
                str(folder),
                str(self.scale.fed_steps),
            ],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        self._check_device(found["device"], name)
        self.figures[name] = found
        return found

    def _train(self, name: str, *arguments: Any, on_event: Any = None, **others: Any) -> Outcome:
        if on_event is not None:
            others["on_event"] = on_event
        snapshot, function, hyperparameters, settings = arguments
        outcome = train(name, snapshot, self._folder, function, hyperparameters, settings, **others)
        self._check_device(outcome.device, name)
        self.figures[name] = outcome.figures()
        note(f"{name}: " + ", ".join(f"{key} {value:.4g}" for key, value in self.figures[name].items()))
        return outcome

    def _check_device(self, found: str, name: str) -> None:
        if found != self.device:
            raise RuntimeError(f"{name} ran on {found}, not on {self.device}")

    def _snapshot(self, name: str, make: Callable[[Path], Snapshot]) -> Snapshot:
        if name not in self._made:
            self._made[name] = make(self._folder / name)
        return self._made[name]


def collectives_and_feeding(bench: Bench) -> Iterator[Result]:
    """Run every collective over NCCL, then fed steps against one batch repeated."""
    found = bench.fed("fed")
    yield Result(
        name=f"collectives over {found['backend']}{' ' + found['nccl'] if 'nccl' in found else ''}",
        value=7,
        unit="operations",
        bar="each gives its value",
        ok=True,
    )
    yield Result(
        name="steps fed, against one batch repeated",
        value=found["steps_per_second"],
        unit="steps/s",
        ratio=found["fed_to_repeated"],
        bar="≥ 0.98 ×",
        ok=found["fed_to_repeated"] >= 0.98 or bench.device == "cpu",
    )


def flights_precisions(bench: Bench) -> Iterator[Result]:
    """Measure losses and speed of the flights network in every precision of the device."""
    yield from _precisions(bench, "flights", lambda name, **changes: bench.flights(name, **changes))


def decoder_precisions(bench: Bench) -> Iterator[Result]:
    """Measure losses and speed of the small decoder."""
    yield from _precisions(
        bench, "decoder", lambda name, **changes: bench.decoder(name, large=False, **changes)
    )


def large_decoder(bench: Bench) -> Iterator[Result]:
    """Measure the GPU: utilization, MFU, wait for data, a checkpoint, and memory with each setting that saves it."""
    plain = bench.decoder("large", large=True, precision="bf16")
    figures = plain.figures()
    rows = figures["training_throughput_samples_per_sec"]
    yield Result(
        name="large decoder, bf16",
        value=rows * bench.scale.large["tokens"],
        unit="tokens/s",
        bar="told",
        ok=True,
    )
    yield Result(
        name=f"large decoder: checkpoint, durable after {figures['checkpoint_duration_ms'] / 1000:.1f} s",
        value=figures["checkpoint_blocked_ms"],
        unit="ms blocked",
        bar="told",
        ok=True,
    )
    yield _wait("large decoder", figures, bench)
    yield _at_least("large decoder: GPU utilization", figures.get("gpu_utilization_pct"), 90.0, "%", bench)
    yield _at_least("large decoder: MFU", figures.get("mfu"), 0.35, "", bench)
    ways: dict[str, dict[str, Any]] = {
        "gradient_accumulation_steps 4": {"gradient_accumulation_steps": 4},
        "activation_checkpointing full": {"activation_checkpointing": "full"},
        "FSDP2 full": {"parallel": Parallel(shard="full")},
        "FSDP2 full, activation_checkpointing full": {
            "parallel": Parallel(shard="full"),
            "activation_checkpointing": "full",
        },
        "compile": {"compile": True},
    }
    if bench.device == "cpu":
        del ways["compile"]  # a minute of a C++ compiler: the layout tests compile
    for name, changes in ways.items():
        other = bench.decoder(f"large, {name}", large=True, precision="bf16", **changes).figures()
        differs = abs(other["loss"] / figures["loss"] - 1)
        peak, before = other.get("gpu_peak_memory_gb"), figures.get("gpu_peak_memory_gb")
        yield Result(
            name=f"large decoder, {name}: loss {other['loss']:.4f} against {figures['loss']:.4f}"
            + ("" if peak is None or before is None else f"; {peak:.1f} GB at most against {before:.1f}"),
            value=other["training_throughput_samples_per_sec"] * bench.scale.large["tokens"],
            unit="tokens/s",
            ratio=other["training_throughput_samples_per_sec"] / rows,
            bar="loss within 1 %",
            ok=differs <= 0.01,
        )


def bitwise(bench: Bench) -> Iterator[Result]:
    """Train twice, and once with a killed rank; compare the digests."""
    changes: dict[str, Any] = {
        "determinism": "bitwise",
        "lanes": 4,
        "checkpoint_every_steps": 20,
        "epochs": max(bench.scale.flights_epochs // 2, 2),
    }
    first = bench.flights("bitwise", **changes)
    again = bench.flights("bitwise again", **changes)
    yield _same("flights, bitwise: trained twice", first, again)
    kill = KillOnce(step=first.result.steps // 2)
    killed = bench.flights("bitwise killed", on_event=kill, **changes)
    recovered = [event for event in killed.events if event.kind == "recovered"]
    if not recovered:
        raise RuntimeError(f"nothing was recovered; killed at step {kill.at_step}")
    seconds = float(recovered[0].values["seconds"])
    yield dataclasses.replace(
        _same(f"flights, bitwise: rank killed at step {kill.at_step}, resumed", first, killed),
        value=seconds,
        unit="s to the next step",
    )
    shape = {"determinism": "bitwise", "lanes": 4}
    one = bench.decoder("decoder bitwise", large=False, **shape)
    two = bench.decoder("decoder bitwise again", large=False, **shape)
    yield _same("decoder, bitwise: trained twice", one, two)


PARTS: dict[str, Callable[[Bench], Iterator[Result]]] = {
    "collectives": collectives_and_feeding,
    "decoder": decoder_precisions,
    "large": large_decoder,
    "flights": flights_precisions,
    "bitwise": bitwise,
}
"""Parts by name, in the order of what they tell: a lent machine can be taken back before the end."""


def _precisions(bench: Bench, what: str, run: Callable[..., Outcome]) -> Iterator[Result]:
    plain = run(f"{what} fp32").figures()
    yield Result(
        name=f"{what}, fp32: validation loss {plain['validation_loss']:.4f}",
        value=plain["training_throughput_samples_per_sec"],
        unit="rows/s",
        bar="told",
        ok=True,
    )
    yield _wait(f"{what}, fp32", plain, bench)
    for precision in ("bf16", "fp16") if bench.device == "cuda" else ("bf16",):
        other = run(f"{what} {precision}", precision=precision).figures()
        differs = abs(other["validation_loss"] / plain["validation_loss"] - 1)
        yield Result(
            name=f"{what}, {precision}: validation loss {other['validation_loss']:.4f}",
            value=other["training_throughput_samples_per_sec"],
            unit="rows/s",
            ratio=other["training_throughput_samples_per_sec"] / plain["training_throughput_samples_per_sec"],
            bar="validation loss within 1 % of fp32",
            ok=differs <= 0.01,
        )


def _same(name: str, one: Outcome, other: Outcome) -> Result:
    first, second = one.weights_digest(), other.weights_digest()
    return Result(
        name=f"{name}: {first[:12]} and {second[:12]}",
        value=float(first == second),
        unit="",
        bar="the same SHA-256",
        ok=first == second,
    )


def _wait(name: str, figures: dict[str, float], bench: Bench) -> Result:
    share = figures["data_wait_share"]
    return Result(
        name=f"{name}: share of the time that waits for data",
        value=share,
        unit="",
        bar="≤ 0.01 on a GPU",
        ok=share <= 0.01 or bench.device == "cpu",
    )


def _at_least(name: str, value: float | None, least: float, unit: str, bench: Bench) -> Result:
    """Return the result for a bar that only a GPU must meet."""
    if value is None and bench.device == "cuda":
        return Result(name=name, value=0.0, unit="not reported", bar=f"≥ {least:g}", ok=False)
    return Result(
        name=name,
        value=value or 0.0,
        unit=unit,
        bar=f"≥ {least:g} on a GPU",
        ok=bench.device == "cpu" or (value or 0) >= least,
    )
