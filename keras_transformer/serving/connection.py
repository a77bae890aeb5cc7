"""HTTP connections: time limits for requests that do not arrive completely, and whose they are."""

import asyncio
import ipaddress
import json
from collections.abc import Hashable

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

STOP_SECONDS = 1
MAX_READ_AHEAD_BYTES = 2**16  # of further requests on a connection


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
        # Uvicorn stops reading when another request follows before this one is answered. Then it
        # would not see that the client closes the connection.
        ahead = len(self.conn.trailing_data[0])
        if self.conn.their_state is h11.DONE and ahead < MAX_READ_AHEAD_BYTES:
            self.flow.resume_reading()
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.conn.their_state is h11.SEND_BODY:  # of the next request, which arrived before
            self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._set_timer(None)
        # After a reset, Uvicorn leaves it, and it would hold the connection like an idle one.
        if self.timeout_keep_alive_task:
            self.timeout_keep_alive_task.cancel()

    def shutdown(self) -> None:
        """Begins to close: a request that is incomplete has a second for its rest."""
        super().shutdown()
        if self._timer:
            self._set_timer(STOP_SECONDS)

    def _watch(self):
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            self._set_timer(None)
        elif not self._timer:
            self._set_timer(self.max_seconds)

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
            headers = [("content-type", "application/json"), ("connection", "close")]
            for event in (
                h11.Response(status_code=408, reason=b"Request Timeout", headers=headers),
                h11.Data(data=json.dumps({"error": message}).encode()),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
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
