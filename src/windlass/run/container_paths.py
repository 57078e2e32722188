"""Check the image and the paths that a request's container may need, on the machine that will run it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from windlass.backends.containers.binds import expanded
from windlass.backends.containers.choose import (
    ContainerRequest,
    ContainerSite,
    SeenPaths,
    candidate_mounts,
    image_path,
)
from windlass.model.request import Request
from windlass.model.site import Site
from windlass.plan.inputs import container_request, container_site


def seen_paths(request: Request, site: Site, environ: Mapping[str, str]) -> SeenPaths | None:
    """Return which paths that the request's container may need exist on this machine. None without a container."""
    if request.container is None:
        return None
    return look_at_paths(container_request(request, request.container), container_site(site), environ)


def look_at_paths(asked: ContainerRequest, site: ContainerSite, environ: Mapping[str, str]) -> SeenPaths:
    """Return which of the paths that a plan may bind exist here, and which mount points exist in the image."""
    mounts = candidate_mounts(asked, site)
    sources = {path for mount in mounts if (path := expanded(mount.source, environ))}
    real = {path: os.path.realpath(path) for path in sources}
    sources |= set(real.values())
    image = expanded(image_path(asked.image, asked.cwd), environ) or ""
    is_folder = bool(image) and Path(image).is_dir()
    places = {*sources, image}
    if is_folder:
        targets = {path for mount in mounts if (path := expanded(mount.target, environ))} | sources
        places |= {image + target for target in targets}
    return SeenPaths(
        environ=environ,
        there=frozenset(path for path in places if path and Path(path).exists()),
        real={path: target for path, target in real.items() if path != target},
        image_readable=os.access(image, os.R_OK),
        image_folder=is_folder,
    )
