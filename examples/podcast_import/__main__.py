"""Starts the web server on $PORT, or on port 8000: python -m podcast_import"""

from __future__ import annotations

import os

import uvicorn

from .web import app

if __name__ == "__main__":
    uvicorn.run(app, port=int(os.environ.get("PORT", "8000")))
