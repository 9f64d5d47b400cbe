"""Turns the state of a run into what users and programs read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from adamctl.model.metric import TOP_1
from adamctl.roles.coordinator.core.evaluate import best_of, time_to
from adamctl.roles.coordinator.core.progress import Computed, EvaluationResult, ReplicaRow, RoleRow, RunProgress
from adamctl.roles.coordinator.core.replica_rows import computed_by, replica_row
from adamctl.roles.coordinator.core.state import RunState, Worker
from adamctl.roles.coordinator.core.work import WorkerKey

SCHEMA_VERSION: Final = 1


def run_progress(
    run: RunState,
    roles: Sequence[RoleRow],
    messages: Sequence[str],
    role_counts: Mapping[str, int],
    data_read_bytes: int | None = None,
) -> RunProgress:
    """Returns the run's progress.

    Args:
        roles: the rows of processes that are not workers.
        data_read_bytes: what data servers have read of files, None where none has told.
    """
    tally, book, results = run.tally, run.book, run.desk.results
    best = _best(results)
    started = run.state != "starting" and book.examples > 1
    seconds = run.train_seconds
    per_s = tally.examples / seconds if seconds > 0 else 0.0
    left = book.examples_total - tally.examples
    progress = book.handed_out / book.examples_total if started else 0.0
    ledger = book.ledgers[book.current]
    return RunProgress(
        state=run.state,
        job=run.plan.job,
        passes_total=run.plan.passes,
        pass_number=book.current,
        pass_share=ledger.done_examples / book.examples if started else 0.0,
        progress=progress,
        examples=tally.examples,
        examples_total=book.examples_total if started else 0,
        train_seconds=seconds,
        elapsed_seconds=run.elapsed_s,
        images_per_s=per_s,
        connections_per_s=per_s * run.plan.connections,
        updates=tally.updates,
        updates_per_s=tally.updates / seconds if seconds > 0 else 0.0,
        loss=recent_loss(run),
        train_top1=tally.recent_top1 if run.plan.metric is TOP_1 else None,
        evaluations=tuple(results),
        top1=results[-1].top1 if results else None,
        best_top1=None if best is None else best.top1,
        staleness_p50=tally.staleness_at(0.5),
        staleness_p99=tally.staleness_at(0.99),
        gradient_age_p50=tally.age_at(0.5),
        gradient_age_p99=tally.age_at(0.99),
        waiting_share=tally.waiting_share,
        eta_seconds=None if run.final_state or per_s <= 0 else left / per_s,
        duplicates=tally.duplicates,
        skipped=tally.skipped,
        step_waits=run.steps.waits,
        step_wait_seconds=run.steps.wait_s,
        steps_ahead_max=run.pace.lead_max,
        roles=(*roles, *worker_rows(run)),
        partitions=run.plan.partitions,
        computed=computed(run),
        replicas=_replica_rows(run),
        lobby=tuple(run.lobby.guests),
        batch=None if run.batch is None else run.batch.progress(),
        metric=run.plan.metric.name,
        larger_is_better=run.plan.metric.larger_is_better,
        metric_value=results[-1].value if results else None,
        best_metric_value=None if best is None else best.value,
        messages=tuple(messages),
        failure=run.cause if run.final_state in ("failed", "stopped") else "",
        result=run_result(run, role_counts, data_read_bytes) if run.final_state else None,
    )


def _best(results: Sequence[EvaluationResult]) -> EvaluationResult | None:
    index = best_of(results)
    return None if index is None else results[index]


def recent_loss(run: RunState) -> float | None:
    """Returns the mean training loss of the most recent ranges, or of the whole batch where there is one."""
    return run.tally.recent_loss if run.batch is None else run.batch.loss


def computed(run: RunState) -> Computed:
    """Returns, of each partition, the compute seconds and examples that workers have told, added up; none before."""
    partitions = run.plan.partitions
    rows = [told for worker in run.workers.values() if (told := computed_by(worker.status, partitions))]
    if not rows:
        return ()
    return tuple((round(sum(one[p][0] for one in rows), 6), sum(one[p][1] for one in rows)) for p in range(partitions))


def worker_rows(run: RunState) -> list[RoleRow]:
    """Returns a row for each worker of the run; where replicas have several partitions, for each member and spare."""
    if run.plan.partitions == 1:
        return [
            RoleRow(role="worker", node=key[0], state=_state(run, key), detail=f"{_examples(run, worker)} examples")
            for key, worker in run.workers.items()
        ]
    rows = []
    for group in run.groups.groups.values():
        lead = run.workers.get(group.lead.key)
        for member in group.members:
            detail = f"partition {member.partition} of replica {group.replica}"
            if member is group.lead and lead is not None:
                detail += f", {lead.examples} examples"
            state = _state(run, group.lead.key)
            rows.append(RoleRow(role="worker", node=member.told.node, state=state, detail=detail))
    state = "spare" if len(run.groups) >= run.plan.workers else "in the lobby"
    return rows + [RoleRow(role="worker", node=node, state=state) for node in run.lobby.guests]


def _state(run: RunState, key: WorkerKey) -> str:
    """Returns what a worker does, or the replica that it leads."""
    worker, evaluation = run.workers.get(key), run.desk.current
    if evaluation is not None and evaluation.worker == key:
        return "evaluating"
    if worker is not None and worker.starting:
        return "starting"
    if run.batch is not None:
        return "training" if run.batch.is_at_work(key) else "waiting"
    return "training" if run.work.out(key) else "waiting"


def _examples(run: RunState, worker: Worker) -> int:
    """Returns how many training examples a worker has processed: with a batch algorithm, those that it has told of."""
    if run.batch is None:
        return worker.examples
    told = computed_by(worker.status, run.plan.partitions)
    return told[0][1] if told else 0


def _replica_rows(run: RunState) -> tuple[ReplicaRow, ...]:
    rows = []
    for group in run.groups.groups.values():
        lead = run.workers.get(group.lead.key)
        rows.append(replica_row(group, _state(run, group.lead.key), {} if lead is None else lead.status, run.plan.cuts))
    return tuple(sorted(rows, key=lambda row: row.replica))


def lobby_text(run: RunState) -> str:
    """Returns, where replicas have several partitions, how many of them are there and who waits; "" without a wait."""
    here, partitions, missing = len(run.lobby), run.plan.partitions, run.plan.workers - len(run.groups)
    if not missing:
        spares = f"{here} spare worker{'s' * (here != 1)}"
        return f"all {run.plan.workers} replicas are complete; {spares}" if here else ""
    of = f"{min(here, partitions)} of {partitions} workers of a replica are there"
    return of if run.plan.workers == 1 else f"{of}, {len(run.groups)} of {run.plan.workers} replicas are complete"


def missing_text(run: RunState) -> str:
    """Returns what replicas of several partitions wait for, for people; "" if nothing is missing."""
    missing = run.ready and not run.final_state and len(run.groups) < run.plan.workers
    if run.plan.partitions == 1 or not missing:
        return ""
    advice = "" if run.plan.tended else " (start more with: adamctl worker start)"
    return f"waiting for workers{advice}: {lobby_text(run)}"


def no_worker_text(run: RunState) -> str:
    """Returns why a run fails that has been without any worker, or without any replica, for too long."""
    advice = "" if run.plan.tended else "; start one with: adamctl worker start"
    if run.plan.partitions == 1:
        return f"no worker for {run.plan.no_worker_s:g} s{advice}"
    last = f"; the last one was dissolved: {run.groups.last_cause}" if run.groups.last_cause else ""
    return f"no replica for {run.plan.no_worker_s:g} s: {lobby_text(run)}{last}{advice}"


def lost_parameters_text(run: RunState, gone: str) -> str:
    """Returns why a run without parameter servers fails when its replica is lost."""
    number = run.checkpoint_number
    left = f"go on from checkpoint {number} with --resume auto" if number else "no checkpoint was written yet"
    return f"{gone}, and the parameters with it, because cluster.ps = 0; {left}"


def run_result(run: RunState, role_counts: Mapping[str, int], data_read_bytes: int | None = None) -> dict[str, Any]:
    """Returns the object that `adamctl train --json` prints (docs: "Numbers programs read").

    `data_read_bytes` are those that data servers have read from files since they opened the data set, for all runs that
    share it, by a look at most a second before the end.

    `test_top1` and `best_test_top1` are None if evaluations were on the validation split; `top1` and `best_top1` are of
    the split in `evaluated_on` in both cases, and so are `metric_value` and `best_metric_value`. With another metric
    than top-1, all of top-1 are None.
    """
    tally, results, seconds = run.tally, run.desk.results, run.train_seconds
    top1 = results[-1].top1 if results else None
    best = _best(results)
    on_test = run.plan.evaluate_on == "test"
    per_s = tally.examples / seconds if seconds > 0 else 0.0
    return {
        "schema_version": SCHEMA_VERSION,
        "run": run.plan.job,
        "state": run.final_state,
        "passes": round(tally.examples / run.book.examples, 4) if run.book.examples > 1 else 0,
        "examples": tally.examples,
        "train_seconds": round(seconds, 6),
        "elapsed_seconds": round(run.elapsed_s, 6),
        "images_per_s": per_s,
        "connections_per_s": per_s * run.plan.connections,
        "evaluated_on": run.plan.evaluate_on,
        "test_top1": top1 if on_test else None,
        "best_test_top1": best.top1 if best is not None and on_test else None,
        "top1": top1,
        "best_top1": None if best is None else best.top1,
        "best": None if best is None else msgspec.to_builtins(best),
        "loss": recent_loss(run),
        "time_to": {name: round(at, 6) for name, at in time_to(results, run.plan.target).items()},
        "partitions": run.plan.partitions,
        "plan_hash": run.plan.plan_hash or None,
        "roles": dict(role_counts),
        "updates": tally.updates,
        "data_read_bytes": data_read_bytes,
        "staleness_p50": tally.staleness_at(0.5),
        "staleness_p99": tally.staleness_at(0.99),
        "gradient_age_p50": tally.age_at(0.5),
        "gradient_age_p99": tally.age_at(0.99),
        "waiting_share": tally.waiting_share,
        "duplicates": tally.duplicates,
        "skipped": tally.skipped,
        "evaluation_skipped": max((result.skipped for result in results), default=0),
        "consistency": "batch" if run.batch else "sync" if run.plan.in_step else "async",
        "max_staleness": run.plan.max_staleness,
        "step_waits": run.steps.waits,
        "step_wait_seconds": round(run.steps.wait_s, 6),
        "steps_ahead_max": run.pace.lead_max,
        "batch": None if run.batch is None else msgspec.to_builtins(run.batch.progress()),
        "metric": run.plan.metric.name,
        "larger_is_better": run.plan.metric.larger_is_better,
        "metric_value": results[-1].value if results else None,
        "best_metric_value": None if best is None else best.value,
    }
