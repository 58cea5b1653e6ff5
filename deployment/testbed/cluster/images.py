"""Images made without a registry: the pause image of pods, and a Debian with Python to build on.

Here: making them once, as archives for containerd and buildah, in the build cache. The base is this machine's own
Debian release, so that programs built here run in it.
"""

import hashlib
import json
import platform
import shutil
import tarfile
from dataclasses import dataclass
from pathlib import Path

from deployment.testbed.build import kept, recipe_of
from deployment.testbed.cluster.commands import CommandFailed, run

PACKAGES = ("ca-certificates", "python3", "python3-venv")
"""Packages of the base beyond the smallest Debian: those of python:3-slim."""
EMPTIED = (
    "usr/share/doc", "usr/share/info", "usr/share/locale", "usr/share/man",
    "var/cache/apt", "var/lib/apt/lists", "var/log",
)  # fmt: skip
"""Files that no program needs: a third of all files."""
USER = 65532
"""User of the pods. It has a name, because programs look it up."""
PAUSE_SOURCE = Path(__file__).parents[2] / "images" / "pause" / "pause.c"
PAUSE = "localhost/ml-assets/pause:1"
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
SEARCH_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class Images:
    """Archives by image name."""

    pause: str
    base: str
    archives: dict[str, Path]


def release() -> str:
    """Return this machine's Debian release, such as "bookworm". Raise `CommandFailed` on another system."""
    lines = Path("/etc/os-release").read_text().splitlines()
    values = {key: value.strip('"') for key, _, value in (line.partition("=") for line in lines)}
    if values.get("ID") != "debian" or "VERSION_CODENAME" not in values:
        raise CommandFailed(
            "The base image is made from this machine's Debian release, but this machine runs "
            f"{values.get('PRETTY_NAME', 'another system')}."
        )
    return values["VERSION_CODENAME"]


def make() -> Images:
    """Return both archives; make them first if the cache lacks them (about a minute). Raise `CommandFailed`."""
    base = f"localhost/ml-assets/base:{release()}"
    recipe = "\0".join((base, PAUSE_SOURCE.read_text(), recipe_of(Path(__file__))))

    def fill(scratch: Path, folder: Path) -> None:
        _make_pause(scratch / "pause", folder / "pause.tar")
        _make_base(scratch / "base", base, folder / "base.tar")

    digest = hashlib.sha256(recipe.encode()).hexdigest()[:12]
    folder = kept("images", f"images-{release()}-{digest}", fill)
    return Images(PAUSE, base, {PAUSE: folder / "pause.tar", base: folder / "base.tar"})


def _make_pause(root: Path, archive: Path) -> None:
    root.mkdir()
    run(["gcc", "-Os", "-static", "-s", "-o", root / "pause", PAUSE_SOURCE])
    _write_archive(archive, PAUSE, root, {"Entrypoint": ["/pause"], "User": f"{USER}:{USER}"})


def make_program(root: Path, image: str, program: Path, archive: Path) -> None:
    """Make the docker-archive of an image that is one static `program`. `root`: folder to make it in."""
    root.mkdir()
    shutil.copy(program, root / program.name)
    _write_archive(archive, image, root, {"Entrypoint": [f"/{program.name}"], "User": f"{USER}:{USER}"})


def _make_base(root: Path, image: str, archive: Path) -> None:
    # In its own mount namespace: the mounts of debootstrap vanish with it, also after a failure.
    command = ["unshare", "--mount", "debootstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}"]
    run([*command, release(), root], seconds=900)
    for folder in EMPTIED:
        shutil.rmtree(root / folder)
        (root / folder).mkdir()
    for file, line in (
        ("passwd", f"nonroot:x:{USER}:{USER}::/home/nonroot:/usr/sbin/nologin"),
        ("group", f"nonroot:x:{USER}:"),
    ):
        with (root / "etc" / file).open("a") as lines:
            lines.write(f"{line}\n")
    home = root / "home" / "nonroot"
    home.mkdir()
    shutil.chown(home, USER, USER)
    _write_archive(archive, image, root, {"Cmd": ["/bin/bash"], "Env": [SEARCH_PATH, "LANG=C.UTF-8"]})


def _write_archive(archive: Path, image: str, root: Path, config: dict[str, object]) -> None:
    """Make a docker-archive of one layer: everything below `root`."""
    layer = archive.with_suffix(".layer")
    run(["tar", "--create", "--file", layer, "--directory", root, "--sort=name", "--numeric-owner",
         "--mtime=@0", "--exclude=./dev/*", "--exclude=./proc/*", "--exclude=./sys/*", "."], seconds=300)  # fmt: skip
    with layer.open("rb") as content:
        digest = hashlib.file_digest(content, "sha256").hexdigest()
    settings = layer.with_suffix(".config")
    settings.write_text(
        json.dumps(
            {
                "architecture": ARCHITECTURES.get(platform.machine(), platform.machine()),
                "os": "linux",
                "config": config,
                # As many entries as layers, or buildah builds nothing on top.
                "history": [{"created": "1970-01-01T00:00:00Z", "created_by": "ml-assets"}],
                "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
            }
        )
    )
    manifest = layer.with_suffix(".manifest")
    manifest.write_text(json.dumps([{"Config": "config.json", "RepoTags": [image], "Layers": ["layer.tar"]}]))
    with tarfile.open(archive, "w") as tar:
        for source, name in ((manifest, "manifest.json"), (settings, "config.json"), (layer, "layer.tar")):
            tar.add(source, name)
            source.unlink()
