"""Entry point of the command ``dspark``."""

from __future__ import annotations

import sys

from dspark_cli import interruption


def main() -> None:
    """Run the program with the arguments of this process and exit with its code."""
    try:
        interruption.install()  # before the imports below, which take longer than all else in a short run
        from dspark_cli.commands.process import run_program

        code = interruption.leave(run_program(sys.argv[1:]))
    except (KeyboardInterrupt, interruption.Terminated):
        code = interruption.leave(interruption.exit_code())
    sys.exit(code)


if __name__ == "__main__":
    main()
