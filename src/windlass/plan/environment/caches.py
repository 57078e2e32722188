"""Node-local directories for the caches that compilers and libraries write during a job.

On a shared file system, ranks race for these caches, and the caches fill the home quota. Node-local caches per job
avoid both. `--keep-caches DIR` saves the caches after a job and restores them before the next one, so that nothing is
compiled twice.
"""

from __future__ import annotations

from collections.abc import Container

from windlass.base.tables import packaged_table
from windlass.model.condition import When
from windlass.model.plan import CacheDir, Setting
from windlass.model.site import Site

CACHE_DIR_VARIABLE = "WINDLASS_CACHE_DIR"
"""The rank script sets it to this job's directory on the node, which contains the caches."""

_TABLE = packaged_table(__file__, "caches.toml")


def cache_dirs(vendor: str | None) -> tuple[CacheDir, ...]:
    """The caches that matter for devices of this vendor."""
    return tuple(
        CacheDir(name=one["name"], subdir=one["name"], variables=tuple(one["variables"]), because=one["because"])
        for one in (*_TABLE["all"], *_TABLE.get(vendor or "", ()))
    )


def cache_variable_names() -> tuple[str, ...]:
    """Every variable that a plan may point to a cache or to a download directory."""
    caches = (one for group, rows in _TABLE.items() if group != "downloads" for one in rows)
    return (*(name for one in caches for name in one["variables"]), *(one["name"] for one in _TABLE["downloads"]))


def cache_settings(dirs: tuple[CacheDir, ...]) -> tuple[Setting, ...]:
    """One variable for each cache. The rank script creates the directory before the command starts."""
    return tuple(
        Setting(
            name=variable,
            value="${" + CACHE_DIR_VARIABLE + "}/" + entry.subdir,
            because=entry.because,
            expand=True,
        )
        for entry in dirs
        for variable in entry.variables
    )


def download_settings(
    site: Site, account: str | None, *, container: bool = False, decided: Container[str] = ()
) -> tuple[Setting, ...]:
    """Download directories: the site's scratch, or a directory of the project.

    Downloads are shared, so they are not node-local. A job that was submitted without the environment may lack the path
    of scratch, and not every project has a directory there. Then the libraries' defaults apply. `decided` are variables
    that the user has set.
    """
    storage = site.file.storage
    place = storage.scratch or storage.downloads
    if not place or ("{account" in place and not account):
        return ()
    if container and not storage.scratch and not _is_bound(site, place):
        return ()
    names = {"{account}": account or "", "{account_lower}": (account or "").lower()}
    for name, value in names.items():
        place = place.replace(name, value)
    place = place.rstrip("/")
    # The first download creates the user's directory below the project's directory.
    there = When(exists=place.removesuffix("/${USER}"))
    origin = site.origin_of("storage.scratch" if storage.scratch else "storage.downloads")
    return tuple(
        Setting(
            name=one["name"],
            value=f"{place}/.cache/{one['folder']}",
            because=one["because"],
            expand=True,
            when=there,
            origin=origin,
        )
        for one in _TABLE["downloads"]
        if one["name"] != "HF_DATASETS_CACHE" or "HF_HOME" not in decided  # the default is next to the models
    )


def _is_bound(site: Site, place: str) -> bool:
    """Whether the site's containers mount this path."""
    paths = (bind.source_path.rstrip("/") for box in site.file.containers for bind in box.binds)
    return any(place.startswith(f"{path}/") for path in paths)
