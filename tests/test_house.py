"""The house rules that nobody should have to remember: every source has its test, every document tells the truth."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

import msgspec
import pytest

import adamctl
from adamctl.cli.main import BUILT_IN_ROLES, COMMANDS
from adamctl.config.reference import page
from adamctl.wire import messages
from tests.documents import DOCUMENTS, blocks, spans, text_of
from tests.parsing import parsed

ROOT = Path(__file__).resolve().parent.parent
TESTS = ROOT / "tests"


# --- every source file has its test file ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Elsewhere:
    """Sources (patterns of folder/name as the tests' folders name them) that another test file covers, and why."""

    test: str
    sources: tuple[str, ...]
    reason: str


ELSEWHERE = (
    Elsewhere(
        "config/test_data_conflicts.py",
        ("config/data", "config/augment", "config/section"),
        "keys with hardly any code",
    ),
    Elsewhere(
        "roles/data/augment/test_drawing.py", ("roles/data/augment/chance",), "numbers that warps are drawn from"
    ),
    Elsewhere("roles/data/test_targets.py", ("roles/data/readers/targets",), "targets from files to batches"),
    Elsewhere("model/test_metric.py", ("model/tally",), "the sums that metrics are made of"),
    Elsewhere("kernels/layers/test_losses.py", ("kernels/layers/make",), "a table of losses"),
    Elsewhere("cli/test_commands.py", ("__main__", "cli/*"), "commands are thin and are tested by running them"),
    Elsewhere("optimizers/test_lbfgs.py", ("optimizers/quasi_newton",), "the iterations of L-BFGS and OWL-QN"),
    Elsewhere("model/custom/test_resolved.py", ("model/custom/interface",), "what classes say, as it is taken"),
    Elsewhere("cli/test_layer.py", ("cli/model/layer", "cli/model/init"), "commands are tested by running them"),
    Elsewhere("cli/test_errors.py", ("errors",), "what an error is for shows in messages and exit codes"),
    Elsewhere("api/test_fit.py", ("api/network", "api/optimizers"), "constructors that are used to fit"),
    Elsewhere("cli/test_finished_run.py", ("api/load",), "it needs a run that has finished"),
    Elsewhere("api/parameter_client/test_blocking.py", ("api/parameter_client/*",), "parts of one client"),
    Elsewhere("bench/data/test_data.py", ("bench/data/parts",), "a registry is tested by what runs it"),
    Elsewhere("bench/figures/test_figures.py", ("bench/figures/parts",), "a registry is tested by what runs it"),
    Elsewhere("bench/figures/test_picture.py", ("bench/figures/figure",), "what is drawn"),
    Elsewhere(
        "bench/net/test_net.py",
        ("bench/report", "bench/child", "bench/net/plain_sockets", "bench/net/tls_sides"),
        "a benchmark is tested by running it on little",
    ),
    Elsewhere(
        "bench/worker/test_worker.py",
        ("bench/worker/trainer", "bench/worker/torch_peer", "bench/plot"),
        "parts of one benchmark",
    ),
    Elsewhere(
        "e2e/test_partitions.py",
        tuple(f"roles/worker/partition/{one}" for one in ("member_session",)),
        "shells around flights, connections and clients: tested with real processes",
    ),
    Elsewhere(
        "model/scaling/test_simulation.py",
        ("model/scaling/cluster", "model/scaling/pushing"),
        "parts of one simulation",
    ),
    Elsewhere("model/scaling/test_speedup.py", ("model/scaling/distbelief",), "what is assumed, as its figure has it"),
    Elsewhere("kernels/test_native.py", ("kernels/native_function",), "calls are tested as parts of a function"),
    Elsewhere(
        "kernels/partition/test_member.py",
        ("kernels/partition/flight", "kernels/partition/head", "kernels/partition/steps"),
        "parts of a member, which are right when it computes what the whole network does",
    ),
    Elsewhere(
        "bench/partition/test_partition.py",
        ("bench/partition/program", "bench/partition/started"),
        "parts of one benchmark",
    ),
    Elsewhere("bench/hosts/test_hosts.py", ("bench/hosts/*",), "parts of one benchmark"),
    Elsewhere("bench/kernels/test_kernels.py", ("bench/kernels/*",), "parts of one benchmark"),
    Elsewhere(
        "bench/failover/test_failover.py",
        ("bench/failover/cluster",),
        "parts of one benchmark",
    ),
    Elsewhere("bench/soak/test_soak.py", ("bench/soak/cluster",), "parts of one benchmark"),
    Elsewhere("faults/test_controllers_killed.py", ("bench/soak/links",), "controllers are tested behind them, too"),
    Elsewhere("bench/ps/test_throughput.py", ("bench/ps/*", "bench/role_processes"), "parts of one benchmark"),
    Elsewhere("bench/test_peer.py", ("bench/peers/*",), "run by hand where the peer is installed"),
    Elsewhere("config/test_load.py", ("config/check", "config/conflicts"), "reached through what a file says"),
    Elsewhere("config/test_reference.py", ("config/reference_text",), "part of one page"),
    Elsewhere(
        "kernels/layer_check/test_check.py",
        ("kernels/layer_check/kept", "kernels/layer_check/runs"),
        "what the checks run, and the arrays that a layer keeps",
    ),
    Elsewhere("kernels/step/test_network.py", ("kernels/step/build",), "networks of every kind of layer are built"),
    Elsewhere("kernels/kernel_checks.py", ("kernels/array",), "the name of a type"),
    Elsewhere("kernels/numeric/test_commands.py", ("kernels/numeric/reference_commands",), "one of two"),
    Elsewhere("kernels/layers/test_maxpool2d.py", ("kernels/layers/pooling",), "what it shares with L2 pooling"),
    Elsewhere("kernels/kernel_checks.py", ("kernels/compiled/*",), "each operation's test runs all implementations"),
    Elsewhere("kernels/rules/test_rules.py", ("kernels/rules/*",), "all rules keep the same promises"),
    Elsewhere(
        "launch/test_front.py", ("launch/*", "roles/role_process"), "processes are started, watched and ended together"
    ),
    Elsewhere(
        "roles/host/test_server.py",
        ("roles/host/client", "roles/host/core/instructions", "launch/hosts/serving"),
        "agents and a front meet in one test",
    ),
    Elsewhere(
        "launch/hosts/test_keeper.py", ("launch/hosts/decisions", "launch/hosts/homes"), "what the keeper decides"
    ),
    Elsewhere("launch/hosts/test_controller_keeper.py", ("launch/hosts/seats",), "who has a place, and who waits"),
    Elsewhere("launch/hosts/test_host_roles.py", ("launch/hosts/beside",), "parts of its roles"),
    Elsewhere("live/test_view.py", ("live/*",), "what is shown is tested as it is shown"),
    Elsewhere("net/test_conformance.py", ("net/*",), "every transport passes the same specification"),
    Elsewhere("wire/test_codec.py", ("wire/constants", "wire/messages/*"), "numbers and structs, without logic"),
    Elsewhere(
        "roles/controller/conformance.py", ("wire/changes",), "a struct, as every configuration service fills it"
    ),
    Elsewhere("bench/data/test_serving.py", ("bench/data/serve", "bench/data/wire"), "both read from data servers"),
    Elsewhere("roles/test_driver.py", ("roles/context",), "what the driver gives a role"),
    Elsewhere("roles/test_registry.py", ("roles/*/role",), "a description of a role, without logic"),
    Elsewhere(
        "roles/controller/core/service/test_controller_core.py",
        ("roles/controller/core/*",),
        "parts of one state machine",
    ),
    Elsewhere(
        "roles/controller/conformance.py",
        ("roles/configuration", "roles/controller/testing/memory"),
        "the interface is a specification, and its twin in memory passes it",
    ),
    Elsewhere("roles/controller/etcd/test_client.py", ("roles/controller/etcd/status",), "parts of one client"),
    Elsewhere("roles/controller/test_store.py", ("roles/controller/log_format",), "tested byte by byte on disk"),
    Elsewhere("roles/coordinator/core/test_run_core.py", ("roles/coordinator/core/*",), "parts of one state machine"),
    Elsewhere("roles/coordinator/test_server.py", ("roles/coordinator/*",), "parts of one shell"),
    Elsewhere("roles/data/test_data_store.py", ("roles/data/sets/open_data_set",), "what the store opens"),
    Elsewhere("roles/data/client/test_data_client.py", ("roles/data/*",), "client and server meet in one test"),
    Elsewhere(
        "roles/data/readers/test_tar.py",
        ("roles/data/readers/tar_shards", "roles/data/readers/tar_files"),
        "parts of one source",
    ),
    Elsewhere("roles/data/readers/test_idx.py", ("roles/data/readers/source",), "the shape that all readers share"),
    Elsewhere(
        "roles/data/readers/test_parquet.py",
        ("roles/data/readers/parquet_file", "roles/data/readers/arrow_columns"),
        "files of each kind are read",
    ),
    Elsewhere("roles/ps/core/test_server_core.py", ("roles/ps/core/*",), "parts of one state machine"),
    Elsewhere(
        "roles/ps/replication/core/test_replication_core.py",
        ("roles/ps/replication/core/*",),
        "parts of one state machine",
    ),
    Elsewhere(
        "roles/ps/replication/test_shell.py",
        ("roles/ps/replication/membership", "roles/ps/replication/connections"),
        "parts of one shell",
    ),
    Elsewhere("roles/ps/client/test_envelope.py", ("roles/ps/client/push_set",), "what an envelope is cut from"),
    Elsewhere(
        "roles/ps/client/test_parameter_client.py",
        ("roles/ps/client/outcomes", "roles/ps/client/pull", "roles/ps/client/session"),
        "parts of the client",
    ),
    Elsewhere(
        "roles/ps/client/test_vector_client.py", ("roles/ps/client/bundle_push",), "workers and coordinator meet"
    ),
    Elsewhere(
        "roles/ps/test_server.py",
        ("roles/ps/status", "roles/ps/initial_values", "roles/ps/jobs/keeper"),
        "parts of the server",
    ),
    Elsewhere(
        "roles/ps/store/test_flusher.py",
        ("roles/ps/store/recovered_jobs", "roles/ps/store/log_index"),
        "what a server takes up again",
    ),
    Elsewhere("optimizers/test_lbfgs.py", ("optimizers/descent", "optimizers/pairs"), "what programs have in common"),
    Elsewhere("roles/worker/test_server.py", ("roles/worker/whole_replica",), "parts of one worker"),
)


def sources() -> Iterator[str]:
    """Yields folder/name of every module that holds something, as its test's folder names it."""
    for folder in ("adamctl", "roles", "kernels"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            inside = path.relative_to(ROOT / folder if folder == "adamctl" else ROOT).with_suffix("")
            if inside.name != "__init__" and not (folder == "adamctl" and inside.parts[0] in ("roles", "kernels")):
                yield inside.as_posix()


SOURCES = tuple(sources())


def is_mirrored(source: str) -> bool:
    folder, _, name = source.rpartition("/")
    short = folder.rpartition("/")[2]
    return any((TESTS / folder / f"{test}.py").exists() for test in (f"test_{name}", f"test_{short}_{name}"))


def test_every_source_file_has_its_test_file() -> None:
    patterns = [pattern for other in ELSEWHERE for pattern in other.sources]
    without = [
        f"{source}.py: write tests/{source.rpartition('/')[0]}/test_*.py, or say in ELSEWHERE what covers it"
        for source in SOURCES
        if not is_mirrored(source) and not any(fnmatch(source, pattern) for pattern in patterns)
    ]
    assert not without


@pytest.mark.parametrize("other", ELSEWHERE, ids=lambda other: other.test)
def test_what_is_tested_elsewhere_is_there_and_has_no_test_of_its_own(other: Elsewhere) -> None:
    assert (TESTS / other.test).is_file()
    for pattern in other.sources:
        left = [source for source in SOURCES if fnmatch(source, pattern) and not is_mirrored(source)]
        assert left, f"{pattern} is not needed any more"


def test_test_files_in_plain_folders_have_names_of_their_own() -> None:
    """pytest imports them by name alone where there is no __init__.py."""
    plain = [path.name for path in TESTS.rglob("test_*.py") if not (path.parent / "__init__.py").exists()]
    assert sorted(plain) == sorted(set(plain))


def tree_of(source: str) -> ast.Module:
    folder = ROOT if source.startswith(("roles/", "kernels/")) else ROOT / "adamctl"
    return parsed(folder / f"{source}.py")


def test_every_module_says_what_it_is() -> None:
    without = [f"{source}.py" for source in SOURCES if not ast.get_docstring(tree_of(source))]
    assert not without, "these have no docstring"


def test_every_message_says_what_it_is_for() -> None:
    found = [m for m in vars(messages).values() if isinstance(m, type) and issubclass(m, msgspec.Struct)]
    without = [f"{message.__module__}.{message.__name__}" for message in found if not message.__dict__.get("__doc__")]
    assert found and not without, "these have no docstring"


def test_what_cannot_be_decoded_is_caught_by_its_list() -> None:
    """An error of msgspec's caught by its name lets text through that is not UTF-8, which raises another."""
    wrong = []
    for source in SOURCES:
        for node in ast.walk(tree_of(source)):
            caught = "" if not isinstance(node, ast.ExceptHandler) or node.type is None else ast.unparse(node.type)
            if "msgspec" in caught:
                wrong.append(f"{source}.py: except {caught}: use adamctl.wire.unreadable.UNREADABLE")
    assert not wrong


# --- documents tell the truth -----------------------------------------------------------------------------------------

OURS = ("adamctl/", "roles/", "kernels/", "tests/", "examples/", "benchmarks/", "docs/", ".ci/")
PROGRAMS = {"adamctl", "pip", "python", "python3", "pytest", "ruff", "mypy", "git", "cd", "time", ".ci/run", "."}


def test_formats_are_written_down() -> None:
    found = {path.name for path in (ROOT / "docs" / "formats").glob("*.md")}
    assert {"wire.md", "checkpoint.md", "controller-store.md", "store.md"} <= found
    assert {"README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"} <= set(DOCUMENTS)
    assert (ROOT / "LICENSE").is_file()


def test_the_reference_is_what_the_types_say() -> None:
    assert text_of("docs/reference.md") == page(), "adamctl config reference > docs/reference.md"


def test_the_changelog_tells_of_the_present_version() -> None:
    version = tomllib.loads(text_of("pyproject.toml"))["project"]["version"]
    assert version == adamctl.__version__
    assert re.search(rf"^## {re.escape(version)}\b", text_of("CHANGELOG.md"), re.MULTILINE)


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md", "examples/by_hand.md"])
def test_every_command_block_begins_with_a_program_that_is_there(document: str) -> None:
    lines = blocks(document)
    assert lines
    for line in lines:
        for command in line.split("#")[0].split("&&"):
            program = command.split()[0].removeprefix(".venv/bin/")
            assert program in PROGRAMS, f"{document}: {command.strip()}"


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_subcommand_that_is_named_exists(document: str) -> None:
    for line in [*blocks(document), *spans(document)]:
        for name in re.findall(r"(?:^|[ /])adamctl ([a-z]\w*)(?= |$|\|)", line.split(" #")[0]):
            assert name in COMMANDS or name in BUILT_IN_ROLES, f"{document}: adamctl {name}"


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_file_of_ours_that_is_named_exists(document: str) -> None:
    """Full paths anywhere; the page that shows the house also names files by their last part."""
    words = [word.strip(".,;()'\"") for line in [*blocks(document), *spans(document)] for word in line.split()]
    for word in words:
        if not re.fullmatch(r"[\w./*-]+", word) or "//" in word:
            continue
        if word.startswith(OURS):
            assert list(ROOT.glob(word.rstrip("/"))), f"{document}: {word}"
        elif document == "ARCHITECTURE.md" and word.endswith((".py", "/")):
            short = word.rstrip("/")
            assert any(list(ROOT.glob(f"{top}/**/{short}")) for top in ("adamctl", "roles", "kernels")), word


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_link_within_the_project_leads_somewhere(document: str) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)", text_of(document)):
        if "://" not in target:
            assert ((ROOT / document).parent / target).exists(), f"{document}: {target}"


def test_no_path_of_one_machine_is_written_down() -> None:
    """Tests may name paths that nobody has; nothing else may name a folder of whoever wrote it."""
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, timeout=30)
    if listed.returncode:
        pytest.skip("not a git checkout")
    for name in filter(None, listed.stdout.decode().split("\0")):
        path = ROOT / name
        if name.startswith("tests/") or not path.is_file() or path.is_symlink():
            continue
        for number, line in enumerate(path.read_bytes().splitlines(), 1):
            found = re.search(rb"/(work|tmp|root|home|Users)/", line)
            assert not found, f"{name}:{number}: {line.decode(errors='replace').strip()}"


def test_every_decision_has_a_number_of_its_own() -> None:
    numbers = Counter(path.name.partition("-")[0] for path in (ROOT / "docs" / "decisions").glob("*.md"))
    assert [number for number, count in numbers.items() if count > 1] == []
