"""The sites' documented container commands come out of their data."""

from __future__ import annotations

import sys

import msgspec
import pytest

from looping import each
from unit.containers.sites import (
    CLARIDEN,
    FRONTIER,
    GH200,
    ISAMBARD,
    LUMI,
    PERLMUTTER,
    POLARIS,
    choose,
    command_line,
    spec_of,
)
from windlass.backends.containers import get_runtime
from windlass.backends.containers.edf import registry_image
from windlass.errors import UsageError
from windlass.model.plan import Setting

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

OLD_LUMI = "/appl/local/containers/sif-images/lumi-pytorch-rocm-6.2.4-python-3.12-pytorch-v2.7.1.sif"
NEW_LUMI = "/appl/local/laifs/containers/lumi-multitorch-1/lumi-multitorch-full-1.sif"


def test_lumi_on_several_nodes_binds_slurm_cray_and_the_nic_and_activates_conda() -> None:
    choice = choose(LUMI, OLD_LUMI, cwd="/scratch/project_1/me")
    assert command_line(choice, "amd", cwd="/scratch/project_1/me", run_dir="/scratch/project_1/me/runs/1") == (
        "singularity exec"
        " --bind /var/spool/slurmd --bind /opt/cray --bind /usr/lib64/libcxi.so.1 --bind /pfs"
        " --bind /scratch/project_1/me --pwd /scratch/project_1/me"
        f' {OLD_LUMI} bash -c $WITH_CONDA; exec "$@" bash'
    )
    assert choice.plan.note.startswith("host-inject")
    assert "/usr/lib64/libcxi.so.1" in choice.plan.note


def test_lumi_on_one_node_needs_no_network_binds() -> None:
    choice = choose(LUMI, OLD_LUMI, nodes=1, cwd="/pfs/lustrep3/scratch/project_1")
    assert [m.source for m in choice.plan.mounts] == ["/pfs"]
    assert choice.plan.note.startswith("baked: one node")


def test_lumi_never_gets_the_rocm_flag() -> None:
    assert "--rocm" not in command_line(choose(LUMI, OLD_LUMI), "amd")


def test_the_new_lumi_image_is_run_and_not_activated() -> None:
    choice = choose(LUMI, NEW_LUMI, cwd="/flash/project_1")
    assert command_line(choice, "amd", cwd="/flash/project_1", run_dir="/flash/project_1/runs/1") == (
        f"singularity run --bind /pfs --bind /flash/project_1 --pwd /flash/project_1 {NEW_LUMI}"
    )
    assert {s.name for s in get_runtime("singularity").host_settings(spec_of(choice, "amd"))} == {"SINGULARITY_NO_EVAL"}


def test_a_linked_file_system_brings_the_tree_behind_it_even_where_the_site_does_not_bind_it() -> None:
    text = '[links]\n"/scratch" = "/pfs"\n[[containers]]\nruntime = "singularity"\n'
    mounts = choose(text, OLD_LUMI, cwd="/scratch/p/x").plan.mounts
    assert [(m.source, m.because) for m in mounts] == [
        ("/scratch/p/x", "the working folder"),
        ("/pfs", "/scratch is a link into /pfs"),
    ]


def test_frontier_apptainer_with_rocm_and_library_paths_for_the_inside() -> None:
    choice = choose(FRONTIER, "/lustre/orion/p/img.sif")
    assert command_line(choice, "amd") == (
        "apptainer exec --rocm --bind /usr/share/libdrm --bind /var/spool/slurmd --bind /opt/cray"
        " --bind /work/me --pwd /work/me /lustre/orion/p/img.sif"
    )
    assert choice.modules == ("olcf-container-tools", "apptainer-enable-mpi", "apptainer-enable-gpu")
    host = {s.name: s for s in get_runtime("apptainer").host_settings(spec_of(choice, "amd"))}
    path = host["APPTAINERENV_LD_LIBRARY_PATH"]
    assert (path.value, path.expand) == ("${CRAY_MPICH_ROOTDIR}/gtl/lib:/opt/rocm/lib", True)
    assert "LD_LIBRARY_PATH" not in {s.name for s in choice.settings}
    assert "MPICH_SMP_SINGLE_COPY_MODE" in {s.name for s in choice.settings}


def test_the_hpe_gh200_system_runs_with_the_hosts_libraries_below_host() -> None:
    choice = choose(GH200, "/projects/benchmarking/public/sif/pytorch-ngc-hpc-dev-hvd.sif")
    assert command_line(choice, "nvidia") == (
        "singularity run --nv --bind /projects --bind ${TMPDIR} --bind ${HOME}"
        " --bind /opt/cray/libfabric/1.15.2.0/lib64:/host/lib --bind /usr:/host/usr"
        " --bind /work/me --pwd /work/me /projects/benchmarking/public/sif/pytorch-ngc-hpc-dev-hvd.sif"
    )


def test_isambard_apptainer_leaves_the_binds_to_its_module() -> None:
    choice = choose(ISAMBARD, "/projects/p/img.sif")
    assert command_line(choice, "nvidia") == "apptainer exec --nv --bind /work/me --pwd /work/me /projects/p/img.sif"
    assert (
        choice.plan.note == "host-inject: network libraries of the host are added by module brics/apptainer-multi-node"
    )


