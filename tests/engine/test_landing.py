"""How a forward's output reaches who reads it."""

import pytest
import torch

from recguide.engine.landing import Landing, Landings


def test_what_was_read_stays_though_the_next_forward_writes_to_the_same_place():
    words = torch.arange(3, dtype=torch.int32)
    read = Landing(words, shared=True).wait()
    words.zero_()
    assert read.tolist() == [0, 1, 2]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_an_output_is_read_while_the_next_one_arrives():
    landings = Landings(torch.device("cuda"))
    outputs = [torch.full((5,), at, dtype=torch.int32, device="cuda") for at in range(4)]
    before = landings.fetch(outputs[0]).wait()
    for at, output in enumerate(outputs[1:], 1):
        found = landings.fetch(output).wait()
        assert before.tolist() == [at - 1] * 5
        before = found
