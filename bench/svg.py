"""Small SVG pictures without a plotting library: lines against a context, and horizontal bars.

Backgrounds are transparent and text follows the page: dark on a light one, light on a dark one.
"""

import math
import re
import sys
from html import escape

STYLE = """<style>
text { font: 13px system-ui, sans-serif; fill: #6e7781 }
.title { font-size: 15px; font-weight: 600 }
.small { font-size: 12px }
.axis { stroke: #8b949e; fill: none }
.grid { stroke: #8b949e; stroke-opacity: .25; fill: none }
@media (prefers-color-scheme: dark) { text { fill: #b1bac4 } }
</style>"""

# Readable on white and on black.
QUIRE, QUIRE_2, PEER, PEER_2, PEER_3, OTHER = "#2f81f7", "#1f9d7a", "#d1495b", "#e08a1e", "#a371f7", "#8b949e"


def adapt(path):
    """Makes gnuplot's SVG fit any page: no background, black becomes grey."""
    with open(path, encoding="utf-8") as file:
        text = file.read()
    text = re.sub(r'<rect [^>]*fill="#ffffff"/>\n?', "", text, count=1)
    text = re.sub(r"""(fill|color|stroke)=(["'])black\2""", r"\1=\2#6e7781\2", text)
    text = re.sub(r"(?i)rgb\(221, 221, 221\)|#dddddd", "rgba(139, 148, 158, 0.3)", text)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


class Picture:
    def __init__(self, width, height, description):
        self.width, self.height = width, height
        self.parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
                      f'viewBox="0 0 {width} {height}" role="img">', f"<title>{escape(description)}</title>", STYLE]

    def text(self, x, y, text, anchor="start", kind="", colour=None):
        style = f' style="fill:{colour}"' if colour else ""
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" class="{kind}"{style}>{escape(text)}</text>')

    def line(self, x1, y1, x2, y2, kind="axis"):
        self.parts.append(f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"/>')

    def curve(self, points, colour, dashed=False):
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self.parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>')

    def dot(self, x, y, colour):
        self.parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>')

    def bar(self, x, y, width, height, colour):
        self.parts.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 1):.1f}" height="{height}" fill="{colour}"/>')

    def save(self, path):
        with open(path, "w", encoding="utf-8") as file:
            file.write("\n".join(self.parts + ["</svg>", ""]))


class Panel:
    """A rectangle of a picture with its axes; x() and y() turn values into places."""

    def __init__(self, picture, box, x_range, y_range, log_x=False, log_y=False):
        self.picture, (self.left, self.top, self.right, self.bottom) = picture, box
        self.x_range, self.y_range, self.log_x, self.log_y = x_range, y_range, log_x, log_y

    @staticmethod
    def _share(value, ends, log):
        low, high = map(math.log, ends) if log else ends
        return ((math.log(value) if log else value) - low) / (high - low)

    def x(self, value):
        return self.left + self._share(value, self.x_range, self.log_x) * (self.right - self.left)

    def y(self, value):
        return self.bottom - self._share(value, self.y_range, self.log_y) * (self.bottom - self.top)

    def axes(self, title, x_title, x_ticks, y_ticks):
        p = self.picture
        p.text(self.left, self.top - 14, title, kind="title")
        for value, label in y_ticks:
            p.line(self.left, self.y(value), self.right, self.y(value), "grid")
            p.text(self.left - 8, self.y(value) + 4, label, "end", "small")
        for value, label in x_ticks:
            p.line(self.x(value), self.bottom, self.x(value), self.bottom + 4)
            p.text(self.x(value), self.bottom + 19, label, "middle", "small")
        p.line(self.left, self.bottom, self.right, self.bottom)
        p.text((self.left + self.right) / 2, self.bottom + 38, x_title, "middle", "small")

    def curve(self, points, colour, dashed=False):
        self.picture.curve([(self.x(x), self.y(y)) for x, y in points], colour, dashed)

    def dots(self, points, colour):
        for x, y in points:
            self.picture.dot(self.x(x), self.y(y), colour)


def horizontal_bars(groups, title, colours, path, base=1.0):
    """groups: [(heading, [(label, value, kind)])]. Bars on a log scale start at `base`; colours[kind] paints them."""
    rows = sum(len(bars) for _, bars in groups)
    left, right, width, step = 256, 90, 876, 19
    height = 62 + rows * step + len(groups) * 34
    largest = max(value for _, bars in groups for _, value, _ in bars)
    scale = (width - left - right) / math.log(max(largest, 2 * base) / base)
    picture = Picture(width, height, title)
    picture.text(16, 24, title, kind="title")
    x, y = 16, 44
    for kind, colour in colours.items():
        picture.bar(x, y - 10, 12, 12, colour)
        picture.text(x + 18, y, kind, kind="small")
        x += 40 + 8 * len(kind)
    y += 14
    for heading, bars in groups:
        y += 24
        picture.text(16, y, heading, kind="title")
        y += 8
        picture.line(left, y, left, y + len(bars) * step)
        for label, value, kind in bars:
            length = scale * math.log(value / base)
            picture.text(left - 26, y + 13, label, "end", "small")
            picture.bar(left + min(length, 0), y + 2, abs(length), step - 5, colours[kind])
            picture.text(left + max(length, 0) + 6, y + 13, f"{value:.1f}x" if value >= 1 else f"{value:.2f}x", kind="small")
            y += step
        y += 2
    picture.save(path)


if __name__ == "__main__":  # svg.py FILE..: adapt gnuplot's pictures
    for name in sys.argv[1:]:
        adapt(name)
