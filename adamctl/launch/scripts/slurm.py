"""`adamctl launch slurm`: a script for `sbatch`, in which the front of the run is on the first node."""

from __future__ import annotations

from shlex import quote

from adamctl.launch.places.core.slurm_commands import WARNING_S, hosts_name, slurm_time
from adamctl.launch.scripts.wanted import Wanted


def slurm_script(wanted: Wanted, partition: str = "") -> str:
    """Returns the script. After its time limit, or the loss of its node, it goes on from the newest checkpoint."""
    options = "".join(
        f"#SBATCH {option}\n"
        for option in (
            *((f"--cpus-per-task={wanted.cores}",) if wanted.cores else ()),
            *((f"--time={slurm_time(wanted.time_s)}",) if wanted.time_s else ()),
            *((f"--partition={partition}",) if partition else ()),
        )
    )
    extra = "" if wanted.insecure else "[tls]"
    cores = ' --cores "$SLURM_CPUS_PER_TASK"' if wanted.cores else ""
    return f"""#!/bin/bash
# Trains {wanted.experiment} on {wanted.least} nodes. Submit it with: sbatch THIS_FILE
# The nodes see this folder, the data and the same installation of adamctl{extra}.
#SBATCH --job-name=adamctl-{wanted.name}
#SBATCH --nodes={wanted.least}
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
{options}# The loss of a node ends neither the job nor the agents on the others. A new node is a job of its own.
#SBATCH --no-kill
# After the loss of the first node, where the front runs, the job starts again. So it does after its time limit: below.
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.log
# Seconds before the time limit at which this script, and nothing else, gets SIGTERM.
#SBATCH --signal=B:TERM@{WARNING_S}

resume=none
if [ "${{SLURM_RESTART_COUNT:-0}}" -gt 0 ]; then resume=auto; fi

# Whatever ends this script, jobs of single nodes that it has asked for end with it.
end_hosts() {{
    scancel --quiet --user="$(id -un)" --name="{hosts_name("$SLURM_JOB_ID")}"
}}
trap end_hosts EXIT

adamctl train {quote(wanted.experiment)} --on slurm {wanted.flags}{wanted.time_flag}{cores} \\
    --resume "$resume" --plain &
front=$!

# A job that was cancelled gets SIGTERM, too, but does not run any more, and must not come back.
again=no
warned() {{
    if [ "$(squeue --noheader --jobs="$SLURM_JOB_ID" --format=%T)" = RUNNING ]; then again=yes; fi
    kill -TERM "$front"
}}
trap warned TERM

wait "$front"
status=$?
while kill -0 "$front" 2>/dev/null; do # the signal has ended `wait`, and the front writes its last checkpoint
    wait "$front"
    status=$?
done
if [ "$again" = yes ]; then
    end_hosts # first: Slurm may leave this script no time after that
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
"""
