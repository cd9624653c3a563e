"""``python -m aioinfer``, and the script ``aioinfer``."""

from __future__ import annotations

import sys

from aioinfer.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
