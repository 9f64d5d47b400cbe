"""The environment of a role's process: name, log, signals, the lifeline to its parent, the ready report, its socket."""

from __future__ import annotations

import asyncio
import ctypes
import json
import logging
import os
import secrets
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from adamctl.config.names import NAME_EXPECTED, is_name, printable
from adamctl.errors import AdamctlError, ConfigurationError
from adamctl.net.address import DEFAULT_CONTROLLER, UNIX_PATH_BYTES_MAX, parse_address
from adamctl.net.tls.identity import Identity, allowed, command_for
from adamctl.roles.configuration import configuration_places
from adamctl.roles.durable_file import write_all
from adamctl.roles.log import Outlet, file_handler, formatter, stderr_handler
from adamctl.roles.private_folder import private_folder, remove_if_left
from adamctl.roles.role_process import END_SIGNAL
from adamctl.roles.service_manager import READY, ServiceManager

ERROR_CHARACTERS_MAX = 4096
"""Bound on an error in the ready report, so that it always fits into the pipe; the log has the whole text."""
M_ARENA_MAX = -8
"""The number of that setting in glibc's <malloc.h>."""
LIFELINE_GRACE_S = 10.0
"""How long a role may take to end by itself after its parent has gone; then the process is ended."""


@dataclass(frozen=True)
class CommonOptions:
    """The flags that every role has.

    Attributes:
        controller: addresses of the controllers (`--controller`, ADAMCTL_CONTROLLER), `host:port` or as in
            `adamctl.net.address`; or the one URL of an etcd cluster (`--config-store`, ADAMCTL_CONFIG_STORE).
        name: the node's name (`--name`); empty: the role and six random hexadecimal digits.
        bind: host to listen on (`--bind`); 127.0.0.1 can only be reached from this machine.
        port: TCP port to listen on (`--port`), 0 for any free one; None: the role's `default_port`.
        advertise: host that others are told (`--advertise`); empty: `bind`, or, if that is 0.0.0.0 or ::, the address
            from which this machine reaches the controller.
        token: shared secret that both sides of a connection must have (`--token-file`, ADAMCTL_TOKEN).
        log_level: debug, info, warning or error (`--log-level`), for stderr and the file.
        log_file: a second place for the log (`--log-file`); a rotated file is followed.
        log_format: text or json (`--log-format`, ADAMCTL_LOG_FORMAT), for stderr and the file.
        socket_folder: where the Unix socket for peers on this machine goes (`--socket-folder`); None: a private folder
            that is removed at the end.
        capacity_bytes: memory that this node offers (`--capacity`), 0: not given.
        lifeline_fd: inherited pipe whose end means that the parent is gone, and the role with it (`--lifeline-fd`).
        ready_fd: inherited pipe for one line of JSON when the role serves (`--ready-fd`), and for one when it fails.
        controller_deadline_s: how long the controllers may be unreachable before the role gives up
            (`--controller-deadline`); not if it holds what is lost with it.
        stop_deadline_s: how long the role may take to end after it was asked to (`--stop-deadline`).
        health: HOST:PORT of `/livez` and `/readyz` (`--health`); empty: nowhere.
        wait_for_name: whether to wait, for up to `controller_deadline_s`, while another process has this node's name
            (`--wait-for-name`).
    """

    controller: tuple[str, ...] = (DEFAULT_CONTROLLER,)
    name: str = ""
    bind: str = "127.0.0.1"
    port: int | None = None
    advertise: str = ""
    token: str = ""
    log_level: str = "info"
    log_file: Path | None = None
    socket_folder: Path | None = None
    capacity_bytes: int = 0
    lifeline_fd: int | None = None
    ready_fd: int | None = None
    controller_deadline_s: float = 60.0
    stop_deadline_s: float = 30.0
    health: str = ""
    log_format: str = "text"
    wait_for_name: bool = False

    @property
    def is_owned(self) -> bool:
        """Whether the front of a run or a host's agent started this process, and decides when it ends."""
        return self.lifeline_fd is not None and self.ready_fd is not None


