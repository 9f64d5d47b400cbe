"""Hosts by Slurm: a job of agents, or a step of agents in the job that this process already runs in.

From a login node `begin` submits one job for all agents, and the front stays where it is. In a job, as in the script of
`adamctl launch slurm`, the agents are a step of that job. Each replacement is a job of one more agent.

Slurm needs up to SlurmdTimeout (300 s) to find that a node is dead, so what is said here of hosts comes late.
"""

from __future__ import annotations

import asyncio
import getpass
import os
import re
import secrets
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress

from adamctl.config.names import as_name, printable
from adamctl.errors import AdamctlError, ConfigurationError, UnreachableError
from adamctl.launch.places.core.slurm_commands import (
    SlurmJob,
    agents_script,
    hosts_name,
    kill_wait_s,
    outer_environment,
    step_line,
    stop_deadline_s,
    submit_options,
)
from adamctl.launch.places.core.slurm_jobs import (
    JOB_FORMAT,
    NODE_FORMAT,
    SlurmJobs,
    fitting,
    job_rows,
    node_rows,
)
from adamctl.launch.places.engines import EngineOptions
from adamctl.launch.places.places import AgentCommand, HostNeeds, Notice

COMMAND_DEADLINE_S = 30.0
POLL_S = 10.0
STEP_GRACE_S = 5.0
_PROGRAMS = ("sbatch", "srun", "squeue", "sinfo", "scancel", "scontrol")
_OF_EACH = "-$SLURM_JOB_ID"
"""Part of a host's name, in a script: a node that is given twice gets two names."""
_WARDEN = """
while read -r line; do :; done
for try in 1 2 3 4 5 6 7 8 9 10; do scancel --quiet --name="$1" --user="$2" && exit; sleep 10; done
"""
_NO_CONTROLLER = ("Unable to contact slurm controller", "Connection refused", "Socket timed out")


