"""The one source of the version: of the build, ``paged-core --version`` and ``__version__``."""

__version__ = "0.1.0"
