"""What the sites document, tied to the catalog. The expected values are those of the sites' own pages."""

from __future__ import annotations

from looping import each
from planning import plan_for
from unit.sites.loading import binds, directives, launcher_words, variables
from windlass.base.notation.counts import parse_bindings
from windlass.sites.catalog import load_site

RDZV = {"FI_CXI_RDZV_THRESHOLD": "0", "FI_CXI_RDZV_GET_MIN": "0", "FI_CXI_RDZV_EAGER_SIZE": "0"}
ALT_READ = {"FI_CXI_RDZV_PROTO": "alt_read", **RDZV}

# The side-by-side table of official sets. A variable that a site does not name is one that it does not set.
SETS: dict[str, dict[str, str]] = {
    "hpe-gh200": {
        "NCCL_NET": "AWS Libfabric",
        "NCCL_NET_GDR_LEVEL": "PHB",
        "NCCL_CROSS_NIC": "1",
        "NCCL_SOCKET_IFNAME": "hsn0,hsn1,hsn2,hsn3",
        "FI_MR_CACHE_MONITOR": "userfaultfd",
        "FI_CXI_DISABLE_HOST_REGISTER": "1",
        "FI_CXI_DEFAULT_CQ_SIZE": "131072",
        "FI_CXI_DEFAULT_TX_SIZE": "2048",
        "FI_CXI_RX_MATCH_MODE": "hybrid",
        "FI_CXI_SAFE_DEVMEM_COPY_THRESHOLD": "16777216",
        "FI_CXI_DISABLE_NON_INJECT_MSG_IDC": "1",
        "FI_HMEM_CUDA_USE_GDRCOPY": "1",
        **ALT_READ,
    },
    "frontier": {
        "NCCL_NET_GDR_LEVEL": "PHB",
        "NCCL_CROSS_NIC": "1",
        "NCCL_SOCKET_IFNAME": "hsn0,hsn1,hsn2,hsn3",
        "FI_MR_CACHE_MONITOR": "kdreg2",
        "FI_CXI_DISABLE_HOST_REGISTER": "1",
        "FI_CXI_DEFAULT_CQ_SIZE": "131072",
        "FI_CXI_DEFAULT_TX_SIZE": "2048",
        "FI_CXI_RX_MATCH_MODE": "hybrid",
        "HSA_FORCE_FINE_GRAIN_PCIE": "1",
        **ALT_READ,
    },
    "clariden": {
        "NCCL_NET": "AWS Libfabric",
        "NCCL_NET_GDR_LEVEL": "PHB",
        "NCCL_CROSS_NIC": "1",
        "NCCL_PROTO": "^LL128",
        "FI_MR_CACHE_MONITOR": "userfaultfd",
        "FI_CXI_DISABLE_HOST_REGISTER": "1",
        "FI_CXI_DEFAULT_CQ_SIZE": "131072",
        "FI_CXI_DEFAULT_TX_SIZE": "16384",
        "FI_CXI_RX_MATCH_MODE": "software",
    },
    "isambard-ai": {
        "NCCL_NET": "AWS Libfabric",
        "NCCL_NET_GDR_LEVEL": "PHB",
        "NCCL_CROSS_NIC": "1",
        "NCCL_SOCKET_IFNAME": "hsn",
        "NCCL_MIN_NCHANNELS": "4",
        "NCCL_GDRCOPY_ENABLE": "1",
        "NCCL_NET_FORCE_FLUSH": "0",
        "FI_MR_CACHE_MONITOR": "userfaultfd",
        "FI_CXI_DISABLE_HOST_REGISTER": "1",
        "FI_CXI_DEFAULT_CQ_SIZE": "131072",
        "FI_CXI_DEFAULT_TX_SIZE": "2048",
        "FI_CXI_RX_MATCH_MODE": "hybrid",
        "FI_CXI_DISABLE_NON_INJECT_MSG_IDC": "1",
        "FI_HMEM_CUDA_USE_GDRCOPY": "1",
        **ALT_READ,
    },
    "perlmutter": {
        "NCCL_NET": "AWS Libfabric",
        "NCCL_NET_GDR_LEVEL": "PHB",
        "NCCL_CROSS_NIC": "1",
        "NCCL_SOCKET_IFNAME": "hsn",
        "FI_MR_CACHE_MONITOR": "userfaultfd",
        "FI_CXI_DISABLE_HOST_REGISTER": "1",
    },
    "polaris": {
        "NCCL_NET": "AWS Libfabric",
        "NCCL_NET_GDR_LEVEL": "PHB",
        "NCCL_CROSS_NIC": "1",
        "NCCL_COLLNET_ENABLE": "1",
        "FI_MR_CACHE_MONITOR": "userfaultfd",
        "FI_CXI_DISABLE_HOST_REGISTER": "1",
        "FI_CXI_DEFAULT_CQ_SIZE": "131072",
    },
    "lumi": {
        "NCCL_NET_GDR_LEVEL": "PHB",
        "NCCL_SOCKET_IFNAME": "hsn0,hsn1,hsn2,hsn3",
        "FI_MR_CACHE_MONITOR": "userfaultfd",
        "FI_CXI_DEFAULT_CQ_SIZE": "131072",
    },
    "elcapitan": {
        "NCCL_NET": "AWS Libfabric",
        "NCCL_NET_GDR_LEVEL": "PHB",
        "NCCL_CROSS_NIC": "1",
        "NCCL_SOCKET_IFNAME": "hsi0",
        "NCCL_MIN_NCHANNELS": "24",
        "FI_MR_CACHE_MONITOR": "userfaultfd",
        "FI_CXI_DISABLE_HOST_REGISTER": "1",
        "FI_CXI_DEFAULT_CQ_SIZE": "131072",
        "FI_CXI_DEFAULT_TX_SIZE": "1024",
        "FI_CXI_RX_MATCH_MODE": "hybrid",
        **ALT_READ,
    },
}


