"""Texts as they should be, each in a file. `python -m tests.launch.scripts.golden_texts` writes them anew."""

from __future__ import annotations

from pathlib import Path, PurePath

from adamctl.launch.scripts.kubernetes import kubernetes_description
from adamctl.launch.scripts.ray import ray_script
from adamctl.launch.scripts.slurm import slurm_script
from adamctl.launch.scripts.systemd import ROLES, systemd_unit
from adamctl.launch.scripts.wanted import Wanted

FOLDER = Path(__file__).with_name("golden")
PROGRAM = "/opt/adamctl/bin/adamctl"
DIGITS = Wanted("digits", "examples/digits.toml", 2, 8, 16, 4 * 3600.0)
SMALL = Wanted("my.net", "my nets/net 1.toml", 3, 3, insecure=True)
EXPERIMENT = 'name = "digits"\n\n[data]\nformat = "digits"\n'


def texts() -> dict[str, str]:
    """Returns the name of each file and what should stand in it."""
    return {
        "slurm_digits.sh": slurm_script(DIGITS, "long"),
        "slurm_small.sh": slurm_script(SMALL),
        "ray_digits.sh": ray_script(DIGITS, PurePath("/shared/nets")),
        "ray_small.sh": ray_script(SMALL, PurePath("/shared/my nets")),
        "k8s_digits.yaml": kubernetes_description(DIGITS, EXPERIMENT, "registry.example/adamctl:0.1"),
        "k8s_small.yaml": kubernetes_description(SMALL, EXPERIMENT, "adamctl:latest"),
        **{f"adamctl-{role}.service": systemd_unit(role, PROGRAM) for role in ROLES},
    }


if __name__ == "__main__":
    for name, text in texts().items():
        (FOLDER / name).write_text(text)
