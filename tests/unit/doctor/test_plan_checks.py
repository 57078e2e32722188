"""What can be told without a node: settings, nesting, proxies, loader workers."""

from __future__ import annotations

from pathlib import Path

import pytest

from planning import plan_for
from windlass.diagnose.doctor.plan_checks import (
    check_nesting,
    check_proxies,
    check_settings,
    check_shadowed,
    check_workers,
    loader_workers,
)
from windlass.model.request import Request


@pytest.mark.parametrize(
    ("variables", "nodes", "severity", "word"),
    [
        ({"FI_MR_CACHE_MONITOR": "memhooks"}, 4, "error", "memhooks deadlocks"),
        ({"FI_MR_CACHE_MONITOR": "kdreg2"}, 4, "ok", "no variable"),
        ({"FI_CXI_OVFLOW_BUF_SIZE": "8388608"}, 4, "warning", "FI_CXI_OVFLOW_BUF_SIZE is not read by any library"),
        ({"NCCL_NET": "AWS Libfabric"}, 1, "error", "forced on one node"),
        ({"NCCL_NET": "AWS Libfabric"}, 2, "ok", "no variable"),
        ({"NCCL_NET": "Socket"}, 1, "ok", "no variable"),
        ({"NCCL_P2P_DISABLE": "1"}, 1, "warning", "NCCL_P2P_DISABLE set"),
        ({"NCCL_P2P_DISABLE": "0"}, 1, "ok", "no variable"),
        ({"ROCR_VISIBLE_DEVICES": "0,1", "HIP_VISIBLE_DEVICES": "1"}, 1, "warning", "conflict"),
    ],
)
def test_settings_that_are_known_to_be_bad_are_found(
    variables: dict[str, str], nodes: int, severity: str, word: str
) -> None:
    found = check_settings(variables, nodes)
    assert found.severity == severity and word in found.evidence


@pytest.mark.parametrize(
    ("request_", "ranks", "severity"),
    [
        (Request(command=("torchrun", "train.py")), 4, "error"),
        (Request(command=("torchrun", "--nnodes=2", "train.py")), 1, "warning"),
        (Request(command=("srun", "train")), 1, "error"),
        (Request(command=("torch.distributed.run", "x.py"), kind="module"), 4, "error"),
        (Request(command=("train.py",), kind="script"), 4, "ok"),
        (Request(command=(), kind="none"), 4, "ok"),
    ],
)
def test_a_launcher_inside_the_ranks_is_found(request_: Request, ranks: int, severity: str) -> None:
    assert check_nesting(request_, {}, ranks).severity == severity


def test_windlass_inside_torchrun_is_found() -> None:
    found = check_nesting(Request(command=()), {"TORCHELASTIC_RUN_ID": "none"}, 1)
    assert found.severity == "error" and "inside torchrun" in found.evidence


def test_proxies_without_exceptions_and_offline_sites_are_told() -> None:
    assert check_proxies({"https_proxy": "http://p:1"}, False).severity == "warning"
    assert check_proxies({"https_proxy": "http://p:1", "no_proxy": "localhost"}, False).severity == "ok"
    assert check_proxies({}, True).severity == "warning"
    assert check_proxies({"HF_HUB_OFFLINE": "1"}, True).severity == "ok"
    assert check_proxies({}, False).severity == "ok"


@pytest.mark.parametrize(
    ("words", "workers"),
    [
        (("train.py", "--num-workers", "8"), 8),
        (("train.py", "--num_workers=12"), 12),
        (("train.py", "data.num_workers=3"), 3),
        (("train.py", "--workers", "4"), 4),
        (("train.py", "--epochs", "4"), None),
        (("train.py", "--workers"), None),
    ],
)
def test_loader_workers_are_read_from_the_arguments(words: tuple[str, ...], workers: int | None) -> None:
    assert loader_workers(words) == workers


@pytest.mark.parametrize(("workers", "severity"), [("30", "warning"), ("2", "ok")])
def test_more_workers_than_cores_are_told(workers: str, severity: str) -> None:
    command = ("train.py", "--num-workers", workers)
    plan, _ = plan_for("frontier", *command, kind="script", nodes=2, account="A")
    found = check_workers(plan.request, plan)
    assert found.severity == severity and f"{workers} workers" in found.evidence


def test_a_file_beside_the_script_that_hides_a_module_of_python_is_found(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    for name in ("train.py", "setup.py", "model.py"):
        (tmp_path / name).touch()
    asked = (Request(command=(str(script),), kind="script"), Request(command=("python", str(script))))
    assert [check_shadowed(request).severity for request in asked] == ["ok", "ok"]
    (tmp_path / "queue").mkdir()
    (tmp_path / "queue" / "__init__.py").touch()
    (tmp_path / "random.py").touch()
    for request in asked:
        found = check_shadowed(request)
        assert found.severity == "warning"
        assert f"{tmp_path}/queue/__init__.py, {tmp_path}/random.py is imported" in found.evidence
    assert check_shadowed(Request(command=("torch.distributed.run",), kind="module")).severity == "skipped"
