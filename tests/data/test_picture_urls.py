"""Fetching: from a server of this machine, which only an injected resolver may reach."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest

from data import picture_urls
from data.broken_lines import BrokenError
from data.picture_urls import (
    DEAD,
    NOT_ALLOWED,
    PRIVATE,
    TOO_LARGE,
    checked_url,
    fetch,
    public_address,
)

HOST = "pictures.test"


class Handler(BaseHTTPRequestHandler):
    hosts: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        Handler.hosts.append(str(self.headers["Host"]))
        if self.path.startswith("/to/"):
            self.send_response(302)
            self.send_header("Location", self.path.removeprefix("/to/"))
            self.end_headers()
        elif self.path == "/cut":
            self.send_response(200)
            self.send_header("Content-Length", "100")
            self.end_headers()
            self.wfile.write(b"few")
        elif self.path in ("/drip", "/slow"):
            if self.path == "/drip":
                self.send_response(200)
                self.end_headers()
            for _ in range(100):  # a byte now and then keeps a timeout of the socket from ending it
                try:
                    self.wfile.write(b"x")
                    self.wfile.flush()
                except OSError:
                    return
                time.sleep(0.05)
        elif self.path == "/large":
            self.send_response(200)
            self.end_headers()
            self.wfile.write(bytes(1001))
        elif self.path == "/said":
            self.send_response(200)
            self.send_header("Content-Length", "1001")
            self.end_headers()
        elif self.path in ("/good?size=2", "/~good"):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"content")
        else:
            self.send_response(404)
            self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()


def get(port: int, path: str, seconds: float = 5, **changes: object) -> bytes:
    options: dict = {
        "allow_hosts": [f"{HOST}:{port}"], "max_bytes": 1000, "seconds": seconds,
        "resolve": lambda host, _: "127.0.0.1",
    }  # fmt: skip
    return fetch(f"http://{HOST}:{port}{path}", **(options | changes))


def test_content_comes_from_the_checked_address_under_the_name_of_the_host(port: int) -> None:
    Handler.hosts.clear()
    assert get(port, "/good?size=2") == get(port, "/~good") == b"content"
    assert Handler.hosts == [f"{HOST}:{port}"] * 2


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/missing", DEAD), ("/cut", DEAD), ("/large", TOO_LARGE), ("/said", TOO_LARGE),
        ("/to//to//to//to//good?size=2", DEAD), ("/to/http://127.0.0.1/secret", NOT_ALLOWED),
        ("/to/ftp://pictures.test/x", NOT_ALLOWED), ("/to/http://[::1", DEAD),
    ],
)  # fmt: skip
def test_what_is_refused(port: int, path: str, reason: str) -> None:
    with pytest.raises(BrokenError) as error:
        get(port, path)
    assert error.value.reason == reason


def test_a_password_is_not_repeated() -> None:
    with pytest.raises(BrokenError, match="a password") as error:
        checked_url("https://someone:secret@pictures.test/x", ["pictures.test"])
    assert "secret" not in str(error.value) and "someone" not in str(error.value)


def test_a_redirect_within_the_host_is_followed(port: int) -> None:
    assert get(port, "/to//good?size=2") == b"content"


def test_a_redirect_to_another_allowed_host_is_refused(port: int) -> None:
    hosts = [f"{HOST}:{port}", f"other.test:{port}"]
    with pytest.raises(BrokenError, match="redirects to another host"):
        get(port, f"/to/http://other.test:{port}/good?size=2", allow_hosts=hosts)


@pytest.mark.parametrize("path", ["/drip", "/slow"])
def test_the_time_limit_is_of_the_whole_request(port: int, path: str) -> None:
    start = time.monotonic()
    with pytest.raises(BrokenError) as error:
        get(port, path, seconds=0.3)
    assert error.value.reason == DEAD
    assert time.monotonic() - start < 2


def test_a_dead_server_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(BrokenError, match="ConnectionRefusedError") as error:
        get(port, "/")
    assert error.value.reason == DEAD


def test_this_machine_is_refused_without_an_injected_resolver(port: int) -> None:
    for host in ("127.0.0.1", "localhost", "2130706433", "0x7f.1", "[::1]", "[::ffff:127.0.0.1]"):
        Handler.hosts.clear()
        with pytest.raises(BrokenError) as error:
            fetch(
                f"http://{host}:{port}/good?size=2",
                allow_hosts=[f"{host.strip('[]')}:{port}"],
                max_bytes=1000,
                seconds=5,
            )
        assert error.value.reason == PRIVATE, host
        assert Handler.hosts == []


@pytest.mark.parametrize(
    "address",
    [
        "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0",
        "224.0.0.1", "240.0.0.1", "255.255.255.255", "::", "::1", "fe80::1", "fec0::1", "fc00::1",
        "ff02::1",
        "::ffff:10.0.0.1", "2002:7f00:1::", "64:ff9b::a9fe:a9fe",
        "2001:0:7f00:1::",
    ],
)  # fmt: skip
def test_addresses_that_are_not_public(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    answer(monkeypatch, ["93.184.216.34", address])  # one of them suffices
    with pytest.raises(BrokenError) as error:
        public_address("x.test", 80)
    assert error.value.reason == PRIVATE


@pytest.mark.parametrize("address", ["93.184.216.34", "2606:2800:220:1:248:1893:25c8:1946"])
def test_a_public_address_is_returned(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    answer(monkeypatch, [address])
    assert public_address("x.test", 80) == address


def answer(monkeypatch: pytest.MonkeyPatch, addresses: list[str]) -> None:
    found = [(0, 0, 0, "", (address, 80)) for address in addresses]
    monkeypatch.setattr(picture_urls.socket, "getaddrinfo", lambda *_, **__: found)


def test_a_host_without_an_address_is_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(picture_urls.socket, "getaddrinfo", fails)
    with pytest.raises(BrokenError) as error:
        public_address("nowhere.invalid", 80)
    assert error.value.reason == DEAD


@pytest.mark.parametrize(
    ("url", "allowed"),
    [
        ("http://a.test/x", []),
        ("http://a.test.evil.test/x", ["a.test"]),
        ("http://b.a.test/x", ["a.test"]),
        ("http://a.test:81/x", ["a.test"]),
        ("ftp://a.test/x", ["a.test"]),
        ("http://user@a.test/x", ["a.test"]),
        ("http://evil.test#@a.test/x", ["a.test"]),
        ("http://a.test:99999/x", ["a.test"]),
        ("http://[a.test/x", ["a.test"]),
        ("http:///x", ["a.test"]),
        ("http://a.test/x y", ["a.test"]),
        ("http://a.test/x\r\nHost: evil", ["a.test"]),
    ],
)
def test_only_allowed_hosts_are_asked(url: str, allowed: list[str]) -> None:
    def resolve(host: str, port: int) -> str:
        raise AssertionError(f"{host} was looked up")

    with pytest.raises(BrokenError) as error:
        fetch(url, allow_hosts=allowed, max_bytes=10, seconds=1, resolve=resolve)
    assert error.value.reason == NOT_ALLOWED
