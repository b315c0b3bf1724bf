"""What every test needs: one thread for each of the processes that run tests side by side."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read by torch when it is first imported
