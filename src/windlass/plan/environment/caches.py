"""Node-local directories for the caches that compilers and libraries write during a job.

On a shared file system, ranks race for these caches, and the caches fill the home quota. Node-local caches per job
avoid both. `--keep-caches DIR` saves the caches after a job and restores them before the next one, so that nothing is
compiled twice.
"""

from __future__ import annotations

from collections.abc import Container

from windlass.model.condition import When
from windlass.model.plan import CacheDir, Setting
from windlass.model.site import Site

CACHE_DIR_VARIABLE = "WINDLASS_CACHE_DIR"
"""The rank script sets it to this job's directory on the node, which contains the caches."""

_ALL = (
    ("triton", ("TRITON_CACHE_DIR",), "Triton's cache races between ranks on a shared file system"),
    ("inductor", ("TORCHINDUCTOR_CACHE_DIR",), "torch.compile's cache races between nodes on a shared file system"),
    (
        "extensions",
        ("TORCH_EXTENSIONS_DIR",),
        "torch's built extensions lock a folder in home, and a killed job leaves the lock",
    ),
    ("numba", ("NUMBA_CACHE_DIR",), "numba's cache beside the sources is on the shared file system or read-only"),
    ("matplotlib", ("MPLCONFIGDIR",), "matplotlib builds its font list in home from every rank at once"),
)
"""Name of the cache and of its directory, the variables that point to it, and why it is node-local."""
_BY_VENDOR = {
    "nvidia": (("cuda", ("CUDA_CACHE_PATH",), "the driver's compile cache in home is written by every rank"),),
    "amd": (
        (
            "miopen",
            ("MIOPEN_USER_DB_PATH", "MIOPEN_CUSTOM_CACHE_DIR"),
            "MIOpen keeps SQLite files, which break on shared file systems; the folder must exist beforehand",
        ),
    ),
    "intel": (
        ("neo", ("NEO_CACHE_DIR",), "the compute runtime's compile cache in home is written by every rank"),
        ("sycl", ("SYCL_CACHE_DIR",), "SYCL's persistent device code in home is written by every rank"),
    ),
}
_DOWNLOADS = (
    ("HF_HOME", "huggingface", "models and data sets fill the home quota; every node needs the same copy"),
    ("HF_DATASETS_CACHE", "huggingface/datasets", "data sets fill the home quota too"),
    ("TORCH_HOME", "torch", "torch hub's downloads fill the home quota"),
)


def cache_dirs(vendor: str | None) -> tuple[CacheDir, ...]:
    """The caches that matter for devices of this vendor."""
    return tuple(
        CacheDir(name=name, subdir=name, variables=variables, because=because)
        for name, variables, because in (*_ALL, *_BY_VENDOR.get(vendor or "", ()))
    )


def cache_variable_names() -> tuple[str, ...]:
    """Every variable that a plan may point to a cache or to a download directory."""
    every = (*_ALL, *(entry for entries in _BY_VENDOR.values() for entry in entries))
    return (*(name for _, variables, _ in every for name in variables), *(name for name, _, _ in _DOWNLOADS))


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
            name=name,
            value=f"{place}/.cache/{folder}",
            because=because,
            expand=True,
            when=there,
            origin=origin,
        )
        for name, folder, because in _DOWNLOADS
        if name != "HF_DATASETS_CACHE" or "HF_HOME" not in decided  # the default is next to the models
    )


def _is_bound(site: Site, place: str) -> bool:
    """Whether the site's containers mount this path."""
    paths = (bind.source_path.rstrip("/") for box in site.file.containers for bind in box.binds)
    return any(place.startswith(f"{path}/") for path in paths)
