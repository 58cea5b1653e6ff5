"""The real images, built here from their Dockerfiles with the base image and the packages of this environment.

Here: the folder of packages, the build, a command run in what was built. A registry and a package index are not
needed: the base is the cluster's own image, and the packages are those installed here, without what only a GPU would
load.
"""

import importlib.metadata
import os
import re
import shutil
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path

from deployment.local.cluster.commands import run
from ml_assets_tests.cluster.environment import REPOSITORY

RECIPES = REPOSITORY / "deployment" / "images"
GPU_ONLY = ("triton*", "nvidia-cusolver*", "nvidia-nvtx*", "cuda-bindings*", "cuda-pathfinder*", "cuda-cccl*")
"""Distributions that `import torch` does without on a machine with no GPU; 1.3 GB."""
GPU_ONLY_FILES = ("*/libcudnn_*.so*", "torch/include/*", "torch/lib/*.a", "*/include/*.h")
"""Loaded late or never: parts of cuDNN, headers."""


class Workshop:
    """Builds images below one folder, beside the environment so that its packages can be linked instead of copied."""

    def __init__(self, folder: Path, base: str, archive: Path) -> None:
        """`base` and its `archive`: what the images are built on."""
        self._folder, self._base = folder, base
        (folder / "tmp").mkdir(parents=True)
        # In a mount namespace that ends with the command: buildah leaves its storage mounted otherwise.
        self._buildah = [
            "env", f"TMPDIR={folder / 'tmp'}",
            "unshare", "--mount", "--propagation", "private",
            "buildah", "--root", folder / "storage", "--runroot", folder / "run", "--storage-driver", "overlay",
        ]  # fmt: skip
        run([*self._buildah, "pull", "--quiet", f"docker-archive:{archive}"], seconds=120)

    def build(self, name: str) -> str:
        """The image of `name`.Dockerfile with the packages of `name`.txt."""
        packages, image = self._folder / "packages" / name, f"localhost/ml-assets/{name}:test"
        link_packages(RECIPES / f"{name}.txt", packages)
        run(
            [*self._buildah, "build", "--quiet", "--isolation", "chroot", "--pull-never", "--tag", image,
             "--build-arg", f"BASE={self._base}", "--build-context", f"installed={packages}",
             "--file", RECIPES / f"{name}.Dockerfile", REPOSITORY],
            seconds=600,
        )  # fmt: skip
        shutil.rmtree(packages)
        return image

    def archive(self, image: str) -> Path:
        """It as one file that a node can import."""
        archive = self._folder / "image.tar"
        run([*self._buildah, "push", "--quiet", image, f"docker-archive:{archive}:{image}"], seconds=600)
        return archive

    def run(self, image: str, *command: str) -> str:
        """What `command` prints in a new container of the image, as the image's user."""
        name = run([*self._buildah, "from", "--pull-never", image]).strip()
        return run([*self._buildah, "run", "--isolation", "chroot", name, "--", *command], seconds=300)


@contextmanager
def workshop(base: str, archive: Path) -> Iterator[Workshop]:
    """An empty one, gone afterwards."""
    folder = REPOSITORY / "build" / "images-of-tests"
    shutil.rmtree(folder, ignore_errors=True)
    try:
        yield Workshop(folder, base, archive)
    finally:
        shutil.rmtree(folder)


def link_packages(lock: Path, folder: Path) -> None:
    """Fill `folder` with hard links to the files of what `lock` names and this environment has (it serves other
    systems, too)."""
    site = Path(sysconfig.get_path("purelib"))
    names = {line.partition("==")[0] for line in lock.read_text().splitlines() if re.match(r"\w", line)}
    here = {item.name.lower().replace("_", "-") for item in importlib.metadata.distributions()}
    for name in sorted(names & here):
        if any(fnmatch(name, pattern) for pattern in GPU_ONLY):
            continue
        for file in importlib.metadata.files(name) or []:
            # Scripts lie outside; compiled files belong to the Python that wrote them.
            if ".." in file.parts or file.suffix == ".pyc":
                continue
            if any(fnmatch(str(file), pattern) for pattern in GPU_ONLY_FILES):
                continue
            target = folder / file
            target.parent.mkdir(parents=True, exist_ok=True)
            if not target.exists():
                os.link(site / file, target)
