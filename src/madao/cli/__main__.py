"""`python -m madao.cli`, where the installed `madao` is not on the path."""

from madao.cli import main

raise SystemExit(main())