@each("name", SETS)
def test_each_slingshot_site_has_its_own_official_set(name: str) -> None:
    collective = ("NCCL_", "FI_", "HSA_FORCE", "CCL_")
    found = {key: value for key, value in variables(name).items() if key.startswith(collective) and value is not None}
    assert found == SETS[name]


def test_tuolumne_is_as_el_capitan() -> None:
    assert variables("tuolumne") == variables("elcapitan")
    assert load_site("tuolumne").file.hardware == "cray-ex-mi300a"
    assert load_site("tuolumne").file.detect.hostnames == (r"tuolumne\d+",)


def test_what_aurora_needs_beyond_sixteen_nodes_is_on_by_their_number() -> None:
    needed = {
        "CCL_KVS_CONNECTION_TIMEOUT": "600",
        "CCL_KVS_GET_TIMEOUT": "600",
        "FI_CXI_DEFAULT_CQ_SIZE": "131072",
        "FI_CXI_OFLOW_BUF_SIZE": "8388608",
        "FI_CXI_CQ_FILL_PERCENT": "20",
    }
    for nodes in (17, 8192):
        found = variables("aurora", nodes=nodes)
        assert {key: found.get(key) for key in needed} == needed
    assert not needed.keys() & variables("aurora", nodes=16).keys()


def test_aurora_sets_the_minimal_oneccl_set_and_nothing_of_nccl() -> None:
    found = variables("aurora", nodes=16)
    minimal = {
        "CCL_PROCESS_LAUNCHER": "pmix",
        "CCL_ATL_TRANSPORT": "mpi",
        "CCL_KVS_MODE": "mpi",
        "FI_MR_CACHE_MONITOR": "userfaultfd",
    }
    assert {key: found[key] for key in minimal} == minimal
    assert not [key for key in found if key.startswith(("NCCL_", "FI_CXI_"))]
    assert not [key for key in found if key.startswith("CCL_") and key not in minimal]


