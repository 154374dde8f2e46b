"""Pieces of reports that every verb shares: self-contained HTML and terminal rendering."""
