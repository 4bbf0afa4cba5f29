"""The pictures that a chat log names: in the log, in files beside it, or behind URLs."""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote, unquote_to_bytes

from data.broken_lines import BrokenError
from data.emoji_catalog import cache_folder
from data.picture_urls import TOO_LARGE, Resolver, checked_url, fetch
from keynet.pictures import open_image
from keynet.types import RequestError

BAD_DATA_URL = "data URL that cannot be decoded"
NO_FILE = "picture file missing"
OUTSIDE = "picture file outside the folder"
UNREADABLE = "picture that cannot be decoded"
DIGEST = re.compile("[0-9a-f]{64}")


class PictureSources:
    """Reads pictures and keeps each once, by the SHA-256 of its bytes, when it decodes.

    Args:
        kept: Folder in which they are kept; by default in ``$KEYNET_CACHE`` or ``~/.cache/keynet``.
        allow_hosts: Hosts that may be asked for pictures, as ``host`` or ``host:port``; none by
            default. A URL is fetched once.
        max_mb: Largest picture, in millions of bytes.
        seconds: Longest wait for one URL.
        resolve: Gives the address of a host; by default ``data.picture_urls.public_address``.

    Raises:
        ValueError: For a setting out of range.
    """

    def __init__(
        self,
        *,
        kept: str | Path | None = None,
        allow_hosts: Sequence[str] = (),
        max_mb: float = 20,
        seconds: float = 10,
        resolve: Resolver | None = None,
    ) -> None:
        if isinstance(allow_hosts, str):
            raise ValueError(f"allow_hosts={allow_hosts!r}: expected a list, as [{allow_hosts}]")
        for name, value in (("max_mb", max_mb), ("seconds", seconds)):
            if not value > 0:
                raise ValueError(f"{name}={value}: expected more than 0")
        self.kept = cache_folder() / "pictures" if kept is None else Path(kept)
        self.allow_hosts, self.seconds, self.resolve = tuple(allow_hosts), seconds, resolve
        self.max_bytes = int(max_mb * 1e6)
        self._dead: dict[str, tuple[str, str]] = {}  # of this process: asked once, also in vain

    def load(self, url: str, folder: Path) -> tuple[str, Path]:
        """Return the SHA-256 of a picture in hex, and the file that keeps it.

        Args:
            url: A data URL, an http(s) URL, a ``file://`` URL or a path.
            folder: Where files are read from; none outside of it is.

        Raises:
            BrokenError: The picture cannot be had, is too large or does not decode.
        """
        scheme = url[:8].partition(":")[0].lower()
        if scheme == "data":
            return self._keep(self._of_data_url(url))
        if scheme in ("http", "https"):
            return self._fetched(url)
        return self._keep(self._of_file(url, folder))

    def _of_data_url(self, url: str) -> bytes:
        header, comma, written = url.partition(",")
        if not comma:
            raise BrokenError(BAD_DATA_URL, "it has no comma")
        encoded = header.lower().endswith(";base64")
        if len(written) * (3 / 4 if encoded else 1 / 3) > self.max_bytes + 2:
            raise BrokenError(TOO_LARGE, f"over {self.max_bytes:,} bytes")
        if not encoded:
            return unquote_to_bytes(written)
        try:
            return base64.b64decode("".join(unquote(written).split()), validate=True)
        except (binascii.Error, ValueError) as error:
            raise BrokenError(BAD_DATA_URL, str(error)) from error

    def _of_file(self, url: str, folder: Path) -> bytes:
        is_url = url[:5].lower() == "file:"
        name = unquote(url[5:]).removeprefix("//") if is_url else url
        try:
            path = (folder / name).resolve()
            if not path.is_relative_to(folder.resolve()):
                raise BrokenError(OUTSIDE, repr(url[:80]))
            if not path.is_file():
                raise BrokenError(NO_FILE, repr(url[:80]))
            if path.stat().st_size > self.max_bytes:
                raise BrokenError(TOO_LARGE, f"over {self.max_bytes:,} bytes")
            return path.read_bytes()
        except BrokenError:
            raise
        except (OSError, ValueError, RuntimeError) as error:  # a NUL in the name, a loop of links
            raise BrokenError(NO_FILE, repr(url[:80])) from error

    def _fetched(self, url: str) -> tuple[str, Path]:
        if url in self._dead:
            raise BrokenError(*self._dead[url])
        known = self.kept / "urls" / hashlib.sha256(url.encode("utf-8", "replace")).hexdigest()
        try:
            checked_url(url, self.allow_hosts)
            digest = (_content(known) or b"").decode("latin-1")
            if DIGEST.fullmatch(digest) and self._is_kept(digest):
                return digest, self._path(digest)
            found = self._keep(
                fetch(
                    url,
                    allow_hosts=self.allow_hosts,
                    max_bytes=self.max_bytes,
                    seconds=self.seconds,
                    resolve=self.resolve,
                )
            )
        except BrokenError as error:
            self._dead[url] = error.reason, error.detail
            raise
        _write(known, found[0].encode())
        return found

    def _keep(self, content: bytes) -> tuple[str, Path]:
        if len(content) > self.max_bytes:
            raise BrokenError(TOO_LARGE, f"over {self.max_bytes:,} bytes")
        digest = hashlib.sha256(content).hexdigest()
        path = self._path(digest)
        if not self._is_kept(digest):
            try:
                open_image(content)
            except RequestError as error:
                raise BrokenError(UNREADABLE, str(error)) from error
            _write(path, content)
        return digest, path

    def _is_kept(self, digest: str) -> bool:
        """Whether the file is there and whole: a power cut may have left a part of it."""
        content = _content(self._path(digest))
        return content is not None and hashlib.sha256(content).hexdigest() == digest

    def _path(self, digest: str) -> Path:
        return self.kept / digest[:2] / digest


def _content(path: Path) -> bytes | None:
    """Return what a kept file holds; None where there is none."""
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise OSError(
            error.errno,
            f"{path} cannot be read ({error.strerror}); give another folder: "
            "data.source.pictures.kept",
        ) from error


def _write(path: Path, content: bytes) -> None:
    """Write a file whole: what is there under its name has been read, decoded and kept."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
            os.replace(temporary, path)
        finally:
            Path(temporary).unlink(missing_ok=True)
    except OSError as error:
        raise OSError(
            error.errno,
            f"{path} cannot be written ({error.strerror}); make room, or give another folder: "
            "data.source.pictures.kept",
        ) from error
