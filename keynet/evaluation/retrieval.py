"""Whether a key finds the same entity in another vendor's drawings."""

from __future__ import annotations

import numpy as np

from keynet.evaluation.cuts import NAMING
from keynet.evaluation.labels import Labels
from keynet.evaluation.records import Record, Sheet
from keynet.replay.neighbours import Floats, similarities


def recall_at_1(
    keys: Floats, labels: Labels, sheet: Sheet, stored: str, asked: str, seed: int = 0
) -> Record:
    """Share of entities whose name, asked over vendor ``asked``, lands on the same entity.

    One query an entity; the store is every naming request over drawings of vendor ``stored`` for
    the entities that both vendors are asked for in one way, of the same modalities as the query.
    """
    naming = np.isin(labels.kind_of_intent, NAMING) & (labels.entity >= 0)
    a, b = naming & (labels.vendor == stored), naming & (labels.vendor == asked)
    way = 2 * labels.entity + (labels.modalities == "image+text")  # named in words, or not
    both = np.intersect1d(way[a], way[b])
    shuffled = np.random.default_rng(seed).permutation(len(labels))
    candidates = shuffled[(b & np.isin(way, both))[shuffled]]
    query = candidates[np.unique(labels.entity[candidates], return_index=True)[1]]
    right = 0
    for present in np.unique(labels.modalities[query]):
        mine = query[labels.modalities[query] == present]
        store = np.flatnonzero(a & np.isin(way, both) & (labels.modalities == present))
        if len(store):
            found = store[similarities(keys[mine], keys[store]).argmax(axis=1)]
            right += int((labels.entity[found] == labels.entity[mine]).sum())
    note = "" if len(query) else f"{stored} and {asked} share no entity that is asked for its name"
    return sheet.share("recall_at_1", right, len(query), note)
