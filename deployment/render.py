"""`python -m deployment.render` (`make render`): writes the files that are kept in git and made from others.

Belongs here: files of the Helm chart, and what the chart makes of the example team. Not here: Dagster's settings
(`ml_assets.dagster_host.instance`), the form of the chart's values (`deployment.chart_schema`), pages of the docs
(`deployment.site.reference_pages`), and tables of measured claims (`deployment.site.claims_page`). A test fails if a
file in git differs from its rendering.
"""

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from deployment.chart_schema import values_schema
from deployment.site.claims_page import claims_tables
from deployment.site.reference_pages import reference
from deployment.testbed.build import BuildFailed, build
from ml_assets.dagster_host.instance import on_a_cluster
from ml_assets.foundation.checkout import ROOT, version

HELM = Path("deployment", "helm")
CHART = HELM / "ml-assets"
EXAMPLE = HELM / "team-example.yaml"
EVERYTHING = HELM / "everything.yaml"
TEAM = "team-example"
OPTIONS = ("queue", "jobset", "trainjob", "metrics", "ray", "proxy", "oauth2Proxy", "api", "serving")

ROLE = "arn:aws:iam::000000000000:role/workers"
"""Role of the workers in `EVERYTHING`: the chart grants the launcher what it needs for it."""


def rendered() -> dict[Path, str]:
    """Return the text of each file of the chart that Python makes, by its path below the root of the checkout."""
    return {
        CHART / "Chart.yaml": _text(
            "Rendered by `make render`: the version is that of pyproject.toml.",
            {
                "apiVersion": "v2",
                "name": "ml-assets",
                "description": "One team: Dagster with its pipelines, accounts, limits, network policies, queue.",
                "type": "application",
                "version": version(),
                "appVersion": version(),
                "kubeVersion": ">=1.30.0-0",  # ValidatingAdmissionPolicy
            },
        ),
        CHART / "files" / "dagster.yaml": _text(
            "Dagster's instance on a cluster.\n"
            "Rendered by `make render` from ml_assets/dagster_host/instance.py, which says why: change it there.",
            on_a_cluster(),
        ),
        CHART / "values.schema.json": json.dumps(values_schema(), indent=1) + "\n",
    }


def everything(helm: Path) -> str:
    """Return the objects of the example team with each option of the chart, as the program `helm` renders them."""
    options = [f"--set={option}.enabled=true" for option in OPTIONS]
    options.append(f"--set=settings.ML_ASSETS_KUBERNETES_S3_ROLE={ROLE}")
    words = [
        str(helm),
        "template",
        "ml-assets",
        CHART,
        f"--namespace={TEAM}",
        f"--values={EXAMPLE}",
        *options,
    ]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildFailed(done.stderr)
    return _head() + done.stdout


def is_current() -> bool:
    """Return whether `EVERYTHING` was rendered from these files. Nothing is rendered for it."""
    return (ROOT / EVERYTHING).read_text().startswith(_head())


def _head() -> str:
    """Return the comment of `EVERYTHING`, with a hash of all that it is made from."""
    sources = sorted(path for path in (ROOT / CHART).rglob("*") if path.is_file())
    digest = hashlib.sha256()
    for path in (*sources, ROOT / EXAMPLE):
        digest.update(f"{path.relative_to(ROOT)}\0{path.read_text()}\0".encode())
    return (
        "# The chart with team-example.yaml and each option, for review and tests: shows what a change of it changes.\n"
        "# Not to be applied: `helm install` knows the order. Rendered by `make render ARGS=--chart` from files with\n"
        f"# the SHA-256 {digest.hexdigest()}.\n"
    )


def _text(header: str, content: dict[str, Any]) -> str:
    lines = "".join(f"# {line}\n" for line in header.splitlines())
    return lines + yaml.safe_dump(content, sort_keys=False, width=120)


def main() -> None:
    """Write each file that differs from its rendering, and name it. With `--chart` also `EVERYTHING`, which needs Helm:
    it is built once, in minutes.
    """
    for path, text in {**rendered(), **reference(), **claims_tables(ROOT)}.items():
        _write(path, text)
    if "--chart" in sys.argv[1:]:
        _write(EVERYTHING, everything(build("helm") / "helm"))


def _write(path: Path, text: str) -> None:
    if not (ROOT / path).exists() or (ROOT / path).read_text() != text:
        (ROOT / path).write_text(text)
        sys.stdout.write(f"{path}\n")


if __name__ == "__main__":
    main()
