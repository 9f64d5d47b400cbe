"""The data server as a plug-in of the command line."""

from __future__ import annotations

from adamctl.roles.registry import Option, Role

ROLE = Role(
    name="data",
    summary="Decode, shuffle and stream training examples ahead of need",
    run="adamctl.roles.data.server:run",
    options=(
        Option(
            "data",
            "folder in which bare names such as mnist are looked up (ADAMCTL_DATA)",
            str,
            None,
            multiple=True,
        ),
        Option(
            "data-root",
            "folder or URL in which data may be asked for; by default the folders of --data and the one it is started "
            "in, and no URL (ADAMCTL_DATA_ROOT)",
            str,
            None,
            multiple=True,
        ),
        Option("threads", "decoding threads; by default half of this machine's cores, at least 1", int, None),
        Option(
            "memory",
            "most memory for examples and what is sent, such as 4GB, of which data.memory_share is a share; by default "
            "that of this machine (ADAMCTL_DATA_MEMORY)",
            str,
            None,
            environment="ADAMCTL_DATA_MEMORY",
        ),
        Option("ahead", "ranges to prepare ahead of each pass's readers", int, 8),
    ),
)
