"""What the end of a role means for a run."""

import pytest

from adamctl.launch.supervision import Fail, Note, Restart, RoleEnd, Supervision, describe_status

ROLES = {
    "controller": "controller",
    "ps-1": "ps",
    "coordinator": "coordinator",
    "worker-1": "worker",
    "worker-2": "worker",
    "data-1": "data",
    "data-2": "data",
}


ONE_DATA_SERVER = {node: role for node, role in ROLES.items() if node != "data-2"}


def running(restarts_max: int = 3, roles: dict[str, str] = ROLES) -> Supervision:
    supervision = Supervision(roles, restarts_max)
    for node in roles:
        supervision.serves(node)
    return supervision


def test_it_says_whom_it_waits_for() -> None:
    supervision = Supervision(ROLES)
    supervision.serves("controller")
    supervision.serves("ps-1")
    assert supervision.waiting_for == ("coordinator", "worker-1", "worker-2", "data-1", "data-2")


@pytest.mark.parametrize("node", ["controller", "ps-1", "coordinator"])
def test_a_run_fails_with_a_role_it_cannot_do_without(node: str) -> None:
    assert running().ended([RoleEnd(node, -9)]) == [Fail(node, "killed by SIGKILL", 1)]


def test_a_worker_that_dies_is_started_again() -> None:
    assert running().ended([RoleEnd("worker-1", -9)]) == [Restart("worker-1", "killed by SIGKILL")]


def test_a_worker_that_keeps_dying_is_left_out_and_the_last_one_is_the_end() -> None:
    supervision = running(restarts_max=1)
    for node in ("worker-1", "worker-2"):
        assert isinstance(supervision.ended([RoleEnd(node, 1)])[0], Restart)
        supervision.serves(node)
    (note,) = supervision.ended([RoleEnd("worker-1", 1)])
    assert note == Note("worker-1 ended: exit status 1; continuing with worker-2")
    (fail,) = supervision.ended([RoleEnd("worker-2", 1)])
    assert fail == Fail("worker-2", "exit status 1; no worker is left", 1)


@pytest.mark.parametrize("status", [0, 2])
def test_a_worker_that_was_told_to_leave_or_is_misconfigured_is_not_started_again(status: int) -> None:
    assert isinstance(running().ended([RoleEnd("worker-1", status)])[0], Note)


def test_a_failure_to_start_is_never_retried() -> None:
    supervision = Supervision(ROLES)
    end = RoleEnd("worker-1", 2, error="--threads: expected at least 1, found 0", exit_code=2)
    assert supervision.ended([end]) == [Fail("worker-1", "--threads: expected at least 1, found 0", 2)]


def test_a_role_that_moves_waits_for_its_name_again_a_bounded_number_of_times() -> None:
    """Where it was, nobody could end it: its agent is stopped, or cut off."""
    supervision = running(restarts_max=2)
    why = "ps-1 was process 7 on h1, which may still be running"
    supervision.add("ps-1", "ps")
    for _ in range(2):
        assert supervision.ended([RoleEnd("ps-1", 3, why, 3)]) == [Restart("ps-1", why)]
        supervision.add("ps-1", "ps")
    assert supervision.ended([RoleEnd("ps-1", 3, why, 3)]) == [Fail("ps-1", why, 3)]


def test_a_moved_worker_that_never_gets_its_name_is_left_out() -> None:
    supervision = running(restarts_max=0)
    supervision.add("worker-1", "worker")
    (note,) = supervision.ended([RoleEnd("worker-1", 3, "it may still be running", 3)])
    assert isinstance(note, Note) and note.text.endswith("continuing with worker-2")
    supervision.add("worker-2", "worker")
    (fail,) = supervision.ended([RoleEnd("worker-2", 2, "no such flag", 2)])
    assert fail == Fail("worker-2", "no such flag", 2), "another failure to start ends the run, as ever"


def test_damaged_data_end_the_run_with_the_first_worker_that_reads_them() -> None:
    end = RoleEnd("worker-1", 5, "x.png: expected a whole image", exit_code=5, retry_helps=False)
    assert running().ended([end]) == [Fail("worker-1", "x.png: expected a whole image", 5)]


def test_a_layer_of_the_users_own_that_fails_ends_the_run_with_its_first_worker() -> None:
    """All workers run the same code, and partitions of a replica would wait for the one that is gone."""
    end = RoleEnd("worker-1", 1, "mine1, upward: ValueError", 1, retry_helps=False, ends_run=True)
    assert running().ended([end]) == [Fail("worker-1", "mine1, upward: ValueError", 1)]


