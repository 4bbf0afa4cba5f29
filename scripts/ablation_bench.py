"""One data set for scripts.ablate: its stored features, and how variants are judged on them."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from data.datamodule import RequestBatches, RequestDataModule
from data.perturbed import TRAINED, perturbed
from data.requests import CaptionedSource
from keynet.evaluation.ablation import SETTINGS, PassFigures, drifting_stream, single_pass
from keynet.evaluation.captions import CaptionVectors, ranks
from keynet.evaluation.cuts import cut
from keynet.evaluation.evaluate import photographs
from keynet.evaluation.fixed_store import area_under, serve
from keynet.evaluation.labels import Labels
from keynet.replay.neighbours import Floats
from keynet.training.stems import encoder_stems
from keynet.types import KeyOutput, Request, TrainingBatch
from scripts.ablations import Ablation

CHUNK = 240
PERTURBED = 400  # test requests whose perturbations are looked at
NOISE = 0.1  # of a feature's length, as noise on the encoders' output
TIMED = 50


class Bench:
    """Training, calibration and test requests of one source under one encoder.

    Args:
        cfg: Whose ``data`` and ``encoder`` count.
        source: Its source, made before.
    """

    def __init__(self, cfg: DictConfig, source: Any) -> None:
        self._settings = _settings(cfg)
        self.data: RequestDataModule = instantiate(cfg.data, source=source)
        model = instantiate(cfg.model)
        self.data.stems = dict(encoder_stems(model, "cpu"))
        _ = self.data.batches  # made now, with these stems
        self._captioned = isinstance(source, CaptionedSource)
        self._cal = self._batches(source.requests("calibration"))
        self._test = self._batches(source.requests("test"))
        self._captions = self._batches(source.captions("test") if self._captioned else [])
        self._perturbed: dict[str, RequestBatches] = {}
        self._disjoint = source.disjoint_phrasings

    def serves(self, cfg: DictConfig) -> bool:
        """Whether a run of this configuration has the same requests and features."""
        return _settings(cfg) == self._settings

    def _batches(self, requests: Sequence[Request]) -> RequestBatches:
        data = self.data
        return RequestBatches(requests, data.preprocessor, data.stems, data.features)

    def concatenated(self, table: Ablation) -> dict[str, Any]:
        """Judge both encoders' unit vectors side by side, without any training."""
        return self._figures(_joined(self._cal), _joined(self._test), table)

    @torch.no_grad()
    def judge(
        self, module: Any, table: Ablation, by_code: bool, before: Any = None
    ) -> dict[str, Any]:
        """Return the figures of one model, and its hits by picture where ``table`` is served.

        Args:
            module: With the model, in evaluation mode.
            table: Says what is measured.
            by_code: Judge the code instead of the vector.
            before: Where vendors change, the model until then; None is the same.
        """
        model = module.model
        if table.drift is not None:
            start = before or model
            cal = _outputs(start, self._cal).key.numpy()
            keys = [_outputs(m, self._test).key.numpy() for m in (start, model)]
            labels = [Labels.of(b.requests) for b in (self._cal, self._test)]
            return drifting_stream(cal, labels[0], *keys, labels[1], table.drift)._asdict()
        test, cal = _outputs(model, self._test), _outputs(model, self._cal)
        found = self._figures(_rows(cal, by_code), _rows(test, by_code), table)
        # Search by caption says something where captions were trained on.
        if self._captions.requests and bool(self.data.batches.described.any()):
            outputs = _outputs(model, self._captions)
            first, picture_of = photographs(self._captions.requests)
            vectors = CaptionVectors(outputs.image[first].numpy(), outputs.text.numpy())
            to_image, _ = ranks(vectors, picture_of)
            found |= {f"recall_at_{k}": float((to_image <= k).mean()) for k in (1, 10)}
        heads = (model.image_adapter, model.aligner, model.fusion, model.hash_head)
        found["head_params"] = float(sum(p.numel() for head in heads for p in head.parameters()))
        if "text" in self.data.stems:
            found["head_ms"] = _milliseconds(model, self._test)
        if table.perturbed:
            if module.augmentation is not None:
                moved = module.augmentation(test.key, test.image, test.text)
                found["augmented_cosine"] = float((moved * test.key).sum(1).mean())
            found |= self._flips(model, test)
        return found

    def _figures(self, cal_keys: Floats, keys: Floats, table: Ablation) -> dict[str, Any]:
        labels = Labels.of(self._test.requests)
        share = SETTINGS.store_share
        parts = cut(labels, "all", disjoint_phrasings=self._disjoint, store_share=share)
        found: dict[str, Any] = {"p_chr_auc": area_under(serve(keys, labels, parts))}
        if table.served:
            passed: PassFigures = single_pass(cal_keys, Labels.of(self._cal.requests), keys, labels)
            found |= passed._asdict()
        return found

    def _flips(self, model: Any, clean: KeyOutput) -> dict[str, float]:
        """Return the share of bits that flip under each perturbation, and their mean."""
        chosen = _sample(self._test.requests)
        bits = clean.logits[chosen] >= 0
        if not self._perturbed:
            named: dict[str, list[tuple[int, Request]]] = {}
            for place, number in enumerate(chosen):
                for name, request in perturbed(self._test.requests[number]).items():
                    named.setdefault(name, []).append((place, request))
            self._places = {name: [place for place, _ in pairs] for name, pairs in named.items()}
            self._perturbed = {
                name: self._batches([request for _, request in pairs])
                for name, pairs in named.items()
            }
        flips = {
            name: _flipped(bits[self._places[name]], _outputs(model, batches).logits >= 0)
            for name, batches in self._perturbed.items()
        }
        noisy = _with_noise(self._test[chosen])
        flips["encoder_noise"] = _flipped(bits, model(*noisy[:6]).logits >= 0)
        # Apart: what data.perturbed trains on, and what no training has seen.
        seen = [share for name, share in flips.items() if name in TRAINED]
        unseen = [share for name, share in flips.items() if name not in TRAINED]
        means = {"all": [*seen, *unseen], "seen": seen, "unseen": unseen}
        found = {f"flips_{name}": sum(some) / len(some) for name, some in means.items()}
        return found | {f"flips_{name}": share for name, share in flips.items()}


