"""`python -m ratekeeper` is the command line, where the `ratekeeper` script is not on the PATH."""

import sys

from ratekeeper.cli import main

if __name__ == "__main__":
    sys.exit(main())