@pytest.mark.parametrize("node", ["worker-1", "data-1"])
def test_a_restarted_role_that_dies_before_it_serves_is_left_out_while_another_serves(node: str) -> None:
    """The system is short of memory: it kills a worker, and kills it again while it loads."""
    supervision = running()
    assert isinstance(supervision.ended([RoleEnd(node, -9)])[0], Restart)
    (note,) = supervision.ended([RoleEnd(node, -9)])
    assert isinstance(note, Note) and note.text.endswith(f"continuing with {node[:-1]}2")
    assert supervision.waiting_for == () and supervision.failure is None


def test_so_is_a_worker_that_comes_or_moves_while_the_run_goes_on() -> None:
    supervision = running()
    for node in ("worker-3", "worker-1"):
        supervision.add(node, "worker")
        (note,) = supervision.ended([RoleEnd(node, 1, "it crashed", 1, host="h3")])
        assert isinstance(note, Note) and note.text.startswith(f"{node} on h3 ended: it crashed; continuing with ")
    supervision.add("worker-2", "worker")
    assert supervision.ended([RoleEnd("worker-2", -9)]) == [Fail("worker-2", "killed by SIGKILL", 1)], "none serves"


@pytest.mark.parametrize(
    "end",
    [
        RoleEnd("worker-3", 2),
        RoleEnd("worker-3", 1, "--threads: 0", 2),
        RoleEnd("worker-3", 5, "x.png is damaged", 5),
        RoleEnd("worker-3", 1, "mine1: ValueError", 1, ends_run=True),
    ],
)
def test_what_others_would_fail_of_too_ends_the_run_at_once(end: RoleEnd) -> None:
    supervision = running()
    supervision.add("worker-3", "worker")
    assert isinstance(supervision.ended([end])[0], Fail)


@pytest.mark.parametrize("roles", [ROLES, ONE_DATA_SERVER])
def test_a_data_server_that_dies_is_started_again(roles: dict[str, str]) -> None:
    supervision = running(roles=roles)
    for status in (-9, 1, 143):
        assert isinstance(supervision.ended([RoleEnd("data-1", status)])[0], Restart)
        supervision.serves("data-1")
    assert supervision.failure is None


def test_a_data_server_that_keeps_dying_is_left_out_and_the_last_one_is_the_end() -> None:
    supervision = running(restarts_max=1)
    for node in ("data-1", "data-2"):
        assert supervision.ended([RoleEnd(node, -9)]) == [Restart(node, "killed by SIGKILL")]
        supervision.serves(node)
    assert supervision.ended([RoleEnd("data-1", 1)]) == [Note("data-1 ended: exit status 1; continuing with data-2")]
    assert supervision.ended([RoleEnd("data-2", 1)]) == [Fail("data-2", "exit status 1; no data server is left", 1)]


@pytest.mark.parametrize("status", [0, 2])
def test_a_data_server_that_was_told_to_leave_is_not_started_again(status: int) -> None:
    assert isinstance(running().ended([RoleEnd("data-1", status)])[0], Note)
    assert isinstance(running(roles=ONE_DATA_SERVER).ended([RoleEnd("data-1", status)])[0], Fail)


def test_a_data_server_that_cannot_start_ends_the_run_unless_it_was_there_and_another_is() -> None:
    end = RoleEnd("data-1", 2, error="--port: 7 is taken", exit_code=2)
    assert Supervision(ROLES).ended([end]) == [Fail("data-1", "--port: 7 is taken", 2)]
    again = running()
    again.ended([RoleEnd("data-1", -9)])
    reason = "it could not be restarted: --port: 7 is taken"
    assert again.ended([end]) == [Note(f"data-1 ended: {reason}; continuing with data-2")]
    assert again.waiting_for == ()
    alone = running(roles=ONE_DATA_SERVER)
    alone.ended([RoleEnd("data-1", -9)])
    assert alone.ended([end]) == [Fail("data-1", f"{reason}; no data server is left", 2)]


def test_the_coordinators_exit_code_tells_the_kind_of_failure() -> None:
    assert running().ended([RoleEnd("coordinator", 5)]) == [Fail("coordinator", "exit status 5", 5)]


def test_found_dead_together_the_server_is_the_cause() -> None:
    supervision = running()
    decisions = supervision.ended([RoleEnd("worker-1", 3), RoleEnd("ps-1", -9)])
    assert decisions == [Fail("ps-1", "killed by SIGKILL", 1)]
    assert supervision.failure == decisions[0]


def test_the_first_cause_is_kept() -> None:
    supervision = running()
    supervision.ended([RoleEnd("ps-1", -9)])
    assert supervision.ended([RoleEnd("coordinator", 1)]) == []
    assert supervision.failure is not None and supervision.failure.node == "ps-1"


