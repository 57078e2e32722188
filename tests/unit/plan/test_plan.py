"""What planning decides, and what it refuses."""

from __future__ import annotations

import msgspec
import pytest

from looping import each
from planning import PLAIN, plan_for
from windlass.base.notation.hostlist import fold_hostlist
from windlass.errors import UsageError
from windlass.model.origin import argv_of
from windlass.model.plan import Plan, plan_from_json, plan_to_json
from windlass.model.request import Allocation
from windlass.model.topology import Core, Topology
from windlass.plan.explain import find_name, occurrences_text
from windlass.plan.render.batch_script import standalone_script
from windlass.plan.render.rank_script import rank_script
from windlass.plan.render.variables import JobFacts
from windlass.sites.catalog import load_site

HOSTS = tuple(f"nid{n:04d}" for n in range(1, 5))
JOB = Allocation(scheduler="slurm", job_id="4711", hosts=HOSTS, cpus_per_node=4)


def value(plan: Plan, name: str) -> str | None:
    found = [setting for setting in plan.environment if setting.name == name]
    return found[0].value if found else None


def test_the_same_inputs_give_the_same_plan() -> None:
    first, _ = plan_for("frontier", "train", nodes=4)
    second, _ = plan_for("frontier", "train", nodes=4)
    assert first == second and plan_to_json(first) == plan_to_json(second)


def test_a_saved_plan_is_read_back_as_it_was() -> None:
    plan, _ = plan_for("lumi", "train", nodes=2, container="/images/x.sif")
    assert plan_from_json(plan_to_json(plan)) == plan


def test_multi_node_settings_are_left_out_on_one_node() -> None:
    single, _ = plan_for("frontier", "train", nodes=1)
    several, _ = plan_for("frontier", "train", nodes=2)
    assert value(several, "FI_CXI_RDZV_PROTO") == "alt_read" and value(single, "FI_CXI_RDZV_PROTO") is None
    assert any("disable_rdzv_get" in word for word in argv_of(several.directives))
    assert not any("disable_rdzv_get" in word for word in argv_of(single.directives))


def test_a_value_of_the_user_wins_and_is_shown_as_theirs() -> None:
    plan, _ = plan_for("frontier", "train", nodes=2, users={"NCCL_CROSS_NIC": "0"})
    setting = next(s for s in plan.environment if s.name == "NCCL_CROSS_NIC")
    assert setting.value == "0" and setting.origin.scope == "environment"
    assert "say 1" in setting.note


def test_a_flag_wins_over_the_environment() -> None:
    plan, _ = plan_for("frontier", "x", nodes=2, users={"NCCL_CROSS_NIC": "0"}, env=(("NCCL_CROSS_NIC", "2"),))
    setting = next(s for s in plan.environment if s.name == "NCCL_CROSS_NIC")
    assert setting.value == "2" and setting.origin.scope == "flag"


def test_unset_takes_a_default_away() -> None:
    plan, _ = plan_for("frontier", "x", nodes=2, unset=("NCCL_CROSS_NIC",))
    assert [s.value for s in plan.environment if s.name == "NCCL_CROSS_NIC"] == [None]


def test_a_device_visibility_left_by_the_scheduler_is_not_the_users_will() -> None:
    plan, _ = plan_for("perlmutter", "x", nodes=1, users={"CUDA_VISIBLE_DEVICES": "0"})
    assert value(plan, "CUDA_VISIBLE_DEVICES") == "3,2,1,0"


def test_exactly_one_variable_selects_devices() -> None:
    names = {"CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"}
    for site in ("frontier", "lumi", "perlmutter", "polaris", "aurora", "clariden"):
        for devices in ("all", "one"):
            plan, _ = plan_for(site, "x", nodes=2, devices=devices)
            assert len(names & {s.name for s in plan.environment}) <= 1, (site, devices)


def test_threads_come_from_the_cores_of_a_rank() -> None:
    assert value(plan_for("lumi", "x")[0], "OMP_NUM_THREADS") == "7"
    assert value(plan_for("lumi", "x", threads=3)[0], "OMP_NUM_THREADS") == "3"


def test_a_default_argument_can_be_removed_replaced_and_added() -> None:
    plan, _ = plan_for("frontier", "x", launcher_args=("~--label", "--wait=60", "--comment=two words"))
    words = argv_of(plan.launch)
    assert "--label" not in words and "--wait=60" in words and "--wait=0" not in words
    assert "--comment=two words" in words


