"""A whole Slurm cluster on this machine, one slurmctld and several slurmd, of what `unpack_slurm.sh` unpacks."""

from __future__ import annotations

import getpass
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from tests.launch.places.agents import environment_of
from tests.ports import free_ports

DEADLINE_S = 60.0
CORES = 2


def unpacked() -> Path:
    """Returns the folder of Slurm's programs; skips the test where there is none."""
    folder = os.environ.get("ADAMCTL_SLURM", "")
    if not folder:
        pytest.skip("ADAMCTL_SLURM names no folder with Slurm: tests/launch/places/unpack_slurm.sh makes one")
    path = Path(folder)
    if not (path / "usr/sbin/slurmctld-wlm").exists():
        pytest.skip(f"ADAMCTL_SLURM: {folder} holds no Slurm as tests/launch/places/unpack_slurm.sh unpacks it")
    return path


class SlurmCluster:
    """`environment` is that of Slurm's commands; nodes are h1, h2 and so on."""

    def __init__(self, programs: Path, folder: Path, nodes: int, kill_wait_s: int, timeout_s: int) -> None:
        self._programs = programs
        self.folder = folder
        self.configuration = folder / "slurm.conf"
        libraries = programs / "usr/lib" / f"{os.uname().machine}-linux-gnu"
        ports = free_ports(nodes + 1)
        self.configuration.write_text(
            f"""
ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser={getpass.getuser()}
SlurmdUser={getpass.getuser()}
AuthType=auth/none
CredType=cred/none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
MpiDefault=none
SwitchType=switch/none
ReturnToService=2
PluginDir={libraries}/slurm-wlm
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
SlurmdTimeout={timeout_s}
SlurmctldTimeout=30
KillWait={kill_wait_s}
MinJobAge=60
SlurmdParameters=config_overrides
"""
            + "".join(
                f"NodeName=h{number} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs={CORES}"
                " RealMemory=1000\n"
                for number, port in enumerate(ports[1:], 1)
            )
            + "PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP\n"
        )
        self.environment = {
            **os.environ,
            "SLURM_CONF": str(self.configuration),
            "LD_LIBRARY_PATH": f"{libraries}:{libraries}/slurm-wlm",
            "PATH": f"{programs}/usr/bin:{os.environ['PATH']}",
        }
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self.nodes = [f"h{number}" for number in range(1, nodes + 1)]

    def start(self) -> None:
        (self.folder / "state").mkdir()
        self._start("slurmctld", "slurmctld-wlm", "-D")
        for node in self.nodes:
            self.start_node(node)
        self.until(lambda: self.command("sinfo", "-h", "-t", "idle", "-o", "%D").strip() == str(len(self.nodes)))

    def start_node(self, node: str) -> None:
        self._start(node, "slurmd-wlm", "-D", "-N", node, "-d", str(self._programs / "usr/sbin/slurmstepd-wlm"))

    def _start(self, name: str, program: str, *arguments: str) -> None:
        with open(self.folder / f"{name}.out", "ab") as out:
            line = (str(self._programs / "usr/sbin" / program), *arguments)
            self._daemons[name] = subprocess.Popen(
                line, stdout=out, stderr=out, stdin=subprocess.DEVNULL, env=self.environment, start_new_session=True
            )

    def command(self, *line: str) -> str:
        done = subprocess.run(line, env=self.environment, capture_output=True, text=True, timeout=DEADLINE_S)
        return done.stdout

    def jobs(self) -> list[str]:
        """Returns number and state of the jobs that have not ended."""
        return self.command("squeue", "-h", "-o", "%i %T").splitlines()

    def until(self, condition: object, deadline_s: float = DEADLINE_S) -> None:
        assert callable(condition)
        until_s = time.monotonic() + deadline_s
        while not condition():
            assert time.monotonic() < until_s, self._report()
            time.sleep(0.1)

    def processes(self, node: str) -> list[int]:
        """Returns the processes of a node: those of jobs, their slurmstepd, and slurmd."""
        found = set()
        for process in psutil.process_iter(["pid"]):
            values = environment_of(process.pid)
            if values.get("SLURM_CONF") == str(self.configuration) and values.get("SLURMD_NODENAME") == node:
                found.add(process.pid)
                with suppress(psutil.Error):
                    parent = process.parent()
                    if parent is not None and "slurmstepd" in " ".join([parent.name(), *parent.cmdline()]):
                        found.add(parent.pid)
        daemon = self._daemons.get(node)
        return sorted({*found, *(() if daemon is None or daemon.poll() is not None else (daemon.pid,))})

    def signal_node(self, node: str, number: signal.Signals) -> None:
        """Kills, stops or continues everything that runs on a node, as if it lost its power, or hung."""
        for pid in self.processes(node):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def close(self) -> None:
        for node in self.nodes:
            self.signal_node(node, signal.SIGKILL)
        for daemon in self._daemons.values():
            daemon.kill()
            daemon.wait(timeout=DEADLINE_S)

    def _report(self) -> str:
        logs = [path.read_text(errors="replace")[-2000:] for path in sorted(self.folder.glob("*.log"))]
        return "\n".join([self.command("sinfo", "-N", "-l"), self.command("squeue"), *logs])


@contextmanager
def slurm_cluster(folder: Path, nodes: int, *, kill_wait_s: int = 5, timeout_s: int = 20) -> Iterator[SlurmCluster]:
    """`timeout_s` is SlurmdTimeout, after which a silent node is down."""
    cluster = SlurmCluster(unpacked(), folder, nodes, kill_wait_s, timeout_s)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()
