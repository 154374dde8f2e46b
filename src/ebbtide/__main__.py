"""``python -m ebbtide``."""

import sys

from ebbtide.cli.app import main

if __name__ == "__main__":
    sys.exit(main())
