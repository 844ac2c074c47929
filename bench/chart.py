# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""A line chart as SVG, both axes logarithmic, each line named at its end. Colours come from CSS."""

import dataclasses
import html
import math

WIDTH, HEIGHT = 760, 400
LEFT, RIGHT, TOP, BOTTOM = 64, 168, 16, 44
LABEL_GAP = 14


@dataclasses.dataclass
class Point:
    x: float
    y: float
    low: float = 0.0  # A bar from low to high, if both are given.
    high: float = 0.0
    hollow: bool = False
    title: str = ""  # Shown where the pointer rests.


@dataclasses.dataclass
class Line:
    name: str
    style: str  # A class of the page's CSS.
    points: list


@dataclasses.dataclass
class Level:
    """A horizontal line over a range of x, with a word at its left end."""

    first: float
    last: float
    y: float
    style: str
    word: str = ""


class Scale:
    """From values to pixels, logarithmically, with half a step of room at both ends."""

    def __init__(self, values, begin, end, room):
        self.low = min(values) / room
        self.high = max(values) * room
        self.begin, self.end = begin, end

    def __call__(self, value):
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return self.begin + share * (self.end - self.begin)

    def clamp(self, value):
        return min(max(value, self.low), self.high)


def decades(scale):
    """1, 10, 100, ... within the scale; with 2 and 5 between them where there is room."""
    first, last = math.floor(math.log10(scale.low)), math.ceil(math.log10(scale.high))
    steps = (1, 2, 5) if last - first <= 3 else (1,)
    ticks = [step * 10.0 ** power for power in range(first, last + 1) for step in steps]
    return [tick for tick in ticks if scale.low <= tick <= scale.high]


def number_text(value):
    return f"{value:,.0f}".replace(",", " ") if value >= 1 else f"{value:g}"


def spread_labels(places):
    """Moves labels apart: [(wanted y, label)] becomes the same with y that do not touch."""
    placed = sorted(places, key=lambda place: place[0])
    ys = [y for y, _ in placed]
    for _ in range(200):
        moved = False
        for i in range(len(ys) - 1):
            overlap = LABEL_GAP - (ys[i + 1] - ys[i])
            if overlap > 0.01:
                ys[i] -= overlap / 2
                ys[i + 1] += overlap / 2
                moved = True
        if not moved:
            break
    shift = max(0.0, TOP + 4 - ys[0]) if ys else 0
    return [(y + shift, label) for y, (_, label) in zip(ys, placed)]


def _axes(x_scale, y_scale, x_ticks, y_title, y_suffix):
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    parts = []
    for tick in decades(y_scale):
        y = y_scale(tick)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>'
                     f'<text class="tick" x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">'
                     f"{number_text(tick)}{y_suffix}</text>")
    last = -math.inf
    for value, text in x_ticks:
        x = x_scale(value)
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{bottom}" '
                     f'y2="{bottom + 4}"/>')
        if x - last < 48:
            continue
        last = x
        parts.append(f'<text class="tick" x="{x:.1f}" y="{bottom + 20}" text-anchor="middle">'
                     f"{html.escape(text)}</text>")
    parts.append(f'<text class="axis" transform="translate(14 {(TOP + bottom) / 2:.0f}) '
                 f'rotate(-90)" text-anchor="middle">{html.escape(y_title)}</text>')
    return parts


def _line(line, x_scale, y_scale):
    places = [(x_scale(point.x), y_scale(y_scale.clamp(point.y)), point) for point in line.points]
    path = " ".join(f"{'M' if i == 0 else 'L'}{x:.1f} {y:.1f}"
                    for i, (x, y, _) in enumerate(places))
    parts = [f'<path class="line" d="{path}"/>']
    for x, y, point in places:
        if point.high > point.low > 0:
            top, bottom = (y_scale(y_scale.clamp(value)) for value in (point.high, point.low))
            parts.append(f'<line class="bar" x1="{x:.1f}" x2="{x:.1f}" y1="{top:.1f}" '
                         f'y2="{bottom:.1f}"/>')
        parts.append(f'<circle class="{"hollow" if point.hollow else "dot"}" cx="{x:.1f}" '
                     f'cy="{y:.1f}" r="3.2"><title>{html.escape(point.title)}</title></circle>')
    return f'<g class="{line.style}">{"".join(parts)}</g>'


def _labels(lines, x_scale, y_scale):
    right = WIDTH - RIGHT
    wanted = []
    for line in lines:
        end = line.points[-1]
        wanted.append((y_scale(y_scale.clamp(end.y)), (line, x_scale(end.x))))
    parts = []
    for y, (line, x) in spread_labels(wanted):
        at = y_scale(y_scale.clamp(line.points[-1].y))
        parts.append(f'<g class="{line.style}"><path class="leader" d="M{x + 5:.1f} {at:.1f} '
                     f'L{right + 8} {y:.1f}"/><text class="name" x="{right + 12}" '
                     f'y="{y + 4:.1f}">{html.escape(line.name)}</text></g>')
    return parts


def chart(lines, levels, x_ticks, y_title, description, y_suffix=""):
    """The SVG of `lines`, first ones on top; empty text if there is nothing to draw.

    `x_ticks` is a list of (value, text). `levels` are drawn below the lines.
    """
    lines = [line for line in lines if line.points]
    if not lines:
        return ""
    xs = [value for value, _ in x_ticks]
    ys = [y for line in lines for point in line.points
          for y in (point.y, point.low, point.high) if y > 0]
    ys += [level.y for level in levels]
    x_scale = Scale(xs, LEFT, WIDTH - RIGHT, 1.6)
    y_scale = Scale(ys, HEIGHT - BOTTOM, TOP, 1.25)
    parts = _axes(x_scale, y_scale, x_ticks, y_title, y_suffix)
    for level in levels:
        # A little wider than its range, so that a goal for one size can be seen.
        begin = max(x_scale(x_scale.clamp(level.first)) - 10, LEFT)
        end = min(x_scale(x_scale.clamp(level.last)) + 10, WIDTH - RIGHT)
        y = y_scale(level.y)
        parts.append(f'<line class="level {level.style}" x1="{begin:.1f}" x2="{end:.1f}" '
                     f'y1="{y:.1f}" y2="{y:.1f}"/>')
        if level.word:
            parts.append(f'<text class="level-word" x="{begin:.1f}" y="{y - 4:.1f}">'
                         f"{html.escape(level.word)}</text>")
    parts += [_line(line, x_scale, y_scale) for line in reversed(lines)]
    parts += _labels(lines, x_scale, y_scale)
    return (f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="'
            f'{html.escape(description)}">{"".join(parts)}</svg>')
