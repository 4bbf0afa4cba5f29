"""Which requests of a log are equivalent, where nobody has labelled them.

Equivalent is: the same intent, in the same language, with the same answer. What a log shows of it:

* Requests of one scope with the same picture bytes (or none) and the same question are one request:
  an exact cache serves one for the other. Its answer is the commonest, if it was answered in
  several ways.
* The same question with the same answer is equivalent over different pictures as well. The same
  answer alone is not: "yes" to two questions tells nothing.
* Different questions that got the same answer about one picture (or none) may ask the same: a
  judge decides, or pairs that a user labelled, for that answer about all pictures. Else they are
  kept apart and count as in doubt. Questions that ever got different answers about one picture in
  one scope are not put before a judge.
* Different questions about different pictures are not equivalent unless the above makes them so. A
  judge of texts is not asked: of emoji's English questions, all-MiniLM-L6-v2 from .8 on joined
  pairs of which 62 % were right, against 99 % of those about one picture.
* A label decides alone; an unlabelled request joins the label of those it is equivalent with.

The same is a matter of normalised text (``normalised``). Scopes must match exactly beside the
group, so a group does not name one.
"""

from __future__ import annotations

import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from data.components import components
from keynet.cache.scope import scope_digest
from keynet.types import Request

Judge = Callable[[Request, Request], float]
Verdict = tuple[int, int, bool]  # two requests by their index, and whether they are equivalent
Pair = tuple[int, int]

FINAL = " .!?,;:。؟।"  # NFKC has made … and the wide forms of Chinese and Japanese these
MOST_PAIRS = 200_000  # of different questions that are looked at; the others stay in doubt


@dataclass(frozen=True)
class Doubt:
    """What the rules leave open.

    Args:
        requests: In a pair that nothing decides.
        pairs: Of groups that nothing decides.
        judged: Pairs that the judge or a user decided.
        joined: Of these, equivalent.
        answered_otherwise: Requests whose answer is not the commonest of the same request.
        examples: Of these pairs two requests each, those of most requests first.
        contradictions: What labels say against each other or against the rules, one line each.
    """

    requests: int
    pairs: int
    judged: int
    joined: int
    answered_otherwise: int
    examples: tuple[Pair, ...]
    contradictions: tuple[str, ...]


@dataclass(frozen=True)
class Groups:
    """Group and intent of each request, and what is in doubt."""

    group: list[str]
    intent: list[str]
    doubt: Doubt


@dataclass(frozen=True)
class _Asked:
    """One request, as often as it was asked: its lines, its answer and its class."""

    lines: list[int]
    place: tuple[str, str | None]  # scope and picture
    question: str
    answer: str
    node: int


def normalised(text: str | None) -> str:
    """Return a text in NFKC, case folded, white space single, without a final . ! ? , ; or :."""
    if text is None:
        return ""
    plain = " ".join(unicodedata.normalize("NFKC", text).casefold().split())
    return plain.rstrip(FINAL) or plain


