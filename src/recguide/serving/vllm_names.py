"""The same metrics under the names, and with the labels, that dashboards made for vLLM ask for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.registry import Collector

NAMES: Mapping[str, str] = {
    "recguide:running_requests": "vllm:num_requests_running",
    "recguide:waiting_requests": "vllm:num_requests_waiting",
    "recguide:kv_used_ratio": "vllm:kv_cache_usage_perc",
    "recguide:prefix_cache_queries": "vllm:prefix_cache_queries",
    "recguide:prefix_cache_hits": "vllm:prefix_cache_hits",
    "recguide:preemptions": "vllm:num_preemptions",
    "recguide:prompt_tokens": "vllm:prompt_tokens",
    "recguide:emitted_tokens": "vllm:generation_tokens",
    "recguide:requests": "vllm:request_success",
    "recguide:step_query_tokens": "vllm:iteration_tokens_total",
    "recguide:request_prompt_tokens": "vllm:request_prompt_tokens",
    "recguide:request_generation_tokens": "vllm:request_generation_tokens",
    "recguide:request_queue_time_seconds": "vllm:request_queue_time_seconds",
    "recguide:time_to_first_token_seconds": "vllm:time_to_first_token_seconds",
    "recguide:inter_token_latency_seconds": "vllm:inter_token_latency_seconds",
    "recguide:request_time_per_output_token_seconds": "vllm:request_time_per_output_token_seconds",
    "recguide:e2e_request_latency_seconds": "vllm:e2e_request_latency_seconds",
    "recguide:drafts": "vllm:spec_decode_num_drafts",
    "recguide:draft_tokens": "vllm:spec_decode_num_draft_tokens",
    "recguide:accepted_tokens": "vllm:spec_decode_num_accepted_tokens",
    "recguide:accepted_position": "vllm:spec_decode_num_accepted_tokens_per_pos",
}
LABELS: Mapping[str, str] = {"outcome": "finished_reason"}
"""Labels that have another name there."""


class VllmNames(Collector):
    """Reads the metrics of a registry whenever someone scrapes; nothing is counted twice.

    Args:
        source: where the metrics are kept.
        model: the served model's name, which vLLM's dashboards select by.
    """

    def __init__(self, source: CollectorRegistry, model: str) -> None:
        self._source = source
        self._labels = {"model_name": model, "engine": "0"}

    def collect(self) -> Iterable[Metric]:
        for family in self._source.collect():
            name = NAMES.get(family.name)
            if name is not None:
                yield self._renamed(family, name)

    def _renamed(self, family: Metric, name: str) -> Metric:
        renamed = Metric(name, family.documentation, family.type)
        renamed.samples = [
            sample._replace(
                name=name + sample.name.removeprefix(family.name),
                labels={
                    **self._labels,
                    **{LABELS.get(label, label): value for label, value in sample.labels.items()},
                },
            )
            for sample in family.samples
        ]
        return renamed


def both(source: CollectorRegistry, model: str) -> CollectorRegistry:
    """A registry that answers with the metrics of `source` under its own names and under vLLM's."""
    registry = CollectorRegistry()
    registry.register(_All(source))
    registry.register(VllmNames(source, model))
    return registry


class _All(Collector):
    def __init__(self, source: CollectorRegistry) -> None:
        self._source = source

    def collect(self) -> Iterable[Metric]:
        return self._source.collect()
