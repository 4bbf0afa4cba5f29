"""Write questions of Parquet files as a chat log: python -m scripts.write_question_log FILES LOG

For data sets of questions about pictures with their answers, as Hugging Face's; the log is read by
``data=chat_log``.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from data.question_log import write_question_log
from keynet.training.config import explained


def parser() -> argparse.ArgumentParser:
    """What the command line takes."""
    one = argparse.ArgumentParser(prog="python -m scripts.write_question_log", description=__doc__)
    one.add_argument("files", nargs="+", help="Parquet files, globs or ranges as q-{0..3}.parquet")
    one.add_argument("log", type=Path, help="the chat log to write; pictures lie beside it")
    for column in ("image", "question", "answer"):
        one.add_argument(f"--{column}", default=column, help=f"column, {column} by default")
    one.add_argument("--model", default="parquet", help="who answered: part of the scope")
    return one


def main() -> None:
    """Write the log and say how many lines it has."""
    args = parser().parse_args()
    lines = write_question_log(
        args.files, args.log,
        image=args.image, question=args.question, answer=args.answer, model=args.model,
    )  # fmt: skip
    print(f"{args.log}: {lines:,} lines")


if __name__ == "__main__":
    explained(main)
