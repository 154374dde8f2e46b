"""plotly.js as text, from the optional package plotly, to put into a page that works offline."""

from __future__ import annotations

from ebbtide.errors import MissingExtraError


def plotly_js() -> str:
    """The source of plotly.js (4.8 MB).

    Raises:
        MissingExtraError: plotly is not installed.
    """
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise MissingExtraError("An HTML report", "plotly", "report") from error
    return str(get_plotlyjs())