class SlurmPlaces:
    """An engine; see `Places`."""

    def __init__(self, options: EngineOptions, poll_s: float = POLL_S) -> None:
        """`poll_s` is between looks at Slurm."""
        environment = options.environment
        self._note = options.note
        self._folder = options.folder.absolute()
        self._partition = options.flags.get("slurm-partition", "")
        self._outer_job = environment.get("SLURM_JOB_ID", "")
        # All jobs of this name are cancelled at the end. Within a job the script knows the name, too.
        self._name = (
            hosts_name(self._outer_job) if self._outer_job else f"{as_name(options.run)}-{secrets.token_hex(4)}"
        )
        self._nodes = int(environment.get("SLURM_JOB_NUM_NODES", "0"))
        self._cores = int(environment.get("SLURM_CPUS_ON_NODE", "0"))
        self._environment = dict(environment)
        self._poll_s = poll_s
        self._jobs = SlurmJobs()
        self._each = HostNeeds(1)
        self._agent = AgentCommand((), {})
        self._step: asyncio.subprocess.Process | None = None
        self._warden: subprocess.Popen[bytes] | None = None
        self._alive = -1
        self._ended = asyncio.Event()

    @staticmethod
    def check_here(environment: Mapping[str, str]) -> None:
        """See `Engine`: Slurm's commands are on the PATH."""
        for program in _PROGRAMS:
            if shutil.which(program, path=environment.get("PATH")) is None:
                raise UnreachableError(
                    f"--on slurm needs Slurm's commands, and {program} is not found here; start this on a login node, "
                    "or submit what adamctl launch slurm EXP.toml --print prints"
                )

    async def begin(self, hosts: int, each: HostNeeds, agent: AgentCommand) -> None:
        """See `Places`. In a job, `hosts` are the first nodes of it."""
        self.check_here(self._environment)
        self._each, self._agent = each, agent
        self._start_warden()
        if self._outer_job:
            await self._start_step(hosts)
        else:
            await self._check(hosts)
            await self._submit(hosts, "")

    async def one_more(self, why: str) -> bool:
        """See `Places`: submits a job of one agent, which may wait in the queue for any time."""
        if self._ended.is_set():
            return False
        try:
            job = await self._submit(1, _OF_EACH)
        except AdamctlError as error:
            self._note(f"Slurm gives no further host: {error}")
            return False
        self._note(f"submitted Slurm job {job} for one more host ({printable(why)})")
        return True

    async def notices(self) -> AsyncIterator[Notice]:
        """See `Places`."""
        while not self._ended.is_set():
            for notice in await self._look():
                yield notice
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), self._poll_s)

    async def end(self) -> None:
        """See `Places`: cancels every job of this run, and ends the step."""
        self._ended.set()
        if self._alive >= 0:
            os.close(self._alive)
            self._alive = -1
        if self._warden is not None:
            with suppress(subprocess.TimeoutExpired):  # it tries for longer
                await asyncio.to_thread(self._warden.wait, COMMAND_DEADLINE_S)
        if self._step is not None and self._step.returncode is None:
            await _end_step(self._step)

    # --- jobs -------------------------------------------------------------------------------------------------------

    def _start_warden(self) -> None:
        """Starts the process that cancels this run's jobs when our end of a pipe is closed, even by a kill.

        Each `sbatch` holds that end, too, so none is submitted after the jobs were cancelled.
        """
        reads, self._alive = os.pipe()
        try:
            self._warden = subprocess.Popen(
                ("sh", "-c", _WARDEN, "warden", self._name, getpass.getuser()),
                stdin=reads,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=self._environment,
                start_new_session=True,
            )
        finally:
            os.close(reads)

    async def _submit(self, hosts: int, suffix: str) -> str:
        """Returns the number of the job.

        Raises:
            UnreachableError: Slurm does not answer.
            ConfigurationError: it refuses what is asked for.
        """
        options = submit_options(SlurmJob(self._name, hosts, self._folder, self._partition), self._each)
        script = agents_script(self._agent.line, self._each, suffix)
        status, out, errors = await self._run(("sbatch", *options), script, self._agents_environment(), lent=True)
        job = out.strip().partition(";")[0]
        if status or not job.isdecimal():
            raise _refusal(errors or out)
        self._jobs.submitted(job, f"-{job}" if suffix else "")
        return job

    async def _check(self, hosts: int) -> None:
        """Raises UnreachableError: there are not so many nodes. Slurm would let the job wait for ever."""
        where = (f"--partition={self._partition}",) if self._partition else ()
        line = ("sinfo", "--noheader", "--Node", "--format=%N|%c|%T", *where)
        status, out, errors = await self._run(line)
        if status:
            raise _refusal(errors)
        there = fitting(out, self._each.cores)
        if there < hosts:
            in_it = f"partition {self._partition}" if self._partition else "this Slurm cluster"
            raise UnreachableError(
                f"expected {hosts} hosts with {self._each.cores or 1} cores; {in_it} has {there} such nodes that can "
                "be used; ask for fewer with --hosts, or for fewer cores with --cores"
            )

    async def _start_step(self, hosts: int) -> None:
        """Starts the agents on the first nodes of the job that this process runs in."""
        if self._nodes < hosts:
            raise UnreachableError(
                f"expected {hosts} hosts; Slurm job {self._outer_job} has {self._nodes}: submit it with --nodes={hosts}"
            )
        if 0 < self._cores < self._each.cores:
            raise UnreachableError(
                f"expected {self._each.cores} cores a host; Slurm job {self._outer_job} has {self._cores} on this "
                f"node: submit it with --exclusive --cpus-per-task={self._each.cores}"
            )
        line = step_line(self._agent.line, self._each, hosts=hosts)
        log = os.open(self._folder / f"slurm-{self._outer_job}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            self._step = await asyncio.create_subprocess_exec(
                *line,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**self._environment, **self._agent.environment},
                start_new_session=True,
            )
        finally:
            os.close(log)
        self._jobs.submitted(self._outer_job, "")

    def _agents_environment(self) -> dict[str, str]:
        return {**outer_environment(self._environment), **self._agent.environment}

    # --- what Slurm says --------------------------------------------------------------------------------------------

    async def _look(self) -> list[Notice]:
        """Returns what is new; nothing if Slurm does not answer."""
        names = self._jobs.names
        if not names:
            return []
        line = ("squeue", "--noheader", "--states=all", f"--jobs={','.join(names)}", f"--format={JOB_FORMAT}")
        status, out, errors = await self._run(line)
        if status and "Invalid job id" not in errors:
            return []
        jobs = job_rows(out)
        expand = {row.nodes: await self._expanded(row.nodes) for row in jobs if row.nodes}
        known = {*self._jobs.nodes, *(node for nodes in expand.values() for node in nodes)}
        rows = ""
        if known:
            asked = f"--nodes={','.join(sorted(known))}"
            rows = await self._ask("sinfo", "--noheader", "--Node", asked, f"--format={NODE_FORMAT}")
        notices, said = self._jobs.look(names, jobs, node_rows(rows), expand)
        for text in said:
            self._note(text)
        return notices

    async def _expanded(self, nodes: str) -> list[str]:
        return (await self._ask("scontrol", "show", "hostnames", nodes)).split()

    async def _ask(self, *line: str) -> str:
        """Returns what a command prints; nothing if it fails."""
        status, out, _ = await self._run(line)
        return "" if status else out

    async def _run(
        self, line: Sequence[str], text: str = "", environment: Mapping[str, str] | None = None, *, lent: bool = False
    ) -> tuple[int, str, str]:
        """As `_command`; `lent`: the command holds the end of the pipe that the warden waits for."""
        chosen = self._environment if environment is None else environment
        return await _command(line, chosen, text, (self._alive,) if lent else ())


