"""Job files in a real Slurm of four nodes: every component on its nodes, at the same time, killed one by one."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.command import allocated
from cluster.slurm import SlurmCluster

pytestmark = pytest.mark.slurm

SERVER = """
import http.server, os, sys
print('host', os.environ.get('SLURMD_NODENAME'), 'rank', os.environ['RANK'], flush=True)
if os.environ['RANK'] == '0':
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200); self.end_headers(); self.wfile.write(b'ok')
        def log_message(self, *words): pass
    http.server.ThreadingHTTPServer(('', int(sys.argv[1])), Handler).serve_forever()
import time; time.sleep(600)
"""
CLIENT = """
import os, sys, urllib.request
print('host', os.environ.get('SLURMD_NODENAME'), urllib.request.urlopen(sys.argv[1]).read(), sys.argv[2:], flush=True)
"""
JOB = """
[components.server]
script = "server.py"
args = ["{server.port}"]
nodes = 2
ready = { http = "/", within_s = 60 }
end = "service"

[components.client]
script = "client.py"
args = ["http://{server.addr}:{server.port}/", "{server.hosts}"]
nodes = 2
ranks_per_node = 2
needs = ["server"]
"""


def _folder(tmp_path: Path, job: str = JOB) -> Path:
    (tmp_path / "server.py").write_text(SERVER)
    (tmp_path / "client.py").write_text(CLIENT)
    (tmp_path / "job.toml").write_text(job)
    return tmp_path


def test_components_have_their_own_nodes_and_find_each_other(slurm: SlurmCluster, tmp_path: Path) -> None:
    with allocated(slurm, _folder(tmp_path), "--nodes=4", "--exclusive") as job:
        done = job.windlass("run", "--show", "all", "job.toml")
    assert done.code == 0, done.text
    assert "[server 0] host nid0001" in done.stdout
    assert "[server 1] host nid0002" in done.stdout
    assert "[client 0] host nid0003 b'ok'" in done.stdout
    assert "[client 3] host nid0004 b'ok'" in done.stdout
