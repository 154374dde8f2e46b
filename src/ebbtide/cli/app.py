"""The command ``ebbtide``: a table of verbs, each loaded only when it is called.

Exit codes: 0 fits or done, 1 does not fit or failed, 2 wrong usage. A verb ends
with another code than 0 by ``raise typer.Exit(code)``; an `EbbtideError` ends
the command with its message on stderr and its own exit code. Anything else that
is raised is a bug of ours: its traceback is shown, and the code is 2, because 1
would say that something does not fit.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Annotated, Any

import typer

from ebbtide._version import __version__
from ebbtide.cli.grouped import GroupedCommand
from ebbtide.cli.streams import open_standard_streams
from ebbtide.errors import EbbtideError

_INTERRUPTED = 130


@dataclass(frozen=True, kw_only=True, slots=True)
class Verb:
    """One verb of the command line.

    Attributes:
        target: ``"module:function"``; the function's signature is the verb's arguments.
        help: one line for ``ebbtide --help``, here so that the help imports no verb.
    """

    target: str
    help: str

    def load(self) -> Callable[..., Any]:
        """Import the verb's module and return its function."""
        module, _, function = self.target.partition(":")
        loaded: Callable[..., Any] = getattr(import_module(module), function)
        return loaded


VERBS = {
    "predict": Verb(
        target="ebbtide.cli.predict:predict",
        help="Say whether a training script or model fits a GPU, and why.",
    ),
    "fit": Verb(
        target="ebbtide.cli.fit:fit",
        help="Plan what makes a training step fit a budget, at the least cost.",
    ),
    "run": Verb(
        target="ebbtide.cli.run:run",
        help="Run a program under a plan that `fit` wrote.",
    ),
    "gpus": Verb(
        target="ebbtide.cli.gpus:gpus",
        help="List GPUs with their memory, speed and cloud prices.",
    ),
    "replay": Verb(
        target="ebbtide.cli.replay:replay",
        help="Replay a torch.cuda.memory snapshot through the allocator model.",
    ),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: the arguments after the program's name; those of the process by default.

    Returns:
        The exit code: 0, 1 or 2 (130 after Ctrl-C).
    """
    open_standard_streams()
    args = list(sys.argv[1:] if argv is None else argv)
    try:
        build(args)(args=args, prog_name="ebbtide")
    except SystemExit as done:
        return done.code if isinstance(done.code, int) else int(done.code is not None)
    except EbbtideError as error:
        print(f"ebbtide: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:  # while a verb is imported; typer sees to the rest
        return _INTERRUPTED
    except Exception:
        traceback.print_exc()
        print(
            "ebbtide: This is a bug of Ebbtide. Please report it with the lines above.",
            file=sys.stderr,
        )
        return 2
    return 0


def build(args: Sequence[str]) -> typer.Typer:
    """The typer application for this call: only the verb that `args` name is imported."""
    wanted = next((arg for arg in args if not arg.startswith("-")), None)
    # Plain help: rich's panels cost more time than everything else in `ebbtide --help`.
    app = typer.Typer(
        add_completion=False,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    for name, verb in VERBS.items():
        if name == wanted:
            app.command(name, cls=GroupedCommand, short_help=verb.help)(verb.load())
        else:
            app.command(name, help=verb.help)(_not_loaded)
    return app


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"ebbtide {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    """Make deep learning fit the GPU memory there is."""


def _not_loaded() -> None:
    """Stand in the help for a verb that this call does not name."""
    raise NotImplementedError("only the verb that was named is loaded and called")
