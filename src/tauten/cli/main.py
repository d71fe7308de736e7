"""The command `tauten`: one file per verb; this one only dispatches and turns errors into messages and exit codes."""

from __future__ import annotations

import argparse
import errno
import io
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

import tauten
from tauten.cli import _terminal
from tauten.spec import plugins
from tauten.spec.errors import Code, TautenError

EXIT_CODES: dict[Code, int] = {
    Code.NOT_HELD: 1, Code.INTERNAL: 1, Code.DEADLINE: 1, Code.CANCELLED: 1,
    Code.INVALID: 2, Code.NOT_FOUND: 2, Code.ALREADY_EXISTS: 2, Code.UNSUPPORTED: 2,
    Code.LACKING: 3, Code.UNAVAILABLE: 3, Code.OVERLOADED: 3,
    Code.UNDECIDED: 4,
}  # fmt: skip


NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EROFS}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        _terminal.error(f"{message}", fix=f"see '{self.prog} --help'")
        raise SystemExit(2)


def verbs() -> list[str]:
    """Names of the verbs: the modules beside this one."""
    return [name for name in plugins.names("cli") if name != "main"]


def parser() -> argparse.ArgumentParser:
    """The whole command line. A module's HELP is its line in the list, `add_arguments` adds its flags, `run` does it."""
    top = _Parser(prog="tauten", description="Ships trained models under a delivery contract.")
    top.add_argument("--version", action="version", version=f"tauten {tauten.__version__}")
    sub = top.add_subparsers(dest="verb", required=True, metavar="VERB", parser_class=_Parser)
    for name in verbs():
        module = plugins.load("cli", name)
        verb = sub.add_parser(name, help=module.HELP, description=module.HELP)
        module.add_arguments(verb)
        verb.set_defaults(run=module.run)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one verb and returns its exit code. Errors of ours become one message with the fix, never a traceback."""
    args = parser().parse_args(arguments)
    try:
        code: int = args.run(args)
        return code
    except TautenError as error:
        _terminal.error(error.message, fix=error.fix)
        return EXIT_CODES[error.code]
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of our output went away: `tauten … | head`; nothing is known to have held
        return 128 + signal.SIGPIPE
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        _terminal.error(f"{error.filename or 'the output'}: {error.strerror}", fix="make room there, or write elsewhere")
        return EXIT_CODES[Code.LACKING]


def entry() -> NoReturn:
    for stream in (sys.stdout, sys.stderr):  # a mark that the terminal's encoding lacks becomes "?", not an error
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    sys.exit(main())
