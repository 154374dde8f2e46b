"""Something done in place of, or around, the update inside `optimizer.step()`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer

from ebbtide.train.optimizer_twin import OptimizerError


class AroundStep:
    """Calls `before` when gradients are ready, and `after` when the update is over.

    They are hooks of the optimizer, so whatever others put around `step` stays: schedulers,
    GradScaler, their own hooks. With a closure `before` is called after the closure. `before`
    is last of what is called before the update, and `after` first of what comes after.

    Args:
        optimizer: whose step.
        before, after: take nothing; an error of theirs goes through `step`.
    """

    def __init__(
        self, optimizer: Optimizer, before: Callable[[], None], after: Callable[[], None]
    ) -> None:
        self.optimizer, self.before, self.after = optimizer, before, after
        self._pre = optimizer.register_step_pre_hook(self._ready)
        self._post = optimizer.register_step_post_hook(self._over)
        optimizer._optimizer_step_post_hooks.move_to_end(  # type: ignore[attr-defined]
            self._post.id, last=False
        )

    def remove(self) -> None:
        """Take the hooks away."""
        self._pre.remove()
        self._post.remove()

    def others(self) -> int:
        """How many step pre-hooks others have registered."""
        return sum(map(_is_foreign, self.optimizer._optimizer_step_pre_hooks.values()))

    def _ready(self, optimizer: Optimizer, args: Any, kwargs: dict[str, Any]) -> Any:
        hooks = optimizer._optimizer_step_pre_hooks
        if any(_is_foreign(hook) for number, hook in hooks.items() if number > self._pre.id):
            raise OptimizerError(
                "A step pre-hook was registered on the optimizer after the plan was applied; it "
                "would run after the update. Register it before applying the plan."
            )
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is None:
            self.before()
            return None

        def evaluated() -> Any:
            loss = closure()
            self.before()
            return loss

        rest = {name: value for name, value in kwargs.items() if name != "closure"}
        return (args[0], evaluated, *args[2:]), rest

    def _over(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self.after()


def _is_foreign(hook: Any) -> bool:
    return not isinstance(getattr(hook, "__self__", None), AroundStep)
