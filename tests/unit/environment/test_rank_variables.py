"""What frameworks look for in a rank, threads, and which devices it sees."""

from __future__ import annotations

import subprocess
from pathlib import Path

from looping import each
from planning import PLAIN, plan_for
from windlass.base.notation.shell import fillable
from windlass.model.plan import Binding, RankBinding
from windlass.plan.environment.caches import cache_dirs, cache_settings, cache_variable_names
from windlass.plan.environment.ranks import (
    RANK_VARIABLES,
    framework_settings,
    rank_variable_names,
    thread_settings,
    visibility_settings,
)
from windlass.plan.render.variables import setting_lines


@each(
    ("framework", "names"),
    [
        ("torch.distributed, env://", "RANK WORLD_SIZE MASTER_ADDR MASTER_PORT"),
        ("torch FSDP and DeepSpeed", "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT"),
        ("accelerate and HF Trainer", "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT"),
        (
            "Lightning, as under torchrun",
            "TORCHELASTIC_RUN_ID GROUP_RANK RANK LOCAL_RANK WORLD_SIZE MASTER_ADDR MASTER_PORT",
        ),
        (
            "Horovod",
            "HOROVOD_RANK HOROVOD_SIZE HOROVOD_LOCAL_RANK HOROVOD_LOCAL_SIZE HOROVOD_CROSS_RANK HOROVOD_CROSS_SIZE",
        ),
        ("scripts of Aurora's page", "PALS_LOCAL_RANKID MPI_LOCALRANKID"),
        ("windlass.init", "WINDLASS_RANK WINDLASS_LOCAL_RANK WINDLASS_NODE_RANK WINDLASS_WORLD_SIZE"),
    ],
)
def test_every_framework_finds_its_variables(framework: str, names: str) -> None:
    assert set(names.split()) <= set(rank_variable_names()), framework


def test_values_are_placeholders_that_the_rank_script_knows() -> None:
    for variable in RANK_VARIABLES:
        assert '"$w_' in fillable(variable.value), "the rank script fills it in"
        assert variable.readers
    assert len(set(rank_variable_names())) == len(RANK_VARIABLES)


def _binding(
    *cpus: tuple[int, ...], devices: tuple[tuple[int, ...], ...] = (), visible: tuple[int, ...] = ()
) -> Binding:
    ranks = tuple(
        RankBinding(local_rank=at, cpus=own, devices=devices[at] if devices else ()) for at, own in enumerate(cpus)
    )
    return Binding(ranks=ranks, because="x", visible=visible)


def test_threads_are_the_cores_of_the_smallest_rank() -> None:
    (setting,) = thread_settings(_binding((0, 1, 2), (3,)), PLAIN, None)
    assert (setting.name, setting.value) == ("OMP_NUM_THREADS", "1")


def test_a_wish_for_threads_is_granted_and_unbound_ranks_get_none() -> None:
    assert thread_settings(_binding(()), PLAIN, 5)[0].value == "5"
    assert thread_settings(_binding((), ()), PLAIN, None) == ()


def test_hardware_threads_of_one_core_count_once() -> None:
    plan, _ = plan_for("perlmutter")
    cpus = len(plan.binding.ranks[0].cpus)
    threads = int(next(s.value or "" for s in plan.environment if s.name == "OMP_NUM_THREADS"))
    assert threads <= cpus


def test_one_device_each_is_one_variable_filled_in_the_task() -> None:
    binding = _binding((0,), (1,), devices=((3,), (2,)))
    (setting,) = visibility_settings(binding, "X_VISIBLE", "one", by_launcher=False, all_devices=(2, 3))
    assert (setting.name, setting.value, setting.keep_user) == ("X_VISIBLE", "{device}", False)
    assert visibility_settings(binding, "X_VISIBLE", "one", by_launcher=True, all_devices=(2, 3)) == ()


def test_all_devices_in_their_own_order_need_no_variable_and_in_another_do() -> None:
    binding = _binding((0,), (1,), devices=((0,), (1,)))
    assert visibility_settings(binding, "X_VISIBLE", "all", by_launcher=False, all_devices=(0, 1)) == ()
    turned = _binding((0,), (1,), devices=((1,), (0,)), visible=(1, 0))
    (setting,) = visibility_settings(turned, "X_VISIBLE", "all", by_launcher=False, all_devices=(0, 1))
    assert setting.value == "1,0"


