"""How a queue order is told what was served, whichever form its method has."""

from __future__ import annotations

from inspect import signature
from typing import Any

from paged_core.errors import PluginError
from paged_core.interfaces.queue_order import QueueOrder, SupportsService
from paged_core.log import get_logger
from paged_core.sequence import SequenceGroup

_log = get_logger()


def service_of(order: QueueOrder) -> SupportsService | None:
    """Return what the engine tells of service: the order itself, if it wants to hear of it.

    One whose ``served`` does not take the time, as before 0.2, is told without it; a warning is
    logged. The signature is looked at here, once, and not where tokens are counted.

    Raises:
        PluginError: ``served`` takes neither form.
    """
    if not isinstance(order, SupportsService):
        return None
    if _takes(order.served, 3):
        return order
    name = f"{type(order).__module__}.{type(order).__qualname__}"
    if _takes(order.served, 2):
        _log.warning(
            "interface_deprecated",
            queue_order=name,
            found="served(group, num_tokens)",
            remedy="take the time too: served(self, group, num_tokens, now, /)",
        )
        return _Timeless(order)
    raise PluginError(
        f"queue_order {name}: its served{signature(order.served)} cannot be called with the group, "
        "the number of tokens and the time; write served(self, group, num_tokens, now, /)"
    )


class _Timeless:
    """Tells an order of service that does not take the time."""

    def __init__(self, order: Any) -> None:
        self._served, self.left = order.served, order.left

    def served(self, group: SequenceGroup, num_tokens: int, _now: float, /) -> None:
        self._served(group, num_tokens)


def _takes(method: Any, count: int) -> bool:
    """Whether a method can be called with so many arguments; one that does not tell, can."""
    try:
        signature(method).bind(*[None] * count)
    except TypeError:
        return False
    except ValueError:
        return True
    return True
