"""The tables of scripts.ablate: what each row changes."""

from __future__ import annotations

from typing import NamedTuple


class Row(NamedTuple):
    """One variant.

    Args:
        options: Of train.py.
        start: Row from whose model, of the same seed, it goes on.
        by_code: Judged by its code instead of its vector.
        untrained: The encoders' vectors side by side.
    """

    options: tuple[str, ...] = ()
    start: str | None = None
    by_code: bool = False
    untrained: bool = False


class Ablation(NamedTuple):
    """One table.

    Args:
        student: Options of all rows; the command's come after them.
        rows: By name; the first is what the others are compared with.
        captioned: Rows where captions are trained on (loss=with_captions) alone.
        served: Whether hits at a calibrated threshold are measured, which takes half a minute.
        perturbed: Whether flips under perturbations are.
        drift: Judged instead on a stream that goes from the first of these vendors to the second.
        swept: Value of the setting that a row tries, by row: drawn as a curve.
    """

    student: tuple[str, ...]
    rows: dict[str, Row]
    captioned: dict[str, Row] = {}  # noqa: RUF012 - read only
    served: bool = True
    perturbed: bool = False
    drift: tuple[str, str] | None = None
    swept: dict[str, float] = {}  # noqa: RUF012 - read only


ONE = "distill/objectives=feature"  # a teacher of one modality has no similarities between both
TAUGHT = "distill=packaged"
TEACHERS = Ablation(
    student=(
        "encoder=tiny", "encoder.text.width=128", "encoder.text.depth=2",
        "encoder.image.frozen_blocks=8", "encoder.image.places=0", "encoder.dims.image=1280",
        "aligner.dropout=0.3", "steps=100", TAUGHT,
    ),
    rows={
        "no teacher": Row(("distill=none",)),
        "lite0": Row((ONE, "~distill.teachers.minilm", "~distill.teachers.bridge")),
        "minilm": Row((ONE, "~distill.teachers.lite0", "~distill.teachers.bridge")),
        "bridge": Row(("~distill.teachers.lite0", "~distill.teachers.minilm")),
        "all, uniform": Row(),
        "all, affinity alone": Row(("distill/objectives=affinity",)),
        "all, feature alone": Row(("distill/objectives=feature",)),
        "all, by precision": Row(("distill/weighting=precision",)),
        "all, by rank of precision": Row(
            ("distill/weighting=precision", "distill.weighting.by=rank")
        ),
        "all, by dispersion": Row(("distill/weighting=dispersion",)),
        "all, keep the worst": Row(("distill/weighting=keep_worst",)),
        "all, running standardiser": Row(("distill.standardise=running",)),
    },
    captioned={"all, and text contrast": Row(("distill/objectives=with_captions",))},
    served=False,
)  # fmt: skip

FROZEN = ("encoder=packaged", "aligner.dropout=0.1", "data.features=outputs/features")
TOKENS = "encoder.image.tokens=true"
MM_ALIGN = "MM-Align"
MORE = "steps=100"
ALIGNERS = Ablation(
    student=(*FROZEN, "steps=300"),
    rows={
        MM_ALIGN: Row(),
        "concatenation": Row(("fusion=concatenation",), untrained=True),
        "MM-Align, weighted sum alone": Row(("fusion=weighted_sum",)),
        "MM-Align, hidden layer": Row(("aligner=mlp", "aligner.dropout=0.1")),
        "+ adapter": Row(("adapter=clip_adapter",)),
        "+ prior": Row(("augment=diffusion_prior", "steps=100"), start=MM_ALIGN),
        "MM-Align, more steps": Row((MORE,), start=MM_ALIGN),
        "MM-Align, 128-bit code": Row(("bits=128",), by_code=True),
        "joint hash, 64 bits a modality": Row(
            (
                "fusion=concatenation", "hash_head=by_modality", "loss=joint_hash",
                "key_dim=128", "aligner.key_dim=64", "bits=128",
            ),
            by_code=True,
        ),
        "+ Q-Former": Row(("fusion=qformer", TOKENS)),
        "+ both": Row(("adapter=clip_adapter", "fusion=qformer", TOKENS)),
    },
)  # fmt: skip

CROSSED = ("loss=crossed",)
LOSSES = Ablation(
    student=(*FROZEN, "steps=300"),
    rows={
        MM_ALIGN: Row(),
        "crossed": Row(CROSSED),
        "MM-Align, code": Row(by_code=True),
        "crossed, code": Row(CROSSED, by_code=True),
    },
)

STRONG = ("augment.keys.strength=0.6", "augment.weight=4")
STRONGER = ("steps=200", "data.perturbed=1.0", "augment.keys.strength=0.8", "augment.weight=8")
AUGMENT = Ablation(
    student=(*FROZEN, "steps=300"),
    rows={
        MM_ALIGN: Row(),
        "more steps": Row((MORE,), start=MM_ALIGN),
        "200 more steps": Row(("steps=200",), start=MM_ALIGN),
        "Gaussian noise": Row((MORE, "augment=gaussian"), start=MM_ALIGN),
        "diffusion prior": Row((MORE, "augment=diffusion_prior"), start=MM_ALIGN),
        "perturbed inputs": Row((MORE, "data.perturbed=0.5"), start=MM_ALIGN),
        "Gaussian noise, strong": Row((MORE, "augment=gaussian", *STRONG), start=MM_ALIGN),
        "diffusion prior, strong": Row((MORE, "augment=diffusion_prior", *STRONG), start=MM_ALIGN),
        "all inputs perturbed": Row(("steps=200", "data.perturbed=1.0"), start=MM_ALIGN),
        "all inputs perturbed, Gaussian noise, stronger": Row(
            ("augment=gaussian", *STRONGER), start=MM_ALIGN
        ),
        "all inputs perturbed, diffusion prior, stronger": Row(
            ("augment=diffusion_prior", *STRONGER), start=MM_ALIGN
        ),
    },
    perturbed=True,
)
ALPHA = (0.6, 0.0, 0.2, 0.4, 0.8, 1.0)  # the first is the spec's
ALPHAS = Ablation(
    student=(*FROZEN, "steps=150", "fusion=qformer", TOKENS),
    rows={
        f"alpha {alpha}": Row((f"fusion.alpha={alpha}",))
        for alpha in (*ALPHA, "learned", "alignment")
    },
    swept={f"alpha {alpha}": alpha for alpha in ALPHA},
)
BOTH = "module.trained=[image_adapter,aligner.projections.text]"
AFTER = (MORE, "data.source.hold_out_vendor=twemoji", "adapter=low_rank")
DRIFT = Ablation(
    student=(*FROZEN, "steps=300", "data.source.hold_out_vendor=openmoji"),
    rows={
        "first vendor alone": Row(),
        "both vendors": Row(("data.source.hold_out_vendor=null",)),
        "adapter": Row((*AFTER, "module.trained=[image_adapter]"), start="first vendor alone"),
        "adapter and texts": Row((*AFTER, BOTH), start="first vendor alone"),
        "adapter and texts, GradNorm": Row(
            (*AFTER, BOTH, "module.gradnorm=0.3"), start="first vendor alone"
        ),
    },
    drift=("twemoji", "openmoji"),
)
TABLES = {
    "teachers": TEACHERS,
    "aligners": ALIGNERS,
    "losses": LOSSES,
    "augment": AUGMENT,
    "alpha": ALPHAS,
    "drift": DRIFT,
}
