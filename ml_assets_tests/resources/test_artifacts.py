"""The embedded home of artifacts: a folder, with the promises that S3 keeps too (`servers/test_artifacts.py`)."""

import subprocess
import sys
from pathlib import Path

import pytest

from resources.artifacts import ArtifactMissing, ArtifactsRefused, FolderArtifacts, artifacts_of
from resources.artifacts.s3 import files_below


@pytest.fixture
def home(tmp_path: Path) -> FolderArtifacts:
    return FolderArtifacts(tmp_path / "artifacts")


def test_what_lies_in_the_folder_is_what_was_pushed(home: FolderArtifacts) -> None:
    folder = home.folder("reports/m")
    (folder / "deep").mkdir()
    (folder / "deep" / "a").write_text("one")
    (folder / "whole").touch()
    assert home.push("reports/m", ["deep"], last="whole") == folder.as_uri()
    assert home.files("reports/m") == {"deep/a": 3, "whole": 0}
    assert home.pull("reports/m", last="whole") == folder
    assert home.exists("reports/m", "deep/a")
    home.remove("reports/m", ["deep"])
    assert [path.name for path in folder.iterdir()] == ["whole"]


def test_one_file_is_fetched_to_any_place(home: FolderArtifacts, tmp_path: Path) -> None:
    (home.folder("snapshots/s") / "shard").write_text("rows")
    home.push("snapshots/s")
    home.fetch("snapshots/s", "shard", tmp_path / "here")
    assert (tmp_path / "here").read_text() == "rows"
    with pytest.raises(ArtifactMissing, match="snapshots/s/other"):
        home.fetch("snapshots/s", "other", tmp_path / "there")


def test_a_key_of_a_bucket_that_leads_out_of_its_folder_is_refused() -> None:
    assert files_below(
        "bucket/job/", {"bucket/job/rows/0.bin": 1, "bucket/job/rows/": 2, "bucket/jobs": 3}
    ) == {"rows/0.bin": 1}
    with pytest.raises(ArtifactsRefused, match=r"\.\./\.\./\.profile"):
        files_below("bucket/job/", {"bucket/job/../../.profile": 1})


def test_what_is_not_there_is_named(home: FolderArtifacts) -> None:
    with pytest.raises(ArtifactMissing, match=r"reports/m: .* reports/m again"):
        home.pull("reports/m")
    with pytest.raises(ArtifactMissing, match="write it last"):
        home.push("reports/m", last="whole")
    assert not home.exists("reports/m")


def test_a_file_that_is_written_there_appears_whole_or_not_at_all(home: FolderArtifacts) -> None:
    file = home.create("reports/m", "deep/a")
    file.__enter__().write(b"half")
    file.__exit__(KeyError, KeyError(), None)
    assert home.files("reports/m") == {}
    with home.create("reports/m", "deep/a") as file:
        file.write(b"one")
        assert not home.exists("reports/m", "deep/a")
    assert home.files("reports/m") == {"deep/a": 3}
    (home.folder("reports/m") / "deep" / ".b.writing").touch()  # of a process that was killed
    home.abort_uploads("reports/m")
    assert home.files("reports/m") == {"deep/a": 3}


def test_two_who_write_one_file_at_once_do_not_disturb_each_other(home: FolderArtifacts) -> None:
    with home.create("reports/m", "a") as first:
        first.write(b"one")
        with home.create("reports/m", "a") as second:
            second.write(b"other")
        assert (home.folder("reports/m") / "a").read_bytes() == b"other"
    assert (home.folder("reports/m") / "a").read_bytes() == b"one"
    assert home.files("reports/m") == {"a": 3}


def test_a_fetch_that_breaks_off_leaves_its_target_as_it_was(
    home: FolderArtifacts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home.folder("snapshots/s") / "shard").write_text("rows")
    target = tmp_path / "here"
    target.write_text("before")

    def break_off(source: Path, part: Path) -> None:
        part.write_text("ro")
        raise OSError("no space left")

    monkeypatch.setattr("resources.artifacts.shutil.copyfile", break_off)
    with pytest.raises(OSError, match="no space left"):
        home.fetch("snapshots/s", "shard", target)
    assert target.read_text() == "before"
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["here"]


@pytest.mark.parametrize("name", ["../out", "/etc", "a//b", "a/./b", "a\\b", ""])
def test_names_that_leave_their_folder_are_refused(home: FolderArtifacts, name: str) -> None:
    for use in (home.folder, home.files, home.address, home.remove):
        with pytest.raises(ArtifactsRefused, match="valid artifact name"):
            use(name)


def test_address_chooses_the_home(tmp_path: Path) -> None:
    assert isinstance(artifacts_of(None, tmp_path), FolderArtifacts)
    assert artifacts_of(f"file://{tmp_path}/x", tmp_path).address("n") == f"file://{tmp_path}/x/n"
    assert artifacts_of("s3://bucket/prefix/", tmp_path).address("n") == "s3://bucket/prefix/n"
    for url in ("ftp://host/folder", "s3://", "bucket/prefix"):
        with pytest.raises(ArtifactsRefused, match="takes s3://bucket/prefix or file:///folder"):
            artifacts_of(url, tmp_path)


def test_naming_a_bucket_costs_no_import() -> None:
    program = "import sys; from pathlib import Path; from resources.artifacts import artifacts_of; " + (
        "artifacts_of('s3://b/p', Path('.')); print({'fsspec', 's3fs', 'botocore'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
