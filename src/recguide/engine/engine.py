"""The engine: one loop for every method, any number of requests, any mix of phases in a forward."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count
from time import monotonic, perf_counter

from recguide.core import (
    MAX_BLOCK,
    Backbone,
    Chunk,
    FinishReason,
    ParameterError,
    RecGuideError,
    SamplingParams,
)
from recguide.engine.admission import check_memory, check_request, choice_seed, fresh_seed
from recguide.engine.ahead import RunAhead
from recguide.engine.commit import Advanced, advance, publish
from recguide.engine.config import EngineConfig
from recguide.engine.deadlines import Deadlines
from recguide.engine.departures import Departures
from recguide.engine.errors import (
    EngineFault,
    OutOfMemory,
    QueueFull,
    deadline_passed,
    is_lack_of_memory,
)
from recguide.engine.flight import Flight, Forward, Landed
from recguide.engine.flown import Flown, Landing
from recguide.engine.judging import Judge
from recguide.engine.observing import Observer, Watch
from recguide.engine.picking import Unpickable, UnpickableLogits
from recguide.engine.plan import lay_out
from recguide.engine.planning import Planner, observe, remember
from recguide.engine.request import Request, Sampling
from recguide.engine.rounds import Decision
from recguide.engine.scheduler import Scheduled, Scheduler
from recguide.engine.standing import StandingRounds
from recguide.engine.start import start
from recguide.engine.tables import Identity, Policies
from recguide.engine.text import Decode, Pieces, TextStream, UndecodableTokens
from recguide.engine.tracing import Tracer, trace_header
from recguide.guidance.history import History
from recguide.guidance.policy import Policy
from recguide.kv.prefix_tree import PrefixTree
from recguide.kv.tables import BlockTable
from recguide.speculation.edits import edits_logits, stop_tokens
from recguide.speculation.filters import filters
from recguide.speculation.grammar import Grammars, Matcher
from recguide.speculation.methods import Method, method_named
from recguide.speculation.rows import Phase
from recguide.speculation.slots import Picker

_LOG = logging.getLogger(__name__)

_PREFILLS = Phase.PREFILL
"""Looked up once: an enumeration answers slowly."""


class Engine:
    """Runs requests to their end; `step` is one forward and everything that follows from it.

    Args:
        backbone: the model.
        decode: token ids → text without special tokens.
        config: how requests share a forward, the KV cache and the device.
        picker: picks on the device; None is the one that belongs there.
        grammars: compiles structures; None refuses them.
        identity: the model, as tables of costs and values name it; without it none is found.
        joins: whether the text of tokens is that of each, joined, where all are whole characters.

    Attributes:
        runner: runs rows.
        memory: where the memory went.
        fault: why it runs nothing more; None while it is well.
    """

    def __init__(
        self,
        backbone: Backbone,
        decode: Decode,
        config: EngineConfig,
        picker: Picker | None = None,
        grammars: Grammars | None = None,
        identity: Identity | None = None,
        *,
        joins: bool = False,
    ) -> None:
        self.vocabulary = backbone.vocabulary
        self.config = config
        self._backbone = backbone
        self._pieces = Pieces(decode, joins=joins)
        self.grammars = grammars
        most = backbone.max_positions
        self._limit = most if config.max_model_len is None else min(config.max_model_len, most)
        self.runner, self.memory = start(backbone, config, picker, self._limit)
        self._tree = PrefixTree(self.runner.pool) if config.prefix_cache else None
        self._scheduler = Scheduler(
            self.runner.pool,
            max_running=config.max_running,
            max_batch_tokens=config.max_batch_tokens,
            tree=self._tree,
        )
        self._judge = Judge(self.vocabulary, backbone.kv_shape.device)
        self._watch = Watch(self._scheduler, self.runner.pool)
        self._deadlines = Deadlines()
        self._departures = Departures()
        self.fault: EngineFault | None = None
        self._flight: Flight | None = None
        identity = identity or Identity()
        self._policies = Policies(config, self.runner, identity)
        self._rows = partial(
            lay_out, mask=self.vocabulary.mask, diffusion_adapter=self._backbone.diffusion_adapter
        )
        self._planner = self._planner_of(self._policies.named, config.batching)
        self._ahead = RunAhead(self.runner, self._scheduler, self._rows, self.vocabulary.mask)
        self._standing = StandingRounds(self.runner, self._scheduler)
        self._flown = Flown()
        self._tracer = (
            None
            if config.trace is None
            else Tracer(config.trace, trace_header(config, self._policies.conditions))
        )
        self._tracing = True
        self._arrivals = count()
        _LOG.info("%s", self.planning)

    @property
    def limit(self) -> int:
        """Prompt and output tokens of a request at most."""
        return self._limit

    @property
    def planning(self) -> str:
        """In words, what chooses blocks and branches of a request that names nothing."""
        return self._policies.active(drafts=self.vocabulary.mask is not None)

    @property
    def busy(self) -> bool:
        return bool(self._scheduler.waiting or self._scheduler.running)

    def plan_by(self, policy: Policy, batching: str = "ragged") -> None:
        """From now on this policy plans for every request that takes one; no such request may be running."""
        self._planner = self._planner_of(lambda _: policy, batching)

    def _planner_of(self, policy: Callable[[str], Policy], batching: str) -> Planner:
        most, runs_ahead = self.config.max_batch_tokens, self.runner.has_graphs
        return Planner(policy, batching, self._rows, most, runs_ahead=runs_ahead)

    @property
    def observer(self) -> Observer | None:
        """Is told what each step was, in the thread that steps, while the next forward runs."""
        return self._watch.observer

    @observer.setter
    def observer(self, observer: Observer | None) -> None:
        self._watch.begin(observer)

    def add(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        *,
        deadline: float | None = None,
        arrived: float | None = None,
    ) -> list[Request]:
        """Queues a prompt: one request for each of its n choices.

        Args:
            prompt: token ids.
            params: how it is continued.
            deadline: seconds of `time.monotonic` by when all choices have to be done. One that is not is
                aborted and carries DeadlineExceeded as its error.
            arrived: reading of the same clock when it came; None is now.

        Raises:
            ParameterError: the parameters, the prompt or their lengths cannot be honoured.
            QueueFull: as many requests wait as may.
            EngineFault: the engine has failed.
        """
        if self.fault is not None:
            raise self.fault
        method = self.method_for(params)
        policy = self._policies.chosen(params, method)
        largest = params.max_block_size or MAX_BLOCK
        block = self._policies.block(params, method, policy)
        check_request(prompt, params, method, block, vocabulary=self.vocabulary, limit=self._limit)
        traced = self._tracer is not None and self._tracer.on and self._tracing and method.verifies
        seed = params.seed if params.seed is not None else fresh_seed(params)
        seeds = [choice_seed(seed, choice) for choice in range(params.n)]
        known = tuple(prompt)
        requests = [
            Request(
                arrival=next(self._arrivals),
                choice=choice,
                prompt=known,
                params=params.with_seed(own),
                method=method,
                block=block,
                table=BlockTable(self.runner.pool, self._tree, self.runner.copy_pages),
                text=TextStream(self._pieces, prompt, params.stop),
                sampling=Sampling(own, params.temperature),
                stops=stop_tokens(params, self.vocabulary),
                by_logits=edits_logits(params) or filters(params) or bool(params.logprobs),
                matcher=self._matcher(prompt, params),
                policy=policy,
                largest=largest,
                history=History() if policy is not None or traced else None,
                traced=traced,
                arrived=monotonic() if arrived is None else arrived,
            )
            for choice, own in enumerate(seeds)
        ]
        check_memory(requests[0], self.memory.kv_tokens)
        self._check_queue(len(requests))
        for request in requests:
            self._scheduler.add(request)
            if deadline is not None:
                self._deadlines.add(request, deadline)
        return requests

    def step(self) -> list[tuple[Request, Chunk]]:
        """One forward of everything that is ready; returns what it emitted, in order.

        The next forward is launched before this one's text is made, so that a device never waits for text.
        Every chunk also lands in its request's inbox, for callers that share the engine.

        A request that fails alone is aborted and carries its error, and the others go on: its logits are NaN,
        its tokens have no text, its deadline has passed, or there is no memory for its prefill.

        Raises EngineFault, and fails all requests with it, if anything else goes wrong; no more is run.
        """
        if self.fault is not None:
            raise self.fault
        try:
            return self._step()
        except Exception as error:
            raise self._break(error) from error

    def _step(self) -> list[tuple[Request, Chunk]]:
        for request in self._deadlines.passed(monotonic()):
            self._fail(request, deadline_passed(len(request.emitted), queued=not request.table.pages))
        if self._flight is not None and not self._flight.awaited:
            self._drop()
        if self._flight is None:
            self._watch.restart()
            self._launch()
        flight, self._flight = self._flight, None
        decisions = None if flight is None else self._land(flight)
        if flight is None or decisions is None:
            return []
        flown, done = self._flown.landing, list[Advanced]()
        emitted: list[tuple[Request, Chunk]] = []
        for scheduled, decision in zip(flight.plan, decisions, strict=True):
            if decision is not None:
                self._advance(scheduled.request, decision, done, flown)
        if self._flight is None:
            self._launch()
        else:
            self._flight = self._ahead.laid_out(self._flight)
        for advanced in done:
            self._publish(advanced, emitted)
        verdicts = {advanced.request: advanced.verdict for advanced in done}
        step_ms = None if flown.first else flown.step_ms
        observe(flown.planned, verdicts, step_ms, flown.waited_ms, late=flown.late)
        if self._flight is not None:
            if not self._ahead.look(self._flight, self._planner):
                self._planner.prepare()
            self._standing.look(self._flight)
        self.runner.refresh()
        self._watch.tell(flight, done, flown.planned)
        if self._tracer is not None:
            self._tracer.write(idle=not self.busy)
        return emitted

    def _launch(self) -> None:
        """Starts a forward of all that is ready; where memory lacks, without what took most of it."""
        while plan := self._scheduler.schedule(self._planner):
            try:
                self._flight = self.runner.launch(plan)
            except (MemoryError, RuntimeError) as error:
                self._give_up_largest(plan, error)
            else:
                self._flown.launched(self._planner.planned, self._flight)
                return

    def _land(self, flight: Flight) -> list[Decision | None] | None:
        """What a forward decided; None if there was no memory for it, and nothing has changed."""
        try:
            asked = perf_counter()
            landed = flight.land()
            self._go_on(flight, landed, asked)
            return self._judge.decide(flight, landed)
        except (MemoryError, RuntimeError) as error:
            self._give_up_largest(flight.plan, error)
            self._drop()
            return None

    def _go_on(self, flight: Flight, landed: Landed, asked: float) -> None:
        """Starts what lies packed, if it came true and there is memory for it, before anything else is done:
        the device has nothing to do."""
        now = perf_counter()
        try:
            self._flight = self._standing.go(landed) or self._ahead.go(landed)
        except (MemoryError, RuntimeError) as error:
            self._give_up_largest(self._ahead.plan or flight.plan, error)
        self._ahead.forget()
        self._flown.landed(asked, now)
        if self._flight is not None:
            self._planner.adopt()
            self._flown.launched(self._planner.planned, self._flight)

    def _drop(self) -> None:
        """Nobody waits for what is on its way."""
        flight, self._flight = self._flight, None
        self._ahead.forget()
        self._standing.forget()
        self._planner.forget()
        if flight is not None:
            flight.drop()

    def _advance(self, request: Request, decision: Decision, done: list[Advanced], flown: Landing) -> None:
        """What the next layout depends on."""
        if request.finish_reason is not None:
            return
        if isinstance(decision, Unpickable):
            self._fail(request, decision)
            return
        if self._tracer is not None:
            self._tracer.note(request, decision, flown.planned.price, flown.ms)
        if request.history is not None:
            remember(request.history, decision)
        try:
            done.append(advance(request, decision))
        except UndecodableTokens as error:
            request.finish_reason = None
            self._fail(request, error)
            return
        if request.finish_reason is not None:
            self._leave(request)
        elif decision.layout.phase is _PREFILLS and request.emitted:
            self._scheduler.share(request)

    def _publish(self, advanced: Advanced, emitted: list[tuple[Request, Chunk]]) -> None:
        """What only readers wait for."""
        try:
            chunk = publish(advanced)
        except UndecodableTokens as error:
            self._fail(advanced.request, error)
            return
        if chunk is not None:
            advanced.request.inbox.append(chunk)
            emitted.append((advanced.request, chunk))

    @contextmanager
    def recording(self) -> Generator[list[Forward], None, None]:
        """Collects what each forward is that is launched meanwhile."""
        forwards: list[Forward] = []
        self.runner.forwards = forwards
        try:
            yield forwards
        finally:
            self.runner.forwards = None

    def abort(self, request: Request) -> None:
        """Ends a request early and frees what it holds; a finished one is left alone."""
        if request.finish_reason is None:
            request.finish_reason = FinishReason.ABORT
            self._leave(request)
            self._close_text(request)

    def _fail(self, request: Request, error: RecGuideError) -> None:
        """Ends a request that cannot go on, or, if it has just ended, without its text."""
        ended, request.error, request.finish_reason = request.finish_reason, error, FinishReason.ABORT
        if ended is None:
            self._leave(request, suspect=isinstance(error, UnpickableLogits))
            if not isinstance(error, UndecodableTokens):
                self._close_text(request)

    def _leave(self, request: Request, *, suspect: bool = False) -> None:
        self._scheduler.remove(request, suspect=suspect)
        self._departures.note(monotonic())

    def _close_text(self, request: Request) -> None:
        """Held bytes become text as they are; that may fail, as all text may."""
        try:
            request.text.finish()
        except UndecodableTokens as error:
            request.error = request.error or error

    def _give_up_largest(self, plan: Sequence[Scheduled], error: Exception) -> None:
        """Fails the request that took most of a forward's memory, unless all of its requests have ended; any
        error but a lack of memory goes on."""
        if not is_lack_of_memory(error):
            raise error
        mine = [one for one in plan if one.request.finish_reason is None]
        if mine:
            largest = max(mine, key=lambda one: (one.layout.phase is Phase.PREFILL, one.layout.query_tokens))
            self._fail(largest.request, OutOfMemory(largest.layout.query_tokens, error))
        self.runner.tidy()

    def _check_queue(self, arriving: int) -> None:
        """Those that can start at once do not wait."""
        most = self.config.max_waiting
        if most is None:
            return
        if arriving > most + self.config.max_running:
            raise ParameterError(
                "n",
                f"{arriving} choices are more than run ({self.config.max_running}) and wait ({most}) at most",
            )
        waiting = len(self._scheduler.waiting)
        over = waiting + arriving - most - max(0, self._scheduler.free_places)
        if over > 0:
            wait_s = self._departures.wait_s(over, monotonic())
            raise QueueFull(
                f"queue: {waiting} requests wait and {most} may; try again in {wait_s:.0f} s or raise "
                "max_waiting",
                wait_s,
            )

    def _break(self, error: Exception) -> EngineFault:
        """Fails every request, frees what they held and takes no more."""
        self.fault = fault = EngineFault(error)
        self._flight = None
        self._ahead.forget()
        self._standing.forget()
        for request in self._scheduler.clear():
            request.error, request.finish_reason = fault, FinishReason.ABORT
        return fault

    def method_for(self, params: SamplingParams) -> Method:
        """The method that a request with these parameters gets; ParameterError if the model cannot run it."""
        name = params.method or self.config.method
        if name is None:
            return method_named("recguide" if self.vocabulary.mask is not None else "ar")
        method = method_named(name)
        if method.drafts and self.vocabulary.mask is None:
            raise ParameterError(
                "method",
                f"{name!r} drafts, but this model has no mask token; load a draft adapter or use 'ar'",
            )
        return method

    def _matcher(self, prompt: Sequence[int], params: SamplingParams) -> Matcher | None:
        """A matcher for one choice's structure; ParameterError if there can be none."""
        if params.structure is None:
            return None
        if self.grammars is None:
            raise ParameterError(
                "structure", "this model has no tokenizer files to match text with; leave it out"
            )
        return self.grammars.matcher(params.structure, prompt)

    @contextmanager
    def untraced(self) -> Generator[None, None, None]:
        """Warm-up: what is added meanwhile enters no trace."""
        self._tracing, before = False, self._tracing
        try:
            yield
        finally:
            self._tracing = before

    def close(self) -> None:
        """Ends the trace, if there is one."""
        if self._tracer is not None:
            self._tracer.close()