def group_requests(
    requests: Sequence[Request],
    *,
    labels: Sequence[str | None] | None = None,
    judge: Judge | None = None,
    judge_from: float = 0.8,
    verdicts: Collection[Verdict] = (),
) -> Groups:
    """Return which requests are equivalent.

    Args:
        requests: With responses; the tag ``picture`` is the digest of the image.
        labels: The group of each, where known; it counts more than any rule.
        judge: Called with two requests of one scope and picture with the same answer to different
            questions.
        judge_from: They are equivalent from this value on.
        verdicts: What a user labelled; it counts more than the judge.
    """
    labels = [None] * len(requests) if labels is None else labels
    asked, nodes, open_nodes, contradictions = _asked(requests, labels)
    node_of = {line: one.node for one in asked for line in one.lines}
    same = {_pair(node_of[a], node_of[b]) for a, b, yes in verdicts if yes}
    apart = {_pair(node_of[a], node_of[b]): (a, b) for a, b, yes in verdicts if not yes}
    candidates, unseen = _candidates(asked, nodes)
    judged, undecided = 0, []
    for pair, example in candidates.items():
        if pair in same or pair in apart:
            continue
        if judge is None:
            undecided.append(pair)
            continue
        judged += 1
        if judge(requests[example[0]], requests[example[1]]) >= judge_from:
            same.add(pair)
    root = components(len(nodes), same)
    contradictions += [
        f"requests {_id(requests[a], a)} and {_id(requests[b], b)} are labelled as not equivalent, "
        "and other labels or the rules say that they are"
        for (one, other), (a, b) in apart.items()
        if root[one] == root[other]
    ]
    contradictions += _joined_labels(nodes, root)
    undecided = [(a, b) for a, b in undecided if root[a] != root[b]]
    doubtful = {node for pair in undecided for node in pair} | open_nodes
    doubtful |= {node for block in unseen for node in block}
    size = Counter(node_of.values())
    intent = _intents(asked, root)

    def weight(pair: Pair) -> int:
        return -size[pair[0]] - size[pair[1]]

    otherwise = sum(
        normalised(requests[line].response) != one.answer for one in asked for line in one.lines
    )
    return Groups(
        [nodes[root[node_of[line]]] for line in range(len(requests))],
        [intent[normalised(request.text)] for request in requests],
        Doubt(
            requests=sum(size[node] for node in doubtful),
            pairs=len(undecided) + sum(len(b) * (len(b) - 1) // 2 for b in unseen),
            judged=judged + len(verdicts),
            joined=len(same),
            answered_otherwise=otherwise,
            examples=tuple(candidates[pair] for pair in sorted(undecided, key=weight)),
            contradictions=tuple(contradictions),
        ),
    )


def _joined_labels(nodes: Sequence[str], root: Sequence[int]) -> list[str]:
    """Return which labels became one by pairs or by the judge."""
    labels: dict[int, list[str]] = defaultdict(list)
    for node, name in enumerate(nodes):
        if _is_label(name):
            labels[root[node]].append(name.split("\n")[1])
    return [
        f"the groups {', '.join(sorted(names))} are labelled as different, and pairs or the judge "
        "say that they are one"
        for names in labels.values()
        if len(names) > 1
    ]


def _is_label(node: str) -> bool:
    # A normalised text has no line break, so that no name of one kind is one of the other.
    return node.endswith("\n")


def _asked(
    requests: Sequence[Request], labels: Sequence[str | None]
) -> tuple[list[_Asked], list[str], set[int], list[str]]:
    """Return the distinct requests; the names of the nodes; those in doubt; contradictions.

    A node is a label, or a question with its answer.
    """
    repeats: dict[tuple[str, str | None, str], list[int]] = defaultdict(list)
    for line, r in enumerate(requests):
        scope = scope_digest(r.scope, r.image is not None, r.text is not None)
        repeats[scope, r.tags.get("picture"), normalised(r.text)].append(line)
    found, contradictions = [], []
    labels_of: dict[tuple[str, str], set[str]] = defaultdict(set)  # of a question with its answer
    for (scope, picture, question), lines in repeats.items():
        answer = _commonest([normalised(requests[line].response) for line in lines])
        given = [label for line in lines if (label := labels[line]) is not None]
        if len(set(given)) > 1:
            first = {label: _id(requests[n], n) for n in reversed(lines) if (label := labels[n])}
            contradictions.append(
                "requests that are the same have different groups: "
                + ", ".join(f"{label} ({who})" for label, who in sorted(first.items()))
            )
        label = _commonest(given) if given else None
        found.append((lines, (scope, picture), question, answer, label))
        if label is not None:
            labels_of[question, answer].add(label)
    numbers: dict[str, int] = {}
    asked, open_nodes = [], set()
    for lines, place, question, answer, label in found:
        known = labels_of[question, answer]
        joined = label or (min(known) if len(known) == 1 else None)
        name = f"{question}\n{answer}" if joined is None else f"label\n{joined}\n"
        node = numbers.setdefault(name, len(numbers))
        asked.append(_Asked(lines, place, question, answer, node))
        if joined is None and known:
            open_nodes.add(node)
    return asked, list(numbers), open_nodes, contradictions


def _candidates(
    asked: Sequence[_Asked], nodes: Sequence[str]
) -> tuple[dict[Pair, Pair], list[list[int]]]:
    """Return pairs of nodes that may be one, each with two requests to tell by.

    Also the nodes of each set of questions that is too large to look at.
    """
    answer_at: dict[tuple[str, str | None], dict[str, str]] = defaultdict(dict)
    blocks: dict[tuple[tuple[str, str | None], str], list[_Asked]] = defaultdict(list)
    places: dict[str, set[tuple[str, str | None]]] = defaultdict(set)
    for one in asked:
        answer_at[one.place][one.question] = one.answer
        blocks[one.place, one.answer].append(one)
        places[one.question].add(one.place)

    def differ(a: str, b: str) -> bool:
        fewer, other = (a, b) if len(places[a]) <= len(places[b]) else (b, a)
        return any(
            answer_at[place].get(other, answer_at[place][fewer]) != answer_at[place][fewer]
            for place in places[fewer]
        )

    candidates: dict[Pair, Pair] = {}
    unseen, left = [], MOST_PAIRS
    for block in sorted(blocks.values(), key=len):
        count = len(block) * (len(block) - 1) // 2
        if count > left:
            unseen.append([one.node for one in block])
            continue
        left -= count
        for one, other in _different(block, nodes):
            pair = _pair(one.node, other.node)
            if pair not in candidates and not differ(one.question, other.question):
                candidates[pair] = one.lines[0], other.lines[0]
    return candidates, unseen


def _different(block: Sequence[_Asked], nodes: Sequence[str]) -> Iterator[tuple[_Asked, _Asked]]:
    """Return the pairs of different nodes that are not two labels."""
    for one, other in combinations(block, 2):
        labelled = _is_label(nodes[one.node]) and _is_label(nodes[other.node])
        if one.node != other.node and not labelled:
            yield one, other


def _intents(asked: Sequence[_Asked], root: Sequence[int]) -> Mapping[str, str]:
    """Return the intent of each question: those of one group have one."""
    numbers: dict[str, int] = {}
    first: dict[int, int] = {}
    joined = []
    for one in asked:
        question = numbers.setdefault(one.question, len(numbers))
        joined.append((first.setdefault(root[one.node], question), question))
    names = list(numbers)
    return dict(zip(names, (names[n] for n in components(len(names), joined)), strict=True))


def _pair(one: int, other: int) -> Pair:
    return (one, other) if one < other else (other, one)


def _commonest(values: Sequence[str]) -> str:
    """Return the most frequent value; of several, the first in the order of text."""
    counts = Counter(values)
    return min(counts, key=lambda value: (-counts[value], value))


def _id(request: Request, number: int) -> str:
    return request.tags.get("id", str(number))