def test_a_directive_of_two_words_stays_two_words() -> None:
    plan, _ = plan_for("aurora", "x", account="a", directives=("-l filesystems=home", "-W sandbox=PRIVATE"))
    words = [argument.words for argument in plan.directives]
    assert ("-l", "filesystems=home") in words and ("-W", "sandbox=PRIVATE") in words
    assert not any("flare" in word for pair in words for word in pair)


@each(
    ("options", "message"),
    [
        ({"nodes": 9}, "--nodes 9, but the allocation"),
        ({"hosts": "nid0009"}, "nid0009 is not in this job"),
        ({"hosts": "nid[0001-0002", "nodes": 2}, "not closed"),
        ({"hosts": "nid[0001-0002]", "nodes": 3}, "--hosts names 2"),
        ({"scheduler": "pbs"}, "this is a job of slurm"),
        ({"nodes": 0}, "--nodes 0"),
        ({"ranks_per_node": 0}, "--ranks-per-node 0"),
        ({"launcher": "srum"}, "unknown launcher 'srum'"),
        ({"launcher": "local", "nodes": 2}, "only on this machine"),
        ({"launcher_args": ("~--lable",)}, "no default of this name"),
        ({"options": ("no-such-remedy",)}, "no option of this name"),
        ({"cpu_bind": "no-such-preset"}, "no-such-preset"),
    ],
)
def test_contradictions_are_refused_before_anything_starts(options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError) as error:
        plan_for("generic-slurm", "x", allocation=JOB, **options)
    assert message in error.value.message and error.value.message


def test_more_ranks_than_the_allocation_has_tasks_is_refused() -> None:
    job = msgspec.structs.replace(JOB, tasks_per_node=2)
    with pytest.raises(UsageError, match="made for 2 tasks per node"):
        plan_for("generic-slurm", "x", allocation=job, ranks_per_node=3)


def test_more_ranks_than_devices_needs_to_be_said() -> None:
    with pytest.raises(UsageError, match="9 ranks per node, but a node has 8 devices"):
        plan_for("lumi", "x", ranks_per_node=9)
    plan, _ = plan_for("lumi", "x", ranks_per_node=16, ranks_per_device=2)
    assert plan.world_size == 16


@each("command", [("torchrun", "x.py"), ("python", "-m", "torch.distributed.run", "x"), ("srun", "x")])
def test_a_launcher_inside_the_ranks_is_refused(command: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match="inside every rank") as error:
        plan_for("lumi", *command)
    assert "leave it out" in (error.value.hint or "")


@each(
    "words",
    [
        ("torchrun", "x.py"),
        ("torchrun", "--standalone", "--nproc-per-node=4", "x.py"),
        ("torchrun", "--nnodes=1", "x.py"),
        ("python", "-m", "torch.distributed.run", "--nnodes", "1", "x.py"),
    ],
)
def test_torchrun_that_would_make_a_world_of_each_node_is_refused_with_the_right_words(words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match="each node would train alone") as error:
        plan_for("vista", *words, ranks_per_node=1, nodes=2)
    assert "--nnodes={nodes} --node-rank={node_rank}" in str(error.value.hint)


@each("option", [("--nnodes={nodes}",), ("--nnodes", "2"), ("--nnodes=1:4",)])
def test_torchrun_that_is_told_of_its_nodes_is_allowed(option: tuple[str, ...]) -> None:
    plan, _ = plan_for("vista", "torchrun", *option, "--node-rank={node_rank}", "x.py", ranks_per_node=1, nodes=2)
    assert plan.command[0] == "torchrun"


def test_torchrun_once_per_node_is_allowed_with_a_warning() -> None:
    plan, _ = plan_for("vista", "torchrun", "x.py", ranks_per_node=1)
    assert any("torchrun" in remark.evidence for remark in plan.remarks)


def test_part_of_an_allocation_is_named_to_the_launcher() -> None:
    plan, _ = plan_for("generic-slurm", "x", allocation=JOB, nodes=2)
    assert f"--nodelist={fold_hostlist(HOSTS[:2])}" in argv_of(plan.launch)
    whole, _ = plan_for("generic-slurm", "x", allocation=JOB)
    assert not any(word.startswith("--nodelist") for word in argv_of(whole.launch))


def test_an_unknown_node_is_left_to_the_job() -> None:
    plan, _ = plan_for("generic-slurm", "x", topology=Topology(arch="", cores=()), nodes=2, ranks_per_node=4)
    assert all(not rank.cpus for rank in plan.binding.ranks)
    assert not any("mask_cpu" in word for word in argv_of(plan.launch))


def test_cores_are_shared_equally_where_only_the_scheduler_knows_them() -> None:
    plan, _ = plan_for("generic-slurm", "x", topology=Topology(arch="", cores=()), allocation=JOB, ranks_per_node=2)
    assert "--cpus-per-task=2" in argv_of(plan.launch), "without it Slurm squeezes each rank onto one core"


