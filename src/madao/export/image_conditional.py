"""The features of an image, and the probabilities that a policy computes from them, with Pillow only.

The file that `madao export --to python` writes for a policy that depends on the image contains these functions, so each
must be readable alone.
"""

import math

from PIL import Image, ImageChops, ImageStat

Picture = Image.Image


def features(image: Picture) -> list[float]:
    """Return means and deviations of the channels, how much neighbours differ, and the brightness of 4 × 4 patches."""

    def level(part: Picture) -> float:
        return ImageStat.Stat(part).mean[0] / 255

    colour = ImageStat.Stat(image.convert("RGB"))
    thumb = image.convert("L").resize((16, 16), Image.Resampling.BOX)
    across = ImageChops.difference(thumb.crop((1, 0, 16, 16)), thumb.crop((0, 0, 15, 16)))
    down = ImageChops.difference(thumb.crop((0, 1, 16, 16)), thumb.crop((0, 0, 16, 15)))
    corners = [(x, y) for y in range(0, 16, 4) for x in range(0, 16, 4)]
    patches = [level(thumb.crop((x, y, x + 4, y + 4))) - level(thumb) for x, y in corners]
    return [value / 255 for value in (*colour.mean, *colour.stddev)] + [level(across), level(down), *patches]


def law(image: Picture, seen: list, units: list, stages: list) -> list:  # type: ignore[type-arg]
    """Return the probabilities and strengths of an image: for each stage, one row per operation.

    Args:
        image: The image.
        seen: Mean and standard deviation of each feature.
        units: For each hidden unit, its bias, its mean, and a weight per feature.
        stages: For each stage and operation, three parts. First come the logits of selection, application and
            magnitude. Then come the strengths at no and at full magnitude in both directions. Last come the amounts
            that each unit adds to the logits.
    """

    def sigmoid(logit: float) -> float:
        return 0.5 + 0.5 * math.tanh(0.5 * logit)

    def product(one: list[float], other: list[float]) -> float:
        return sum(a * b for a, b in zip(one, other, strict=True))

    inputs = [(value - centre) / scale for value, (centre, scale) in zip(features(image), seen, strict=True)]
    hidden = []
    for bias, offset, weights in units:
        unit = math.tanh(product(weights, inputs) / len(inputs) ** 0.5 + bias) - offset
        hidden.append(unit / len(units) ** 0.5)
    found = []
    for stage in stages:
        rows: list = []  # type: ignore[type-arg]
        for operation, logits, neutral, one_way, other_way, outputs in stage:
            selection, application, magnitude = (
                logit + product(added, hidden) for logit, added in zip(logits, outputs, strict=True)
            )
            mu = sigmoid(magnitude)
            strengths = (neutral + mu * (way - neutral) for way in (one_way, other_way))
            rows.append((operation, selection, sigmoid(application), *strengths, neutral))
        most = max(row[1] for row in rows)
        found.append([(operation, math.exp(logit - most), *rest) for operation, logit, *rest in rows])
    return found
