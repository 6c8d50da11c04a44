"""The HTML pages: one file per page."""
