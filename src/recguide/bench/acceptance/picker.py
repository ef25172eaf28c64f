"""A picker that runs the real one, for its cost, and then says what the script says."""

from __future__ import annotations

from torch import Tensor

from recguide.bench.acceptance.process import LABEL, AcceptanceReplay
from recguide.bench.acceptance.script import Constants, script
from recguide.core import Vocabulary
from recguide.speculation.picks import Picks
from recguide.speculation.slots import INERT, Picker, SlotTable


class ReplayPicker:
    """Replayed acceptance: all computation is real, what comes of it is scripted (see `script`).

    Requests are told apart by their sampling seeds: give each its own. Temperature does not matter, filters
    and edits (penalties, bias, min_tokens) pass the picker by and must not be used.

    Args:
        picker: the real picker; its answers are overwritten in place.
        process: what stands for a trained drafter; `process.blind()` under TiDAR.
        vocabulary: the model's; the script never says its mask, end-of-text and thinking tokens.
    """

    label = LABEL

    def __init__(self, picker: Picker, process: AcceptanceReplay, vocabulary: Vocabulary) -> None:
        self.process = process
        self._picker = picker
        self._constants = Constants.of(process, vocabulary)
        self._kernel = None

    def __call__(self, logits: Tensor, slots: SlotTable) -> Picks:
        """logits [W, V], W slots → picks; reads nothing back on a device."""
        picks = self._picker(logits, slots)
        if logits.is_cuda:
            self._say_on_device(slots, picks)
        else:
            self._say(slots, picks)
        return picks

    def _say(self, slots: SlotTable, picks: Picks) -> None:
        said = script(self._constants, slots)
        used = slots.position != INERT
        for target, value in (
            (picks.tokens, said.tokens),
            (picks.p1, said.p1),
            (picks.p2, said.p2),
            (picks.candidates, said.candidates),
            (picks.entropy, said.entropy),
        ):
            target.copy_(value.to(target.dtype).where(used, target))

    def _say_on_device(self, slots: SlotTable, picks: Picks) -> None:
        if self._kernel is None:
            from recguide.bench.acceptance.kernel import ScriptKernel  # needs Triton, which a CPU may lack

            self._kernel = ScriptKernel(self._constants, picks.tokens.device)
        self._kernel(slots, picks)
