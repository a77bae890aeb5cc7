"""HTTP connections: time limits for requests that do not arrive completely, and whose they are."""

import asyncio
import ipaddress
import json
from collections.abc import Hashable

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

TIMED_OUT = (
    b"HTTP/1.1 408 Request Timeout\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n"
)


class Connection(H11Protocol):
    """A connection that is closed if a request takes too long from its first byte to its last.

    Once a request is complete, it may wait as long as it needs for its answer.

    Attributes:
        max_seconds: float.
    """

    max_seconds = 10.0
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._set_timer(self.max_seconds)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            self._set_timer(None)
        elif not self._timer:
            self._set_timer(self.max_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._set_timer(None)

    def _set_timer(self, seconds):
        if self._timer:
            self._timer.cancel()
        self._timer = None if seconds is None else self.loop.call_later(seconds, self._end)

    def _end(self):
        if self.cycle and not self.cycle.response_complete:
            # The application waits for the body: it sees a client that is gone.
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        has_begun = self.conn.their_state is h11.SEND_BODY or self.conn.trailing_data[0]
        if has_begun and self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            message = f"A request must arrive within {self.max_seconds:g} s. Try again."
            self.transport.write(TIMED_OUT + json.dumps({"error": message}).encode())
        self.transport.close()


def client_of(host: str) -> Hashable:
    """Returns what counts as a client: an address of IPv4, or 2^64 addresses of IPv6.

    A user of IPv6 has so many, and could use another one for each request.
    """
    try:
        address = ipaddress.ip_address(host)
    except ValueError:  # a socket of Unix has none, and a proxy may send a name
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return address
    return address.ipv4_mapped or address.packed[:8]
