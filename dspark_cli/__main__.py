"""Entry point of the command ``dspark``."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the program with the arguments of this process and exit with its code."""
    from dspark_cli.commands.process import run_program

    sys.exit(run_program(sys.argv[1:]))


if __name__ == "__main__":
    main()
