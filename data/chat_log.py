"""A user's own chat log: JSON lines of requests and answers, as OpenAI's API has them."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import isnan
from pathlib import Path
from typing import Any

from data.broken_lines import BrokenError, BrokenLines
from data.chat_lines import SCOPED, ChatLine, read_line
from data.labelled_pairs import read_pairs
from data.log_file import MAX_LINE, format_hint, read_lines
from data.log_groups import Doubt, Judge, group_requests, normalised
from data.log_splits import split_by_parts
from data.picture_sources import PictureSources
from data.profile import most_distinct_served
from data.requests import Split
from keynet.cache.threshold import served_needed
from keynet.types import Request

logger = logging.getLogger(__name__)

MOST_BROKEN = 0.5
BUDGET = 0.01  # of false hits: reports lead with it (keynet.evaluation.settings.MAIN_BUDGET)


class RefusedLogError(ValueError):
    """A log of which too much is broken.

    Args:
        message: What is wrong with it.
        lines: Read, broken ones included.
        broken: Those that cannot be used.
    """

    def __init__(self, message: str, lines: int, broken: BrokenLines) -> None:
        super().__init__(message)
        self.lines, self.broken = lines, broken


@dataclass(frozen=True)
class Log:
    """What was read.

    Args:
        lines: Read, broken ones included.
        broken: Those that cannot be used.
        unread: How many lines have each field that is not read.
        requests: Of the others, in their order, with group and intent.
        split: Of each request; None where a fold leaves it out.
        doubt: What is open about the groups.
    """

    lines: int
    broken: BrokenLines
    unread: Mapping[str, int]
    requests: list[Request]
    split: list[Split | None]
    doubt: Doubt


class ChatLog:
    """The data source of a chat log, one request a line.

    ``{"messages": [...], "response": TEXT or COMPLETION, "model": NAME}`` with sampling fields as
    ``data.chat_lines.SAMPLING`` and, where known, ``id``, ``conversation``, ``tenant``, ``scene``,
    ``device``, ``user``, ``group`` and ``usage``. Without a response, the last message is it when
    the assistant wrote it. What of it makes the scope: ``data.chat_lines``. Which requests are
    equivalent: ``data.log_groups``.

    A line that cannot be used is counted by its reason (``log.broken``); nothing else is left out.
    Verbatim repeats stay: an exact cache would save them. Requests that share a conversation or a
    picture, or repeat a text without one, are in the same split.

    Args:
        path: The log.
        name: What reports call it.
        seed: Cuts the splits.
        calibration, test: Shares of the requests.
        fold: ``test``, or ``dev`` to choose by: then all three splits are cut from what is
            otherwise trained on.
        model: Of lines that name none.
        shared: Which of tenant, scene, device and user are left out of the scope, as
            ``keynet.SHARED`` says it in serving; lines that lack one share it anyhow.
        folder: Where picture files are, and below; by default the log's own.
        pictures: Reads pictures.
        judge: Tells from two requests how surely they are equivalent.
        judge_from: They are from this value on.
        pairs: JSON lines ``{"a": ID, "b": ID, "same": true or false}`` that a user labelled.

    Raises:
        ValueError: For a setting out of range.
    """

    attribution: tuple[str, ...] = ()
    disjoint_phrasings = False  # as many as were logged

    def __init__(
        self,
        *,
        path: str | Path,
        name: str = "chat_log",
        seed: int = 0,
        calibration: float = 0.2,
        test: float = 0.2,
        fold: str = "test",
        model: str | None = None,
        shared: Sequence[str] = ("scene", "device", "user"),
        folder: str | Path | None = None,
        pictures: PictureSources | None = None,
        judge: Judge | None = None,
        judge_from: float = 0.8,
        pairs: str | Path | None = None,
    ) -> None:
        if not (calibration > 0 and test > 0 and calibration + test < 1):
            raise ValueError(
                f"data.source.calibration={calibration} and test={test}: expected shares above 0 "
                "that leave some for training"
            )
        if type(judge_from) not in (int, float) or isnan(judge_from):
            raise ValueError(f"data.source.judge_from={judge_from!r}: expected a number")
        if fold not in ("test", "dev"):
            raise ValueError(f"data.source.fold={fold!r}: expected test or dev")
        if isinstance(shared, str) or not set(shared) <= set(SCOPED):
            raise ValueError(f"data.source.shared={shared}: expected a list of some of {SCOPED}")
        self.path, self.seed, self.model = Path(path), seed, model
        self.name, self.fold = name if fold == "test" else f"{name}_dev", fold
        self.shares: dict[Split, float] = {
            "train": 1 - calibration - test, "calibration": calibration, "test": test,
        }  # fmt: skip
        self.shared = frozenset(shared)
        self.folder = self.path.parent if folder is None else Path(folder)
        self.pictures = PictureSources() if pictures is None else pictures
        self.judge, self.judge_from = judge, judge_from
        self.pairs = None if pairs is None else Path(pairs)

    def requests(self, split: Split) -> list[Request]:
        """Return the requests of a split, in the order of the log."""
        return [r for r, of in zip(self.log.requests, self.log.split, strict=True) if of == split]

    @cached_property
    def log(self) -> Log:
        """What the log holds, read at the first use.

        Raises:
            FileNotFoundError: There is no such log, or no such file of pairs.
            RefusedLogError: More than half of its lines are broken.
            ValueError: There is no line, or there are too few for three splits.
        """
        broken, unread, found = BrokenLines(), Counter[str](), dict[int, ChatLine]()
        scopes: dict[str, Mapping[str, Any]] = {}
        lines = 0
        for lines, line in read_lines(self.path):
            try:
                if line is None:
                    raise BrokenError("line too long", f"over {MAX_LINE:,} bytes")
                read = read_line(line, self._load, model=self.model, shared=self.shared)
            except BrokenError as error:
                broken.add(lines, error)
                continue
            unread.update(read.unread)
            # A system prompt is kept once, not once a line.
            found[lines] = replace(read, scope=scopes.setdefault(read.scope_digest, read.scope))
        self._check(lines, broken)
        requests = [_request(number, line) for number, line in found.items()]
        groups = group_requests(
            requests,
            labels=[line.group for line in found.values()],
            judge=self.judge,
            judge_from=self.judge_from,
            verdicts=[] if self.pairs is None else read_pairs(self.pairs, requests),
        )
        for contradiction in groups.doubt.contradictions:
            logger.warning("%s: %s", self.path, contradiction)
        if unread:
            fields = ", ".join(f"{name} ({count:,})" for name, count in unread.most_common())
            logger.warning("%s: fields that are not read, in how many lines: %s", self.path, fields)
        requests = [
            replace(request, group=group, intent=intent)
            for request, group, intent in zip(requests, groups.group, groups.intent, strict=True)
        ]
        try:
            split = self._split([_parts(line) for line in found.values()])
        except ValueError as error:
            raise ValueError(f"{self.path}: {error}") from error
        self._warn_of_few(requests, split)
        return Log(lines, broken, dict(unread.most_common()), requests, split, groups.doubt)

    def _warn_of_few(self, requests: Sequence[Request], split: Sequence[Split | None]) -> None:
        own = [r for r, of in zip(requests, split, strict=True) if of == "calibration"]
        most, needed = most_distinct_served(own), served_needed(BUDGET)
        if most < needed:
            logger.warning(
                "%s: of the calibration split (requests: %s) a perfect key serves %s different "
                "questions; a budget of %g %% needs %s, so its figures will be n/a; give more of "
                "the log, or a larger data.source.calibration",
                self.path, f"{len(own):,}", f"{most:,}", 100 * BUDGET, f"{needed:,}",
            )  # fmt: skip

    def _split(self, parts: Sequence[set[Hashable]]) -> list[Split | None]:
        split: list[Split | None] = [*split_by_parts(parts, self.shares, self.seed)]
        if self.fold == "dev":
            own = [number for number, of in enumerate(split) if of == "train"]
            inner = split_by_parts([parts[number] for number in own], self.shares, self.seed)
            split = [None] * len(parts)
            for number, of in zip(own, inner, strict=True):
                split[number] = of
        return split

    def _load(self, url: str) -> tuple[str, Path]:
        return self.pictures.load(url, self.folder)

    def _check(self, lines: int, broken: BrokenLines) -> None:
        if lines == 0:
            raise ValueError(f"{self.path} is empty; expected one JSON object a line")
        message = f"{self.path}: {len(broken):,} of {lines:,} lines are broken: {broken.summary()}"
        if len(broken) > MOST_BROKEN * lines:
            raise RefusedLogError(
                f"{message}; more than half{format_hint(self.path)}; mend the log "
                "(scripts.profile_data writes the numbers of all)",
                lines,
                broken,
            )
        if broken:
            logger.warning("%s", message)


def _request(number: int, line: ChatLine) -> Request:
    tags = {"id": line.id or f"line {number}", "line": str(number)}
    if line.text is not None:
        tags["phrasing"] = normalised(line.text)
    for name, value in (("picture", line.picture), ("conversation", line.conversation)):
        if value is not None:
            tags[name] = value
    if line.tokens is not None:
        tags["tokens"] = str(line.tokens)
    return Request(
        image=line.image,
        text=line.text,
        scope=line.scope,
        response=line.response,
        entity=line.picture,
        tags=tags,
    )


def _parts(line: ChatLine) -> set[Hashable]:
    """Return what must not be in two splits."""
    parts: set[Hashable] = {("picture", digest) for digest in line.seen}
    if line.conversation is not None:
        parts.add(("conversation", line.conversation))
    if line.picture is None:
        parts.add(("text", normalised(line.text)))
    return parts
