"""A seeded corpus of runs, healthy and with one fault each: ranks that step on simulated nodes.

What the ranks, the kernel and the launcher of such a run would write goes through the real readers: step records
through `RankSteps`, rows through the sampler and the fold. Imports neither rules nor thresholds. `FAULTS` holds what to
expect of each fault, written down before the rule. Every number is drawn from a seed: noise, clocks that differ,
samples that are missing.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from windlass.diagnose.watch.fold import JobFold
from windlass.diagnose.watch.job import About, Job
from windlass.node.sampler.sampler import rank_row
from windlass.node.sampler.steps import RankSteps

ASIDE = 1000
"""Seeds from here on are kept aside."""
_GIB = 1 << 30
_MAX_STEPS = 12
"""Simulated steps of one sample: a run of short steps is sampled more often than a real one."""
Culprit = Literal["", "rank", "host"]
Asked = Literal["watch", "report", "cause"]


class Fault(NamedTuple):
    """What to expect: the kind of the finding, whom it names, and which commands show it."""

    kind: str
    culprit: Culprit
    asked: tuple[Asked, ...]


_BOTH: tuple[Asked, ...] = ("watch", "report")
FAULTS = {
    "slow rank": Fault("straggler", "rank", _BOTH),
    "slow node": Fault("slow-node", "host", _BOTH),
    "slow input": Fault("input-bound", "", _BOTH),
    "slow input of one rank": Fault("input-straggler", "rank", _BOTH),
    "slow save": Fault("slow-save", "", _BOTH),
    "slow evaluation": Fault("slow-evaluation", "", _BOTH),
    "slow start": Fault("slow-start", "", ("report",)),
    "slow network": Fault("network-bound", "", _BOTH),
    "memory leak": Fault("memory-growth", "host", _BOTH),
    "out of memory in the host": Fault("memory", "rank", ("cause",)),
    "out of memory in the device": Fault("memory", "rank", ("cause",)),
    "device memory full": Fault("device-memory", "rank", _BOTH),
    "NaN": Fault("nan", "", _BOTH),
    "two ranks write one file": Fault("shared-file", "", _BOTH),
    "hang of one": Fault("hang", "rank", ("cause",)),
    "hang of all": Fault("stalled", "", ("watch",)),
    "SIGSTOP": Fault("hang", "rank", ("cause",)),
    "dead agent": Fault("lost", "host", ("watch",)),
    "silent node": Fault("node", "host", ("cause",)),
    "one rank left early": Fault("user", "rank", ("cause",)),
    "exception in one rank": Fault("user", "rank", ("cause",)),
    "full disk": Fault("disk", "rank", ("cause",)),
    "full /dev/shm": Fault("disk", "rank", ("cause",)),
    "wrong cores": Fault("cpu-binding", "", _BOTH),
    "wrong device": Fault("idle-devices", "host", _BOTH),
    "network plugin not loaded": Fault("network-bound", "", _BOTH),
    "throttled device": Fault("throttled-devices", "host", _BOTH),
    "two jobs on one node": Fault("busy-node", "host", _BOTH),
    "more ranks than cores": Fault("oversubscribed", "", _BOTH),
    "GIL held by a thread": Fault("gil-held", "rank", _BOTH),
}
_COMPARES = {"slow rank", "slow node", "slow input of one rank", "slow network", "network plugin not loaded"}
_LOADER = {"slow input", "slow input of one rank", "slow evaluation"}
_DEVICES = {"wrong device", "throttled device", "device memory full"}
_LOST_PEER = "RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.7]:20101"


@dataclass(kw_only=True)
class Shape:
    """What kind of run it is."""

    nodes: int
    per_node: int
    step_s: float
    loop: Literal["ddp", "fsdp", "independent"]
    """`fsdp`: ranks wait for each other and nobody measures for how long. `independent`: they do not wait."""
    cores: int
    cpus_per_rank: int
    loader: bool
    devices: bool
    evaluates_s: float
    saves_s: float
    pause_every: int
    warm: int
    windows: int
    starts_s: float
    noise: float

    @property
    def world(self) -> int:
        return self.nodes * self.per_node


@dataclass(kw_only=True)
class Case:
    """One run. `fault` is empty for a healthy one."""

    seed: int
    fault: str
    shape: Shape
    live: Job
    """While it runs."""
    ended: Job
    rank: int
    host: str
    seen: dict[str, Any] = field(default_factory=dict)
    """What its end left, for the run's own verdict: ends, last lines, kills for memory, states of a hang."""

    @property
    def aside(self) -> bool:
        """Kept aside when rules are developed: three of ten."""
        return self.seed >= ASIDE


