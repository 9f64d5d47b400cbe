"""What a pull and an image of a shard are made of, and when: while updates go on, and never of two versions."""

from __future__ import annotations

import math

import numpy as np

from adamctl.roles.ps.core.instructions import AnswerPull
from adamctl.roles.ps.core.shard import Image
from adamctl.wire.constants import ErrorCode, UpdateKind
from tests.roles.ps.core_harness import Harness


def pull_answer(h: Harness, token: str) -> AnswerPull:
    answer = h.answers[token][-1]
    assert isinstance(answer, AnswerPull)
    return answer


def test_a_pull_says_what_it_contains_and_sends_the_live_buffers_in_the_order_asked() -> None:
    h = Harness()
    h.push("p", [(0, 1, 1.0), (3, 1, 3.0)])
    h.push("q", [(0, 1, 1.0)], client=("v", 2))
    h.apply()
    h.pull("pull", [3, 0])
    answer = pull_answer(h, "pull")
    assert [(p.shard, p.code, p.pushes, p.sequence) for p in answer.message.parts] == [(3, 0, 1, 1), (0, 0, 2, 1)]
    assert [part.offset for part in answer.message.parts] == [0, 4 * h.layout.shards[3].size]
    assert answer.values[0].array is h.job.shards[3].values.array


def test_while_a_buffer_is_being_sent_updates_go_into_another_one() -> None:
    h = Harness()
    h.pull("pull", [0])
    sent = pull_answer(h, "pull").values[0]
    h.push("p", [(0, 1, 1.0)])
    assert not h.waiting[0].batches[0].in_place
    h.apply()
    assert set(sent.array.tolist()) == {0.0} and h.value(0) == 1.0
    sent.release()
    h.push("q", [(0, 2, 1.0)])
    assert h.waiting[0].batches[0].in_place
    h.apply()
    assert h.value(0) == 2.0
    assert h.job.shards[0].spare is sent.array  # kept for the next time


def test_a_pull_that_comes_during_an_update_in_place_waits_for_it() -> None:
    h = Harness()
    h.push("p", [(0, 1, 1.0)])
    h.pull("pull", [1, 0, 2])
    assert not h.answered("pull")
    h.push("q", [(0, 2, 1.0)])
    h.apply(1)
    assert h.answered("pull")
    assert [part.sequence for part in pull_answer(h, "pull").message.parts] == [0, 1, 0]
    assert not h.waiting[0].batches[0].in_place  # the next batch finds a reader


def test_a_pull_that_comes_during_an_update_beside_is_answered_at_once_with_the_version_before() -> None:
    h = Harness()
    h.pull("holder", [0])
    h.push("p", [(0, 1, 1.0)])
    h.pull("pull", [0])
    part = pull_answer(h, "pull").message.parts[0]
    assert (part.version, part.pushes, part.sequence) == (0, 0, 0)
    h.apply()
    assert [values.readers for values in pull_answer(h, "pull").values] == [2]


def test_a_refused_batch_leaves_the_buffer_and_the_version_alone() -> None:
    h = Harness()
    h.pull("holder", [0])
    before = h.job.shards[0].values
    h.push("p", [(0, 1, math.nan)])
    h.apply()
    assert h.job.shards[0].values is before and h.job.shards[0].counter == 0


def test_pulls_of_what_is_not_there_fail_part_by_part() -> None:
    h = Harness()
    h.pull("pull", [0, 12345, -1])
    codes = [part.code for part in pull_answer(h, "pull").message.parts]
    assert codes == [0, ErrorCode.UNKNOWN_SHARD, ErrorCode.UNKNOWN_SHARD]


# --- images, attaching ------------------------------------------------------------------------------------------------


def test_an_image_is_one_version_of_values_state_and_memory_while_updates_go_on() -> None:
    h = Harness("momentum")
    h.push("p", [(0, 1, 1.0)], kind=UpdateKind.GRADIENT)
    images: list[Image] = []
    assert h.core.image(h.job.shards[0], images.append) is None  # it waits for the batch that is being applied
    h.apply()
    (image,) = images
    values, state = image.values.array.copy(), image.state.arrays[0].copy()
    for sequence in (2, 3):
        h.push(sequence, [(0, sequence, 1.0)], kind=UpdateKind.GRADIENT)
        h.apply()
    np.testing.assert_array_equal(image.values.array, values)
    np.testing.assert_array_equal(image.state.arrays[0], state)
    assert (image.counter, image.pushes, image.memory.clients[0].sequence) == (1, 1, 1)
    assert not np.array_equal(h.job.shards[0].state.arrays[0], state)


def test_an_image_of_an_idle_shard_is_there_at_once_and_later_batches_give_none() -> None:
    h = Harness()
    images: list[Image] = []
    image = h.core.image(h.job.shards[0], images.append)
    assert image is not None and image.counter == 0
    h.push("p", [(0, 1, 1.0)])
    h.apply()
    assert images == [] and h.value(0) == 1.0 and image.values.array.max() == 0.0


def test_each_taker_is_given_one_image_of_its_own_when_the_batch_is_done() -> None:
    h = Harness()
    h.push("p", [(0, 1, 1.0)])
    first: list[Image] = []
    second: list[Image] = []
    for images in (first, second):
        assert h.core.image(h.job.shards[0], images.append) is None
    for sequence in (2, 3):
        h.push(sequence, [(0, sequence, 1.0)])
    h.apply()
    assert [image.counter for image in (*first, *second)] == [1, 1]
    assert first[0].values.readers == 2
    for image in (*first, *second):
        image.release()
    assert first[0].values.readers == 0
