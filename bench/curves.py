"""Curves against the length of a context, both axes logarithmic, as SVG."""

import math

import svg


def context_name(n):
    return f"{n // 1024}K" if n >= 1024 else str(n)


def label_places(wanted, step=15):
    """Heights of labels: where lines end close together, moved up until they are `step` apart."""
    places, last = {}, math.inf
    for i in sorted(range(len(wanted)), key=lambda i: -wanted[i]):
        last = places[i] = min(wanted[i], last - step)
    return [places[i] for i in range(len(wanted))]


def draw(lines, title, path):
    """lines: [(name, colour, [(context, value)])]; those without points are left out."""
    lines = [line for line in lines if line[2]]
    contexts = sorted({x for _, _, points in lines for x, _ in points})
    values = [y for _, _, points in lines for _, y in points]
    low, high = 10 ** math.floor(math.log10(min(values))), 10 ** math.ceil(math.log10(max(values)))
    picture = svg.Picture(760, 360, title)
    panel = svg.Panel(picture, (60, 50, 600, 300), (contexts[0], contexts[-1]), (low, high), log_x=True, log_y=True)
    steps = [low * 10**i * m for i in range(round(math.log10(high / low)) + 1) for m in (1, 2, 5)]
    panel.axes(title, "tokens of context", [(x, context_name(x)) for x in contexts], [(y, f"{y:g}") for y in steps if y <= high])
    heights = label_places([panel.y(points[-1][1]) for _, _, points in lines])
    for (name, colour, points), height in zip(lines, heights):
        panel.curve(points, colour)
        panel.dots(points, colour)
        picture.text(panel.right + 10, height + 4, name, kind="small", colour=colour)
    picture.save(path)