def _settings(cfg: DictConfig) -> str:
    free = ("seed", "batches_per_epoch", "batch_size")
    data = OmegaConf.masked_copy(cfg.data, [key for key in cfg.data if key not in free])
    return OmegaConf.to_yaml(OmegaConf.create({"d": data, "e": cfg.encoder}), resolve=False)


def _sample(requests: Sequence[Request]) -> list[int]:
    both = [n for n, r in enumerate(requests) if r.image is not None and r.text is not None]
    return np.random.default_rng(0).permutation(both)[:PERTURBED].tolist()


def _outputs(model: Any, batches: RequestBatches) -> KeyOutput:
    rows = range(len(batches.requests))
    chunks = [rows[first : first + CHUNK] for first in range(0, len(rows), CHUNK)]
    with torch.no_grad():
        found = [model(*batches[chunk][:6]) for chunk in chunks]
    return KeyOutput(*(torch.cat(tensors) for tensors in zip(*found, strict=True)))


def _rows(outputs: KeyOutput, by_code: bool) -> Floats:
    if not by_code:
        return outputs.key.numpy()
    signs = torch.where(outputs.logits >= 0, 1.0, -1.0)
    return (signs / signs.shape[1] ** 0.5).numpy()


def _joined(batches: RequestBatches) -> Floats:
    parts = []
    for first in range(0, len(batches.requests), CHUNK):
        batch = batches[range(first, min(first + CHUNK, len(batches.requests)))]
        image = batch.images.float()[batch.image_index] * batch.image_mask[:, None]
        present = batch.token_mask.any(1)[batch.text_index]
        text = batch.tokens.float()[batch.text_index] * present[:, None]
        both = [torch.nn.functional.normalize(x, dim=1) for x in (image, text)]
        parts.append(torch.nn.functional.normalize(torch.cat(both, 1), dim=1))
    return torch.cat(parts).numpy()


def _flipped(before: torch.Tensor, after: torch.Tensor) -> float:
    return float((before != after).float().mean())


def _with_noise(batch: TrainingBatch) -> TrainingBatch:
    generator = torch.Generator().manual_seed(zlib.crc32(b"encoder_noise"))
    changed = {}
    for name in ("images", "tokens"):
        rows = getattr(batch, name).float()
        noise = torch.randn(rows.shape, generator=generator)
        scale = NOISE * rows.norm(dim=-1, keepdim=True) / rows.shape[-1] ** 0.5
        changed[name] = rows + scale * noise
    return batch._replace(**changed)


def _milliseconds(model: Any, batches: RequestBatches) -> float:
    """Median of what follows the encoders, for one request."""
    batch = batches[_sample(batches.requests)[:1]]
    one = [tensor[:1] for tensor in batch[:6]]
    times = []
    for _ in range(TIMED):
        start = perf_counter()
        model(*one)
        times.append(1000 * (perf_counter() - start))
    return median(times[TIMED // 2 :])
