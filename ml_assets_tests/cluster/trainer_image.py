"""The real trainer image, built here from its Dockerfile with the base image and the packages of this environment.

Here: the folder of packages and the build. A registry and a package index are not needed: the base is the cluster's own
image, and the packages are those installed here, without what only a GPU would load.
"""

import importlib.metadata
import os
import re
import shutil
import sysconfig
from fnmatch import fnmatch
from pathlib import Path

from deployment.local.cluster.commands import run
from ml_assets_tests.cluster.environment import REPOSITORY

DOCKERFILE = REPOSITORY / "deployment" / "images" / "trainer.Dockerfile"
LOCK = DOCKERFILE.with_name("trainer.txt")
GPU_ONLY = ("triton*", "nvidia-cusolver*", "nvidia-nvtx*", "cuda-bindings*", "cuda-pathfinder*", "cuda-cccl*")
"""Distributions that `import torch` does without on a machine with no GPU; 1.3 GB."""
GPU_ONLY_FILES = ("*/libcudnn_*.so*", "torch/include/*", "torch/lib/*.a", "*/include/*.h")
"""Loaded late or never: parts of cuDNN, headers."""


def locked_names() -> set[str]:
    """What the trainer's lock names and this environment has (the lock serves other systems, too)."""
    names = {line.partition("==")[0] for line in LOCK.read_text().splitlines() if re.match(r"\w", line)}
    here = {item.name.lower().replace("_", "-") for item in importlib.metadata.distributions()}
    return names & here


def link_packages(folder: Path) -> int:
    """Fill `folder` with hard links to the files of those packages; answers their bytes."""
    site = Path(sysconfig.get_path("purelib"))
    size = 0
    for name in sorted(locked_names()):
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
                size += target.stat().st_size
    return size


def build(image: str, base: tuple[str, Path], scratch: Path) -> Path:
    """The archive of `image`, made with `base` (name and archive). Everything needed meanwhile is below `scratch`."""
    packages = scratch / "packages"
    link_packages(packages)
    (scratch / "tmp").mkdir(parents=True)
    # In a mount namespace that ends with the command: buildah leaves its storage mounted otherwise.
    buildah = ["env", f"TMPDIR={scratch / 'tmp'}", "unshare", "--mount", "--propagation", "private", "buildah",
               "--root", scratch / "storage", "--runroot", scratch / "run", "--storage-driver", "overlay"]  # fmt: skip
    base_name, base_archive = base
    run([*buildah, "pull", "--quiet", f"docker-archive:{base_archive}"], seconds=120)
    run(
        [*buildah, "build", "--quiet", "--isolation", "chroot", "--pull-never", "--tag", image,
         "--build-arg", f"BASE={base_name}",
         "--build-context", f"installed={packages}", "--file", DOCKERFILE, REPOSITORY],
        seconds=600,
    )  # fmt: skip
    archive = scratch / "image.tar"
    run([*buildah, "push", "--quiet", image, f"docker-archive:{archive}:{image}"], seconds=600)
    shutil.rmtree(scratch / "storage")
    shutil.rmtree(packages)
    return archive
