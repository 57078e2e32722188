"""The job in Prometheus' text format, and a port that serves it on this machine.

The text contains the names of nodes, devices and ranks, but no command line.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from windlass.diagnose.watch.job import Job
from windlass.errors import MachineError
from windlass.model.finding import Finding

Samples = Iterable[tuple[dict[str, str], float | None]]


def exposition_text(job: Job, findings: Iterable[Finding]) -> str:
    hosts = [node.host for node in job.nodes]
    nodes = [({"node": node.host}, node) for node in job.nodes]
    devices = [({"node": hosts[d.node], "device": str(d.index)}, d) for d in job.devices]
    ranks = [({"rank": str(r.rank), "node": hosts[r.node]}, r) for r in job.ranks]
    families: list[tuple[str, str, str, Samples]] = [
        ("node_cpu_ratio", "gauge", "Busy CPUs of the node", ((label, n.cpu) for label, n in nodes)),
        ("node_memory_bytes", "gauge", "Working set of the job", ((label, n.memory_bytes) for label, n in nodes)),
        ("node_memory_limit_bytes", "gauge", "Its limit", ((label, n.memory_limit_bytes) for label, n in nodes)),
        ("node_receive_bytes_per_second", "gauge", "Network in", ((label, n.rx_bytes_s) for label, n in nodes)),
        ("node_transmit_bytes_per_second", "gauge", "Network out", ((label, n.tx_bytes_s) for label, n in nodes)),
        ("node_power_watts", "gauge", "Power of the node", ((label, n.power_w) for label, n in nodes)),
        ("device_busy_ratio", "gauge", "Busy share of the device", ((label, d.busy) for label, d in devices)),
        ("device_memory_bytes", "gauge", "Memory in use", ((label, d.memory_bytes) for label, d in devices)),
        ("device_power_watts", "gauge", "Power of the device", ((label, d.power_w) for label, d in devices)),
        ("device_temperature_celsius", "gauge", "Temperature", ((label, d.temperature_c) for label, d in devices)),
        ("rank_steps_total", "counter", "Training steps", ((label, float(r.steps)) for label, r in ranks)),
        ("rank_step_seconds", "gauge", "Median of the newest steps", ((label, _s(r.step_ms)) for label, r in ranks)),
        (
            "rank_data_wait_ratio",
            "gauge",
            "Part of a step spent waiting for data",
            ((label, r.wait_share) for label, r in ranks),
        ),
        (
            "rank_communication_ratio",
            "gauge",
            "Part of a step spent in communication",
            ((label, r.comm_share) for label, r in ranks),
        ),
        (
            "findings",
            "gauge",
            "Performance problems found",
            (({"kind": f.kind, "severity": f.severity}, 1.0) for f in findings),
        ),
        ("sample_timestamp_seconds", "gauge", "Time of this sample", [({}, job.at)]),
    ]
    return "".join(_family(name, kind, help_text, samples, job.name) for name, kind, help_text, samples in families)


def _family(name: str, kind: str, help_text: str, samples: Samples, job: str) -> str:
    lines = [
        f"windlass_{name}{_labels({'job': job, **labels})} {value:.10g}\n"
        for labels, value in samples
        if value is not None
    ]
    lines = list(dict.fromkeys(lines))
    return (
        "".join((f"# HELP windlass_{name} {help_text}\n", f"# TYPE windlass_{name} {kind}\n", *lines)) if lines else ""
    )


def _labels(labels: dict[str, str]) -> str:
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _s(ms: float | None) -> float | None:
    return None if ms is None else ms / 1000


class MetricsPort:
    """Serves `text()` on 127.0.0.1 inside its `with` block. Does nothing if no port is requested."""

    def __init__(self, port: int | None, text: Callable[[], str]) -> None:
        self._port = port
        self._text = text
        self._server: ThreadingHTTPServer | None = None

    def __enter__(self) -> MetricsPort:
        if self._port is None:
            return self
        text = self._text

        class Handler(BaseHTTPRequestHandler):
            timeout = 10

            def do_GET(self) -> None:
                body = text().encode("utf-8", "backslashreplace")
                self.send_response(200 if self.path == "/metrics" else 404)
                self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
                self.end_headers()
                self.wfile.write(body if self.path == "/metrics" else b"")

            def log_message(self, *_: object) -> None:
                """Print nothing, because the output would damage the screen."""

        try:
            self._server = ThreadingHTTPServer(("127.0.0.1", self._port), Handler)
        except OSError as error:
            raise MachineError(
                f"cannot listen on port {self._port}: {error.strerror}", hint="choose another port with --prometheus"
            ) from error
        threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
