"""Pictures over http(s), from hosts that a user allows and at public addresses alone.

A log is written by strangers: a URL in it may name a service of this machine or of its network.
A host is resolved once, every address of it is checked, and the checked address is connected to,
so that a second answer of the DNS changes nothing. Proxies of the environment are not used.
"""

from __future__ import annotations

import contextlib
import http.client
import ipaddress
import socket
import ssl
import threading
from collections.abc import Callable, Collection
from urllib.parse import SplitResult, urljoin, urlsplit

from data.broken_lines import BrokenError

Resolver = Callable[[str, int], str]  # host and port to the address to connect to

PORTS = {"http": 80, "https": 443}
REDIRECTS = 3
CHUNK = 64 * 1024
NAT64 = ipaddress.ip_network("64:ff9b::/96")  # RFC 6052: an IPv4 address is in its last 32 bits

NOT_ALLOWED = "url not allowed"
PRIVATE = "url of a private address"
DEAD = "url cannot be fetched"
TOO_LARGE = "picture too large"


def fetch(
    url: str,
    *,
    allow_hosts: Collection[str],
    max_bytes: int,
    seconds: float,
    resolve: Resolver | None = None,
) -> bytes:
    """Return what a URL gives.

    Args:
        url: http or https.
        allow_hosts: ``host``, for the usual port, or ``host:port``. Others are not asked.
        max_bytes: More is refused.
        seconds: Of each request, from connecting to the last byte.
        resolve: Gives the address to connect to; by default ``public_address``.

    Raises:
        BrokenError: It is not allowed, of no public address, dead or too large, or leads to another
            host.
    """
    resolve = resolve or public_address
    for _ in range(REDIRECTS + 1):
        parts, host, port = checked_url(url, allow_hosts)
        address = resolve(host, port)
        content, location = _get(parts, host, port, address, max_bytes, seconds)
        if location is None:
            return content
        try:
            url = urljoin(url, location)
        except ValueError as error:
            raise BrokenError(DEAD, f"{host} redirects to no URL") from error
        if checked_url(url, allow_hosts)[1] != host:
            raise BrokenError(NOT_ALLOWED, f"{host} redirects to another host")
    raise BrokenError(DEAD, f"more than {REDIRECTS} redirects")


def public_address(host: str, port: int) -> str:
    """Return the first address of a host.

    Raises:
        BrokenError: It has none, or one of them is private, loopback, link-local, reserved or
            multicast, also as an IPv4 address within IPv6.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise BrokenError(DEAD, f"{host} has no address") from error
    addresses = [str(entry[4][0]) for entry in found]
    for address in addresses:
        if not _is_public(address):
            raise BrokenError(PRIVATE, host)
    return addresses[0]


def _is_public(address: str) -> bool:
    ip = ipaddress.ip_address(address)
    inside: list[ipaddress.IPv4Address] = []
    if isinstance(ip, ipaddress.IPv6Address):
        if ip.ipv4_mapped is not None:
            return _is_public(str(ip.ipv4_mapped))
        inside += [ip.sixtofour] if ip.sixtofour is not None else []
        inside += ip.teredo or ()
        inside += [ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)] if ip in NAT64 else []
    return (
        ip.is_global
        and not (ip.is_multicast or ip.is_reserved or getattr(ip, "is_site_local", False))
        and all(_is_public(str(part)) for part in inside)
    )


def checked_url(url: str, allow_hosts: Collection[str]) -> tuple[SplitResult, str, int]:
    """Return a URL's parts, its host and its port; raises BrokenError where it is not allowed."""
    try:
        parts = urlsplit(url)
        host, port = (parts.hostname or "").rstrip("."), parts.port
    except ValueError as error:
        raise BrokenError(NOT_ALLOWED, "it is no URL") from error
    if parts.scheme not in PORTS:
        raise BrokenError(NOT_ALLOWED, f"{parts.scheme} is neither http nor https")
    usual = PORTS[parts.scheme]
    port = usual if port is None else port
    named = f"{host}:{port}"
    allowed = {name.lower() for name in allow_hosts}
    if not host or not (named in allowed or (port == usual and host in allowed)):
        raise BrokenError(NOT_ALLOWED, f"{host if port == usual else named} is not in allow_hosts")
    if parts.username is not None or any(ord(c) <= 32 or ord(c) > 126 for c in url):
        raise BrokenError(NOT_ALLOWED, f"{host}: a password, a space or no ASCII in the URL")
    return parts, host, port


def _get(
    parts: SplitResult, host: str, port: int, address: str, max_bytes: int, seconds: float
) -> tuple[bytes, str | None]:
    """Return the content of a URL, or where it redirects to."""
    connection = http.client.HTTPConnection(host, port)
    with contextlib.ExitStack() as stack:
        try:
            stream = stack.enter_context(socket.create_connection((address, port), seconds))
            if parts.scheme == "https":
                stream = stack.enter_context(
                    ssl.create_default_context().wrap_socket(
                        stream, server_hostname=host, do_handshake_on_connect=False
                    )
                )
            # A timeout of the socket starts anew with every byte; this ends the whole.
            late = threading.Event()
            timer = threading.Timer(seconds, _shut_down, [stream, late])
            stack.callback(timer.cancel)
            timer.start()
            if isinstance(stream, ssl.SSLSocket):
                stream.do_handshake()
            connection.sock = stream
            path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            usual = port == PORTS[parts.scheme]
            headers = {"Host": host if usual else f"{host}:{port}", "User-Agent": "keynet"}
            connection.request("GET", path, headers=headers)
            response = stack.enter_context(connection.getresponse())
            location = response.headers.get("Location")
            if 300 <= response.status < 400 and location:
                return b"", location
            if response.status != http.client.OK:
                raise BrokenError(DEAD, f"{host} answers {response.status}")
            if int(response.headers.get("Content-Length") or 0) > max_bytes:
                raise BrokenError(TOO_LARGE, f"over {max_bytes:,} bytes")
            content = bytearray()
            while chunk := response.read(CHUNK):
                content += chunk
                if len(content) > max_bytes:
                    raise BrokenError(TOO_LARGE, f"over {max_bytes:,} bytes")
            if response.length or late.is_set():  # http.client takes a body cut off for a whole one
                raise BrokenError(DEAD, f"{host} stops before the end")
        except BrokenError:
            raise
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise BrokenError(DEAD, f"{host}: {type(error).__name__}") from error
    return bytes(content), None


def _shut_down(stream: socket.socket, late: threading.Event) -> None:
    late.set()
    with contextlib.suppress(OSError):  # it has just ended
        socket.socket.shutdown(stream, socket.SHUT_RDWR)
