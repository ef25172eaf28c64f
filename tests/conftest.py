"""What holds for all tests."""

import os

import torch

# The tests' tensors are tiny: a second thread costs more than it brings, and far more on busy cores.
torch.set_num_threads(1)

# Without a GPU, Triton's kernels run in its interpreter, which must be chosen before Triton is imported.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
