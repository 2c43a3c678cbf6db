"""The `foqs` command, also as `python -m foqs`. Without the packages of the command line it prints how to install
them.
"""

from __future__ import annotations

import sys

USAGE_EXIT_CODE = 2


def main() -> None:
    """The entry point of the `foqs` script."""
    try:
        from foqs.cli.main import main as run
    except ModuleNotFoundError as missing:
        if missing.name != "click":
            raise
        print("error: the foqs command is not installed: pip install 'foqs[cli]'", file=sys.stderr)
        sys.exit(USAGE_EXIT_CODE)
    run()


if __name__ == "__main__":
    main()
