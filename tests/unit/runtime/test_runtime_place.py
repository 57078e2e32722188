"""Where a rank stands, from the variables that each launcher really sets."""

from __future__ import annotations

import pytest

from looping import each
from windlass.errors import UsageError
from windlass.runtime.place import find_place

SRUN = {
    "SLURM_JOB_ID": "4711",
    "SLURM_NTASKS": "5",
    "SLURM_STEP_ID": "2",
    "SLURM_STEP_NUM_TASKS": "5",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_TASKS_PER_NODE": "3,2",
    "SLURM_STEP_NODELIST": "nid[0007-0008]",
    "SLURM_PROCID": "4",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
}
# The variables of a task of `flux run -N2 -n4`, third rank.
FLUX = {
    "FLUX_TASK_RANK": "2",
    "FLUX_JOB_SIZE": "4",
    "FLUX_TASK_LOCAL_ID": "0",
    "FLUX_JOB_NNODES": "2",
    "FLUX_JOB_ID": "ƒ5Kz7R4s",
    "PMI_RANK": "2",
    "PMI_SIZE": "4",
}
PALS = {
    "PALS_RANKID": "13",
    "PALS_LOCAL_RANKID": "1",
    "PALS_LOCAL_SIZE": "12",
    "PALS_NODEID": "1",
    "PMI_RANK": "13",
    "PMI_SIZE": "24",
}
HYDRA = {"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
OPENMPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "3",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
    "OMPI_COMM_WORLD_NODE_RANK": "3",
}
TORCH = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "GROUP_RANK": "1",
    "MASTER_ADDR": "nid7",
    "MASTER_PORT": "29400",
}


def test_no_variables_mean_alone() -> None:
    place = find_place({})
    assert (place.launcher, place.rank, place.world_size, place.local_rank) == ("alone", 0, 1, 0)


def test_srun_gives_all_words_and_the_first_host() -> None:
    place = find_place(SRUN)
    assert (place.launcher, place.rank, place.world_size) == ("srun", 4, 5)
    assert (place.local_rank, place.local_world_size, place.node_rank) == (1, 2, 1)
    assert place.master_addr == "nid0007"


def test_two_steps_of_a_job_meet_on_different_ports() -> None:
    other = find_place({**SRUN, "SLURM_STEP_ID": "3"})
    assert find_place(SRUN).master_port != other.master_port
    assert all(1024 < (p.master_port or 0) < 32768 for p in (find_place(SRUN), other))


def test_a_batch_script_without_srun_is_alone_although_it_has_many_tasks() -> None:
    batch = {"SLURM_JOB_ID": "4711", "SLURM_NTASKS": "8", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}
    assert find_place(batch).world_size == 1


def test_flux_is_read_and_agrees_with_its_own_pmi() -> None:
    place = find_place(FLUX)
    assert (place.launcher, place.rank, place.world_size, place.local_rank) == ("flux", 2, 4, 0)
    assert place.master_addr is None


def test_pals_is_read() -> None:
    place = find_place(PALS)
    assert (place.launcher, place.rank, place.world_size) == ("pals", 13, 24)
    assert (place.local_rank, place.local_world_size, place.node_rank) == (1, 12, 1)


def test_pals_without_a_world_size_is_refused_with_a_way_out() -> None:
    with pytest.raises(UsageError) as caught:
        find_place({"PALS_RANKID": "3", "PALS_LOCAL_RANKID": "3"})
    assert "PMI_SIZE" in caught.value.message and "WORLD_SIZE" in (caught.value.hint or "")


def test_hydra_is_read() -> None:
    place = find_place(HYDRA)
    assert (place.launcher, place.rank, place.world_size, place.local_rank) == ("hydra", 3, 4, 1)


def test_open_mpi_on_one_node_needs_no_address_and_its_node_rank_is_not_a_node() -> None:
    place = find_place(OPENMPI)
    assert (place.launcher, place.rank, place.local_rank) == ("openmpi", 3, 3)
    assert place.master_addr == "127.0.0.1" and place.node_rank is None


def test_torchrun_once_per_node_under_srun_is_believed() -> None:
    outer = {**SRUN, "SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1", "SLURM_STEP_TASKS_PER_NODE": "1(x2)"}
    place = find_place({**outer, "SLURM_LOCALID": "0", **TORCH, "TORCHELASTIC_RUN_ID": "x"})
    assert (place.launcher, place.rank, place.world_size, place.local_rank) == ("torchrun", 5, 8, 1)
    assert (place.master_addr, place.master_port, place.node_rank) == ("nid7", 29400, 1)


def test_hydra_whose_proxies_were_started_by_srun_is_the_inner_launcher() -> None:
    proxies = {**SRUN, "SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1", "SLURM_STEP_TASKS_PER_NODE": "1(x2)"}
    place = find_place({**proxies, "SLURM_LOCALID": "0", **HYDRA})
    assert (place.launcher, place.rank, place.world_size, place.local_rank) == ("hydra", 3, 4, 1)


def test_a_leftover_world_size_of_one_under_srun_is_refused() -> None:
    with pytest.raises(UsageError, match=r"WORLD_SIZE=1, but srun started 5 tasks"):
        find_place({**SRUN, "RANK": "0", "WORLD_SIZE": "1"})


def test_the_rank_script_is_believed_whatever_else_is_set() -> None:
    place = find_place({**SRUN, "WINDLASS_RANK": "0", "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"})
    assert (place.launcher, place.world_size) == ("windlass", 1)


def test_rank_exported_by_hand_is_filled_from_srun() -> None:
    place = find_place({**SRUN, "RANK": "4", "WORLD_SIZE": "5"})
    assert (place.launcher, place.local_rank, place.master_addr) == ("torch", 1, "nid0007")


def test_a_named_launcher_overrides_the_guess() -> None:
    assert find_place({**SRUN, "RANK": "0", "WORLD_SIZE": "1"}, launcher="srun").world_size == 5
    assert find_place(SRUN, launcher="alone").world_size == 1


def test_an_unknown_launcher_names_the_nearest() -> None:
    with pytest.raises(UsageError) as caught:
        find_place({}, launcher="sruns")
    assert "srun" in (caught.value.hint or "")


def test_a_named_launcher_that_is_not_there_is_refused() -> None:
    with pytest.raises(UsageError, match="SLURM_PROCID"):
        find_place({}, launcher="srun")


@each(
    ("environ", "word"),
    [
        ({"RANK": "1"}, "WORLD_SIZE is not"),
        ({"WORLD_SIZE": "4"}, "RANK is not"),
        ({"RANK": "4", "WORLD_SIZE": "4"}, "contradict"),
        ({"RANK": "-1", "WORLD_SIZE": "4"}, "contradict"),
        ({"RANK": "0", "WORLD_SIZE": "0"}, "contradict"),
        ({"RANK": "a", "WORLD_SIZE": "4"}, "not a number"),
        ({"RANK": "0", "WORLD_SIZE": "4", "LOCAL_RANK": "2", "LOCAL_WORLD_SIZE": "2"}, "only 2 ranks"),
        ({"RANK": "0", "WORLD_SIZE": "1", "MASTER_PORT": "99999"}, "not a port"),
        ({**FLUX, "PMI_RANK": "1"}, "flux says rank 2, hydra says rank 1"),
    ],
)
def test_wrong_variables_are_named(environ: dict[str, str], word: str) -> None:
    with pytest.raises(UsageError, match=word):
        find_place(environ)