GONE = RoleEnd("coordinator", 1, error="parameter server ps-1 is gone", exit_code=1, failed_s=1.0)


@pytest.mark.parametrize(
    "ends",
    [
        [RoleEnd("ps-1", -9, failed_s=5.0)],
        [GONE, RoleEnd("ps-1", -9, failed_s=5.0)],
        [RoleEnd("ps-1", -9, failed_s=5.0), GONE, RoleEnd("worker-1", 1, failed_s=0.5)],
        [RoleEnd("ps-1", -9, failed_s=5.0), RoleEnd("controller", 3, failed_s=0.5)],
        [RoleEnd("ps-1", -9, failed_s=5.0), RoleEnd("controller", 1, failed_s=6.0)],
    ],
)
def test_a_server_is_the_cause_of_the_coordinators_failure_whoever_was_found_first(ends: list[RoleEnd]) -> None:
    assert running().earlier_cause("coordinator", ends) == Fail("ps-1", "killed by SIGKILL", 1)


def test_a_servers_own_words_are_the_reason() -> None:
    ends = [RoleEnd("ps-1", 2, error="--port: 7 is taken", exit_code=2)]
    assert running().earlier_cause("coordinator", ends) == Fail("ps-1", "--port: 7 is taken", 1)
    assert Supervision(ROLES).earlier_cause("coordinator", ends) == Fail("ps-1", "--port: 7 is taken", 2)


@pytest.mark.parametrize("ends", [[], [GONE], [GONE, RoleEnd("worker-1", 1), RoleEnd("data-1", -9)]])
def test_without_a_server_that_failed_the_coordinator_is_the_cause(ends: list[RoleEnd]) -> None:
    assert running().earlier_cause("coordinator", ends) is None


def test_a_server_that_failed_is_its_own_cause() -> None:
    ends = [RoleEnd("ps-1", 1, failed_s=2.0), GONE]
    assert running().earlier_cause("ps-1", ends) is None
    assert running().earlier_cause("ps-1", [RoleEnd("ps-1", 3, failed_s=1.0), RoleEnd("controller", -9, failed_s=2.0)])


def test_what_can_only_fail_again_is_not_tried_again() -> None:
    supervision = running()
    text = "the loss is not finite; lower optimizer.lr"
    first, last = (RoleEnd(node, 1, text, 1, retry_helps=False) for node in ("worker-1", "worker-2"))
    assert supervision.ended([first]) == [Note(f"worker-1 ended: {text}; continuing with worker-2")]
    assert supervision.ended([last]) == [Fail("worker-2", text, 1)]


def test_after_the_end_every_role_may_go() -> None:
    supervision = running()
    supervision.end()
    assert supervision.ended([RoleEnd(node, 143) for node in ROLES]) == []


def test_statuses_in_words() -> None:
    assert [describe_status(status) for status in (0, 3, -9, -15)] == [
        "exit status 0",
        "exit status 3",
        "killed by SIGKILL",
        "killed by SIGTERM",
    ]


# --- parameter servers that keep their part of the model on disk -----------------------------------------------------


def storing(restarts_max: int = 3) -> Supervision:
    supervision = Supervision(ROLES, restarts_max, stored=("ps",))
    for node in ROLES:
        supervision.serves(node)
    return supervision


def test_a_server_with_a_store_is_started_again_a_bounded_number_of_times() -> None:
    supervision = storing(restarts_max=2)
    for status in (-9, 1):
        assert isinstance(supervision.ended([RoleEnd("ps-1", status)])[0], Restart)
        assert supervision.waiting_for == ("ps-1",)
        supervision.serves("ps-1")
    assert supervision.ended([RoleEnd("ps-1", -9)]) == [Fail("ps-1", "killed by SIGKILL", 1)]


@pytest.mark.parametrize("end", [RoleEnd("ps-1", 0), RoleEnd("ps-1", 2), RoleEnd("ps-1", 1, retry_helps=False)])
def test_a_server_that_was_told_to_leave_or_is_misconfigured_is_not_started_again(end: RoleEnd) -> None:
    assert isinstance(storing().ended([end])[0], Fail)


def test_a_server_whose_store_is_damaged_ends_the_run() -> None:
    supervision = storing()
    supervision.ended([RoleEnd("ps-1", -9)])
    end = RoleEnd("ps-1", 5, error="log.mdb is damaged", exit_code=5)
    assert supervision.ended([end]) == [Fail("ps-1", "log.mdb is damaged", 5)]


def test_other_roles_without_a_store_are_not_started_again() -> None:
    for node in ("controller", "coordinator"):
        assert isinstance(storing().ended([RoleEnd(node, -9)])[0], Fail)
