"""An app that cannot be imported."""

raise SystemExit(3)
