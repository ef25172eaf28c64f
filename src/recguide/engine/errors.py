"""Why a request ends early or is not taken. Nothing here needs torch."""

from __future__ import annotations

from recguide.core import RecGuideError


class DeadlineExceeded(RecGuideError):  # noqa: N818 - it says what happened
    """A request was not done in time; it is aborted, whether it ran or waited."""


def deadline_passed(emitted: int, *, queued: bool) -> DeadlineExceeded:
    """What is said of a request that had emitted so many tokens, or had not begun."""
    state = "while it waited" if queued else f"after {emitted} tokens"
    return DeadlineExceeded(f"deadline: it passed {state}; allow more time or ask for fewer tokens")


class QueueFull(RecGuideError):  # noqa: N818 - it says what happened
    """As many requests wait as may; nothing was queued.

    Attributes:
        retry_after_s: seconds after which there should be a place, from how fast requests have ended lately.
    """

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class OutOfMemory(RecGuideError):  # noqa: N818 - it says what happened
    """A forward found no memory; the request that took most of it was given up."""

    def __init__(self, tokens: int, cause: BaseException) -> None:
        super().__init__(
            f"memory: none left for a forward in which the request had {tokens} tokens ({cause}); lower "
            "max_batch_tokens or gpu_memory_utilisation"
        )


def is_lack_of_memory(error: BaseException) -> bool:
    """Whether a device or the host had no memory left; PyTorch says so by a RuntimeError."""
    if isinstance(error, MemoryError):
        return True
    said = str(error).lower()
    return isinstance(error, RuntimeError) and ("out of memory" in said or "not enough memory" in said)


class EngineFault(RecGuideError):  # noqa: N818 - it says what happened
    """Something failed that no single request is to blame for; the engine runs nothing more."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__(f"engine: {type(cause).__name__}: {cause}; restart it")