def test_parts_of_several_nodes_are_divided_by_the_launcher() -> None:
    eight = Topology(arch="x86_64", cores=tuple(Core(cpus=(n,)) for n in range(8)), allowed=(0, 1, 2, 3))
    plan, _ = plan_for("generic-slurm", "x", topology=eight, allocation=JOB, ranks_per_node=2)
    words = argv_of(plan.launch)
    assert not any("mask_cpu" in word for word in words) and "--cpus-per-task=2" in words


def test_part_of_one_node_is_bound_within_what_is_allowed() -> None:
    eight = Topology(arch="x86_64", cores=tuple(Core(cpus=(n,)) for n in range(8)), allowed=(2, 3, 6, 7))
    plan, _ = plan_for("workstation", "x", topology=eight, ranks_per_node=2)
    assert {cpu for rank in plan.binding.ranks for cpu in rank.cpus} <= {2, 3, 6, 7}


def test_a_launcher_that_names_no_rank_makes_the_script_stay_the_parent() -> None:
    plan, _ = plan_for("generic-pbs", "x", launcher="hydra", nodes=2)
    assert plan.parent
    assert not plan_for("frontier", "x", nodes=2)[0].parent


def test_memhooks_is_warned_about() -> None:
    plan, _ = plan_for("frontier", "x", nodes=2, env=(("FI_MR_CACHE_MONITOR", "memhooks"),))
    assert any(remark.severity == "warning" and "memhooks" in remark.evidence for remark in plan.remarks)


def test_the_log_of_the_collective_library_goes_to_files() -> None:
    plan, _ = plan_for("frontier", "x", nodes=2, comm_log="0")
    assert (value(plan, "NCCL_DEBUG_FILE") or "").endswith("/comm/rank-{rank}.log")


def test_no_file_of_one_rank_each_is_planned() -> None:
    plan, _ = plan_for("aurora", "x", nodes=8192, account="a")
    text = plan_to_json(plan).decode()
    assert plan.world_size == 98304
    assert len(text) < 100_000, "a plan must not grow with the number of nodes"


def test_a_plain_machine_gets_one_rank() -> None:
    plan, _ = plan_for("workstation", "x", topology=PLAIN)
    assert (plan.nodes, plan.ranks_per_node, plan.launcher) == (1, 1, "local")


