"""Every metric there is: its name, what it means, and where in a role's STATUS it stands (pure).

Names follow Prometheus: base units, `_total` for what only grows. Labels are `job`, `role` and `node`; never a shard,
whose number grows with the model. `code` and `state` are from short lists, `metric` is one name for each job.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

Kind: TypeAlias = Literal["counter", "gauge"]
Where: TypeAlias = Literal["node", "run", "jobs", "cluster"]
"""Whose status a metric is read from: a node's, that of a role whose status names one job, one of the node's jobs, or
the configuration."""


@dataclass(frozen=True)
class Metric:
    """One metric.

    Attributes:
        name: as it is shown, `_total` included.
        help: one line.
        where: see `Where`.
        path: keys that lead to the number; for `jobs` inside the job's status.
        roles: whose STATUS has it; empty: everybody's.
        by: a label more; the path then leads to label -> number.
    """

    name: str
    help: str
    where: Where = "node"
    path: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()
    by: str = ""

    @property
    def kind(self) -> Kind:
        return "counter" if self.name.endswith("_total") else "gauge"

    @property
    def labels(self) -> tuple[str, ...]:
        own = {"cluster": ("job",), "run": ("job", "role", "node"), "jobs": ("job", "role", "node")}
        found = own.get(self.where, ("role", "node"))
        return (*_CLUSTER_LABELS.get(self.name, found), *((self.by,) if self.by else ()))


_CLUSTER_LABELS: Final[dict[str, tuple[str, ...]]] = {
    "adamctl_cluster_nodes": ("role",),
    "adamctl_configuration_age_seconds": (),
    "adamctl_scrape_seconds": (),
    "adamctl_scrape_unanswered_nodes": (),
}


def _quota(name: str, unit: str, text: str, key: str) -> tuple[Metric, Metric]:
    shown = f"adamctl_{name}_{unit}" if unit else f"adamctl_{name}"
    limit = f"adamctl_{name}_limit_{unit}" if unit else f"adamctl_{name}_limit"
    limited = f"As much as there may be of adamctl_{name}{'_' + unit if unit else ''}."
    return Metric(shown, text, path=("network", key)), Metric(limit, limited, path=("network", f"{key}_max"))


def _ps(name: str, text: str, *path: str) -> Metric:
    return Metric(f"adamctl_{name}", text, path=path, roles=("ps",))


def _ps_job(name: str, text: str, *path: str, by: str = "") -> Metric:
    return Metric(f"adamctl_{name}", text, "jobs", path, ("ps",), by)


def _data(name: str, text: str, *path: str) -> Metric:
    return Metric(f"adamctl_data_{name}", text, path=path, roles=("data",))


def _worker(name: str, text: str, *path: str) -> Metric:
    return Metric(f"adamctl_worker_{name}", text, "run", path, ("worker",))


def _run(name: str, text: str, *path: str) -> Metric:
    return Metric(f"adamctl_{name}", text, "run", path, ("coordinator",))


def _controller(name: str, text: str, *path: str) -> Metric:
    return Metric(f"adamctl_{name}", text, path=path, roles=("controller",))


EVERY_ROLE: Final = (
    Metric("adamctl_node_up", "1 if a registered node answered, 0 if it did not in time."),
    Metric("adamctl_node_restarts_total", "How often a node came back as a new process while it was watched."),
    Metric("adamctl_node_ready", "1 if the node is a member of its cluster.", path=("ready",)),
    Metric("adamctl_node_uptime_seconds", "Since the node began to serve.", path=("uptime_s",)),
    Metric("adamctl_lease_valid", "1 while the node may consider itself a member.", path=("lease", "valid")),
    Metric("adamctl_lease_left_seconds", "For how long its lease still holds.", path=("lease", "left_s")),
    Metric(
        "adamctl_certificate_left_seconds",
        "Until the node's certificate expires.",
        path=("certificate", "seconds_left"),
    ),
    Metric("adamctl_process_cpu_seconds_total", "Processor time of the process.", path=("process", "cpu_s")),
    Metric(
        "adamctl_process_resident_memory_bytes", "Memory of the process in RAM.", path=("process", "resident_bytes")
    ),
    Metric("adamctl_process_threads", "Threads that Python knows.", path=("process", "threads")),
    Metric("adamctl_received_bytes_total", "That came to the node.", path=("network", "received_bytes")),
    Metric("adamctl_sent_bytes_total", "That the node sent back.", path=("network", "sent_bytes")),
    Metric(
        "adamctl_refusals_total", "Requests and handshakes refused, by code.", path=("network", "refusals"), by="code"
    ),
    *_quota("connections", "", "Connections that have said HELLO.", "connections"),
    *_quota("request_memory", "bytes", "Buffers that hold bodies of requests.", "request_bytes"),
    *_quota("reply_memory", "bytes", "Answers that peers have not taken yet.", "reply_bytes"),
    *_quota("mapped_memory", "bytes", "Memory of clients that is mapped.", "region_bytes"),
)

PARAMETER_SERVERS: Final = (
    _ps_job("updates_total", "Parameter updates that a server applied (Adam 4.3.2).", "updates"),
    _ps_job("pushes_total", "Pushes that a server applied.", "pushes"),
    _ps_job("shard_refusals_total", "Pushes to a shard refused after they were queued.", "refusals", by="code"),
    _ps_job("rolled_back_pushes_total", "Acknowledged shard pushes that a restart lost.", "rolled_back", "pushes"),
    _ps_job("staleness_p50_pushes", "Median staleness of the pushes so far, in pushes of others.", "staleness_p50"),
    _ps_job("staleness_p99_pushes", "99% of the pushes so far were no staler.", "staleness_p99"),
    _ps_job("served_buckets", "Buckets that the server is primary of and serves.", "buckets"),
    _ps_job("parameter_bytes", "Values, state of the rule and scratch of buckets that it serves.", "bytes"),
    _ps("queued_updates", "Shard updates that wait to be applied.", "queued_updates"),
    _ps("queued_update_bytes", "Bytes of them.", "queued_bytes"),
    _ps("parameter_memory_bytes", "Held for all jobs, with copies and what is being built.", "held_bytes"),
    _ps("parameter_memory_limit_bytes", "As much as there may be (--memory).", "bytes_max"),
    _ps("background_failures_total", "Activities of a server that failed.", "background_failures"),
    _ps("replication_sent_bytes_total", "Shard states sent to other copies.", "replication", "bytes"),
    _ps("store_loss_window_seconds", "Age of the oldest update that is not on disk.", "store", "loss_window_s"),
    _ps("store_loss_window_limit_seconds", "The age allowed.", "store", "loss_window_s_max"),
    _ps("store_unsaved_bytes", "Updates that are not on disk.", "store", "loss_window_bytes"),
    _ps("store_unsaved_limit_bytes", "As much as there may be.", "store", "loss_window_bytes_max"),
    _ps("store_file_bytes", "Length of the store's file.", "store", "file_bytes"),
    _ps("store_written_bytes_total", "Records written to the store.", "store", "record_bytes"),
    _ps("store_held_back_pushes", "Pushes not acknowledged as the disk is behind.", "store", "pushes_held_back"),
    _ps("store_degraded", "1 while the store cannot write, for example as the disk is full.", "store", "degraded"),
    _ps_job("primary_buckets", "Buckets that the server is primary of.", "replication", "primary"),
    _ps_job("copy_buckets", "Buckets of which the server holds a copy in sync.", "replication", "secondary"),
    _ps_job("learner_buckets", "Buckets of which the server is receiving a copy.", "replication", "learner"),
    _ps_job(
        "replication_waiting_shards",
        "Shards that copies of its buckets lack.",
        "replication",
        "shards_waiting",
    ),
)

OTHER_ROLES: Final = (
    _data("examples_total", "Examples asked for.", "examples"),
    _data("reads_total", "Ranges asked for.", "reads"),
    _data("reads_ready_total", "Ranges that were ready when they were asked for.", "reads_ready"),
    _data("reads_refused_total", "Ranges refused as too much was asked for at once.", "reads_refused"),
    _data("wait_seconds_total", "Time that ranges were waited for.", "wait_s"),
    _data("read_bytes_total", "Read from files.", "read_bytes"),
    _data("skipped_examples_total", "Damaged examples that are left out.", "skipped"),
    _data("cache_bytes", "Decoded examples in memory.", "cache_bytes"),
    _data("ahead_bytes", "Ranges prepared ahead of need.", "ahead_bytes"),
    _worker("batches_total", "Batches that the worker computed.", "batches"),
    _worker("pushes_total", "Pushes that it sent.", "pushes"),
    _worker("compute_seconds_total", "Time that its threads computed.", "compute_s"),
    _worker("wait_seconds_total", "Time that its threads waited for data.", "wait_s"),
    _worker("step_wait_seconds_total", "Time that its threads waited for other replicas.", "step_wait_s"),
    _run("examples_total", "Examples trained on; one that was trained on twice counts once.", "examples"),
    _run("run_updates_total", "Parameter updates pushed by the run's workers.", "updates"),
    _run("run_train_seconds_total", "Time during which a worker had something to train on.", "train_seconds"),
    _run("run_step_wait_seconds_total", "Time that replicas waited for others before a step.", "step_wait_seconds"),
    _run("run_duplicate_examples_total", "Examples trained on twice as a worker was lost.", "duplicates"),
    _run("run_skipped_examples_total", "Damaged training examples left out.", "skipped"),
    _run("run_progress_ratio", "Share of the run's examples that is handed out.", "progress"),
    _run("run_bundles", "Bundles done of a batch algorithm's present evaluation.", "batch", "bundles"),
    _run("run_loss", "Mean training loss of the latest ranges.", "loss"),
    _run("run_top1_ratio", "Latest evaluation.", "top1"),
    Metric(
        "adamctl_run_metric_value",
        "Latest evaluation, by what the model is judged by, such as top-1 or rmse.",
        "run",
        ("metric_value",),
        ("coordinator",),
        "metric",
    ),
    _run("run_waiting_ratio", "Share of the compute threads' time spent waiting for data, so far.", "waiting_share"),
    _run("run_remaining_seconds", "Training time left, as estimated.", "eta_seconds"),
    _run("checkpoint_age_seconds", "Since the last checkpoint, or since the coordinator began.", "checkpoint_age_s"),
    _run("checkpoints_total", "Checkpoints written.", "checkpoints"),
    _run("checkpoint_failures_total", "Checkpoints that could not be written.", "checkpoints_failed"),
    Metric("adamctl_run_state", "1 for the state the run is in.", "run", ("state",), ("coordinator",), "state"),
    _controller("controller_leads", "1 for the controller that leads.", "state"),
    _controller("controller_decisions", "Decisions that the controller knows.", "slot"),
    _controller("controller_watchers", "Requests that wait for changes.", "watchers"),
    _controller("configuration_bytes", "Size of the configuration.", "configuration_bytes"),
)

CLUSTER: Final = (
    Metric("adamctl_cluster_nodes", "Registered nodes, by role.", "cluster"),
    Metric("adamctl_job_buckets", "Buckets of a job.", "cluster"),
    Metric("adamctl_job_buckets_without_primary", "Buckets whose primary is not registered.", "cluster"),
    Metric("adamctl_job_buckets_short_of_copies", "Buckets with fewer copies in sync than the job wants.", "cluster"),
    Metric("adamctl_job_copies", "Copies of each bucket that the job wants.", "cluster"),
    Metric("adamctl_job_copies_in_sync", "Copies in sync of the bucket that has the fewest.", "cluster"),
    Metric("adamctl_configuration_age_seconds", "Since the configuration service was last heard.", "cluster"),
    Metric("adamctl_scrape_seconds", "How long reading the cluster took.", "cluster"),
    Metric("adamctl_scrape_unanswered_nodes", "Nodes that did not answer in time.", "cluster"),
)

METRICS: Final[tuple[Metric, ...]] = (*EVERY_ROLE, *PARAMETER_SERVERS, *OTHER_ROLES, *CLUSTER)


def table() -> str:
    """Returns the metrics as a table in Markdown, for the documents."""
    rows = [f"| `{one.name}` | {', '.join(one.labels) or '-'} | {one.help} |" for one in METRICS]
    return "\n".join(["| metric | labels | |", "| --- | --- | --- |", *rows])
