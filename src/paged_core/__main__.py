"""``python -m paged_core``: the same as ``paged-core``."""

from paged_core.cli import entry

if __name__ == "__main__":
    entry()
