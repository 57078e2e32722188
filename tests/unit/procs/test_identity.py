from __future__ import annotations

import os
import subprocess
import sys

from waiting import wait_until
from windlass.node.sys.identity import Process, start_of, this_process


def test_this_process_is_alive_and_one_that_had_its_number_before_is_not() -> None:
    own = this_process()
    assert own.pid == os.getpid() and own.alive() is True
    assert own._replace(started="1").alive() is False
    assert own._replace(started="").alive() is False, "what was not known then cannot be proved now"


def test_process_of_another_machine_or_container_cannot_be_judged() -> None:
    assert this_process()._replace(boot="another machine").alive() is None


def test_process_that_has_ended_is_gone_before_its_parent_has_asked_for_it() -> None:
    child = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)
    started = start_of(child.pid)
    assert started
    assert child.stdin
    child.stdin.close()
    wait_until(lambda: start_of(child.pid) == "", timeout_s=30, what="the child is a zombie")
    own = this_process()
    assert Process(own.host, child.pid, started, own.boot).alive() is False
    child.wait(timeout=10)