def test_auroras_experimental_settings_are_only_on_request() -> None:
    found = variables("aurora", options={"oneccl-tuning"})
    assert found["CCL_ALLREDUCE_SCALEOUT"] == "direct:0-1048576;rabenseifner:1048577-max"
    assert found["CCL_BCAST"] == "double_tree"
    assert found["CCL_CONFIGURATION_PATH"] == ""
    assert found["CCL_CONFIGURATION"] == "cpu_gpu_dpcpp"
    assert found["CCL_KVS_CONNECTION_TIMEOUT"] == "600"
    assert found["CCL_ZE_CACHE_OPEN_IPC_HANDLES_THRESHOLD"] == "1024"
    assert found["CCL_KVS_USE_MPI_RANKS"] == "1"
    assert found["MPI_PROVIDER"] == "${FI_PROVIDER}"
    assert found["MPIR_CVAR_COLL_SELECTION_TUNING_JSON_FILE"] is None, "None unsets"
    overflow = variables("aurora", options={"cxi-overflow"})
    assert (overflow["FI_CXI_DEFAULT_CQ_SIZE"], overflow["FI_CXI_CQ_FILL_PERCENT"]) == ("131072", "20")
    assert overflow["FI_CXI_OFLOW_BUF_SIZE"] == "8388608"
    hang = variables("aurora", options={"hang"})
    assert (hang["CCL_ATL_SYNC_COLL"], hang["CCL_OP_SYNC"]) == ("1", "1")


def test_auroras_quirks_and_proxy() -> None:
    found = variables("aurora", nodes=1)
    assert found["NUMEXPR_NUM_THREADS"] == "64"
    assert found["TMPDIR"] == "/tmp"
    assert found["http_proxy"] == found["https_proxy"] == "http://proxy.alcf.anl.gov:3128"
    assert found["no_proxy"] == "admin,*.hostmgmt.cm.aurora.alcf.anl.gov,*.alcf.anl.gov,localhost"


def test_a_device_on_aurora_is_a_tile_or_a_card() -> None:
    settings = [s for s in load_site("aurora").file.settings if s.name == "ZE_FLAT_DEVICE_HIERARCHY"]
    assert {(s.when.device_unit, s.value) for s in settings} == {("tile", "FLAT"), ("card", "COMPOSITE")}


def test_auroras_presets_are_the_documented_lists() -> None:
    presets = {preset.name: preset for preset in load_site("aurora").file.binding.presets}
    ai = presets["ai"]
    assert ai.cpus == "4-7:8-11:12-15:16-19:20-23:24-27:56-59:60-63:64-67:68-71:72-75:76-79"
    assert ai.default and ai.ranks_per_node == 12 and ai.comm_cpus == "42-47,94-99"
    assert {s.name: s.value for s in ai.settings} == {"CCL_WORKER_AFFINITY": "42,43,44,45,46,47,94,95,96,97,98,99"}
    assert presets["one-core"].cpus == "4:9:14:19:20:25:56:61:66:71:74:79"
    eight = "1-8:9-16:17-24:25-32:33-40:41-48:53-60:61-68:69-76:77-84:85-92:93-100"
    assert presets["eight-cores"].cpus == eight
    assert presets["cards"].cpus == "1-16:17-32:33-48:53-68:69-84:85-100"
    assert presets["cards"].device_unit == "card"
    three = "2-4:10-12:18-20:26-28:34-36:42-44:54-56:62-64:70-72:78-80:86-88:94-96"
    assert presets["three-cores"].cpus == three
    assert {s.name: s.value for s in presets["three-cores"].settings} == {
        "HOROVOD_THREAD_AFFINITY": "4,12,20,28,36,44,56,64,72,80,88,96",
        "CCL_WORKER_AFFINITY": "5,13,21,29,37,45,57,65,73,81,89,97",
    }


def test_aurora_runs_48_ranks_with_four_streamers_per_tile() -> None:
    (preset,) = [p for p in load_site("aurora").file.binding.presets if p.ranks_per_node == 48]
    cores = [cpus[0] for cpus in parse_bindings(preset.cpus)]
    assert cores == [1, *range(2, 47, 2), 53, *range(54, 99, 2)]
    (setting,) = preset.settings
    assert setting.name == "ZEX_NUMBER_OF_CCS"
    assert setting.value == ",".join(f"{tile}:4" for tile in range(12))


