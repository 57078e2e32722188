"""Node-local folders for the caches that compilers and libraries write while a job runs.

On a shared file system these caches race between ranks and fill the home quota; node-local and per job they do neither.
`--keep-caches DIR` saves them after a job and restores them before the next, so that nothing is compiled twice.
"""

from __future__ import annotations

from collections.abc import Container

from windlass.model.condition import When
from windlass.model.plan import CacheDir, Setting
from windlass.model.site import Site

CACHE_DIR_VARIABLE = "WINDLASS_CACHE_DIR"
"""Set by the rank script to this job's folder on the node; the caches lie in it."""

_ALL = (
    CacheDir(
        name="triton",
        subdir="triton",
        variables=("TRITON_CACHE_DIR",),
        because="Triton's cache races between ranks on a shared file system",
    ),
    CacheDir(
        name="inductor",
        subdir="inductor",
        variables=("TORCHINDUCTOR_CACHE_DIR",),
        because="torch.compile's cache races between nodes on a shared file system",
    ),
    CacheDir(
        name="extensions",
        subdir="extensions",
        variables=("TORCH_EXTENSIONS_DIR",),
        because="torch's built extensions lock a folder in home, and a killed job leaves the lock",
    ),
    CacheDir(
        name="numba",
        subdir="numba",
        variables=("NUMBA_CACHE_DIR",),
        because="numba's cache beside the sources is on the shared file system or read-only",
    ),
    CacheDir(
        name="matplotlib",
        subdir="matplotlib",
        variables=("MPLCONFIGDIR",),
        because="matplotlib builds its font list in home from every rank at once",
    ),
)

_BY_VENDOR = {
    "nvidia": (
        CacheDir(
            name="cuda",
            subdir="cuda",
            variables=("CUDA_CACHE_PATH",),
            because="the driver's compile cache in home is written by every rank",
        ),
    ),
    "amd": (
        CacheDir(
            name="miopen",
            subdir="miopen",
            variables=("MIOPEN_USER_DB_PATH", "MIOPEN_CUSTOM_CACHE_DIR"),
            because="MIOpen keeps SQLite files, which break on shared file systems; the folder must exist beforehand",
        ),
    ),
    "intel": (
        CacheDir(
            name="neo",
            subdir="neo",
            variables=("NEO_CACHE_DIR",),
            because="the compute runtime's compile cache in home is written by every rank",
        ),
        CacheDir(
            name="sycl",
            subdir="sycl",
            variables=("SYCL_CACHE_DIR",),
            because="SYCL's persistent device code in home is written by every rank",
        ),
    ),
}

_DOWNLOADS = (
    ("HF_HOME", "huggingface", "models and data sets fill the home quota; every node needs the same copy"),
    ("HF_DATASETS_CACHE", "huggingface/datasets", "data sets fill the home quota too"),
    ("TORCH_HOME", "torch", "torch hub's downloads fill the home quota"),
)


def cache_dirs(vendor: str | None) -> tuple[CacheDir, ...]:
    """The caches that matter with devices of this vendor."""
    return _ALL + _BY_VENDOR.get(vendor or "", ())


def cache_variable_names() -> tuple[str, ...]:
    """Every variable that a plan may point to a cache or to a place for downloads."""
    every = (*_ALL, *(entry for entries in _BY_VENDOR.values() for entry in entries))
    return (*(name for entry in every for name in entry.variables), *(name for name, _, _ in _DOWNLOADS))


def cache_settings(dirs: tuple[CacheDir, ...]) -> tuple[Setting, ...]:
    """One variable for each cache; the folder itself is made by the rank script before the command starts."""
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
    """Where downloads go: the site's scratch, or a folder of the project. They are shared, so they are not node-local.
    A job that was sent without the environment may not know where scratch is, and not every project has a folder there:
    then they stay where the libraries put them. `decided`: variables that the user has a say in."""
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
    # What is the user's own below a project's folder is made by whoever downloads first.
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
        if name != "HF_DATASETS_CACHE" or "HF_HOME" not in decided  # it lies beside the models
    )


def _is_bound(site: Site, place: str) -> bool:
    """Whether the site's containers see the place."""
    paths = (bind.source_path.rstrip("/") for box in site.file.containers for bind in box.binds)
    return any(place.startswith(f"{path}/") for path in paths)
