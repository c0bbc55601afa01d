"""The first bytes of a tunnel: is it TLS, and for which name. The rest is the two ends' secret.

So a server that answers for many names can still be asked for another one inside TLS (domain fronting), and a greeting that hides
its name (ECH) shows only the outer one.
"""

from __future__ import annotations

import ssl

from eval_pipeline.gateway.addresses import Endpoint
from eval_pipeline.gateway.request import TLS_PORT, Refused

_HANDSHAKE = 0x16
_MAX_GREETING_BYTES = 65536


class Greeting:
    """Fed with what the client sends, until it is decided. Raises Refused for another name, and for no TLS to port 443."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._size = 0
        self._named: list[str | None] = []
        self._incoming = ssl.MemoryBIO()
        self._tls: ssl.SSLObject | None = None

    def decided(self, data: bytes) -> bool:
        """Whether all that came so far may go on."""
        if not self._size and data[0] != _HANDSHAKE:
            if self._endpoint[1] == TLS_PORT:
                raise Refused(403, f"no TLS in a tunnel to {self._endpoint[0]}:{TLS_PORT}")
            return True
        self._size += len(data)
        if not self._is_named(data):
            if self._size > _MAX_GREETING_BYTES:
                raise Refused(403, "a TLS greeting without an end")
            return False
        name = self._named[0]
        if name is not None and name.lower().removesuffix(".") != self._endpoint[0]:
            raise Refused(403, f"TLS for {name[:200]} in a tunnel to {self._endpoint[0]}:{self._endpoint[1]}")
        return True

    def _is_named(self, data: bytes) -> bool:
        """OpenSSL reads the greeting; nothing is ever answered."""
        self._tls = self._tls or _server(self._named).wrap_bio(self._incoming, ssl.MemoryBIO(), server_side=True)
        self._incoming.write(data)
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return bool(self._named)
        except ssl.SSLError as error:
            if not self._named:
                raise Refused(403, f"a TLS greeting that can't be read: {error.reason}") from None
        return True


def _server(named: list[str | None]) -> ssl.SSLContext:
    def note(_: ssl.SSLObject, name: str | None, __: ssl.SSLContext) -> int:
        named.append(name)
        return ssl.ALERT_DESCRIPTION_USER_CANCELLED

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.sni_callback = note  # pyright: ignore[reportAttributeAccessIssue]
    return context
