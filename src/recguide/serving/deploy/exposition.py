"""Prometheus metrics of several replicas as one page: every sample says whose it is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

LABEL = "replica"


class Merged(Collector):
    """Collects pages that were fetched before.

    Args:
        pages: replica → its page in Prometheus' text format.
    """

    def __init__(self, pages: Mapping[str, str]) -> None:
        self._pages = pages

    def collect(self) -> Iterable[Metric]:
        found: dict[str, Metric] = {}
        for replica, page in self._pages.items():
            for family in text_string_to_metric_families(page):
                merged = found.setdefault(
                    family.name, Metric(family.name, family.documentation, family.type, family.unit)
                )
                for sample in family.samples:
                    labels = {**sample.labels, LABEL: replica}
                    merged.add_sample(sample.name, labels, sample.value, sample.timestamp, sample.exemplar)
        return found.values()


def merged(pages: Mapping[str, str]) -> CollectorRegistry:
    """A registry of all pages' samples, each with the label `replica`."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Merged(pages))
    return registry
