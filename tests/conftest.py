"""A data source of six flat colours: bytes in, questions and groups out, nothing to install."""

from __future__ import annotations

import io

import pytest
from PIL import Image

from keynet.types import Request

COLOURS = ("red", "green", "blue", "orange", "black", "white")
ASKED = ("what colour is it", "tell me the colour")


def png(colour: str, size: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (size, size), colour).save(buffer, "PNG")
    return buffer.getvalue()


class ToySource:
    """Each colour in three sizes; two phrasings of its name, "is it C" with and without "not"."""

    name = "toy"
    attribution = ("Pictures: nobody.",)
    disjoint_phrasings = False

    def requests(self, split: str) -> list[Request]:
        made = []
        for number, colour in enumerate(COLOURS):
            other = COLOURS[(number + 1) % len(COLOURS)]
            for size in (8, 9, 10):
                asked = [(text, "colour()", colour) for text in ASKED]
                asked += [(f"is it {c}?", f"is({c})", str(c == colour)) for c in (colour, other)]
                asked += [(f"is it not {colour}?", f"not is({colour})", "False")]
                for text, intent, response in asked:
                    made.append(self._request(png(colour, size), text, colour, intent, response))
            made.append(self._request(png(colour, 11), None, colour, "describe", colour))
        made += [self._request(None, text, None, "colour() alone", "no picture") for text in ASKED]
        return made

    @staticmethod
    def _request(
        image: bytes | None, text: str | None, colour: str | None, intent: str, response: str
    ) -> Request:
        tags = {"family": intent.split("(")[0], "negated": str(int(intent.startswith("not")))}
        if colour is not None:
            tags["picture"] = colour
        group = f"{intent}|{response}"
        return Request(
            image=image, text=text, response=response, group=group, entity=colour, intent=intent,
            tags=tags,
        )  # fmt: skip


@pytest.fixture(scope="session")
def toy_source() -> ToySource:
    return ToySource()
