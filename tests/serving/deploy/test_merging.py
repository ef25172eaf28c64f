"""Several engines watched as one, and their metrics on one page."""

from __future__ import annotations

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from recguide.engine.reports import RoundReport, StepReport
from recguide.serving.deploy.exposition import merged
from recguide.serving.deploy.fleet import Fleet
from recguide.serving.metrics import Metrics


def report(at=1.0, *, running=1, waiting=0, emitted=4, price=0.5, request=0):
    return StepReport(
        at=at,
        step_ms=5.0,
        prefill=0,
        draft=0,
        verify=1,
        query_tokens=16,
        prefix_tokens=100,
        emitted=emitted,
        running=running,
        waiting=waiting,
        pages_used=3,
        pages_cached=1,
        pages=10,
        preempted=0,
        price=price,
        rate=2.0,
        queued_s=(),
        rounds=(RoundReport(request, 16, 16, 4, emitted, "draft", (), None, None, False),),
    )


def test_a_step_of_one_engine_tells_the_state_of_all():
    fleet = Fleet()
    fleet.step("a", report(running=3, waiting=2, price=0.2))
    step = fleet.step("b", report(running=1, price=0.6))
    assert (step.running, step.waiting, step.pages_used, step.pages) == (4, 2, 6, 20)
    assert step.price == (3 * 0.2 + 0.6) / 4
    assert (step.emitted, step.query_tokens) == (4, 16)
    fleet.keep(["b"])
    assert fleet.step("b", report(running=1)).running == 1


def test_requests_of_different_engines_are_told_apart():
    fleet = Fleet()
    numbers = {
        fleet.step(engine, report(request=request)).rounds[0].request
        for engine in ("a", "b")
        for request in (0, 1)
    }
    assert len(numbers) == 4
    again = fleet.step("a", report(request=1)).rounds[0].request
    assert again in numbers


def page(count):
    metrics = Metrics()
    for _ in range(count):
        metrics.observe(report())
        metrics.finished("stop", 0.5)
    return generate_latest(metrics.registry).decode()


def samples(text, name):
    found = (sample for family in text_string_to_metric_families(text) for sample in family.samples)
    return {
        (sample.labels["replica"], sample.labels.get("le")): sample.value
        for sample in found
        if sample.name == name
    }


def test_every_sample_says_whose_it_is():
    text = generate_latest(merged({"one": page(2), "two": page(5)})).decode()
    assert samples(text, "recguide:emitted_tokens_total") == {("one", None): 8, ("two", None): 20}
    buckets = samples(text, "recguide:step_seconds_bucket")
    assert buckets[("two", "+Inf")] == 5
    assert text.count("# TYPE recguide:step_seconds histogram") == 1
