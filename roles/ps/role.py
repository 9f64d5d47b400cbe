"""The parameter server as a plug-in of the command line."""

from __future__ import annotations

from adamctl.roles.registry import Option, Role

ROLE = Role(
    name="ps",
    summary="Hold shards of jobs' parameters, apply updates to them and send them out",
    run="adamctl.roles.ps.server:run",
    options=(
        Option("listen", "address for clients, as host:port; in place of --bind and --port", str, ""),
        Option("admin-listen", "address only for status, shutdown and checkpoints (Adam 3.3.4)", str, ""),
        Option("replication-listen", "address only for traffic between copies of buckets (Adam 3.3.4)", str, ""),
        Option(
            "drain-on-term",
            "seconds in which SIGTERM has what it holds moved to other servers before it ends; what cannot be moved is "
            "said, and the exit code is then 1, else 0; by default it ends at once",
            str,
            "",
        ),
        Option(
            "failure-domain",
            "name of what fails together with it, such as a rack: copies of a bucket do not share one while another "
            "has room; by default its machine",
            str,
            "",
        ),
        Option("apply-threads", "threads that apply updates, or auto: half of the cores", str, "auto"),
        Option("memory", "most memory for parameters and rule state, such as 8GB or 50%", str, "80%"),
        Option("store", "folder that keeps parameters on disk; resumed from after a restart", str, ""),
        Option(
            "loss-window-s",
            "most seconds of pushes that a crash may lose; auto: 5, or longer if the disk needs it",
            str,
            "auto",
        ),
        Option(
            "forget-after-s", "seconds after which the store of a job that no controller knows is freed", str, "3600"
        ),
        Option("loss-window-bytes", "most bytes of shards that differ from the disk, such as 4GB or 10%", str, "4GB"),
        Option(
            "checkpoint-root",
            "folder in which checkpoints may be written and read; by default runs (ADAMCTL_CHECKPOINT_ROOT)",
            str,
            None,
            multiple=True,
        ),
    ),
    restarts=True,
    arenas=2,
)
