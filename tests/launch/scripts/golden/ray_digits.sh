#!/bin/sh
# Trains examples/digits.toml on 2:8 nodes of a Ray cluster. Run it with: sh THIS_FILE http://HEAD:8265
# Every node has adamctl[ray,tls] of the same version for Ray's Python, and sees the folder and the data.
# The front runs on the head. `ray job stop` gives it 60 s for its last checkpoint. Ray reads that where
# the job runs, so it is set there and not here.
set -eu
exec ray job submit --address "${1:?give the address of the cluster, such as http://head:8265}" \
    --submission-id "adamctl-digits-$(date +%Y%m%d-%H%M%S)" \
    --runtime-env-json '{"env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": "60"}}' \
    -- sh -c 'cd /shared/nets && exec adamctl train examples/digits.toml --on ray --hosts 2:8 --time 14400s --cores 16 --resume none --plain'
