"""What the handlers of requests work with: the log, its guard and limits, and one call."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from lakebed.bridge.completions import CompletionQueue, Reply
from lakebed.bridge.threads import Threads
from lakebed.engine.gathering import Gathering, Settle
from lakebed.errors import LakebedError, ServerUnavailableError
from lakebed.kafka.ids import TopicIds
from lakebed.kafka.wire import KafkaRequest
from lakebed.operations.table import OPERATIONS

if TYPE_CHECKING:
    from lakebed.config import ServeConfig
    from lakebed.engine.log import EmbeddedLog as Log
    from lakebed.kafka.classic_groups import ClassicGroups
    from lakebed.operations.description import Need
    from lakebed.serve.guard import Guard, Principal
    from lakebed.serve.meters import Meters
    from lakebed.serve.quotas import Quotas

NODE: Final = 1
"""The id of the one broker that clients see."""
_SLOW_THREADS: Final = 4

Answer = Mapping[str, Any]
Handler = Callable[["Call"], "Answer | Awaitable[Answer]"]
Result = TypeVar("Result")


def _stopping_error() -> LakebedError:
    return ServerUnavailableError("the server is stopping")


class Services:
    """The parts of a server that handlers use. To be made and used in its event loop."""

    groups: ClassicGroups

    def __init__(
        self, *, log: Log, guard: Guard, quotas: Quotas, meters: Meters, config: ServeConfig
    ) -> None:
        self.log = log
        self.guard = guard
        self.quotas = quotas
        self.meters = meters
        self.config = config
        self.loop = asyncio.get_running_loop()
        self.completions = CompletionQueue(self.loop)
        self.threads = Threads("lakebed-kafka", slow_threads=_SLOW_THREADS, closed=_stopping_error)
        self.gathering = Gathering(log.parts, self._make_reply)
        """Takes the batches of all connections."""
        self.stopping = asyncio.Event()
        self.stop_seconds = 0.0
        """How long a stop waits for requests in flight."""
        self.cluster_id = str(log.parts.wal.stats().log_id)
        """The name of the cluster that clients see: the identity of the log."""
        self.ids = TopicIds(self.cluster_id)

    def _make_reply(self, settle: Settle) -> Reply:
        return _Outcome(self.completions, settle)

    def close(self) -> None:
        """Refuse further work in threads."""
        self.threads.close()


class _Outcome(Reply):
    """Brings the outcome of an entry of many batches into the loop."""

    def __init__(self, queue: CompletionQueue, settle: Settle) -> None:
        super().__init__(queue)
        self._settle = settle

    def deliver(self, result: Any, error: BaseException | None) -> None:
        """Report the outcome to all requests that share the entry."""
        self._settle(result if error is None else None, error)


class Call:
    """One request of a client that is known."""

    __slots__ = ("address", "peer", "principal", "request", "services")

    def __init__(
        self,
        services: Services,
        request: KafkaRequest,
        principal: Principal,
        address: tuple[str, int],
        peer: str,
    ) -> None:
        self.services = services
        self.request = request
        self.principal = principal
        self.address = address
        """The host and the port at which this client finds the broker."""
        self.peer = peer
        """The address of the client, without its port."""

    @property
    def body(self) -> Any:
        """The request's fields."""
        return self.request.body

    @property
    def version(self) -> int:
        """The version of the request."""
        return self.request.version

    @property
    def log(self) -> Log:
        """The log that is served."""
        return self.services.log

    def check(self, operation: str, need: Need, names: Sequence[str]) -> None:
        """Raise `AccessDeniedError` unless the caller may do this on all of these names."""
        self.services.guard.check(self.principal, operation, need, names)

    def permits(self, need: Need, name: str) -> bool:
        """Return whether the caller may do something on a name; nothing is audited."""
        return self.services.guard.permits(self.principal, need, name)

    async def run(self, call: Callable[..., Result], *args: Any, **kwargs: Any) -> Result:
        """Run what may block in a thread."""
        return await self.services.threads.run(call, *args, **kwargs)

    async def manage(
        self, operation: str, names: Sequence[str], act: Callable[[], Result]
    ) -> Result:
        """Check, run and audit an operation of the log that administers it."""
        described = OPERATIONS[operation]
        self.check(operation, described.need, names)
        guard = self.services.guard
        try:
            result = await self.run(act)
        except LakebedError as error:
            if described.is_audited:
                guard.did(self.principal, operation, names, outcome="failed", reason=error.code)
            raise
        if described.is_audited:
            guard.did(self.principal, operation, names)
        return result


def address_for_clients(
    setting: str, server_name: str | None, local: tuple[Any, ...]
) -> tuple[str, int]:
    """Return where a client finds the broker, which is never a wildcard address.

    The setting decides; without it the name that the client used for TLS, and without that the
    local address of its connection, which it has reached.
    """
    if setting:
        host, _, port = setting.rpartition(":")
        return host.strip("[]"), int(port)
    if server_name:
        return server_name, int(local[1])
    host = str(local[0]).partition("%")[0]
    mapped = getattr(ipaddress.ip_address(host), "ipv4_mapped", None)
    return str(mapped or host), int(local[1])
