"""Ray Serve's choice of a replica: one that knows the beginning of the prompt and has not too much to do."""

# pyright: reportMissingImports=false, reportUntypedBaseClass=false, reportUnknownParameterType=false
# Ray is an extra; without it, what it gives is not known.
from __future__ import annotations

from typing import Any

from ray.serve.request_router import (
    PendingRequest,
    ReplicaID,
    ReplicaResult,
    RequestRouter,
    RunningReplica,
)

from recguide.serving.deploy.calls import Call
from recguide.serving.deploy.prefixes import PrefixMap, ranked


class PrefixRouter(RequestRouter):
    """Lives where requests come from; several of them learn on their own."""

    def __init__(self, *arguments: Any, **options: Any) -> None:  # noqa: ANN401  Ray Serve's own
        super().__init__(*arguments, **options)
        self._seen = PrefixMap()

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        super().update_replicas(replicas)
        self._seen.keep({replica.replica_id.unique_id for replica in replicas})

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        if pending_request is not None:
            pending_request.routing_context.should_backoff = True  # all there are have been offered
        named = {replica.replica_id.unique_id: replica for replica in candidate_replicas}
        loads = {name: self._load(replica.replica_id) for name, replica in named.items()}
        order = ranked(self._seen, _blocks(pending_request), loads)
        return [[named[name] for name in group] for group in order]

    def on_request_routed(
        self, pending_request: PendingRequest, replica_id: ReplicaID, result: ReplicaResult
    ) -> None:
        del result
        self._seen.sent(_blocks(pending_request), replica_id.unique_id)

    def _load(self, replica: ReplicaID) -> int:
        """Requests that it is answering, as far as is known here."""
        return self.replica_queue_len_cache.get(replica) or 0


def _blocks(request: PendingRequest | None) -> tuple[int, ...]:
    call = request.args[0] if request is not None and request.args else None
    return call.blocks if isinstance(call, Call) else ()
