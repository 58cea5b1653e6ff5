"""Run the GPU benchmark: `benchmarks/gpu/run.sh`, or `python -m benchmarks.gpu` if the packages are installed.

Trains through the project's launcher on one GPU: collectives, precisions, layouts, memory, utilization, a kill, the
same bits twice. Prints a table and one line of JSON, and writes `gpu.json` with all metrics of all trainings. `--device
cpu` runs the same code in a minute without a GPU. It proves that the benchmark works; its numbers mean nothing.
"""

import argparse
import dataclasses
import json
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import torch

from benchmarks._report import Result, emit
from benchmarks.gpu.cases import PARTS, Bench, note


def main() -> int:
    """Measure, print, write, decide."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", help=f"some of {', '.join(PARTS)}; all by default")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--out", type=Path, default=Path("build/gpu"), help="folder of gpu.json")
    parser.add_argument("--json", action="store_true", help="print nothing but the JSON line")
    arguments = parser.parse_args()
    if unknown := set(arguments.parts) - PARTS.keys():
        parser.error(f"no part {', '.join(sorted(unknown))}; the parts are {', '.join(PARTS)}")
    if arguments.device == "cuda" and not torch.cuda.is_available():
        print(
            "torch finds no GPU here. Try it without one: benchmarks/gpu/run.sh --device cpu", file=sys.stderr
        )
        return 2
    began = datetime.now(UTC)
    results: list[Result] = []
    with tempfile.TemporaryDirectory(prefix="gpu-") as folder:
        bench = Bench(Path(folder), arguments.device)
        for result in bench.results(arguments.parts or list(PARTS)):
            results.append(result)
            note(f"{'ok   ' if result.ok else 'SHORT'} {result.name}: {result.value:.4g} {result.unit}")
            _write(
                arguments.out, bench, results, began
            )  # after each part: an interrupted run leaves its results
    return emit(results, json=arguments.json)


def _write(out: Path, bench: Bench, results: list[Result], began: datetime) -> None:
    out.mkdir(parents=True, exist_ok=True)
    document = {
        "began": began.isoformat(timespec="seconds"),
        "seconds": round((datetime.now(UTC) - began).total_seconds()),
        "machine": _machine(bench.device),
        "results": [dataclasses.asdict(result) for result in results],
        "trainings": bench.figures,
    }
    (out / "gpu.json").write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")


def _machine(device: str) -> dict[str, str]:
    """Return the facts on which the numbers depend."""
    facts = {"torch": str(torch.__version__)}
    if device == "cuda":
        facts["card"] = torch.cuda.get_device_name(0)
        from torch.cuda import nccl

        facts["cuda"] = str(torch.version.cuda)
        facts["nccl"] = ".".join(map(str, nccl.version()))
    return facts


if __name__ == "__main__":
    raise SystemExit(main())
