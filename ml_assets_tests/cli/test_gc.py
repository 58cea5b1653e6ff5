"""`ml-assets gc` as a person types it: a dry run in bytes, then the deletion. The rules: `pipeline/test_waste.py`."""

import json

from ml_assets_tests.cli.terminal import Terminal


def test_a_dry_run_then_the_deletion(terminal: Terminal) -> None:
    saved = terminal.home / "artifacts" / "training" / "model" / "aaaa"
    (saved / "checkpoints").mkdir(parents=True)
    (saved / "checkpoints" / "weights").write_bytes(b"12345")
    (saved / "result.json").write_text("{}")
    said = terminal("gc")
    assert said.status == 0, said.err
    (line,) = [one for one in said.out.splitlines() if one.startswith("checkpoints of finished jobs")]
    assert line.split()[4:] == ["1", "5", "bytes", "training/model/aaaa"]
    assert said.out.endswith("Nothing was deleted. To delete it: ml-assets gc --delete\n")
    assert (saved / "checkpoints" / "weights").exists()
    facts = json.loads(terminal("gc", "--delete", "--json").out)
    assert facts["deleted"] is True
    assert facts["checkpoints of finished jobs"]["bytes"] == 5
    assert [path.name for path in saved.rglob("*") if path.is_file()] == ["result.json"]


def test_a_damaged_job_keeps_all_snapshots_and_is_named(terminal: Terminal) -> None:
    """It had ended the command with a traceback: nobody could delete anything until the folder was found by hand."""
    artifacts = terminal.home / "artifacts"
    training, shared = artifacts / "training" / "model" / "aaaa", artifacts / "snapshots" / ("d" * 64)
    training.mkdir(parents=True)
    shared.mkdir(parents=True)
    (shared / "snapshot.json").write_text("{}")
    (training / "job.json").write_bytes(b'{"model": "m", "par\xff')
    said = terminal("gc", "--delete")
    assert said.status == 0, said.err
    assert said.out.startswith("training/model/aaaa: its job.json is damaged, so all snapshots stay: ")
    assert (shared / "snapshot.json").exists()
    assert json.loads(terminal("gc", "--json").out)["damaged"] == ["training/model/aaaa"]
    (training / "job.json").unlink()
    assert terminal("gc", "--delete").status == 0
    assert not (shared / "snapshot.json").exists()
