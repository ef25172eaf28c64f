"""How a forward's output reaches who reads it."""

import pytest
import torch

from recguide.engine.landing import Landings


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
