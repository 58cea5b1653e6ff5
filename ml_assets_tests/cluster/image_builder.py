"""Build of the real images from their Dockerfile, with the base image and the packages of this environment.

Here: the build, the packing of an image for a node, running a command in an image. No registry and no package index is
needed: the base is the cluster's own image, and the packages are those installed here (`packages`). Layers of packages
stay in the cache; only the layers above them are built each time.
"""

import hashlib
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deployment.testbed.build import cache_folder, recipe_of
from deployment.testbed.cluster.commands import run, succeeds
from deployment.testbed.cluster.layers import Layer
from deployment.testbed.testbed_files import locked
from ml_assets_tests.cluster import packages
from ml_assets_tests.cluster.cluster_environment import REPOSITORY

RECIPES = REPOSITORY / "deployment" / "images"
NAMES = ("trainer", "platform")
"""Targets of the Dockerfile. Each lies on the packages of the target before it."""
DATA = REPOSITORY / "deployment" / "requirements" / "data.txt"
"""Packages with the data sets of pipelines, which the platform's image has."""
PYTHON_OF_IMAGES = "/opt/venv/bin/python"
KEPT_DAYS = 7.0
"""Age in days since the last use, after which layers of packages are removed when others are built."""


@dataclass(frozen=True)
class Packed:
    """Image, packed for the transfer to a node."""

    archive: Path
    """Layers above the packages, in the layout of OCI."""
    below: tuple[Layer, ...]


