"""Run the command line with `python -m madao.cli` if `madao` is not on PATH."""

from madao.cli import main

raise SystemExit(main())