def test_aurora_asks_its_scheduler_and_finds_its_first_rank_as_documented() -> None:
    file = load_site("aurora").file
    assert (file.scheduler.kind, file.launcher.kind, file.scheduler.account_required) == ("pbs", "pals", True)
    words = directives("aurora")
    assert ("-l", "filesystems=flare:home") in words
    assert ("-l", "place=scatter") in words
    assert ("-k", "doe") in words and ("-j", "oe") in words
    assert file.rendezvous.suffix == ".hsn.cm.aurora.alcf.anl.gov"
    assert launcher_words("aurora", options={"no-vni"}) == [("--no-vni",)]


QUEUES = {
    "aurora": {
        "debug": (1, 2, "01:00:00"),
        "debug-scaling": (2, 256, "01:00:00"),
        "prod": (256, 10624, "24:00:00"),
        "capacity": (1, 16, "168:00:00"),
    },
    "frontier": {
        "batch": (1, 9472, "12:00:00"),
        "extended": (1, 64, "24:00:00"),
        "debug": (None, None, "02:00:00"),
    },
    "lumi": {
        "standard-g": (1, 1024, "2-00:00:00"),
        "small-g": (1, 4, "3-00:00:00"),
        "dev-g": (1, 32, "03:00:00"),
        "bench": (1, 2978, "06:00:00"),
    },
    "polaris": {
        "debug": (1, 2, "01:00:00"),
        "debug-scaling": (1, 10, "01:00:00"),
        "prod": (10, 496, "24:00:00"),
        "preemptable": (1, 10, "72:00:00"),
        "capacity": (1, 4, "168:00:00"),
    },
    "vista": {"gh": (None, 64, "48:00:00"), "gh-dev": (None, 8, "02:00:00")},
    "clariden": {"normal": (None, None, "12:00:00"), "low": (None, None, "24:00:00")},
}


@each("name", QUEUES)
def test_queues_have_the_documented_limits(name: str) -> None:
    found = {q.name: (q.nodes_min, q.nodes_max, q.time_max) for q in load_site(name).file.queues}
    assert {key: found[key] for key in QUEUES[name]} == QUEUES[name]


@each(
    ("name", "count", "nodes"),
    [("aurora", 12, 10624), ("frontier", 8, 9472), ("lumi", 8, 2978), ("hpe-gh200", 4, 8), ("vista", 1, 64)],
)
def test_devices_per_node_and_the_largest_job(name: str, count: int, nodes: int) -> None:
    file = load_site(name).file
    assert sum(len(domain.devices) for domain in file.node.domains) == count
    assert file.largest_nodes == nodes


@each(
    ("name", "bf16"),
    [("aurora", 298.2), ("frontier", 191.5), ("perlmutter", 312.0), ("clariden", 989.0), ("elcapitan", 980.6)],
)
def test_peak_rates_are_dense_and_per_torch_device(name: str, bf16: float) -> None:
    assert {peak.precision: peak.tflops for peak in load_site(name).file.peaks}["bf16"] == bf16


def test_no_rate_is_given_where_none_is_known() -> None:
    assert load_site("leonardo").file.peaks == ()


def test_lumi_binds_the_fabric_only_across_nodes_and_pfs_always() -> None:
    data = ["/pfs", "/scratch", "/flash", "/project", "/projappl", "/appl"]
    fabric = ["/var/spool/slurmd", "/opt/cray", "/usr/lib64/libcxi.so.1"]
    assert binds("lumi", "singularity", nodes=1) == data
    many = binds("lumi", "singularity", nodes=2)
    assert many[:3] == fabric and many[-6:] == data
    spec = load_site("lumi").file.containers[0]
    assert (spec.activate, spec.device_flag, spec.verb) == ("$WITH_CONDA", False, "exec")
    assert load_site("lumi").file.storage.links["/flash"] == "/pfs"


def test_lumis_newer_images_are_run_and_not_activated() -> None:
    (spec,) = [spec for spec in load_site("lumi").file.containers if spec.images]
    assert (spec.verb, spec.activate) == ("run", "")


