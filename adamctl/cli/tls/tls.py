"""`adamctl tls`: makes, signs, shows, checks and renews certificates."""

from __future__ import annotations

from adamctl.cli.lazy import TableGroup

command = TableGroup(
    name="tls",
    help="Make and renew the certificates with which processes on several machines trust each other.",
    context_settings={"help_option_names": ["-h", "--help"]},
    table={
        "create-ca": ("adamctl.cli.tls.create:create_ca", "Make the authority of a cluster; first of all, and once"),
        "create": ("adamctl.cli.tls.create:create", "Make the certificate of a node"),
        "create-operator": ("adamctl.cli.tls.create:create_operator", "Make the certificate of a person"),
        "sign": ("adamctl.cli.tls.create:sign", "Sign a request from a machine that keeps its key to itself"),
        "show": ("adamctl.cli.tls.show:show", "Show whom certificates are for and until when"),
        "check": ("adamctl.cli.tls.show:check", "Check a folder of certificates as a role does when it starts"),
        "renew": ("adamctl.cli.tls.create:renew", "Replace certificates before they expire; no process restarts"),
    },
)
