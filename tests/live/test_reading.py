"""What this machine says of processes, as texts."""

from adamctl.live.reading import ProcessReading, cpu_text, memory_text, total


def test_what_processes_use_together() -> None:
    assert total([]) is None
    found = total([ProcessReading(0.5, 1 << 20), ProcessReading(1.25, 3 << 20)], "worker")
    assert found == ProcessReading(1.75, 4 << 20, "worker")
    assert (cpu_text(found), memory_text(found)) == ("175%", "4.0 MiB")


def test_what_is_not_known_has_a_dash() -> None:
    assert (cpu_text(None), memory_text(None)) == ("-", "-")
