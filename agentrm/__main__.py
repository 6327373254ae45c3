"""`python -m agentrm`: the same as the command `agentrm`."""

from __future__ import annotations

import sys

from agentrm.cli.main import main

sys.exit(main())