def node_name(role: str, options: CommonOptions, identity: Identity | None = None) -> str:
    """Returns the given name, or that in the process's certificate, or a generated one.

    Args:
        identity: what the certificate says; None without TLS.

    Raises:
        ConfigurationError: no node can have this name, or the certificate allows neither the role nor the name.
    """
    name = options.name or f"{role}-{secrets.token_hex(3)}"
    if identity is not None and not options.name:
        name = identity.node if role == identity.role else identity.part(name)
    if not is_name(name):
        raise ConfigurationError(f"--name: expected {NAME_EXPECTED}; found {name!a}")
    if identity is not None and not identity.speaks_for(role, name):
        raise ConfigurationError(
            f"this process is {role} {name}, but its certificate is for {identity}: {allowed(identity)}; give "
            f"--tls-dir another one ({command_for(role, name)}), or --name another name"
        )
    return name


# --- log ------------------------------------------------------------------------------------------------------------


@contextmanager
def logging_to(role: str, node: str, options: CommonOptions) -> Iterator[logging.Logger]:
    """Sends everything that adamctl logs to stderr and the log file while the block lasts; yields the role's logger.

    Raises:
        ConfigurationError: an unknown level or format, or a file that cannot be written.
    """
    level = logging.getLevelNamesMapping().get(options.log_level.upper())
    if level is None:
        raise ConfigurationError(f"--log-level: expected debug, info, warning or error, found {options.log_level!r}")
    formatting = formatter(options.log_format, role, node)
    handlers = [stderr_handler(), *([file_handler(options.log_file)] if options.log_file is not None else [])]
    for handler in handlers:
        handler.setFormatter(formatting)
    root, loop = logging.getLogger("adamctl"), logging.getLogger("asyncio")  # the loop tells of tasks that failed
    before = (root.level, root.propagate, loop.propagate, threading.excepthook)
    root.setLevel(level)
    root.propagate = loop.propagate = False
    root.addHandler(outlet := Outlet(handlers))
    loop.addHandler(outlet)
    threading.excepthook = lambda failed: root.error(
        "thread %s failed", getattr(failed.thread, "name", "?"), exc_info=failed.exc_value
    )
    try:
        yield logging.getLogger(f"adamctl.{role}")
    finally:
        root.removeHandler(outlet)
        loop.removeHandler(outlet)
        outlet.close()
        root.setLevel(before[0])
        root.propagate, loop.propagate, threading.excepthook = before[1:]


# --- life and death -------------------------------------------------------------------------------------------------


def watch_lifeline(fd: int, on_end: Callable[[], None], by_force: Callable[[], NoReturn]) -> None:
    """Calls `on_end`, from a separate thread, when the pipe's other end is closed: the parent is gone.

    If the process still runs LIFELINE_GRACE_S later, calls `by_force`: a role never outlives the run that owns it.
    """

    def wait() -> None:
        with suppress(OSError):
            while os.read(fd, 4096):
                pass
        on_end()
        threading.Event().wait(LIFELINE_GRACE_S)
        by_force()

    os.set_inheritable(fd, False)
    threading.Thread(target=wait, name="lifeline", daemon=True).start()


def end_by_force(socket_address: str | None, folder: Path | None) -> NoReturn:
    """Ends the process with exit code 1 without waiting for tasks or threads; removes its socket first.

    `folder` is the `--socket-folder`; without one, the socket's private folder is removed too.
    """
    if socket_address is not None:
        path = Path(socket_address.removeprefix("unix://"))
        path.unlink(missing_ok=True)
        if folder is None:
            shutil.rmtree(path.parent, ignore_errors=True)
    leave_no_folder(folder)
    logging.shutdown()
    os._exit(1)


def restart_process(*descriptors: int | None) -> NoReturn:
    """Replaces this process with a fresh start of the same command, so that none of its state remains.

    `descriptors` are those that it was started with and keeps.
    """
    for descriptor in descriptors:
        if descriptor is not None:
            os.set_inheritable(descriptor, True)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):  # a full disk, or nobody reads any more
            stream.flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def bound_arenas(count: int) -> bool:
    """Has the C library serve all threads from at most `count` arenas; to be called before there are other threads.

    glibc gives each thread an arena of its own, up to 8 for each core, and what is free in one is of no use to another:
    a process with threads for a disk grows for hours. Returns False, and changes nothing, where the user has decided
    (MALLOC_ARENA_MAX) or the C library has no arenas.
    """
    if "MALLOC_ARENA_MAX" in os.environ:
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and mallopt(ctypes.c_int(M_ARENA_MAX), ctypes.c_int(count)) == 1