@each("words", [{"ranks_per_device": 4}, {"ranks_per_node": 48}, {"cpu_bind": "four-ccs", "ranks_per_device": 4}])
def test_four_ranks_per_tile_of_aurora_are_the_sites_four_streamers(words: dict[str, object]) -> None:
    plan, _ = plan_for("aurora", nodes=2, **words)
    assert (plan.ranks_per_node, plan.binding.preset) == (48, "four-ccs")
    named = {setting.name: setting.value for setting in plan.environment}
    assert named["ZEX_NUMBER_OF_CCS"] == ",".join(f"{tile}:4" for tile in range(12))
    assert "ZE_AFFINITY_MASK" not in named, "the page's script sees all tiles"
    assert [rank.devices for rank in plan.binding.ranks] == [(i // 4,) for i in range(48)]
    assert any("local rank // 4" in remark.evidence for remark in plan.remarks)


@each("words", [{"ranks_per_device": 2}, {"ranks_per_device": 4, "ranks_per_node": 12}])
def test_other_shares_of_a_tile_are_computed_and_each_rank_sees_its_own(words: dict[str, int]) -> None:
    plan, _ = plan_for("aurora", nodes=2, **words)
    assert plan.binding.preset is None
    assert {s.name: s.value for s in plan.environment}["ZE_AFFINITY_MASK"] == "{device}"


def test_the_module_of_tuned_settings_has_its_way_on_aurora() -> None:
    plan, _ = plan_for("aurora", nodes=2, modules=("frameworks_optimized",))
    by = {setting.name: setting.module for setting in plan.environment}
    assert by["CCL_KVS_MODE"] == by["FI_MR_CACHE_MONITOR"] == "frameworks_optimized"
    assert by["ZE_FLAT_DEVICE_HIERARCHY"] == by["TMPDIR"] == ""
    assert "CCL_WORKER_AFFINITY" not in by, "it belongs to a binding that is not taken"
    assert "--cpu-bind=${CPU_BIND}" in [word for argument in plan.launch for word in argument.words]
    said = occurrences_text(find_name("CCL_KVS_MODE", plan, load_site("aurora")))
    assert "left to the module frameworks_optimized" in said


@each("words", [{"ranks_per_node": 6, "device_unit": "card"}, {"cpu_bind": "ai"}, {"cpu_bind": "none"}])
def test_a_binding_that_the_user_asks_for_or_that_is_for_other_ranks_is_not_the_modules(
    words: dict[str, object],
) -> None:
    plan, _ = plan_for("aurora", nodes=2, modules=("frameworks_optimized",), **words)
    assert plan.binding.variable is None
    assert "${CPU_BIND}" not in str(plan.launch)


def test_what_the_user_sets_wins_over_the_module() -> None:
    options = {"modules": ("frameworks_optimized",), "env": (("CCL_KVS_MODE", "pmi"),)}
    plan, _ = plan_for("aurora", nodes=2, users={"CCL_ATL_TRANSPORT": "ofi"}, **options)
    settings = {s.name: (s.value, s.module) for s in plan.environment}
    assert settings["CCL_KVS_MODE"] == ("pmi", "")
    assert settings["CCL_ATL_TRANSPORT"] == ("ofi", "")


def test_launchers_without_words_for_binding_refuse_a_variable() -> None:
    with pytest.raises(UsageError, match="openmpi launcher"):
        plan_for("sophia", nodes=2, cpu_bind="env:CPU_BIND")
    with pytest.raises(UsageError, match="not the name of a variable"):
        plan_for("lumi", nodes=2, cpu_bind="env:")


@each(
    ("site", "options", "expected"),
    [
        ("clariden", {}, {"OMP_NUM_THREADS": "8"}),
        ("clariden", {"threads": 4}, {"OMP_NUM_THREADS": "4"}),
        ("polaris", {}, {"ftp_proxy": "http://proxy.alcf.anl.gov:3128"}),
        ("aurora", {"options": ("ccl-root",)}, {"CPATH": "${CCL_ROOT}/include", "LIBRARY_PATH": "${CCL_ROOT}/lib"}),
    ],
)
def test_values_of_the_sites_own_pages(site: str, options: dict[str, object], expected: dict[str, str]) -> None:
    plan, _ = plan_for(site, nodes=2, **options)
    settings = {setting.name: setting.value for setting in plan.environment}
    assert {name: settings.get(name) for name in expected} == expected


def test_nodes_of_polaris_are_not_reached_through_the_proxy() -> None:
    plan, _ = plan_for("polaris", nodes=2)
    assert "*.polaris.alcf.anl.gov" in str({s.name: s.value for s in plan.environment}["no_proxy"]).split(",")


@each("image", ["mine.sif", "/appl/local/laifs/containers/lumi-multitorch-x.sif"])
def test_lumi_binds_its_software_into_containers(image: str) -> None:
    plan, _ = plan_for("lumi", nodes=2, container=image)
    assert plan.container is not None
    assert ("/appl", True) in {(mount.source, mount.optional) for mount in plan.container.mounts}


@each(
    ("site", "options", "place"),
    [
        ("frontier", {"account": "ABC123"}, "/lustre/orion/abc123/scratch/${USER}"),
        ("aurora", {"account": "Proj"}, "/lus/flare/projects/Proj/${USER}"),
        ("lumi", {"account": "project_1"}, "/scratch/project_1/${USER}"),
        ("lumi", {"account": "project_1", "container": "x.sif"}, "/scratch/project_1/${USER}"),
        ("perlmutter", {}, "${PSCRATCH}"),
    ],
)
def test_models_and_data_sets_are_not_downloaded_to_a_small_or_slow_home(
    site: str, options: dict[str, object], place: str
) -> None:
    plan, _ = plan_for(site, nodes=2, **options)
    settings = {setting.name: setting for setting in plan.environment}
    assert settings["HF_HOME"].value == f"{place}/.cache/huggingface"
    assert settings["HF_DATASETS_CACHE"].value == f"{place}/.cache/huggingface/datasets"
    assert settings["HF_HOME"].when.exists == place.removesuffix("/${USER}"), "only where it is there"


@each(
    ("options", "users"),
    [
        ({}, {}),  # nobody knows whose folder
        ({"account": "a", "container": "x.sif"}, {}),  # the container does not see it
        ({"account": "a"}, {"HF_HOME": "/mine"}),  # data sets go beside the models
        ({"account": "a", "env": (("HF_HOME", "/mine"),)}, {}),
    ],
)
def test_data_sets_stay_beside_models_and_where_they_can_be_seen(
    options: dict[str, object], users: dict[str, str]
) -> None:
    plan, _ = plan_for("frontier", nodes=2, users=users, **options)
    assert "HF_DATASETS_CACHE" not in {setting.name for setting in plan.environment}


@pytest.mark.parametrize(("site", "ranks", "cores"), [("frontier", 16, 48), ("aurora", 12, 96), ("perlmutter", 64, 64)])
def test_a_job_without_devices_has_all_cores_of_gpu_nodes_and_sees_no_device(site: str, ranks: int, cores: int) -> None:
    """More ranks than devices, no preset for devices, and no core that is set aside for them."""
    plan, _ = plan_for(site, "train", nodes=2, ranks_per_node=ranks, gpus_per_node=0)
    used = {core.id for rank in plan.binding.ranks for cpu in rank.cpus if (core := plan.topology.core_of(cpu))}
    assert len(used) == cores
    assert not any(rank.devices for rank in plan.binding.ranks) and not plan.binding.comm_cpus
    hidden = {"CUDA_VISIBLE_DEVICES": "-1", "HIP_VISIBLE_DEVICES": "-1", "ONEAPI_DEVICE_SELECTOR": "!*:gpu"}
    assert {name: value(plan, name) for name in hidden} == hidden
    assert value(plan, "ROCR_VISIBLE_DEVICES") is None and value(plan, "ACCELERATE_USE_CPU") == "true"
    with_devices, _ = plan_for(site, "train", nodes=2)
    assert value(with_devices, "CUDA_VISIBLE_DEVICES") != "-1"


RAY = {"options": ("ray",), "kind": "script"}


def test_ray_gets_one_rank_per_node_with_all_devices_and_leaves_threads_and_devices_to_ray() -> None:
    plan, _ = plan_for("frontier", "train.py", nodes=4, account="A", **RAY)
    assert (plan.ranks_per_node, plan.world_size) == (1, 4)
    assert plan.ray is not None
    assert (plan.ray.cpus, plan.ray.devices) == (56, 8)
    named = {setting.name for setting in plan.environment}
    assert not named & {"OMP_NUM_THREADS", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"}
    assert not [remark for remark in plan.remarks if remark.kind == "idle-devices"]
    script = rank_script(plan, JobFacts(run_dir="/runs/1", run_id="ab"))
    assert '"$WINDLASS_RUN_DIR/ray.pyz" "$w_node_rank" "$w_master_addr" "$w_master_port"' in script
    assert "unset RANK" in script
    plan, _ = plan_for("frontier", "train.py", account="A", cache=("/env",), interpreter="/env/bin/python", **RAY)
    assert plan.agents is not None and plan.agents.restart is None
    again, _ = plan_for("frontier", "train.py", account="A", restarts=2, **RAY)
    assert again.agents is not None and again.agents.restart is not None
    assert not again.agents.restart.in_place, "a fork of the script would have no Ray"
    assert "w_swap /env/bin/python" in rank_script(plan, JobFacts(run_dir="/runs/1", run_id="ab"))


@each(
    ("words", "said"),
    [
        ({"ranks_per_node": 4}, "--ranks-per-node 4"),
        ({"ranks_per_device": 2}, "--ranks-per-device 2"),
        ({"devices": "one"}, "--devices one"),
    ],
)
def test_ray_with_several_ranks_per_node_is_refused(words: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=f"--with ray with {said}"):
        plan_for("frontier", "train.py", account="A", **RAY, **words)


def test_a_script_that_starts_ray_gets_a_cluster_unless_the_user_decides_otherwise() -> None:
    plan, _ = plan_for("workstation", "train.py", topology=PLAIN, starts_ray=True)
    assert plan.ray is not None
    assert "ray-cluster" in {remark.kind for remark in plan.remarks}
    assert "ray" in plan.request.options, "a restart plans the same"
    plan, _ = plan_for("workstation", "train.py", topology=PLAIN, starts_ray=True, options=("independent",))
    assert plan.ray is None
    plan, _ = plan_for("workstation", "train.py", topology=PLAIN, starts_ray=True, users={"RAY_ADDRESS": "n:1"})
    assert plan.ray is None
    plan, _ = plan_for("workstation", "train.py", topology=PLAIN, starts_ray=True, ranks_per_node=2)
    assert plan.ray is None
    assert "ray-per-rank" in {remark.kind for remark in plan.remarks}


def test_ray_runs_the_image_s_python_in_a_container_and_not_without_windlass() -> None:
    plan, _ = plan_for("lumi", "train.py", nodes=2, account="A", container="/images/ray.sif", **RAY)
    assert plan.ray is not None
    assert plan.ray.python == "python"
    with pytest.raises(UsageError, match="--standalone and Ray"):
        standalone_script(plan, "RUN_DIR")
