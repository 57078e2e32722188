"""Texts of samplers are taken as they come: neither memory nor the run folder keeps all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from planning import plan_for
from windlass.agents import start
from windlass.agents.start import OUT_FILE, Agents
from windlass.node.sys.messages import message_lines
from windlass.plan.render.variables import JobFacts
from windlass.run.folder import make_folder
from windlass.run.sidecars.compose import agents_spec


def _line(**news: object) -> bytes:
    return message_lines(0, "m", news)[0].encode() + b"\n"


def test_what_was_read_is_dropped_when_it_is_long_and_other_words_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start, "_MAX_OUT_BYTES", 10_000)
    plan, _ = plan_for("generic-slurm", "true", nodes=1, watch=True)
    folder = make_folder(None, tmp_path, "x")
    agents = Agents(agents_spec(plan, JobFacts(run_dir="/r", run_id="ab12"), ("a",), (), {}), folder, {})
    out = folder.part(OUT_FILE)
    with out.open("ab") as file:
        file.write(_line(node=0, up=0.1))
        for number in range(300):
            file.write(_line(node=0, service="sampler", news=f"N[{number}]"))
        file.flush()
        agents.hear()
        assert out.stat().st_size == 0
        assert [line["news"] for line in agents.streamed] == [f"N[{number}]" for number in range(300)]
        agents.streamed = []
        torn = _line(node=0, service="sampler", news="N[10]")
        file.write(_line(node=0, service="sampler", news="N[9]") + torn[:30])
        file.flush()
        agents.hear()
        file.write(torn[30:] + _line(node=0, ended={}))
    agents.hear()
    assert [line["news"] for line in agents.streamed] == ["N[9]", "N[10]"]
    assert [sorted(line) for line in agents.lines] == [["node", "up"], ["ended", "node"]]
