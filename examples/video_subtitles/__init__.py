"""Videos get their subtitles. The queue is in the app's own SQLite file."""