def test_hpes_images_find_the_hosts_libraries_where_their_entry_point_looks() -> None:
    found = binds("hpe-gh200", "singularity", nodes=2)
    assert "/opt/cray/libfabric/*/lib64:/host/lib" in found
    assert "/usr:/host/usr" in found
    assert load_site("hpe-gh200").file.containers[0].verb == "run"
    assert load_site("hpe-gh200").file.launcher.mpi == "pmi2"


def test_frontiers_container_has_the_documented_binds_and_libraries() -> None:
    assert binds("frontier", "apptainer", nodes=2) == ["/usr/share/libdrm", "/opt/cray", "/var/spool/slurmd"]
    (spec,) = load_site("frontier").file.containers
    settings = {setting.name: setting.value for setting in spec.settings}
    assert settings["MPICH_SMP_SINGLE_COPY_MODE"] == "NONE"
    assert settings["APPTAINER_CONTAINLIBS"].startswith("/usr/lib64/libcxi.so.1,/usr/lib64/libjson-c.so.5")


def test_clariden_asks_the_engine_for_the_plugin() -> None:
    (spec,) = load_site("clariden").file.containers
    assert spec.runtime == "edf"
    assert spec.annotations == {
        "com.hooks.aws_ofi_nccl.enabled": "true",
        "com.hooks.aws_ofi_nccl.variant": "cuda-dl",
    }
    assert binds("clariden", "edf", nodes=1) == ["/capstor", "/iopsstor"]


def test_hang_remedies_are_only_on_request() -> None:
    assert variables("frontier", options={"hang"})["NCCL_SOCKET_IFNAME"] == "hsn0"
    assert variables("clariden", options={"hang"})["FI_CXI_RDZV_THRESHOLD"] == "0"
    assert "FI_CXI_RDZV_THRESHOLD" not in variables("clariden")
    polaris = variables("polaris", options={"hang"})
    assert {polaris[name] for name in ("NCCL_NET", "NCCL_NET_GDR_LEVEL", "NCCL_CROSS_NIC")} == {None}


def test_frontier_forces_the_network_only_on_request() -> None:
    assert "NCCL_NET" not in variables("frontier")
    assert variables("frontier", options={"force-net"})["NCCL_NET"] == "OFI"
    assert variables("frontier", nodes=1, options={"force-net"})["NCCL_NET"] == "Socket"


def test_frontiers_proxy() -> None:
    found = variables("frontier", nodes=1)
    assert found["https_proxy"] == "http://proxy.ccs.ornl.gov:3128/"
    assert found["no_proxy"] == "localhost,127.0.0.0/8,*.ccs.ornl.gov"
    assert "all_proxy" not in found


def test_flux_arguments_of_el_capitan() -> None:
    words = [word for entry in launcher_words("elcapitan") for word in entry]
    assert words == [
        "--exclusive",
        "-onosetpgrp",
        "-ofastload=on",
        "-ompibind=omp_proc_bind,omp_places",
        "--setattr=rdzv_get_en=0",
    ]
    assert not load_site("elcapitan").file.binding.launcher_binds


def test_juwels_names_its_hosts_with_a_suffix_and_jupiter_does_not() -> None:
    assert load_site("juwels-booster").file.rendezvous.suffix == "i"
    assert load_site("jupiter").file.rendezvous.suffix == ""


def test_nodes_without_internet_are_marked() -> None:
    assert {name for name in ("juwels-booster", "leonardo", "aurora", "lumi") if load_site(name).file.offline} == {
        "juwels-booster",
        "leonardo",
    }


def test_unconfirmed_facts_say_so_when_they_are_shown() -> None:
    site = load_site("sophia")
    assert site.origin_of("launcher.kind").text().endswith("UNCONFIRMED")
    assert "UNCONFIRMED" not in load_site("aurora").origin_of("launcher.kind").text()


def test_aurora_has_four_ranks_on_each_of_twelve_tiles_or_six_with_a_card_each() -> None:
    shared = plan_for("aurora", "train.py", ranks_per_device=4)[0].binding.ranks
    assert [rank.devices for rank in shared] == [(rank // 4,) for rank in range(48)]
    cards = plan_for("aurora", "train.py", device_unit="card")[0].binding.ranks
    assert [rank.devices for rank in cards] == [(card,) for card in range(6)]
