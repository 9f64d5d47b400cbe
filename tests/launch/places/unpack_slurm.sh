#!/bin/sh
# Unpacks Debian's packages of Slurm into a folder, without root and without installing anything. Then
#     ADAMCTL_SLURM=FOLDER pytest -m slow tests/launch/places
# runs our tests against a real slurmctld and several slurmd of this machine.
set -eu
folder=$(mkdir -p "${1:?give a folder}" && cd "$1" && pwd)
mkdir -p "$folder/packages"
cd "$folder/packages" # apt-get writes into the current folder
apt-get download slurmctld slurmd slurm-client slurm-wlm-basic-plugins libmunge2 \
    libhwloc15 liblz4-1 libnuma1 libjson-c5 libdbus-1-3 libyaml-0-2 liblua5.1-0
for package in *.deb; do dpkg -x "$package" "$folder"; done
echo "export ADAMCTL_SLURM=$folder"
