"""Traces: every verified round, and nothing that a request would notice."""

from __future__ import annotations

import errno
import logging
from itertools import pairwise

import pytest
from tests import fake
from tests.engine.wayward import wayward
from tests.fake import FakeBackbone, Script, Slip, encode

from recguide.core import ParameterError, SamplingParams
from recguide.engine.engine import Engine, EngineConfig
from recguide.guidance.records import Rounds
from recguide.guidance.trace_file import MalformedTrace, TraceWriter, read_trace

PROMPT = tuple(encode("Say it: "))
ANSWER = tuple(encode("the quick brown fox jumps over the lazy dog, and then it naps in the warm sun. " * 3))
SCRIPT = Script(
    PROMPT, ANSWER, {at: Slip(second_right=at % 2 == 0, third_right=at % 3 == 0) for at in range(12, 150, 5)}
)


def traced(tmp_path, **config):
    file = tmp_path / "traces" / "rounds.zst"
    return Engine(FakeBackbone(SCRIPT), fake.decode, EngineConfig(trace=file, **config)), file


def test_every_round_of_every_method_is_recorded(tmp_path):
    machine, file = traced(tmp_path)
    wayward(machine, 4)
    methods = (
        {},
        {"method": "linear", "block_size": 8},
        {"method": "tidar", "block_size": 4},
        {"method": "ar"},
    )
    requests = [machine.add(PROMPT, SamplingParams(max_tokens=140, **method))[0] for method in methods]
    fake.run(machine)
    machine.close()
    header, records = read_trace(file)
    assert (header["policy"], header["batching"]) == ("price", "ragged")
    assert {"model", "device", "versions", "settings"} <= set(header["conditions"])
    for request in requests:
        mine = [record for record in records if record.prompt == str(request.arrival)]
        stats = request.stats
        assert sum(record.acceptance for record in mine) == stats.untrimmed
        assert [record.position for record in mine] == sorted({record.position for record in mine})
        assert sum(record.verified > 1 for record in mine) == sum(n for b, n in stats.blocks.items() if b > 1)
        for record, following in pairwise(mine):
            assert following.position == record.position + record.acceptance
            assert following.previous == record.verified
            assert len(record.margins) == len(record.likely) == len(record.candidates) == record.block - 1
            assert all(0 <= m <= p1 <= 1 for m, p1 in zip(record.margins, record.likely, strict=True))
            assert (record.drafted_by == "") == (record.block == 1)
            assert len(record.entropies) == min(record.acceptance, max(1, record.verified - 1))
            assert record.forward_ms > 0
            if record.reused >= 0:
                assert following.drafted_by in ("continuation", "correction", "any")
                assert following.block == record.branches[record.reused][2]
    planned = [record for record in records if record.prompt == "0"]
    assert {record.price for record in planned} == {0.25}
    assert {record.head for record in planned} == {-1, 0, 1}
    assert {record.rank for record in planned} == {0, 1, 2}
    tried = {branch[1] for record in planned for branch in record.branches}
    assert tried == {0, 1, 2}
    for record in planned:
        if record.reused >= 0 and record.verified > 1:
            assert record.branches[record.reused][1] == record.rank
    assert len(Rounds.of(records)) == len(records)


def test_a_trace_can_be_read_while_its_engine_goes_on(tmp_path):
    """All of it, however much is still open."""
    machine, file = traced(tmp_path)
    read = []
    for number in range(6):
        fake.complete(machine, [PROMPT], SamplingParams(max_tokens=90, method="ar"))
        read = read_trace(file)[1]
        assert len(read) == 89 * (number + 1)
    machine.close()
    assert read_trace(file)[1] == read


def test_a_trace_that_broke_off_is_read_as_far_as_it_goes(tmp_path):
    machine, file = traced(tmp_path)
    fake.complete(machine, [PROMPT], SamplingParams(max_tokens=60, method="ar"))
    whole = read_trace(file)[1]
    content = file.read_bytes()
    machine.close()
    for length in range(len(content) - 1, len(content) // 2, -7):
        file.write_bytes(content[:length])
        found = read_trace(file)[1]
        assert found == whole[: len(found)]
    assert len(found) < len(whole)


def test_warm_up_is_none_of_it(tmp_path):
    machine, file = traced(tmp_path)
    with machine.untraced():
        fake.complete(machine, [PROMPT], SamplingParams(max_tokens=30))
    fake.complete(machine, [PROMPT], SamplingParams(max_tokens=20))
    machine.close()
    assert {record.prompt for record in read_trace(file)[1]} == {"1"}


def test_a_full_disk_ends_the_trace_and_no_request(tmp_path, monkeypatch, caplog):
    machine, file = traced(tmp_path)
    added = []

    def full(_, record):
        added.append(record)
        if len(added) > 3:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(TraceWriter, "add", full)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            (completion,) = fake.complete(machine, [PROMPT], SamplingParams(max_tokens=60))
            assert completion.text == fake.decode(ANSWER[:60])
    warnings = [record.message for record in caplog.records if "trace" in record.message]
    assert len(warnings) == 1
    assert str(file) in warnings[0]
    assert "No space left" in warnings[0]
    machine.close()


def test_a_file_that_cannot_be_begun_is_refused(tmp_path):
    (tmp_path / "traces").write_text("a file where a folder should be")
    with pytest.raises(ParameterError, match="trace"):
        traced(tmp_path)


def test_a_damaged_trace_is_refused_by_name(tmp_path):
    machine, file = traced(tmp_path)
    fake.complete(machine, [PROMPT], SamplingParams(max_tokens=60))
    file.write_bytes(file.read_bytes()[:-3] + b"\xff\xff\xff")
    with pytest.raises(MalformedTrace, match="rounds"):
        read_trace(file)
