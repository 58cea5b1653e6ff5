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
