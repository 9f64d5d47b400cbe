#!/bin/bash
# Trains examples/digits.toml on 2 nodes. Submit it with: sbatch THIS_FILE
# The nodes see this folder, the data and the same installation of adamctl[tls].
#SBATCH --job-name=adamctl-digits
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --cpus-per-task=16
#SBATCH --time=0-04:00:00
#SBATCH --partition=long
# The loss of a node ends neither the job nor the agents on the others. A new node is a job of its own.
#SBATCH --no-kill
# After the loss of the first node, where the front runs, the job starts again. So it does after its time limit: below.
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.log
# Seconds before the time limit at which this script, and nothing else, gets SIGTERM.
#SBATCH --signal=B:TERM@120

resume=none
if [ "${SLURM_RESTART_COUNT:-0}" -gt 0 ]; then resume=auto; fi

# Whatever ends this script, jobs of single nodes that it has asked for end with it.
end_hosts() {
    scancel --quiet --user="$(id -un)" --name="adamctl-hosts-$SLURM_JOB_ID"
}
trap end_hosts EXIT

adamctl train examples/digits.toml --on slurm --hosts 2:8 --time 14400s --cores "$SLURM_CPUS_PER_TASK" \
    --resume "$resume" --plain &
front=$!

# A job that was cancelled gets SIGTERM, too, but does not run any more, and must not come back.
again=no
warned() {
    if [ "$(squeue --noheader --jobs="$SLURM_JOB_ID" --format=%T)" = RUNNING ]; then again=yes; fi
    kill -TERM "$front"
}
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
