"""How long does a spare need to load a lost node's part from the partner's memory? Nodes with links of one Gbit/s.

    python3 bench/partner.py --record results/snapshot/partner.json        as root: it makes network namespaces

Two ranks on nodes 0 and 1 save once, sharded over both (FSDP2, no optimizer). Then the snapshot in the shared folder
and the part of node 1 are removed, and two ranks on node 0 and on a third node resume. A plain socket over the same
link, in the same run, is the limit.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "bench")]
WIDTH = 8192
LAYER_BYTES = WIDTH * WIDTH * 4


def rank(args: argparse.Namespace) -> None:
    """One rank: save at the second step, or resume and report how long that took."""
    import torch
    from torch.distributed.fsdp import fully_shard

    import windlass

    run = windlass.init(timeout_s=300)
    layers = [torch.nn.utils.skip_init(torch.nn.Linear, WIDTH, WIDTH, bias=False) for _ in range(args.layers)]
    model = torch.nn.Sequential(*layers)
    for layer in layers:
        torch.nn.init.constant_(layer.weight, 0.0)
        fully_shard(layer)
    fully_shard(model)
    snapshot = windlass.Snapshot(
        args.folder / "ckpt", model=model, every_steps=2, fast=args.folder / args.node, buddy=True, wait_s=300
    )
    began = time.monotonic()
    steps = snapshot.resume(range(1000))
    resumed_s = time.monotonic() - began
    for step in steps:
        if args.load:
            wrong = [p for p in model.parameters() if not bool((p.to_local() == float(step)).all())]
            print(json.dumps({"rank": run.rank, "step": step, "resume_s": resumed_s, "equal": not wrong}), flush=True)
            os._exit(0)
        for parameter in model.parameters():
            parameter.data.to_local().fill_(step + 1)
        snapshot.step(step)
        if list((args.folder / "ckpt").glob("step-*")):
            os._exit(0)
        time.sleep(0.2)


def started(args: argparse.Namespace, nodes: Any, on: tuple[int, int], *more: str) -> list[dict[str, Any]]:
    """Run one rank on each of these nodes, and return what they printed."""
    children = []
    for number, node in enumerate(on):
        env = {**os.environ, "RANK": str(number), "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
        env |= {"MASTER_ADDR": nodes.hosts[0], "MASTER_PORT": "29811", "GLOO_SOCKET_IFNAME": "eth0"}
        argv = [sys.executable, __file__, "--folder", str(args.folder), "--layers", str(args.layers)]
        argv += ["--node", f"node{node}", *more]
        inside = ["nsenter", f"--net=/run/netns/{nodes.spaces[node]}"]
        children.append(subprocess.Popen([*inside, *argv], env=env, stdout=subprocess.PIPE, text=True))
    printed = []
    for child in children:
        out, _ = child.communicate(timeout=400)
        if child.returncode:
            raise SystemExit(f"a rank ended with code {child.returncode}")
        printed += [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    return printed


def plain_socket_s(nodes: Any, size_bytes: int) -> float:
    """Seconds in which a plain socket carries so many bytes from node 0 to node 2."""
    receive = "import socket,sys\ns=socket.create_server((sys.argv[1],29812));print('up',flush=True);c,_=s.accept()\n"
    receive += "n=0\nwhile d:=c.recv(1<<20):n+=len(d)\nc.close()"
    send = "import socket,sys\ns=socket.create_connection((sys.argv[1],29812));b=bytes(1<<20)\n"
    send += f"for _ in range({size_bytes >> 20}):s.sendall(b)\ns.shutdown(socket.SHUT_WR);s.recv(1)"
    words = [["nsenter", f"--net=/run/netns/{nodes.spaces[node]}", sys.executable, "-c"] for node in (0, 2)]
    with subprocess.Popen([*words[1], receive, nodes.hosts[2]], stdout=subprocess.PIPE, text=True) as receiver:
        assert receiver.stdout
        receiver.stdout.readline()
        began = time.monotonic()
        subprocess.run([*words[0], send, nodes.hosts[2]], check=True, timeout=300)
        receiver.wait(timeout=60)
        return time.monotonic() - began


def measure(args: argparse.Namespace) -> dict[str, Any]:
    from startup.links import linked

    part = args.layers * LAYER_BYTES // 2
    load = os.getloadavg()[0]
    with linked(3, args.bits) as nodes:
        plain = plain_socket_s(nodes, part)
        started(args, nodes, (0, 1))
        parts = len(list(args.folder.glob("node*/windlass-*/step-*")))
        shutil.rmtree(args.folder / "node1")
        for shared in (args.folder / "ckpt").glob("step-*"):
            shutil.rmtree(shared)
        found = started(args, nodes, (0, 2), "--load")
    assert len(found) == 2 and all(one["equal"] for one in found), found
    spare = max(one["resume_s"] for one in found)
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, cwd=ROOT, check=True)
    return {
        "part_bytes": part,
        "link_bits_per_s": args.bits,
        "plain_socket_s": round(plain, 2),
        "resume_s": round(spare, 2),
        "beyond_the_plain_socket_s": round(spare - plain, 2),
        "nodes_with_parts": parts,
        "cores": os.cpu_count(),
        "load_before": round(load, 1),
        "commit": commit.stdout.strip()[:12],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--bits", type=int, default=1_000_000_000)
    parser.add_argument("--node")
    parser.add_argument("--load", action="store_true")
    parser.add_argument("--record", type=Path)
    args = parser.parse_args()
    if args.node:
        rank(args)
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        args.folder = Path(folder)
        record = measure(args)
    print(json.dumps(record, indent=1))
    if args.record:
        args.record.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
