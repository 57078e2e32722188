"""Which variables a plan has: layers, conditions, and the user's own will on top."""

from __future__ import annotations

from looping import each
from planning import plan_for
from windlass.model.condition import ALWAYS, Facts, When
from windlass.model.plan import Setting, setting_of
from windlass.model.secrets import MASK
from windlass.model.site import SettingSpec
from windlass.plan.variables import flag_settings, layer, settings_that_hold, with_users_values


def _set(name: str, value: str | None, **more: object) -> Setting:
    return Setting(name=name, value=value, because=f"{name} is {value}", **more)  # type: ignore[arg-type]


def _spec(name: str, value: str, when: When = ALWAYS) -> SettingSpec:
    return SettingSpec(name=name, value=value, because="x", source="own", when=when)


def test_of_one_name_the_higher_layer_wins() -> None:
    assert layer([_set("A", "low"), _set("B", "b")], [_set("A", "high")]) == (_set("B", "b"), _set("A", "high"))


def test_paths_that_are_put_in_front_add_up() -> None:
    first, second = _set("P", "/a", prepend=True), _set("P", "/b", prepend=True)
    assert layer([first], [second]) == (first, second)
    assert layer([first], [first]) == (first,)


def test_what_the_node_decides_stands_beside_its_alternative() -> None:
    plain, tested = _set("A", "1"), _set("A", "2", when=When(exists="/dev/x"))
    assert layer([plain, tested]) == (plain, tested)
    assert layer([plain, tested], [_set("A", "flag")]) == (_set("A", "flag"),)


def test_conditions_of_planning_are_decided_and_those_of_the_node_are_kept() -> None:
    facts = Facts(nodes=1, ranks_per_node=1, scheduler="slurm", launcher="srun")
    several = _spec("A", "1", When(nodes_min=2))
    on_node = _spec("B", "1", When(nodes_max=1, found="libx.so"))
    assert [setting.name for setting in settings_that_hold([several, on_node], facts)] == ["B"]
    assert setting_of(on_node).when == When(found="libx.so")


def test_a_value_of_the_user_wins_is_named_theirs_and_keeps_the_catalogs_word() -> None:
    (made,) = with_users_values([_set("A", "catalog")], {"A": "mine", "OTHER": "x"})
    assert (made.value, made.origin.scope) == ("mine", "environment")
    assert "the catalog would say catalog" in made.note
    (same,) = with_users_values([_set("A", "mine")], {"A": "mine"})
    assert same.note == "" and "as the catalog does" in same.because


def test_a_value_of_the_user_decides_a_setting_that_the_node_would_have_decided() -> None:
    tested, other = _set("A", "1", when=When(exists="/dev/x")), _set("A", "2", when=When(exists="/dev/y"))
    assert [(s.value, s.when) for s in with_users_values([tested, other], {"A": "mine"})] == [("mine", ALWAYS)]


@each("more", [{"keep_user": False}, {"prepend": True}])
def test_some_settings_are_not_for_the_user_to_keep(more: dict[str, object]) -> None:
    setting = _set("A", "ours", **more)
    assert with_users_values([setting], {"A": "theirs"}) == (setting,)


def test_an_empty_value_of_the_user_is_a_value() -> None:
    (made,) = with_users_values([_set("A", "catalog")], {"A": ""})
    assert made.value == ""


def test_a_secret_of_the_users_environment_is_not_written_down() -> None:
    (made,) = with_users_values([_set("PROXY", "x")], {"PROXY": "http://me:correct-horse@proxy:3128"})
    assert made.secret and made.value == MASK


def test_flags_set_and_unset_and_hide_secrets() -> None:
    made = flag_settings((("A", "1"), ("MY_TOKEN", "correct-horse")), ("B",))
    assert [(s.name, s.value, s.secret) for s in made] == [
        ("A", "1", False),
        ("MY_TOKEN", MASK, True),
        ("B", None, False),
    ]


def test_a_flag_wins_over_environment_and_catalog() -> None:
    plan, _ = plan_for(
        "lumi", nodes=2, users={"FI_MR_CACHE_MONITOR": "kdreg2"}, env=(("FI_MR_CACHE_MONITOR", "disabled"),)
    )
    assert [s.value for s in plan.environment if s.name == "FI_MR_CACHE_MONITOR"] == ["disabled"]


@each("site", ["jupiter", "juwels-booster", "leonardo", "marenostrum5"])
def test_where_nodes_are_offline_libraries_are_told(site: str) -> None:
    plan, _ = plan_for(site)
    said = {s.name: s.value for s in plan.environment}
    assert (said["HF_HUB_OFFLINE"], said["WANDB_MODE"]) == ("1", "offline")
    mine, _ = plan_for(site, users={"HF_HUB_OFFLINE": "0"})
    assert {s.name: s.value for s in mine.environment}["HF_HUB_OFFLINE"] == "0"


@each("site", ["lumi", "frontier", "perlmutter", "workstation"])
def test_elsewhere_nothing_is_taken_to_be_offline(site: str) -> None:
    assert "HF_HUB_OFFLINE" not in {s.name for s in plan_for(site)[0].environment}


@each("site", ["aurora", "polaris", "sophia"])
def test_where_the_internet_is_behind_a_proxy_both_spellings_are_set(site: str) -> None:
    said = {s.name: s.value for s in plan_for(site)[0].environment}
    assert said["http_proxy"] == said["HTTP_PROXY"] == said["https_proxy"] == said["HTTPS_PROXY"]
    assert str(said["http_proxy"]).startswith("http://proxy.")
    mine, _ = plan_for(site, users={"http_proxy": "http://own:1"})
    assert {s.name: s.value for s in mine.environment}["http_proxy"] == "http://own:1"


def test_srun_inside_the_job_is_told_the_cpus_of_a_rank() -> None:
    plan, _ = plan_for("lumi")
    assert {s.name: s.value for s in plan.environment}["SRUN_CPUS_PER_TASK"] == "7"
    assert "SRUN_CPUS_PER_TASK" not in {s.name for s in plan_for("aurora")[0].environment}
    assert "SRUN_CPUS_PER_TASK" not in {s.name for s in plan_for("workstation")[0].environment}


def test_core_files_are_switched_off_everywhere() -> None:
    for site in ("workstation", "lumi", "aurora", "generic-slurm"):
        assert ("-c", "0") in [limit.words for limit in plan_for(site)[0].limits]