def test_polaris_binds_opt_and_pals() -> None:
    choice = choose(POLARIS, "img.sif", binds=("data:/data:ro",))
    assert command_line(choice, "nvidia") == (
        "apptainer exec --nv --bind /opt --bind /var/run/palsd --bind /work/me/data:/data:ro"
        " --bind /work/me --pwd /work/me /work/me/img.sif"
    )
    host = {s.name: s.value for s in get_runtime("apptainer").host_settings(spec_of(choice, "nvidia"))}
    assert host["APPTAINERENV_LD_LIBRARY_PATH"] == (
        "${CRAY_LD_LIBRARY_PATH}:${LD_LIBRARY_PATH}:/opt/cray/pe/pals/1.2.12/lib"
    )


def test_perlmutter_shifter_by_default_and_podman_hpc_when_asked() -> None:
    shifter = choose(PERLMUTTER, "nersc/pytorch:25.06.01", binds=("/pscratch/sd/m/me/d:/data",))
    assert command_line(shifter, "nvidia") == (
        "shifter --image=nersc/pytorch:25.06.01 --module=gpu,nccl-plugin --volume=/pscratch/sd/m/me/d:/data"
        " --workdir=/work/me --"
    )
    podman = choose(PERLMUTTER, "nersc/pytorch:25.06.01", runtime="podman-hpc")
    settings = (Setting(name="NCCL_NET", value="AWS Libfabric", because="fail loudly"),)
    assert command_line(podman, "nvidia", settings=settings, rank_variables=("RANK",)) == (
        "podman-hpc run --rm --gpu --nccl --network=host --ipc=host --entrypoint= --env NCCL_NET --env RANK"
        " --env WINDLASS_* --env SLURM_* --env PALS_* --env PMI* --env FLUX_*"
        " --volume /work/me:/work/me --volume /tmp:/tmp --workdir /work/me -- nersc/pytorch:25.06.01"
    )


def test_a_sif_on_perlmutter_is_refused_with_what_the_site_takes() -> None:
    with pytest.raises(UsageError, match="no runtime of this site takes it") as caught:
        choose(PERLMUTTER, "/pscratch/x.sif")
    assert "shifterimg" in (caught.value.hint or "")
    assert "--runtime apptainer" in (caught.value.hint or "")


def test_clariden_writes_an_edf_file_and_srun_is_told_where() -> None:
    choice = choose(CLARIDEN, "nvcr.io/nvidia/pytorch:25.06-py3")
    spec = spec_of(choice, "nvidia")
    runtime = get_runtime("edf")
    assert runtime.wrap(spec) == ()
    assert runtime.starts_task
    assert [a.words for a in runtime.launcher_arguments(spec)] == [("--environment=/work/me/runs/1/windlass.edf.toml",)]
    edf = tomllib.loads(runtime.files(spec)["windlass.edf.toml"])
    assert edf == {
        "image": "nvcr.io#nvidia/pytorch:25.06-py3",
        "workdir": "/work/me",
        "mounts": ["/capstor:/capstor", "/iopsstor:/iopsstor", "/work/me:/work/me"],
        "annotations": {"com": {"hooks": {"aws_ofi_nccl": {"enabled": "true", "variant": "cuda-dl"}}}},
    }


def test_a_users_own_edf_file_is_the_base_of_ours() -> None:
    choice = choose(CLARIDEN, "/users/me/.edf/torch.toml")
    edf = tomllib.loads(get_runtime("edf").files(spec_of(choice, None))["windlass.edf.toml"])
    assert edf["base_environment"] == "/users/me/.edf/torch.toml"
    assert "image" not in edf


def test_edf_text_survives_quotes_dollars_and_control_characters() -> None:
    settings = (
        Setting(name="A", value='say "hi"\n\t\x7f $(x) ${LITERAL} \\', because="line\nbreak"),
        Setting(name="B", value="${HOME}/x", because="test", expand=True),
        Setting(name="C", value=None, because="test"),
    )
    choice = choose(CLARIDEN, "/images/x.sqsh")
    spec = spec_of(choice, None, cwd="/work/me 'x' $1")
    plan = msgspec.structs.replace(spec.container, settings=settings, mounts=())
    text = get_runtime("edf").files(msgspec.structs.replace(spec, container=plan))["windlass.edf.toml"]
    edf = tomllib.loads(text)
    assert edf["env"] == {"A": 'say "hi"\n\t\x7f $(x) $${LITERAL} \\', "B": "${HOME}/x", "C": ""}
    assert edf["workdir"] == "/work/me 'x' $1"


@each(
    ("given", "written"),
    [
        ("ubuntu:24.04", "ubuntu:24.04"),
        ("library/ubuntu:24.04", "library/ubuntu:24.04"),
        ("nvcr.io/nvidia/pytorch:25.06-py3", "nvcr.io#nvidia/pytorch:25.06-py3"),
        ("localhost:5000/a/b", "localhost:5000#a/b"),
        ("quay.io#x/y:1", "quay.io#x/y:1"),
    ],
)
def test_a_registry_is_separated_as_the_engine_wants_it(given: str, written: str) -> None:
    assert registry_image(given) == written
