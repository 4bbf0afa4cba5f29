"""How keys are judged."""

from __future__ import annotations

from dataclasses import dataclass

MAIN_BUDGET = 0.01


@dataclass(frozen=True)
class JudgeSettings:
    """How a key is judged; equal settings and labels give equal orders for every method.

    Args:
        budgets: False hits / served, each in (0, 1), ``MAIN_BUDGET`` among them.
        visits: Length of a Zipf replay, at most ``pool_share`` of the pool.
        orders: Number of Zipf orders.
        seed: Of cuts and orders.
        wholes: Closed-loop passes over the calibration split that tell the rate of false hits.
        halves: Passes over random halves of it that tell how the rate varies.
        store_share: Share of pictures in a fixed store.
        pool_share: Most of the pool that a Zipf replay uses up.
    """

    budgets: tuple[float, ...] = (0.001, 0.01, 0.05)
    visits: int = 10_000
    orders: int = 5
    seed: int = 0
    wholes: int = 6
    halves: int = 24
    store_share: float = 0.2
    pool_share: float = 0.6

    def __post_init__(self) -> None:
        if MAIN_BUDGET not in self.budgets or not all(0 < b < 1 for b in self.budgets):
            raise ValueError(f"budgets={self.budgets}: give shares in (0, 1), {MAIN_BUDGET} too")
        for name, least in (("visits", 1), ("orders", 1), ("wholes", 1), ("halves", 2)):
            if getattr(self, name) < least:
                raise ValueError(f"{name}={getattr(self, name)}: give at least {least}")
        for name in ("store_share", "pool_share"):
            if not 0 < getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: give a share in (0, 1)")