def make_case(seed: int, fault: str) -> Case:
    rnd = random.Random(f"{seed} {fault}")
    shape = _shape(rnd, fault)
    bad = rnd.randrange(shape.world)
    world = _World(rnd, fault, shape, bad)
    live, ended = world.run()
    host = world.hosts[bad // shape.per_node]
    seen = _end(rnd, fault, shape, bad, world.hosts)
    return Case(seed=seed, fault=fault, shape=shape, live=live, ended=ended, rank=bad, host=host, seen=seen)


def _shape(rnd: random.Random, fault: str) -> Shape:
    nodes = rnd.choice([2, 3, 4, 8, 16] if fault and rnd.random() < 0.7 else [1, 1, 2, 4, 8])
    if fault in _COMPARES:
        nodes = max(2, nodes)
    per_node = rnd.choice([1, 2, 4, 8])
    if fault == "slow node":
        nodes, per_node = rnd.choice([3, 4, 8, 16]), rnd.choice([2, 4])
    if fault in {"slow rank", "slow input of one rank", "hang of one", "SIGSTOP", "one rank left early"}:
        nodes, per_node = max(nodes, 2), max(per_node, 2)
    if fault in {"silent node", "dead agent", "two ranks write one file"}:
        nodes = max(nodes, 2)
    while nodes * per_node > (64 if rnd.random() < 0.1 else 16):
        nodes, per_node = (nodes, per_node // 2) if per_node > 2 else (nodes // 2, per_node)
    cpus = rnd.choice([1, 2, 8]) if fault != "wrong cores" else rnd.choice([1, 2])
    cores = per_node * cpus * (4 if fault == "wrong cores" else 1)
    if fault == "more ranks than cores":
        per_node = max(2, per_node)
        cores = max(1, per_node // rnd.choice([2, 4]))
        cpus = 0
    loop = rnd.choice(["ddp", "ddp", "fsdp", "independent"])
    if fault in {"slow network", "network plugin not loaded"} or (fault in _COMPARES and loop == "fsdp"):
        loop = "ddp"
    step_s = 10 ** rnd.uniform(-3.0, 1.0)
    short = fault == "" and rnd.random() < 0.15
    return Shape(
        nodes=nodes,
        per_node=per_node,
        step_s=step_s,
        loop=loop,  # type: ignore[arg-type]
        cores=cores,
        cpus_per_rank=cpus,
        loader=fault in _LOADER or rnd.random() < 0.7,
        devices=fault in _DEVICES or rnd.random() < 0.6,
        evaluates_s=rnd.choice([0.0, 0.0, 5.0, 30.0, 400.0]),
        saves_s=rnd.choice([0.0, 0.0, 1.0, 4.0]),
        pause_every=rnd.choice([8, 12, 20]),
        warm=rnd.randrange(1, 6),
        windows=rnd.randrange(2, 8) if short else rnd.randrange(30, 50),
        starts_s=rnd.uniform(2.0, 40.0),
        noise=rnd.choice([0.01, 0.03, 0.06]),
    )


class _World:
    """Nodes with their ranks, sampled every two seconds or once a step."""

    def __init__(self, rnd: random.Random, fault: str, shape: Shape, bad: int) -> None:
        self.rnd, self.fault, self.shape, self.bad = rnd, fault, shape, bad
        self.bad_node = bad // shape.per_node
        self.hosts = tuple(f"nid{n:05d}" for n in range(shape.nodes))
        self.started = 1.7e9 + rnd.uniform(0, 1e6)
        self.now = self.started
        self.clocks = [rnd.gauss(0, 0.3) for _ in range(shape.nodes)]
        self.missing = rnd.choice([0.0, 0.02, 0.1])
        self.window_s = max(shape.step_s, min(2.0, _MAX_STEPS * shape.step_s))
        self.records = [RankSteps("") for _ in range(shape.world)]
        self.first = 0
        self.iteration = 10
        self.quiet: set[int] = set()
        """Nodes that send nothing any more."""
        self.base = [rnd.uniform(2, 60) * _GIB for _ in range(shape.nodes)]
        self.leaked = 0.0
        about = About(cpus_per_rank=shape.cpus_per_rank, bound_by="the site's cores")
        self.fold = JobFold("corpus", self.hosts, 2.0, shape.cores, started=self.started, about=about)

    def run(self) -> tuple[Job, Job]:
        starts_s = self.rnd.uniform(400, 900) if self.fault == "slow start" else self.shape.starts_s
        for rank, record in enumerate(self.records):
            record.take("python", {"at": self.now + self.clocks[rank // self.shape.per_node]})
        for _ in range(3):
            self.now += starts_s / 3
            live = self._look(stepping=False)
        for number in range(self.shape.windows if self.fault != "slow start" else 20):
            live = self._window(number)
        live = self._stops() or live
        self._look(stepping=False)
        for record in self.records:
            record.take("end", {"at": self.now, "steps": record.steps})
        self.now += self.rnd.uniform(0.5, 30.0)
        self._send(stepping=False, gone=True)
        return live, self.fold.job(self.now, ended=True)

    def _stops(self) -> Job | None:
        """The end of runs that stop: what the last samples show then."""
        if self.fault == "dead agent":
            self.quiet.add(self.bad_node)
            for number in range(30):
                live = self._window(self.shape.pause_every * (number + 1) + 1)
                self.now += 2.0
            return live
        if self.fault not in {"hang of all", "hang of one", "SIGSTOP", "silent node"}:
            return None
        if self.fault == "silent node":
            self.quiet.add(self.bad_node)
        end = self.now + max(200.0, 20 * self.shape.step_s)
        while self.now < end:
            self.now += max(2.0, (end - self.now) / 5)
            live = self._look(stepping=False)
        return live

    def _window(self, number: int) -> Job:
        """One sample: the steps since the last one, then a look."""
        shape, rnd = self.shape, self.rnd
        count = max(1, min(_MAX_STEPS, int(self.window_s / shape.step_s)))
        pause = number > 0 and number % shape.pause_every == 0
        # a healthy run does not evaluate or save for most of its time
        span_s = shape.pause_every * self.window_s
        evaluation_s = min(shape.evaluates_s, 0.25 * span_s) if pause and shape.loader else 0.0
        save_s = min(shape.saves_s, 0.08 * span_s) if pause else 0.0
        if self.fault == "slow save" and number % 2 == 0:
            save_s = 2 * self.window_s * rnd.uniform(1.0, 4.0)
        if self.fault == "slow evaluation" and number % 4 == 0:
            evaluation_s = 4 * self.window_s * rnd.uniform(2.0, 4.0)
        took = [self._step(self.first + step) for step in range(count)]
        self._pause(evaluation_s, save_s)
        self.now += self.window_s
        for rank, record in enumerate(self.records):
            mine = [ranks[rank] for ranks in took]
            us = [int(1e6 * seconds) for seconds, _, _ in mine]
            us[0] += int(1e6 * (evaluation_s + save_s))
            end = self.now + self.clocks[rank // shape.per_node] - rnd.uniform(0, 0.9)
            batch: dict[str, Any] = {"first": self.first, "end": end, "us": us, "gil_us": self._gil_us(rank)}
            if self.first == 0:
                batch["us"] = [None, *us[1:]]
            if shape.loader:
                batch["wait_us"] = [int(1e6 * wait) for _, wait, _ in mine]
                if evaluation_s:
                    batch["fetched"] = [200, *[1] * (count - 1)]
            if save_s:
                batch["save_us"] = [(0, int(1e6 * save_s))]
            record.take("steps", batch)
            if shape.loop == "ddp":
                self._ddp(record, mine[-1])
            if self.fault == "NaN" and number > shape.windows // 2:
                record.take("nan", {"step": self.first})
            retries = rnd.randrange(1, 9) if self.fault == "device memory full" and rank == self.bad else 0
            record.take("memory", {"alloc_retries": retries})
        self.first += count
        self.iteration += max(1, count)
        if self.fault == "memory leak":
            self.leaked += rnd.uniform(0.03, 0.05) * self.base[self.bad_node]
        return self._look(stepping=True)

    def _pause(self, evaluation_s: float, save_s: float) -> None:
        """An evaluation and a save, with a look in the middle of each."""
        for what, seconds in (("data", evaluation_s), ("save", save_s)):
            if not seconds:
                continue
            for _ in range(2):
                self.now += seconds / 2
                for rank, record in enumerate(self.records):
                    at = self.now + self.clocks[rank // self.shape.per_node]
                    record.take("doing", {"what": what, "at": at - self.rnd.uniform(0, 1.0)})
                self._look(stepping=False)

    def _step(self, number: int) -> list[tuple[float, float, float]]:
        """Seconds, waiting for data and exposed communication of each rank."""
        shape, rnd = self.shape, self.rnd
        late = shape.step_s * rnd.uniform(2, 20) if number < shape.warm else 0.0
        own, waits = [], []
        for rank in range(shape.world):
            mine = 0.9 * shape.step_s * max(0.5, rnd.gauss(1.0, shape.noise)) + late
            if rnd.random() < 0.005:
                mine *= rnd.uniform(1.5, 3.0)  # garbage collection, a page fault
            slow = rank == self.bad if self.fault in {"slow rank", "GIL held by a thread"} else False
            if slow or (self.fault == "slow node" and rank // shape.per_node == self.bad_node):
                mine *= rnd.uniform(1.7, 2.2)
            if self.fault == "more ranks than cores":
                mine *= rnd.uniform(1.0, 3.0)
            wait = mine * rnd.uniform(0.0, 0.04)
            if self.fault == "slow input" or (self.fault == "slow input of one rank" and rank == self.bad):
                wait = mine * rnd.uniform(0.7, 1.4)
            own.append(mine)
            waits.append(wait if shape.loader else 0.0)
        comm = shape.step_s * rnd.uniform(0.01, 0.08)
        if self.fault in {"slow network", "network plugin not loaded"}:
            comm = shape.step_s * rnd.uniform(0.7, 2.0)
        if shape.loop == "independent":
            return [(a + w + comm, w, comm) for a, w in zip(own, waits, strict=True)]
        whole = max(a + w for a, w in zip(own, waits, strict=True)) + comm
        return [(whole, w, whole - a - w) for a, w in zip(own, waits, strict=True)]

    def _ddp(self, record: RankSteps, step: tuple[float, float, float]) -> None:
        seconds, wait, comm = step
        compute_us = int(1e6 * (seconds - wait - comm))
        line = {"iteration": self.iteration, "forward_us": compute_us // 3, "backward_us": compute_us * 2 // 3}
        hidden = int(1e6 * comm * self.rnd.uniform(0.2, 0.5))
        record.take("ddp", {**line, "comm_us": int(1e6 * comm) + hidden, "overlap_us": hidden})

    def _gil_us(self, rank: int) -> int:
        if self.fault == "GIL held by a thread" and rank == self.bad:
            return int(self.rnd.uniform(4_000, 12_000))
        return int(self.rnd.uniform(3, 80)) if self.rnd.random() < 0.95 else int(self.rnd.uniform(1_000, 8_000))

    def _look(self, *, stepping: bool) -> Job:
        self._send(stepping=stepping)
        return self.fold.job(self.now)

    def _send(self, *, stepping: bool, gone: bool = False) -> None:
        shape, rnd = self.shape, self.rnd
        for node in range(shape.nodes):
            if node in self.quiet or (rnd.random() < self.missing and not gone):
                continue
            memory = self.base[node] * rnd.uniform(0.99, 1.01) + (self.leaked if node == self.bad_node else 0.0)
            head = [self.now + self.clocks[node], rnd.uniform(0.2, 0.9), int(memory), 512 * _GIB]
            self.fold.take(node, "N" + json.dumps([*head, *[None] * 6, rnd.uniform(400, 900)]))
            if shape.devices and not gone:
                self.fold.take(node, "D" + json.dumps([self._device(node, n, stepping) for n in range(shape.per_node)]))
            ranks = range(node * shape.per_node, (node + 1) * shape.per_node)
            rows = [
                [*rank_row(rank, self.records[rank], gone, self._cpu(), 2 * _GIB), self._delay(rank)] for rank in ranks
            ]
            self.fold.take(node, "R" + json.dumps(rows))
            for rank in ranks if stepping else ():
                self._save(node, rank)

    def _save(self, node: int, rank: int) -> None:
        """Healthy ranks save rank 0's file, their own part of a checkpoint, or a file of one name on their node."""
        key, path = 77, "/lus/scratch/model.pt"
        if self.fault != "two ranks write one file":
            if self.shape.loop == "ddp" and rank != 0:
                return
            if self.shape.loop != "ddp":
                part = f"/lus/scratch/step/__{rank}_0.distcp"
                key, path = 1000 + rank, part if self.shape.loop == "fsdp" else "/tmp/model.pt"
        self.fold.take(node, "F" + json.dumps([rank, self.first // 100, key, path]))

    def _device(self, node: int, number: int, stepping: bool) -> list[Any]:
        rnd = self.rnd
        busy = rnd.uniform(0.5, 0.99) if stepping else rnd.choice([0.0, 0.0, 0.9])
        if self.fault == "wrong device" and node == self.bad_node and (number > 0 or self.shape.per_node == 1):
            busy = 0.0  # with one device, the ranks of the node compute on the processor
        throttled = rnd.random() < 0.03
        if self.fault == "throttled device" and node == self.bad_node and number == 0:
            throttled = rnd.random() < 0.8
        return [number, busy, 10 * _GIB, 80 * _GIB, rnd.uniform(200, 600), 60, 1500, int(throttled)]

    def _cpu(self) -> float:
        cpus = self.shape.cpus_per_rank or 1
        return cpus * self.rnd.uniform(0.97, 1.0) if self.fault == "wrong cores" else cpus * self.rnd.uniform(0.2, 0.8)

    def _delay(self, rank: int) -> float | None:
        if self.fault == "more ranks than cores":
            return self.rnd.uniform(0.3, 0.7)
        if self.fault == "two jobs on one node" and rank // self.shape.per_node == self.bad_node:
            return self.rnd.uniform(0.3, 0.6)
        return self.rnd.uniform(0.0, 0.05)


def _end(rnd: random.Random, fault: str, shape: Shape, bad: int, hosts: tuple[str, ...]) -> dict[str, Any]:
    """What the run leaves when it ends by this fault. Nodes' clocks differ by up to a second."""
    host = hosts[bad // shape.per_node]
    trace = ["Traceback (most recent call last):", '  File "/home/u/train.py", line 88, in <module>', "    main()"]
    errors = {
        "exception in one rank": rnd.choice(["ValueError: bad batch 17", "KeyError: 'labels'", "IndexError: 9"]),
        "out of memory in the device": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
        "full disk": f"OSError: [Errno 28] No space left on device: '/lus/scratch/step-{rnd.randrange(99)}.pt'",
        "full /dev/shm": "RuntimeError: DataLoader worker (pid 4711) is killed by signal: Bus error. It is possible "
        "that dataloader's workers are out of shared memory. Please try to raise your shared memory limit.",
    }
    codes = {"out of memory in the host": 137, "one rank left early": 0} | dict.fromkeys(errors, 1)
    if fault in codes:
        noise = [f"step {n} loss {rnd.random():.4f}" for n in range(rnd.randrange(8))]
        lines = {bad: [*noise, *trace, errors[fault]]} if fault in errors else {bad: noise}
        ends = [(rnd.uniform(0.0, 0.2), bad, codes[fault])]
        for rank in range(shape.world):
            if rank != bad:
                ends.append((rnd.uniform(1.2, 4.0), rank, rnd.choice([1, 1, 143])))
                lines[rank] = [*trace, _LOST_PEER]
        oom = [host] if fault == "out of memory in the host" else []
        return {"ends": [(at, rank, hosts[rank // shape.per_node], code) for at, rank, code in ends], "oom": oom} | {
            "lines": lines
        }
    if fault in {"hang of one", "SIGSTOP"}:
        stopped = fault == "SIGSTOP"
        frames = dict.fromkeys(range(shape.world), "all_reduce (distributed_c10d.py:2806)")
        elsewhere = rnd.choice(["read (data.py:31)", "acquire (threading.py:5)", "get (queue.py:171)"])
        frames[bad] = "" if stopped else elsewhere
        states = [
            (rank, hosts[rank // shape.per_node], "T" if stopped and rank == bad else "S", frames[rank])
            for rank in range(shape.world)
        ]
        return {"hang": "no step for 60 s", "states": states}
    return {"lost": [host]} if fault == "silent node" else {}
