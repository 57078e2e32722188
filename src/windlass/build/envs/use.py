"""How an environment is used in jobs: activation, the cooperative cache, node-local copies. Pure."""

from __future__ import annotations

from windlass.base.notation.shell import quote
from windlass.build.envs.step import EnvStep, site_modules
from windlass.model.site import Site


def use_steps(path: str, site: Site, build: str = "") -> tuple[EnvStep, ...]:
    """How it is used in jobs."""
    spec, storage = site.file.python, site.file.storage
    where = '"$ENV"'
    modules = "".join(f" --module {name}" for name in spec.modules)
    if spec.beneath == "image":
        return _use_with_image(where)
    chosen = site_modules(site, build)
    load = tuple(dict.fromkeys(name for one in chosen for name in one.load))
    if any(one.torch for one in chosen):
        modules = " --module none" + "".join(f" --module {name}" for name in load)
    by_hand = [f"module load {' '.join(load)}"] if load else []
    activate = f"source activate {where}" if spec.kind == "conda" else f"source {where}/bin/activate"
    to = storage.stage or storage.local
    name = path.rstrip("/").rpartition("/")[2]
    on_request = any(spec.when.option == "nvme" for spec in site.file.scheduler.directives)
    extra = " --with nvme" if on_request else ""
    return (
        EnvStep(
            name="in a job",
            because="windlass loads the site's modules by itself and activates the environment on every node",
            commands=(f"windlass run{modules} --activate {where} train.py",),
        ),
        EnvStep(
            name="by hand", because="the same lines in a batch script", commands=(*by_hand, *spec.before, activate)
        ),
        EnvStep(
            name="on many nodes",
            because="one node reads the environment, the others get it from each other",
            commands=(f"windlass run{modules} --activate {where} --cache {where} train.py",),
        ),
        EnvStep(
            name="on the nodes' own storage",
            because=f"packed once, then unpacked to {to} on every node of the job",
            commands=(
                f"windlass env pack {where} -o {quote(name)}.tar.gz",
                f"windlass stage {quote(name)}.tar.gz --extract --to {to}{extra}",
                f"windlass run{modules}{extra} --activate {to}/{quote(name)} train.py",
            ),
        ),
    )


def _use_with_image(where: str) -> tuple[EnvStep, ...]:
    return (
        EnvStep(
            name="in a job",
            because="the venv's Python is the image's: it starts only inside of it",
            commands=(f'windlass run --container "$IMAGE" --python {where}/bin/python train.py',),
        ),
        EnvStep(
            name="as one file",
            because="a squashfs file costs one file of the quota, and nodes read it fast",
            commands=(
                f"windlass env pack {where} -o env.sqsh",
                'windlass run --container "$IMAGE" --container-arg=--bind=env.sqsh:/user-software:image-src=/ '
                "--python /user-software/bin/python train.py",
            ),
        ),
    )
