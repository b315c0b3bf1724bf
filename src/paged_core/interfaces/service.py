"""How a queue order is told what was served, whichever form its method has."""

from __future__ import annotations

from inspect import signature
from types import SimpleNamespace
from typing import Any, cast

from paged_core.errors import PluginError
from paged_core.interfaces.queue_order import QueueOrder, SupportsService
from paged_core.log import get_logger


def service_of(order: QueueOrder) -> SupportsService | None:
    """Return what the engine tells of service: the order itself, if it wants to hear of it.

    One whose ``served`` does not take the time, as before 0.2, is told without it; a warning is
    logged. The signature is looked at here, once, and not where tokens are counted.

    Raises:
        PluginError: ``served`` takes neither form.
    """
    if not isinstance(order, SupportsService):
        return None
    served: Any = order.served
    remedy = "write served(self, group, num_tokens, now, /)"
    name = f"{type(order).__module__}.{type(order).__qualname__}"
    if _takes(served, 3):
        return order
    if not _takes(served, 2):
        raise PluginError(
            f"queue_order {name}: its served{signature(served)} cannot be called with the group, "
            f"the number of tokens and the time; {remedy}"
        )
    get_logger().warning("interface_deprecated", queue_order=name, remedy=remedy)
    timeless = SimpleNamespace(served=lambda group, n, _: served(group, n), left=order.left)
    return cast(SupportsService, timeless)


def _takes(method: Any, count: int) -> bool:
    """Whether a method can be called with so many arguments; one that does not tell, can."""
    try:
        signature(method).bind(*[None] * count)
    except TypeError:
        return False
    except ValueError:
        pass
    return True
