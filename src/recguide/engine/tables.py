"""Which policy plans, and what policies go by: tables named, tables found in the user's cache, or priors."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import torch

from recguide.core import MAX_BLOCK, ParameterError, SamplingParams
from recguide.engine.config import BLOCK_SIZE, EngineConfig
from recguide.engine.runner import Runner
from recguide.guidance import cost, value
from recguide.guidance.assumed import assumed_cost
from recguide.guidance.clock import Clock
from recguide.guidance.conditions import Conditions, Setting
from recguide.guidance.policy import Policy, check_policy, policy_named
from recguide.guidance.value import ValueTable
from recguide.speculation.methods import RECGUIDE, Method

_LOG = logging.getLogger(__name__)

FIRST_GUESS = 8
"""Block that room is made for before a policy has planned any."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Which model an engine runs, as tables name it; one without a fingerprint finds no table."""

    model: str = ""
    fingerprint: str = ""


def conditions_of(runner: Runner, identity: Identity, *, exact: bool) -> Conditions:
    """What a cost table holds for that this engine can use."""
    shape = runner.backbone.kv_shape
    settings: dict[str, Setting] = {
        "dtype": str(shape.dtype).removeprefix("torch."),
        "graphs": runner.has_graphs,
        "exact": exact,
        "page_size": runner.pool.page_size,
    }
    if shape.device.type == "cpu":
        settings["threads"] = torch.get_num_threads()
    return Conditions.here(identity.model, identity.fingerprint, shape.device, settings)


class Policies:
    """Which policy plans for a request, if any does; each is made when it is first asked for.

    Raises ParameterError for a named table that does not hold here.
    """

    def __init__(self, config: EngineConfig, runner: Runner, identity: Identity) -> None:
        self._config, self._runner, self._identity = config, runner, identity
        self._made: dict[str, Policy] = {}
        self._tables: tuple[ValueTable, Clock] | None = None
        if config.cost_table is not None or config.value_table is not None:
            self._tables = self._read()

    @property
    def conditions(self) -> Conditions:
        return conditions_of(self._runner, self._identity, exact=self._config.exact)

    def chosen(self, params: SamplingParams, method: Method) -> str | None:
        """The policy of a request; None if its method and block size decide.

        Raises ParameterError for a policy that there is not, or that would have nothing to choose.
        """
        config = self._config
        if params.policy is None:
            planned = method is RECGUIDE and params.block_size is None and config.block_size is None
            return config.policy if planned else None
        check_policy(params.policy)
        if method is not RECGUIDE:
            raise ParameterError("policy", f"method {method.name!r} takes none; leave one of the two out")
        if params.block_size is not None:
            raise ParameterError(
                "policy", "chooses block sizes; leave block_size out or name a max_block_size"
            )
        return params.policy

    def block(self, params: SamplingParams, method: Method, policy: str | None) -> int:
        """Slots of a full block; of one that a policy plans, a first guess."""
        if not method.drafts:
            return 1
        named = params.block_size or self._config.block_size or BLOCK_SIZE
        return min(named if policy is None else FIRST_GUESS, params.max_block_size or MAX_BLOCK)

    def active(self, *, drafts: bool) -> str:
        """What holds for requests that name nothing, for the log."""
        config = self._config
        method = config.method or (RECGUIDE.name if drafts else "ar")
        if method != RECGUIDE.name or config.block_size is not None:
            return f"method {method}, no policy" + (f", B = {config.block_size}" if config.block_size else "")
        return f"method {method}, policy {config.policy}, batching {config.batching}"

    def named(self, name: str) -> Policy:
        """ParameterError for a name that no policy has."""
        if name not in self._made:
            check_policy(name)
            if self._tables is None:
                self._tables = self._read()
            self._made[name] = policy_named(name, *self._tables)
        return self._made[name]

    def _read(self) -> tuple[ValueTable, Clock]:
        config, here = self._config, self.conditions
        known = bool(self._identity.fingerprint)
        if config.cost_table is not None:
            costs = cost.named(config.cost_table, here)
        else:
            costs = cost.found(here) if known else None
        if config.value_table is not None:
            values = value.named(config.value_table, here)
        else:
            values = value.found(here) if known else None
        _LOG.info(
            "policies go by %s and %s",
            "an assumed cost of forwards (recguide profile measures it)" if costs is None else "a cost table",
            "published statistics of drafts" if values is None else "a value table",
        )
        assumed = assumed_cost(self._runner.backbone.kv_shape.device)
        clock = Clock(assumed, in_ms=False) if costs is None else Clock(costs)
        return value.prior() if values is None else values, clock
