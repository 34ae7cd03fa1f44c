"""The `madao` command: one file a verb."""

import sys
from typing import Any

from madao.cli.errors import UserError


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    try:
        # Imported here: `madao` as a library does not need the command line's dependencies.
        import jsonargparse

        from madao.cli.preview import preview

        commands: dict[str, Any] = {"preview": preview}
        jsonargparse.auto_cli(commands, args=arguments, prog="madao", as_positional=False)
    except UserError as error:
        print(f"madao: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("madao: stopped", file=sys.stderr)
        return 130
    return 0
