"""What `adamctl plan` and `adamctl summary --partitions` print for people; fits a terminal of 80 columns."""

from __future__ import annotations

from typing import Any

from adamctl.cli.output import echo, table
from adamctl.live.units import size
from adamctl.model.partition.search import too_large


def show_summary(figures: dict[str, Any]) -> None:
    """Prints each partition's part of each stage, what each partition keeps and does, then what binds."""
    rows = []
    for stage in figures["stages"]:
        axis = stage["cut"].get("axis", "whole")
        for number, part in enumerate(stage["parts"]):
            name = stage["name"] if number == 0 else ""
            rows.append((name, str(part["partition"]), *_part(axis, part)))
    echo(f"\n{figures['partitions']} partitions; bytes are for one example\n")
    header = ("layer", "in", "outputs", "parameters", "sends up", "down", "cache")
    echo(table(header, rows, right=(1, 3, 4, 5)))
    echo()
    members = [_member(member) for member in figures["members"]]
    names = ("in", "parameters", "sends up", "down", "memory", "weights", "outputs", "edges")
    echo(table(names, members, right=tuple(range(len(names)))))
    echo()
    header_of_work = ("in", "compute", "examples/s", "partials", "push", "fetch", "link")
    work = [_work(member) for member in figures["members"]]
    echo(table(header_of_work, work, right=tuple(range(len(header_of_work)))))
    echo()
    limit = size(figures["memory_per_worker_bytes"])
    echo(f"memory with {figures['threads']} thread(s) and {figures['flights']} flights of {figures['batch']} examples; "
         f"a worker has {limit}")  # fmt: skip
    echo(
        f"a flight takes {_time(figures['flight_s'])} alone; one is finished every {_time(figures['interval_s'])}: "
        f"{_rate(figures['examples_per_s'])} examples/s"
    )
    echo(f"bound by: {figures['bound_by']}")


def show_plan(figures: dict[str, Any]) -> None:
    """Prints a row for each number of partitions and for as many replicas, the cuts found, and the winner."""
    rows = []
    for choice in figures["choices"]:
        for kind in ("replicas", "partitions") if choice["workers"] > 1 and not choice["problem"] else ("replicas",):
            rows.append((_named(choice["workers"], kind), *_priced(choice[kind])))
    header = ("workers as", "examples/s", "interval", "link", "memory", "bound by")
    echo(table(header, rows, right=(1, 2, 3, 4)))
    echo()
    for choice in figures["choices"]:
        if choice["problem"]:
            echo(f"not {choice['workers']} partitions: {choice['problem']}\n")
        elif choice["changed"]:
            _show_cuts(choice)
    _show_winner(figures)


def show_measured(measured: dict[str, Any]) -> None:
    """Prints what a run took beside what had been predicted, and cuts that would suit its partitions better."""
    count = measured["partitions"]
    whole = "whole replicas" if count == 1 else f"{count} partitions"
    echo(f"measured in {measured['run_folder']}")
    echo(f"  {whole}, batches of {measured['batch']}, {measured['examples']:,} examples")
    for partition, seconds in enumerate(measured["compute_s_per_example"]):
        name = "an example" if count == 1 else f"an example in {partition}"
        echo(f"  {name} takes {_time(seconds)} of one thread, {measured['times_predicted'][partition]:.2f} x predicted")
    echo()
    if measured["proposed"]:
        echo("cuts with which its partitions would take as long:\n\n[partition]")
        _show_table(measured["proposed"])


def refuse_what_does_not_fit(figures: dict[str, Any], what: str) -> None:
    """Ends the command if nothing of what was asked for fits the memory.

    Raises:
        ConfigurationError: it names the smallest number of partitions that fits.
    """
    if not (figures["fits"] if "fits" in figures else figures["winner"]):
        needed_bytes = figures["largest_memory_bytes"] if "fits" in figures else figures["least_memory_bytes"]
        raise too_large(what, figures["memory_per_worker_bytes"], needed_bytes, figures["smallest_that_fits"])


def _part(axis: str, part: dict[str, Any]) -> tuple[str, ...]:
    if part["outputs"] is None:
        return "nothing", "-", "-", "-", "-"
    outputs = "all" if axis == "whole" else "{} {}-{}".format(axis, *part["range"])
    parameters = f"{part['parameters']:,}" if part["parameters"] else "-"
    return outputs, parameters, _bytes(part["up_bytes"]), _bytes(part["down_bytes"]), part["cache"]


def _member(member: dict[str, Any]) -> tuple[str, ...]:
    memory = member["memory"]
    sent = (_bytes(member["up_bytes"]), _bytes(member["down_bytes"]))
    kept = (size(memory[name]) for name in ("parameters", "activations", "edges"))
    return str(member["partition"]), f"{member['parameters']:,}", *sent, size(member["memory_bytes"]), *kept


def _work(member: dict[str, Any]) -> tuple[str, ...]:
    sent = (member[name] for name in ("partial_gradient_bytes", "push_bytes", "fetch_bytes", "link_bytes_per_flight"))
    return str(member["partition"]), _time(member["compute_s"]), _rate(member["examples_per_s"]), *map(_bytes, sent)


def _priced(found: dict[str, Any]) -> tuple[str, ...]:
    memory = size(found["largest_memory_bytes"])
    sent = _bytes(found["link_bytes_per_flight"])
    binds = found["bound_by"] if found["fits"] else "does not fit"
    return _rate(found["examples_per_s"]), _time(found["interval_s"]), sent, memory, binds


def _show_cuts(choice: dict[str, Any]) -> None:
    """Prints the cuts that are better than the rules', to be put into an experiment."""
    echo(f"better cuts for {choice['workers']} partitions:\n\n[partition]")
    _show_table({name: choice["cuts"][name] for name in choice["changed"]})


def _show_table(cuts: dict[str, dict[str, Any]]) -> None:
    for name, cut in cuts.items():
        text = f"whole = {cut['whole']}" if "whole" in cut else f'axis = "{cut["axis"]}", at = {cut["at"]}'
        echo(f"{name} = {{ {text} }}")
    echo()


def _show_winner(figures: dict[str, Any]) -> None:
    winner = figures["winner"]
    if winner is None:
        return
    named = _named(winner["workers"], winner["as"])
    echo(f"fastest that fits {size(figures['memory_per_worker_bytes'])}: {named}, "
         f"{_rate(winner['examples_per_s'])} examples/s")  # fmt: skip


def _named(number: int, kind: str) -> str:
    return f"{number} {kind}" if number > 1 else f"1 {kind.removesuffix('s')}"


def _bytes(count: float) -> str:
    return size(count) if count else "-"


def _rate(per_s: float) -> str:
    return f"{per_s:,.1f}" if per_s < 100 else f"{per_s:,.0f}"


def _time(seconds: float) -> str:
    for unit, step in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= step:
            return f"{seconds / step:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"
