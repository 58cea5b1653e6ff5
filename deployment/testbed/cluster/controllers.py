"""Controllers that run as pods of a test cluster: Kueue, JobSet, Kubeflow Trainer.

Here: the image of the pinned program, the module's own manifests with the few changes for a machine without a registry,
and the check that the controller answers. The changes themselves are in the module of each.
"""

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from deployment.testbed.build import Module, build, kept, read_module, recipe_of
from deployment.testbed.cluster import cluster_parts, images
from deployment.testbed.cluster.cluster_record import ClusterRecord
from deployment.testbed.cluster.commands import CommandFailed, run
from deployment.testbed.processes import ServerFailed

READY_SECONDS = 300.0
_POLL_SECONDS = 0.5


def with_image(deployment: dict[str, Any], image: str) -> None:
    """Let a Deployment run one pod of the controller alone, from an image that the nodes have."""
    spec = deployment["spec"]["template"]["spec"]
    spec["containers"] = [container for container in spec["containers"] if container["name"] == "manager"]
    (manager,) = spec["containers"]
    # Small requests: the nodes are small, and tests count their free resources.
    manager |= {"image": image, "imagePullPolicy": "Never", "resources": {"requests": {"cpu": "50m"}}}
    manager.pop("command", None)  # the image has a command
    deployment["spec"]["replicas"] = 1


@dataclass(frozen=True, kw_only=True)
class Controller:
    """A controller whose source has its manifests."""

    module: str
    """Folder of `modules/`."""
    title: str
    """Name for messages."""
    trial: dict[str, Any]
    """Object that only its webhooks accept; it is never made."""
    changed: Callable[[dict[str, Any], str], dict[str, Any] | None]
    """Change of one of its objects, for the name of its image; None leaves the object out."""
    source: str
    """Python file of `changed`. Another content makes the objects again."""
    manifests: tuple[str, ...] = ("config/default",)
    """Folders and files of its source with its objects."""
    kustomized: dict[str, Any] = field(default_factory=dict[str, Any])
    """More keys of the kustomization of these manifests."""

    def install(self, held: ClusterRecord) -> None:
        """Install it, or its missing parts; return when its webhooks answer. Raise `BuildFailed`, `CommandFailed` or
        `ServerFailed`.
        """
        image, archive, manifests = self._made(held)
        cluster_parts.import_images(held, {image: archive}, held.layout.numbers)
        cluster_parts.kubectl(
            held, "apply", "--server-side", "--force-conflicts", "--filename", manifests, seconds=120
        )
        began = time.monotonic()
        while reason := self._why_not(held):
            if time.monotonic() - began > READY_SECONDS:
                raise ServerFailed(f"{self.title} does not answer after {READY_SECONDS:.0f} s: {reason}")
            time.sleep(_POLL_SECONDS)

    def _why_not(self, held: ClusterRecord) -> str:
        """Return the reason why its webhooks do not answer; empty once they do."""
        try:
            cluster_parts.kubectl(
                held,
                "apply",
                "--server-side",
                "--dry-run=server",
                "--filename=-",
                stdin=json.dumps(self.trial),
            )
        except CommandFailed as error:
            return str(error)
        return ""

    def _made(self, held: ClusterRecord) -> tuple[str, Path, Path]:
        """Return name and archive of the image, and the file with all objects. They are made once per version."""
        module = read_module(self.module)
        program = build(self.module) / module.tools[0].rpartition("/")[2]
        image = f"localhost/ml-assets/{self.module}:{module.version}"
        recipes = "\0".join(recipe_of(Path(file)) for file in (__file__, self.source))
        recipe = hashlib.sha256(recipes.encode()).hexdigest()[:12]

        def fill(scratch: Path, folder: Path) -> None:
            images.make_program(scratch / "root", image, program, folder / "image.tar")
            (folder / "objects.yaml").write_text(self._objects(held, module, image, scratch))

        folder = kept(f"{self.module}-installed", f"{module.key}-{recipe}", fill)
        return image, folder / "image.tar", folder / "objects.yaml"

    def _objects(self, held: ClusterRecord, module: Module, image: str, scratch: Path) -> str:
        """Return the changed objects of the pinned module."""
        go = shutil.which("go") or "go"
        told = run([go, "-C", module.folder, "mod", "download", "-json", module.path], seconds=300)
        source = Path(json.loads(told)["Dir"])
        # kustomize takes no absolute paths.
        resources = [os.path.relpath(source / one, scratch.resolve()) for one in self.manifests]
        (scratch / "kustomization.yaml").write_text(
            yaml.safe_dump({**self.kustomized, "resources": resources})
        )
        said = cluster_parts.kubectl(
            held, "kustomize", "--load-restrictor=LoadRestrictionsNone", scratch, seconds=120
        )
        made = [self.changed(one, image) for one in yaml.safe_load_all(said) if one]
        return yaml.safe_dump_all([one for one in made if one is not None])
