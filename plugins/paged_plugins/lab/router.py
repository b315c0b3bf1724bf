"""The former name of :mod:`paged_plugins.routing.router`."""

from paged_plugins.routing.former_names import found_in

__getattr__ = found_in(__name__, "router", "load_book")
