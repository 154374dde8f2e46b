"""The state of torch around a call of `ebbtide.predict`, left for as long as it traces.

A step is to be the one that a training script takes, whatever the caller is in the
middle of: no gradients, a mode of fake tensors of its own, compiled functions.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch.utils._python_dispatch import _disable_current_modes

# The virtual GPU replaces functions of torch for the whole process.
_ONE_AT_A_TIME = threading.RLock()


@contextmanager
def apart_from_caller() -> Iterator[None]:
    """Gradients on, no dispatch mode but ours, and what is compiled runs eagerly.

    Another thread waits its turn.
    """
    with ExitStack() as stack:
        stack.enter_context(_ONE_AT_A_TIME)
        # A `FakeTensorMode` outside ours would see each operation twice.
        stack.enter_context(_disable_current_modes())
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        if "torch._dynamo.eval_frame" in sys.modules:
            # Dynamo would compile for fake tensors, and aborts the process at our modes.
            # Where it is not loaded nothing has been compiled, and on the virtual GPU
            # `torch.compile` is replaced.
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        yield
