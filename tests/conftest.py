"""What holds for all tests."""

import os
from contextlib import suppress

import torch

# The tests' tensors are tiny: a second thread costs more than it brings, and far more on busy cores.
torch.set_num_threads(1)

# Without a GPU, Triton's kernels run in its interpreter, which must be chosen before Triton is imported.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

    # Triton 3.6 makes loop bounds of arrays with one element, which NumPy 2.4 no longer takes for numbers.
    with suppress(ImportError):
        from triton.runtime import interpreter

        patch = interpreter._patch_lang_tensor

        def patch_with_index(tensor, scope):
            patch(tensor, scope)
            scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

        interpreter._patch_lang_tensor = patch_with_index
