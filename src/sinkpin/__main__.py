"""`python -m sinkpin`: the same as the command `sinkpin`."""

import sys

from sinkpin.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
