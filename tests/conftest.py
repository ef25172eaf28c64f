"""What holds for all tests."""

import torch

# The tests' tensors are tiny: a second thread costs more than it brings, and far more on busy cores.
torch.set_num_threads(1)
