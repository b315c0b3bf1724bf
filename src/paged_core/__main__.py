"""``python -m paged_core``: the same as ``paged-core``."""

import sys

from paged_core.cli import main

sys.exit(main())
