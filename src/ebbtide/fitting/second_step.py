"""Look at the second step of a program that takes steps by itself."""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType
from typing import Any

from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from ebbtide.train.survey import Survey
from ebbtide.vgpu.virtual_gpu import VirtualGpu


class SecondStep:
    """A context in which a survey begins after the first optimizer step and ends with the next.

    Attributes:
        survey: None until the first step is over.
        complete: whether the second one is.
    """

    def __init__(self) -> None:
        self.survey: Survey | None = None
        self.complete = False
        self._stack = ExitStack()
        self._hook: Any = None

    def __enter__(self) -> SecondStep:
        self._hook = register_optimizer_step_post_hook(self._stepped)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._hook.remove()
        self._stack.close()

    def _stepped(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        if self.survey is None:
            self.survey = Survey(VirtualGpu.active())
            self._stack.enter_context(self.survey.saved)
        elif not self.complete:
            self._stack.close()
            self.complete = True