@contextmanager
def signals_to(call: Callable[[int], None]) -> Iterator[None]:
    """Calls `call(number)` on the running loop on SIGINT, SIGTERM, SIGHUP and END_SIGNAL while the block lasts.

    An ignored SIGHUP, as under `nohup`, stays ignored. Does nothing outside the main thread, where Python cannot handle
    signals.
    """
    loop = asyncio.get_running_loop()
    taken = []
    if threading.current_thread() is threading.main_thread():
        hung_up = () if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (signal.SIGHUP,)
        for number in (signal.SIGINT, signal.SIGTERM, END_SIGNAL, *hung_up):
            loop.add_signal_handler(number, call, int(number))
            taken.append(number)
    try:
        yield
    finally:
        for number in taken:
            loop.remove_signal_handler(number)


class ReadyReport:
    """Tells the program that started this process that it serves, or why it fails: one line of JSON each, at most once.

    A failure is reported before the role leaves its cluster, so that the program that started it learns the cause
    before other processes report the consequences.
    """

    def __init__(
        self, fd: int | None, role: str, node: str, service_manager: ServiceManager = ServiceManager()
    ) -> None:
        self.service_manager = service_manager
        self._fd = fd
        self._role = role
        self._node = node
        if fd is not None:
            os.set_inheritable(fd, False)

    def serving(self, addresses: tuple[str, ...], incarnation: int, lines: tuple[str, ...]) -> None:
        """Writes the JSON line, or, for a manually started role, `lines` to stdout; tells the service manager."""
        if self._fd is not None:
            self._write(self._fd, {"addresses": addresses, "incarnation": incarnation})
        else:
            for line in lines:
                print(printable(line), flush=True)
        self.service_manager.tell(READY, f"STATUS=serving as {self._role} {self._node}")

    def failed(self, error: Exception) -> None:
        """Writes why the role fails, and when; the first failure counts."""
        fd, self._fd = self._fd, None
        if fd is None:
            return
        text, kind = f"{type(error).__name__}: {error}", AdamctlError
        if isinstance(error, AdamctlError):
            text, kind = str(error), type(error)
        values = {"error": text[:ERROR_CHARACTERS_MAX], "exit_code": kind.exit_code, "retry_helps": kind.retry_helps}
        self._write(fd, {**values, "ends_run": kind.ends_run, "failed_s": time.monotonic()})
        with suppress(OSError):
            os.close(fd)

    def _write(self, fd: int, values: dict[str, Any]) -> None:
        line = json.dumps({"role": self._role, "node": self._node, "pid": os.getpid(), **values})
        with suppress(OSError):  # nobody reads any more; the lifeline will show that too
            write_all(fd, line.encode() + b"\n")


# --- addresses ------------------------------------------------------------------------------------------------------


@contextmanager
def unix_socket_address(node: str, folder: Path | None) -> Iterator[str | None]:
    """Yields an address for peers on this machine, in a private folder that is removed afterwards.

    Yields None if no path is short enough for a Unix socket.
    """
    with ExitStack() as stack:
        private = folder is None
        if folder is None:
            try:
                folder = stack.enter_context(private_folder())
            except OSError:
                yield None
                return
        path = folder / ("s" if private else f"{node}.s")
        try:
            yield f"unix://{path}" if len(os.fsencode(path)) <= UNIX_PATH_BYTES_MAX and path.is_absolute() else None
        finally:
            with suppress(OSError):
                path.unlink()


def leave_no_folder(folder: Path | None) -> None:
    """Removes the socket folder that a killed parent has left behind; the last role to end does it."""
    if folder is not None and not any(folder.glob("*.s")):
        remove_if_left(folder)


def advertised(addresses: tuple[str, ...], options: CommonOptions) -> tuple[str, ...]:
    """Returns the addresses as others can use them: `--advertise`, or a wildcard replaced by this machine's address."""
    result = []
    for text in addresses:
        address = parse_address(text)
        if address.scheme == "tcp":
            if options.advertise:
                address = address._replace(host=options.advertise)
            elif address.host in ("0.0.0.0", "::"):
                address = address._replace(host=outward_host(options.controller))
        result.append(str(address))
    return tuple(dict.fromkeys(result))


def outward_host(controller: tuple[str, ...]) -> str:
    """Returns the address that this machine has in the network towards the controller (sends nothing)."""
    for text in configuration_places(controller):
        address = parse_address(text)
        if address.scheme != "tcp":
            continue
        with suppress(OSError):
            family, kind, protocol, _, where = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_DGRAM)[0]
            with socket.socket(family, kind, protocol) as probe:
                probe.connect(where)
                return str(probe.getsockname()[0])
    return socket.gethostname()
