"""The commands of docs/how-to/api.md, typed in one shell: launch, metrics, promotion, with `curl` alone."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from deployment.testbed.processes import free_port
from ml_assets.model.release.releases import releases_of
from ml_assets_tests.tour.pages import ROOT
from resources.platform import Platform
from resources.settings import Settings

PAGE = ROOT / "docs" / "how-to" / "api.md"
PATIENCE = 900


@pytest.mark.timeout(PATIENCE + 60)
def test_the_page_of_the_api_leads_from_a_launch_to_a_promotion(tmp_path: Path) -> None:
    """Only the ports differ from the page, and the shell ends what it started."""
    script = "\n".join(re.findall(r"^```bash\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL))
    for port in ("3001", "3002"):
        script = script.replace(f":{port}", f":{(free := free_port())}").replace(
            f"--port {port}", f"--port {free}"
        )
        if port == "3002":
            script = script.replace("ml-assets api ", f"ml-assets api --port {free} ")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    shell = subprocess.Popen(
        ["bash", "-euo", "pipefail", "-c", f"trap 'kill $(jobs -p)' EXIT\n{script}"],
        cwd=tmp_path,
        env=os.environ | {"ML_ASSETS_HOME": str(tmp_path / "home"), "PATH": path},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        said, _ = shell.communicate(timeout=PATIENCE)
    finally:
        if shell.poll() is None:
            os.killpg(shell.pid, signal.SIGKILL)
    assert shell.returncode == 0, said
    assert re.search(r'event: metrics\ndata: {"step": \d+, .*"loss": ', said), said
    assert 'event: end\ndata: {"state": "completed"}' in said
    assert '"kept":["newest"' in said
    assert '"code":"role_needed","detail":"this needs the role approver, and bob is an operator' in said
    assert '"stage":"canary"' in said
    platform = Platform(Settings(home=tmp_path / "home"))
    first, again, sent = platform.ledger.models.evaluations("store_demand")
    assert {(row.by.name, row.launched_in) for row in (first, again, sent)} == {("bob", "pages")}
    releases = releases_of(platform)
    one, two = (releases.store.open(row.bundle_digest).facts.lineage for row in (first, again))
    assert one.weights_sha256 == two.weights_sha256  # `determinism: bitwise`
    assert one.fingerprint != two.fingerprint
    restored = re.fullmatch(r"step (\d+) of training (\w{16})", two.configuration["restored_from"])
    assert restored is not None
    assert one.fingerprint.startswith(restored[2])
    assert re.search(rf'"restored_from":"[0-9a-f-]{{36}}/{restored[1]}"', said), said
    elsewhere = releases.store.open(sent.bundle_digest).facts.lineage.elsewhere
    assert elsewhere["origin"] == "scikit-learn on my laptop"
    assert [version.number for version in releases.registry.versions("store_demand")] == [1, 2, 3]
    assert '"state":"failed"' in said
    assert "materialize features/flight_departures first" in said
    standings = releases.standings("store_demand")
    assert standings.canary is not None
    assert (standings.canary.by.name, standings.canary.reason) == ("carol", "first model")