async def stop_deadline_in_job_s(environment: Mapping[str, str], usual_s: float) -> float:
    """Returns how many seconds a last checkpoint may take; within a job as many as Slurm leaves it when it ends it."""
    if "SLURM_JOB_ID" not in environment:
        return usual_s
    status, out, _ = await _command(("scontrol", "show", "config"), environment)
    return usual_s if status else min(usual_s, stop_deadline_s(kill_wait_s(out)))


async def _command(
    line: Sequence[str], environment: Mapping[str, str], text: str = "", passed: tuple[int, ...] = ()
) -> tuple[int, str, str]:
    """Runs a command and returns its status, output and errors; status 124 if it has not ended by the deadline."""
    try:
        process = await asyncio.create_subprocess_exec(
            *line,
            stdin=subprocess.PIPE if text else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(environment),
            pass_fds=passed,
            start_new_session=True,
        )
    except OSError as error:
        return 127, "", f"{line[0]}: {error.strerror}"
    try:
        async with asyncio.timeout(COMMAND_DEADLINE_S):
            out, errors = await process.communicate(text.encode() or None)
    except TimeoutError:
        return 124, "", f"Socket timed out: {line[0]} did not end within {COMMAND_DEADLINE_S:.0f} s"
    except (OSError, RuntimeError) as error:  # it ended before it had read; uvloop's streams say so by a RuntimeError
        with suppress(ProcessLookupError):
            process.kill()
        return await process.wait() or 1, "", f"{line[0]}: {error}"
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
    return process.returncode or 0, out.decode(errors="replace"), errors.decode(errors="replace")


def _refusal(said: str) -> AdamctlError:
    said = printable(" ".join(re.sub(r"\b\w+: error: ", "", said).split()))
    if any(sign in said for sign in _NO_CONTROLLER):
        return UnreachableError(f"Slurm does not answer: {said}")
    return ConfigurationError(f"Slurm refuses the job: {said}")


async def _end_step(step: asyncio.subprocess.Process) -> None:
    """Waits for a step whose agents were told to end; ends it if they do not."""
    for number in (None, signal.SIGTERM, signal.SIGKILL):
        if number is not None:
            with suppress(ProcessLookupError):
                step.send_signal(number)
        with suppress(TimeoutError):
            await asyncio.wait_for(step.wait(), STEP_GRACE_S)
            return
