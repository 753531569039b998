"""`rl2f`: thin commands over the core. `rl2f --help` loads neither torch nor any component."""

from __future__ import annotations

import os
import re
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from app.commands import call, config, doctor, fork, replay, reproduce, train, verify
from app.commands.evaluation import levels, report, study
from app.commands.files import data, export, import_run, models, results, static_pages
from app.commands.leaks import rescore as leaks
from app.commands.server import audit, reindex, serve, serve_model, token
from app.commands.settings import add_command


class ErrorHandlingGroup(TyperGroup):
    """Turn errors of the project into one message and exit code 2; `--debug` may be anywhere before a `--`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Move `--debug` to the front, where the group reads it."""
        end = args.index("--") if "--" in args else len(args)
        if "--debug" in args[:end]:
            args = ["--debug", *(a for i, a in enumerate(args) if a != "--debug" or i >= end)]
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command inside the error boundary."""
        from rl2f_core.errors import RL2FError

        try:
            return super().invoke(ctx)
        except RL2FError as error:
            if ctx.params.get("debug"):
                raise
            from app.common.console import fail
            from rl2f_core.models.process_group import is_remote_error

            if not is_remote_error(error):  # the process that failed prints it
                fail(str(error))
            raise typer.Exit(2) from error
        except ModuleNotFoundError as error:
            extra = None if ctx.params.get("debug") else extra_with(error.name or "")
            if extra is None:
                raise
            from app.common.console import fail

            fail(f"The package {error.name} is not installed. Fix: pip install 'rl2f[{extra}]'")
            raise typer.Exit(2) from error
        except BrokenPipeError as error:  # the reader of the output (head, less) ended
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(141) from error


def extra_with(module: str) -> str | None:
    """Return the extra of this package that installs a module, or None."""
    from importlib.metadata import requires

    package = re.escape(module.partition(".")[0])
    found = (re.match(rf"{package}\b.*extra == ['\"](\w+)['\"]", line) for line in requires("rl2f") or ())
    return next((match[1] for match in found if match), None)


app = typer.Typer(
    cls=ErrorHandlingGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Teacher-student experiments on language models: train, evaluate, replay, verify.",
)


def _version(wanted: bool) -> None:
    if wanted:
        from rl2f_core import __version__

        typer.echo(f"rl2f {__version__}")
        raise typer.Exit


@app.callback()
def common(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Options that every command has."""


add_command(app, "serve", serve.serve)
add_command(app, "serve-model", serve_model.serve_model)
add_command(app, "train", train.train)
add_command(app, "eval", train.evaluate)
add_command(app, "study", study.study)
add_command(app, "levels", levels.levels)
add_command(app, "preflight", train.preflight)
add_command(app, "fork", fork.fork)
add_command(app, "hint-value", fork.hint_value)
add_command(app, "report", report.report)
add_command(app, "export", export.export)
add_command(app, "import", import_run.import_rollouts)
add_command(app, "share", static_pages.share_run)
add_command(app, "reindex", reindex.reindex)
add_command(app, "audit", audit.audit)
add_command(app, "call", call.call, context_settings={"allow_extra_args": True, "allow_interspersed_args": False})
add_command(app, "replay", replay.replay)
add_command(app, "reproduce", reproduce.reproduce)
add_command(app, "verify", verify.verify)
add_command(app, "doctor", doctor.doctor)
add_command(app, "rescore", leaks.rescore, short_help="The same as `rl2f leaks rescore`.")
app.add_typer(leaks.app, name="leaks")
app.add_typer(models.app, name="models")
app.add_typer(data.app, name="data")
app.add_typer(config.app, name="config")
app.add_typer(results.app, name="results")
app.add_typer(token.app, name="token")


def main() -> None:
    """The entry point of the `rl2f` command."""
    app(prog_name="rl2f")


if __name__ == "__main__":
    main()