class ImageBuilder:
    """Builds images in a store that keeps the layers of packages."""

    def __init__(self, store: Path, folder: Path, base: str, archive: Path) -> None:
        """Open the `store`. Images are built on `base`, which is in `archive`. `folder` is for temporary files."""
        self._folder, self._base = folder, base
        self._store = store
        self._tag = f"tests-{time.time_ns()}"
        self._made: set[str] = set()
        (folder / "tmp").mkdir(parents=True)
        # In a mount namespace that ends with the command: buildah leaves its storage mounted otherwise.
        self._buildah = [
            "env", f"TMPDIR={folder / 'tmp'}",
            "unshare", "--mount", "--propagation", "private",
            "buildah", "--root", store, "--runroot", folder / "run", "--storage-driver", "overlay",
        ]  # fmt: skip
        run([*self._buildah, "rm", "--all"], seconds=600)  # of one that was killed
        if not self._has(base):
            run([*self._buildah, "pull", "--quiet", f"docker-archive:{archive}"], seconds=600)

    def build(self, name: str, *more: str) -> str:
        """Build the image of target `name` with the options `more`; return its name."""
        self._make_packages(name)
        image = f"localhost/ml-assets/{name}:{self._tag}"
        self._build(name, image, *more)
        self._made.add(image)
        return image

    def build_more(self, name: str) -> str:
        """Build a trainer's image with the packages of `name`.txt as well; return its name."""
        self._make_packages("trainer")
        without = [RECIPES / "trainer.txt"]
        packages.link(RECIPES / f"{name}.txt", self._folder / "installed" / name, without=without)
        image = f"localhost/ml-assets/{name}:{self._tag}"
        self._build("trainer-more", image, "--build-arg", f"PACKAGES={name}")
        self._made.add(image)
        return image

    def add(self, image: str, files: Mapping[str, str], place: str) -> str:
        """Build an image with text `files` (path below `place` → content) on top of a built `image`, as a team adds its
        pipelines; return its name. Modules that replace others are compiled: the image's code is never checked anew.
        """
        context = self._folder / "added"
        for name, text in files.items():
            path = context / "files" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        modules = " ".join(f"{place}/{name}" for name in files if name.endswith(".py"))
        compiled = f"{PYTHON_OF_IMAGES} -m compileall -q -f --invalidation-mode unchecked-hash {modules}"
        recipe = [f"FROM {image}", f"COPY files {place}/", "USER 0:0", f"RUN {compiled}", "USER 65532:65532"]
        (context / "Dockerfile").write_text("\n".join(recipe if modules else recipe[:2]))
        own = f"localhost/ml-assets/own-{len(self._made)}:{self._tag}"
        run(
            [*self._buildah, "build", "--quiet", "--layers", "--isolation", "chroot", "--pull-never",
             "--tag", own, context],
            seconds=600,
        )  # fmt: skip
        shutil.rmtree(context)
        self._made.add(own)
        return own

    def _make_packages(self, name: str) -> None:
        """Build the package layers of target `name` and of the targets below it, unless the store has them."""
        for number, below in enumerate(NAMES[: NAMES.index(name) + 1]):
            if not self._has(_kept(below)):
                locks = [RECIPES / f"{one}.txt" for one in NAMES[:number]]
                installed = self._folder / "installed"
                packages.link(RECIPES / f"{below}.txt", installed / below, without=locks)
                if below == "platform":
                    packages.link(DATA, installed / below)
                self._build(f"{below}-packages", _kept(below))

    def pack(self, name: str, image: str) -> Packed:
        """Pack the part of a built image that a node needs."""
        below = self._layers(_kept(name))
        layout, archive = self._folder / "layout", self._folder / "image.tar"
        blobs = layout / "blobs" / "sha256"
        blobs.mkdir(parents=True)
        places = [blobs / layer.diff_id.removeprefix("sha256:") for layer in below]
        for place in places:
            place.touch()  # what is there already is not written
        run([*self._buildah, "push", "--quiet", "--disable-compression", image, f"oci:{layout}:{image}"])
        for place in places:
            place.unlink()
        index = json.loads((layout / "index.json").read_text())
        index["manifests"][0]["annotations"]["io.containerd.image.name"] = image
        (layout / "index.json").write_text(json.dumps(index))
        run(["tar", "--create", "--file", archive, "--directory", layout, "."])
        shutil.rmtree(layout)
        return Packed(archive, tuple(below))

    def run(self, image: str, *command: str) -> str:
        """Return the output of `command` in a new container of the image, as the image's user."""
        name = run([*self._buildah, "from", "--pull-never", image]).strip()
        return run([*self._buildah, "run", "--isolation", "chroot", name, "--", *command], seconds=300)

    def close(self) -> None:
        """Remove everything but the package layers."""
        run([*self._buildah, "rm", "--all"], seconds=600)
        if made := sorted(self._made):
            run([*self._buildah, "rmi", *made], seconds=600)

    def _build(self, target: str, image: str, *more: str) -> None:
        installed = self._folder / "installed"
        installed.mkdir(exist_ok=True)
        run(
            [*self._buildah, "build", "--quiet", "--layers", "--isolation", "chroot", "--pull-never",
             "--target", target, "--tag", image, "--build-arg", f"BASE={self._base}", *more,
             "--build-context", f"installed={installed}", "--file", RECIPES / "Dockerfile", REPOSITORY],
            seconds=600,
        )  # fmt: skip
        shutil.rmtree(installed)

    def _has(self, image: str) -> bool:
        return succeeds([*self._buildah, "inspect", "--type", "image", image])

    def _layers(self, image: str) -> list[Layer]:
        """Return the layers of an image in the store, from the bottom."""
        (own,) = [one for one in self._read("images") if image in one.get("names", ())]
        known = {layer["id"]: layer for layer in self._read("layers")}
        found: list[Layer] = []
        layer = known.get(own["layer"])
        while layer is not None:
            found.insert(0, Layer(layer["diff-digest"], self._store / "overlay" / layer["id"] / "diff"))
            layer = known.get(layer.get("parent"))
        return found

    def _read(self, what: str) -> list[dict[str, Any]]:
        return json.loads((self._store / f"overlay-{what}" / f"{what}.json").read_text())


def _kept(name: str) -> str:
    return f"localhost/ml-assets/{name}-packages:kept"


@contextmanager
def image_builder(base: str, archive: Path) -> Iterator[ImageBuilder]:
    """Yield a builder over the cached package layers. The block holds a lock on that store."""
    store, folder = _store(archive), REPOSITORY / "build" / "images-of-tests"
    shutil.rmtree(folder, ignore_errors=True)
    with locked(cache_folder() / "packages.lock"):
        try:
            images = ImageBuilder(store, folder, base, archive)
            yield images
            images.close()
        finally:
            shutil.rmtree(folder)


def _store(archive: Path) -> Path:
    """Return the folder for package layers on this base. Its name is a digest of the recipe and the locked packages."""
    made_of = [RECIPES / name for name in ("Dockerfile", "install.sh", *(f"{name}.txt" for name in NAMES))]
    made_of.append(DATA)
    recipe = "\0".join((sys.version, str(archive), *map(recipe_of, (*made_of, Path(packages.__file__)))))
    store = cache_folder() / f"packages-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}"
    if not store.exists():
        for old in cache_folder().glob("packages-*"):
            if time.time() - old.stat().st_mtime > KEPT_DAYS * 86_400:
                shutil.rmtree(old)
        store.mkdir(parents=True)
    os.utime(store)
    return store
