"""`python -m madao`, and `torchrun … -m madao`: the command line."""

import sys

from madao.cli import main

if __name__ == "__main__":
    sys.exit(main())