@each("vendor", [None, "nvidia", "amd", "intel"])
def test_every_cache_has_a_folder_below_the_runs_own(vendor: str | None) -> None:
    dirs = cache_dirs(vendor)
    settings = cache_settings(dirs)
    assert {s.name for s in settings} <= set(cache_variable_names())
    assert all(str(s.value).startswith("${WINDLASS_CACHE_DIR}/") and s.expand for s in settings)
    assert len({entry.subdir for entry in dirs}) == len(dirs)


def test_downloads_go_to_the_sites_scratch_and_not_to_home() -> None:
    plan, _ = plan_for("perlmutter")
    said = {s.name: str(s.value) for s in plan.environment}
    for name in ("HF_HOME", "TORCH_HOME"):
        assert said[name].endswith((".cache/huggingface", ".cache/torch"))
        assert said[name].startswith(("${", "/pscratch"))
    assert "HF_HOME" not in {s.name for s in plan_for("workstation")[0].environment}


def test_without_scratch_on_the_node_downloads_do_not_go_to_the_root_folder(tmp_path: Path) -> None:
    plan, _ = plan_for("perlmutter", "true")
    (setting,) = [s for s in plan.environment if s.name == "HF_HOME"]
    text = "\n".join([*setting_lines(setting), 'echo "[${HF_HOME-}]"'])
    for env, said in (({}, "[]"), ({"PSCRATCH": str(tmp_path)}, f"[{tmp_path}/.cache/huggingface]")):
        done = subprocess.run(["sh", "-c", text], env=env, capture_output=True, text=True)
        assert done.stdout.strip() == said


@each(("site", "ranks", "expected"), [("workstation", 2, True), ("workstation", 1, False), ("lumi", 8, False)])
def test_accelerate_and_hf_trainer_are_told_that_a_node_has_no_devices(site: str, ranks: int, expected: bool) -> None:
    plan, _ = plan_for(site, "true", ranks_per_node=ranks)
    found = [setting.value for setting in plan.environment if setting.name == "ACCELERATE_USE_CPU"]
    assert found == (["true"] if expected else [])


@each(
    ("one_device", "visible", "devices", "ids"),
    [
        (True, (), ((0,), (1,)), "0"),
        (True, (), ((0, 1), (2, 3)), "0,1"),
        (False, (), ((0,), (0,)), "{device}"),
        (False, (1, 0), ((1,), (0,)), "{local_rank}"),
    ],
)
def test_jax_takes_the_devices_of_the_rank(
    one_device: bool, visible: tuple[int, ...], devices: tuple[tuple[int, ...], ...], ids: str
) -> None:
    binding = _binding((0,), (1,), devices=devices, visible=visible)
    made = framework_settings(frozenset({"flax"}), binding, "srun", one_device=one_device, all_devices=(0, 1))
    assert {setting.name: setting.value for setting in made} == {
        "JAX_COORDINATOR_ADDRESS": "{master_addr}:{master_port}",
        "JAX_LOCAL_DEVICE_IDS": ids,
    }


def test_jax_finds_its_processes_under_a_launcher_that_it_does_not_know() -> None:
    made = framework_settings(frozenset({"jax"}), _binding((0,)), "flux", one_device=True, all_devices=())
    values = {setting.name: setting.value for setting in made}
    assert (values["SLURM_PROCID"], values["SLURM_NTASKS"], values["SLURM_LOCALID"]) == (
        "{rank}",
        "{world_size}",
        "{local_rank}",
    )
    assert {"SLURM_JOB_ID", "SLURM_STEP_NODELIST"} <= set(values), "jax looks whether all five are set"


def test_scripts_of_torch_and_horovod_get_neither() -> None:
    for imports in (frozenset({"torch"}), frozenset({"tensorflow", "horovod"})):
        assert framework_settings(imports, _binding((0,)), "local", one_device=True, all_devices=()) == ()
